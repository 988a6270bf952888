"""Canaries and shadows of a channel, by API. The key determines the project."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from msgspec import Meta, Struct
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import JSON, described, page, sent, told
from apps.core.query import number_of, whole_number
from apps.core.routes import api
from apps.core.scopes import MANAGED, RESULT
from apps.evals.lookups import LIMIT, find_version, form_of
from apps.promotion.api import find_channel
from apps.promotion.conditions import MAX_REASON
from apps.promotion.models import Channel, Trial
from apps.promotion.reports import find_report
from apps.promotion.trials import actions
from apps.promotion.trials.announcing import trial_json
from apps.promotion.trials.models import TrialState
from apps.promotion.trials.plans import Plan
from apps.promotion.trials.starting import forecast_of
from workers.lib.typed import json_schema

NULLABLE, WHEN = {"type": ["string", "null"]}, {"type": ["string", "null"], "format": "date-time"}
RATE = {"type": "array", "items": {"type": "integer"}, "description": "[good sessions, all]"}
MEASURE = {
    "type": "object",
    "properties": {
        "gap": {"type": ["number", "null"], "description": "Candidate − current, over sessions"},
        "low": {"type": "number", "description": "Always-valid bound"},
        "high": {"type": "number"},
        "current": RATE,
        "candidate": RATE,
    },
}
STEP = {
    "type": "object",
    "properties": {
        "share": {"type": "number"},
        "min_sessions": {"type": "integer"},
        "min_minutes": {"type": "integer"},
    },
}
TRIAL = {
    "type": "object",
    "required": [
        "id",
        "channel",
        "kind",
        "version",
        "baseline",
        "state",
        "step",
        "share",
        "steps",
        "report",
    ],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "channel": {"type": "string"},
        "kind": {"enum": Trial.Kind.values},
        "version": {"type": "string", "description": "The candidate"},
        "baseline": {"type": "string"},
        "gate_report": NULLABLE,
        "deployment": NULLABLE,
        "state": {"enum": TrialState.values},
        "step": {"type": "integer", "description": "Index into `steps`"},
        "share": {"type": "number"},
        "steps": {"type": "array", "items": STEP},
        "alpha": {"type": "number"},
        "margin": {"type": "number"},
        "max_days": {"type": "integer"},
        "max_harmed": {
            "type": "integer",
            "description": "It ends once so many sessions have failed beyond the current rate",
        },
        "outcome_minutes": {
            "type": "integer",
            "description": "How long outcomes are waited for before a step is left",
        },
        "then": {"enum": Trial.Then.values},
        "reason": {"type": "string"},
        "by": {"type": "string"},
        "created_at": {"type": "string", "format": "date-time"},
        "started_at": WHEN,
        "step_at": WHEN,
        "ended_at": WHEN,
        "ended_because": {"type": "string"},
        "passed": {
            "type": "boolean",
            "description": "The last step has passed and is waiting for a decision",
        },
        "report": {
            "type": "object",
            "properties": {
                "harmed": {
                    "type": "number",
                    "description": (
                        "Sessions that failed beyond the current version's rate (estimate)"
                    ),
                },
                "waiting": {
                    "type": "integer",
                    "description": "The candidate's sessions whose outcome is not yet known",
                },
                "paused": {
                    "type": "string",
                    "description": "Why no new session takes part now; empty while they do",
                },
                "measures": {"type": "object", "additionalProperties": MEASURE},
            },
        },
        "decisions": {"type": "array", "items": {"type": "object"}},
    },
}
REASON = Annotated[str, Meta(max_length=MAX_REASON, pattern=r"\S")]
ASKED = {
    "kind": "canary",
    "report": "6b0c66f7-47a5-4c1c-8f1c-0d6b2e9a5b30",
    "reason": "12 points better on the hold-out",
    "then": "promote",
    "plan": {
        "steps": [{"share": 0.05}, {"share": 0.5, "min_sessions": 500, "min_minutes": 120}],
        "max_harmed": 20,
    },
}
EXAMPLE = {
    "id": "8f4f2a8e-0c1e-4a53-9b52-0d9a0f3f6a10",
    "channel": "production",
    "kind": "canary",
    "version": "support-v4",
    "baseline": "support-v3",
    "gate_report": "6b0c66f7-47a5-4c1c-8f1c-0d6b2e9a5b30",
    "deployment": None,
    "state": "running",
    "step": 0,
    "share": 0.05,
    "steps": [{"share": 0.05, "min_sessions": 100, "min_minutes": 30}],
    "alpha": 0.05,
    "margin": 0.05,
    "max_days": 14,
    "max_harmed": 50,
    "outcome_minutes": 30,
    "then": "hold",
    "reason": "12 points better on the hold-out",
    "by": "mara",
    "created_at": "2026-11-22T08:00:00Z",
    "started_at": "2026-11-22T08:00:09Z",
    "step_at": "2026-11-22T08:00:09Z",
    "ended_at": None,
    "ended_because": "",
    "passed": False,
    "report": {
        "sessions": 80,
        "harmed": 0.0,
        "waiting": 6,
        "paused": "",
        "measures": {
            "success": {
                "gap": 0.021,
                "low": -0.06,
                "high": 0.11,
                "current": [1350, 1500],
                "candidate": [74, 80],
            }
        },
    },
    "decisions": [],
}


class NewTrial(Struct, forbid_unknown_fields=True, kw_only=True):
    """A canary needs a gate `report`; a shadow a report or a `version`."""

    kind: Literal["canary", "shadow"]
    reason: REASON
    report: str = ""
    version: str = ""
    then: Literal["promote", "hold"] = "hold"
    plan: Plan | None = None


class Wanted(Struct, forbid_unknown_fields=True, kw_only=True):
    plan: Plan | None = None


HARM = {
    "type": "object",
    "required": ["failing", "known", "outcome_minutes", "unseen", "pauses", "harm"],
    "properties": {
        "failing": {
            "type": "number",
            "description": "Share of the current version's sessions that fail",
        },
        "known": {
            "type": "boolean",
            "description": (
                "Whether that is last week's rate, or assumed because few runs are known"
            ),
        },
        "outcome_minutes": {"type": "integer", "description": "How long outcomes are waited for"},
        "unseen": {
            "type": "integer",
            "description": (
                "Runs that would reach the candidate in the first step before the first outcomes"
                " are known, at last week's traffic: intake pauses at `max_harmed` of them"
            ),
        },
        "pauses": {
            "type": "boolean",
            "description": "Whether intake will pause in some step, which `harm` allows for",
        },
        "harm": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "extra": {
                        "type": "number",
                        "description": "If so many more of the candidate's sessions fail …",
                    },
                    "harmed": {
                        "type": "number",
                        "description": "… so many sessions fail on average that would not have",
                    },
                    "at_most": {
                        "type": "number",
                        "description": "and in 19 of 20 trials at most so many",
                    },
                    "sessions": {
                        "type": "number",
                        "description": "that the candidate answers until the trial ends",
                    },
                    "ended": {
                        "type": "number",
                        "description": "Share of trials that roll it back or stop it",
                    },
                    "in_first_step": {"type": "number"},
                    "passed": {"type": "number"},
                },
            },
        },
    },
}
HARM_EXAMPLE = {
    "failing": 0.1,
    "known": True,
    "outcome_minutes": 30,
    "unseen": 12,
    "pauses": False,
    "harm": [
        {
            "extra": 0.1,
            "harmed": 16.1,
            "at_most": 39.0,
            "sessions": 158,
            "ended": 1.0,
            "in_first_step": 0.86,
            "passed": 0.0,
        }
    ],
}


@extend_schema(
    operation_id="v1_channels_trials_forecast",
    request={JSON: json_schema(Wanted)},
    responses=described({200: HARM}, 400, 404, 409),
    examples=[sent("The default plan", {}), told("What it may cost", HARM_EXAMPLE)],
    description=(
        "How many sessions a canary with this plan harms if its candidate fails more often, by"
        " simulation. Starts nothing."
    ),
)
@api(POST=RESULT)
def harm(request: Request, name: str) -> Response:
    asked = form_of(request, Wanted)
    found = forecast_of(find_channel(request, name), asked.plan or Plan())
    return Response(asdict(found))


class Why(Struct, forbid_unknown_fields=True, kw_only=True):
    reason: REASON


@extend_schema(
    methods=["GET"],
    operation_id="v1_channels_trials_list",
    responses=described({200: page(TRIAL, "integer")}, 400, 404),
    parameters=[
        LIMIT,
        OpenApiParameter(
            "offset", whole_number(0, 10**9, 0), description="`next` of the page before"
        ),
    ],
    examples=[told("One that runs", {"results": [EXAMPLE], "next": None})],
    description="Every canary and shadow of a channel, newest first.",
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_channels_trials_begin",
    request={JSON: json_schema(NewTrial)},
    responses=described({201: TRIAL}, 400, 403, 404, 409),
    examples=[sent("A canary in two steps", ASKED), told("Begun", EXAMPLE, "201")],
    description=(
        "Starts a canary (the candidate answers a share of the sessions) or a shadow (it also"
        " answers, but its answers are not sent to users). If the channel has servers as targets,"
        " the candidate is first loaded and verified there. An API key needs a policy that allows"
        " it, and a report whose verdict is “promote”."
    ),
)
@api(GET=RESULT, POST=MANAGED)
def trials(request: Request, name: str) -> Response:
    channel = find_channel(request, name)
    if request.method == "POST":
        asked = form_of(request, NewTrial)
        row = actions.begin(
            channel=channel,
            kind=Trial.Kind(asked.kind),
            then=Trial.Then(asked.then),
            reason=asked.reason,
            plan=asked.plan,
            gate_report=find_report(request.auth.project, asked.report) if asked.report else None,
            version=find_version(request, asked.version) if asked.version else None,
            by=request.auth.created_by,
            key=request.auth,
        )
        return Response(trial_json(row), status=201)
    limit, offset = number_of(request, "limit"), number_of(request, "offset")
    found = list(_rows(channel)[offset : offset + limit + 1])
    following = offset + limit if len(found) > limit else None
    return Response({"results": [trial_json(row) for row in found[:limit]], "next": following})


def _rows(channel: Channel) -> Any:
    return channel.trials.select_related("channel__project", "version", "baseline").defer("looks")


def find_trial(request: Request, name: str, pk: UUID) -> Trial:
    """Raises NotFound."""
    found = _rows(find_channel(request, name)).filter(pk=pk).first()
    if found is None:
        raise NotFound("This channel has no trial with this id.")
    return found


@extend_schema(
    operation_id="v1_channels_trials_retrieve",
    responses=described({200: TRIAL}, 404),
    examples=[told("One that runs", EXAMPLE)],
    description=(
        "The state of a trial: sessions and rates on both sides, differences with always-valid"
        " bounds, latency, tokens and cost, and the decisions so far."
    ),
)
@api(GET=RESULT)
def trial(request: Request, name: str, pk: UUID) -> Response:
    return Response(trial_json(find_trial(request, name, pk)))


@extend_schema(
    operation_id="v1_channels_trials_stop",
    request={JSON: json_schema(Why)},
    responses=described({200: TRIAL}, 400, 403, 404, 409),
    examples=[
        sent("Why", {"reason": "Users complain"}),
        told("Stopped", EXAMPLE | {"state": "stopped"}),
    ],
    description=(
        "Ends a trial: all users get the current version again. Also works during a freeze."
    ),
)
@api(POST=MANAGED)
def stop(request: Request, name: str, pk: UUID) -> Response:
    return _changed(request, name, pk, actions.stop)


@extend_schema(
    operation_id="v1_channels_trials_advance",
    request={JSON: json_schema(Why)},
    responses=described({200: TRIAL}, 400, 403, 404, 409),
    examples=[
        sent("Why", {"reason": "Looks well"}),
        told("The next step", EXAMPLE | {"step": 1, "share": 0.25}),
    ],
    description="Advances to the next share before the current step has passed.",
)
@api(POST=MANAGED)
def advance(request: Request, name: str, pk: UUID) -> Response:
    return _changed(request, name, pk, actions.advance)


def _changed(request: Request, name: str, pk: UUID, action: Any) -> Response:
    found, asked = find_trial(request, name, pk), form_of(request, Why)
    row = action(trial=found, by=request.auth.created_by, reason=asked.reason, key=request.auth)
    return Response(trial_json(row))
