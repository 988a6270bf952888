"""The life cycle of a group: new, triaged, in evals, fixed, and reopened when it comes back.
Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from apps.failures.clusters.cases import Case

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
    """The agent version that fixed a group, and when it was marked as fixed."""

    version: str
    at: datetime


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


def after_news(state: State, fixed_at: datetime | None, newest_member_at: datetime | None) -> State:
    """A fixed group is reopened by a failure that began after the fix; other states stay unchanged.

    `newest_member_at` should come from `newest_against`, which leaves out versions from before the
    fix.
    """
    if (
        state == "fixed"
        and fixed_at is not None
        and newest_member_at is not None
        and newest_member_at > fixed_at
    ):
        return "reopened"
    return state


def newest_against(
    fix: Fix, members: Iterable[Case], first_seen: Mapping[str, datetime]
) -> datetime | None:
    """When the newest failure began that contradicts a fix: in its version or a later one, and
    after it.

    Versions are names without an order, so the order is that of their first trajectories
    (`first_seen`). An unknown or empty version counts as later: better to reopen once too often.
    Old versions still in service do not count.
    """
    began = first_seen.get(fix.version)

    def counts(case: Case) -> bool:
        if case.version == fix.version or not case.version or began is None:
            return True
        return first_seen.get(case.version, began) >= began

    times = [
        case.started_at
        for case in members
        if case.started_at and case.started_at > fix.at and counts(case)
    ]
    return max(times, default=None)


class UnclearVersion(ValueError):
    """A version that does not say whose it is."""


def fix_version(text: str, agents: Collection[str], known: Collection[str]) -> str:
    """The full name of a version that a person typed: “bank 2” for “2”, as the API sends it beside
    the agent's name.

    `agents` are the names of the agents whose runs are in the group, `known` the full names of all
    versions that have run. The version may not have run yet. Raises UnclearVersion where several
    agents could be meant.
    """
    full = [f"{agent} {text}".strip() for agent in sorted(agents)]
    named = any(agent and text.startswith(f"{agent} ") for agent in agents)
    if text in known or named or not full:
        return text
    matches = [name for name in full if name in known] or full
    if len(matches) > 1:
        raise UnclearVersion(f"Which agent's version {text}? Enter one of: {', '.join(matches)}.")
    return matches[0]
