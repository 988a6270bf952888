from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.evals.stats import SampleRow, mean_interval, pass_at_k, summarise


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_success(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws))


def test_pass_at_k_needs_k_samples() -> None:
    with pytest.raises(ValueError, match="at least 9"):
        pass_at_k(8, 1, 9)


def test_the_interval_is_over_tasks_and_not_over_samples() -> None:
    """Eight equal samples of a task say no more than one."""
    once = summarise([SampleRow(task=str(i), reward=1.0, success=i % 2 == 0) for i in range(20)])
    often = summarise(
        [
            SampleRow(task=str(i), reward=1.0, success=i % 2 == 0)
            for i in range(20)
            for _ in range(8)
        ]
    )
    assert often["success"] == pytest.approx(once["success"])


def test_all_right_is_not_certainty() -> None:
    estimate = mean_interval([1.0] * 20, (0.0, 1.0))
    assert estimate.mean == 1.0 and 0.8 < estimate.low < 0.9 and estimate.high == pytest.approx(1.0)


def test_masked_samples_are_counted_and_not_scored() -> None:
    rows = [
        SampleRow(task="a", reward=1.0, success=True),
        SampleRow(task="a", reward=None, masked=True),
    ]
    metrics = summarise(rows)
    assert metrics["success"]["mean"] == 1.0
    assert metrics["counts"] == {
        "tasks": 1,
        "samples": 2,
        "masked": 1,
        "agent_errors": 0,
        "other_results": 0,
        "no_answer": 0,
        "called": 0,
        "lack_calls": 0,
        "tasks_need_calls": 0,
    }


def test_samples_without_an_answer_or_without_a_needed_call_are_counted() -> None:
    failed = {"reward": 0.0}
    rows = [
        SampleRow(task="a", **failed, no_answer=True, needs_calls=True),
        SampleRow(task="a", **failed, needs_calls=True),
        SampleRow(task="a", **failed, needs_calls=True),
        SampleRow(task="b", **failed, needs_calls=None),
        SampleRow(task="c", **failed, needs_calls=False),
        SampleRow(task="d", **failed, called=True, needs_calls=True),
        SampleRow(task="e", reward=1.0, success=True, needs_calls=True),
        SampleRow(task="f", reward=None, masked=True, needs_calls=True),
    ]
    counts = summarise(rows)["counts"]
    assert {name: counts[name] for name in ("no_answer", "called")} == {"no_answer": 1, "called": 1}
    assert (counts["lack_calls"], counts["tasks_need_calls"]) == (3, 1)


def test_nothing_gives_no_number() -> None:
    """Neither NaN nor infinity, which no JSON has: PostgreSQL would refuse the metrics and fail the
    evaluation.
    """
    assert summarise([])["success"]["mean"] is None
    for rows in (
        [SampleRow(task="a", reward=None, masked=True)],
        [SampleRow(task="a", reward=1.0)],
    ):
        json.dumps(summarise(rows), allow_nan=False)
    assert mean_interval([3.0]).high is None
