"""Flows over REST: create them as JSON or YAML, start, follow and answer them."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from drf_spectacular.utils import extend_schema
from msgspec import UNSET, Meta, Struct, UnsetType
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.automation import actions, starts
from apps.automation.dry_run import DryRun, dry_run
from apps.automation.models import Flow, FlowRun, FlowStep
from apps.automation.specs import FlowError, FlowSpec, read, read_yaml, write_yaml
from apps.core.api import member_of
from apps.core.attempts import Locked, address_of, refuse_key
from apps.core.models import key_digest
from apps.core.openapi import JSON, LINE, described, page, sent, told
from apps.core.paging import listed
from apps.core.routes import TOTALS, WHEN_EVALUATED, api, shows
from apps.core.scopes import MANAGED, OPERATED, READABLE
from apps.evals.lookups import CURSOR, LIMIT
from workers.lib.typed import convert, json_schema

SECRET_HEADER = "X-Flow-Secret"


class Write(Struct, forbid_unknown_fields=True, kw_only=True):
    """`spec`, or `yaml` as a page shows it. A new flow is `enabled`; an existing one keeps its
    state by default.
    """

    name: Annotated[str, Meta(min_length=1, max_length=80, pattern=LINE)]
    spec: dict[str, Any] | UnsetType = UNSET
    yaml: str | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET

    def form(self) -> FlowSpec:
        """Raises FlowError."""
        if (self.spec is UNSET) == (self.yaml is UNSET):
            raise FlowError("Send either `spec` or `yaml`.", "spec")
        return read(self.spec) if isinstance(self.spec, dict) else read_yaml(str(self.yaml))


TIME, ID = {"type": ["string", "null"], "format": "date-time"}, {"type": "string", "format": "uuid"}
FLOW = {
    "type": "object",
    "required": ["id", "name", "version", "enabled", "spec", "yaml", "next_run_at"],
    "properties": {
        "id": ID,
        "name": {"type": "string"},
        "version": {"type": "integer"},
        "enabled": {"type": "boolean"},
        "spec": json_schema(FlowSpec),
        "yaml": {"type": "string"},
        "by": {"type": ["string", "null"]},
        "next_run_at": TIME,
        "coming": {"type": "array", "items": TIME},
    },
}
STEP = {
    "type": "object",
    "properties": {
        "key": {"type": "string"},
        "kind": {"type": "string"},
        "state": {"type": "string"},
        "said": {"type": "string"},
        "outputs": {"type": "object"},
        "jobs": {"type": "object"},
        "attempt": {
            "type": "integer",
            "description": "Failed attempts since a person last resumed it",
        },
        "failures": {
            "type": "array",
            "items": {"type": "object"},
            "description": "[{at, said}] of failed attempts",
        },
        "not_before": TIME,
        "seconds": {"type": "number"},
        "usd": {"type": "number"},
        "started_at": TIME,
        "finished_at": TIME,
    },
}
RUN: dict[str, Any] = {
    "type": "object",
    "required": [
        "id",
        "flow",
        "version",
        "state",
        "cause",
        "note",
        "error",
        "created_at",
        "finished_at",
    ],
    "properties": {
        "id": ID,
        "flow": ID,
        "version": {"type": "integer"},
        "state": {"type": "string"},
        "cause": {"type": "object"},
        "note": {"type": "string", "description": "What it is waiting for"},
        "error": {"type": "string"},
        "created_at": TIME,
        "started_at": TIME,
        "finished_at": TIME,
    },
}
WHOLE_RUN = RUN | {"properties": RUN["properties"] | {"steps": {"type": "array", "items": STEP}}}
DRY_RUN = {
    "type": "object",
    "properties": {
        "days": {"type": "integer"},
        "seconds": {"type": "number", "description": "Of one run, as far as known"},
        "usd": {"type": "number", "description": "Of one run, as far as prices are known"},
        "steps": {"type": "array", "items": {"type": "object"}},
        "runs": {"type": "array", "items": {"type": "object"}},
    },
}
SHAPE = json_schema(Write)
SHAPE = SHAPE | {"properties": SHAPE["properties"] | {"spec": json_schema(FlowSpec)}}
NIGHTLY = {
    "starts": [{"by": "cron", "when": "0 2 * * *"}],
    "steps": [{"do": "evaluate", "set": "set:support", "environment": "helpdesk", "samples": 4}],
}
FLOW_ID, RUN_ID = "5f0c3c1e-7c0d-4b0e-9d3a-2f5a1b1f9a11", "0d3f0c52-9a51-4b1e-8a4c-0a3d5f2f7c11"
NEW_EXAMPLE = sent("Every night", {"name": "Nightly evaluation", "spec": NIGHTLY})
RUN_JSON = {
    "id": RUN_ID,
    "flow": FLOW_ID,
    "version": 1,
    "state": "waiting",
    "cause": {"by": "cron", "sentence": "Its time has come"},
    "note": "Is the candidate good?",
    "error": "",
    "created_at": "2026-11-22T02:00:00Z",
    "started_at": "2026-11-22T02:00:04Z",
    "finished_at": None,
}


def _flow(request: Request, pk: UUID) -> Flow:
    found = (
        actions.with_newest(Flow.objects.filter(project=request.auth.project)).filter(pk=pk).first()
    )
    if found is None:
        raise NotFound("No flow of this project has this id.")
    return found


def _run(request: Request, pk: UUID) -> FlowRun:
    rows = FlowRun.objects.select_related("version__flow", "version__created_by", "project")
    found = rows.filter(project=request.auth.project, pk=pk).first()
    if found is None:
        raise NotFound("No run of this project's flows has this id.")
    return found


def flow_json(flow: Flow) -> dict[str, Any]:
    spec, by = flow.version.readable, flow.version.created_by
    coming = starts.coming(spec, timezone.now()) if spec and flow.enabled else []
    return {
        "id": str(flow.pk),
        "name": flow.name,
        "version": flow.version.number,
        "enabled": flow.enabled,
        "spec": flow.version.spec,
        "yaml": write_yaml(flow.version.spec),
        "by": by.get_username() if by else None,
        "next_run_at": flow.next_run_at,
        "coming": coming,
    }


def run_json(run: FlowRun) -> dict[str, Any]:
    return {
        "id": str(run.pk),
        "flow": str(run.version.flow_id),
        "version": run.version.number,
        "state": run.state,
        "cause": run.cause,
        "note": run.note,
        "error": run.error,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
    }


def step_json(step: FlowStep) -> dict[str, Any]:
    names = (
        "key",
        "kind",
        "state",
        "said",
        "outputs",
        "attempt",
        "failures",
        "not_before",
        "seconds",
        "usd",
        "started_at",
        "finished_at",
    )
    return {name: getattr(step, name) for name in names} | {
        "jobs": {name: pk for name, (_, pk) in step.jobs.items()}
    }


def dry_json(found: DryRun) -> dict[str, Any]:
    return {
        "days": found.days,
        "seconds": found.seconds,
        "usd": found.usd,
        "steps": [
            {
                "key": step.key,
                "sentence": step.sentence,
                "seconds": step.seconds,
                "usd": step.usd,
                "problem": step.problem,
            }
            for step in found.steps
        ],
        "runs": [
            {"at": run.at, "cause": run.cause.as_json(), "begins": run.begins, "note": run.note}
            for run in found.runs
        ],
    }


@extend_schema(
    methods=["GET"],
    operation_id="v1_flows_list",
    responses=described({200: page(FLOW)}, 400, 403),
    parameters=[LIMIT, CURSOR],
    description="The project's flows, newest first.",
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_flows_add",
    request={JSON: SHAPE},
    responses=described({201: FLOW}, 400, 403, 409),
    examples=[NEW_EXAMPLE],
    description="Creates a flow. It runs with the permissions of the key's creator.",
)
@api(GET=READABLE, POST=OPERATED)
def collection(request: Request) -> Response:
    project = request.auth.project
    if request.method == "GET":
        return listed(
            request, actions.with_newest(project.flows.all()), lambda _, row: flow_json(row)
        )
    return Response(flow_json(_saved(request, None)), status=201)


def _saved(request: Request, flow: Flow | None) -> Flow:
    given, by = convert(request.data, Write), member_of(request).user
    saved = actions.save_flow(
        project=request.auth.project, name=given.name, spec=given.form(), by=by, flow=flow
    )
    if given.enabled is not UNSET:
        actions.switch(flow=saved, on=bool(given.enabled), by=by)
    return _flow(request, saved.pk)


@extend_schema(
    methods=["GET"],
    operation_id="v1_flows_read",
    responses=described({200: FLOW}, 403, 404),
    description="One flow, its newest version.",
)
@extend_schema(
    methods=["PUT"],
    operation_id="v1_flows_save",
    request={JSON: SHAPE},
    responses=described({200: FLOW}, 400, 403, 404, 409),
    examples=[NEW_EXAMPLE],
    description="Adds a version; current runs keep theirs. An unchanged spec adds no version.",
)
@extend_schema(
    methods=["DELETE"],
    operation_id="v1_flows_delete",
    responses=described({}, 403, 404, 409) | {204: None},
    description=(
        "Deletes a flow and its runs. What the runs created is kept. 409 while a run is active."
    ),
)
@api(GET=READABLE, PUT=OPERATED, DELETE=OPERATED)
def item(request: Request, pk: UUID) -> Response:
    flow = _flow(request, pk)
    if request.method == "DELETE":
        actions.delete(flow=flow, by=member_of(request).user)
        return Response(status=204)
    return Response(flow_json(_saved(request, flow) if request.method == "PUT" else flow))


@extend_schema(
    operation_id="v1_flows_dry_run",
    request=None,
    responses=described({200: DRY_RUN}, 403, 404),
    description=(
        "What the next run would do, and when the flow would have run in the last 30 days, based on"
        " stored data. Nothing is started."
    ),
)
@api(GET=READABLE)
def try_it(request: Request, pk: UUID) -> Response:
    return Response(dry_json(dry_run(request.auth.project, _flow(request, pk).version.form)))


@extend_schema(
    methods=["GET"],
    operation_id="v1_flows_runs",
    responses=described({200: page(RUN)}, 400, 403, 404),
    parameters=[LIMIT, CURSOR],
    examples=[told("One that asks", {"results": [RUN_JSON], "next": None})],
    description="The flow's runs, newest first.",
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_flows_start",
    request=None,
    responses=described({201: RUN}, 403, 404, 409),
    description="Starts a run now. 409 while another run is active.",
)
@api(GET=READABLE, POST=MANAGED)
def runs(request: Request, pk: UUID) -> Response:
    flow = _flow(request, pk)
    if request.method == "POST":
        return Response(
            run_json(actions.run_now(flow=flow, by=member_of(request).user)), status=201
        )
    rows = FlowRun.objects.filter(version__flow=flow).select_related("version")
    return listed(request, rows, lambda _, row: run_json(row))


@shows(TOTALS, WHEN_EVALUATED)
@extend_schema(
    operation_id="v1_flow_runs_read",
    request=None,
    responses=described({200: WHOLE_RUN}, 403, 404),
    description="A run with its steps: what each one does, has created and has used.",
)
@api(GET=READABLE)
def run(request: Request, pk: UUID) -> Response:
    row = _run(request, pk)
    return Response(run_json(row) | {"steps": [step_json(step) for step in row.steps.all()]})


@csrf_exempt
def call(request: HttpRequest, pk: UUID) -> HttpResponse:
    """A webhook: its secret is all that it needs, and all that it opens. Wrong ones are counted as
    wrong API keys are.
    """
    if request.method != "POST":
        return JsonResponse({"detail": "Starts the flow."}, status=405, headers={"Allow": "POST"})
    flow = actions.with_newest(Flow.objects.select_related("project")).filter(pk=pk).first()
    secret = request.headers.get(SECRET_HEADER, "")
    if flow is None or not starts.fits(flow, secret):
        try:
            refuse_key(key_digest(secret), address_of(request))
        except Locked as locked:
            return JsonResponse(
                {"detail": str(locked)}, status=429, headers={"Retry-After": str(locked.seconds)}
            )
        return JsonResponse(
            {"detail": f"No flow matches this URL and this {SECRET_HEADER}."}, status=401
        )
    try:
        begun = actions.called(flow=flow)
    except FlowError as error:
        return JsonResponse({"detail": str(error)}, status=409)
    return JsonResponse({"id": str(begun.pk), "state": begun.state}, status=201)
