"""A task as a file row, the problems it can have, and the checks that all formats share. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from apps.evals.canonical import canonical_hash
from apps.evals.near_duplicates.glyphs import visible
from workers.lib.checks import CONSTRAINT_VALUES, CONSTRAINTS
from workers.lib.errors import SpecError
from workers.lib.graders import validate
from workers.lib.json_schema import JsonSchema
from workers.lib.messages import TEXT_PARTS, part_text, read_json
from workers.lib.patterns import pattern_of
from workers.lib.typed import FormError

KEY_LENGTH, GROUP_LENGTH = 120, 200
ROLES = ("system", "developer", "user", "assistant", "tool")
SPLITS = ("train", "validation", "holdout", "regression", "general")
ALIASES = {
    "hold-out": "holdout",
    "held-out": "holdout",
    "test": "holdout",
    "val": "validation",
    "dev": "validation",
}
EMPTY_REQUEST = "empty. Enter the request that the agent should answer."
FORMS = (
    '{"tool", "args"}, {"calls": […]}, {"any_call": true}, {"answer": …}, {"constraint": {…}},'
    ' {"pattern": "…"}, {"schema": {…}}, {"tests": […]}, {"state": {…}}, {"grader": {…}} or'
    ' {"rubric": "…"}'
)


@dataclass(frozen=True)
class TaskRow:
    """One task of a file. `expected` is described in `checks`; `split` and `group` are empty if the
    file has none.
    """

    key: str
    messages: list[dict]
    expected: dict
    tools: list[dict] = field(default_factory=list)
    demonstration: str = ""
    group: str = ""
    split: str = ""
    metadata: dict = field(default_factory=dict)
    # where it was read, and what the file calls its key; not part of the task
    line: int = field(default=0, compare=False)
    key_name: str = field(default="key", compare=False)


@dataclass(frozen=True)
class RowProblem:
    """Why a row is not a task: its line (from 1), the field, what is wrong and what to do. The
    whole row is left out.
    """

    line: int
    field: str
    message: str

    def __str__(self) -> str:
        return (
            f"Line {self.line}, {self.field}: {self.message}"
            if self.field
            else f"Line {self.line}: {self.message}"
        )


class Bad(Exception):
    """A row that cannot be read: field and message of its problem."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message


Line = str | bytes
Read = TaskRow | RowProblem


def json_lines(lines: Iterable[Line]) -> Iterator[tuple[int, dict | RowProblem]]:
    """(line number, object or problem) of each line that is not blank."""
    for number, line in enumerate(lines, 1):
        try:
            text = decoded(line)
            if text.strip("\ufeff \t\r\n"):
                yield number, parsed_object(text.removeprefix("\ufeff"))
        except Bad as error:
            yield number, RowProblem(number, error.field, error.message)


def decoded(line: Line) -> str:
    try:
        return line.decode() if isinstance(line, bytes) else line
    except UnicodeDecodeError as error:
        raise Bad("", f"not UTF-8 (byte {error.start + 1}). Save the file as UTF-8.") from error


def parsed_object(text: str) -> dict:
    try:
        value = read_json(text)
    except ValueError as error:
        raise Bad("", f"not JSON: {error}. Each line must be one whole JSON object.") from error
    if not isinstance(value, dict):
        raise Bad("", f"expected a JSON object, got {kind_of(value)}. Each line is one task.")
    return value


def kind_of(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "true or false",
        type(None): "null",
    }
    return names.get(type(value), "a number")


def each(lines: Iterable[Line], parse: Callable[[dict], TaskRow]) -> Iterator[Read]:
    """A task or a problem for each line that is not blank."""
    for number, value in json_lines(lines):
        if isinstance(value, RowProblem):
            yield value
            continue
        try:
            yield replace(parse(value), line=number)
        except Bad as error:
            yield RowProblem(number, error.field, error.message)


def want(value: Any, kind: type | tuple[type, ...], name: str, advice: str) -> Any:
    """The value, if it is of this kind. Raises Bad."""
    if not isinstance(value, kind) or (
        isinstance(value, bool) and bool not in (kind if isinstance(kind, tuple) else (kind,))
    ):
        raise Bad(name, f"{'missing' if value is None else 'got ' + kind_of(value)}. {advice}")
    return value


def task(
    *,
    key: Any,
    messages: Any,
    expected: Any,
    tools: Any = None,
    demonstration: Any = "",
    group: Any = "",
    split: Any = "",
    metadata: Any = None,
    names: dict[str, str] | None = None,
) -> TaskRow:
    """The checked row; without a key it gets one derived from its messages. `names` maps fields to
    their names in the file. Raises Bad.
    """
    called = {
        name: name
        for name in ("key", "messages", "expected", "tools", "demonstration", "group", "split")
    } | (names or {})
    messages = checked_messages(messages, called["messages"])
    row = TaskRow(
        key=_short(key, called["key"], KEY_LENGTH) or f"task-{canonical_hash(messages)[:16]}",
        messages=messages,
        expected=checked_expected(expected, called["expected"]),
        tools=checked_tools([] if tools is None else tools, called["tools"]),
        demonstration=want(
            "" if demonstration is None else demonstration,
            str,
            called["demonstration"],
            "Give the good answer as text.",
        ),
        group=_short(group, called["group"], GROUP_LENGTH),
        split=checked_split(split, called["split"]),
        metadata=want({} if metadata is None else metadata, dict, "metadata", "Give an object."),
        key_name=called["key"],
    )
    for name, value in vars(row).items():
        check_storable(value, called.get(name, name))
    return row


def check_storable(value: Any, name: str) -> None:
    """PostgreSQL's JSON allows neither NUL nor lone surrogates nor NaN. Raises Bad."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, RecursionError) as error:
        raise Bad(
            name, "contains characters or numbers that cannot be stored. Remove them."
        ) from error
    if "\\u0000" in text.replace("\\\\", ""):
        raise Bad(name, "has a NUL character, which cannot be stored. Remove it.")


def _short(value: Any, name: str, most: int) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    text = want("" if value is None else value, str, name, "Give text.")
    if len(text) > most:
        raise Bad(name, f"{len(text)} characters long; at most {most} are allowed. Shorten it.")
    return text


def checked_split(value: Any, name: str) -> str:
    text = (
        want("" if value is None else value, str, name, f"Give one of {', '.join(SPLITS)}.")
        .strip()
        .casefold()
    )
    text = ALIASES.get(text, text)
    if text and text not in SPLITS:
        raise Bad(
            name, f"unknown split “{text}”. Give one of {', '.join(SPLITS)}, or leave it empty."
        )
    return text


def checked_messages(value: Any, name: str = "messages") -> list[dict]:
    """OpenAI chat messages that contain a request. Raises Bad."""
    want(value, list, name, "Give a list of OpenAI chat messages.")
    for index, message in enumerate(value):
        _check_message(message, f"{name}[{index}]")
    if not any(message["role"] in ("user", "tool") for message in value):
        raise Bad(
            name,
            "there is no message with the role “user”. Add the request that the agent should"
            " answer.",
        )
    if not has_request(value):
        raise Bad(name, EMPTY_REQUEST)
    return value


def has_request(messages: list[dict]) -> bool:
    """Whether a user's message or a tool's result has a visible character, a picture or a file."""
    contents = [one.get("content") for one in messages if one.get("role") in ("user", "tool")]
    return any(
        visible(part_text(part)).strip() or _is_picture_or_file(part)
        for content in contents
        for part in (content if isinstance(content, list) else [content])
    )


def _is_picture_or_file(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type", "text") not in TEXT_PARTS


def _check_message(message: Any, name: str) -> None:
    want(message, dict, name, "Give an object with “role” and “content”.")
    if message.get("role") not in ROLES:
        raise Bad(
            f"{name}.role",
            f"there is no role {message.get('role')!r}. Give one of {', '.join(ROLES)}.",
        )
    content = message.get("content")
    if not isinstance(content, str | list | None):
        raise Bad(
            f"{name}.content", f"got {kind_of(content)}. Give text or a list of content parts."
        )
    if content is None and not message.get("tool_calls"):
        raise Bad(
            f"{name}.content", "missing. Give text, or tool_calls in a message of the assistant."
        )
    for at, call in enumerate(
        want(message.get("tool_calls") or [], list, f"{name}.tool_calls", "Give a list.")
    ):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Bad(
                f"{name}.tool_calls[{at}]",
                "has no function.name. Give OpenAI's form of a tool call.",
            )


def checked_tools(value: Any, name: str = "tools") -> list[dict]:
    """OpenAI chat tools; those of the Responses API ({type, name, parameters}) are converted.
    Raises Bad.
    """
    made = []
    for index, tool in enumerate(want(value, list, name, "Give a list of OpenAI tools.")):
        want(tool, dict, f"{name}[{index}]", "Give an OpenAI tool.")
        if "function" not in tool and isinstance(tool.get("name"), str):
            tool = {
                "type": "function",
                "function": {key: item for key, item in tool.items() if key != "type"},
            }
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Bad(f"{name}[{index}]", "has no function.name. Give OpenAI's form of a tool.")
        made.append(tool)
    return made


OF_CHANGES = (
    ("lookups", str, "Give the names of the tools whose calls are free."),
    ("tell", list, "Give a list of alternative wordings for each thing that the user is told."),
)


def checked_expected(value: Any, name: str = "expected") -> dict:
    """One of the forms of `checks` and of the verifiers (`by_task`), optionally with a rubric.
    Raises Bad.
    """
    want(value, dict, name, f"Give {FORMS}.")
    found = [form for form in CHECKED if form in value]
    for form in found:
        CHECKED[form](
            value if form == "tool" else value[form], name if form == "tool" else f"{name}.{form}"
        )
    for part, kind, advice in OF_CHANGES:
        for item in want(value.get(part, []), list, f"{name}.{part}", advice):
            want(item, kind, f"{name}.{part}", advice)
    if not found and (value.get("answer") is None or value["answer"] == []):
        raise Bad(name, f"contains neither a call nor an answer. Give {FORMS}.")
    return value


def _check_calls(value: Any, name: str) -> None:
    for index, call in enumerate(want(value, list, name, "Give a list of calls.")):
        _check_call(call, f"{name}[{index}]")


def _check_turns(value: Any, name: str) -> None:
    for turn, calls in enumerate(want(value, list, name, "Give a list of calls for each turn.")):
        _check_calls(calls, f"{name}[{turn}]")


def _check_any_call(value: Any, name: str) -> None:
    if value is not True:
        raise Bad(name, "must be true. Leave it out where certain calls are expected.")


def _check_text(value: Any, name: str) -> None:
    if not want(value, str, name, "Give text.").strip():
        raise Bad(name, "empty. Give text.")


def _check_pattern(value: Any, name: str) -> None:
    _check_text(value, name)
    try:
        pattern_of(value, name)
    except SpecError as error:
        raise Bad(name, str(error).removeprefix(f"“{name}” ")) from error


def _check_schema(value: Any, name: str) -> None:
    try:
        JsonSchema(want(value, dict, name, "Give a JSON schema."), name)
    except SpecError as error:
        raise Bad(name, str(error).removeprefix(f"“{name}” ")) from error


def _check_grader(value: Any, name: str) -> None:
    try:
        validate(value, name)
    except FormError as error:
        raise Bad(error.path, error.problem) from error


def _check_objects(value: Any, name: str) -> None:
    for index, item in enumerate(want(value, list, name, "Give a list of objects.")):
        want(item, dict, f"{name}[{index}]", "Give an object.")


def _check_state(value: Any, name: str) -> None:
    want(value, dict, name, "Give the tables of the end state as an object.")


def _check_call(call: Any, name: str) -> None:
    want(call, dict, name, 'Give {"tool": "…", "args": {…}}.')
    if not want(call.get("tool"), str, f"{name}.tool", "Give the tool's name.").strip():
        raise Bad(f"{name}.tool", "empty. Give the tool's name.")
    want(call.get("args"), dict, f"{name}.args", "Give an object, {} if there are none.")
    accept = want(call.get("accept", {}), dict, f"{name}.accept", "Give an object of lists.")
    for argument, values in accept.items():
        want(values, list, f"{name}.accept.{argument}", "Give the list of right values.")
    want(call.get("any", []), list, f"{name}.any", "Give the names of arguments.")


def _check_constraint(value: Any, name: str) -> None:
    want(value, dict, name, f"Give an object of {', '.join(CONSTRAINTS)}.")
    unknown = sorted(value.keys() - CONSTRAINTS.keys())
    if unknown or not value:
        raise Bad(
            name,
            f"there is no constraint “{', '.join(unknown)}”. There are {', '.join(CONSTRAINTS)}.",
        )
    for one, given in value.items():
        kind = CONSTRAINT_VALUES[one]
        if not kind.fits(given):
            raise Bad(f"{name}.{one}", f"got {kind_of(given)}. Give {kind.label}.")


def _check_tests(value: Any, name: str) -> None:
    """Those of the verifier `unit_tests`: statements, {call, expected} or {stdin, stdout}."""
    for index, test in enumerate(want(value, list, name, "Give a list of tests.")):
        if isinstance(test, str) and test.strip():
            continue
        if (
            isinstance(test, dict)
            and test.keys() == {"call", "expected"}
            and isinstance(test["call"], str)
        ):
            continue
        if (
            isinstance(test, dict)
            and test.keys() == {"stdin", "stdout"}
            and all(map(_is_text, test.values()))
        ):
            continue
        advice = (
            'Give {"call": "solve([1, 2])", "expected": 3}, {"stdin": "1 2", "stdout": "3"} or a'
            " statement as text."
        )
        raise Bad(f"{name}[{index}]", advice)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


CHECKED: dict[str, Callable[[Any, str], None]] = {
    "calls": _check_calls,
    "tool": _check_call,
    "constraint": _check_constraint,
    "tests": _check_tests,
    "turns": _check_turns,
    "any_call": _check_any_call,
    "pattern": _check_pattern,
    "schema": _check_schema,
    "grader": _check_grader,
    "constraints": _check_objects,
    "ground_truth": _check_objects,
    "state": _check_state,
    "rubric": _check_text,
}


def only(record: dict, known: Iterable[str], advice: str) -> None:
    """Raises Bad for an unknown field: a row is never read partially without saying so."""
    unknown = [name for name in record if name not in set(known)]
    if unknown:
        raise Bad(unknown[0], f"unknown field. {advice}")


def parsed_arguments(value: Any, name: str) -> dict:
    """A call's arguments, given as an object or as its JSON text. Raises Bad."""
    if isinstance(value, str):
        try:
            value = read_json(value or "{}")
        except ValueError as error:
            raise Bad(name, f"not JSON: {error}. Give an object or its JSON text.") from error
    return want(value, dict, name, "Give an object or its JSON text.")


def expected_of(calls: list[dict]) -> dict:
    """One call as is; none or several as a list."""
    return calls[0] if len(calls) == 1 else {"calls": calls}
