"""Reading values of any shape, and messages as the field writes them, into the row's form."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from apps.trajectories import costs
from apps.trajectories.decoding import RowError, clean
from apps.trajectories.dialects import chat, tool_definitions
from apps.trajectories.importers.records import Record
from workers.lib import token_usage
from workers.lib.messages import native_calls, native_items, tool_names

NO_WORDS = (
    "no message has words or a tool call: they are under names that this format does not have. Map"
    " the file's fields instead"
)
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
SAYING = ("content", "tool_calls", "function_call", "reasoning_content", "refusal", "audio")
MAX_COUNT = 2_000_000_000
Row = tuple[int, Any]  # (position, a raw row dict or a RowError)


def each(records: Iterable[Record], convert: Callable[[dict], dict]) -> Iterator[Row]:
    """One row a record; `convert` raises RowError."""
    for position, record in records:
        try:
            yield position, convert(require_object(record))
        except RowError as error:
            yield position, error


def require_object(record: Any) -> dict:
    """Raises RowError for what is not an object (and the error that a record may be)."""
    if isinstance(record, RowError):
        raise record
    if not isinstance(record, dict):
        raise RowError("", f"expected an object, got {type(record).__name__}")
    return record


def obj(value: Any) -> dict:
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list:
    return value if isinstance(value, list) else []


def first(value: dict, *names: str) -> Any:
    """The first of these fields that is there and not null."""
    return next((value[name] for name in names if value.get(name) is not None), None)


def text(value: Any, limit: int | None = None) -> str:
    """A short text: strings and numbers as they are, anything else "" ."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(value)[:limit]


def as_text(value: Any) -> str:
    """Any value as text; what is not text is JSON."""
    return (
        value
        if isinstance(value, str)
        else ""
        if value is None
        else json.dumps(value, ensure_ascii=False)
    )


def number(value: Any) -> float | None:
    """A finite number, also where it was written as a string."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


GROUPED = re.compile(r"([+-]?)(\d{1,3}(?:,\d{3})+)(\.\d+)?")
DECIMAL_COMMA = re.compile(r"([+-]?)(\d+|\d{1,3}(?:[.\s']\d{3})+),(\d+)")
AMBIGUOUS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


def amount(value: Any) -> float | None:
    """A number as people write it in a table, with a decimal comma or groups of thousands; not
    `1,234`, which may be either.
    """
    if (
        (found := number(value)) is not None
        or not isinstance(value, str)
        or AMBIGUOUS.fullmatch(value.strip())
    ):
        return found
    if grouped := GROUPED.fullmatch(value.strip()):
        return float(grouped[1] + grouped[2].replace(",", "") + (grouped[3] or ""))
    if comma := DECIMAL_COMMA.fullmatch(value.strip()):
        return float(f"{comma[1]}{re.sub(r'[^0-9]', '', comma[2])}.{comma[3]}")
    return None


def count(value: Any) -> int | None:
    found = number(value)
    return int(found) if found is not None and 0 <= found <= MAX_COUNT else None


def positive(
    value: Any, below: float = math.inf, read: Callable[[Any], float | None] = number
) -> float | None:
    found = read(value)
    return found if found is not None and 0 <= found < below else None


def usage(given: Any, cost: Any = None) -> dict:
    """A row's usage from a provider's usage object; `cost` wins over one inside it."""
    counts = token_usage.parse(given).as_sent
    cost_usd = positive(cost, below=1_000_000)
    return counts if cost_usd is None else counts | {"cost_usd": cost_usd}


def usage_of_calls(calls: Iterable[dict], cost: Any = None) -> dict:
    """A row's usage from its model calls, each with its `usage`, model and time; `cost` is that of
    all together.
    """
    made = costs.usage_of_calls([without_empty(call) for call in calls if call["usage"]])
    cost_usd = positive(cost, below=1_000_000)
    return made if cost_usd is None else made | {"cost_usd": cost_usd}


def moment(value: Any) -> str | None:
    """ISO 8601 with a zone, from ISO text (UTC where it names none) or a Unix time in s, ms, µs or
    ns.
    """
    try:
        if isinstance(value, str):
            found = datetime.fromisoformat(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            scale = next((unit for unit in (1, 1e3, 1e6, 1e9) if abs(value) / unit < 1e11), 1e9)
            found = datetime.fromtimestamp(value / scale, UTC)
        else:
            return None
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return None


def milliseconds(start: str | None, end: str | None) -> float | None:
    """Between two moments."""
    if not start or not end:
        return None
    return positive(
        (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds() * 1000
    )


def digest(value: Any) -> str:
    """32 hex digits of the content: the id of what has none."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def identity(*parts: Any) -> str:
    """An id of at most 200 characters from parts of any length."""
    whole = ":".join(str(part) for part in parts if part not in (None, ""))
    return whole if len(whole) <= 200 else f"{whole[:160]}:{digest(whole)}"


def without_empty(value: dict) -> dict:
    return {name: item for name, item in value.items() if item not in (None, "", [], {})}


def unpacked(value: Any) -> Any:
    """The JSON inside a string, where a string holds an object or an array."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return clean(json.loads(value, parse_constant=_refuse))
        except (ValueError, RecursionError, RowError):
            return value
    return value


def _refuse(name: str) -> float:
    raise ValueError(name)


def chat_messages(value: Any, path: str = "messages") -> list[dict]:
    """Chat messages from OpenAI, LangChain or Anthropic shaped ones. Raises RowError."""
    if not isinstance(value, list):
        raise RowError(path, f"expected a list of messages, got {type(value).__name__}")
    found: list[dict] = []
    for index, message in enumerate(value):
        if not isinstance(message, dict):
            raise RowError(f"{path}[{index}]", f"expected a message, got {type(message).__name__}")
        found += chat_message(message, f"{path}[{index}]")
    return found


def chat_message(message: dict, path: str = "message") -> list[dict]:
    """One foreign message as chat messages: several where it carries tool results. Raises
    RowError.
    """
    role = text(first(message, "role", "type"))
    if not role:
        raise RowError(path, "a message without a role")
    if len(list(filter(None, tool_names(message)))) < len(native_items(message)):
        raise RowError(f"{path}.tool_calls", "a tool call without a name")
    return chat(message, role) or [{"role": "assistant", "content": message.get("content")}]


def with_words(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows; those whose messages say nothing are refused, since what they say must be under
    other names.
    """
    for position, row in rows:
        if isinstance(row, dict) and not _speaks(row):
            yield position, RowError("messages", NO_WORDS)
        else:
            yield position, row


def _speaks(row: dict) -> bool:
    """Whether any message has content or calls. What is no list of messages is refused later, with
    its own reason.
    """
    messages = row.get("messages")
    if (
        not messages
        or not isinstance(messages, list)
        or obj(row.get("metadata")).get("content_captured") is False
    ):
        return True
    known = all(isinstance(message, dict) and message.get("role") in ROLES for message in messages)
    return not known or any(map(speaks, messages))


def speaks(message: dict) -> bool:
    """Whether a message has content or calls."""
    return any(_stripped(message.get(name)) for name in SAYING)


def _stripped(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def flat(content: Any) -> str:
    """Text of a content: of its text parts; what is not text is JSON."""
    if not isinstance(content, list):
        return as_text(content)
    return "\n".join(
        (
            part["text"]
            if isinstance(part, dict) and isinstance(part.get("text"), str)
            else as_text(part)
        )
        for part in content
    )


def chat_tools(value: Any) -> list[dict]:
    """OpenAI chat tools from chat, Responses, legacy `functions` or Anthropic declarations; others
    are left out.
    """
    return tool_definitions(items(value))


def fingerprint(message: dict) -> str:
    """The same for a message that a client sends back and the answer it got: what decides is said,
    not how.
    """
    calls = [
        [call.tool, call.arguments if call.args is None else call.args]
        for call in native_calls(message)
    ]
    return digest(
        [message["role"], message.get("content") or "", calls, message.get("tool_call_id", "")]
    )


def history(messages: list[dict]) -> list[str]:
    """For each length from 1 the digest of the conversation so far; equal digests mean equal
    conversations.
    """
    found: list[str] = []
    for message in messages:
        found.append(digest([found[-1] if found else "", fingerprint(message)]))
    return found
