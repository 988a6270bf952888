"""A run as numbers for `model`: what the rules found, what the judge said, its size relative to the
project's runs, and its tools and words by hash. No feature is a person's decision. Pure.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt

from apps.failures.classify import classify_run
from apps.failures.rules.findings import Evidence
from apps.failures.rules.reading import Run, kind_of

SIZES = {  # name → how people call it
    "messages": "messages",
    "calls": "tool calls",
    "failed": "failed tool calls",
    "changes": "calls that change something",
    "turns": "turns of the user",
    "length": "text of the agent",
    "tokens": "tokens",
    "cost": "cost",
    "latency": "time",
}
BUCKETS = 4096
LOOKED_AT = 1500  # characters of one message
QUANTILES = 41  # one every 2.5%
FEWEST = 20  # runs needed before sizes are ranked within a project
WORDS_OF_A_RUN = 400
# Letters and the marks that belong to them: everything but spaces, digits and punctuation.
_WORD = re.compile(
    r"[^\s\d_!-/:-@\[-`{-~\u00a1-\u00bf\u00d7\u00f7\u0589\u05be\u060c\u061b\u061f\u06d4\u0964\u0965"
    r"\u104a\u104b\u17d4\u2000-\u206f\u3000-\u303f\ufe10-\ufe6f\uff00-\uff0f\uff1a-\uff20]+"
)
LONGEST_WORD = 24
# Thai, Lao, Tibetan, Burmese, Khmer, Chinese, Japanese: scripts without spaces between words.
_UNSPACED = re.compile(
    r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u9fff\U00020000-\U0003ffff]"
)
GRAMS = (2, 3)  # characters of such scripts that count as a word


@dataclass(frozen=True)
class Facts:
    """What is known about a run besides its messages; None if not recorded. Cost in USD, latency in
    ms. `judged` is the judge's verdict, from -1 (certainly no failure) to 1 (certainly a failure).
    """

    tokens: float | None = None
    cost: float | None = None
    latency: float | None = None
    judged: float | None = None


@dataclass(frozen=True)
class Features:
    """`dense`: 1 for a rule that fired, -1 to 1 for the judge's verdict and for a size, by its
    rank; `hashed` maps bucket → weight. `found` is the rules' evidence and `tokens` what was
    hashed, for reasons.
    """

    dense: dict[str, float]
    hashed: dict[int, float] = field(default_factory=dict)
    found: Sequence[Evidence] = ()
    tokens: frozenset[str] = frozenset()


def features(run: Run, facts: Facts, usual: Usual) -> Features:
    """`run` must have been read without its outcome."""
    diagnosis = classify_run(run)
    found = diagnosis.evidence if diagnosis else []
    dense = {f"rule_{item.rule}": 1.0 for item in found}
    dense |= {f"found_{item.confidence}": 1.0 for item in found}
    if facts.judged is not None:
        dense["judge"] = facts.judged
    for name, value in sizes(run, facts).items():
        dense[f"size_{name}"] = usual.rank(name, value)
    tokens = tokens_of(run)
    return Features(dense, hashed(tokens), found, tokens)


def sizes(run: Run, facts: Facts) -> dict[str, float]:
    """The sizes of a run that are known, by name."""
    known = {
        "messages": len(run.messages),
        "calls": len(run.calls),
        "failed": sum(1 for call in run.calls if call.error),
        "changes": sum(1 for call in run.calls if call.worked and kind_of(call.tool) == "write"),
        "turns": len(run.users),
        "length": sum(len(text) for _, text in run.answers),
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


def tokens_of(run: Run) -> frozenset[str]:
    """The called tools, the failed tools, and the words of the users and of the last answers."""
    tools = {f"tool {call.tool}" for call in run.calls} | {
        f"failed {call.tool}" for call in run.calls if call.error
    }
    users = " ".join(text[:LOOKED_AT] for _, text in run.users[:20])
    answers = " ".join(text[:LOOKED_AT] for _, text in run.answers[-2:])
    return frozenset(tools).union(
        *(
            [f"{said_by} {word}" for word in words_of(text)[:WORDS_OF_A_RUN]]
            for said_by, text in (("user", users), ("agent", answers))
        )
    )


def words_of(text: str) -> list[str]:
    """The words of a text in any script: those between spaces, or the n-grams of characters where a
    script has no spaces.
    """
    words: list[str] = []
    for word in _WORD.findall(unicodedata.normalize("NFKC", text).casefold()):
        if _UNSPACED.search(word):
            words += [word[at : at + n] for n in GRAMS for at in range(len(word) - n + 1)]
        elif 1 < len(word) <= LONGEST_WORD:
            words.append(word)
    return list(dict.fromkeys(words))


def hashed(tokens: Iterable[str]) -> dict[int, float]:
    """Tokens as a vector of unit length."""
    buckets: dict[int, float] = {}
    for token in tokens:
        bucket = bucket_of(token)
        buckets[bucket] = buckets.get(bucket, 0.0) + 1.0
    length = sqrt(sum(value * value for value in buckets.values()))
    return {bucket: value / length for bucket, value in buckets.items()}


def bucket_of(token: str) -> int:
    return zlib.crc32(token.encode("utf-8", "replace")) % BUCKETS
