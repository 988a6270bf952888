from __future__ import annotations

import random

import pytest

from apps.evals.learnability.signal import TaskView, learnability, pick, signal_chance
from apps.evals.stats import SampleRow


def rows(task: str, passed: int, n: int = 8, failed_reward: float = 0.0) -> list[SampleRow]:
    return [SampleRow(task, 1.0, success=True)] * passed + [SampleRow(task, failed_reward)] * (
        n - passed
    )


MIXED = [row for i in range(42) for row in rows(f"mixed {i}", 1 + i % 7)]
SURE = [row for i in range(60) for row in rows(f"sure {i}", 8)]
HARD = [row for i in range(48) for row in rows(f"hard {i}", 0)]


def test_it_says_from_how_many_tasks_rl_will_learn() -> None:
    found = learnability(MIXED + SURE + HARD)
    assert found.sentence == "RL can learn from 42 of 150 tasks."
    assert found.counts == {"mixed": 42, "all_pass": 60, "all_fail": 48}
    assert found.shares["all_fail"] == pytest.approx(
        0.32
    ) and found.zero_variance_share == pytest.approx(108 / 150)
    assert found.pass_at[8] == pytest.approx(102 / 150) and found.pass_at[1] == pytest.approx(
        (60 + 21) / 150
    )


def test_partial_credit_is_a_signal_where_nothing_passes() -> None:
    partial = [SampleRow("a", 0.4), SampleRow("a", 0.8), SampleRow("a", 0.4), SampleRow("a", 0.8)]
    found = learnability(partial + rows("b", 0, 4))
    assert found.counts["all_fail"] == 2 and found.zero_variance == 1
    assert (
        found.tasks[0].spread == pytest.approx(0.2)
        and found.sentence == "RL can learn from 1 of 2 tasks."
    )


def test_masked_samples_say_nothing() -> None:
    found = learnability(
        [*rows("a", 4), SampleRow("a", None, masked=True), SampleRow("b", None, masked=True)]
    )
    assert [item.n for item in found.tasks] == [8] and found.unscored == 1


@pytest.mark.parametrize(
    ("given", "sentence"), [([], "No task has a scored"), (rows("a", 1, 1), "One sample per task")]
)
def test_too_little_is_said(given: list[SampleRow], sentence: str) -> None:
    assert learnability(given).sentence.startswith(sentence)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(("passed", "n", "size"), [(0, 8, 8), (3, 8, 4), (8, 8, 16), (0, 0, 2)])
def test_the_chance_of_a_signal_is_that_of_draws(passed: int, n: int, size: int) -> None:
    rng = random.Random(1)
    draws = [rng.betavariate(0.5 + passed, 0.5 + n - passed) for _ in range(60_000)]
    simulated = sum(1 - p**size - (1 - p) ** size for p in draws) / len(draws)
    assert signal_chance(passed, n, size) == pytest.approx(simulated, abs=0.005)


def test_with_many_samples_the_chance_is_that_of_a_known_rate() -> None:
    assert signal_chance(250_000, 1_000_000, 8) == pytest.approx(1 - 0.25**8 - 0.75**8, abs=1e-4)
    with pytest.raises(ValueError, match="9 successes of 8"):
        signal_chance(9, 8, 4)
    with pytest.raises(ValueError, match="at least 2"):
        learnability(MIXED, group_size=1)


def view(task: str, passed: int, spread: float = 0.5, group: str = "", n: int = 8) -> TaskView:
    return TaskView(task, n, passed, passed / 8, spread, group)


def test_tasks_are_picked_mixed_first_and_near_a_half() -> None:
    tasks = [
        view("rare", 1),
        view("half", 4, group="g"),
        view("near", 5, group="g"),
        view("third", 3, group="g"),
        view("sure", 8, 0.0),
        view("hard", 0, 0.0),
        view("partial", 0, 0.2),
        view("flat", 4, 0.0),
        view("once", 1, n=1),
    ]
    found = pick(tasks, per_group=2)
    assert found.chosen == ["half", "near", "rare", "partial"]
    assert found.left_out.keys() | set(found.chosen) == {item.task for item in tasks}
    assert found.left_out["third"] == "2 tasks of the group g are already picked"
    assert (
        "nothing left to learn" in found.left_out["sure"]
        and "no reward signal" in found.left_out["hard"]
    )
    assert "same reward" in found.left_out["flat"] and "single sample" in found.left_out["once"]
    assert pick(tasks, per_group=2, partial=False).chosen == ["half", "near", "rare"]
    assert pick(tasks, size=2).left_out["rare"] == "2 better ones are already picked"
