"""Estimates what a run will cost in tokens, hours, memory and money, from its own prompts and
measured rates.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
from django.conf import settings
from msgspec import Struct

from apps.environments.clients import load_for
from apps.registry.bases import find_base
from apps.registry.models import ModelVersion, Server
from apps.registry.prices import price_at
from apps.training.budget import measuring
from apps.training.budget.asked import Asked, conversations
from apps.training.budget.learning import expected_signal
from apps.training.budget.lengths import Known, lengths_of
from apps.training.budget.numbers import Span
from apps.training.memory import at_once, in_words, own_rows
from apps.training.memory import reductions as smaller_settings
from apps.training.models import PROGRAMS, Measurement, Method
from workers.lib.chat_tokens import Conversation, Tokenized, counted_apart
from workers.lib.errors import JobError, SpecError
from workers.lib.memory import gigabytes
from workers.lib.prices import price_from_json
from workers.lib.specs.training import SIDE_BY_SIDE
from workers.lib.training_cost import (
    Lengths,
    Rates,
    Row,
    Work,
    tokens_read,
    work_of_compared,
    work_of_groups,
    work_of_padded,
    work_of_rows,
    work_of_samples,
)

SURE = (
    0.75,
    1.5,
)  # factors for the interval of a time estimated from a measurement of a few seconds
SURE_OF_ONE = (
    0.3,
    1.5,
)  # if only one size was measured: fixed costs then cannot be told apart from costs per token
SURE_MEMORY = (0.85, 1.25)
SPEEDUP = 0.5  # minimum speed-up per additional GPU
KEPT = 16  # cached sets of tokenized rows
TREE, COMPARED = (
    ("sft",),
    ("dpo", "kto"),
)  # programs that share prompts; the others process row by row, with padding


class Reduction(Struct, frozen=True):
    """A change that needs less memory. `same`: whether the update stays the same."""

    words: str
    memory: float
    slower: float
    same: bool
    fits: bool


class Estimate(Struct, kw_only=True):
    """The estimate for one run out of `runs`. Seconds, bytes and USD; None if nothing was measured
    or no price is known.
    """

    runs: int = 1
    steps: int = 0
    rows: int = 0
    sampled: int = 0
    prompt: float = 0  # mean tokens per prompt
    rollout_tokens: Span | None = None
    teacher_tokens: Span | None = None  # read and written by a teacher on a server
    training_tokens: Span | None = None
    distinct_tokens: Span | None = None
    seconds: Span | None = None
    parts: dict[str, float] = {}  # likely seconds by activity
    memory: Span | None = None
    available: int = 0
    usd: Span | None = None
    price: str = ""
    lengths: str = ""
    reduce: list[Reduction] = []
    measured_at: datetime | None = None
    measured_on: str = ""
    measurement: str = ""
    problem: str = ""  # why no estimate is possible

    @property
    def fits(self) -> bool | None:
        """Whether the run fits into memory; None if the likely estimate fits but the high one does
        not.
        """
        if self.memory is None or not self.available:
            return True
        return (
            True
            if self.memory.high <= self.available
            else False
            if self.memory.likely > self.available
            else None
        )

    @property
    def share(self) -> float:
        """The share of tokens that are actually computed; shared prefixes are computed once."""
        both = self.distinct_tokens and self.training_tokens and self.training_tokens.likely
        return self.distinct_tokens.likely / both if both and self.distinct_tokens else 1.0

    def as_json(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)


def from_json(given: Any) -> Estimate | None:
    """The estimate stored with a run; None if there is none or this version cannot read it."""
    try:
        return msgspec.convert(given, Estimate) if given else None
    except msgspec.ValidationError:
        return None


def estimate(asked: Asked) -> Estimate:
    """Never raises for an invalid run: the reason goes into the estimate's `problem`."""
    found = Estimate(runs=asked.runs, steps=asked.steps)
    try:
        given, found.rows = conversations(asked)
        tokenized = tokens_of(asked.parent, given)
    except (JobError, SpecError, OSError, KeyError, TypeError, ValueError) as error:
        found.problem = (
            str(error)
            if isinstance(error, JobError | SpecError)
            else f"The prompts could not be read: {error}"
        )
        return found
    found.sampled = len(tokenized)
    rows = [row for row in map(row_of, tokenized) if asked.samples or row.answers]
    if not rows:
        found.problem = "None of these tasks has anything to train on."
        return found
    found.prompt = sum(len(row.prompt) for row in rows) / len(rows)
    measurement = measuring.newest(asked.parent, asked.config, asked.rollouts)
    rates = rates_of(measurement, servers=bool(asked.rollouts)) if measurement else None
    known = lengths_of(asked, turns=most_turns(asked)) if asked.samples else None
    signal = signal_of(asked, known)
    scenes = Scenes(asked, rows, known, signal, part=rates.part if rates else 256)
    works = scenes.works(asked.config)
    count_tokens(found, asked, works, known)
    asks = (
        teacher_asks(asked, found.prompt, works, known)
        if asked.teacher_engine and known and not asked.sampled
        else None
    )
    if asks:
        found.teacher_tokens = asks[0] + asks[1]
    if rates is not None and measurement is not None:
        result = measurement.result["measured"]
        found.measured_at, found.measurement = measurement.finished_at, str(measurement.pk)
        found.measured_on = machine_words(result["machine"])
        found.measured_on += (
            "" if rates.sizes > 1 else "; too slow to measure at two sizes, so times are rough"
        )
        found.available = result["machine"]["available"]
        processes = asked.config.get("processes", 1)
        if processes > 1:
            found.measured_on += f"; {processes} processes share each step"
        # copies of the whole model in one memory: each process holds one, but on its own GPU if
        # there are GPUs
        copies = 1 if result["machine"].get("gpu") else processes
        add_time(found, asked, works, rates, shared_by=processes // copies)
        parts = processes if asked.config.get("shard") else 1
        rates = replace(
            rates,
            resting=rates.resting * scenes.resting / parts,
            load_memory=rates.load_memory / (parts if copies == 1 else 1),
        )
        found.memory = memory_span(
            scenes.of_one(asked.config, works), rates, bool(asked.rollouts)
        ).times(copies)
        found.reduce = reductions(found, scenes, rates, asked, copies)
    if measurement is not None or asks:
        add_money(found, asked, works, asks)
    return found


class Scenes:
    """The work of a step for short, likely and long answers."""

    def __init__(
        self, asked: Asked, rows: list[Row], known: Known | None, signal: Span, part: int
    ) -> None:
        self.asked, self.rows, self.known, self.signal, self.part = asked, rows, known, signal, part
        here = asked.teacher and not asked.teacher_engine
        self.teacher_size = (
            size_beside(asked.teacher, asked.parent) if here and asked.teacher else 0.0
        )

    @property
    def resting(self) -> float:
        """Memory for weights, relative to the student's. A teacher that only samples is unloaded
        before the student learns.
        """
        return (
            max(1.0, self.teacher_size)
            if self.asked.method == Method.BEST_OF_N
            else 1 + self.teacher_size
        )

    def works(self, config: dict[str, Any]) -> tuple[Work, Work, Work]:
        program = PROGRAMS.get(self.asked.method, self.asked.method)
        if self.known is not None and program == Method.BEST_OF_N:
            config = config | {
                "steps": max(1, self.asked.steps)
            }  # a fork samples for all tasks before its first step, too
            low, likely, high = (
                work_of_samples(
                    config, self.rows, self.part, one, len(self.asked.tasks), SIDE_BY_SIDE, share
                )
                for one, share in (
                    (self.known.low, 0.2),
                    (self.known.likely, 1.0),
                    (self.known.high, 1.0),
                )
            )
            return low, likely, high
        if self.known is not None:
            side = config.get("sample_batch") or SIDE_BY_SIDE
            config = config | {
                "prompts_per_step": min(config["prompts_per_step"], len(self.asked.tasks))
            }
            least = config["max_new_tokens"] / self.asked.config["max_new_tokens"]
            low, likely, high = (
                work_of_groups(
                    config,
                    self.rows,
                    self.part,
                    _cut(one, least),
                    informative=share,
                    side_by_side=side,
                    redrawn_at=redrawn,
                    teacher=self.teacher_size,
                )
                for one, share, redrawn in (
                    (self.known.low, self.signal.low, self.signal.high),
                    (self.known.likely, self.signal.likely, self.signal.likely),
                    (self.known.high, self.signal.high, self.signal.low),
                )
            )
            return low, likely, high
        if config.get(
            "shard"
        ):  # row by row; a reference is computed again, and KTO computes mismatched answers too
            work = work_of_padded(config, self.rows, self.part)
            again = {"dpo": 1, "kto": 3}.get(program, 0)
            work = replace(work, forward=again * work.plain)
        elif program in TREE:
            work = work_of_rows(config, self.rows, self.part)
        elif program in COMPARED:
            work = work_of_compared(config, self.rows, kl=program == "kto")
        else:
            work = work_of_padded(config, self.rows, self.part)
        return work, work, work

    def of_one(
        self, config: dict[str, Any], works: tuple[Work, Work, Work]
    ) -> tuple[Work, Work, Work]:
        """The `works` of one of several processes: its share of the rows. All answers to one prompt
        may fall to the same process.
        """
        if "batch_size" not in config or config.get("processes", 1) == 1:
            return works
        return self.works(config | {"batch_size": own_rows(config)})


def _cut(one: Lengths, by: float) -> Lengths:
    """Lengths under a lower token limit. How many answers would be cut off is unknown, so all
    lengths shrink in proportion.
    """
    return Lengths(one.written * by, one.longest * by, one.after * by, one.turns) if by < 1 else one


def size_beside(one: ModelVersion, other: ModelVersion) -> float:
    """The size of a model's weights relative to another's; 1 if unknown."""
    sizes = [
        sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        if (folder := find_base(version))
        else 0
        for version in (one, other)
    ]
    return sizes[0] / sizes[1] if all(sizes) else 1.0


def signal_of(asked: Asked, known: Known | None) -> Span:
    """The share of groups with a reward spread; only those train."""
    if asked.method != Method.GRPO or asked.config.get("advantages") == "gae":
        return Span(1, 1, 1)
    found = expected_signal(known.run if known else None, asked.config["generations"])
    return Span(0.3, 0.8, 1.0) if found is None else Span(0.6 * found, max(found, 0.05), 1.0)


def rates_of(measurement: Measurement, *, servers: bool) -> Rates | None:
    """None if another version stored the measurement in a different format."""
    try:
        return Rates.of(measurement.result["measured"], servers)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def most_turns(asked: Asked) -> int:
    environment = load_for(asked.environment)
    return (
        (environment.harness.max_turns or getattr(environment, "max_turns", 10))
        if environment.multi_turn
        else 1
    )


def row_of(one: Tokenized) -> Row:
    if one.after:
        return Row(one.prompt, [one.after], one.written)
    return Row(one.prompt, one.answers, sum(map(len, one.answers)))


_tokenized: OrderedDict[str, list[Tokenized]] = OrderedDict()
_lock = threading.Lock()


def tokens_of(parent: ModelVersion, given: list[Conversation]) -> list[Tokenized]:
    """Cached, because a form asks for the same rows again after every change. Raises JobError."""
    folder = str(find_base(parent) or parent.base_version().base)
    key = hashlib.sha256(msgspec.json.encode([folder, given])).hexdigest()
    with _lock:
        if key in _tokenized:
            _tokenized.move_to_end(key)
            return _tokenized[key]
    counted = counted_apart(folder, given)
    with _lock:
        _tokenized[key] = counted
        while len(_tokenized) > KEPT:
            _tokenized.popitem(last=False)
    return counted


def spans(works: tuple[Work, Work, Work], name: str) -> Span:
    low, likely, high = (getattr(work, name) for work in works)
    return Span(low, max(low, likely), max(low, likely, high))


def count_tokens(
    found: Estimate, asked: Asked, works: tuple[Work, Work, Work], known: Known | None
) -> None:
    updates = asked.config.get("updates_per_batch", 1)
    found.training_tokens = spans(works, "tokens").times(asked.steps * updates)
    found.distinct_tokens = spans(works, "distinct").times(asked.steps * updates)
    if known is not None and not asked.sampled:
        found.rollout_tokens = spans(works, "written").times(asked.steps)
        found.lengths = known.sentence


def add_time(
    found: Estimate, asked: Asked, works: tuple[Work, Work, Work], rates: Rates, shared_by: int = 1
) -> None:
    """`shared_by`: the number of processes with a GPU each. They wait for the slowest, and their
    shares are never quite equal.
    """
    sampling = [work.sampling_s(rates) * sampler_size(asked) for work in works]
    update = [work.update_s(rates) for work in works]
    overlap = bool(asked.rollouts.get("steps_ahead"))
    each = [
        two if asked.sampled else max(one, two) if overlap else one + two
        for one, two in zip(sampling, update, strict=True)
    ]
    share = asked.validation * asked.validations / works[1].answers if works[1].answers else 0.0
    validating = [share * one for one in sampling]
    shares = [1 / shared_by, 1 / shared_by, 1 / (1 + SPEEDUP * (shared_by - 1))]
    total = [
        rates.load_s + (asked.steps * one + more) * share
        for one, more, share in zip(each, validating, shares, strict=True)
    ]
    low, likely, high = total[0], max(total[:2]), max(total)
    found.seconds = Span(low, likely, high).wider(*(SURE if rates.sizes > 1 else SURE_OF_ONE))
    likely_parts = {
        "sampling": 0 if asked.sampled else asked.steps * sampling[1],
        "updates": asked.steps * update[1],
        "validation": validating[1],
    }
    found.parts = {"loading": rates.load_s} | {
        name: seconds / shared_by for name, seconds in likely_parts.items()
    }
    found.parts = {name: seconds for name, seconds in found.parts.items() if seconds}


def sampler_size(asked: Asked) -> float:
    """The size of the model that samples here, relative to the measured one. 0 if a server samples,
    since its speed is unknown.
    """
    if asked.method != Method.BEST_OF_N or asked.teacher is None:
        return 1.0
    return 0.0 if asked.teacher_engine else size_beside(asked.teacher, asked.parent)


def teacher_asks(
    asked: Asked, prompt: float, works: tuple[Work, Work, Work], known: Known
) -> tuple[Span, Span]:
    """(tokens that a teacher on a server reads, tokens that it writes) in a run. For on-policy
    distillation it scores whole episodes and writes one token per row; for best-of-n it samples the
    answers.
    """
    if asked.method == Method.ON_POLICY:
        return spans(works, "tokens").times(asked.steps), spans(works, "answers").times(asked.steps)
    count, lengths = (
        len(asked.tasks) * asked.config["samples"],
        (known.low, known.likely, known.high),
    )
    low, likely, high = (tokens_read(prompt, one) for one in lengths)
    written = Span(*(one.written for one in lengths))
    return Span(low, max(low, likely), max(low, likely, high)).times(count), written.times(count)


def memory_span(works: tuple[Work, Work, Work], rates: Rates, servers: bool) -> Span:
    low, likely, high = sorted(work.peak(rates, servers) for work in works)
    return Span(low, likely, high).wider(*SURE_MEMORY)


def reductions(
    found: Estimate, scenes: Scenes, rates: Rates, asked: Asked, copies: int = 1
) -> list[Reduction]:
    """Changes that need less memory. Those that fit come first; among them those that keep the
    update, the fastest first.
    """
    if found.memory is None or found.fits is True:
        return []
    config, before = asked.config, max(scenes.works(asked.config)[1].update_s(rates), 1e-9)
    made = []
    for changed, same in candidates(asked.method, config):
        works = scenes.works(config | changed)
        memory = memory_span(
            scenes.of_one(config | changed, works), rates, bool(asked.rollouts)
        ).times(copies)
        if memory.likely > 0.97 * found.memory.likely:
            continue
        slower = (
            works[1].update_s(rates)
            * (4 / 3 if changed.get("gradient_checkpointing") else 1)
            / before
        )
        made.append(
            Reduction(
                in_words(changed, config),
                memory.likely,
                slower,
                same,
                memory.high <= found.available,
            )
        )
    made.sort(
        key=lambda one: (not one.fits, not one.same, one.memory if not one.fits else one.slower)
    )
    return made[:5]


def candidates(method: str, config: dict[str, Any]) -> list[tuple[dict[str, Any], bool]]:
    """(changed settings, whether the update stays the same)."""
    found: list[tuple[dict[str, Any], bool]] = []
    same = smaller_settings(method, config, 1)
    for name in ("micro_batch", "sample_batch"):
        if name in same:
            size = at_once(name, config) // 2
            while size >= 1:
                if method != "dpo" or own_rows(config) % size == 0:
                    found.append(({name: size}, True))
                size //= 2
    if "gradient_checkpointing" in same:
        found.append(({"gradient_checkpointing": True}, True))
    if len(same) > 1:
        found.append((same, True))
    for name in ("max_new_tokens", "generations", "prompts_per_step", "batch_size"):
        shared = config.get("processes", 1) if name in ("prompts_per_step", "batch_size") else 1
        if config.get(name, 0) >= 4 and config[name] // 2 % shared == 0:
            found.append(({name: config[name] // 2}, False))
    return found


def add_money(
    found: Estimate,
    asked: Asked,
    works: tuple[Work, Work, Work],
    teacher: tuple[Span, Span] | None = None,
) -> None:
    """Add the machine's hours at the operator's price and what servers charge for tokens; a teacher
    at most its limit.
    """
    hour, said = settings.FLYWHEEL_MACHINE_USD, []
    total = None
    if hour and found.seconds:
        total = found.seconds.times(hour / 3600)
        said.append(f"${hour:g} an hour for the machine")
    for name in sorted({one["server_name"] for one in asked.rollouts.get("servers", ())}):
        server = Server.objects.filter(project=asked.project, name=name).first()
        model = next(
            one["model"] for one in asked.rollouts["servers"] if one["server_name"] == name
        )
        price = price_at(server, model) if server else None
        if price is None or found.rollout_tokens is None:
            said.append(f"no known price for {name}")
            continue
        count = len(asked.rollouts["servers"])
        asking = spans(works, "prompts").times(asked.steps * price.input / 1e6 / count)
        writing = found.rollout_tokens.times(price.output / 1e6 / count)
        total = asking + writing if total is None else total + asking + writing
        said.append(f"${price.input:g} and ${price.output:g} per million tokens on {name}")
    if teacher and asked.teacher_engine:
        name = asked.teacher_engine["server_name"]
        price = price_from_json(asked.teacher_engine["price"])
        if price is None:
            said.append(f"no known price for {name}")
        else:
            asks = teacher[0].times(price.input / 1e6) + teacher[1].times(price.output / 1e6)
            if most := asked.config.get("teacher_usd"):
                asks = Span(*(min(most, one) for one in (asks.low, asks.likely, asks.high)))
            total = asks if total is None else total + asks
            said.append(f"${price.input:g} and ${price.output:g} per million tokens on {name}")
    found.usd, found.price = total, ", ".join(said)


def machine_words(machine: dict[str, Any]) -> str:
    what = machine.get("gpu") or f"{machine['threads']} of {machine['cores']} cores"
    return f"{machine['name']}, {what}, {gigabytes(machine['memory'])}"
