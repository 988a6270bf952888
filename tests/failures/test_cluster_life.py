from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from apps.failures.clusters.life import (
    LEGAL,
    STATES,
    Fix,
    IllegalMove,
    Member,
    State,
    moved,
    regression,
)

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
states = st.sampled_from(STATES)


@given(states, states)
def test_a_move_is_made_or_refused_with_its_choices(state: State, to: State) -> None:
    if to in LEGAL[state]:
        assert moved(state, to) == to
    else:
        with pytest.raises(IllegalMove, match=state):
            moved(state, to)


def seen(version: str, hours: int) -> Member:
    return Member(1, version, NOON + hours * HOUR)


# By name “v10” is before “v9”, and it ran later.
FIRST_SEEN = {"v8": NOON - 9 * HOUR, "v9": NOON - 2 * HOUR, "v10": NOON + HOUR}


@pytest.mark.parametrize(
    ("member", "counts"),
    [
        pytest.param(seen("v9", 1), True, id="the version that should have fixed it"),
        pytest.param(seen("v10", 2), True, id="a version that first ran later"),
        pytest.param(seen("v8", 1), False, id="an old version still in service"),
        pytest.param(seen("v9", -1), False, id="known when it was marked"),
        pytest.param(seen("v9", 0), False, id="at the very moment"),
        pytest.param(seen("new", 1), True, id="a version that is not counted yet"),
        pytest.param(seen("", 1), True, id="no version"),
    ],
)
def test_what_contradicts_a_fix(member: Member, counts: bool) -> None:
    assert regression(Fix("v9", NOON), [member], FIRST_SEEN) == (member if counts else None)


def test_the_newest_failure_is_told() -> None:
    members = [seen("v8", 5), seen("v9", 1), seen("v10", 3), seen("v9", 2)]
    assert regression(Fix("v9", NOON), members, FIRST_SEEN) == members[2]
    assert regression(Fix("v9", NOON), [], FIRST_SEEN) is None


def test_without_runs_of_the_version_any_later_one_counts() -> None:
    """Its runs may have been deleted since."""
    assert regression(Fix("gone", NOON), [seen("v10", 2)], FIRST_SEEN)
    assert regression(Fix("gone", NOON), [seen("v9", 2)], FIRST_SEEN) is None


class Life(RuleBasedStateMachine):
    """A group whose runs come in any order of versions: it is open again exactly when a run of the
    fixing version or a later one has failed since it was marked.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now, self.state, self.fix = NOON, "new", None
        self.members: list[Member] = []
        self.order: list[str] = []  # versions by their first run
        self.is_contradicted = False

    def first_seen(self) -> dict[str, datetime]:
        return {version: NOON + place * HOUR for place, version in enumerate(self.order)}

    @rule(version=st.sampled_from(["v1", "v10", "v2", "v9", "a", ""]), fails=st.booleans())
    def run(self, version: str, fails: bool) -> None:
        self.now += HOUR
        if version and version not in self.order:
            self.order.append(version)
        if not fails:
            return
        self.members.append(Member(len(self.members), version, self.now))
        if self.state == "fixed" and self.fix:
            later = self.order[self.order.index(self.fix.version) :]
            self.is_contradicted |= not version or version in later
            if regression(self.fix, self.members, self.first_seen()):
                self.state = "reopened"

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def mark(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(self.order))
        if "fixed" in LEGAL[self.state]:
            self.now += HOUR
            self.state, self.fix = moved(self.state, "fixed"), Fix(version, self.now)
            self.is_contradicted = False

    @rule(to=states)
    def move(self, to: State) -> None:
        if to in LEGAL[self.state] and to not in ("fixed", "reopened"):
            self.state, self.is_contradicted = moved(self.state, to), False

    @invariant()
    def reopened_by_a_regression_and_by_nothing_else(self) -> None:
        assert (self.state == "reopened") == self.is_contradicted
        assert self.state != "fixed" or not regression(self.fix, self.members, self.first_seen())


test_a_life = Life.TestCase
