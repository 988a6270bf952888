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
    known_as,
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
        ("  shop   2 ", {"shop"}, {"shop 2"}, "shop 2"),
        (" 2 ", {"shop"}, {"shop 1"}, "shop 2"),
        ("shop@2", {"shop"}, {"shop 2"}, "shop 2"),
        ("shop-2", {"shop"}, {"shop 1", "shop 2"}, "shop 2"),
        ("shop:v2", {"shop"}, {"shop 2"}, "shop 2"),
        ("SHOP/2", {"shop"}, {"shop 2"}, "shop 2"),
        ("shop2", {"shop"}, {"shop 2"}, "shop 2"),
        ("Version 2", {"shop"}, {"shop v2"}, "shop v2"),
        ("versión 2.1", {"shop"}, {"shop 2.1", "shop 21"}, "shop 2.1"),
        ("v 2", {"shop"}, {"shop 2", "shop 2.0"}, "shop 2"),
        ("#2", {"shop"}, {"shop 2"}, "shop 2"),
        ("２", {"shop"}, {"shop 2"}, "shop 2"),
        ("2", {"Shop_Bot"}, {"Shop_Bot v2"}, "Shop_Bot v2"),
        ("shop bot 2", {"Shop_Bot"}, {"Shop_Bot 1"}, "Shop_Bot 2"),
        ("20-11-2026", {"shop"}, {"shop 20.11.2026"}, "shop 20-11-2026"),
        ("2026_11_20", {"Магазин"}, {"Магазин 2026-11-20"}, "Магазин 2026-11-20"),
        ("МАГАЗИН 2", {"Магазин"}, {"Магазин 1"}, "Магазин 2"),
        ("Shop@9", {"shop", "mail"}, {"shop 1", "mail 1"}, "shop 9"),
        ("MAIL 3", {"shop"}, {"mail 3"}, "mail 3"),
        ("RC-A", {"shop"}, {"shop rc a"}, "shop rc a"),
        ("vanilla", {"shop"}, {"shop vanilla"}, "shop vanilla"),
        ("🌵", {"shop"}, {"shop 🌊"}, "shop 🌵"),
        ("तीन", {"shop"}, {"shop तान"}, "shop तीन"),
        ("2 — β.", {"shop"}, {"shop 2-Β"}, "shop 2-Β"),
        ("F#@2", {"F++", "F#"}, {"F++ 2", "F# 2"}, "F# 2"),
    ],
)
def test_the_version_of_a_fix_is_named_as_its_runs_will_be(
    text: str, agents: set, known: set, name: str
) -> None:
    assert fix_version(text, agents, known) == name


def test_a_version_that_several_agents_could_have_is_asked_for() -> None:
    with pytest.raises(UnclearVersion, match="mail 2, shop 2"):
        fix_version("2", {"shop", "mail"}, {"shop 1", "mail 1"})
    with pytest.raises(UnclearVersion, match="shop 2, shop v2"):
        fix_version("version 2", {"shop"}, {"shop 2", "shop v2"})


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("shop 3", "shop 3"),  # not yet
        ("shop v2", "shop v2"),  # as it is, beside another spelling
        ("shop version 2", "shop 2"),  # the earliest: better to reopen once too often
    ],
)
def test_a_version_that_was_to_come_is_known_in_the_spelling_of_its_runs(
    version: str, known: str
) -> None:
    began = {"shop v2": NOON, "shop 2": NOON - timedelta(days=1), "shop 1": NOON}
    assert known_as(version, began) == known
