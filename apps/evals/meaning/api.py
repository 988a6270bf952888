"""Semantic checks over REST: start, follow and read. The key determines the project; people decide
on the page.
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
from apps.core.models import JobState
from apps.core.openapi import JSON, described, page
from apps.core.paging import listed
from apps.core.routes import api, shows
from apps.core.scopes import RESULT, RUN
from apps.evals.holdout import leaks
from apps.evals.lookups import CURSOR, LIMIT, find_set, find_version, form_of, needs_right
from apps.evals.meaning import check, verdicts
from apps.evals.meaning.check import MOST_PAIRS, PAIRS, Source
from apps.evals.models import EvalSet, MeaningCheck, Split
from workers.lib.typed import json_schema


class StartCheck(Struct, forbid_unknown_fields=True, kw_only=True):
    """Either `model_version`, whose hidden states are compared, or `base_url` and `model` of an
    OpenAI-compatible server.
    """

    model_version: Annotated[str, Meta(description="NAME-vN")] = ""
    base_url: Annotated[str, Meta(max_length=200, description="Ends in /v1")] = ""
    model: Annotated[str, Meta(max_length=200)] = ""
    key_variable: Annotated[
        str,
        Meta(
            max_length=80,
            description="The environment variable with its key (FLYWHEEL_OUTGOING_KEYS)",
        ),
    ] = ""
    pairs: Annotated[int, Meta(ge=1, le=MOST_PAIRS, description="At most")] = PAIRS


CHECK = {
    "type": "object",
    "required": ["id", "state", "by", "done", "total", "error"],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "state": {"enum": JobState.values},
        "by": {"type": "string"},
        "done": {"type": "integer"},
        "total": {"type": "integer"},
        "error": {"type": "string"},
        "result": {"type": "object"},
    },
}
PAIR = {
    "type": "object",
    "required": ["held", "other", "split", "text", "score", "verdict"],
    "properties": {
        "held": {"type": ["string", "null"], "description": "The held-out request"},
        "other": {
            "type": ["string", "null"],
            "description": "The key of the trainable task; null if it was removed",
        },
        "split": {"type": ["string", "null"]},
        "text": {"type": "string"},
        "score": {"type": "number"},
        "verdict": {"enum": ["same", "different", None]},
    },
}
WITH_PAIRS = {
    "type": "object",
    "required": [*CHECK["required"], "pairs"],
    "properties": CHECK["properties"] | {"pairs": {"type": "array", "items": PAIR}},
}


@shows("the part of the hold-out that is sent to a server, with the right")
@extend_schema(
    methods=["GET"],
    operation_id="v1_meaning_checks_list",
    parameters=[LIMIT, CURSOR],
    responses=described({200: page(CHECK)}, 400, 404),
    description="The semantic checks of an eval set, newest first.",
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_meaning_checks_start",
    request={JSON: json_schema(StartCheck)},
    responses=described({202: CHECK}, 400, 403, 404, 409, 413),
    description=(
        "Starts a semantic check between the hold-out and all trainable tasks. Requires a key with"
        " access to hold-outs. With a server, the held-out requests are sent to it, which counts as"
        " a view."
    ),
)
@api(GET=RESULT, POST=RUN)
def checks(request: Request, pk: UUID) -> Response:
    eval_set = find_set(request, pk)
    if request.method == "GET":
        return listed(request, eval_set.meaning_checks.all(), lambda _, job: as_json(job))
    needs_right(request, Split.HOLDOUT)
    source, most = _source_and_limit(request)
    job = check.submit(
        eval_set=eval_set,
        source=source,
        by=request.auth.created_by,
        most=most,
        asked_by=request.auth,
    )
    return Response(as_json(job), status=202)


@shows("held-out requests next to similar ones, with the right")
@extend_schema(
    operation_id="v1_meaning_checks_read",
    responses=described({200: WITH_PAIRS}, 403, 404),
    description=(
        "A check with its pairs, most similar first. Shows held-out requests: requires a key with"
        " access to hold-outs and counts as a view."
    ),
)
@api(GET=RESULT)
def item(request: Request, pk: UUID, job: UUID) -> Response:
    eval_set = find_set(request, pk)
    needs_right(request, Split.HOLDOUT)
    row = _check(eval_set, job)
    pairs = verdicts.shown(row.pairs.select_related("held", "other"), eval_set.project)
    verdicts.record_pairs_view(eval_set.project, pairs, by=request.auth)
    return Response(as_json(row) | {"pairs": [_pair(pair) for pair in pairs]})


@extend_schema(
    operation_id="v1_meaning_checks_cancel",
    request=None,
    responses=described({200: CHECK}, 403, 404, 409),
    description="Stops a check. 409 if it has already finished.",
)
@api(POST=RUN)
def cancel(request: Request, pk: UUID, job: UUID) -> Response:
    row = _check(find_set(request, pk), job)
    needs_right(request, Split.HOLDOUT)
    if not jobs.cancel(row, by=request.auth.created_by):
        return Response({"detail": "This check has already finished."}, status=409)
    row.refresh_from_db()
    return Response(as_json(row))


def _check(eval_set: EvalSet, pk: UUID) -> MeaningCheck:
    found = eval_set.meaning_checks.filter(pk=pk).first()
    if found is None:
        raise NotFound("This set has no semantic check with this id.")
    return found


def _source_and_limit(request: Request) -> tuple[Source, int]:
    """Raises ValidationError, NotFound."""
    given = form_of(request, StartCheck)
    version, base_url = given.model_version.strip(), given.base_url.strip()
    if bool(version) == bool(base_url):
        raise ValidationError(
            {"path": "model_version", "error": "send either this, or base_url with model"}
        )
    if version:
        return Source(version=find_version(request, version).pk), given.pairs
    return (
        Source(
            base_url=base_url, model=given.model.strip(), key_variable=given.key_variable.strip()
        ),
        given.pairs,
    )


def as_json(job: MeaningCheck) -> dict[str, Any]:
    found = {name: getattr(job, name) for name in ("state", "done", "total", "error", "result")}
    return {"id": str(job.pk), "by": job.spec["by"]} | found


def _pair(one: verdicts.Shown) -> dict[str, Any]:
    held, other = one.pair.held, one.pair.other
    return {
        "held": leaks.request_of(held) if held else None,
        "other": other.key if other else None,
        "split": other.split if other else None,
        "text": one.pair.text,
        "score": one.pair.score,
        "verdict": one.verdict.verdict if one.verdict else None,
    }
