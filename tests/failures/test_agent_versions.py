"""The order of versions whose first runs are known by their hour."""

from __future__ import annotations

from datetime import UTC, datetime

from apps.failures.agent_versions import newest_first

HOURS = [datetime(2026, 11, 30, hour, tzinfo=UTC) for hour in (8, 9)]


def test_the_newest_first_run_comes_first_and_of_the_same_hour_the_higher_number() -> None:
    began = {("bank", "2"): 0, ("bank", "10"): 0, ("bank", "1"): 1, ("bank", "9-rc1"): 0}
    ordered = newest_first({key: HOURS[hour] for key, hour in began.items()})
    assert [one.version for one in ordered] == ["1", "10", "9-rc1", "2"]
