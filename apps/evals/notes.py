"""What an evaluation's counts say about how far its numbers can be trusted: the sentences of its
page, of the API and of `flywheel-eval`. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workers.lib.specs.engines import ModelServer

MANY = 0.5  # of the samples
SOME = 0.1
FEWEST_SHOWN = 0.001
REQUEST_S = ModelServer(base_url="-", model="-").timeout_s  # of a server's answer, at least


@dataclass(frozen=True)
class Pace:
    """How long earlier samples took (`where`), and what that means for a limit. `late`: how many
    of the `n` took longer than `limit_s`; `unsure`: how many more were given up before, after
    `had_s`. `p95_s`: None if it was given up, too.
    """

    where: str
    agent: bool
    n: int
    p95_s: float | None
    had_s: float
    limit_s: float
    late: int
    unsure: int
    probe_tokens: int = 0  # of a test call, if nothing else is known

    @classmethod
    def of(
        cls,
        seconds: Sequence[float],
        given_up: int,
        had_s: float,
        limit_s: float,
        where: str,
        *,
        agent: bool = False,
    ) -> Pace:
        n = len(seconds) + given_up
        at = math.ceil(0.95 * n) - 1
        sooner = had_s and had_s < limit_s
        return cls(
            where=where,
            agent=agent,
            n=n,
            p95_s=sorted(seconds)[at] if 0 <= at < len(seconds) else None,
            had_s=had_s,
            limit_s=limit_s,
            late=sum(took > limit_s for took in seconds) + (0 if sooner else given_up),
            unsure=given_up if sooner else 0,
        )

    @property
    def is_too_slow(self) -> bool:
        return bool(self.late or self.unsure or not self.n)

    @property
    def sentence(self) -> str:
        limit = f"the limit here is {self.limit_s:g} s per sample"
        if self.probe_tokens:
            took = f"got no answer within {self.had_s:g} s"
            if self.p95_s is not None:
                took = f"took {_seconds(self.p95_s, self.limit_s)} s"
            return (
                f"The last check of {self.where} {took} for a test call of at most"
                f" {self.probe_tokens} tokens; {limit}: samples whose answers are as long would"
                f" time out. {self._remedy}"
            )
        if not self.n:
            return (
                f"The last evaluation of {self.where} ended because no answer came within"
                f" {self.had_s:g} s; {limit}. {self._remedy}"
            )
        took = f"more than {self.had_s:g} s"
        if self.p95_s is not None:
            took = f"{_seconds(self.p95_s, self.limit_s)} s"
        known = f"Answers took {took} (p95 of {self.n:,} samples: {self.where}); {limit}"
        if not self.is_too_slow:
            return f"{known}, and none took longer."
        return f"{known}: {self._share} would time out at that pace. {self._remedy}"

    @property
    def _share(self) -> str:
        low, high = self.late / self.n, (self.late + self.unsure) / self.n
        if low != high:
            return f"{_percent(low)} to {_percent(high)}"
        return f"about {_percent(high)}" if high >= FEWEST_SHOWN else _percent(high)

    @property
    def _remedy(self) -> str:
        return (
            "Allow more seconds per sample, or fewer concurrent tasks."
            if self.agent
            else "Use a faster server, or fewer max_new_tokens or more max_seconds in the"
            " environment."
        )


def _seconds(value: float, limit: float) -> str:
    """Rounded, as long as that leaves it on its side of the limit."""
    rounded = f"{value:.0f}" if value >= 10 else f"{value:.2g}"
    return rounded if (float(rounded) > limit) == (value > limit) else f"{value:.6g}"


def _percent(share: float) -> str:
    if 0 < share < FEWEST_SHOWN:
        return f"less than {FEWEST_SHOWN:.1%}"
    return f"{share:.0%}" if share in (0, 1) or 0.01 <= share <= 0.99 else f"{share:.1%}"


def notes_of(counts: Mapping[str, int], *, agent: bool) -> list[str]:
    """Sentences; none if there is nothing to say. `counts`: as `stats.summarise` returns them.
    `agent`: a whole agent was evaluated, and not a model with the environment's own loop.
    """
    sentences = (_other_results(counts), _no_answer(counts, agent), _lack_calls(counts, agent))
    return [sentence for sentence in sentences if sentence]


def _other_results(counts: Mapping[str, int]) -> str:
    if not (other := counts.get("other_results", 0)):
        return ""
    return (
        f"{other:,} of {counts['samples']:,} runs saw other results than the environment's: the"
        " agent ran tools of its own. They are masked. Let the agent call the tools at the"
        " address of its sample, or return its calls without running them (docs/agents.md)."
    )


def _no_answer(counts: Mapping[str, int], agent: bool) -> str:
    silent = counts.get("no_answer", 0)
    if not silent or silent < MANY * counts["samples"]:
        return ""
    return (
        f"The {'agent' if agent else 'model'} failed to answer {silent:,} of"
        f" {counts['samples']:,} samples: it crashed, took too long or said nothing. They count as"
        " failed, so the rates say little else."
    )


def _lack_calls(counts: Mapping[str, int], agent: bool) -> str:
    lacking, called = counts.get("lack_calls", 0), counts.get("called", 0)
    if not lacking or (called and lacking < SOME * counts["samples"]):
        return ""
    tool = "a tool of the environment"
    runs = (
        f"{lacking:,} of {counts['samples']:,} runs failed without calling {tool}"
        if called
        else f"No run called {tool}"
    )
    ending = (
        "Only calls at the address of its sample and those that the agent returns are seen here,"
        " not those that it runs on a backend of its own or describes in words (docs/agents.md)."
        if agent
        else "See whether the model is offered the tools in a form that it was trained on (its"
        " server's dialect, docs/servers.md) and what its prompt says about them."
    )
    return f"{runs}; {_need(counts, lacking, called)}. {ending}"


def _need(counts: Mapping[str, int], lacking: int, called: int) -> str:
    tasks = counts.get("tasks_need_calls", 0)
    if tasks:
        needs = "1 task needs calls" if tasks == 1 else f"{tasks:,} tasks need calls"
        return f"{needs}, or a state that only calls change"
    others = "" if called else f"{lacking:,} of {counts['samples']:,} failed, and "
    return f"{others}whether their tasks need calls is up to the environment's own scoring"
