from __future__ import annotations

from statistics import mean, stdev

import pytest

from workers.lib.advantages import group_advantages, returns, turn_advantages, turn_components

CASES = {
    "a masked one gets none and does not count": (
        [1.0, None, 0.0],
        "group",
        [0.7070, 0.0, -0.7070],
    ),
    "no spread": ([0.1, 0.1, 0.1], "group", [0.0, 0.0, 0.0]),
    "one is known": ([1.0, None], "group", [0.0, 0.0]),
    "all are masked": ([None, None], "group", [0.0, 0.0]),
    "empty": ([], "group", []),
    "not scaled": ([3.0, 0.0, 0.0], "none", [2.0, -1.0, -1.0]),
}


@pytest.mark.parametrize("name", CASES)
def test_advantages_of_a_group(name: str) -> None:
    rewards, scale, expected = CASES[name]
    assert group_advantages(rewards, scale) == pytest.approx(expected, abs=1e-4)


def test_a_turns_return_is_what_was_earned_from_it_on() -> None:
    assert returns(1.0, turn_components([0.5, -0.25, 0.75]) | {"other": 9.0}, 3) == [1.0, 0.5, 0.75]


@pytest.mark.parametrize(
    ("reward", "earned", "turns"),
    [(0.5, [], 3), (0.5, [0.5], 3), (0.0, [1.0, 0.0, 0.0], 3), (1.0, [0.5, 0.25, 0.25, 0.0], 3)],
    ids=["none reported", "too few", "failed for a limit", "too many"],
)
def test_a_reward_without_turn_rewards_was_earned_at_the_end(
    reward: float, earned: list[float], turns: int
) -> None:
    assert returns(reward, turn_components(earned), turns) == [reward] * turns


@pytest.mark.parametrize("scale", ["group", "none"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_advantages_per_turn_compare_the_episodes_that_took_the_turn(
    scale: str, baseline: str
) -> None:
    """The formula written out for each number: (R_t - baseline of the others' R_t) / standard
    deviation of the R_t.
    """
    given = [[2.0, 1.0, 0.5], None, [1.0, 0.25], [0.0, 1.5, 1.5], [3.0]]
    found = turn_advantages(given, scale, baseline)
    assert [len(row) for row in found] == [3, 0, 2, 3, 1]
    for at, row in enumerate(found):
        for turn, advantage in enumerate(row):
            there = [one[turn] for one in given if one and len(one) > turn]
            mine = given[at][turn]
            rest = [*there]
            rest.remove(mine)
            by = stdev(there) + 1e-4 if scale == "group" else 1.0
            if scale == "group" and baseline == "leave_one_out":
                assert advantage == pytest.approx((mine - mean(rest)) / by)
            else:
                assert advantage == pytest.approx(
                    (mine - mean(there if baseline == "mean" else rest)) / by
                )


def test_a_turn_that_one_episode_took_has_no_advantage() -> None:
    assert turn_advantages([[1.0, 5.0], [0.0]], "none") == [[0.5, 0.0], [-0.5]]
    assert turn_advantages([None, None]) == [[], []] and turn_advantages([]) == []
