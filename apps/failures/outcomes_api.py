"""Outcomes of all traffic over REST: the true failure rate, the layers' recall, the model, and
checks. The API key determines the project.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.models import Project
from apps.core.openapi import described
from apps.core.routes import api
from apps.core.scopes import MANAGED, READABLE
from apps.failures.actions.decisions import Refused
from apps.failures.models import OutcomeModel
from apps.failures.outcomes import alarms, checks, train_job
from apps.failures.outcomes.rate import Estimate
from apps.trajectories.actions.store import find

INTERVAL = {
    "type": ["object", "null"],
    "description": (
        "`value` with its 95% interval `low` to `high`, from `n` checks; null if unknown"
    ),
    "properties": {
        "value": {"type": "number"},
        "low": {"type": "number"},
        "high": {"type": "number"},
        "n": {"type": "integer"},
    },
}
OUTCOMES = {
    "type": "object",
    "properties": {
        "runs": {"type": "integer"},
        "checks_answered": {"type": "integer"},
        "checks_waiting": {"type": "integer"},
        "verdicts": {
            "type": "integer",
            "description": (
                "Runs of the judge's random share with a verdict: they narrow the intervals"
            ),
        },
        "judge": {
            "type": "string",
            "description": "The model that gave them; empty if there are none",
        },
        "failure_rate": INTERVAL,
        "versions": {
            "type": "array",
            "description": "The newest agent versions, the newest first",
            "items": {
                "type": "object",
                "properties": {
                    "version": {"type": "string"},
                    "runs": {"type": "integer"},
                    "checks_answered": {"type": "integer"},
                    "verdicts": {"type": "integer"},
                    "failure_rate": INTERVAL,
                },
            },
        },
        "recall": {
            "type": "object",
            "additionalProperties": INTERVAL,
            "description": "By layer: rules, estimate, judge",
        },
        "model": {
            "type": ["object", "null"],
            "description": (
                "The newest one: `number`, `decisions` there were, `measured` out of fold,"
                " `is_better` (than what was in use, which it replaced), `note` (why not, or why it"
                " was switched off `off_at`); null before the first one"
            ),
        },
        "estimates": {
            "type": ["object", "null"],
            "description": (
                "The `model` in use, its `false_alarms` in random checks since it was made (with"
                " interval), the `evidence_above_limit` that they have risen above 10% (it is"
                " switched off at 500), and whether its scores are probabilities (`calibrated`) or"
                " ranks; null while no model is better than none: then nothing is flagged by an"
                " estimate"
            ),
        },
    },
}
MODEL = ("number", "decisions", "measured", "is_better", "note")
NEXT = {
    "type": "object",
    "properties": {
        "trajectory": {
            "type": ["string", "null"],
            "description": "Its external id; null if no run is left",
        },
        "random": {
            "type": "boolean",
            "description": "Drawn at random, or chosen because it teaches most",
        },
        "waiting": {"type": "integer"},
    },
}
ANSWER = {
    "type": "object",
    "required": ["trajectory", "answer"],
    "properties": {
        "trajectory": {"type": "string"},
        "answer": {"enum": ["failed", "fine", "unsure"]},
    },
}


@extend_schema(
    methods=["GET"],
    operation_id="v1_outcomes_read",
    parameters=[OpenApiParameter("version", str, description="Only runs of this agent version")],
    responses=described({200: OUTCOMES}, 403),
    description=(
        "The true failure rate and the recall of each layer, estimated from random checks; and the"
        " outcome model."
    ),
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_outcomes_train",
    request=None,
    responses=described({202: OUTCOMES}, 403, 409),
    description="Trains the outcome model on the decisions so far.",
)
@api(GET=READABLE, POST=MANAGED)
def outcomes(request: Request) -> Response:
    project = request.auth.project
    if request.method == "POST":
        train_job.start(project=project, by=member_of(request).user)
        return Response(as_json(project), status=202)
    return Response(as_json(project, request.query_params.get("version", "")))


@extend_schema(
    methods=["GET"],
    operation_id="v1_outcome_checks_next",
    responses=described({200: NEXT}, 403),
    description="The next run to check.",
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_outcome_checks_answer",
    request={"application/json": ANSWER},
    responses=described({200: NEXT}, 400, 403, 404),
    description="Records the answer for a run and returns the next run to check.",
    examples=[
        OpenApiExample(
            "failed", value={"trajectory": "run-17", "answer": "failed"}, request_only=True
        )
    ],
)
@api(GET=READABLE, POST=MANAGED)
def answer_checks(request: Request) -> Response:
    project = request.auth.project
    if request.method == "POST":
        given = request.data if isinstance(request.data, dict) else {}
        row = find(project, str(given.get("trajectory") or ""))
        if row is None:
            raise NotFound
        try:
            checks.answer(
                trajectory=row, answer=str(given.get("answer")), by=member_of(request).user
            )
        except Refused as refused:
            raise ValidationError({"answer": str(refused)}) from refused
    found = checks.next_check(project)
    row = project.trajectories.filter(pk=found.trajectory).first() if found else None
    waiting = checks.waiting(project).count()
    return Response(
        {
            "trajectory": row and row.external_id,
            "random": bool(found and found.random),
            "waiting": waiting,
        }
    )


def as_json(project: Project, version: str = "") -> dict[str, Any]:
    known, model = checks.traffic(project, version=version), project.outcome_models.first()
    in_use = OutcomeModel.in_use(project)
    seen = alarms.observed(project, in_use) if in_use else None
    return {
        "runs": known.runs,
        "checks_answered": known.answered,
        "checks_waiting": known.waiting,
        "verdicts": known.verdicts,
        "judge": known.judge,
        "failure_rate": _interval(known.rate),
        "versions": [
            {
                "version": one.name,
                "runs": one.runs,
                "checks_answered": one.answered,
                "verdicts": one.verdicts,
                "failure_rate": _interval(one.rate),
            }
            for one in checks.by_version(project)
            if version in ("", one.name)
        ],
        "recall": {layer: _interval(share) for layer, share in known.recalls},
        "model": (model and {name: getattr(model, name) for name in (*MODEL, "made_at", "off_at")}),
        "estimates": (
            in_use
            and {
                "model": in_use.number,
                "false_alarms": _interval(seen and seen.share),
                "evidence_above_limit": seen.evidence if seen else 0.0,
                "calibrated": in_use.measured.get("calibrated", False),
            }
        ),
    }


def _interval(found: Estimate | None) -> dict[str, float] | None:
    return found and {"value": found.value, "low": found.low, "high": found.high, "n": found.n}
