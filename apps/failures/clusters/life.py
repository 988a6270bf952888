"""The life cycle of a group: new, triaged, in evals, fixed, and reopened when it comes back.
Pure.
"""

from __future__ import annotations

import re
import unicodedata
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
    """A version that several agents may have, or that is spelled as several are."""


DOTS = re.compile(r"(?<!\d)\.|\.(?!\d)")  # that are not between digits
WORD_VERSION = re.compile(r"\b(?:versi\w*|vers?|v|release)(?: (?=\d)|(?=\d))")


def version_key(name: str) -> str:
    """What the spellings of one version have in common: “Bank@v2”, “bank-2” and “bank version 2”
    are “bank 2”.
    """
    folded = unicodedata.normalize("NFKC", name).casefold()
    spaced = "".join(" " if _separates(char) else char for char in DOTS.sub(" ", folded))
    return WORD_VERSION.sub("", " ".join(spaced.split())) or folded.strip()


def _separates(char: str) -> bool:
    """Letters, their marks, digits and emoji tell names apart; punctuation does not."""
    if char.isascii():
        return not char.isalnum() and char != "."
    return unicodedata.category(char)[0] in "PZC"


def fix_version(text: str, agents: Collection[str], known: Collection[str]) -> str:
    """The full name of a version that a person typed: “bank 2” for “2”, as the API sends it beside
    the agent's name, and for “Bank@v2”.

    `agents` are the names of the agents whose runs are in the group, `known` the full names of all
    versions that have run. The version may not have run yet. Raises UnclearVersion where several
    versions could be meant.
    """
    if text in known:
        return text
    text = " ".join(text.split())
    full = sorted({_full_name(text, agent, agents) for agent in agents}) or [text]
    matches = [name for name in full if name in known]
    if not matches:
        keys = {version_key(name) for name in (text, *full)}
        matches = sorted(name for name in known if version_key(name) in keys) or full
    if len(matches) > 1:
        raise UnclearVersion(f"Which version is {text}? Enter one of: {', '.join(matches)}.")
    return matches[0]


def _full_name(text: str, agent: str, agents: Collection[str]) -> str:
    """“bank 2” for “2” and “Bank@2”. A text that begins with the name of one of the agents is a
    version of that agent.
    """
    typed = text.casefold()
    order = sorted(agents, key=len, reverse=True)
    for name in sorted(order, key=lambda name: not typed.startswith(name.casefold())):
        words = re.findall(r"[^\W_]+", name)
        pattern = r"[\W_]+".join(map(re.escape, words)) + r"(?:[\s@:/#_.-]+|(?=v?\d))(.+)"
        if words and (rest := re.fullmatch(pattern, text.lstrip("@#([“\"'"), re.IGNORECASE)):
            return f"{name} {rest[1]}"
    return f"{agent} {text}".strip()


def known_as(version: str, known: Mapping[str, datetime]) -> str:
    """The name under which a version has run: the earliest of several; the name itself if it has
    not run.
    """
    key = version_key(version)
    spellings = [name for name in known if version_key(name) == key]
    return version if version in known else min(spellings, key=known.__getitem__, default=version)
