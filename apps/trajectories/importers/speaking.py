"""Which field of a message says who speaks, and what its values mean. Helpdesks say it as a role, a
direction, a flag, or as the id of somebody who is listed beside the messages.

What the values do not show is not guessed: a person is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from apps.trajectories.importers.headers import header_words
from apps.trajectories.importers.paths import NAME
from apps.trajectories.importers.shapes import obj
from apps.trajectories.importers.turns import role_of, role_text, roles_of_people, speaker_of

MOST = 0.8  # of the messages, whose speaker a field has to show
MANY_SPEAKERS = 12
IN = frozenset(["in", "incoming", "inbound", "received", "receive", "rx"])
OUT = frozenset(["out", "outgoing", "outbound", "sent", "send", "tx"])
CUSTOMER = frozenset(
    (
        "customer",
        "client",
        "user",
        "visitor",
        "contact",
        "requester",
        "guest",
        "consumer",
        "enduser",
        "lead",
        "incoming",
        "inbound",
        "received",
    )
)
AGENT = frozenset(
    (
        "agent",
        "bot",
        "ai",
        "assistant",
        "staff",
        "admin",
        "operator",
        "support",
        "company",
        "me",
        "echo",
        "outgoing",
        "outbound",
        "sent",
        "automated",
    )
)
OF_A_FLAG = frozenset(["is", "from", "by", "was", "message", "msg", "sender", "author", "reply"])
DIRECTION = frozenset(["direction", "incoming", "outgoing", "inbound", "outbound"])
YES, NO = ("true", "1", "yes"), ("false", "0", "no")


@dataclass
class Speaking:
    """A field of the messages (`path`; "" for what `speaker_of` finds) and what it shows.

    `roles`: what its values mean, where not every mapping knows it. `known`: of how many messages
    it shows the speaker. `people`: the list beside the messages that has the roles of its ids.
    """

    path: str = ""
    values: Counter[str] = field(default_factory=Counter)
    roles: dict[str, str] = field(default_factory=dict)
    known: float = 0.0
    sides: frozenset[str] = frozenset()
    people: str = ""
    asks: bool = False  # in most conversations somebody asks

    @property
    def is_shown(self) -> bool:
        """Whether it shows who speaks, and both sides where it is not a direction."""
        return (
            self.known >= MOST and self.asks and (len(self.sides) > 1 or _is_direction(self.path))
        )


def best_of(talks: list[list[dict]], records: list[dict]) -> Speaking | None:
    """The field that shows who speaks in the messages of these conversations, each in its record;
    None if none does.
    """
    messages = [message for talk in talks for message in talk]
    found = [read(path, talks) for path in _paths(messages)]
    shown = [one for one in found if one.is_shown]
    if shown:
        return max(shown, key=lambda one: (len(one.sides) > 1, one.known, -found.index(one)))
    lists = dict.fromkeys(path for record in records[:20] for path in _lists(record))
    listed = (_listed(one.path, people, talks, records) for one in found for people in lists)
    return next((one for one in listed if one.is_shown), None)


def to_ask_about(talks: list[list[dict]], named: Iterable[str]) -> str:
    """The field with few values that come again, of which a person can say who they are: one of
    these names if there is one. "" if there is none.
    """
    messages = [message for talk in talks for message in talk]
    found = [read(path, talks) for path in _paths(messages)]
    few = [
        one.path
        for one in found
        if 1 < len(one.values) <= MANY_SPEAKERS and len(one.values) * 2 <= len(messages)
    ]
    by_name = {"".join(header_words(path)): path for path in reversed(few)}
    return next((by_name[name] for name in named if name in by_name), "")


def by_default(talks: list[list[dict]]) -> Speaking:
    """What the usual names say of the speaker."""
    return read("", talks)


def best_direction(rows: list[dict]) -> Speaking | None:
    """The column of rows of messages that is a direction or a flag of the speaker."""
    found = [read(path, [rows]) for path in _paths(rows) if _is_direction(path) or is_flag(path)]
    return next((one for one in found if one.is_shown), None)


def is_flag(path: str) -> bool:
    """Whether the name is that of a direction or of a flag such as `is_bot`."""
    return _is_direction(path) or _side_of_flag(header_words(path)) is not None


def role_in(path: str, value: Any) -> str | None:
    """Our role for a value of this field; None if nothing shows it."""
    said = role_text(value)
    if role := role_of(said, {}):
        return role
    words = header_words(path)
    if said in YES + NO and (side := _side_of_flag(words)):
        return side if said in YES else {"user": "assistant", "assistant": "user"}[side]
    if not _is_direction(path):
        return None
    word = next(iter(header_words(said)), "")
    return "user" if word in IN else "assistant" if word in OUT else None


def _side_of_flag(words: list[str]) -> str | None:
    """Who is meant by a flag such as `is_bot`, `fromMe`, `incoming`."""
    meant = [word for word in words if word not in OF_A_FLAG]
    if len(meant) != 1 or (len(words) == 1 and meant[0] not in DIRECTION):
        return None  # `customer` alone is a name
    return "user" if meant[0] in CUSTOMER else "assistant" if meant[0] in AGENT else None


def _is_direction(path: str) -> bool:
    return bool(DIRECTION & set(header_words(path)[-2:]))


def read(path: str, talks: list[list[dict]]) -> Speaking:
    found = Speaking(path)
    sides: Counter[str] = Counter()
    asked = 0
    for talk in talks:
        here = set()
        for message in talk:
            value = value_at(path, message) if path else speaker_of(message)
            role = role_in(path, value) if path else role_of(value, {})
            said = role_text(value)
            found.values[said] += bool(said)
            if role:
                sides[role] += 1
                here.add(role)
                if role != role_of(said, {}):
                    found.roles[said] = role
        asked += "user" in here
    return _with_shares(found, sides, asked, talks)


def _with_shares(
    found: Speaking, sides: Counter[str], asked: int, talks: list[list[dict]]
) -> Speaking:
    found.sides = frozenset(sides)
    found.known = sum(sides.values()) / max(sum(map(len, talks)), 1)
    found.asks = bool(talks) and asked * 2 >= len(talks)
    return found


def _listed(path: str, people: str, talks: list[list[dict]], records: list[dict]) -> Speaking:
    found = Speaking(path, people=people)
    sides: Counter[str] = Counter()
    asked = 0
    for talk, record in zip(talks, records, strict=True):
        roles = roles_of_people(value_at(people, record))
        here = [role for message in talk if (role := roles.get(role_text(value_at(path, message))))]
        sides.update(here)
        asked += "user" in here
    return _with_shares(found, sides, asked, talks)


def _paths(messages: list[dict]) -> list[str]:
    """The fields of the messages with a short value, also in an object or the first of a list."""
    found: dict[str, None] = {}
    for message in messages[:200]:
        for path, value in _short_values(message):
            if isinstance(value, bool | int) or (isinstance(value, str) and len(value) <= 80):
                found[path] = None
    return list(found)


def _short_values(message: dict) -> Iterator[tuple[str, Any]]:
    for name, value in message.items():
        if not NAME.fullmatch(name):
            continue
        first = value[0] if isinstance(value, list) and value else None
        inner, place = (value, name) if isinstance(value, dict) else (obj(first), f"{name}[0]")
        yield name, value
        yield from ((f"{place}.{key}", item) for key, item in inner.items() if NAME.fullmatch(key))


def _lists(record: dict) -> Iterator[str]:
    """Where people may be listed: lists of objects with ids, or objects by id, in the record."""
    for name, value in record.items():
        first = value[0] if isinstance(value, list) and value else None
        if isinstance(value, dict):
            first = next(iter(value.values()), None)
        if NAME.fullmatch(name) and isinstance(first, dict):
            yield name


def value_at(path: str, item: dict) -> Any:
    """The value of a path as `_short_values` makes them."""
    name, _, inner = path.partition(".")
    value = item.get(name.removesuffix("[0]"))
    if name.endswith("[0]"):
        value = value[0] if isinstance(value, list) and value else None
    return obj(value).get(inner) if inner else value
