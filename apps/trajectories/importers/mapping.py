"""A mapping says where our fields stand in somebody's own table or JSON, and makes rows of it.

Three layouts: a record holds a whole `conversation`; a record is one message (`messages`), and
those of one conversation are gathered; a record is a question with its answer (`pairs`). What no
field takes stays in `metadata.extra`, unless `keep_rest` is off. The same record gives the same id,
so importing a file again changes nothing.
"""

from __future__ import annotations

import email.utils
import json
import math
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

from apps.trajectories.decoding import RowError
from apps.trajectories.dialects import linked
from apps.trajectories.importers.paths import Path, PathError, loose
from apps.trajectories.importers.records import MAX_RECORD, Record
from apps.trajectories.importers.shapes import (
    Row,
    amount,
    as_text,
    chat_tools,
    count,
    digest,
    identity,
    items,
    moment,
    number,
    obj,
    positive,
    require_object,
    speaks,
    text,
    without_empty,
)
from apps.trajectories.importers.turns import (
    READ_OF_A_TURN,
    SKIP,
    as_arguments,
    called_and_answered,
    next_call,
    role_of,
    role_text,
    roles_of_people,
    speaker_of,
    turn,
    turns,
)
from apps.trajectories.schema import MAX_COST_USD, MAX_LATENCY_MS, MAX_REWARD, MAX_TOKENS, in_utc
from workers.lib import typed

MAX_REMEMBERED = 1_000_000  # ids of a file that are compared with those before them
MAX_MAPPING_ITEMS = 200
FAILED = (
    "false",
    "0",
    "no",
    "n",
    "failure",
    "failed",
    "fail",
    "error",
    "errored",
    "incorrect",
    "wrong",
    "bad",
    "unresolved",
    "unsolved",
    "negative",
    "thumbs_down",
    "thumbsdown",
    "👎",
    "f",
    "rejected",
    "not resolved",
    "down",
    "nein",
    "non",
    "não",
    "нет",
    "falsch",
    "falso",
    "faux",
    "nicht gelöst",
    "ungelöst",
    "fehlgeschlagen",
    "gescheitert",
    "misserfolg",
    "échec",
    "échoué",
    "non résolu",
    "no resuelto",
    "fallido",
    "fracaso",
    "não resolvido",
    "falha",
    "falhou",
    "thumbs down",
    "thumb down",
    "daumen runter",
    "daumen unten",
    "pouce bas",
    "pouce en bas",
    "pulgar abajo",
    "polegar para baixo",
    "pollice giù",
    "pollice in giù",
    "duim omlaag",
    "schlecht",
    "mauvais",
    "malo",
    "ruim",
    "cattivo",
    "slecht",
    "non risolto",
    "fallito",
    "nee",
    "niet opgelost",
)
WORKED = (
    "true",
    "1",
    "yes",
    "y",
    "success",
    "succeeded",
    "successful",
    "pass",
    "passed",
    "ok",
    "okay",
    "correct",
    "right",
    "good",
    "resolved",
    "solved",
    "positive",
    "thumbs_up",
    "thumbsup",
    "👍",
    "t",
    "completed",
    "complete",
    "done",
    "accepted",
    "up",
    "ja",
    "oui",
    "sí",
    "si",
    "sim",
    "да",
    "wahr",
    "verdadero",
    "vrai",
    "erfolg",
    "erfolgreich",
    "gelöst",
    "erledigt",
    "succès",
    "réussi",
    "résolu",
    "éxito",
    "exitoso",
    "resuelto",
    "sucesso",
    "resolvido",
    "thumbs up",
    "thumb up",
    "daumen hoch",
    "daumen oben",
    "pouce haut",
    "pouce en haut",
    "pulgar arriba",
    "polegar para cima",
    "pollice su",
    "pollice in su",
    "duim omhoog",
    "gut",
    "bon",
    "bueno",
    "bom",
    "buono",
    "goed",
    "risolto",
    "riuscito",
    "opgelost",
)
PLAIN = {
    "true",
    "false",
    "yes",
    "no",
    "y",
    "n",
    "t",
    "f",
    "success",
    "failure",
    "ja",
    "nein",
    "oui",
    "non",
    "sí",
    "si",
    "sim",
    "não",
    "да",
    "нет",
}  # which say no more than the status

FIRST_UNIX_TIME = 1e8  # 1973: a smaller number is a duration or a count
YEAR_FIRST = re.compile(r"^(\d{4})([-/])(\d{1,2})\2(\d{1,2})(?:[,T]?\s*(\d{1,2}:\d{2}))?(?![\dT])")
DAY_FIRST = re.compile(r"^(\d{1,2})\.(\d{1,2})\.(\d{4})(?:,?\s+(\d{1,2}:\d{2}))?")
MERIDIEM = re.compile(r"\b(\d{1,2})(:\d{2})?(:\d{2}(?:\.\d+)?)?\s*([ap])\.?m\b\.?", re.IGNORECASE)
# Day or month first: see `date_order`.
SLASHED = re.compile(r"^(\d{1,2})([/-])(\d{1,2})\2(\d{4})(?:[,T]?\s*(\d{1,2}:\d{2}))?(?!\d)")


@dataclass(frozen=True)
class Field:
    name: str
    label: str
    about: str = ""


RUN = (
    Field(
        "id",
        "Id",
        "Unique; importing it again updates the same trajectory. Without it, identical content is "
        "recognised as a duplicate.",
    ),
    Field(
        "outcome",
        "Outcome",
        "Whether the run went well: true/false, yes/no, words, or a score with a threshold.",
    ),
    Field("score", "Score", "A number, kept as the reward."),
    Field("reason", "Reason", "Why it failed, or a comment."),
    Field(
        "started_at",
        "Time",
        "When it began (of single messages: when each was said). ISO 8601, Unix time, 31.01.2026"
        " 12:00, or 31/01/2026.",
    ),
    Field("ended_at", "End time"),
    Field("agent_name", "Agent", "The agent's name."),
    Field("agent_version", "Agent version"),
    Field("model", "Model"),
    Field("workload", "Workload"),
    Field("session_id", "Session"),
    Field("user_id", "User"),
    Field("tools", "Tool definitions"),
    Field("input_tokens", "Input tokens"),
    Field("output_tokens", "Output tokens"),
    Field("cost_usd", "Cost in $"),
    Field("latency_ms", "Latency in ms"),
    Field("latency_s", "Latency in s"),
    Field("tags", "Tags", "A list, or comma-separated words."),
    Field("metadata", "Metadata", "An object."),
)
MESSAGE = (
    Field("role", "Role", "Who speaks."),
    Field("content", "Text"),
    Field("tool_calls", "Tool calls", "JSON, or text such as search(text='disk')."),
    Field("tool_name", "Tool name", "The tool that is called or that returns a result."),
    Field("tool_arguments", "Tool arguments"),
    Field("tool_result", "Tool result", "The tool's result, if it is in the same row as the call."),
    Field("tool_call_id", "Tool call id"),
)
BY_LAYOUT: dict[str, tuple[Field, ...]] = {
    "conversation": (
        Field("messages", "Messages", "The list of messages, or a transcript (“User: …”)."),
        Field(
            "role", "Role", "Inside a message, if it is not role, from, speaker, sender or type."
        ),
        Field("content", "Text", "Inside a message, if it is not content, value, text or message."),
        Field(
            "people",
            "Speakers",
            "The list beside the messages that has the roles of the ids that they name.",
        ),
        Field(
            "question",
            "First message",
            "What was said before the messages, if it is beside them: a text, or a message.",
        ),
        Field(
            "answer",
            "Answer",
            "The agent's answer, if it is not the last of the messages: a text, or messages.",
        ),
        *RUN,
    ),
    "messages": (
        Field(
            "conversation",
            "Conversation",
            "Rows with the same value form one trajectory; without it, the whole file is one.",
        ),
        Field("order", "Order", "A turn number or a time; without it, as in the file."),
        *MESSAGE,
        *RUN,
    ),
    "pairs": (
        Field("question", "Question", "The user's question."),
        Field("answer", "Answer", "The agent's answer."),
        Field(
            "tool_calls",
            "Tool calls",
            "Made before the answer: JSON, with a result in each call if there is one, or text such"
            " as search(text='disk').",
        ),
        Field("system", "System prompt"),
        Field(
            "conversation",
            "Conversation",
            "Rows with the same value are turns of one trajectory; without it, each row is one.",
        ),
        Field("order", "Order", "A turn number or a time; without it, as in the file."),
        *RUN,
    ),
}
NEEDED = {
    "conversation": ("messages",),
    "messages": ("role", "content"),
    "pairs": ("question", "answer"),
}
TEXTS = {"agent_name": ("agent", "name"), "agent_version": ("agent", "version")}
BELOW = {
    "cost_usd": MAX_COST_USD,
    "input_tokens": MAX_TOKENS,
    "output_tokens": MAX_TOKENS,
    "latency_ms": MAX_LATENCY_MS,
    "latency_s": MAX_LATENCY_MS / 1000,
}
NUMBERS = ("input_tokens", "output_tokens", "cost_usd", "latency_ms", "latency_s")


class MappingError(ValueError):
    """A mapping that cannot be used; the message is a sentence for the page."""


class Mapping(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """`fields`: our field → a column, a JMESPath, or “=text”. `records`: where the list of records
    is inside a document.

    `success` and `failure`: values of the outcome (any case) that mean so; of a number, `threshold`
    and more is success. Where none of these is given, words such as “yes” and “failed” are
    understood, except those in `unknown`, which mean neither. `roles`: the file's name of a role →
    ours, or “skip”. `totals`: whether the numbers of a conversation's rows are added up, or stand
    whole in each. `fill_down`: an empty cell of the conversation's column repeats the one above, as
    merged cells of a spreadsheet do. `dates`: whether 02/01/2026 is day/month/year or
    month/day/year; see `settled`.
    """

    layout: Literal["conversation", "messages", "pairs"] = "conversation"
    fields: dict[str, str] = {}
    records: str = ""
    success: list[str] = []
    failure: list[str] = []
    unknown: list[str] = []
    threshold: float | None = None
    roles: dict[str, Literal["user", "assistant", "tool", "system", "skip"]] = {}
    totals: Literal["sum", "last"] = "sum"
    dates: Literal["", "day", "month"] = ""
    keep_rest: bool = True
    fill_down: bool = False


def load(given: Any) -> Mapping:
    """From JSON. Raises MappingError."""
    try:
        found = typed.convert(given, Mapping)
    except typed.FormError as error:
        raise MappingError(
            f"{error.path}: {error.problem}" if error.path else error.problem
        ) from error
    check(found)
    return found


def check(mapping: Mapping, columns: set[str] | None = None) -> None:
    """Raises MappingError if a field is unknown to the layout, a needed one is missing, or a path
    is none.
    """
    known = {one.name for one in BY_LAYOUT[mapping.layout]}
    if unknown := sorted(set(mapping.fields) - known):
        raise MappingError(
            f"{unknown[0]} is not a field of the layout “{mapping.layout}”. There are:"
            f" {', '.join(sorted(known))}."
        )
    if missing := [name for name in NEEDED[mapping.layout] if not mapping.fields.get(name)]:
        raise MappingError(f"Choose a column for: {', '.join(missing)}.")
    if (
        max(map(len, (mapping.roles, mapping.success, mapping.failure, mapping.unknown)))
        > MAX_MAPPING_ITEMS
    ):
        raise MappingError(f"At most {MAX_MAPPING_ITEMS} roles and values are mapped.")
    for name, path in [*mapping.fields.items(), ("records", mapping.records)]:
        try:
            Path(path).check(columns) if path else None
        except PathError as error:
            raise MappingError(f"{name}: {error}.") from error


def as_json(mapping: Mapping) -> dict[str, Any]:
    return msgspec.to_builtins(mapping)


@dataclass
class Unread:
    """Values of one field that could not be used; they stay in `metadata.extra`."""

    count: int = 0
    example: str = ""
    position: int = 0

    def sentence(self, name: str) -> str:
        rows = "1 trajectory" if self.count == 1 else f"{self.count:,} trajectories"
        after = (
            "; it gets the time of the import"
            if self.count == 1
            else "; they get the time of the import"
        )
        return f"“{self.example}” cannot be read: {rows}{after if name == 'started_at' else ''}"


@dataclass
class Report:
    """What a mapping left behind: values by field, records by column or path; of `lost` paths,
    which are inside messages, not even the metadata keeps the values.
    """

    unread: dict[str, Unread] = field(default_factory=dict)
    unmapped: Counter[str] = field(default_factory=Counter)
    lost: set[str] = field(default_factory=set)
    examples: dict[str, str] = field(default_factory=dict)
    records: int = 0

    def leave(self, values: dict[str, Any], lost: bool = False) -> None:
        """Notes what is not used of a record, by its path."""
        self.unmapped.update(values.keys())
        self.lost |= values.keys() if lost else set()
        for name in values.keys() - self.examples.keys():
            self.examples[name] = as_text(values[name])[:120]


def rows(
    records: Iterable[Record], name: str, mapping: Mapping, report: Report | None = None
) -> Iterator[Row]:
    """The trajectories that a mapping makes of records. Refused rows are RowErrors at their
    place.
    """
    return Mapper(mapping, report or Report()).rows(records)


class Mapper:
    def __init__(self, mapping: Mapping, report: Report) -> None:
        self.mapping, self.report = mapping, report
        self.paths = {name: Path(path) for name, path in mapping.fields.items() if path}
        self.roles = {name.strip().lower(): role for name, role in mapping.roles.items()}
        self.success = {value.strip().lower() for value in mapping.success}
        self.failure = {value.strip().lower() for value in mapping.failure}
        self.unknown = {value.strip().lower() for value in mapping.unknown}
        self.pruned = [path.steps for path in self.paths.values() if path.steps]
        self.whole = {path.text for path in self.paths.values()} | {
            path.root for path in self.paths.values() if path.text.removeprefix("$.") == path.root
        }
        self._ids: dict[bytes, int] = {}

    def rows(self, records: Iterable[Record]) -> Iterator[Row]:
        gathers = self.mapping.layout == "messages" or "conversation" in self.paths
        found = (
            self._gathered(self._inner(records)) if gathers else self._alone(self._inner(records))
        )
        for position, row in found:
            yield position, self._once(position, row)

    def _inner(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records, where each is the item of a list inside a document."""
        if not self.mapping.records:
            for position, record in records:
                self.report.records += 1
                yield position, record
            return
        path, number = Path(self.mapping.records), 0
        for position, record in records:
            found = path.get(record) if isinstance(record, dict) else record
            if isinstance(found, list):
                for item in found:
                    number += 1
                    self.report.records += 1
                    yield number, item
            else:
                problem = RowError(
                    self.mapping.records, f"expected a list, got {type(found).__name__}"
                )
                yield position, found if isinstance(found, RowError) else problem

    def _once(self, position: int, row: Any) -> Any:
        """A second row with the id of another, and another content, would replace it: it is
        refused.
        """
        if isinstance(row, RowError) or "id" not in self.paths or len(self._ids) >= MAX_REMEMBERED:
            return row
        key = digest(row["id"]).encode()
        if key in self._ids:
            return RowError(
                self.paths["id"].text,
                f"has the id of row {self._ids[key]}: “{row['id'][:80]}”. Is this column unique?",
            )
        self._ids[key] = position
        return row

    def _alone(self, records: Iterable[Record]) -> Iterator[Row]:
        for position, record in records:
            try:
                yield position, self._row(position, [require_object(record)], "")
            except RowError as error:
                yield position, error

    def _gathered(self, records: Iterable[Record]) -> Iterator[Row]:
        """Rows of one conversation from wherever they stand in the file; they wait in a temporary
        database on the disk.
        """
        path, above = self.paths.get("conversation"), ""
        with sqlite3.connect("") as held:
            held.execute("create table record (talk text, position integer, data text)")
            for position, record in records:
                try:
                    record = require_object(record)
                    talk = as_text(path.get(record)) if path else "file"
                    if not talk and self.mapping.fill_down and not self._speaks(record):
                        raise RowError(
                            "", "has neither a conversation nor a speaker, so it is not a message"
                        )
                    talk = above = talk or (above if self.mapping.fill_down else "")
                    if not talk:
                        raise RowError(
                            path.text if path else "", "no conversation: the row belongs to none"
                        )
                    held.execute(
                        "insert into record values (?, ?, ?)", (talk, position, json.dumps(record))
                    )
                except RowError as error:
                    yield position, error
            held.execute("create index by_talk on record (talk)")
            talks = held.execute(
                "select talk, min(position), sum(length(data)) from record group by talk order by 2"
            )
            for talk, position, size in talks:
                try:
                    if size > MAX_RECORD:
                        raise RowError(
                            "",
                            f"the conversation “{talk[:60]}” is longer than"
                            f" {MAX_RECORD // 2**20} MiB",
                        )
                    data = held.execute(
                        "select data from record where talk = ? order by position", (talk,)
                    )
                    found = self._ordered([json.loads(one) for (one,) in data])
                    yield position, self._row(position, found, talk if path else "")
                except RowError as error:
                    yield position, error

    def _speaks(self, record: dict) -> bool:
        """Whether it can be a message; what stands below a table, such as a sum, is none."""
        needed = (
            ("role", "tool_name") if self.mapping.layout == "messages" else ("question", "answer")
        )
        return any(
            self.paths[name].get(record) not in (None, "") for name in needed if name in self.paths
        )

    def _ordered(self, records: list[dict]) -> list[dict]:
        path = self.paths.get("order") or self.paths.get("started_at")
        if path is None:
            return records
        keys = [path.get(record) for record in records]
        for read in (amount, self._when, lambda value: as_text(value) or None):
            found = [read(key) for key in keys]
            if all(one is not None for one in found):
                return [records[at] for at in sorted(range(len(records)), key=lambda at: found[at])]
        return records

    def _row(self, position: int, records: list[dict], talk: str) -> dict:
        """One trajectory of one record, or of those of one conversation. Raises RowError."""
        extra: dict[str, Any] = {}
        said = _Said(self, records, position, extra)
        messages = self._messages(records, said)
        if not messages:
            raise RowError(self.mapping.fields[NEEDED[self.mapping.layout][0]], "no messages")
        row: dict[str, Any] = {"id": self._id(said, records, talk), "messages": messages}
        for name, (outer, inner) in TEXTS.items():
            if found := text(said.last(name)):
                row.setdefault(outer, {})[inner] = found
        for name in ("model", "workload", "session_id", "user_id"):
            if found := text(said.last(name)):
                row[name] = identity(found) if name.endswith("_id") else found
        if talk and "session_id" not in row:
            row["session_id"] = identity(talk)
        row |= self._times(said) | self._numbers(said)
        given = loose(said.last("tools"))
        if tools := chat_tools(given):
            row["tools"] = tools
        elif given not in (None, [], {}):
            said.unread("tools", said.last("tools"))
        if tags := _tags(loose(said.last("tags"))):
            row["tags"] = tags
        if outcome := self._outcome(said):
            row["outcome"] = outcome
        metadata = obj(loose(said.last("metadata")))
        if not metadata and said.last("metadata") is not None:
            said.unread("metadata", said.last("metadata"))
        extra |= self._rest(records)
        if self.mapping.keep_rest and extra:
            metadata = {**metadata, "extra": extra}
        if metadata:
            row["metadata"] = metadata
        return row

    def _id(self, said: _Said, records: list[dict], talk: str) -> str:
        found = text(said.first("id"))
        if found and ("id" in self.paths):
            return identity(found)
        return identity(talk) if talk else f"row-{digest(records)}"

    def _messages(self, records: list[dict], said: _Said) -> list[dict]:
        if self.mapping.layout == "conversation":
            return self._inside(records[0])
        found: list[dict] = []
        for record in records:
            pairs = self.mapping.layout == "pairs"
            found += (
                self._pair(record, found, said) if pairs else self._message(record, found, said)
            )
        return linked(found)

    def _inside(self, record: dict) -> list[dict]:
        path = self.paths["messages"]
        value = loose(path.get(record))
        if value in (None, "", [], {}):
            raise RowError(path.text, "no messages")
        role, content = self.paths.get("role"), self.paths.get("content")
        self._leave_of_messages(path.text, value)
        if (role or content) and isinstance(value, list):
            beside = self.paths.get("people")
            people = roles_of_people(beside.get(record)) if beside else {}
            value = [self._renamed(item, role, content, people) for item in value]
        found = turns(value, path.text, self.roles)
        beside = {
            name: path.get(record)
            for name in ("question", "answer")
            if (path := self.paths.get(name))
        }
        if (question := beside.get("question")) not in (None, "", [], {}):
            found = self._spoken(question, [], "user") + found
        if (answer := beside.get("answer")) not in (None, "", [], {}):
            found = found + self._spoken(answer, found, "assistant")
        return linked([message for message in found[:-1] if speaks(message)] + found[-1:])

    def _leave_of_messages(self, path: str, messages: Any) -> None:
        """Notes what the messages of a conversation hold besides words, calls and speakers."""
        used = {
            steps.split(".")[0]
            for name in ("role", "content")
            if (steps := self.mapping.fields.get(name))
        }
        left: dict[str, Any] = {}
        for item in messages if isinstance(messages, list) else ():
            for name, value in obj(item).items():
                if name not in (*READ_OF_A_TURN, *used) and value not in (None, "", [], {}):
                    left.setdefault(f"{path}[].{name}", value)
        self.report.leave(left, lost=True)

    def _renamed(
        self, item: Any, role: Path | None, content: Path | None, people: dict[str, str]
    ) -> Any:
        if not isinstance(item, dict):
            return item
        changes: dict[str, Any] = {}
        if role:
            said = role.get(item)
            named = role_text(said) if isinstance(said, bool) else said
            changes["role"] = people.get(role_text(said), named)
        return item | changes | ({"content": content.get(item)} if content else {})

    def _pair(self, record: dict, before: list[dict], said: _Said) -> list[dict]:
        names = ("system", "question", "tool_calls", "answer")
        value = {name: path.get(record) for name in names if (path := self.paths.get(name))}
        if value.get("question") in (None, "") and value.get("answer") in (None, ""):
            raise RowError(self.paths["question"].text, "neither a question nor an answer")
        found: list[dict] = []
        for name, role in zip(names, ("system", "user", "", "assistant"), strict=True):
            given = value.get(name)
            if given in (None, "") or (name == "system" and before):
                continue
            earlier = [*before, *found]
            found += (
                self._called(given, earlier, said)
                if name == "tool_calls"
                else self._spoken(given, earlier, role)
            )
        return found

    def _called(self, value: Any, before: list[dict], said: _Said) -> list[dict]:
        """Tool calls with the results that are beside them, or as messages in JSON."""
        inside = loose(value)
        if inside in ([], {}) or not as_text(value).strip():
            return []
        if isinstance(inside, list) and all(
            isinstance(item, dict) and "role" in item for item in inside
        ):
            return turns(inside, self.paths["tool_calls"].text, self.roles, next_call(before))
        found = called_and_answered(value, next_call(before))
        if found is None:
            said.unread("tool_calls", value)
        return found or []

    def _spoken(self, value: Any, before: list[dict], role: str) -> list[dict]:
        """Words, or messages as JSON in their place."""
        inside = loose(value)
        if isinstance(inside, dict) and role_of(speaker_of(inside), self.roles):
            return turns([inside], role, self.roles, next_call(before))
        if (
            isinstance(inside, list)
            and inside
            and all(isinstance(item, dict) and "role" in item for item in inside)
        ):
            return turns(inside, role, self.roles, next_call(before))
        return [{"role": role, "content": as_text(value)}]

    def _message(self, record: dict, before: list[dict], all_said: _Said) -> list[dict]:
        value = {
            one.name: self.paths[one.name].get(record) for one in MESSAGE if one.name in self.paths
        }
        name, result = text(value.get("tool_name")), value.get("tool_result")
        role = role_of(value.get("role"), self.roles)
        if role is None and value.get("role") in (None, "") and name:
            role = "assistant"
        if role is None:
            said = (text(value.get("role")) or role_text(value.get("role")))[:60]
            raise RowError(
                self.paths["role"].text,
                f"the role “{said}” is not mapped" if said else "a message without a role",
            )
        if role == SKIP:
            return []
        called = self._called(value.get("tool_calls"), before, all_said)
        if role == "tool":
            content = value.get("content") if result in (None, "") else result
            alone = called and content in (None, "")
            return called if alone else [*called, _reply(content, value.get("tool_call_id"), name)]
        content = value.get("content")
        content = (
            content if content is None or isinstance(content, str | list) else as_text(content)
        )
        message: dict[str, Any] = {"role": role, "content": content}
        if (
            called
            and role == "assistant"
            and not called[0].get("content")
            and called[0].get("tool_calls")
        ):
            message["tool_calls"] = called.pop(0)["tool_calls"]
        if name and role == "assistant":
            call = {"id": text(value.get("tool_call_id")), "type": "function"}
            function = {"name": name, "arguments": as_arguments(value.get("tool_arguments"))}
            message["tool_calls"] = [
                *items(message.get("tool_calls")),
                call | {"function": function},
            ]
            if result not in (None, ""):
                called.append(_reply(result, value.get("tool_call_id"), name))
        message = {key: item for key, item in message.items() if item not in ([], "")}
        if called and content in (None, "") and "tool_calls" not in message:
            return called
        return turn(message, self.paths["content"].text, self.roles) + called

    def _outcome(self, said: _Said) -> dict:
        raw = said.last("outcome")
        score = amount(said.last("score"))
        score = score if score is not None and abs(score) <= MAX_REWARD else None
        if score is None and said.last("score") is not None:
            said.unread("score", said.last("score"))
        status = self.status(raw if raw is not None else None)
        if status is None and raw in (None, "") and "outcome" not in self.paths:
            status = self._by_threshold(score)
        if status is None and raw not in (None, "") and outcome_text(raw) not in self.unknown:
            said.unread("outcome", raw)
        reason = said.last("reason")
        found = {
            "status": status or "unknown",
            "reward": score,
            "reason": as_text(reason) if reason is not None else None,
        }
        if (
            isinstance(raw, str)
            and amount(raw) is None
            and len(raw) <= 120
            and outcome_text(raw) not in PLAIN
        ):
            found["label"] = raw
        return (
            {name: item for name, item in found.items() if item is not None}
            if len(without_empty(found)) > 1 or status
            else {}
        )

    def status(self, raw: Any) -> str | None:
        """What a value of the outcome means; None if nothing says so."""
        said = outcome_text(raw)
        if said in self.success:
            return "success"
        if said in self.failure:
            return "failure"
        if not self.success and not self.failure and self.mapping.threshold is None:
            return None if said in self.unknown else meaning_of(said)
        return self._by_threshold(amount(raw))

    def _by_threshold(self, value: float | None) -> str | None:
        if value is None or self.mapping.threshold is None:
            return None
        return "success" if value >= self.mapping.threshold else "failure"

    def _when(self, value: Any) -> str | None:
        return when(value, self.mapping.dates)

    def _times(self, said: _Said) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, take in (("started_at", said.first), ("ended_at", said.last)):
            raw = take(name)
            if raw is None and name == "ended_at" and len(said.records) > 1:
                raw = said.last("started_at")
            if raw is not None and (at := self._when(raw)):
                found[name] = at
            elif raw is not None:
                said.unread(name, raw)
        return found

    def _numbers(self, said: _Said) -> dict[str, Any]:
        values: dict[str, float] = {}
        for name in NUMBERS:
            given = [value for value in said.all(name) if value not in (None, "")]
            read = [
                positive(value, below=BELOW.get(name, math.inf), read=amount) for value in given
            ]
            if bad := [value for value, one in zip(given, read, strict=True) if one is None]:
                said.unread(name, bad[0])
            if good := [one for one in read if one is not None]:
                values[name] = sum(good) if self.mapping.totals == "sum" else good[-1]
        found: dict[str, Any] = {}
        usage = {
            name: count(values[name])
            for name in ("input_tokens", "output_tokens")
            if name in values
        }
        if "cost_usd" in values:
            usage["cost_usd"] = values["cost_usd"]
        if usage:
            found["usage"] = usage
        if "latency_ms" in values or "latency_s" in values:
            found["latency_ms"] = values.get("latency_ms", values.get("latency_s", 0) * 1000)
        return found

    def _rest(self, records: list[dict]) -> dict[str, Any]:
        """What no field takes: of several records what all say alike once, the rest by record."""
        left = [self._left(record) for record in records]
        for rest in left:
            self.report.leave(_leaves(rest))
        shared = {
            name: item
            for name, item in left[0].items()
            if all(rest.get(name) == item for rest in left)
        }
        own = [{name: item for name, item in rest.items() if name not in shared} for rest in left]
        return shared | ({"rows": own} if any(own) else {})

    def _left(self, record: dict) -> dict[str, Any]:
        left = {
            name: item
            for name, item in record.items()
            if name not in self.whole and item not in (None, "")
        }
        for steps in self.pruned:
            if steps[0] in left:
                left[steps[0]] = _without(loose(left[steps[0]]), steps[1:])
        return {name: item for name, item in left.items() if item not in ({}, None)}


def _leaves(values: dict[str, Any], above: str = "", depth: int = 4) -> dict[str, Any]:
    """The values by their paths, objects taken apart."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{above}.{name}" if above else name
        if isinstance(value, dict) and value and depth:
            found |= _leaves(value, path, depth - 1)
        elif value not in (None, "", [], {}):
            found[path] = value
    return found


@dataclass
class _Said:
    """The values that the records of one trajectory give a field."""

    mapper: Mapper
    records: list[dict]
    position: int
    extra: dict[str, Any]

    def all(self, name: str) -> list[Any]:
        path = self.mapper.paths.get(name)
        return [path.get(record) for record in self.records] if path else []

    def first(self, name: str) -> Any:
        return next((value for value in self.all(name) if value not in (None, "")), None)

    def last(self, name: str) -> Any:
        return next((value for value in reversed(self.all(name)) if value not in (None, "")), None)

    def unread(self, name: str, value: Any) -> None:
        """Notes a value that the field cannot take; it is kept under the name of its column."""
        self.extra[self.mapper.paths[name].text if name in self.mapper.paths else name] = value
        found = self.mapper.report.unread.setdefault(
            name, Unread(0, as_text(value)[:80], self.position)
        )
        found.count += 1


def meaning_of(said: str) -> str | None:
    """What a value means where a mapping does not say what any does."""
    return "success" if said in WORKED else "failure" if said in FAILED else None


def outcome_text(raw: Any) -> str:
    """The value as the lists of a mapping have it: true and 1.0 are “true” and “1”."""
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, float) and raw.is_integer():
        raw = int(raw)
    return as_text(raw).strip().lower().removesuffix(".0")


def slashed(records: Iterable[dict], mapping: Mapping) -> list[str]:
    """The dates of these records that are written 02/01/2026 or 02-01-2026."""
    paths = [
        Path(found) for name in ("started_at", "ended_at") if (found := mapping.fields.get(name))
    ]
    values = [text(path.get(record)).strip() for record in records for path in paths]
    return [value for value in values if SLASHED.match(value)]


def date_order(values: Iterable[str]) -> Literal["", "day", "month"]:
    """What slashed dates begin with, where a number above 12 says so, and none says the opposite;
    else "".
    """
    found = [(int(one[1]), int(one[3])) for value in values if (one := SLASHED.match(value))]
    day, month = any(first > 12 for first, _ in found), any(second > 12 for _, second in found)
    return "day" if day and not month else "month" if month and not day else ""


def settled(mapping: Mapping, records: Iterable[dict]) -> Mapping:
    """The mapping with the order of its dates, by the values of the first records. Raises
    MappingError where they do not say it.
    """
    if mapping.dates or not (values := slashed(records, mapping)):
        return mapping
    if not (order := date_order(values)):
        raise MappingError(
            f"Choose the date format: “{values[0][:40]}” may be day/month/year or month/day/year"
            " (“dates” in the mapping)."
        )
    return msgspec.structs.replace(mapping, dates=order)


def when(value: Any, dates: str = "") -> str | None:
    """ISO 8601 in UTC, from ISO, a Unix time in s, ms, µs or ns (also as text), `2026/1/31 9:05`,
    `31.01.2026 3:05 PM`, `Jan 31, 2026`, a trailing “UTC”, or an e-mail's date.

    `dates` says what 02/01/2026 begins with, “day” or “month”; without it such a date is not read.
    None if the value is no time that a run can have.
    """
    if isinstance(value, str):
        value = MERIDIEM.sub(_in_24_hours, value.strip()).removesuffix(" UTC").removesuffix(" GMT")
        if re.fullmatch(r"\d{9,19}(\.\d+)?", value):
            found = moment(float(value))
        else:
            found = moment(_iso(value, dates)) or _in_words(value)
    else:
        found = moment(value) if (number(value) or 0) >= FIRST_UNIX_TIME else None
    try:
        return found if found and in_utc("", datetime.fromisoformat(found)) else None
    except RowError:
        return None


def _iso(value: str, dates: str) -> str:
    """A date of digits in the order of ISO 8601; anything else unchanged."""
    if found := YEAR_FIRST.match(value):
        year, month, day, time = found[1], found[3], found[4], found[5]
    elif found := DAY_FIRST.match(value):
        day, month, year, time = found.groups()
    elif dates and (found := SLASHED.match(value)):
        day, month = (found[1], found[3]) if dates == "day" else (found[3], found[1])
        year, time = found[4], found[5]
    else:
        return value
    return f"{year}-{month:0>2}-{day:0>2}T{time or '00:00':0>5}{value[found.end() :]}"


def _in_24_hours(found: re.Match[str]) -> str:
    hour = int(found[1])
    if not 1 <= hour <= 12:
        return found[0]
    return f"{hour % 12 + (12 if found[4] in 'pP' else 0):02}{found[2] or ':00'}{found[3] or ''}"


def _in_words(value: str) -> str | None:
    """A date with the name of its month, as in e-mails."""
    if not re.search("[A-Za-z]{3}", value):
        return None
    for said in (value, f"{value} 00:00"):
        try:
            return moment(email.utils.parsedate_to_datetime(said).isoformat())
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
    return None


def _reply(content: Any, identity_: Any, name: str) -> dict:
    said = {
        "role": "tool",
        "content": as_text(content),
        "tool_call_id": text(identity_),
        "name": name,
    }
    return {key: value for key, value in said.items() if value or key == "content"}


def _tags(value: Any) -> list[str]:
    parts = value if isinstance(value, list) else re.split(r"[,;|]", text(value))
    return list(dict.fromkeys(tag[:80] for part in parts if (tag := text(part).strip())))


def _without(value: Any, steps: list[str]) -> Any:
    """The value less what a dotted path leads to."""
    if not isinstance(value, dict) or steps[0] not in value:
        return value
    if len(steps) == 1:
        return {name: item for name, item in value.items() if name != steps[0]}
    return value | {steps[0]: _without(value[steps[0]], steps[1:])}
