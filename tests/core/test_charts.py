from __future__ import annotations

from datetime import date
from itertools import pairwise

import pytest

from apps.core.charts import DAY_MS, bars, lines, shortened, time_range, unlike


@pytest.mark.parametrize(
    ("times", "unit", "expected"),
    [
        (
            ["2026-11-21T00:00:00+00:00"],
            "day",
            ["2026-11-14T12:00:00+00:00", "2026-11-21T12:00:00+00:00"],
        ),
        (
            [date(2026, 11, 1), date(2026, 11, 21)],
            "day",
            ["2026-10-31T12:00:00", "2026-11-21T12:00:00"],
        ),
        (["2026-11-21T09:00:00"], "hour", ["2026-11-21T02:30:00", "2026-11-21T09:30:00"]),
    ],
)
def test_an_axis_of_time_has_room_for_some_units(
    times: list, unit: str, expected: list[str]
) -> None:
    assert time_range(times, unit) == expected
    assert (
        bars({"n": (times, [1] * len(times))}, "n", unit=unit)["layout"]["xaxis"]["range"]
        == expected
    )


def test_bars_without_times_have_no_range() -> None:
    assert "range" not in bars({"n": ([], [])}, "n", unit="day")["layout"]["xaxis"]
    assert "range" not in bars({"n": (["a", "b"], [1, 2])}, "n")["layout"]["xaxis"]


@pytest.mark.parametrize(
    ("times", "days", "expected"),
    [
        (
            ["2026-11-20T00:00:00+00:00", "2026-11-23T00:00:00+00:00"],
            1,
            ["2026-11-16T12:00:00", "2026-11-23T12:00:00"],
        ),
        (
            [date(2026, 11, 1), date(2026, 11, 2), date(2026, 11, 30)],
            5,
            ["2026-10-31T12:00:00", "2026-11-30T12:00:00"],
        ),
        (["2026-11-02", "2026-11-09"], 7, ["2026-09-24T12:00:00", "2026-11-12T12:00:00"]),
    ],
)
def test_lines_of_days_have_ticks_of_whole_days_and_begin_where_bars_do(
    times: list, days: int, expected: list[str]
) -> None:
    axis = lines({"n": (times, [1] * len(times))}, "n")["layout"]["xaxis"]
    assert (axis["dtick"], axis["range"]) == (days * DAY_MS, expected)


@pytest.mark.parametrize(
    "times", [[], [1, 2], ["2026-11-20T00:00:00", "2026-11-20T01:00:00"], ["a", "b"]]
)
def test_other_lines_choose_their_ticks(times: list) -> None:
    assert "dtick" not in lines({"n": (times, [1] * len(times))}, "n")["layout"]["xaxis"]


def test_a_chart_of_few_has_no_ticks_of_halves() -> None:
    assert bars({"n": (["a"], [1])}, "n")["layout"]["yaxis"]["dtick"] == 1
    assert "dtick" not in bars({"n": (["a"], [1.5])}, "n")["layout"]["yaxis"]
    assert "dtick" not in bars({"n": (["a"], [50])}, "n")["layout"]["yaxis"]


def test_bars_of_one_time_stand_side_by_side() -> None:
    """The smaller ones were hidden behind the last."""
    at = ["2026-11-01T10:00:00+00:00"]
    drawn = bars(
        {"p50": (at, [100]), "p95": (at, [300]), "p99": (at, [900])}, "Latency", unit="hour"
    )["data"]
    ends = [(trace["offset"], trace["offset"] + trace["width"]) for trace in drawn]
    assert all(one[1] <= other[0] + 1 for one, other in pairwise(ends))
    assert ends[0][0] == pytest.approx(-ends[-1][1])
    assert (
        "offset"
        not in bars({"a": (at, [1]), "b": (at, [2])}, "Runs", unit="hour", stacked=True)["data"][0]
    )


def test_a_long_name_loses_its_middle_and_names_that_are_still_alike_are_numbered() -> None:
    names = [f"support-agent-of-the-web-shop-2026-11-{day}" for day in (28, 29)]
    short = [shortened(name) for name in names]
    assert (
        [len(name) for name in short] == [28, 28]
        and short[0].endswith("-11-28")
        and short[1].endswith("-11-29")
    )
    assert shortened("short") == "short"
    assert unlike(["a", "b", "a"]) == ["a", "b", "a (2)"]
