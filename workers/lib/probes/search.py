"""A search for outputs that are wrong but rewarded, by mutation and recombination, in addition to
the list of known tricks.

It climbs `judging.slope`, which a policy would climb too, over outputs that `truth.surely_wrong`
finds wrong independently of the verifier. It starts from the list's best-rewarded outputs and from
parts of the right one. Seeded; bounded by calls of the verifier and by CPU time. The best output of
each task is minimised (delta debugging) until nothing can be left out.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from workers.lib.messages import text_of
from workers.lib.probes.cases import Case, said
from workers.lib.probes.cheating import Cheat
from workers.lib.probes.context import Context
from workers.lib.probes.judging import Standard, judged, slope
from workers.lib.probes.mutations import Output, mutated, pieces
from workers.lib.probes.scoring import again, scored, spaced
from workers.lib.probes.truth import merit, surely_wrong
from workers.lib.probes.types import KEEP, Finding, Options, Outcome, Scorer, Wish

SEARCHED = 4  # tasks
POPULATION = 24
STARTS = 12  # starting points taken from the list
CHEATS = 4  # outputs that a model is asked for at a time
CUTS = 150  # scores used to minimise one finding
SAME = 0.9  # share of the slope that must be left after a cut


@dataclass(frozen=True)
class Ground:
    """What outputs are judged with: the verifier, the tasks, and the rewards of right and honest
    wrong outputs.
    """

    score: Scorer
    context: Context
    cases: dict[str, Case]
    standards: dict[str, Standard]
    rules: Options
    golds_masked: bool

    def judged(self, item: Outcome) -> Finding | None:
        if item.wish.limit == KEEP or item.reward is None:
            share = 1.0
        else:
            share = merit(self.cases[item.task], item.wish.messages)
        return judged(item, self.standards[item.task], self.rules, self.golds_masked, share)


@dataclass
class Budget:
    """The scores and CPU seconds that are left, and the number of outputs scored."""

    scores: int
    cpu_s: float
    scored: int = 0
    began: float = field(default_factory=time.process_time)

    @property
    def spent(self) -> bool:
        return self.scores <= 0 or time.process_time() - self.began > self.cpu_s


@dataclass
class Candidate:
    output: Output
    fitness: float
    outcome: Outcome


class Climb:
    """The search for one task."""

    def __init__(self, ground: Ground, case: Case, budget: Budget, seed: int) -> None:
        self.ground, self.case, self.budget = ground, case, budget
        self.standard = ground.standards[case.id]
        self.rng = random.Random(f"{seed}/{case.id}")
        self.seen: set[str] = set()

    def tried(self, output: Output) -> Candidate | None:
        """Score an output, unless it is already known, possibly right, or the budget is used up."""
        text = json.dumps(output.messages)
        if text in self.seen or self.budget.spent or not surely_wrong(self.case, output.messages):
            return None
        self.seen.add(text)
        self.budget.scores -= 1
        self.budget.scored += 1
        made = " → ".join(output.path[-4:])
        outcome = scored(
            self.ground.score, "search", self.case, Wish(made, output.messages), self.ground.rules
        )
        return Candidate(output, self.fitness(outcome), outcome)

    def fitness(self, item: Outcome) -> float:
        """Infinite if the verifier raised, masked the sample or returned something other than a
        number.
        """
        if item.raised or (item.masked and not self.ground.golds_masked):
            return math.inf
        if item.reward is None or not math.isfinite(item.reward):
            return -math.inf if item.masked else math.inf
        if self.standard.span <= 0:
            return item.reward
        return slope(item.reward, merit(self.case, item.wish.messages), self.standard)

    def run(self, starts: list[Output], material: list[str], scores: int) -> list[Candidate]:
        """The best of the population after `scores` scores, best first."""
        until = self.budget.scores - scores
        found = [one for one in map(self.tried, starts) if one]
        failed = 0
        while found and self.budget.scores > until and not self.budget.spent and failed < 200:
            parents = [
                max(self.rng.sample(found, min(3, len(found))), key=lambda one: one.fitness)
                for _ in range(2)
            ]
            child = self.tried(mutated(parents[0].output, parents[1].output, material, self.rng))
            failed = 0 if child else failed + 1
            if child:
                found = sorted(
                    [*found, child], key=lambda one: (-one.fitness, len(str(one.output.messages)))
                )[:POPULATION]
        return found

    def cut(self, best: Candidate) -> Candidate:
        """Remove parts that do not contribute to the reward: delta debugging (Zeller and
        Hildebrandt 2002) over lines, words, then letters.
        """
        self.budget.scores += CUTS
        limit = self.budget.scores - CUTS
        self.budget.began = max(self.budget.began, time.process_time() - self.budget.cpu_s * SAME)
        least = best.fitness * SAME if math.isfinite(best.fitness) else best.fitness
        for unit in ("lines", "words", "letters"):
            parts = pieces(text_of(best.output.messages[-1]) if best.output.messages else "", unit)
            size = max(1, len(parts) // 2)
            while parts and size and self.budget.scores > limit:
                kept = self._shorter(best, parts, size, least)
                if kept is None:
                    size //= 2
                else:
                    best, parts = kept
                    size = min(size, max(1, len(parts) // 2))
        self.budget.scores = min(self.budget.scores, limit)
        return best

    def _shorter(
        self, best: Candidate, parts: list[str], size: int, least: float
    ) -> tuple[Candidate, list[str]] | None:
        for at in range(0, len(parts), size):
            left = parts[:at] + parts[at + size :]
            one = self.tried(best.output.with_text("".join(left), "cut down"))
            if one and one.fitness >= least:
                return one, left
        return None


def search(
    ground: Ground, outcomes: list[Outcome], cheat: Cheat | None = None
) -> tuple[list[Finding], int]:
    """The findings of the search, at most one per task, minimised and, if rewards vary, confirmed;
    and the number of outputs scored.
    """
    rules = ground.rules
    cases = spaced(
        [case for case in ground.cases.values() if case.checkable and not case.silent], SEARCHED
    )
    budget = Budget(rules.search_scores, rules.search_cpu_s)
    found = []
    for case in cases:
        climb = Climb(ground, case, budget, rules.seed)
        starts = [*_starts(ground, case, outcomes), *_cheats(ground, case, cheat, outcomes)]
        best = climb.run(starts, _material(ground, case), rules.search_scores // len(cases))
        if (
            best
            and best[0].fitness >= rules.slack
            and (finding := _finding(ground, climb.cut(best[0])))
        ):
            found.append(finding)
    return found, budget.scored


def _finding(ground: Ground, best: Candidate) -> Finding | None:
    item = best.outcome
    if ground.rules.stochastic:
        item = again(ground.score, item, ground.cases[item.task], ground.rules)
    finding = ground.judged(item)
    return finding and Finding(**vars(finding) | {"path": best.output.path[-12:]})


def _starts(ground: Ground, case: Case, outcomes: list[Outcome]) -> Iterator[Output]:
    """The best-rewarded wrong outputs of the list for this task, an honest wrong one, and the
    halves of the right one.
    """
    mine = [
        item
        for item in outcomes
        if item.task == case.id and item.wish.limit != KEEP and item.reward is not None
    ]
    ranked = sorted(mine, key=lambda item: -(item.reward or 0.0))
    for item in [*ranked[:STARTS], *spaced(ranked[STARTS:], STARTS)]:
        if item.wish.messages and sum(len(text_of(one)) for one in item.wish.messages) < 20_000:
            yield Output(item.wish.messages, (f"{item.probe}: {item.wish.what}",))
    yield Output(ground.context.wrong(case), ("an honest wrong answer",))
    gold = ground.context.gold(case)
    if gold and not case.has_code and (text := text_of(gold[-1])):
        yield Output(said(text[: len(text) // 2]), ("the first half of the right answer",))
        yield Output(said(text[len(text) // 2 :]), ("the second half of the right answer",))


def _cheats(
    ground: Ground, case: Case, cheat: Cheat | None, outcomes: list[Outcome]
) -> Iterator[Output]:
    if cheat is None:
        return
    mine = [
        item
        for item in outcomes
        if item.task == case.id and item.wish.limit != KEEP and item.reward is not None
    ]
    best = sorted(mine, key=lambda item: -(item.reward or 0.0))[:6]
    shown = [
        (text_of(item.wish.messages[-1]) if item.wish.messages else "", item.reward or 0.0)
        for item in best
    ]
    for text in cheat.outputs(case.task, shown, CHEATS):
        yield Output(said(text), (f"written by {cheat.name}, told to cheat",))


def _material(ground: Ground, case: Case) -> list[str]:
    """Fragments that mutations insert: from the tricks, the prompt, the tools, and other tasks'
    right answers.
    """
    from workers.lib.probes.fragments import FRAGMENTS

    prompt = " ".join(text_of(message) for message in case.task.get("messages") or [])
    names = [tool.name for tool in case.tools]
    others = [
        answer for other in ground.context.cases if other is not case for answer in other.answers
    ][:6]
    return [
        *FRAGMENTS,
        *pieces(prompt, "lines")[:10],
        prompt,
        *names,
        *others,
        *ground.rules.rubrics,
    ]
