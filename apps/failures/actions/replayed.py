"""The step of a failure that was found by playing the run again from it."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from apps.core.actions import audit
from apps.failures.judge.precedence import REPLAY, SURE, Label, with_replay
from apps.failures.models import Failure

BY_PERSON = ("blamed", "marked")  # decisions that name the step


def step_of_person(failure: Failure) -> bool:
    """Whether a person has named the step, which a replay never changes."""
    return failure.decisions.filter(after__kind__in=BY_PERSON).exists()


@transaction.atomic
def blame_by_replay(
    *, failure: Failure, message: int, text: str, is_sure: bool, by: Any
) -> Failure | None:
    """Adds what a replay found to the failure's evidence, in place of an earlier replay's. If it is
    sure, the step is blamed, unless a person has named one. None if the failure is gone.
    """
    rows = Failure.objects.select_for_update(of=("self",)).select_related("mode", "project")
    found = rows.filter(pk=failure.pk).first()
    if found is None:
        return None
    kept = step_of_person(found)
    evidence = {
        "rule": REPLAY,
        "message_index": message,
        "text": text,
        "quote": "",
        "mode": found.mode.slug,
        "confidence": SURE if is_sure else "hint",
    }
    before = [item for item in found.evidence if item.get("rule") != REPLAY]
    label = with_replay(Label(found.mode.slug, found.blamed_message, before), [evidence])
    found.evidence = label.evidence
    if not kept:
        found.blamed_message = label.blamed
    found.save(update_fields=["evidence", "blamed_message"])
    if is_sure:
        audit(
            "failure.replayed",
            project=found.project,
            by=by,
            target=found,
            message=message,
            kept=kept,
        )
    return found
