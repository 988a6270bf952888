"""Edits of tasks over REST: one by its key, or many at once."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from drf_spectacular.utils import extend_schema
from msgspec import Meta, Struct
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.openapi import JSON, described, sent, told
from apps.core.routes import api, shows
from apps.core.scopes import MANAGED
from apps.evals import editing
from apps.evals.formats.rows import Bad, check_storable, checked_expected, checked_messages
from apps.evals.holdout.view_log import record_membership
from apps.evals.lookups import find_set, form_of, may_see, needs_right
from apps.evals.models import EvalSet, Split, Task
from workers.lib.typed import json_schema

Key = Annotated[str, Meta(min_length=1, max_length=120)]
EDITED = {
    "type": "object",
    "required": ["set", "key"],
    "properties": {
        "set": {"type": "string", "description": "The draft that has the change: name@version"},
        "key": {"type": "string"},
    },
}
CHANGED = {
    "type": "object",
    "required": ["changed"],
    "properties": {"changed": {"type": "integer"}},
}


class Edit(Struct, forbid_unknown_fields=True, kw_only=True):
    """Omitted fields stay unchanged. For a frozen set the edit goes into its draft, which is
    created if needed.
    """

    key: Key
    messages: list[dict[str, Any]] | None = None
    expected: dict[str, Any] | None = None
    demonstration: Annotated[str, Meta(max_length=60_000)] | None = None
    tags: (
        Annotated[
            list[Annotated[str, Meta(max_length=editing.MAX_TAG)]],
            Meta(max_length=editing.MAX_TAGS),
        ]
        | None
    ) = None


class Change(Struct, forbid_unknown_fields=True, kw_only=True):
    """`value` is a split (move) or a tag (tag, untag)."""

    keys: Annotated[list[Key], Meta(min_length=1, max_length=editing.MAX_AT_ONCE)]
    what: Literal["move", "tag", "untag", "confirm", "remove"]
    value: Annotated[str, Meta(max_length=80)] = ""


@shows("that a task is held out, or similar to a held-out one")
@extend_schema(
    operation_id="v1_eval_sets_edit_task",
    request={JSON: json_schema(Edit)},
    responses=described({200: EDITED}, 400, 403, 404, 409, 413),
    examples=[
        sent(
            "Another expected answer",
            {"key": "close-12", "expected": {"answer": "12"}, "tags": ["billing"]},
        ),
        told("Edited", {"set": "support@2", "key": "close-12"}),
    ],
    description=(
        "Edits a task: messages, expected, demonstration, tags. A held-out one needs a key that may"
        " see hold-outs."
    ),
)
@api(POST=MANAGED)
def edit_task(request: Request, pk: UUID) -> Response:
    eval_set, by, asked = find_set(request, pk), member_of(request).user, form_of(request, Edit)
    task = _tasks(request, eval_set, [asked.key])[0]
    for name, value, check in (
        ("messages", asked.messages, checked_messages),
        ("expected", asked.expected, checked_expected),
    ):
        try:
            check_storable(check(value, name), name) if value is not None else None
        except Bad as error:
            raise ValidationError({"path": error.field, "error": error.message}) from error
    made = editing.edit_task(
        task=task,
        seen=editing.fingerprint(task),
        by=by,
        messages=asked.messages,
        expected=asked.expected,
        demonstration=asked.demonstration,
        tags=asked.tags,
    )
    return Response({"set": str(made.eval_set), "key": made.key})


@shows("that a task is held out, or similar to a held-out one")
@extend_schema(
    operation_id="v1_eval_sets_change_tasks",
    request={JSON: json_schema(Change)},
    responses=described({200: CHANGED}, 400, 403, 404, 409, 413),
    examples=[
        sent(
            "Into the validation split",
            {"keys": ["close-12"], "what": "move", "value": "validation"},
        ),
        told("Done", {"changed": 1}),
    ],
    description=(
        "Moves, tags, untags, confirms or removes tasks of a draft, all or none. 409 says what is"
        " in the way."
    ),
)
@api(POST=MANAGED)
def change_tasks(request: Request, pk: UUID) -> Response:
    eval_set, by, asked = find_set(request, pk), member_of(request).user, form_of(request, Change)
    tasks = _tasks(request, eval_set, asked.keys)
    changed = editing.change_tasks(
        eval_set=eval_set,
        tasks=[task.pk for task in tasks],
        what=asked.what,
        value=asked.value,
        by=by,
    )
    return Response({"changed": changed})


def _tasks(request: Request, eval_set: EvalSet, keys: list[str]) -> list[Task]:
    """Raises NotFound, PermissionDenied; whoever is refused learns that a task is held out."""
    found = list(
        Task.objects.select_related("eval_set", "project").filter(
            eval_set=eval_set, key__in=set(keys)
        )
    )
    if len(found) < len(set(keys)):
        raise NotFound(
            f"This set has no task {sorted(set(keys) - {task.key for task in found})[0]!r}."
        )
    held = [task.canonical_hash for task in found if task.split == Split.HOLDOUT]
    if held and not may_see(request, Split.HOLDOUT):
        record_membership(
            eval_set.project, held, by=request.auth, detail=f"tasks of {eval_set}, by their keys"
        )
        needs_right(request, Split.HOLDOUT)
    return found
