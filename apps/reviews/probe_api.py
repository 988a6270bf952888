"""Hack probes over REST: start and follow them, read findings, accept a finding. The key determines
the project.
"""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from msgspec import Meta, Struct
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import jobs
from apps.core.api import member_of
from apps.core.models import Role
from apps.core.openapi import JSON, NUMBER, described, page
from apps.core.routes import api
from apps.core.scopes import OWNED, RESULT, RUN
from apps.environments.api import PAGING, body_of, page_of
from apps.evals.lookups import find_environment, find_set, form_of
from apps.registry.models import Server
from apps.reviews import rescoring
from apps.reviews.models import ProbeRun
from apps.reviews.waivers import waive
from workers.lib.typed import Text, json_schema

MOST_TASKS = 200
FINDING = {
    "type": "object",
    "required": ["probe", "severity", "task", "reason", "shown"],
    "properties": {
        "probe": {"type": "string"},
        "severity": {"enum": ["high", "medium"]},
        "task": {"type": "string"},
        "what": {"type": "string"},
        "reason": {"type": "string"},
        "shown": {"type": "string", "description": "The output, at most 2,000 characters of it"},
        "reward": NUMBER,
        "gold_reward": NUMBER | {"description": "Reward of the correct output"},
        "plain_reward": NUMBER | {"description": "Highest reward of honest wrong outputs"},
        "path": {
            "type": "array",
            "items": {"type": "string"},
            "description": "How the search made it",
        },
    },
}
PROBE_RUN = {
    "type": "object",
    "required": [
        "id",
        "verifier",
        "hash",
        "environment",
        "eval_set",
        "state",
        "done",
        "locks",
        "created_at",
    ],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "verifier": {"type": "string"},
        "hash": {"type": "string"},
        "environment": {"type": "string"},
        "eval_set": {"type": "string"},
        "state": {"type": "string"},
        "done": {"type": "integer", "description": "Outputs scored so far"},
        "label": {"type": "string"},
        "error": {"type": "string"},
        "locks": {
            "type": ["integer", "null"],
            "description": "Findings that keep training locked; null until the end",
        },
        "created_at": {"type": "string", "format": "date-time"},
    },
}
WAIVER = {
    "type": "object",
    "required": ["probe", "reason", "by", "at"],
    "properties": {
        "probe": {"type": "string"},
        "reason": {"type": "string"},
        "by": {"type": ["string", "null"]},
        "at": {"type": "string", "format": "date-time"},
    },
}
REPORT = {
    "type": "object",
    "required": [*PROBE_RUN["required"], "findings", "probes", "waivers"],
    "properties": (
        PROBE_RUN["properties"]
        | {
            "findings": {"type": "array", "items": FINDING},
            "probes": {
                "type": "array",
                "items": {"type": "object"},
                "description": "Every probe, with its number of outputs and their rewards",
            },
            "notes": {"type": "array", "items": {"type": "string"}},
            "waivers": {"type": "array", "items": WAIVER},
        }
    ),
}
WAIVE = {
    "type": "object",
    "required": ["probe", "reason"],
    "properties": {"probe": {"type": "string"}, "reason": {"type": "string", "minLength": 1}},
}


class Cheat(Struct, forbid_unknown_fields=True):
    """A model of one of the project's servers that is instructed to cheat, for the search."""

    server: Text
    model: Annotated[str, Meta(min_length=1, max_length=200, pattern=r"\S")]
    tokens: Annotated[int, Meta(ge=1, le=rescoring.MOST_CHEAT_TOKENS)] = rescoring.CHEAT_TOKENS


class StartProbes(Struct, forbid_unknown_fields=True, kw_only=True):
    """`environment`: “slug@version”. `eval_set`: its id or “name@version”; only tasks outside the
    hold-out are used.
    """

    environment: Text
    eval_set: Text
    tasks: Annotated[int, Meta(ge=1, le=MOST_TASKS)] = rescoring.PROBED_TASKS
    cheat: Cheat | None = None


@extend_schema(
    methods=["GET"],
    operation_id="v1_probes_list",
    responses=described({200: page(PROBE_RUN, "integer")}, 400),
    parameters=PAGING,
    description="Hack probe runs, newest first.",
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_probes_start",
    request={JSON: json_schema(StartProbes)},
    responses=described({201: PROBE_RUN}, 400, 404, 409, 413),
    description=(
        "Queues the probes of an environment's verifier. Poll the run until its state is final."
    ),
)
@api(GET=RESULT, POST=RUN)
def probes(request: Request) -> Response:
    if request.method == "POST":
        return _start(request)
    found, after = page_of(request, _runs(request).order_by("-created_at"))
    return Response({"results": [as_json(row) for row in found], "next": after})


def _start(request: Request) -> Response:
    asked = form_of(request, StartProbes)
    run = rescoring.submit_probe(
        environment=find_environment(request, asked.environment),
        eval_set=find_set(request, asked.eval_set),
        by=request.auth.created_by,
        tasks=asked.tasks,
        cheat=_cheat(request, asked.cheat) if asked.cheat else None,
    )
    return Response(as_json(run), status=201)


def _cheat(request: Request, cheat: Cheat) -> rescoring.CheatingModel:
    server = Server.objects.filter(project=request.auth.project, name=cheat.server).first()
    if server is None:
        raise NotFound("No server of this project has this name (`cheat.server`).")
    return rescoring.CheatingModel(server, cheat.model, cheat.tokens)


@extend_schema(
    operation_id="v1_probes_read",
    responses=described({200: REPORT}, 404),
    description=(
        "State and progress and, once finished, the findings, worst first, and which were accepted."
    ),
)
@api(GET=RESULT)
def probe(request: Request, pk: UUID) -> Response:
    return Response(_report(_find(request, pk)))


@extend_schema(
    operation_id="v1_probes_cancel",
    request=None,
    responses=described({200: PROBE_RUN}, 404, 409),
    description="Stops probes that have not finished.",
)
@api(POST=RUN)
def cancel(request: Request, pk: UUID) -> Response:
    run = _find(request, pk)
    if not jobs.cancel(run, by=request.auth.created_by):
        return Response({"detail": "These probes have already finished."}, status=409)
    return Response(as_json(_find(request, pk)))


@extend_schema(
    operation_id="v1_probes_waive",
    request={JSON: WAIVE},
    responses=described({200: REPORT}, 400, 403, 404, 409, 413),
    description=(
        "Accepts the findings of one probe of this run, with a reason, so that they no longer lock"
        " training. The key's creator must be a project owner; the acceptance is recorded in the"
        " audit log."
    ),
)
@api(POST=OWNED)
def accept(request: Request, pk: UUID) -> Response:
    run, body = _find(request, pk), body_of(request)
    for name in ("probe", "reason"):
        if not isinstance(body.get(name), str) or not body[name].strip():
            raise ValidationError({"path": name, "error": "text that is not empty"})
    waive(
        run=run, probe=body["probe"], reason=body["reason"], by=member_of(request, Role.OWNER).user
    )
    return Response(_report(_find(request, pk)))


def _runs(request: Request) -> Any:
    return ProbeRun.objects.filter(project=request.auth.project).select_related(
        "project", "verifier", "environment", "eval_set"
    )


def _find(request: Request, pk: UUID) -> ProbeRun:
    found = _runs(request).filter(pk=pk).first()
    if found is None:
        raise NotFound("No probes of this project have this id.")
    return found


def as_json(run: ProbeRun) -> dict[str, Any]:
    return {
        "id": str(run.pk),
        "verifier": str(run.verifier),
        "hash": run.verifier.hash,
        "environment": str(run.environment),
        "eval_set": str(run.eval_set),
        "state": run.state,
        "done": run.done,
        "label": run.label,
        "error": run.error,
        "locks": run.failed,
        "created_at": run.created_at,
    }


def _report(run: ProbeRun) -> dict[str, Any]:
    waivers = run.waivers.select_related("by")
    return as_json(run) | {
        "findings": run.result.get("failed", []),
        "probes": run.result.get("probes", []),
        "notes": run.result.get("notes", []),
        "waivers": [
            {
                "probe": row.probe,
                "reason": row.reason,
                "by": str(row.by) if row.by else None,
                "at": row.at,
            }
            for row in waivers
        ],
    }
