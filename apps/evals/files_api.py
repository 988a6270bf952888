"""What an eval set's page shows besides its tasks, over REST: a split as a file, and the
differences from another version.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

from django.http import FileResponse, HttpResponseBase, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import LINES, described
from apps.core.query import number_of, whole_number
from apps.core.routes import api, shows
from apps.core.scopes import READABLE
from apps.evals import exporting
from apps.evals.diffing import ADDED, CHANGED, REMOVED, Change, diff
from apps.evals.formats import own
from apps.evals.holdout.view_log import record_seen
from apps.evals.lookups import LIMIT, find_set, needs_right
from apps.evals.models import EvalSet, Split, Task

ZIP = "application/zip"
CHANGES = {
    "type": "object",
    "required": ["older", "newer", "counts", "held_out", "results", "next"],
    "properties": {
        "older": {"type": "string"},
        "newer": {"type": "string"},
        "counts": {
            "type": "object",
            "additionalProperties": {"type": "integer"},
            "description": "Of each kind",
        },
        "held_out": {"type": "integer", "description": "How many of them are, or were, held out"},
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "kind": {"enum": [ADDED, REMOVED, CHANGED]},
                    "key": {"type": "string"},
                    "fields": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "Fields that differ",
                    },
                    "before": {"type": ["object", "null"]},
                    "after": {"type": ["object", "null"]},
                },
            },
        },
        "next": {"type": ["integer", "null"]},
    },
}


@shows("the held-out tasks, as a file, with the right")
@extend_schema(
    operation_id="v1_eval_sets_export",
    responses=described({}, 400, 403, 404, 409)
    | {(200, LINES): OpenApiTypes.STR, (200, ZIP): OpenApiTypes.BINARY},
    parameters=[
        OpenApiParameter("split", enum=Split.values, required=True),
        OpenApiParameter(
            "as",
            enum=list(exporting.FORMATS),
            description="Default: Flywheel JSONL; verifiers: a zip",
        ),
    ],
    description=(
        "One split as a file: Flywheel JSONL, NeMo Gym rows, or a verifiers package. The hold-out"
        " requires a key with access to hold-outs, and each export counts as a view. 409 if the"
        " split has no tasks."
    ),
)
@api(GET=READABLE)
def export(request: Request, pk: UUID) -> HttpResponseBase:
    eval_set = find_set(request, pk)
    split, format = request.query_params["split"], request.query_params.get("as", "")
    needs_right(request, split)
    made = exporting.export(
        eval_set=eval_set, format=format or exporting.FLYWHEEL, split=Split(split), by=request.auth
    )
    if made.kind == ZIP:
        return FileResponse(
            made.chunks, as_attachment=True, filename=made.name, content_type=made.kind
        )
    headers = {"Content-Disposition": f'attachment; filename="{made.name}"'}
    return StreamingHttpResponse(made.chunks, content_type=made.kind, headers=headers)


@shows("the held-out tasks that differ, with `holdout=1` and the right")
@extend_schema(
    operation_id="v1_eval_sets_changes",
    responses=described({200: CHANGES}, 400, 403, 404),
    parameters=[
        OpenApiParameter(
            "against",
            whole_number(0, 2**31 - 1),
            description="Another version of the set; default: the previous one",
        ),
        OpenApiParameter(
            "holdout", enum=["1"], description="Include the held-out tasks. Counts as a view."
        ),
        OpenApiParameter("offset", whole_number(0, 10**9, 0)),
        LIMIT,
    ],
    description=(
        "The differences between two versions of a set, by task. Held-out tasks are only counted"
        " unless `holdout=1` is given, which requires a key with access to hold-outs and counts as"
        " a view."
    ),
)
@api(GET=READABLE)
def changes(request: Request, pk: UUID) -> Response:
    eval_set = find_set(request, pk)
    older, newer = sorted((eval_set, _other(request, eval_set)), key=lambda one: one.version)
    limit, offset = number_of(request, "limit"), number_of(request, "offset")
    open_ = request.query_params.get("holdout") == "1"
    if open_:
        needs_right(request, Split.HOLDOUT)
    found = diff(
        *(
            one.tasks.select_related("eval_set", "trajectory", "variant_of")
            for one in (older, newer)
        )
    )
    visible = [change for change in found if open_ or not change.is_held_out]
    shown = visible[offset : offset + limit]
    if open_:
        tasks = Task.objects.filter(
            pk__in=[task.pk for one in shown for task in (one.before, one.after) if task]
        )
        record_seen(
            eval_set.project,
            tasks,
            by=request.auth,
            detail="differences of versions",
            each_time=True,
        )
    return Response(
        {
            "older": str(older),
            "newer": str(newer),
            "counts": Counter(change.kind for change in found),
            "held_out": sum(change.is_held_out for change in found),
            "results": [_change(one) for one in shown],
            "next": offset + limit if len(visible) > offset + limit else None,
        }
    )


def _other(request: Request, eval_set: EvalSet) -> EvalSet:
    """The version to compare with. Raises NotFound."""
    others = EvalSet.objects.filter(project=request.auth.project, slug=eval_set.slug).exclude(
        pk=eval_set.pk
    )
    if "against" in request.query_params:
        found = others.filter(version=number_of(request, "against")).first()
    else:
        found = others.filter(version__lt=eval_set.version).order_by("-version").first()
    if found is None:
        raise NotFound("This eval set has no other version to compare with (`against`).")
    return found


def _change(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "key": change.task.key,
        "fields": change.fields,
        "before": _task(change.before),
        "after": _task(change.after),
    }


def _task(task: Task | None) -> dict[str, Any] | None:
    row = exporting.row_of(task) if task else None
    return {name: getattr(row, name) for name in own.FIELDS} if row else None
