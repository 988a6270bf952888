from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.failures.clusters.cases import Case
from apps.failures.clusters.life import (
    LEGAL,
    STATES,
    Fix,
    IllegalMove,
    State,
    UnclearVersion,
    after_news,
    fix_version,
    moved,
    newest_against,
)

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
states = st.sampled_from(STATES)
times = st.none() | st.datetimes(timezones=st.just(UTC))


@given(states, states)
def test_a_move_is_made_or_refused_with_its_choices(state: State, to: State) -> None:
    if to in LEGAL[state]:
        assert moved(state, to) == to
    else:
        with pytest.raises(IllegalMove, match=state):
            moved(state, to)


@given(states, times, times)
def test_only_a_fixed_group_is_reopened_and_only_by_a_failure_after_the_fix(
    state: State, fixed_at: datetime | None, newest: datetime | None
) -> None:
    found = after_news(state, fixed_at, newest)
    if found != state:
        assert (state, found) == ("fixed", "reopened") and found in LEGAL[state]
    came_back = fixed_at is not None and newest is not None and newest > fixed_at
    assert (found == "reopened") == (state == "reopened" or (state == "fixed" and came_back))
    assert after_news(found, fixed_at, newest) == found


@given(st.lists(st.tuples(st.sampled_from([*STATES, "news"]), st.integers(-5, 5)), max_size=30))
def test_a_life_never_leaves_the_legal_ways(steps: list[tuple[str, int]]) -> None:
    life: list[State] = ["new"]
    for step, hours in steps:
        if step == "news":
            state = after_news(life[-1], NOON, NOON + timedelta(hours=hours))
        else:
            try:
                state = moved(life[-1], step)
            except IllegalMove:
                continue
        if state != life[-1]:
            life.append(state)
    assert all(to in LEGAL[state] for state, to in pairwise(life))
    assert all(
        life[place - 1] == "fixed" for place, state in enumerate(life) if state == "reopened"
    )
    assert "new" not in life[1:]


def seen(version: str, hours: int) -> Case:
    return Case("1", "m", version=version, started_at=NOON + timedelta(hours=hours))


FIRST_SEEN = {
    "v1": NOON - timedelta(days=9),
    "v2": NOON - timedelta(days=1),
    "v3": NOON + timedelta(hours=1),
}


@pytest.mark.parametrize(
    ("case", "counts"),
    [
        pytest.param(seen("v2", 1), True, id="the version that should have fixed it"),
        pytest.param(seen("v3", 2), True, id="a later version"),
        pytest.param(seen("v1", 1), False, id="an old version still in service"),
        pytest.param(seen("v2", -1), False, id="before the fix was said"),
        pytest.param(seen("v2", 0), False, id="at the very moment"),
        pytest.param(seen("v9", 1), True, id="a version never seen"),
        pytest.param(seen("", 1), True, id="no version"),
        pytest.param(Case("1", "m", version="v2"), False, id="no time"),
    ],
)
def test_what_speaks_against_a_fix(case: Case, counts: bool) -> None:
    assert newest_against(Fix("v2", NOON), [case], FIRST_SEEN) == (
        case.started_at if counts else None
    )


def test_the_newest_counts_and_an_unknown_fixing_version_makes_all_count() -> None:
    cases = [seen("v1", 3), seen("v2", 1), seen("v3", 2)]
    assert newest_against(Fix("v2", NOON), cases, FIRST_SEEN) == NOON + timedelta(hours=2)
    assert newest_against(Fix("v0", NOON), cases, FIRST_SEEN) == NOON + timedelta(hours=3)
    assert newest_against(Fix("v2", NOON), [], FIRST_SEEN) is None


@pytest.mark.parametrize(
    ("text", "agents", "known", "name"),
    [
        ("2", {"shop"}, {"shop 1"}, "shop 2"),  # as the API names it, not yet seen
        ("shop 2", {"shop"}, {"shop 1"}, "shop 2"),
        ("2", {"shop"}, {"shop 1", "shop 2", "mail 2"}, "shop 2"),
        ("2026-11 rc", {"shop"}, set(), "shop 2026-11 rc"),
        ("2", {"shop", "mail"}, {"shop 2", "mail 1"}, "shop 2"),
        ("mail 3", {"shop"}, {"mail 3"}, "mail 3"),
        ("shop assistant 2", {"shop assistant"}, set(), "shop assistant 2"),
        ("2", {""}, {"1"}, "2"),  # runs without the agent's name
    ],
)
def test_the_version_of_a_fix_is_named_as_its_runs_will_be(
    text: str, agents: set, known: set, name: str
) -> None:
    assert fix_version(text, agents, known) == name


def test_a_version_that_several_agents_could_have_is_asked_for() -> None:
    with pytest.raises(UnclearVersion, match="mail 2, shop 2"):
        fix_version("2", {"shop", "mail"}, {"shop 1", "mail 1"})
