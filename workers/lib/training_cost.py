"""Computes the work of a training run and, from measured rates, its duration and memory. Pure.

A step is described by counts (`Work`). A machine is described by rates (`Rates`), each a line
through measurements at two sizes: a fixed cost per piece of work, and a cost per token
(workers.measure_training). The estimate is counts times rates.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from workers.lib.prefixes import Part, Tree

DRAWN = 4  # steps whose rows are drawn to count shared tokens
SAMPLED_TOGETHER = 16  # tasks in workers.best_of_n
LARGEST = 200_000  # maximum tokens put into a tree for that
WEIGHT_BYTES = 4  # per weight of an adapter, always in float32
OPTIMIZER_BYTES = 12  # per trained weight: its gradient and two moments in float32

Ids = Sequence[int]


def kept_tokens(rows: Sequence[Ids], part: int, recompute: bool = False) -> int:
    """The number of tokens whose activations exist at the same time in an update of these rows
    (workers.ml.tree): those of a part and the parts above it, except for the latter if `recompute`.
    """
    return max((_kept(one, recompute) for one in Tree(rows).parts(part)), default=0)


def _kept(part: Part, recompute: bool) -> int:
    below = max((_kept(one, recompute) for one in part.below), default=0)
    return max(len(part.ids), below) if recompute else len(part.ids) + below


@dataclass(frozen=True)
class Line:
    """`base` + `each` × size."""

    base: float
    each: float

    def at(self, size: float) -> float:
        return self.base + self.each * size

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Line:
        """Through the measurements with the smallest and the largest size; never decreasing and
        never below 0, since measurements are noisy.
        """
        (x1, y1), (x2, y2) = min(points), max(points)
        if x2 <= x1 or y2 <= y1:
            return cls(0.0, y2 / x2 if x2 else 0.0)
        each = (y2 - y1) / (x2 - x1)
        base = y1 - each * x1
        return cls(base, each) if base >= 0 else cls(0.0, y2 / x2)


@dataclass(frozen=True)
class Rates:
    """Seconds and bytes on one machine with one model; sizes are in tokens."""

    load_s: float
    load_memory: float
    resting: float
    trained: int
    part: int
    kv_bytes: int
    head_share: float
    prefill: Line
    step: Line  # seconds per token of all answers, by the number of answers
    update: Line
    forward: float
    plain: Line
    update_memory: Line
    plain_memory: Line
    answer_memory: float
    sizes: int = 2  # number of sizes at which updates were measured

    @classmethod
    def of(cls, found: dict[str, Any], servers: bool = False) -> Rates:
        """From the result of workers.measure_training; with `servers`, sampling happens on them."""
        share, sampling = found["head_share"], found["sampling"]

        def size(one: dict[str, Any]) -> float:
            return one["distinct"] + share * one["learnt"]

        def extra(one: dict[str, Any]) -> float:
            return max(0.0, one["memory"] - one["before"])

        asked = found["servers"] if servers and found.get("servers") else sampling
        forward = found["forward"]
        return cls(
            load_s=found["load"]["seconds"],
            load_memory=found["load"]["memory"],
            resting=found["resting"],
            trained=found["trained"],
            part=found["part"],
            kv_bytes=found["kv_bytes"],
            head_share=share,
            prefill=Line.through([(one["prompt_tokens"], one["prefill_s"]) for one in asked]),
            step=Line.through([(one["answers"], one["step_s"]) for one in asked]),
            update=Line.through([(size(one), one["seconds"]) for one in found["updates"]]),
            forward=forward["seconds"] / size(forward),
            plain=Line.through([(one["tokens"], one["seconds"]) for one in found["plain"]]),
            update_memory=Line.through([(one["kept"], extra(one)) for one in found["updates"]]),
            plain_memory=Line.through([(one["tokens"], extra(one)) for one in found["plain"]]),
            sizes=len(found["updates"]),
            answer_memory=max(extra(one) / one["answers"] for one in sampling),
        )


@dataclass(frozen=True)
class Work:
    """The average step. `prompts`: distinct tokens of the prompts sampled from; `written`: tokens
    of all answers; `longest`: of the longest answer of each batch; `plain`: tokens computed row by
    row, with padding.
    """

    tokens: float = 0
    distinct: float = 0
    learnt: float = 0
    kept: float = 0
    plain: float = 0
    plain_kept: float = 0
    forward: float = 0
    prompts: float = 0
    answers: float = 0
    written: float = 0
    longest: float = 0
    batches: float = 0
    cached: float = 0  # tokens whose keys and values exist at the same time during sampling
    updates: float = 1
    adapters: float = 1  # trained adapters: PPO's critic is a second one

    def sampling_s(self, rates: Rates) -> float:
        if not self.answers:
            return 0.0
        decoding = self.longest * rates.step.base * self.batches + self.written * rates.step.each
        return rates.prefill.base * self.batches + rates.prefill.each * self.prompts + decoding

    def update_s(self, rates: Rates) -> float:
        if self.plain:
            return rates.plain.at(self.plain) + rates.plain.each * self.forward
        size = self.distinct + rates.head_share * self.learnt
        return self.updates * rates.update.at(size) + rates.forward * self.forward

    def peak(self, rates: Rates, servers: bool = False) -> float:
        others = (self.adapters - 1) * rates.trained * (WEIGHT_BYTES + OPTIMIZER_BYTES)
        resting = rates.resting + rates.trained * OPTIMIZER_BYTES + others
        update = (
            rates.plain_memory.at(self.plain_kept)
            if self.plain
            else rates.update_memory.at(self.kept)
        )
        side_by_side = self.answers / max(1.0, self.batches)
        sampling = (
            0.0 if servers else self.cached * rates.kv_bytes + side_by_side * rates.answer_memory
        )
        return max(rates.load_memory, resting + max(update, sampling))


@dataclass(frozen=True)
class Row:
    """A row of the data: its prompt, and the learned texts after it, of which the agent wrote
    `written` tokens. Preference pairs have two.
    """

    prompt: Ids
    answers: Sequence[Ids] = ()
    written: int = 0

    @property
    def sequences(self) -> list[list[int]]:
        return [[*self.prompt, *answer] for answer in self.answers]


@dataclass(frozen=True)
class Lengths:
    """Lengths of an agent's answers: tokens written per episode, by the longest of a batch, all
    tokens after the first prompt, and the number of turns.
    """

    written: float
    longest: float
    after: float
    turns: float = 1.0


def tokens_read(prompt: float, one: Lengths) -> float:
    """Tokens that a server reads in an episode: each turn sends the whole conversation again, which
    grows by the same amount each time.
    """
    return one.turns * prompt + (one.turns - 1) / 2 * one.after


def rows_at_once(config: dict[str, Any], rows: int) -> int:
    return min(rows, config.get("micro_batch") or rows)


def work_of_rows(config: dict[str, Any], rows: Sequence[Row], part: int) -> Work:
    """SFT: rows whose common beginnings are computed once."""
    found = []
    for drawn in draws(rows, config["batch_size"]):
        sequences, size = (
            [one for row in drawn for one in row.sequences],
            rows_at_once(config, len(drawn)),
        )
        groups = [sequences[at : at + size] for at in range(0, len(sequences), size)]
        recompute = bool(config.get("gradient_checkpointing"))
        found.append(
            Work(
                tokens=sum(map(len, sequences)),
                distinct=sum(len(Tree(group)) for group in groups),
                learnt=sum(row.written for row in drawn),
                kept=max(kept_tokens(group, part, recompute) for group in groups),
            )
        )
    return average(found)


def work_of_compared(config: dict[str, Any], rows: Sequence[Row], *, kl: bool = False) -> Work:
    """DPO and KTO: the tree of a micro-batch goes backward as a whole, and is computed again
    without gradients by the reference; with `kl` (KTO), answers to other prompts are too, by both
    models.
    """
    found = []
    for drawn in draws(rows, config["batch_size"]):
        size = rows_at_once(config, len(drawn))
        groups = [
            [one for row in drawn[at : at + size] for one in row.sequences]
            for at in range(0, len(drawn), size)
        ]
        trees, learnt = [len(Tree(group)) for group in groups], sum(row.written for row in drawn)
        found.append(
            Work(
                tokens=sum(len(one) for group in groups for one in group),
                distinct=sum(trees),
                learnt=learnt,
                kept=max(trees),
                forward=(sum(trees) + learnt) * (3 if kl else 1),
            )
        )
    return average(found)


def work_of_padded(config: dict[str, Any], rows: Sequence[Row], part: int) -> Work:
    """What TRL trains row by row (reward models): side by side, padded to the longest."""
    found = []
    for drawn in draws(rows, config["batch_size"]):
        sequences = [one for row in drawn for one in row.sequences]
        width, micro = max(map(len, sequences)), rows_at_once(config, len(drawn)) / len(drawn)
        padded = width * len(sequences)
        found.append(
            Work(
                tokens=sum(map(len, sequences)),
                distinct=sum(map(len, sequences)),
                learnt=sum(row.written for row in drawn),
                plain=padded,
                plain_kept=padded * micro,
            )
        )
    return average(found)


def work_of_groups(
    config: dict[str, Any],
    rows: Sequence[Row],
    part: int,
    lengths: Lengths,
    *,
    informative: float,
    side_by_side: int,
    redrawn_at: float | None = None,
    teacher: float = 0.0,
) -> Work:
    """GRPO, and on-policy distillation from a `teacher` of a size relative to the model's:
    `generations` answers to each of `prompts_per_step` prompts. Groups without reward spread do not
    train. PPO computes and updates a critic besides. `redrawn_at`: the share of informative groups
    that determines how many are redrawn; the expensive case has few of them while sampling but many
    in the update.
    """
    groups, each = config["prompts_per_step"], config["generations"]
    count, found = groups * each, []
    adapters = 2 if config.get("advantages") == "gae" else 1
    for drawn in draws(rows, groups):
        prompts = [row.prompt for row in drawn]
        tree, whole = Tree(prompts), sum(map(len, prompts))
        batches = math.ceil(count / max(side_by_side, min(each, count)))
        together = min(len(prompts), max(1, side_by_side // each))
        own = max(map(len, prompts)) - (tree.shared if len(prompts) > 1 else len(prompts[0]))
        later = (lengths.turns - 1) * (len(tree) + count * lengths.after / 2)
        spread = informative if redrawn_at is None else redrawn_at
        redrawn = sum((1 - spread) ** at for at in range(config.get("dynamic_sampling", 0) + 1))
        every = (
            1 if config.get("beta") else (1 / config["kl_every"] if config.get("kl_every") else 0)
        )
        work = Work(
            tokens=(each * whole + count * lengths.after) * informative,
            distinct=(len(tree) + count * lengths.after) * informative,
            learnt=count * lengths.written * informative,
            kept=kept_of_groups(config, prompts, part, round(lengths.after)),
            prompts=redrawn * (len(tree) + later),
            answers=count,
            written=redrawn * count * lengths.written,
            longest=redrawn * lengths.longest,
            batches=batches,
            cached=len(tree) + min(count, together * each) * (own * (together > 1) + lengths.after),
            updates=config.get("updates_per_batch", 1) * adapters,
            adapters=adapters,
        )
        before = bool(config.get("beta")) or config.get("minibatches", 1) > 1
        again = every + teacher + (adapters - 1) + (before and adapters > 1)
        found.append(replace(work, forward=again * (work.distinct + work.learnt)))
    return average(found)


def work_of_samples(
    config: dict[str, Any],
    rows: Sequence[Row],
    part: int,
    lengths: Lengths,
    tasks: int,
    side_by_side: int,
    passed: float,
) -> Work:
    """Rejection sampling within the run: `samples` answers to each of `tasks` tasks once, then SFT
    on those that passed; sampling is spread over the steps. `passed`: the share of tasks with an
    answer to learn from.
    """
    together = min(tasks, SAMPLED_TOGETHER)
    asked = {"prompts_per_step": together, "generations": config["samples"]}
    sampling = work_of_groups(asked, rows, part, lengths, informative=0, side_by_side=side_by_side)
    each = tasks / together / config["steps"]
    kept = max(1, round(passed * len(rows) * (config["samples"] if config["keep"] == "all" else 1)))
    learnt, length = [], max(1, round(lengths.after))
    for at in range(kept):
        answer = range(
            -1 - at * length, -1 - (at + 1) * length, -1
        )  # made-up tokens that differ from the first one on
        learnt.append(Row(rows[at % len(rows)].prompt, [answer], round(lengths.written)))
    return replace(
        work_of_rows(config, learnt, part),
        prompts=sampling.prompts * each,
        answers=sampling.answers * each,
        written=sampling.written * each,
        longest=sampling.longest,
        batches=sampling.batches * each,
        cached=sampling.cached,
    )


def kept_of_groups(config: dict[str, Any], prompts: Sequence[Ids], part: int, after: int) -> int:
    """For the largest micro-batch, assuming that answers differ from their first token on."""
    each, recompute = config["generations"], bool(config.get("gradient_checkpointing"))
    size, longest = (
        rows_at_once(config, len(prompts) * each),
        sorted(prompts, key=len, reverse=True),
    )
    every = [prompt for prompt in longest for _ in range(each)]
    taken = [(prompt, at) for at, prompt in enumerate(every)][:size]
    fitting = max(1, LARGEST // max(1, after + len(longest[0])))
    rows = [
        [*prompt, *range(-1 - at * after, -1 - (at + 1) * after, -1)]
        for prompt, at in taken[:fitting]
    ]
    return kept_tokens(rows, part, recompute)


def draws(rows: Sequence[Row], size: int) -> list[list[Row]]:
    """The rows of a few steps, as a shuffle gives them."""
    found, order = [], random.Random(0)
    for _ in range(DRAWN):
        drawn: list[Row] = []
        while len(drawn) < size:
            drawn += order.sample(list(rows), min(len(rows), size - len(drawn)))
        found.append(drawn)
    return found


def average(works: Sequence[Work]) -> Work:
    """The average, but the maximum for memory."""
    names = Work.__dataclass_fields__
    pick: dict[str, Callable[..., float]] = {"kept": max, "plain_kept": max, "cached": max}
    return Work(
        **{name: pick.get(name, mean)([getattr(one, name) for one in works]) for name in names}
    )
