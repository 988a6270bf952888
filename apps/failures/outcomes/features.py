"""A run as numbers for `model`: the signs it shows, its size relative to the project's runs, and
its words by hash. Pure.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt

from apps.failures.outcomes.peers import NOBODY, Comparison
from apps.failures.outcomes.signals import Signal, signals
from apps.failures.rules.reading import Run, kind_of
from apps.failures.rules.words import LOOKED_AT

SIZES = ("messages", "calls", "changes", "turns", "words", "tokens", "cost", "latency")
SIZE_TEXTS = {
    "messages": "messages",
    "calls": "tool calls",
    "changes": "calls that change something",
    "turns": "turns of the user",
    "words": "words of the agent",
    "tokens": "tokens",
    "cost": "cost",
    "latency": "time",
}
BUCKETS = 4096
QUANTILES = 41  # one every 2.5%
FEWEST = 20  # runs needed before sizes are ranked within a project
WORDS_OF_A_RUN = 400
_WORD = re.compile(r"[^\W\d_]{3,24}")


@dataclass(frozen=True)
class Facts:
    """What is known about a run besides its messages; None if not recorded. Cost in USD, latency in
    ms.
    """

    tokens: float | None = None
    cost: float | None = None
    latency: float | None = None


@dataclass(frozen=True)
class Features:
    """`dense` is 0 or 1 for a sign (a share for `peers`) and -1 to 1 for a size, by its rank;
    `hashed` maps bucket → weight.
    """

    signs: list[Signal]
    dense: dict[str, float]
    hashed: dict[int, float] = field(default_factory=dict)


def features(
    run: Run, facts: Facts, usual: Usual, *, words: bool, compared: Comparison = NOBODY
) -> Features:
    """`words`: also hash words, which only a model trained on decisions weighs; `compared`: with
    other runs of the same request.
    """
    signs = [*signals(run), *compared.signs()]
    dense = dict.fromkeys((sign.name for sign in signs), 1.0) | compared.dense()
    for name, value in sizes(run, facts).items():
        dense[f"size_{name}"] = usual.rank(name, value)
    return Features(signs, dense, hashed(run) if words else {})


def sizes(run: Run, facts: Facts) -> dict[str, float]:
    """The sizes of a run that are known, by name."""
    known = {
        "messages": len(run.messages),
        "calls": len(run.calls),
        "changes": sum(1 for call in run.calls if call.worked and kind_of(call.tool) == "write"),
        "turns": len(run.users),
        "words": sum(words.count(" ") + 1 for _, words in run.answers),
        "tokens": facts.tokens,
        "cost": facts.cost,
        "latency": facts.latency,
    }
    return {name: float(value) for name, value in known.items() if value is not None}


class Usual:
    """The sizes of a project's runs, as quantiles. `quantiles` maps size → sorted values at equal
    shares; may be empty.
    """

    def __init__(self, quantiles: Mapping[str, Sequence[float]]) -> None:
        self.quantiles = {
            name: list(values) for name, values in quantiles.items() if len(values) > 1
        }

    @classmethod
    def of(cls, runs: Iterable[Mapping[str, float]]) -> Usual:
        """From the `sizes` of runs. A size that fewer than FEWEST runs have is left out."""
        columns: dict[str, list[float]] = {}
        for run in runs:
            for name, value in run.items():
                columns.setdefault(name, []).append(value)
        return cls(
            {
                name: _quantiles(sorted(values))
                for name, values in columns.items()
                if len(values) >= FEWEST
            }
        )

    def rank(self, name: str, value: float) -> float:
        """-1 for the smallest, 0 for the median, 1 for the largest, the middle rank for ties; 0 if
        the project has no quantiles for it.
        """
        known = self.quantiles.get(name)
        if known is None or known[0] == known[-1]:
            return 0.0
        below, up_to = bisect_left(known, value), bisect_right(known, value)
        return (below + up_to) / len(known) - 1.0


def _quantiles(values: list[float]) -> list[float]:
    last = len(values) - 1
    return [values[round(at * last / (QUANTILES - 1))] for at in range(QUANTILES)]


def hashed(run: Run) -> dict[int, float]:
    """Hash the called tools, the failed tools, and the words of the users and of the last answers,
    as a vector of unit length.
    """
    found = {f"tool {call.tool}" for call in run.calls} | {
        f"failed {call.tool}" for call in run.calls if call.error
    }
    users = " ".join(words[:LOOKED_AT] for _, words in run.users[:20])
    answers = " ".join(words[:LOOKED_AT] for _, words in run.answers[-2:])
    for prefix, text in (("user", users), ("agent", answers)):
        found.update(
            [f"{prefix} {word}" for word in _WORD.findall(text.casefold())[:WORDS_OF_A_RUN]]
        )
    buckets: dict[int, float] = {}
    for token in found:
        bucket = zlib.crc32(token.encode("utf-8", "replace")) % BUCKETS
        buckets[bucket] = buckets.get(bucket, 0.0) + 1.0
    length = sqrt(sum(value * value for value in buckets.values()))
    return {bucket: value / length for bucket, value in buckets.items()}
