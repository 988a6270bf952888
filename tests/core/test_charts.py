from __future__ import annotations

from datetime import date

import pytest

from apps.core.charts import bars, time_range


@pytest.mark.parametrize(
    ("times", "unit", "expected"),
    [
        (["2026-11-21T00:00:00+00:00"], "day", ["2026-11-14T12:00:00+00:00", "2026-11-21T12:00:00+00:00"]),
        ([date(2026, 11, 1), date(2026, 11, 21)], "day", ["2026-10-31T12:00:00", "2026-11-21T12:00:00"]),
        (["2026-11-21T09:00:00"], "hour", ["2026-11-21T02:30:00", "2026-11-21T09:30:00"]),
    ],
)
def test_an_axis_of_time_has_room_for_some_units(times: list, unit: str, expected: list[str]) -> None:
    assert time_range(times, unit) == expected
    assert bars({"n": (times, [1] * len(times))}, "n", unit=unit)["layout"]["xaxis"]["range"] == expected


def test_bars_without_times_have_no_range() -> None:
    assert "range" not in bars({"n": ([], [])}, "n", unit="day")["layout"]["xaxis"]
    assert "range" not in bars({"n": (["a", "b"], [1, 2])}, "n")["layout"]["xaxis"]
