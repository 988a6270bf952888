"""What is said about a run at its end: whether it is better than at its start, as good as at its
best, and better on what it did not train on.
"""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest

from workers.lib.alarms import AlarmSettings, Watchman
from workers.lib.run_outcome import MOST_BLOCKS, Course, change, lost_share, rose
from workers.lib.typed import convert


def course(values: list[float]) -> Course:
    made = Course()
    for value in values:
        made.add(value)
    return made


def shares(draw: random.Random, levels: list[float], rollouts: int = 32) -> list[float]:
    """Mean rewards of steps whose rollouts are right with these probabilities."""
    return [sum(draw.random() < level for _ in range(rollouts)) / rollouts for level in levels]


def ramp(begin: float, end: float, n: int) -> list[float]:
    return [begin + (end - begin) * at / (n - 1) for at in range(n)]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("steps", [12, 40, 300])
def test_a_reward_that_is_chance_is_hardly_ever_said_to_rise(steps: int) -> None:
    draw = random.Random(steps)
    runs = [change(course(shares(draw, [0.5] * steps)), up=True) for _ in range(400)]
    assert sum(rose(run) for run in runs if run) <= 0.04 * len(runs)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    "levels",
    [
        ramp(0.2, 0.4, 40),
        ramp(0.1, 0.9, 12),
        [0.2] * 5 + [0.4] * 295,  # learned at once
        [0.2] * 150 + ramp(0.2, 0.3, 150),  # learned late
        [0.3] * 250 + ramp(0.3, 0.6, 750),
    ],
)
def test_a_reward_that_rises_is_seen_to_rise(levels: list[float]) -> None:
    draw = random.Random(7)
    runs = [change(course(shares(draw, levels)), up=True) for _ in range(40)]
    assert sum(rose(run) for run in runs if run) >= 36


def test_a_course_keeps_a_whole_run_in_bounded_memory() -> None:
    values = [float(at) for at in range(5000)]
    kept = course(values)
    assert kept.first == values[:5] and len(kept.blocks) < MOST_BLOCKS and kept.steps == 5000
    assert all(after > before for before, after in pairwise(kept.blocks))
    again = Course.restored(json.loads(json.dumps(kept.state())))
    for one in (kept, again):
        one.add(1.0)
    assert again == kept


@pytest.mark.parametrize(
    ("values", "lost"),
    [
        (ramp(4.0, 1.0, 40), False),
        (ramp(4.0, 1.0, 30) + [3.5] * 10, True),
        (ramp(4.0, 1.0, 30) + [1.6] * 10, False),  # less than half of it
        ([4.0 + 0.1 * (at % 2) for at in range(40)], False),  # nothing to lose
    ],
)
def test_what_was_won_and_lost_again(values: list[float], lost: bool) -> None:
    assert ((lost_share(course(values), up=False, least=0.01) or 0.0) > 0.5) is lost
    assert ((lost_share(course([-one for one in values]), up=True, least=0.01) or 0.0) > 0.5) is (
        lost
    )


def steps_of(name: str, values: list[float]) -> list[dict[str, float]]:
    return [{f"train/{name}": value} for value in values]


def held(loss: float) -> list[dict[str, float]]:
    return [{"validation/loss": loss}]


def solved(*pairs: tuple[float, int]) -> list[dict[str, float]]:
    return [{"validation/success": share, "validation/samples": n} for share, n in pairs]


def noisy(level: float, n: int = 10) -> list[float]:
    return [level + (0.05 if at % 2 else -0.05) for at in range(n)]


FALLS, RISES = ramp(4.0, 1.0, 30), ramp(0.1, 0.6, 30)
NOTHING_HELD = "does not show whether it helps with anything that it did not train on"


@pytest.mark.parametrize(
    ("method", "series", "alarms", "text"),
    [
        ("sft", steps_of("loss", FALLS), [], NOTHING_HELD),
        ("grpo", steps_of("reward_mean", RISES), [], NOTHING_HELD),
        ("sft", steps_of("loss", noisy(2.0, 20)), ["no_learning"], "a fall is not shown"),
        ("grpo", steps_of("reward_mean", noisy(0.5, 20)), ["no_progress"], "a rise is not shown"),
        ("grpo", steps_of("reward_mean", RISES[::-1]), ["no_progress"], "it has fallen"),
        ("sft", steps_of("loss", [*FALLS, *[3.5] * 10]), ["lost_gain"], "are gone again"),
        # on the way back from an explosion, but still worse than before training
        ("on_policy", steps_of("loss", [1.4, *ramp(6.0, 3.0, 29)]), ["no_learning"], "has risen"),
        (
            "dpo",
            [*held(0.69), *steps_of("loss", FALLS), *held(0.695)],
            ["validation_loss"],
            "0.69 before training, 0.695 at the end: not lower",
        ),
        ("dpo", [*held(0.69), *steps_of("loss", FALLS), *held(0.4)], [], "0.4 at the end."),
        (
            "sft",
            [*held(4.0), *held(2.0), *steps_of("loss", FALLS), *held(3.6)],
            ["lost_gain"],
            "80% of the best improvement of the loss on held-back rows are gone again",
        ),
        (
            "grpo",
            [*solved((0.0, 32)), *steps_of("reward_mean", RISES), *solved((0.0, 32), (0.0, 32))],
            ["validation_drop"],
            "0% before training, 0% at the end",
        ),
        (
            "grpo",
            [*solved((0.4, 32)), *steps_of("reward_mean", RISES), *solved((0.5, 32), (0.5, 32))],
            [],
            "a rise is not shown",
        ),
        (
            "grpo",
            [*solved((0.2, 32)), *steps_of("reward_mean", RISES), *solved((0.6, 32), (0.7, 32))],
            [],
            "20% before training, 65% at the end (+45 points",
        ),
        # a student that becomes like its teacher, and worse at its tasks
        (
            "on_policy",
            [
                {"train/loss": loss, "train/reward_mean": reward}
                for loss, reward in zip(FALLS, RISES[::-1], strict=True)
            ],
            ["reward_lost"],
            "it has fallen",
        ),
    ],
)
def test_what_a_run_has_achieved(
    method: str, series: list[dict[str, float]], alarms: list[str], text: str
) -> None:
    watchman = Watchman(None, method)
    for step, metrics in enumerate(series):
        watchman.look(step, metrics)
    resumed = Watchman(None, method, json.loads(json.dumps(watchman.state())))
    assert resumed.outcome() == watchman.outcome()
    assert text in " ".join(sentence.text for sentence in watchman.outcome())
    assert [alarm.name for alarm in watchman.at_end(len(series))] == alarms
    assert [alarm.action for alarm in resumed.at_end(len(series))] == ["warn"] * len(alarms)


def test_a_run_may_ignore_what_is_said_at_its_end() -> None:
    settings: Any = convert({"no_progress": {"action": "ignore"}}, AlarmSettings)
    watchman = Watchman(settings, "grpo")
    for step, metrics in enumerate(steps_of("reward_mean", noisy(0.5, 20))):
        watchman.look(step, metrics)
    assert watchman.at_end(20) == []


def test_a_run_too_short_to_compare_says_so() -> None:
    watchman = Watchman(None, "sft")
    watchman.look(1, {"train/loss": 2.0})
    assert "Too few steps" in watchman.outcome()[0].text and watchman.at_end(1) == []
    assert "Too few steps had a reward" in Watchman(None, "grpo").outcome()[0].text
