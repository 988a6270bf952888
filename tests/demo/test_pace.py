from __future__ import annotations

from io import StringIO

from rich.console import Console

from apps.demo.pace import Pace, in_words
from apps.demo.recipes import FAST, FULL
from apps.demo.wheel import Demo
from apps.promotion.gate.latency import FEWEST

STAGES: dict[str, tuple[dict[str, float], ...]] = {
    "a": ({"first": 4.0}, {"second": 6.0, "beside it": 5.0}),
    "b": ({"third": 20.0},),
    "c": ({"fourth": 30.0},),
}


def test_what_is_left_follows_how_fast_it_went_so_far() -> None:
    pace = Pace(STAGES)
    assert pace.left("a") == (10.0, 60.0)
    assert pace.stations("a") == {"first": 4.0, "second": 6.0, "beside it": 5.0}
    pace.taken["a"] = 20.0
    assert pace.left("b") == (40.0, 100.0)
    assert pace.stations("b") == {"third": 40.0}
    pace.taken["b"] = 40.0
    assert pace.left("c") == (60.0, 60.0)
    assert (in_words(2), in_words(43), in_words(100)) == ("5 s", "45 s", "2 min")


def test_each_station_says_how_long_it_will_take() -> None:
    said = StringIO()
    demo = Demo(url="", recipe=FAST, seed=0, console=Console(file=said, width=400))
    demo.pace = Pace(STAGES)
    with demo.stage("a"):
        pass
    assert said.getvalue().strip() == (
        "a: about 10 s (first 5 s, second 5 s, beside it 5 s); until the end: about 60 s"
    )
    assert list(demo.pace.taken) == ["a"]


def test_a_demo_is_expected_to_take_ten_minutes_and_a_fast_one_less() -> None:
    full, fast = Pace(FULL.stages).expected, Pace(FAST.stages).expected
    assert fast.keys() == full.keys()
    assert all(fast[stage] < full[stage] for stage in full)
    assert sum(full.values()) < 10 * 60


def test_latency_is_measured_on_as_many_tasks_as_the_gate_needs() -> None:
    assert min(FULL.timed_tasks, FAST.timed_tasks) >= FEWEST
