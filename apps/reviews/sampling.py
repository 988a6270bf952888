"""Which scored outputs people judge: stratified over score, bucket and model. Pure: no Django."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SMALLEST, LARGEST = 50, 100
Stratum = tuple[str, str, str]


@dataclass(frozen=True)
class Candidate:
    """A scored output. `bucket` is its failure mode or category, "" if it has none; `judged`: in an
    earlier review.
    """

    id: str
    task: str
    output: str
    reward: float
    success: bool
    bucket: str = ""
    model: str = ""
    judged: bool = False


@dataclass(frozen=True)
class Share:
    """One stratum: available and chosen samples, and the mean reward of the available ones. Thin:
    it has fewer than the minimum.
    """

    score: str
    bucket: str
    model: str
    available: int
    chosen: int
    thin: bool
    reward: float

    @property
    def name(self) -> str:
        return stratum_name((self.score, self.bucket, self.model))


@dataclass(frozen=True)
class Sampling:
    """The chosen ids in a shuffled order, the strata by name, how many of the chosen were judged
    before, and notes on what the choice could not satisfy."""

    ids: list[str]
    strata: list[Share]
    duplicates: int
    again: int
    notes: list[str]


def content_key(task: str, output: str) -> str:
    """Identifies an output to a task, in any evaluation: outputs with equal keys are the same to a
    reviewer.
    """
    return hashlib.sha256(f"{task}\0{output.strip()}".encode("utf-8", "surrogatepass")).hexdigest()


def score_band(candidate: Candidate) -> str:
    """passed; partial: some reward and no success; failed: nothing; penalised: less than
    nothing.
    """
    if candidate.success:
        return "passed"
    if candidate.reward > 0:
        return "partial"
    return "failed" if candidate.reward == 0 else "penalised"


def stratum_of(candidate: Candidate) -> Stratum:
    return score_band(candidate), candidate.bucket, candidate.model


def stratum_name(stratum: Stratum) -> str:
    return " · ".join(stratum)[:200]


def choose(
    candidates: Iterable[Candidate], size: int = 60, *, minimum: int = 2, seed: int = 0
) -> Sampling:
    """Up to `size` (50 to 100) candidates, from each stratum `minimum` where it has them, the rest
    in proportion.

    The same output to the same task is chosen once. What no one has judged goes first: in each
    stratum, and for all places beyond the minimum. The choice depends on seed and ids, not on the
    order given. Raises ValueError for a size out of range or a minimum below 0.
    """
    if not SMALLEST <= size <= LARGEST or minimum < 0:
        raise ValueError(f"a review has {SMALLEST} to {LARGEST} samples and a minimum of 0 or more")
    given = sorted(candidates, key=lambda item: item.id)
    distinct = _distinct(given)
    strata = _strata(distinct, seed)
    fresh = {name: sum(not item.judged for item in group) for name, group in strata.items()}
    quota = allot({name: len(group) for name, group in strata.items()}, size, minimum, fresh)
    chosen = [item for name, group in strata.items() for item in group[: quota[name]]]
    ids, again = [item.id for item in chosen], sum(item.judged for item in chosen)
    random.Random(seed).shuffle(ids)
    shares = [
        Share(
            *name,
            len(group),
            quota[name],
            len(group) < minimum,
            sum(item.reward for item in group) / len(group),
        )
        for name, group in strata.items()
    ]
    notes = [*_repeated(again, len(ids)), *_notes(shares, len(ids), size, minimum)]
    return Sampling(ids, shares, len(given) - len(distinct), again, notes)


def _distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    first: dict[str, Candidate] = {}
    for item in candidates:
        first.setdefault(content_key(item.task, item.output), item)
    return list(first.values())


def _strata(candidates: Sequence[Candidate], seed: int) -> dict[Stratum, list[Candidate]]:
    """By name; within one, fresh ones first, then in an order that depends only on seed and id."""
    groups: dict[Stratum, list[Candidate]] = defaultdict(list)
    for item in candidates:
        groups[stratum_of(item)].append(item)
    return {
        name: sorted(groups[name], key=lambda item: (item.judged, _lot(item.id, seed)))
        for name in sorted(groups)
    }


def _lot(identity: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\0{identity}".encode("utf-8", "surrogatepass")).digest()


def allot(
    available: dict[Stratum, int], size: int, minimum: int, fresh: dict[Stratum, int] | None = None
) -> dict[Stratum, int]:
    """How many from each stratum: the minimum in rounds, then the rest in proportion to what is
    left of `fresh` (everything by default), and only then to what else is left."""
    quota = dict.fromkeys(available, 0)
    for _ in range(minimum):
        for name in sorted(available, key=lambda name: (-available[name], name)):
            if sum(quota.values()) < size and quota[name] < available[name]:
                quota[name] += 1
    for stock in (fresh or available, available):
        left = {name: max(0, stock[name] - quota[name]) for name in available}
        more = _in_proportion(left, size - sum(quota.values()))
        quota = {name: quota[name] + more[name] for name in available}
    return quota


def _in_proportion(left: dict[Stratum, int], places: int) -> dict[Stratum, int]:
    """`places`, or all there are where they are fewer, by largest remainder."""
    rest = min(places, sum(left.values()))
    exact = {name: rest * count / (sum(left.values()) or 1) for name, count in left.items()}
    found = {name: int(share) for name, share in exact.items()}
    order = sorted(exact, key=lambda name: (-(exact[name] - found[name]), name))
    for name in order[: rest - sum(found.values())]:
        found[name] += 1
    return found


def _repeated(again: int, chosen: int) -> list[str]:
    if not again:
        return []
    was = "was" if again == 1 else "were"
    return [
        f"{again} of {chosen} {was} judged in an earlier review of this verifier, because there"
        " were too few others."
    ]


def _notes(shares: Sequence[Share], chosen: int, size: int, minimum: int) -> list[str]:
    notes = []
    if chosen < size:
        notes.append(f"There are only {chosen} distinct outputs; {size} were requested.")
    for item in shares:
        if item.thin:
            name = " · ".join(part for part in (item.score, item.bucket, item.model) if part)
            notes.append(f"{name}: {item.available} of at least {minimum}.")
    missed = sum(item.chosen < min(minimum, item.available) for item in shares)
    if missed:
        notes.append(
            f"{missed} strata got fewer samples than the minimum, because there are more strata"
            " than the sample size allows."
        )
    bands = {item.score for item in shares}
    for band, what in (("passed", "passes"), ("failed", "fails")):
        if not bands & ({band} if band == "passed" else {"failed", "penalised", "partial"}):
            notes.append(
                f"There is nothing that the verifier {what}: κ cannot be known from these samples."
            )
    return notes
