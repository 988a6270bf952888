"""Which lane a session belongs to: by hashing, the same in every process, and the one it began on
while it lives.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.serving.asked import CHAT, RESPONSES, read_request
from apps.serving.lanes import Sessions, drawn, lane_of_unit, may_be_shadowed, unit_of
from apps.serving.routes import CANARY, OUTSIDE, SHADOW, Intake, Lane, Route

shares = st.floats(0, 1)
units = st.text(max_size=40)
busy = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])


def route(share: float, kind: str = CANARY, salt: str = "salt", trial: str = "t1") -> Route:
    current = Lane("v1", 1, trial=trial)
    return Route(
        "production", (current, Lane("v2", 2, share=share, kind=kind, trial=trial)), 0, salt
    )


def unit(body: dict[str, Any], headers: dict[str, str] | None = None) -> str:
    path = CHAT if "messages" in body else RESPONSES
    return unit_of(
        read_request(path, json.dumps({"model": "m"} | body).encode(), headers or {}), headers or {}
    )


def said(*turns: str) -> dict[str, Any]:
    return {
        "messages": [
            {"role": role, "content": text}
            for role, text in zip(["system", *["user", "assistant"] * 9], turns, strict=False)
        ]
    }


@busy
@given(units, shares, st.text(max_size=10))
def test_a_unit_is_always_in_the_same_lane(unit: str, share: float, salt: str) -> None:
    found = lane_of_unit(route(share, salt=salt), unit)
    assert found == lane_of_unit(route(share, salt=salt), unit) and 0 <= drawn(salt, unit) < 1


@busy
@given(units, shares, shares)
def test_a_raised_share_only_adds_sessions(unit: str, one: float, other: float) -> None:
    low, high = sorted((one, other))
    if lane_of_unit(route(low), unit).kind == CANARY:
        assert lane_of_unit(route(high), unit).kind == CANARY


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.05, 0.25, 0.5, 0.9, 1.0])
def test_the_share_is_met(share: float) -> None:
    n = 20_000
    got = sum(
        lane_of_unit(route(share, salt="fixed"), f"session-{number}").kind == CANARY
        for number in range(n)
    )
    assert abs(got / n - share) < 0.012


def test_each_trial_draws_its_own_sessions() -> None:
    both = sum(drawn("one", str(n)) < 0.5 and drawn("other", str(n)) < 0.5 for n in range(4_000))
    assert abs(both / 4_000 - 0.25) < 0.03


@busy
@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), shares), min_size=1, max_size=40))
def test_a_session_stays_on_the_lane_it_began_on_whatever_becomes_of_the_share(
    steps: list[tuple[str, float]],
) -> None:
    sessions, began = Sessions(), dict[str, str]()
    for now, (unit, share) in enumerate(steps):
        kind = sessions.lane_of(route(share), unit, now).kind
        assert kind == began.setdefault(unit, lane_of_unit(route(share), unit).kind)


def test_a_session_that_was_quiet_for_long_is_drawn_again_and_the_oldest_are_forgotten() -> None:
    sessions = Sessions(most=3, lives_s=100)
    assert sessions.lane_of(route(0.0), "a", 0).version == "v1"
    assert sessions.lane_of(route(1.0), "a", 100).version == "v1"
    assert sessions.lane_of(route(1.0), "a", 201).version == "v2"
    for number, name in enumerate("abcde"):
        sessions.lane_of(route(0.0), name, 300 + number)
    assert len(sessions.known) == 3 and sessions.lane_of(route(1.0), "b", 310).version == "v2"
    assert sessions.lane_of(route(1.0), "e", 310).version == "v1"


def limited(room: int, since: float, share: float = 0.5, **more: Any) -> Route:
    outside = Lane("v1", 1, trial="t1", kind=OUTSIDE)
    return replace(route(share), intake=Intake(room, since, outside), **more)


def test_no_session_takes_part_while_there_is_no_room_in_either_lane() -> None:
    sessions = Sessions()
    kinds = [sessions.lane_of(limited(3, 0), str(n), 1 + n).kind for n in range(200)]
    last = [n for n, kind in enumerate(kinds) if kind == CANARY][-1]
    assert kinds.count(CANARY) == 3 and set(kinds[last + 1 :]) == {OUTSIDE}
    assert OUTSIDE not in kinds[: last + 1]
    drawn = [lane_of_unit(route(0.5), str(n)).kind for n in range(200)]
    assert kinds[: last + 1] == drawn[: last + 1]
    # Outcomes came: those of before are counted in the room, and everybody stays where they were
    again = [sessions.lane_of(limited(2, 300), str(n), 301).kind for n in range(400)]
    assert again[:200] == kinds and again[200:].count(CANARY) == 2


def test_a_share_of_all_or_nothing_leaves_room_as_it_is() -> None:
    assert Sessions().lane_of(limited(0, 0, 0.0), "a", 1).kind == OUTSIDE
    assert Sessions().lane_of(limited(1, 0, 1.0), "a", 1).kind == CANARY


@busy
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdefghijklmnop"),
            st.integers(0, 3),
            st.booleans(),
            st.integers(0, 1),
        ),
        max_size=60,
    )
)
def test_a_session_sees_one_lane_whichever_process_answers_and_whatever_room_there_is(
    asked: list[tuple[str, int, bool, int]],
) -> None:
    processes, assigned, began = (Sessions(), Sessions()), {}, dict[str, str]()
    for now, (unit, room, is_new, number) in enumerate(asked):
        found = limited(room, now - 5 if is_new else -1, assigned=assigned)
        kind = processes[number].lane_of(found, unit, now).kind
        assigned.setdefault(unit, (kind, None))
        assert kind == began.setdefault(unit, kind)


def test_another_trial_draws_again() -> None:
    sessions = Sessions()
    assert sessions.lane_of(route(0.0), "a", 0).version == "v1"
    assert sessions.lane_of(route(1.0, trial="t2"), "a", 1).version == "v2"


def test_a_unit_is_the_session_then_the_trace_then_how_the_conversation_opens() -> None:
    trace = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    assert unit(said("S", "Hi"), {"x-session-id": "7"}) == unit(
        said("other"), {"x-session-id": "7"} | trace
    )
    assert unit(said("S", "Hi"), trace) == unit(said("S", "Bye"), trace) != unit(said("S", "Hi"))
    first = unit(said("S", "Hi"))
    assert unit(said("S", "Hi"), {"traceparent": f"00-{'0' * 32}-{'0' * 16}-00"}) == first
    assert first == unit(said("S", "Hi", "Hello", "And now?"))
    others = [
        said("S", "Hi!"),
        said("T", "Hi"),
        said("S", "Hi") | {"user": "u"},
        {"input": "Hi", "instructions": "S"},
    ]
    assert len({first, *map(unit, others)}) == 5
    assert unit({"input": "Hi", "instructions": "S"}) == unit(
        {"input": "Hi", "instructions": "S", "temperature": 1}
    )
    assert len(first) == 32


@busy
@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=9,
    )
)
def test_a_unit_is_found_in_whatever_was_sent(messages: Any) -> None:
    assert len(unit({"messages": messages})) == 32
    assert len(unit({"input": messages})) == 32


def test_what_only_the_current_server_knows_is_not_shadowed() -> None:
    def may(**more: Any) -> bool:
        return may_be_shadowed(
            read_request(RESPONSES, json.dumps({"model": "m", "input": "Hi"} | more).encode(), {})
        )

    assert may() and may(previous_response_id=None) and may(background=False)
    assert (
        not may(previous_response_id="resp_1")
        and not may(background=True)
        and not may(conversation="c")
    )


def test_a_shadow_draws_as_a_canary_does() -> None:
    canary, shadow = route(0.3), route(0.3, SHADOW)
    for number in range(200):
        one, other = lane_of_unit(canary, str(number)), lane_of_unit(shadow, str(number))
        assert (one.kind == CANARY) == (other.kind == SHADOW)
    assert lane_of_unit(replace(canary, lanes=canary.lanes[:1]), "a").version == "v1"
