from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.evals.stats import SampleRow
from apps.promotion.gate import Evaluation, NotComparable, compare


def evaluation(
    successes: list[int], samples: int = 8, unsafe: int = 0, latency: float = 100.0, **changes
) -> Evaluation:
    """One task for each number: how many of its samples succeed. `unsafe` samples of every task are unsafe."""
    rows = [
        SampleRow(
            task=f"t{task}",
            reward=1.0 if index < count else -1.0,
            success=index < count,
            unsafe=index >= samples - unsafe,
            latency_ms=latency,
            input_tokens=100,
            output_tokens=20,
        )
        for task, count in enumerate(successes)
        for index in range(samples)
    ]
    fields = {
        "model": "m", "eval_set_digest": "s", "environment_hash": "e", "verifier_hash": "v", "samples_per_task": samples
    }  # fmt: skip
    return Evaluation(**(fields | changes), rows=rows)


LOW, HIGH = [2, 3, 1, 2] * 10, [6, 7, 5, 8] * 10


@pytest.mark.parametrize(
    ("baseline", "candidate", "verdict"),
    [
        pytest.param(evaluation(LOW), evaluation(HIGH), "promote", id="better"),
        pytest.param(evaluation(HIGH), evaluation(LOW), "reject", id="worse"),
        pytest.param(evaluation(LOW), evaluation(LOW), "inconclusive", id="the same"),
        pytest.param(evaluation(LOW[:8]), evaluation(HIGH[:8]), "inconclusive", id="too few tasks"),
        pytest.param(evaluation(LOW), evaluation(HIGH, unsafe=2), "reject", id="better but unsafe"),
        pytest.param(evaluation(LOW, unsafe=2), evaluation(HIGH), "promote", id="better and safer"),
        pytest.param(evaluation(LOW), evaluation(HIGH, latency=300), "reject", id="better but slow"),
        pytest.param(evaluation([8] * 6 + LOW), evaluation([0] * 6 + HIGH), "reject", id="better but regressed"),
    ],
)
def test_verdicts(baseline: Evaluation, candidate: Evaluation, verdict: str) -> None:
    report = compare(baseline, candidate)
    assert report.verdict == verdict, report.summary


def test_it_names_the_tasks_that_regressed_and_improved() -> None:
    report = compare(evaluation([8, 0, 4] * 12), evaluation([0, 8, 4] * 12))
    assert report.regressed == sorted(f"t{i}" for i in range(0, 36, 3))
    assert report.improved == sorted(f"t{i}" for i in range(1, 36, 3))


@pytest.mark.parametrize("field", ["eval_set_digest", "environment_hash", "verifier_hash"])
def test_it_refuses_evaluations_that_differ(field: str) -> None:
    with pytest.raises(NotComparable):
        compare(evaluation(LOW), evaluation(HIGH, **{field: "other"}))


def test_it_refuses_different_tasks() -> None:
    with pytest.raises(NotComparable):
        compare(evaluation(LOW), evaluation([*HIGH, 3]))


counts = st.lists(st.integers(0, 8), min_size=2, max_size=60)


@given(counts)
def test_nothing_is_better_than_itself(successes: list[int]) -> None:
    same = evaluation(successes)
    assert compare(same, same).verdict == "inconclusive"


@given(st.data(), counts)
def test_promotion_and_its_reverse_are_never_both_allowed(data: st.DataObject, successes: list[int]) -> None:
    other = data.draw(st.lists(st.integers(0, 8), min_size=len(successes), max_size=len(successes)))
    there = compare(evaluation(successes), evaluation(other)).verdict
    back = compare(evaluation(other), evaluation(successes)).verdict
    assert not (there == "promote" and back == "promote")
