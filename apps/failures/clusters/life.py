"""The life cycle of a group: new, triaged, in evals, fixed, and reopened when it comes back.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

State = Literal["new", "triaged", "in_evals", "fixed", "reopened"]
STATES: tuple[State, ...] = ("new", "triaged", "in_evals", "fixed", "reopened")
LEGAL: Mapping[State, frozenset[State]] = {
    "new": frozenset(("triaged", "in_evals", "fixed")),
    "triaged": frozenset(("in_evals", "fixed")),
    "in_evals": frozenset(("triaged", "fixed")),
    "fixed": frozenset(("reopened",)),
    "reopened": frozenset(("triaged", "in_evals", "fixed")),
}


class IllegalMove(ValueError):
    """A transition that a group's life cycle does not have."""


@dataclass(frozen=True)
class Fix:
    """The version that fixed a group, and when it was marked as fixed."""

    version: str
    at: datetime


@dataclass(frozen=True)
class Member:
    """A failure of a group: its run's version (empty if it has none), and when it was found."""

    id: int
    version: str
    found_at: datetime


def moved(state: State, to: State) -> State:
    """`to`, if a person or an action may go there from `state`; staying is not a transition. Raises
    IllegalMove.
    """
    if to not in LEGAL[state]:
        raise IllegalMove(
            f"A group that is {state} cannot become {to}; it can become"
            f" {', '.join(sorted(LEGAL[state]))}."
        )
    return to


def regression(
    fix: Fix, members: Iterable[Member], first_seen: Mapping[str, datetime]
) -> Member | None:
    """The newest failure that contradicts a fix: of its version or a later one, and found after it
    was marked.

    Versions are names without an order, so the order is that of their first runs (`first_seen`).
    A run without a version counts as later: better to reopen once too often. Older versions that
    are still in service do not count.
    """
    began = first_seen.get(fix.version, fix.at)

    def counts(member: Member) -> bool:
        is_later = first_seen.get(member.version, began) >= began
        return member.found_at > fix.at and is_later

    return max(
        filter(counts, members), key=lambda member: (member.found_at, member.id), default=None
    )
