"""A project's own failure modes."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from apps.core.actions import audit
from apps.core.models import Project
from apps.failures.actions.decisions import Refused
from apps.failures.models import Failure, FailureMode, Severity
from apps.failures.rules.findings import UNEXPLAINED

DEFAULT_MODES = (
    (
        "format_error",
        "Format error",
        Severity.MEDIUM,
        False,
        "The output is not in the requested format.",
    ),
    (
        "wrong_tool_choice",
        "Wrong tool choice",
        Severity.MEDIUM,
        False,
        "The tool exists, but was the wrong one.",
    ),
    (
        "wrong_arguments",
        "Wrong arguments",
        Severity.MEDIUM,
        False,
        "The right tool, called with wrong arguments.",
    ),
    (
        "bad_planning",
        "Bad planning",
        Severity.MEDIUM,
        False,
        "Steps that do not lead to the goal, such as loops and detours.",
    ),
    (
        "unsafe_action",
        "Unsafe action",
        Severity.HIGH,
        True,
        "A dangerous tool call, or a change that nobody asked for.",
    ),
    (
        "retrieval_failure",
        "Retrieval failure",
        Severity.MEDIUM,
        False,
        "Needed information was not looked up, or not found.",
    ),
    (
        "hallucinated_api",
        "Hallucinated API",
        Severity.MEDIUM,
        False,
        "A tool that does not exist was called.",
    ),
    (
        "incomplete_execution",
        "Incomplete execution",
        Severity.LOW,
        False,
        "The run ended before the task was done.",
    ),
    (
        "policy_violation",
        "Policy violation",
        Severity.HIGH,
        False,
        "A rule in the system prompt was broken.",
    ),
    (
        "misread_tool_result",
        "Misread tool result",
        Severity.MEDIUM,
        False,
        "The agent said or did something that contradicts a tool's answer.",
    ),
    (
        "ambiguous_request",
        "Ambiguous request",
        Severity.MEDIUM,
        False,
        "The request left a choice open, and the agent chose without asking.",
    ),
    (
        UNEXPLAINED,
        "Unexplained",
        Severity.MEDIUM,
        False,
        "The run failed, and nothing certain says why.",
    ),
)
LAST_POSITION = 32_767  # of a small integer in PostgreSQL
BUILT_IN = frozenset(slug for slug, *_ in DEFAULT_MODES)


def ensure_modes(project: Project) -> dict[str, FailureMode]:
    """The project's failure modes by slug; missing built-in ones are created."""
    FailureMode.objects.bulk_create(
        [
            FailureMode(
                project=project,
                slug=slug,
                name=name,
                severity=severity,
                safety_relevant=safety,
                definition=definition,
                position=position,
            )
            for position, (slug, name, severity, safety, definition) in enumerate(DEFAULT_MODES, 1)
        ],
        ignore_conflicts=True,
    )
    return {mode.slug: mode for mode in project.failure_modes.all()}


@transaction.atomic
def save_mode(*, mode: FailureMode, by: Any) -> FailureMode:
    """Adds or changes a valid mode. One that moves to a taken position comes first there; those
    after it make room.
    """
    is_new = mode.pk is None
    before = (
        None if is_new else FailureMode.objects.values_list("position", flat=True).get(pk=mode.pk)
    )
    mode.save()
    if mode.position != before:
        _make_room(mode)
    audit(
        "failure_mode.added" if is_new else "failure_mode.changed",
        project=mode.project,
        by=by,
        target=mode,
        slug=mode.slug,
        name=mode.name,
        severity=mode.severity,
        safety_relevant=mode.safety_relevant,
    )
    return mode


def _make_room(mode: FailureMode) -> None:
    others = (
        mode.project.failure_modes.select_for_update()
        .filter(position__gte=mode.position)
        .exclude(pk=mode.pk)
    )
    taken, moved = mode.position, []
    for other in others:
        if other.position > taken:
            break
        other.position = taken = min(taken + 1, LAST_POSITION)
        moved.append(other)
    FailureMode.objects.bulk_update(moved, ["position"])


@transaction.atomic
def delete_mode(*, mode: FailureMode, by: Any) -> None:
    """Raises Refused if the rules refer to it or a failure has it."""
    mode = FailureMode.objects.select_for_update().get(pk=mode.pk)
    if mode.slug in BUILT_IN:
        raise Refused(
            f"“{mode}” is used by the rules and cannot be deleted. You can rename it or move it to"
            " the end."
        )
    first, second = (
        Failure.objects.filter(mode=mode).count(),
        Failure.objects.filter(also=mode).count(),
    )
    if used := first + second:
        many = f"{used:,} failure has" if used == 1 else f"{used:,} failures have"
        raise Refused(
            f"“{mode}” is in use: {many} it. Reclassify them first, for example with a bulk change."
        )
    audit(
        "failure_mode.deleted",
        project=mode.project,
        by=by,
        target=mode,
        slug=mode.slug,
        name=mode.name,
    )
    mode.delete()
