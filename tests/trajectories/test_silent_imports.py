"""Files whose words stand where a format does not look: found beside the messages, or refused,
never stored as empty messages.
"""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from apps.trajectories.decoding import RowError
from apps.trajectories.importers import read
from apps.trajectories.importers.mapping import load
from apps.trajectories.importers.paths import loose


def rows_of(value: Any, name: str = "export.json") -> list[Any]:
    data = value if isinstance(value, str) else json.dumps(value)
    reading = read(io.BytesIO(data.encode()), name)
    return [row for _, row in reading.rows]


def said(row: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(message["role"], message.get("content")) for message in row["messages"]]


def thread(number: int) -> dict[str, Any]:
    """As help desks export a conversation: the first message beside the page of its replies."""
    return {
        "id": str(number),
        "source": {
            "id": "s",
            "body": f"My parcel {number} is late",
            "author": {"type": "user", "id": "u"},
        },
        "replies": {
            "type": "reply.list",
            "replies": [
                {
                    "kind": "comment",
                    "body": f"Parcel {number} comes today",
                    "author": {"type": "bot", "id": "b"},
                },
                {"kind": "assignment", "body": None, "author": {"type": "bot", "id": "b"}},
                {"kind": "comment", "body": "Thank you", "author": {"type": "user", "id": "u"}},
            ],
            "count": 3,
        },
    }


def test_the_first_message_beside_its_replies_is_read_and_empty_ones_are_not() -> None:
    rows = rows_of(
        {"type": "list", "conversations": [thread(1), thread(2)], "pages": {"next": None}}
    )
    assert [said(row) for row in rows] == [
        [
            ("user", f"My parcel {n} is late"),
            ("assistant", f"Parcel {n} comes today"),
            ("user", "Thank you"),
        ]
        for n in (1, 2)
    ]


ASKED = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "Where is parcel 7?"},
]
ANSWERS = [
    "In Bonn.",
    [{"role": "assistant", "content": "In Bonn."}],
    {"role": "assistant", "content": "In Bonn."},
]


@pytest.mark.parametrize("answer", ANSWERS, ids=["text", "messages", "message"])
@pytest.mark.parametrize(
    "names",
    [
        ("sample", "input", "output"),
        ("", "input", "output"),
        ("trace", "prompt", "completion"),
        ("", "history", "response"),
    ],
)
def test_an_answer_beside_the_messages_is_their_last(
    names: tuple[str, str, str], answer: Any
) -> None:
    above, asked, answered = names
    inside = {asked: ASKED, answered: answer, "model": "m"}
    records = [
        {"id": f"i{n}", "status": "pass", "rank": n} | ({above: inside} if above else inside)
        for n in range(3)
    ]
    for row in rows_of({"object": "list", "data": records}) if above else rows_of(records):
        assert said(row)[-2:] == [("user", "Where is parcel 7?"), ("assistant", "In Bonn.")]


@pytest.mark.parametrize("name", ["response", "output", "completion"])
def test_an_answer_beside_chat_messages_is_their_last(name: str) -> None:
    (row,) = rows_of([{"messages": ASKED, name: "In Bonn."}])
    assert said(row)[-1] == ("assistant", "In Bonn.") and "extra" not in row.get("metadata", {})
    answered = [*ASKED, {"role": "assistant", "content": "In Bonn."}]
    (row,) = rows_of([{"messages": answered, name: "Something else"}])
    assert said(row) == [(message["role"], message["content"]) for message in answered]


SILENT: dict[str, Any] = {
    "an object under a known name": {
        "conversations": [{"id": "1", "source": {"body": "Where is it?"}}]
    },
    "words under another name": [
        {"conversations": [{"from": "human", "sagt": "Where?"}, {"from": "gpt", "sagt": "Here"}]}
    ],
    "turns of another kind": [{"conversations": [{"type": "x", "data": {"text": "Where?"}}]}],
    "empty words": [
        {"messages": [{"role": "user", "content": " "}, {"role": "assistant", "content": ""}]}
    ],
    "chat under another name": [
        {"messages": [{"role": "user", "txt": "Where?"}, {"role": "assistant", "txt": "Here"}]}
    ],
}


@pytest.mark.parametrize("name", SILENT)
def test_a_file_whose_messages_say_nothing_gives_no_rows(name: str) -> None:
    rows = rows_of(SILENT[name])
    assert all(isinstance(row, RowError) for row in rows), rows


def test_a_run_whose_sender_captured_no_words_stays_one() -> None:
    sent = {
        "messages": [{"role": "user", "content": None}],
        "metadata": {"content_captured": False},
    }
    assert said(rows_of([sent])[0]) == [("user", None)]
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    assert rows_of([{"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}])[
        0
    ]["messages"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("['Where is it?' 'In Bonn.'\n 'Thanks']", ["Where is it?", "In Bonn.", "Thanks"]),
        ("['it' \"isn't 'here' 'there'\"]", ["it", "isn't 'here' 'there'"]),
        (
            "[{'role': 'user', 'n': [1, 2]}\n {'role': 'agent'}]",
            [{"role": "user", "n": [1, 2]}, {"role": "agent"}],
        ),
        ("array([{'a': 1}, {'a': 2}], dtype=object)", [{"a": 1}, {"a": 2}]),
        ("[array([{'a': 1}], dtype=object)]", [{"a": 1}]),
        ("[['a' 'b'] ['c' 'd']]", [["a", "b"], ["c", "d"]]),
        (
            "[{'calls': array(['x', 'y'], dtype='<U1'), 'b': None}\n {'b': True}]",
            [{"calls": ["x", "y"], "b": None}, {"b": True}],
        ),
        ("['a', 'b']", ["a", "b"]),
        ("['a' ... 'b']", "['a' ... 'b']"),
        ("['a' 'b'", "['a' 'b'"),
    ],
)
def test_a_list_as_numpy_prints_it_keeps_its_items_apart(text: str, value: Any) -> None:
    assert loose(text) == value


def test_a_column_of_arrays_is_read_turn_by_turn_or_refused_with_the_reason() -> None:
    data = (
        "id,turns\na,\"['Where is it?' 'In Bonn.'\n 'Thanks']\"\nb,\"['Where is it?' ..."
        " 'Thanks']\"\n"
    )
    mapping = load({"layout": "conversation", "fields": {"id": "id", "messages": "turns"}})
    reading = read(io.BytesIO(data.encode()), "talks.csv", "mapped", mapping=mapping)
    first, second = (row for _, row in reading.rows)
    assert said(first) == [("user", "Where is it?"), ("assistant", "In Bonn."), ("user", "Thanks")]
    assert (
        isinstance(second, RowError) and "shortened" in second.problem and "JSON" in second.problem
    )
