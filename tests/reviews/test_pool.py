"""How right a verifier is on all outputs, from the few that people judged: the interval covers the
truth, and strata that are sampled more often do not count for more.
"""

from __future__ import annotations

import random

import pytest

from apps.reviews.pool import Pool, Sample, Scores, on_all
from apps.reviews.sampling import Candidate, choose, stratum_name, stratum_of
from tests.amounts import amount

pytestmark = pytest.mark.more
# (kind of output, share of the pool, reward, passed, how often people call it a success)
FEW_WRONG = [
    ("success", 0.6, (1.0,), True, 0.97),
    ("wrong arguments", 0.3, (0.0, 0.3), False, 0.05),
    ("unsafe", 0.02, (-1.0,), False, 0.5),
    ("invalid", 0.08, (0.0,), False, 0.0),
]
MANY_WRONG = [
    ("success", 0.45, (1.0, 0.8), True, 0.7),
    ("wrong arguments", 0.5, (0.0, 0.2, 0.6), False, 0.35),
    ("unsafe", 0.01, (-1.0,), False, 0.9),
    ("invalid", 0.04, (0.0,), False, 0.0),
]


def reviewed(kinds: list, seed: int, size: int, judged: float) -> tuple[Pool, float, float]:
    """A pool of 600 outputs of two models, of which a review's samples are judged in part; with the
    true accuracy and share of false positives.
    """
    chance = random.Random(seed)
    candidates, people = [], {}
    for n in range(600):
        kind = chance.choices(kinds, [share for _, share, *_ in kinds])[0]
        bucket, _, rewards, passed, success = kind
        reward, model = chance.choice(rewards), chance.choice(["a", "b"])
        name = f"{seed}-{n}"
        candidates.append(Candidate(name, name, name, reward, passed, bucket, model))
        surer = 0.15 * (reward - sum(rewards) / len(rewards))  # the reward says something
        people[name] = chance.random() < min(1, max(0, success + surer))
    drawn = choose(candidates, size, seed=seed)
    by_id = {item.id: item for item in candidates}
    samples = [
        Sample(stratum_name(stratum_of(item)), item.success, item.reward, people[item.id])
        for item in (by_id[name] for name in drawn.ids[: int(judged * size)])
    ]
    right = sum(people[item.id] == item.success for item in candidates)
    bad = [item for item in candidates if not people[item.id]]
    rewarded = sum(item.success for item in bad) / len(bad)
    return on_all([Scores.of(share) for share in drawn.strata], samples), right / 600, rewarded


@pytest.mark.more(rows=3)
@pytest.mark.parametrize("judged", [1.0, 0.6])
@pytest.mark.parametrize("kinds", [FEW_WRONG, MANY_WRONG], ids=["few wrong", "many wrong"])
@pytest.mark.parametrize("size", [50, 100])
def test_the_intervals_cover_the_whole_pool(kinds: list, size: int, judged: float) -> None:
    many, accuracy_in, positive_in, off = amount(60, 500), 0, 0, 0.0
    for seed in range(many):
        found, accuracy, positive = reviewed(kinds, seed, size, judged)
        assert found.accuracy and found.false_positive
        accuracy_in += found.accuracy.low <= accuracy <= found.accuracy.high
        positive_in += found.false_positive.low <= positive <= found.false_positive.high
        off += found.accuracy.value - accuracy
    least = 0.95 - 3 * (0.95 * 0.05 / many) ** 0.5
    print(f"accuracy covered {accuracy_in}, false positives {positive_in} of {many}")
    assert accuracy_in / many >= least and positive_in / many >= least
    assert abs(off / many) < 0.02


def test_a_sample_counts_for_as_many_outputs_as_it_represents() -> None:
    """Of 100 passed outputs ten samples are right; all of two rare ones are wrong."""
    scores = [Scores("common", 100, 1.0, True), Scores("rare", 2, 1.0, True)]
    scores += [Scores("failed", 98, 0.0, False)]
    samples = [Sample("common", True, 1.0, True)] * 10 + [Sample("rare", True, 1.0, False)] * 2
    samples += [Sample("failed", False, 0.0, False)] * 10
    found = on_all(scores, samples)
    assert (found.outputs, found.judged) == (200, 22) and found.accuracy and found.false_positive
    assert found.accuracy.value == pytest.approx(1 - 2 / 200)
    assert found.false_positive.value == pytest.approx(2 / 100)


def test_what_waits_for_a_ruling_counts_as_either() -> None:
    scores = [Scores("p", 100, 1.0, True), Scores("f", 100, 0.0, False)]
    sure = [Sample("p", True, 1.0, True)] * 20 + [Sample("f", False, 0.0, False)] * 20
    without, found = on_all(scores, sure), on_all(scores, [*sure, Sample("p", True, 1.0, None)])
    assert found.accuracy and without.accuracy and found.accuracy.low < without.accuracy.low
    assert found.accuracy.value == without.accuracy.value == 1.0
    assert on_all(scores, []).accuracy is None
