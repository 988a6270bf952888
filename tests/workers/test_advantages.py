from __future__ import annotations

import pytest

from workers.lib.advantages import group_advantages

CASES = {
    "a masked one gets none and does not count": ([1.0, None, 0.0], "group", [0.7070, 0.0, -0.7070]),
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
