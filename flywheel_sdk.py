"""What the package of an environment is written with (docs/own-environment.md). The standard
library alone: it also runs in the sandbox.

class Counter(Environment):
    '''A counter that an agent increments.'''

    def start(self, task):
        return {"value": 0}

    @tool
    def add(self, amount: int) -> int:
        '''Adds to the counter.

        Args:
            amount: How much
        '''
        self.state["value"] += amount
        return self.state["value"]

    def tasks(self):
        return [{"id": "two", "prompt": "Count to two.", "metadata": {"value": 2}}]

    def verify(self, attempt):
        return attempt.state["value"] == attempt.task["metadata"]["value"]
"""

from __future__ import annotations

import enum
import inspect
import json
import re
import types
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

__all__ = ["Attempt", "Call", "Environment", "ToolError", "read_jsonl", "tool"]

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
DATES = {date: "2026-01-31", datetime: "2026-01-31T09:30", time: "09:30"}  # with an example
TAKEN = ("start", "tasks", "verify", "finish", "state")  # names that Environment uses

# Docstrings: sections of Google's and NumPy's style, fields of reStructuredText
ARGS = re.compile(r"^\s*(?:Args|Arguments|Parameters):\s*$")
SECTION = re.compile(r"^[A-Z]\w+:\s*$")
ARGUMENT = re.compile(r"^(\s+)(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
UNDERLINE = re.compile(r"-{3,}")
NUMPY_ARGS = ("Parameters", "Other Parameters", "Arguments", "Args")
NUMPY_ARGUMENT = re.compile(r"^(\w+)\s*(?::.*)?$")
PARAM = re.compile(r"^:(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?(\w+):\s*(.*)$")
FIELD = re.compile(r"^:\w[^:]*:")


class ToolError(Exception):
    """Raise it in a tool for what the agent did wrong: the message is what the agent sees."""


class DefinitionError(Exception):
    """Something in the package's own definitions that cannot work; the message says what to
    change.
    """


@dataclass
class Call:
    """One call that the agent made: `result` is the text that it saw; not `ok` where the tool
    refused it.
    """

    tool: str
    args: dict
    ok: bool
    result: str


@dataclass
class Attempt:
    """What an agent did with a task. `state` is the end state; `messages` are those after the
    task's own, in OpenAI's chat form; `answer` is the text of the last one."""

    task: dict
    state: dict
    messages: list[dict] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    answer: str = ""


class Environment:
    """Subclass it once in a package. The class's docstring is what people read about it.

    An instance lives for one call: what must last is in `self.state`, a dict of JSON.
    """

    system_prompt = ""  # what an agent is told before each task
    max_turns = 10
    tool_seconds = 20.0  # that one call may take
    verify_seconds = 60.0

    state: dict

    def __init__(self) -> None:
        self.state = {}
        self.is_finished = False

    def start(self, task: dict) -> dict:
        """The state at the beginning of a task."""
        return {}

    def tasks(self) -> Iterable[dict]:
        """The tasks: {"id", "prompt" or "messages"}, and optionally expected, metadata, split,
        group, demonstration.
        """
        return []

    def verify(self, attempt: Attempt) -> float | bool | dict:
        """The reward: a number, true or false, or {"reward", "success", "unsafe", "components",
        "details"}.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Call it in a tool after which the episode is over."""
        self.is_finished = True


def tool(function: Callable | None = None, *, name: str = "", dangerous: bool = False) -> Any:
    """Marks a method as a tool. Its signature gives the schema, its docstring the descriptions.

    `dangerous`: its calls are shown as such, and looked at when rewards are reviewed.
    """

    def mark(method: Callable) -> Callable:
        method.flywheel_tool = {"name": name or method.__name__, "dangerous": dangerous}  # type: ignore[attr-defined]
        return method

    if function is not None and not callable(function):
        raise TypeError('Write @tool, or @tool(name="…").')
    return mark(function) if function else mark


def read_jsonl(path: str | Path) -> list[dict]:
    """One JSON object a line. Raises ValueError naming the line."""
    rows = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"{Path(path).name}, line {number}: not JSON ({error})") from error
    return rows


# From signatures to schemas


def tools_of(kind: type[Environment]) -> dict[str, Callable]:
    """{name: method} in the order of the class. Raises DefinitionError for a name that is taken or
    cannot be one.
    """
    found: dict[str, Callable] = {}
    for parent in reversed(kind.__mro__):
        for attribute, given in vars(parent).items():
            if isinstance(given, staticmethod | classmethod):
                if hasattr(given, "flywheel_tool") or hasattr(given.__func__, "flywheel_tool"):
                    raise DefinitionError(
                        f"The tool {attribute} is a {type(given).__name__}. Make it a method: def"
                        f" {attribute}(self, …)."
                    )
                continue
            method = getattr(kind, attribute, None)
            mark = getattr(method, "flywheel_tool", None)
            if mark is None or found.get(mark["name"]) is method:
                continue
            if attribute in TAKEN:
                raise DefinitionError(
                    f"The method {attribute} cannot be a tool, since Environment uses that name."
                    " Rename the method; "
                    f'@tool(name="{attribute}") keeps the name that the agent sees.'
                )
            if not NAME.fullmatch(mark["name"]):
                raise DefinitionError(
                    f"The tool name {mark['name']!r} must be 1 to 64 letters, digits, dots, - or _."
                )
            if mark["name"] in found and found[mark["name"]].__name__ != method.__name__:
                raise DefinitionError(f"Two tools are named {mark['name']}. Rename one.")
            found[mark["name"]] = method
    return found


def schema_of(name: str, method: Callable) -> dict:
    """The tool as chat completions have it. Raises DefinitionError for an argument without a type
    that JSON has.
    """
    about, described = documented(method)
    try:
        hints = get_type_hints(method, include_extras=True)
    except Exception as error:
        raise DefinitionError(f"The types of the tool {name} cannot be read: {error}.") from error
    properties, required = {}, []
    parameters = list(inspect.signature(method).parameters.values())
    if not parameters or (parameters[0].name != "self" and parameters[0].name in hints):
        raise DefinitionError(f"The tool {name} has no self. Write def {method.__name__}(self, …).")
    for parameter in parameters[1:]:
        where = f"The argument {parameter.name} of the tool {name}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise DefinitionError(f"The tool {name} takes {parameter}. Name each argument.")
        if parameter.name not in hints:
            raise DefinitionError(f"{where} has no type. Write {parameter.name}: str, for example.")
        schema = json_type(hints[parameter.name], where)
        if parameter.name in described:
            schema = {"description": described[parameter.name]} | schema
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif parameter.default is not None:
            schema = schema | {"default": _default(parameter.default, where)}
        properties[parameter.name] = schema
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    function = {"name": name, "description": about, "parameters": schema}
    return {
        "type": "function",
        "function": function | ({"x-dangerous": True} if method.flywheel_tool["dangerous"] else {}),
    }  # type: ignore[attr-defined]


def _default(value: Any, where: str) -> Any:
    try:
        return json.loads(json.dumps(value, default=plain, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise DefinitionError(
            f"{where} has the default {value!r:.80}, which JSON does not have. Use None instead."
        ) from error


def documented(method: Callable) -> tuple[str, dict[str, str]]:
    """(description, {argument: description}) of a docstring in the style of Google, NumPy or
    reStructuredText.
    """
    about: list[str] = []
    found: dict[str, str] = {}
    section, depth, last = "", 0, ""
    lines = (inspect.getdoc(method) or "").splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        text = line.strip()
        if text and UNDERLINE.fullmatch(below.strip()):
            section, last = ("numpy" if text in NUMPY_ARGS else "numpy, other"), ""
        elif UNDERLINE.fullmatch(text):
            continue
        elif ARGS.match(line):
            section, depth, last = "google", 0, ""
        elif SECTION.match(line):
            section, last = "google, other", ""
        elif named := PARAM.match(line):
            section, last = "fields", named[1]
            found[last] = named[2].strip()
        elif FIELD.match(line):
            section, last = "fields", ""
        elif section.startswith("numpy") and text and not line[:1].isspace():
            named = NUMPY_ARGUMENT.match(line)
            last = named[1] if named and section == "numpy" else ""
        elif section and text and not line[:1].isspace():  # indented sections end at the margin
            section, last = "", ""
            about.append(line)
        elif not section:
            about.append(line)
        elif (
            section == "google"
            and (named := ARGUMENT.match(line))
            and (not depth or len(named[1]) == depth)
        ):
            depth, last = len(named[1]), named[2]
            found[last] = named[3].strip()
        elif last and text:
            found[last] = f"{found.get(last, '')} {text}".strip()
    return " ".join("\n".join(about).split()), found


def json_type(hint: Any, where: str) -> dict:
    """JSON Schema of a type. Raises DefinitionError for one that JSON does not have."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        text = next((one for one in inside[1:] if isinstance(one, str)), "")
        return ({"description": text} if text else {}) | json_type(inside[0], where)
    if origin in (Required, NotRequired):
        return json_type(inside[0], where)
    if origin is Literal:
        kinds = {TYPES.get(type(one)) for one in inside}
        return ({"type": kinds.pop()} if len(kinds) == 1 else {}) | {"enum": list(inside)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [json_type(one, where) for one in inside]}
    if hint is list or origin is list:
        return {"type": "array"} | ({"items": json_type(inside[0], where)} if inside else {})
    if hint is dict or origin is dict:
        return {"type": "object"} | (
            {"additionalProperties": json_type(inside[1], where)} if len(inside) == 2 else {}
        )
    if hint is Any:
        return {}
    return (_class_type(hint, where) if inspect.isclass(hint) and not origin else None) or _no_type(
        hint, where
    )


def _class_type(hint: type, where: str) -> dict | None:
    """None for a class that JSON does not have."""
    if hint in TYPES:
        return {"type": TYPES[hint]}
    if hint in DATES:
        # JSON Schema's formats of times demand a time zone.
        return {"type": "string"} | (
            {"format": "date"} if hint is date else {"examples": [DATES[hint]]}
        )
    if issubclass(hint, enum.Enum):
        values = [one.value for one in hint]
        kinds = {TYPES.get(type(value)) for value in values}
        return (
            None
            if None in kinds
            else ({"type": kinds.pop()} if len(kinds) == 1 else {}) | {"enum": values}
        )
    if not is_typeddict(hint) and not is_dataclass(hint):
        return None
    if hint.__name__ in where.split(" in "):
        raise DefinitionError(f"{where} refers to itself. Use dict for the inner {hint.__name__}.")
    hints = _hints_of(hint, where)
    if is_dataclass(hint):
        chosen = [one for one in fields(hint) if one.init]
        required = [
            one.name for one in chosen if one.default is MISSING and one.default_factory is MISSING
        ]
        hints = {one.name: hints[one.name] for one in chosen}
    else:
        required = sorted(hint.__required_keys__)
    return {
        "type": "object",
        "properties": {
            name: json_type(one, f"{where} in {hint.__name__}") for name, one in hints.items()
        },
        "required": required,
        "additionalProperties": False,
    }


def _hints_of(kind: type, where: str) -> dict[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except Exception as error:
        raise DefinitionError(
            f"{where}: the types of {kind.__name__} cannot be read: {error}."
        ) from error


def _no_type(hint: Any, where: str) -> dict:
    raise DefinitionError(
        f"{where} has the type {getattr(hint, '__name__', hint)}, which JSON does not have. Use"
        " str, int, float, bool, list, dict, Literal, an Enum, date, datetime, a dataclass or a"
        " TypedDict."
    )


# From JSON to arguments and back


def arguments_of(method: Callable, args: dict) -> dict:
    """Arguments that fit the schema, as the signature has them: members of an Enum, dates,
    dataclasses. Raises ToolError.
    """
    hints = get_type_hints(method, include_extras=True)
    made = {}
    for name, value in args.items():
        try:
            made[name] = built(value, hints[name])
        except ValueError as error:
            raise ToolError(f"{name}: {error}") from error
    return made


def built(value: Any, hint: Any) -> Any:
    """Raises ValueError."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Annotated, Required, NotRequired):
        return built(value, inside[0])
    if origin in (Union, types.UnionType):
        return _built_first(value, inside)
    if isinstance(value, list) and origin is list:
        return [built(one, inside[0]) for one in value]
    if isinstance(value, dict) and origin is dict:
        return {name: built(one, inside[1]) for name, one in value.items()}
    if not inspect.isclass(hint) or origin:
        return value
    if hint in DATES:
        try:
            return hint.fromisoformat(value)
        except (TypeError, ValueError):
            raise ValueError(f"{value!r:.80} is not in ISO form, such as {DATES[hint]}.") from None
    if issubclass(hint, enum.Enum):
        return hint(value)
    if isinstance(value, dict) and (is_dataclass(hint) or is_typeddict(hint)):
        hints = get_type_hints(hint, include_extras=True)
        return hint(**{name: built(one, hints[name]) for name, one in value.items()})
    return value


def _built_first(value: Any, hints: tuple) -> Any:
    """By the first member of a union that it fits. Raises ValueError."""
    problem = None
    for hint in hints:
        if hint in TYPES:
            if type(value) is hint:
                return value
            continue
        try:
            found = built(value, hint)
        except (ValueError, TypeError, KeyError) as error:
            problem = error
            continue
        if found is not value:
            return found
    if isinstance(problem, ValueError):
        raise problem
    return value


def plain(value: Any) -> Any:
    """`default` of json.dumps for what `built` makes. Raises TypeError."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, date | time):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
