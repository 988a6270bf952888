"""How much a key may ask, second by second."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.serving.limits import Exceeded, Limits, Meter


def allowed(meter: Meter, limits: Limits, now: float) -> float:
    """0 where it is allowed, else the seconds to wait."""
    try:
        meter.begin(limits, now)
    except Exceeded as error:
        return error.wait_s
    return 0


@pytest.mark.parametrize(
    ("limits", "asked", "waits"),
    [
        (Limits(), [(0, 9)] * 3, [0, 0, 0]),
        (
            Limits(requests=2),
            [(0, 0), (0, 0), (0, 0), (29, 0), (30, 0), (31, 0)],
            [0, 0, 30, 1, 0, 29],
        ),
        (Limits(requests=60), [(0, 0)] * 60 + [(0, 0), (1, 0), (1, 0)], [0] * 60 + [1, 0, 1]),
        (Limits(tokens=60), [(0, 50), (0, 30), (0, 0), (20, 0), (21, 0)], [0, 0, 21, 1, 0]),
        (Limits(tokens=60), [(0, 600), (60, 0), (540, 0), (541, 0)], [0, 481, 1, 0]),
        (Limits(requests=1, tokens=60), [(0, 120), (59, 0), (60, 0), (61, 0)], [0, 2, 1, 0]),
    ],
)
def test_what_is_asked_at_which_second_waits_so_long(
    limits: Limits, asked: list[tuple[float, int]], waits: list[float]
) -> None:
    """`asked`: when, and the tokens that the answer took."""
    meter, found = Meter(0), []
    for now, tokens in asked:
        found.append(allowed(meter, limits, now))
        if not found[-1]:
            meter.end(tokens)
    assert found == waits and meter.open == 0


def test_answers_at_a_time() -> None:
    meter, limits = Meter(0), Limits(at_once=2)
    assert [allowed(meter, limits, 0) for _ in range(3)] == [0, 0, 1]
    meter.end(0)
    assert allowed(meter, limits, 0) == 0 and meter.open == 2


def test_a_changed_limit_holds_at_once() -> None:
    meter = Meter(0)
    assert [allowed(meter, Limits(requests=2), 0) for _ in range(2)] == [0, 0]
    assert (
        allowed(meter, Limits(requests=3), 0) == 0 and allowed(meter, Limits(requests=3), 0) == 20
    )
    assert allowed(meter, Limits(requests=1), 0) > 60 and allowed(meter, Limits(), 0) == 0


@pytest.mark.parametrize("before", [Limits(), Limits(requests=5_000, tokens=10**7)])
def test_a_new_limit_does_not_lock_out_a_key_for_what_it_did_before(before: Limits) -> None:
    meter = Meter(0)
    for _ in range(4_000):
        assert allowed(meter, before, 0) == 0
        meter.end(2_000)
    assert allowed(meter, Limits(requests=3, tokens=1_000), 0) <= 80
    assert allowed(meter, Limits(requests=3, tokens=1_000), 80) == 0


def test_headers_say_what_is_left() -> None:
    meter, limits = Meter(0), Limits(requests=10, tokens=1000)
    meter.begin(limits, 0)
    meter.end(1_500)
    assert meter.headers(limits) == [
        (b"x-ratelimit-limit-requests", b"10"),
        (b"x-ratelimit-remaining-requests", b"9"),
        (b"x-ratelimit-limit-tokens", b"1000"),
        (b"x-ratelimit-remaining-tokens", b"0"),
    ]
    assert meter.headers(Limits(at_once=1)) == []


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 500), st.lists(st.floats(0, 30), max_size=200))
def test_no_minute_has_more_than_two_minutes_worth(most: int, gaps: list[float]) -> None:
    """A full bucket, and what is refilled meanwhile; and whoever waits as long as was said is let
    in.
    """
    meter, limits, now, times = Meter(0), Limits(requests=most), 0.0, []
    for gap in gaps:
        now += gap
        if wait := allowed(meter, limits, now):
            now += wait
            assert not allowed(meter, limits, now)
        times.append(now)
    for begin in times:
        assert sum(begin <= at < begin + 60 for at in times) <= 2 * most


@pytest.mark.parametrize(
    ("whole", "processes", "part"),
    [
        (Limits(60, 1000, 4), 1, Limits(60, 1000, 4)),
        (Limits(60, 1000, 5), 2, Limits(30, 500, 2)),
        (Limits(1, 0, 1), 4, Limits(1, 0, 1)),
    ],
)
def test_several_processes_allow_a_part_each(whole: Limits, processes: int, part: Limits) -> None:
    assert whole.part(processes) == part
