from __future__ import annotations

from apps.demo.pace import Pace, in_words
from apps.demo.recipes import FAST, FULL


def test_what_is_left_follows_how_fast_it_went_so_far() -> None:
    pace = Pace({"a": 10.0, "b": 20.0, "c": 30.0})
    assert pace.left("a") == (10.0, 60.0)
    pace.taken["a"] = 20.0
    assert pace.left("b") == (40.0, 100.0)
    pace.taken["b"] = 40.0
    assert pace.left("c") == (60.0, 60.0)
    assert (in_words(2), in_words(43), in_words(100)) == ("5 s", "45 s", "2 min")


def test_a_fast_demo_is_expected_to_take_less() -> None:
    assert FAST.expected.keys() == FULL.expected.keys()
    assert all(FAST.expected[stage] < FULL.expected[stage] for stage in FULL.expected)
