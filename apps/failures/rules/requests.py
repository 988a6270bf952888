"""Changes made without the confirmation that the system prompt requires. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from apps.failures.rules import words
from apps.failures.rules.reading import Call, Run

WITHOUT_A_YES = "was called without a “yes” in the user's last message"


def changes_without_a_yes(run: Run) -> Iterator[tuple[Call, str]]:
    """(a change, the user's last message before it) if that message has no yes."""
    for call in run.changes_made:
        at = run.user_before(call.index)
        said = "" if at is None else run.words(at)
        if not words.search(words.YES, said):
            yield call, said
