"""A copy of a row in which every string is what a function says of it; JSON in a string stays
JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from apps.trajectories import media
from apps.trajectories.redaction.kinds import PHONE_WORD, SSN_WORD
from apps.trajectories.redaction.names import looks, named
from apps.trajectories.redaction.rules import Leaf

UNTOUCHED = frozenset({"id", "started_at", "ended_at", "usage", "latency_ms"})
MAX_DEPTH = 80  # the schema refuses rows nested less deep than this


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def to_text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def sound(text: str) -> str:
    """As many characters, none of them a lone surrogate."""
    return text.encode("utf-8", "replace").decode()


_CONTEXT = re.compile(f"{PHONE_WORD}|{SSN_WORD}".replace("{b}", r"\b"))


@lru_cache(maxsize=4096)
def context_of(key: str) -> str:
    """The key, where it says what its value is."""
    return key if len(key) <= 60 and (_CONTEXT.search(key) or named(key)) else ""


def key_context(key: str, connects: bool) -> str:
    """The same. Beside an address, or among headers, “authorization” is no state of something."""
    about = context_of(key)
    return f"header {about}" if about and connects else about


JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?|-?\d[\d.eE+-]*|[{}]', re.S)


def is_json(text: str) -> bool:
    """Whether a string holds a JSON object or array."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        return False
    return True


See = Callable[[Leaf], str]
# {"command": "mysql", "args": ["-p", …]}: what says whose arguments these are
PROGRAMS = frozenset({"command", "cmd", "program", "executable", "binary", "entrypoint", "exe"})
MOST_BEFORE, LONGEST_BEFORE = (
    6,
    80,
)  # items of a list, and characters of each, that are read with the next one
CONNECTION = frozenset(
    {"server_url", "server_label", "url", "base_url", "endpoint", "command", "host"}
)
HEADERS = re.compile(r"(?i)(?:^|_|\b)headers?$|^env$")
# {"name": "DB_PASSWORD", "value": …}: what a field says of its neighbour
LABELS, LABELLED = (
    ("name", "key", "field", "label", "selector", "element", "variable", "header"),
    frozenset({"value", "text", "val"}),
)
# {"api_key": {"type": "string", "default": …}}: a schema's member that holds a value of its name
OF_THE_NAME_ABOVE = frozenset({"default", "const", "example", "examples", "initial"})
SHORTEST_DEFAULT = 8  # a default may also be a word: “generated”


class Arguments:
    """The items of a list before one. What is a secret by its place in a command line is one there:
    `["--token", "…"]`.
    """

    def __init__(self, program: str = "") -> None:
        self.program, self.first, self.has_option = program, "", False
        self.last: list[str] = []

    def add(self, text: str) -> None:
        self.first = self.first or text[:LONGEST_BEFORE]
        self.last = [*self.last[1 - MOST_BEFORE :], text[:LONGEST_BEFORE]]
        self.has_option = self.has_option or text.startswith("-")

    def before(self, text: str) -> str:
        """The command line up to this item, or a name before it, ending with a space; "" if they
        say nothing of it.
        """
        name = self.last[-1] if self.last else ""
        if name and not name.startswith("-") and " " not in name and context_of(name):
            return f"{name} "  # ["X-Api-Key", "…"]
        if not (self.has_option or text.startswith("-")) or not (self.program or self.last):
            return ""
        first = self.first if len(self.last) == MOST_BEFORE else ""
        return "".join(
            f"{item} " for item in (self.program[:LONGEST_BEFORE], first, *self.last) if item
        )


def _walk(
    value: Any,
    see: See,
    context: str = "",
    keep: frozenset[str] = frozenset(),
    depth: int = 0,
    program: str = "",
    inside: str = "",
) -> Any:
    """A copy of a JSON value in which every string is what `see` says of it; keys in `keep` stay
    with their values.

    `program` is that whose arguments a list has, `inside` the key of an object.
    """
    if isinstance(value, str):
        return walk_string(value, see, context)
    if isinstance(value, int) and not isinstance(value, bool) and 10**6 < value < 10**19:
        seen = see(Leaf(context, str(value)))
        return value if seen == str(value) else seen
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, list):
        line = Arguments(program)
        walked = []
        for item in value:
            about = context
            if isinstance(item, str):
                about = context or line.before(item)
                line.add(item)
            walked.append(_walk(item, see, about, keep, depth + 1, inside=inside))
        return walked
    if isinstance(value, dict):
        copy: dict[Any, Any] = {}
        label = next(
            (
                found
                for name in LABELS
                if isinstance(said := value.get(name), str) and (found := context_of(said))
            ),
            "",
        )
        program = next((said for name in PROGRAMS if isinstance(said := value.get(name), str)), "")
        connects = bool(HEADERS.search(inside)) or not CONNECTION.isdisjoint(value)
        for key, item in value.items():
            named = _free(see(Leaf("", key)), copy, key) if isinstance(key, str) else key
            about = key_context(str(key), connects) or (label if key in LABELLED else "")
            if not about and key in OF_THE_NAME_ABOVE and _has_secret_form(item):
                about = context_of(inside)
            own = program if key not in PROGRAMS else ""
            copy[named] = (
                item
                if key in keep
                else _walk(item, see, about, depth=depth + 1, program=own, inside=str(key))
            )
        return copy
    return value


def _has_secret_form(value: Any) -> bool:
    items = value if isinstance(value, list) else [value]
    return any(isinstance(item, str) and looks(item, SHORTEST_DEFAULT) for item in items)


def _free(key: str, taken: dict, old: str) -> str:
    """Two keys that become the same text stay two keys."""
    number, free = 2, key
    while key != old and free in taken:
        free, number = f"{key} {number}", number + 1
    return free


class Place:
    """What has been read of a JSON text before a string: its key, a label beside it, the items of
    its list.
    """

    def __init__(self, context: str = "") -> None:
        self.key, self.name, self.label, self.program = context, "", "", ""
        self.above = [""]  # the names of the objects around it
        self.line = Arguments()
        self.values = 0  # since the key
        self.connects = self.after_key = False

    def context(self, value: str) -> str:
        if not self.key and self.name in OF_THE_NAME_ABOVE and _has_secret_form(value):
            return context_of(self.above[-1])
        return self.key or self.line.before(value)

    def brace(self, brace: str) -> None:
        if brace == "{":
            self.above.append(self.name if self.after_key else "")
            self.after_key = False
        elif len(self.above) > 1:
            self.above.pop()

    def read(self, text: str, is_key: bool) -> None:
        if is_key:
            self.connects = (
                self.connects or text in CONNECTION or bool(HEADERS.search(self.above[-1]))
            )
            self.name, self.after_key = text, True
            self.line, self.values = Arguments("" if text in PROGRAMS else self.program), 0
            self.key = key_context(text, self.connects) or (self.label if text in LABELLED else "")
            return
        self.after_key = False
        self.values += 1
        self.line.add(text)
        if self.name in LABELS:
            self.label = context_of(text)
        if self.name in PROGRAMS:
            self.program = text if self.values == 1 else ""


def walk_string(text: str, see: See, context: str = "") -> str:
    """A string; JSON in it (the arguments of a call, the reply of a tool) stays JSON, also where it
    is cut.
    """
    if media.is_embedded(text):
        return text
    if not is_json(text):
        return see(Leaf(context, text))
    keys: dict[str, None] = {}
    place = Place(context)

    def token(match: re.Match[str]) -> str:
        raw = match[0]
        if raw in "{}":
            place.brace(raw)
            return raw
        if raw[0] != '"':
            plain = raw.isdigit() and 6 < len(raw) < 20
            seen = see(Leaf(place.key, raw)) if plain else raw
            return raw if seen == raw else json.dumps(seen, ensure_ascii=False)
        colon = match[1] or ""
        plain = raw.removesuffix(colon).rstrip()
        old = json.loads(plain) if "\\" in plain else plain[1:-1]
        new = see(Leaf("", old)) if colon else walk_string(old, see, place.context(old))
        if colon:
            new = _free(new, keys, old)
            keys[new] = None
        place.read(old, is_key=bool(colon))
        return raw if new == old else json.dumps(new, ensure_ascii=not _encodes(new)) + colon

    return JSON_TOKEN.sub(token, text)


def _encodes(text: str) -> bool:
    return sound(text) == text


_MESSAGE, _CALL = frozenset({"role", "tool_call_id"}), frozenset({"id", "type"})


def _walk_message(message: Any, see: See) -> Any:
    """A message; what ties calls to replies and names the role stays."""
    if not isinstance(message, dict):
        return _walk(message, see)
    calls = message.get("tool_calls")
    copy = _walk(message, see, keep=_MESSAGE | {"tool_calls"})
    if isinstance(calls, list):
        copy["tool_calls"] = [_walk(call, see, keep=_CALL) for call in calls]
    return copy


def walk_row(row: dict, see: See) -> dict:
    """A copy of the row. The client's `id` stays: it is the key by which a resent row is known and
    feedback arrives.
    """
    copy = dict(row)
    for name, value in row.items():
        if name in UNTOUCHED:
            continue
        if name == "messages" and isinstance(value, list):
            copy[name] = [_walk_message(message, see) for message in value]
        elif name == "outcome":
            copy[name] = _walk(value, see, keep=frozenset({"status"}))
        elif name == "interventions":
            copy[name] = _walk(value, see, keep=frozenset({"kind"}))
        else:
            copy[name] = _walk(value, see)
    return copy
