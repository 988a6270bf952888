"""Reviews with their results, and the lock of training in each environment, over REST. The key
determines the project.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.http import uuid_of
from apps.core.models import Project
from apps.core.openapi import NUMBER, described, page
from apps.core.routes import TOTALS, WHEN_EVALUATED, api, shows
from apps.core.scopes import READABLE, RESULT
from apps.environments.api import PAGING, page_of
from apps.environments.models import Environment
from apps.evals.models import EvalSet, EvalSetState
from apps.reviews import results
from apps.reviews.evidence import environment_locks, lock_of, of_people, verdict
from apps.reviews.labels import labels_of
from apps.reviews.lock import Lock
from apps.reviews.models import RewardReview
from apps.reviews.policy import policy_in_force
from apps.reviews.reservations import Progress, needed_of, progress_of

INTERVAL = {"value": NUMBER, "low": NUMBER, "high": NUMBER, "n": {"type": "integer"}}
RATE = {"type": "object", "properties": INTERVAL | {"count": {"type": "integer"}}}
COEFFICIENT = {"type": "object", "properties": INTERVAL}
REVIEW = {
    "type": "object",
    "required": [
        "id",
        "verifier",
        "hash",
        "environments",
        "judged",
        "begun",
        "samples",
        "created_at",
    ],
    "properties": {
        "id": {"type": "integer"},
        "verifier": {"type": "string"},
        "hash": {"type": "string"},
        "environments": {"type": "array", "items": {"type": "string"}},
        "judged": {"type": "integer", "description": "Samples with all required judgements"},
        "begun": {"type": "integer", "description": "Samples with some of them"},
        "samples": {"type": "integer"},
        "created_at": {"type": "string", "format": "date-time"},
    },
}
RESULTS = {
    "type": "object",
    "required": [*REVIEW["required"], "passed", "reasons", "kappa", "accuracy", "false_positive"],
    "properties": (
        REVIEW["properties"]
        | {
            "passed": {
                "type": "boolean",
                "description": "According to the current project policy, without the probes",
            },
            "reasons": {"type": "array", "items": {"type": "string"}},
            "waiting": {
                "type": "integer",
                "description": "Samples on which reviewers disagree and that have no ruling",
            },
            "kappa": COEFFICIENT,
            "alpha": COEFFICIENT,
            **dict.fromkeys(("accuracy", "false_positive", "false_negative"), RATE),
            "on_all": {
                "type": ["object", "null"],
                "description": (
                    "Estimates for all outputs that the samples were drawn from, weighted by"
                    " stratum and narrowed by their scores; null for outputs of a training run"
                ),
                "properties": {
                    "outputs": {"type": "integer"},
                    "judged": {"type": "integer"},
                    **dict.fromkeys(
                        ("accuracy", "false_positive"), COEFFICIENT | {"type": ["object", "null"]}
                    ),
                },
            },
            "reviewers": {"type": "integer"},
            "scope": {
                "type": "object",
                "description": "Who scored the samples, and what tasks they were drawn from",
            },
            "policy": {"type": "object"},
        }
    ),
}
LOCK = {
    "type": "object",
    "required": ["environment", "verifier", "state", "reasons"],
    "properties": {
        "environment": {"type": "string"},
        "verifier": {"type": "string"},
        "eval_set": {
            "type": ["string", "null"],
            "description": "Whose training tasks were asked about",
        },
        "state": {"enum": ["locked", "override", "unlocked"]},
        "why": {"type": "string"},
        "reasons": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"what": {"type": "string"}, "todo": {"type": "string"}},
            },
        },
        "review": {"type": ["integer", "null"]},
    },
}


@shows(TOTALS, WHEN_EVALUATED)
@extend_schema(
    operation_id="v1_reviews_list",
    responses=described({200: page(REVIEW, "integer")}, 400),
    parameters=PAGING,
    description="Reward reviews, newest first.",
)
@api(GET=READABLE)
def reviews(request: Request) -> Response:
    rows, after = page_of(
        request,
        RewardReview.objects.filter(project=request.auth.project).select_related("verifier"),
    )
    progress = progress_of(rows)
    return Response({"results": [as_json(row, progress[row.pk]) for row in rows], "next": after})


@shows(TOTALS, WHEN_EVALUATED)
@extend_schema(
    operation_id="v1_reviews_read",
    responses=described({200: RESULTS}, 404),
    description=(
        "The results of a review, with 95% intervals. Individual judgements and scores are not"
        " included, since reviewers are blind."
    ),
)
@api(GET=READABLE)
def review(request: Request, pk: int) -> Response:
    row = (
        RewardReview.objects.filter(project=request.auth.project, pk=pk)
        .select_related("verifier", "project")
        .first()
    )
    if row is None:
        raise NotFound("No review of this project has this number.")
    return Response(as_json(row, progress_of([row])[pk]) | _results(row))


def as_json(row: RewardReview, progress: Progress) -> dict[str, Any]:
    return {
        "id": row.pk,
        "verifier": str(row.verifier),
        "hash": row.verifier.hash,
        "environments": sorted({run["environment"] for run in row.scope["runs"].values()}),
        "judged": progress.judged,
        "begun": progress.begun,
        "samples": progress.samples,
        "created_at": row.created_at,
    }


def _results(row: RewardReview) -> dict[str, Any]:
    labels, policy, needed = (
        labels_of([row.pk])[row.pk],
        policy_in_force(row.project),
        needed_of(row),
    )
    found, unfinished = verdict(row, labels, policy), of_people(row, labels, policy)
    agreement, on_all = found.agreement, results.on_all(row, labels, needed)
    return {
        "passed": found.passed and not unfinished,
        "reasons": [*unfinished, *found.reasons],
        "waiting": sum(label.differs(needed) for label in labels),
        "kappa": {
            "value": agreement.kappa,
            "low": agreement.kappa_low,
            "high": agreement.kappa_high,
            "n": agreement.n,
        },
        "alpha": asdict(found.alpha),
        "accuracy": asdict(agreement.accuracy),
        "false_positive": asdict(agreement.false_positive),
        "false_negative": asdict(agreement.false_negative),
        "on_all": on_all and on_all.as_json(),
        "reviewers": len(results.reviewers_of(row, labels)),
        "scope": row.scope,
        "policy": policy,
    }


@extend_schema(
    operation_id="v1_locks_list",
    responses=described({200: page(LOCK, "integer")}, 400),
    parameters=PAGING,
    description=(
        "For each environment, whether training can start (regardless of tasks) and, if not, why"
        " and what to do."
    ),
)
@api(GET=RESULT)
def locks(request: Request) -> Response:
    rows, after = page_of(request, _environments(request.auth.project))
    found = environment_locks(rows)
    return Response({"results": [lock_json(row, found[row.pk]) for row in rows], "next": after})


@extend_schema(
    operation_id="v1_locks_read",
    responses=described({200: LOCK}, 400, 404),
    parameters=[
        OpenApiParameter(
            "eval_set",
            UUID,
            description="A frozen set, to check whether its training tasks resemble those judged",
        )
    ],
    description=(
        "The training lock of an environment; with “eval_set”, for the training tasks of that set."
        " Who starts the run is not considered here, although the policy may require someone other"
        " than the verifier's author."
    ),
)
@api(GET=RESULT)
def lock(request: Request, slug: str, version: int) -> Response:
    environment = _environments(request.auth.project).filter(slug=slug, version=version).first()
    if environment is None:
        raise NotFound("No environment of this project has this name and version.")
    chosen = _eval_set(request)
    tasks = list(chosen.tasks.trainable()) if chosen else None
    return Response(lock_json(environment, lock_of(environment=environment, tasks=tasks), chosen))


def _environments(project: Project) -> Any:
    return Environment.objects.filter(project=project).select_related("verifier", "project")


def _eval_set(request: Request) -> EvalSet | None:
    """Raises ValidationError, NotFound."""
    given = request.query_params.get("eval_set", "")
    if not given:
        return None
    pk = uuid_of(given)
    if pk is None:
        raise ValidationError({"path": "eval_set", "error": "the id of a frozen eval set"})
    found = EvalSet.objects.filter(
        project=request.auth.project, pk=pk, state=EvalSetState.FROZEN
    ).first()
    if found is None:
        raise NotFound("No frozen eval set of this project has this id.")
    return found


def lock_json(
    environment: Environment, found: Lock, eval_set: EvalSet | None = None
) -> dict[str, Any]:
    return {
        "environment": str(environment),
        "verifier": str(environment.verifier),
        "eval_set": str(eval_set) if eval_set else None,
        "state": found.state,
        "why": found.why,
        "reasons": [{"what": reason.what, "todo": reason.todo} for reason in found.reasons],
        "review": found.review.pk if found.review else None,
    }
