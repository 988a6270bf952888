"""Who stands behind a training run's reward, in one sentence that its run, its model and gate
reports keep.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model

from apps.environments.models import Verifier
from apps.reviews.lock import Lock
from apps.reviews.models import Judgement
from apps.reviews.people import added_by, companies_of

NO_REWARD = "No reward was used, so none was reviewed."


def oversight_of(lock: Lock, verifier: Verifier, by: Any) -> str:
    """Who reviewed or overrode, and whether that is the person who trains. `by` is None for an
    automatic start.
    """
    starter = by.get_username() if by else ""
    if lock.state == "override":
        behind = [lock.override.by.get_username()] if lock.override.by else []
        said = f"Not reviewed: {behind[0] if behind else 'somebody who has left'} overrode the lock"
    else:
        behind = _reviewers(lock)
        said = f"Reviewed by {_listed(behind)}"
    if starter and behind == [starter]:
        said = (
            "Not reviewed: the person who trains overrode the lock"
            if lock.state == "override"
            else "Reviewed by the person who trains"
        ) + f" ({starter})"
        if companies_of([verifier.project_id])[verifier.project_id].lone:
            said += ", the only one in this project"
    author = verifier.created_by.get_username() if verifier.created_by else ""
    added = added_by(verifier.project_id, {*behind, starter, author} - {""})
    return " ".join([f"{said}.", *added])


def _reviewers(lock: Lock) -> list[str]:
    if lock.review is None:
        return []
    people = Judgement.objects.filter(item__review=lock.review).order_by().values("by").distinct()
    return sorted(get_user_model().objects.filter(pk__in=people).values_list("username", flat=True))


def _listed(names: list[str]) -> str:
    if not names:
        return "people who have left"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
