"""The steps of a trial, as requested: parsed and checked. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

from msgspec import Meta, Struct

from workers.lib.typed import plain

Share = Annotated[float, Meta(ge=0.001, le=0.9)]


class Step(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """`share` of the sessions, until at least `min_sessions` of the candidate and `min_minutes`
    have passed.
    """

    share: Share
    min_sessions: Annotated[int, Meta(ge=1, le=1_000_000)] = 100
    min_minutes: Annotated[int, Meta(ge=0, le=20_160)] = 30


class Plan(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """`alpha`: the probability of rolling back a candidate that is worse in no measure; `margin`:
    how much worse it may be at most, as a share of the sessions (0.05 is five points).
    `max_harmed`: it ends once so many sessions have failed beyond the current version's rate.
    `outcome_minutes`: how long outcomes are waited for; by default what outcomes took last week.
    """

    steps: Annotated[list[Step], Meta(min_length=1, max_length=10)] | None = None
    alpha: Annotated[float, Meta(ge=0.001, le=0.2)] = 0.05
    margin: Annotated[float, Meta(ge=0.005, le=0.5)] = 0.05
    max_days: Annotated[int, Meta(ge=1, le=90)] = 14
    max_harmed: Annotated[int, Meta(ge=1, le=1_000_000)] = 50
    outcome_minutes: Annotated[int, Meta(ge=0, le=20_160)] | None = None

    def steps_for(self, kind: str) -> list[dict[str, Any]]:
        return [plain(step) for step in self.steps or DEFAULTS[kind]]

    def problem(self, kind: str) -> str:
        """As a sentence; "" for none."""
        shares = [step["share"] for step in self.steps_for(kind)]
        if kind == "shadow" and len(shares) > 1:
            return "A shadow has only one step, since its answers are not sent to users."
        if any(later <= earlier for earlier, later in pairwise(shares)):
            return "Each step needs a larger share than the previous one."
        return ""


DEFAULTS = {
    "canary": [Step(share=0.05), Step(share=0.25), Step(share=0.5)],
    "shadow": [Step(share=0.25, min_sessions=200)],
}
