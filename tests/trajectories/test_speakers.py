"""Who speaks in exports of helpdesks: read where the file shows it, asked for where it does not."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from apps.trajectories.decoding import RowError
from apps.trajectories.importers import OpenFile, read
from apps.trajectories.importers.choices import MANY_NAMES, values_of
from apps.trajectories.importers.mapping import Mapping, load

ASKED, ANSWERED = "Does the ferry run on Sunday?", "It leaves at nine."


def talk(asks: dict, answers: dict, content: str = "text", **beside: Any) -> list[dict]:
    turns = [asks | {content: ASKED}, answers | {content: ANSWERED}]
    return [{"id": f"t{number}", "turns": turns} | beside for number in range(3)]


def opened(data: Any, name: str = "export.json", mapping: Mapping | None = None) -> OpenFile:
    sent = data if isinstance(data, str) else json.dumps(data)
    return read(io.BytesIO(sent.encode()), name, mapping=mapping)


def rows_of(data: Any, name: str = "export.json") -> list[Any]:
    return [row for _, row in opened(data, name).rows]


PEOPLE = [{"id": 5, "role": "end-user"}, {"id": 9, "role": "agent"}]
BY_ID = {"5": {"type": "customer"}, "9": {"type": "agent"}}
SHOWN = {
    "direction": talk({"direction": "INCOMING"}, {"direction": "OUTGOING"}),
    "a type of no meaning beside it": talk(
        {"type": "MESSAGE", "direction": "in"}, {"type": "MESSAGE", "direction": "out"}
    ),
    "message_type": talk({"message_type": "incoming"}, {"message_type": "outgoing"}),
    "incoming": talk({"incoming": True}, {"incoming": False}, "body_text"),
    "is_inbound": talk({"is_inbound": 1}, {"is_inbound": 0}),
    "from_agent": talk({"from_agent": False}, {"from_agent": True}),
    "fromMe": talk({"fromMe": False}, {"fromMe": True}, "body"),
    "in the author": talk(
        {"author": {"name": "ann", "isBot": False}}, {"author": {"name": "bo", "isBot": True}}
    ),
    "in a list": talk(
        {"senders": [{"kind": "contact"}], "user": "a"}, {"senders": [{"kind": "admin"}]}
    ),
    "ids of people beside": talk({"author_id": 5}, {"author_id": 9}, users=PEOPLE),
    "ids of people by id": talk({"author_id": "5"}, {"author_id": "9"}, people=BY_ID),
    "a kind of content beside it": talk(
        {"from": "user", "type": "text"}, {"from": "operator", "type": "text"}, "content"
    ),
}


@pytest.mark.parametrize("data", SHOWN.values(), ids=SHOWN)
def test_what_shows_who_speaks_is_read(data: list[dict]) -> None:
    rows = rows_of(data)
    said = [(message["role"], message["content"]) for message in rows[0]["messages"]]
    assert len(rows) == 3 and said == [("user", ASKED), ("assistant", ANSWERED)]
    renamed = [{"id": one["id"], "messages": one["turns"]} | one for one in data]
    assert rows_of(renamed)[0]["messages"] == rows[0]["messages"]


@pytest.mark.parametrize(
    ("column", "values"),
    [("direction", ("inbound", "outbound-api")), ("incoming", ("true", "false"))],
)
def test_a_table_of_messages_shows_it_in_a_column(column: str, values: tuple[str, str]) -> None:
    lines = [
        f"{number},{value},{words}"
        for number in range(3)
        for value, words in zip(values, (ASKED, ANSWERED), strict=True)
    ]
    rows = rows_of("\n".join([f"chat,{column},text", *lines]), "export.csv")
    assert [message["role"] for message in rows[2]["messages"]] == ["user", "assistant"]


def test_messages_of_several_conversations_in_one_list_are_told_apart() -> None:
    results = [
        {"conversation_id": str(number), "direction": direction, "text": words}
        for number in range(3)
        for direction, words in (("INCOMING", ASKED), ("OUTGOING", ANSWERED))
    ]
    assert len(rows_of({"results": results})) == 3


NOT_SHOWN = {
    "numbers": talk({"message_type": 0}, {"message_type": 1}),
    "names": talk({"author": "Ann"}, {"author": "Bo"}),
    "ids": talk({"author_id": "77"}, {"author_id": "9"}),
    "a type of no meaning": talk({"type": "message"}, {"type": "message"}),
    "nobody asks": talk({"from": "bot"}, {"from": "bot"}),
    "nobody answers": talk({"from": "contact"}, {"from": "user"}),
    "the agent alone is known": talk({"from": "Ann"}, {"from": "agent"}),
}


@pytest.mark.parametrize("data", NOT_SHOWN.values(), ids=NOT_SHOWN)
def test_what_does_not_is_asked_for_with_a_sample(data: list[dict]) -> None:
    reading = opened(data)
    rows = list(reading.rows)
    assert reading.guessed and all(isinstance(row, RowError) for _, row in rows)
    assert "who the customer is" in reading.problem or "is not mapped" in str(rows[0][1])
    assert reading.mapping
    examples = [item["example"] for item in values_of(reading.head, reading.mapping)["roles"]]
    assert ASKED in examples


def test_agents_of_other_names_speak_where_it_is_known_who_asks() -> None:
    rows = rows_of(talk({"from": "user"}, {"from": "planner"}))
    assert [message["role"] for message in rows[0]["messages"]] == ["user", "assistant"]


def test_one_choice_stands_for_every_other_name() -> None:
    data = [
        {"id": name, "turns": [{"from": name, "text": ASKED}, {"from": "bo", "text": ANSWERED}]}
        for name in (f"Ann {number}" for number in range(MANY_NAMES + 1))
    ]
    reading = opened(data)
    assert reading.mapping
    choices = values_of(reading.head, reading.mapping)["roles"]
    assert "*" in [item["value"] for item in choices]
    fields = {"messages": "turns", "id": "id"}
    mapping = load({"fields": fields, "roles": {"bo": "assistant", "*": "user"}})
    rows = [row for _, row in opened(data, mapping=mapping).rows]
    assert [message["role"] for message in rows[5]["messages"]] == ["user", "assistant"]
