"""ShareGPT's `{conversations: [{from, value}]}`, and other lists of turns under `history`,
`conversation` or `chat_history` (AutoGen, Who&When), whose speakers may have names of their own. A
file that is one list of `{role, content}` is one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from apps.trajectories.decoding import RowError
from apps.trajectories.dialects import linked
from apps.trajectories.importers.chat import answer_beside, as_turns, said_outcome
from apps.trajectories.importers.paths import loose
from apps.trajectories.importers.records import Record
from apps.trajectories.importers.shapes import (
    Row,
    as_text,
    chat_tools,
    digest,
    each,
    first,
    identity,
    items,
    obj,
    text,
    without_empty,
)
from apps.trajectories.importers.turns import call, next_call, role_of, turn

TALKS = ("conversations", "history", "conversation", "chat_history", "chat_messages")
OUTCOME = ("is_correct", "is_corrected")
MAX_TURNS = 100_000


def rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    return each(records, _sharegpt)


def _sharegpt(record: dict) -> dict:
    talk = loose(record.get("conversations") or record.get("conversation"))
    return _row(record, talk, ("conversations", "conversation"), "sharegpt")


def is_event(record: dict) -> bool:
    """One of AutoGen 0.4: TextMessage, ToolCallRequestEvent …"""
    kind = record.get("type")
    return (
        "source" in record
        and "content" in record
        and isinstance(kind, str)
        and kind.endswith(("Message", "Event"))
    )


def history_rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    """One row a record; records that are messages themselves are one run together."""
    said: list[dict] = []
    begin = 0
    for position, record in records:
        try:
            if isinstance(record, dict) and (
                ("role" in record and "content" in record) or is_event(record)
            ):
                begin = begin or position
                said.append(record)
                if len(said) > MAX_TURNS:
                    raise RowError(
                        "",
                        f"the file has more than {MAX_TURNS:,} messages and nothing that says to"
                        " which run each belongs",
                    )
                continue
            if not isinstance(record, dict):
                raise (
                    record
                    if isinstance(record, RowError)
                    else RowError("", f"expected an object, got {type(record).__name__}")
                )
            yield position, _history(record)
        except RowError as error:
            yield position, error
    if said:
        try:
            yield begin, _row({"history": said}, said, ("history",), "history")
        except RowError as error:
            yield begin, error


def _history(record: dict) -> dict:
    return _row(record, loose(first(record, *TALKS[1:])), TALKS, "history")


def _row(record: dict, talk: object, known: tuple[str, ...], source: str) -> dict:
    if isinstance(talk, dict):  # AutoGen's chat_messages: by partner
        talk = next((one for one in talk.values() if isinstance(one, list)), talk)
    if not isinstance(talk, list) or not talk:
        raise RowError(known[0], "no messages")
    messages: list[dict] = []
    if system := text(record.get("system")):
        messages.append({"role": "system", "content": system})
    for index, item in enumerate(talk):
        messages += _turns(item, f"{known[0]}[{index}]", next_call(messages))
    used = {*known, "system", "id", "tools", "model", "session_id", "user_id"}
    rest = {key: value for key, value in record.items() if key not in used}
    if name := answer_beside(messages, rest):
        messages += as_turns(rest.pop(name), name, "assistant")
    return without_empty(
        {
            "id": identity(text(record.get("id"))) or f"{source}-{digest(record)}",
            "messages": linked(messages),
            "tools": chat_tools(loose(record.get("tools"))),
            "model": text(record.get("model"), 200),
            "session_id": text(record.get("session_id"), 200),
            "user_id": text(record.get("user_id"), 200),
            "outcome": said_outcome(record, OUTCOME),
            "metadata": without_empty({"source": source, "extra": rest}),
        }
    )


def _calls(content: list) -> list[dict]:
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [made for one in content if (made := call(obj(one)))],
        }
    ]


def _replies(content: list) -> list[dict]:
    return [
        {
            "role": "tool",
            "content": as_text(obj(one).get("content")),
            "tool_call_id": text(first(obj(one), "tool_call_id", "call_id")),
        }
        for one in content
    ]


EVENTS = {"ToolCallRequestEvent": _calls, "ToolCallExecutionEvent": _replies}  # AutoGen from 0.4 on


def _turns(item: object, path: str, number: int) -> list[dict]:
    """A turn; a speaker whom no list knows is an agent, and keeps their name. `tool_responses`
    answer each their call.
    """
    if not isinstance(item, dict):
        raise RowError(path, f"expected a message, got {type(item).__name__}")
    if replies := items(item.get("tool_responses")):
        return _replies(replies)
    if (kind := text(item.get("type"))) in EVENTS:
        return EVENTS[kind](items(item.get("content")))
    said, name = first(item, "role", "from", "source", "type"), text(item.get("name"))
    role = role_of(said, {})
    if role is not None or not text(said):
        found = (
            turn(item, path, {}, number)
            if role
            else [{"role": "assistant", "content": item.get("content")}]
        )
    else:
        name = name or text(said)
        found = turn(
            {
                **item,
                "role": (
                    "user"
                    if text(said).lower() in ("user_proxy", "userproxy", "admin")
                    else "assistant"
                ),
            },
            path,
            {},
            number,
        )
    spoken = [one for one in found if one["role"] in ("user", "assistant")]
    if name and spoken:
        spoken[-1]["name"] = name
    return found
