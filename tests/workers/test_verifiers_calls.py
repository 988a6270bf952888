"""Kinds `calls`, `no_call`, `tool_call` and `expected`: what is right, what is wrong and how it is
named.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.lib.verifiers import Execution, Rollout, Score, build
from workers.lib.verifiers.calls import made_by


def function(name: str, required: tuple[str, ...] = (), **properties: Any) -> dict:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TEXT, WHOLE, NUMBER, LIST = (
    {"type": "string"},
    {"type": "integer"},
    {"type": "number"},
    {"type": "array"},
)
TOOLS = [
    function(
        "rooms.book",
        ("room", "hours"),
        room=TEXT,
        hours=WHOLE,
        price=NUMBER,
        guests=LIST,
        note=TEXT,
        at={"type": "object"},
    ),
    function("rooms.free", ("room",), room=TEXT),
]
BOOK = {"tool": "rooms.book", "args": {"room": "Blue Hall", "hours": 2}}


def native(*calls: tuple[str, Any]) -> dict:
    made = [
        {
            "id": f"c{at}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": args if isinstance(args, str) else json.dumps(args),
            },
        }
        for at, (name, args) in enumerate(calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def rollout(expected: dict, *messages: dict | str, **rest: Any) -> Rollout:
    turns = [
        {"role": "assistant", "content": item} if isinstance(item, str) else item
        for item in messages
    ]
    return Rollout(
        task={"id": "t", "messages": [], "expected": expected}, messages=turns, tools=TOOLS, **rest
    )


def score(expected: dict, *messages: dict | str, rest: dict | None = None, **options: Any) -> Score:
    return build({"kind": "calls", **options}).score(rollout(expected, *messages, **(rest or {})))


@pytest.mark.parametrize(
    "answer",
    [
        json.dumps(BOOK),
        json.dumps([BOOK]),
        f"```json\n{json.dumps(BOOK)}\n```",
        (
            f"<tool_call>\n{json.dumps({'name': 'rooms.book', 'arguments': BOOK['args']})}\n</tool_call>"  # noqa: E501
        ),
        native(("rooms.book", {"hours": 2, "room": "blue-hall"})),
        native(("rooms.book", {"hours": 2, "room": " Blue  Hall."})),
    ],
)
def test_a_right_call_is_right_in_every_form(answer: dict | str) -> None:
    found = score(BOOK, answer)
    assert (found.reward, found.success, found.valid, found.tool_ok, found.args_score) == (
        1.0,
        True,
        True,
        True,
        1.0,
    )
    assert sum(found.components.values()) == pytest.approx(1.0) and found.details == []


ADDRESSES = [
    "a.b@x.org",
    "https://x.org/a_b?c=d-e",
    "/home/ann/a_b.txt",
    "www.x-y.org",
    "C:\\\\a_b",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_all_of_an_address_counts(address: str) -> None:
    expected = BOOK | {"args": BOOK["args"] | {"note": address}}

    def success(note: str) -> bool:
        return score(expected, native(("rooms.book", BOOK["args"] | {"note": note}))).success

    assert success(address) and success(address.upper())
    assert not any(
        success(address.replace(mark, other))
        for mark in ".-_/"
        if mark in address
        for other in ("", "*")
    )


@pytest.mark.parametrize(
    ("answer", "reward", "fault"),
    [
        (native(("rooms.free", {"room": "Blue Hall", "hours": 2})), 0.0, "wrong tool: rooms.free"),
        (
            native(("rooms.reserve", {"room": "Blue Hall", "hours": 2})),
            0.0,
            "hallucinated function",
        ),
        (
            native(("rooms.book", {"room": "Blue Hall"})),
            0.6,
            "missing required argument: rooms.book.hours",
        ),
        (
            native(("rooms.book", {"room": "Blue Hall", "hours": "2"})),
            0.6,
            "wrong type: rooms.book.hours",
        ),
        (
            native(("rooms.book", {"room": "Blue Hall", "hours": 2.0})),
            0.6,
            "wrong type: rooms.book.hours",
        ),
        (
            native(("rooms.book", {"room": "Blue Hall", "hours": True})),
            0.6,
            "wrong type: rooms.book.hours",
        ),
        (
            native(("rooms.book", {"room": "Red Hall", "hours": 2})),
            0.6,
            "wrong value: rooms.book.room",
        ),
        (
            native(("rooms.book", BOOK["args"] | {"size": 3})),
            0.4 + 0.8 / 3,
            "unknown argument: rooms.book.size",
        ),
        (
            native(("rooms.book", BOOK["args"] | {"note": "x"})),
            0.4 + 0.8 / 3,
            "argument not asked for",
        ),
        (
            native(("rooms.book", BOOK["args"]), ("rooms.free", {"room": "x"})),
            0.4,
            "extra call: rooms.free",
        ),
        (
            native(("rooms.book", BOOK["args"]), ("rooms.book", BOOK["args"])),
            0.4,
            "extra call: rooms.book",
        ),
        (native(("rooms.book", '{"room": "Blue Hall", "hours": 2')), -1.0, "broken JSON"),
        (native(("rooms.book", f"```json\n{json.dumps(BOOK['args'])}\n```")), -1.0, "broken JSON"),
        ('{"tool": "rooms.book", "args": {"room": ', -1.0, "broken JSON"),
        ('{"tool": "rooms.book", "args": ["Blue Hall"]}', -1.0, "broken call"),
        ("I have booked it: " + json.dumps(BOOK), -1.0, "no call"),
        ("", -1.0, "no call"),
    ],
)
def test_a_wrong_call_loses_and_says_why(answer: dict | str, reward: float, fault: str) -> None:
    found = score(BOOK, answer)
    assert found.reward == pytest.approx(reward)
    assert not found.success and any(text.startswith(fault) for text in found.details), (
        found.details
    )


ACCEPT = BOOK | {
    "accept": {
        "room": ["Blue Hall", "Hall B"],
        "price": [9.5, 10, ""],
        "guests": [["Ann", "Bo"], ""],
        "at": [{"day": "Mon"}, ""],
    }
}


@pytest.mark.parametrize(
    ("args", "right"),
    [
        ({"room": "hall b", "hours": 2}, True),
        ({"room": "hall b", "hours": 2, "price": 10}, True),
        ({"room": "hall b", "hours": 2, "price": 10.0}, True),
        (
            {
                "room": "hall b",
                "hours": 2,
                "price": 9.5,
                "guests": ["ANN", "bo"],
                "at": {"day": "mon"},
            },
            True,
        ),
        ({"room": "hall b", "hours": 2, "price": 9}, False),
        ({"room": "hall b", "hours": 2, "price": ""}, False),
        ({"room": "hall b", "hours": 2, "guests": ["Bo", "Ann"]}, False),
        ({"room": "hall b", "hours": 2, "at": {"day": "mon", "hour": 3}}, False),
        ({"room": "hall b", "hours": 2, "at": {}}, False),
        ({"room": "", "hours": 2}, False),
        ({"room": None, "hours": 2}, False),
    ],
)
def test_several_values_and_optional_arguments(args: dict, right: bool) -> None:
    assert score(ACCEPT, native(("rooms.book", args))).success is right


def test_the_leaderboards_own_key_has_choices_inside_of_objects() -> None:
    key = {
        "ground_truth": [
            {
                "rooms.book": {
                    "room": ["A"],
                    "hours": [1],
                    "at": [{"day": ["Mon", "Tue"], "hour": [3, ""]}],
                }
            }
        ]
    }
    for at, right in (
        ({"day": "tue"}, True),
        ({"day": "Mon", "hour": 3}, True),
        ({"hour": 3}, False),
        ({"day": ["Mon"]}, False),
    ):
        assert (
            score(key, native(("rooms.book", {"room": "A", "hours": 1, "at": at}))).success is right
        )


def test_an_argument_the_schema_requires_may_not_be_left_out() -> None:
    expected = {"tool": "rooms.free", "args": {}, "accept": {"room": ["A", ""]}}
    assert not score(expected, native(("rooms.free", {}))).success


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ({"room": "Blue Hall", "hours": 2.0}, {"whole_floats": True}),
        ({"room": "Blue Hall", "hours": 2}, {"text": "exact"}),
        ({"room": " blue  hall", "hours": 2}, {"text": "spaces"}),
    ],
)
def test_options_change_what_counts_as_the_same(args: dict, options: dict) -> None:
    assert score(BOOK, native(("rooms.book", args)), **options).success
    assert not score(
        BOOK, native(("rooms.book", {"room": "bluehall", "hours": 2})), text="spaces"
    ).success


def test_dates_order_and_dots_where_they_are_asked_for() -> None:
    day = {
        "tool": "rooms.book",
        "args": {"room": "A", "hours": 1, "note": "April 1, 2024", "guests": ["Ann", "Bo"]},
    }
    other = native(
        ("rooms_book", {"room": "A", "hours": 1, "note": "2024-04-01", "guests": ["Bo", "Ann"]})
    )
    assert score(day, other, dates=True, unordered=["guests"], dots=True).success
    for missing in ({"dates": True, "dots": True}, {"unordered": ["guests"], "dots": True}):
        assert not score(day, other, **missing).success


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("guests", "fault"),
    [
        ([f"g{n}" for n in range(200)][::-1], ""),
        ([f"g{n}" for n in range(220)][::-1], ""),
        ([f"g{n}" for n in range(5000)][::-1], ""),
        ([f"G {n}" for n in range(200)][::-1], ""),
        ([f"G {n}" for n in range(220)][::-1], "compared in order: it has more than 200 items"),
        ([f"g{n}" for n in range(219)] + ["g1"], "compared in order"),
        ([f"g{n}" for n in range(199)] + ["g1"], "wrong value"),
    ],
)
def test_long_lists_without_order(guests: list, fault: str) -> None:
    wanted = BOOK | {"args": BOOK["args"] | {"guests": [f"g{n}" for n in range(len(guests))]}}
    found = score(
        wanted, native(("rooms.book", BOOK["args"] | {"guests": guests})), unordered=["guests"]
    )
    assert found.success is (not fault) and fault in "".join(found.details)


def test_parallel_calls_need_no_order_unless_it_is_asked_for() -> None:
    first, second = ("rooms.free", {"room": "A"}), ("rooms.free", {"room": "B"})
    expected = {"calls": [{"tool": name, "args": args} for name, args in (first, second)]}
    assert score(expected, native(second, first)).success
    assert score(expected, native(second), native(first)).success
    assert not score(expected | {"ordered": True}, native(second, first)).success
    assert not score(expected, native(second, first), ordered=True).success
    assert score(expected, native(first)).details == ["missing call: rooms.free"]


def test_pairing_finds_the_way_in_which_all_calls_fit() -> None:
    either = {"tool": "rooms.free", "args": {"room": "A"}, "accept": {"room": ["A", "B"]}}
    only = {"tool": "rooms.free", "args": {"room": "A"}}
    answer = native(("rooms.free", {"room": "A"}), ("rooms.free", {"room": "B"}))
    assert (
        score({"calls": [either, only]}, answer).success
        and score({"calls": [only, either]}, answer).success
    )


def test_no_call_may_be_what_is_expected() -> None:
    assert score({"calls": []}, "None of my tools can do that.").reward == 1.0
    assert score({"calls": []}, native(("rooms.free", {"room": "A"}))).reward == 0.0


@pytest.mark.parametrize(
    ("answer", "options", "reward"),
    [
        ("I cannot do that.", {}, 1.0),
        ('{"weather": "fine"}', {}, 1.0),
        ("", {}, 1.0),
        ("", {"says_something": True}, 0.0),
        (json.dumps(BOOK), {}, 0.0),
        (native(("do_it_all", {})), {}, 0.0),
        (native(("do_it_all", "{")), {}, 0.0),
        ("<tool_call>{", {}, 0.0),
        ('<tool_call>pay(to="b")</tool_call>', {}, 0.0),
        ("I do it.\n<tool_call></tool_call>", {}, 0.0),
        (
            "<tool_call>\n<function=pay>\n<parameter=to>b</parameter>\n</function>\n</tool_call>",
            {},
            0.0,
        ),
        ('<tool_call>[{"weather": "fine"}]</tool_call>', {}, 0.0),
        ("A tool_call costs money.", {}, 1.0),
    ],
)
def test_no_call(answer: dict | str, options: dict, reward: float) -> None:
    assert build({"kind": "no_call", **options}).score(rollout({}, answer)).reward == reward


def test_harm_costs_everything() -> None:
    ran = [Execution(True, True, "", "rooms.book")]
    found = score(BOOK, native(("rooms.book", BOOK["args"])), rest={"calls": ran})
    assert (found.reward, found.success, found.unsafe) == (-1.0, False, True)


def test_without_partial_credit_it_is_all_or_nothing() -> None:
    assert score(BOOK, native(("rooms.book", {"room": "Blue Hall"})), partial=False).reward == 0.0


@pytest.mark.parametrize(
    "expected",
    [{}, {"answer": "x"}, {"tool": "a"}, {"calls": "x"}, {"calls": [1]}, {"ground_truth": [{}]}],
)
def test_a_task_that_expects_no_calls_is_masked(expected: dict) -> None:
    found = score(expected, native(("rooms.book", {})))
    assert found.masked and found.reward is None and found.mask_reason


def test_the_guides_reward_of_a_rollout() -> None:
    verifier = build({"kind": "tool_call"})
    assert verifier.score(rollout(BOOK, json.dumps(BOOK))).reward == pytest.approx(1.0)
    assert verifier.score(rollout(BOOK, native(("rooms.book", BOOK["args"])))).success
    assert verifier.score(
        rollout(BOOK, native(("rooms.book", {"room": "Blue Hall"})))
    ).reward == pytest.approx(0.6)
    assert (
        verifier.score(
            rollout(BOOK, native(("rooms.book", BOOK["args"]), ("rooms.book", {})))
        ).reward
        == -1.0
    )
    ran = [Execution(False, False, "full")]
    assert verifier.score(rollout(BOOK, json.dumps(BOOK), calls=ran)).reward == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("expected", "answer"),
    [
        (BOOK, native(("rooms.book", BOOK["args"]))),
        ({"calls": []}, "no"),
        ({"answer": "42"}, "42."),
        ({"answer": [7, 8]}, "8"),
        ({"constraint": {"max_words": 2}}, "two words"),
        ({"schema": {"type": "array"}}, "[1]"),
        ({"pattern": "^yes"}, "yes!"),
    ],
)
def test_each_task_by_its_own_form(expected: dict, answer: dict | str) -> None:
    verifier = build({"kind": "expected"})
    assert verifier.score(rollout(expected, answer)).reward == 1.0
    assert not verifier.score(rollout(expected, native(("rooms.free", {"room": "Z"})))).success


# Whatever an agent writes

STORABLE = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(STORABLE, max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(STORABLE, max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
ARGS = st.dictionaries(
    st.sampled_from(["room", "hours", "price"]) | st.text(STORABLE, max_size=4), VALUES, max_size=4
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["rooms.book", "rooms.free"]) | st.text(STORABLE, max_size=6), ARGS),
    max_size=4,
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
)
HOSTILE = st.fixed_dictionaries(
    {"role": st.sampled_from(["assistant", "tool", "user"])},
    optional={"content": JUNK, "tool_calls": JUNK},
)


@settings(max_examples=200, deadline=None)
@given(
    st.text() | VALUES.map(json.dumps) | CALLS.map(lambda calls: native(*calls)) | HOSTILE,
    st.sampled_from([BOOK, ACCEPT, {"calls": []}]),
)
def test_no_answer_makes_it_fail(answer: dict | str, expected: dict) -> None:
    found = score(expected, answer)
    assert not found.masked and found.reward is not None and -1 <= found.reward <= 1
    assert found.success == (found.reward == 1.0)


@settings(max_examples=200, deadline=None)
@given(CALLS.filter(bool), st.randoms(use_true_random=False))
def test_the_right_calls_are_right_in_any_order(calls: list, chance: Any) -> None:
    expected = {"calls": [{"tool": name, "args": args} for name, args in calls]}
    mixed = list(calls)
    chance.shuffle(mixed)
    found = build({"kind": "calls"}).score(
        Rollout(task={"expected": expected}, messages=[native(*mixed)])
    )
    assert found.reward == 1.0, found.details


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"tool": ' * 5000,
        '{"a":' * 40 + "1" + "}" * 40,
        "<tool_call>" * 2000,
        "\x00\ud800",
    ],
)
def test_absurd_texts_are_read_in_no_time_and_are_no_calls(text: str) -> None:
    assert made_by([{"role": "assistant", "content": text}]).calls == []
