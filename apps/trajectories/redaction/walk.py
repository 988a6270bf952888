"""A copy of a row in which every string is what a function says of it; JSON in a string stays JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from apps.trajectories.redaction.kinds import PHONE_WORD, SSN_WORD
from apps.trajectories.redaction.names import named
from apps.trajectories.redaction.rules import Leaf

UNTOUCHED = frozenset({"id", "started_at", "ended_at", "usage", "latency_ms"})
MAX_DEPTH = 80  # the schema refuses rows nested less deep than this
_WHOLE_DATA_URL = re.compile(r"data:[A-Za-z0-9.+/;=-]{0,100};base64,[A-Za-z0-9+/=_\s-]*\Z")


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


JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?|-?\d[\d.eE+-]*', re.S)


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
# {"name": "DB_PASSWORD", "value": …}: what a field says of its neighbour
LABELS, LABELLED = (
    ("name", "key", "field", "label", "selector", "element", "variable", "header"),
    frozenset({"value", "text", "val"}),
)


def _walk(value: Any, see: See, context: str = "", keep: frozenset[str] = frozenset(), depth: int = 0) -> Any:
    """A copy of a JSON value in which every string is what `see` says of it; keys in `keep` stay with their values."""
    if isinstance(value, str):
        return walk_string(value, see, context)
    if isinstance(value, int) and not isinstance(value, bool) and 10**6 < value < 10**19:
        seen = see(Leaf(context, str(value)))
        return value if seen == str(value) else seen
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, list):
        return [_walk(item, see, context, keep, depth + 1) for item in value]
    if isinstance(value, dict):
        copy: dict[Any, Any] = {}
        label = next(
            (found for name in LABELS if isinstance(said := value.get(name), str) and (found := context_of(said))), ""
        )
        for key, item in value.items():
            named = _free(see(Leaf("", key)), copy, key) if isinstance(key, str) else key
            about = context_of(str(key)) or (label if key in LABELLED else "")
            copy[named] = item if key in keep else _walk(item, see, about, depth=depth + 1)
        return copy
    return value


def _free(key: str, taken: dict, old: str) -> str:
    """Two keys that become the same text stay two keys."""
    number, free = 2, key
    while key != old and free in taken:
        free, number = f"{key} {number}", number + 1
    return free


def walk_string(text: str, see: See, context: str = "") -> str:
    """A string; JSON in it (the arguments of a call, the reply of a tool) stays JSON, also where it is cut."""
    if text.startswith("data:") and _WHOLE_DATA_URL.match(text):
        return text
    if not is_json(text):
        return see(Leaf(context, text))
    keys: dict[str, None] = {}
    key, name, label = context, "", ""

    def token(match: re.Match[str]) -> str:
        nonlocal key, name, label
        raw = match[0]
        if raw[0] != '"':
            plain = raw.isdigit() and 6 < len(raw) < 20
            seen = see(Leaf(key, raw)) if plain else raw
            return raw if seen == raw else json.dumps(seen, ensure_ascii=False)
        colon = match[1] or ""
        plain = raw.removesuffix(colon).rstrip()
        old = json.loads(plain) if "\\" in plain else plain[1:-1]
        new = see(Leaf("", old)) if colon else walk_string(old, see, key)
        if colon:
            name, key = old, context_of(old) or (label if old in LABELLED else "")
            new = _free(new, keys, old)
            keys[new] = None
        elif name in LABELS:
            label = context_of(old)
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
    """A copy of the row. The client's `id` stays: it is the key by which a resent row is known and feedback arrives."""
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
