"""State that must hold after a task: read from replayed calls and their answers, in Flywheel and in
exported packages.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.lib.checks import answered_calls, assertions_in, state_after, state_share


def call(tool: str, content: Any = None, **args: Any) -> dict:
    return {
        "tool": tool,
        "args": args,
        "content": content if content is None else json.dumps(content),
    }


CALLS = [
    call("tickets.find", {"tickets": {"12": {"status": "open", "tags": ["new", "paid"]}}}, id=12),
    call("tickets.close", {"tickets": {"12": {"status": "closed"}}}, id=12),
    call("email.send", "Sent.", to="ann@example.com"),
    call("email.send", None, to="bob@example.com"),
]


@pytest.mark.parametrize(
    ("path", "equals", "holds"),
    [
        ("tickets.12.status", "closed", True),
        ("tickets.12.status", " Closed", True),
        ("tickets.12.status", "open", False),
        ("tickets.12.tags.1", "paid", True),
        ("tickets.12.tags.7", None, False),
        ("tickets.13.status", None, False),
        ("calls.email.send.count", 2, True),
        ("calls.email.send.count", True, False),
        ("calls.email.send.args.to", "bob@example.com", True),
        ("calls.tickets.find.args", {"id": 12.0}, True),
        ("calls.tickets.delete.count", 0, True),
        ("calls.tickets.delete.args.id", 0, False),
        ("calls.email.send.count.more", 2, False),
        ("", "", False),
        (".".join("a" * 5000), None, False),
    ],
)
def test_a_path_is_looked_up_in_what_the_calls_tell(path: str, equals: Any, holds: bool) -> None:
    assert state_share([{"path": path, "equals": equals}], state_after(CALLS)) == holds


def test_the_share_is_of_all_assertions() -> None:
    asked = [
        {"path": "tickets.12.status", "equals": "closed"},
        {"path": "calls.email.send.count", "equals": 1},
    ]
    assert state_share(asked, state_after(CALLS)) == 0.5
    assert state_share(asked, state_after([])) == 0.0


def test_an_answer_cannot_pass_itself_off_as_calls() -> None:
    state = state_after([call("a", {"calls": {"b": {"count": 3}}})])
    assert state["calls"] == {
        "a": {"count": 1, "args": {}, "result": {"calls": {"b": {"count": 3}}}}
    }


def native(id: str, tool: str) -> dict:
    return {"id": id, "type": "function", "function": {"name": tool, "arguments": "{}"}}


def test_calls_get_the_reply_of_their_own_turn() -> None:
    messages = [
        {"role": "user", "content": "Do it."},
        {"role": "assistant", "content": None, "tool_calls": [native("c", "a"), native("d", "b")]},
        {"role": "tool", "tool_call_id": "d", "content": "of b"},
        {"role": "tool", "tool_call_id": "c", "content": "of a"},
        {"role": "assistant", "content": None, "tool_calls": [native("c", "a")]},
        {"role": "tool", "tool_call_id": "nobody", "content": "?"},
    ]
    assert [(item["tool"], item["content"]) for item in answered_calls(messages)] == [
        ("a", "of a"),
        ("b", "of b"),
        ("a", None),
    ]


@pytest.mark.parametrize(
    "value",
    [
        "CA",
        None,
        {},
        [1],
        [{"path": "a"}],
        [{"path": 1, "equals": 1}],
        [{"path": "a", "equals": 1, "x": 1}],
    ],
)
def test_a_field_of_that_name_that_is_something_else_asserts_nothing(value: Any) -> None:
    assert assertions_in({"state": value}) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    st.lists(st.builds(call, st.sampled_from(("a", "b.c")), JSON), max_size=4),
    st.text(max_size=12),
    JSON,
)
def test_no_state_and_no_path_make_it_fail(calls: list[dict], path: str, equals: Any) -> None:
    assert state_share([{"path": path, "equals": equals}], state_after(calls)) in (0.0, 1.0)
