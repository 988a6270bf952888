"""What the package of an environment is written with (docs/own-environment.md). The standard library alone: it also runs in the sandbox.

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

import inspect
import json
import re
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
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
ARGS = re.compile(r"^\s*(?:Args|Arguments|Parameters):\s*$")
SECTION = re.compile(r"^\s*[A-Z]\w+:\s*$")
ARGUMENT = re.compile(r"^(\s+)(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


class ToolError(Exception):
    """Raise it in a tool for what the agent did wrong: the message is what the agent sees."""


class DefinitionError(Exception):
    """Something in the package's own definitions that cannot work; the message says what to change."""


@dataclass
class Call:
    """One call that the agent made: `result` is the text that it saw; not `ok` where the tool refused it."""

    tool: str
    args: dict
    ok: bool
    result: str


@dataclass
class Attempt:
    """What an agent did with a task. `state` is the end state; `messages` are those after the task's own, in OpenAI's chat form;
    `answer` is the text of the last one."""

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
        """The tasks: {"id", "prompt" or "messages"}, and optionally expected, metadata, split, group, demonstration."""
        return []

    def verify(self, attempt: Attempt) -> float | bool | dict:
        """The reward: a number, true or false, or {"reward", "success", "unsafe", "components", "details"}."""
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
    """{name: method} in the order of the class. Raises DefinitionError for a name that is taken or cannot be one."""
    found: dict[str, Callable] = {}
    for parent in reversed(kind.__mro__):
        for attribute in vars(parent):
            method = getattr(kind, attribute, None)
            mark = getattr(method, "flywheel_tool", None)
            if mark is None or found.get(mark["name"]) is method:
                continue
            if not NAME.fullmatch(mark["name"]):
                raise DefinitionError(f"The tool name {mark['name']!r} must be 1 to 64 letters, digits, dots, - or _.")
            if mark["name"] in found and found[mark["name"]].__name__ != method.__name__:
                raise DefinitionError(f"Two tools are named {mark['name']}. Rename one.")
            found[mark["name"]] = method
    return found


def schema_of(name: str, method: Callable) -> dict:
    """The tool as chat completions have it. Raises DefinitionError for an argument without a type that JSON has."""
    about, described = documented(method)
    try:
        hints = get_type_hints(method, include_extras=True)
    except Exception as error:
        raise DefinitionError(f"The types of the tool {name} cannot be read: {error}.") from error
    properties, required = {}, []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise DefinitionError(f"The tool {name} takes {parameter}. Name each argument.")
        if parameter.name not in hints:
            raise DefinitionError(
                f"The argument {parameter.name} of the tool {name} has no type. Write {parameter.name}: str, for example."
            )
        schema = json_type(hints[parameter.name], f"The argument {parameter.name} of the tool {name}")
        if parameter.name in described:
            schema = {"description": described[parameter.name]} | schema
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif parameter.default is not None:
            schema = schema | {"default": parameter.default}
        properties[parameter.name] = schema
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    function = {"name": name, "description": about, "parameters": parameters}
    return {
        "type": "function",
        "function": function | ({"x-dangerous": True} if method.flywheel_tool["dangerous"] else {}),
    }  # type: ignore[attr-defined]


def documented(method: Callable) -> tuple[str, dict[str, str]]:
    """(description, {argument: description}) of a docstring in Google's style."""
    about: list[str] = []
    found: dict[str, str] = {}
    inside, depth, last = False, 0, ""
    for line in (inspect.getdoc(method) or "").splitlines():
        if ARGS.match(line):
            inside = True
        elif SECTION.match(line) and not line[:1].isspace():
            break
        elif not inside:
            about.append(line)
        elif (named := ARGUMENT.match(line)) and (not depth or len(named[1]) == depth):
            depth, last = len(named[1]), named[2]
            found[last] = named[3].strip()
        elif last and line.strip():
            found[last] += f" {line.strip()}"
    return " ".join("\n".join(about).split()), found


def json_type(hint: Any, where: str) -> dict:
    """JSON Schema of a type. Raises DefinitionError for one that JSON does not have."""
    origin, inside = get_origin(hint), get_args(hint)
    if hint in TYPES:
        return {"type": TYPES[hint]}
    if hint is Any:
        return {}
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
        return {"type": "object"} | ({"additionalProperties": json_type(inside[1], where)} if len(inside) == 2 else {})
    if is_typeddict(hint):
        fields = {name: json_type(one, where) for name, one in get_type_hints(hint, include_extras=True).items()}
        return {
            "type": "object",
            "properties": fields,
            "required": sorted(hint.__required_keys__),
            "additionalProperties": False,
        }
    raise DefinitionError(
        f"{where} has the type {getattr(hint, '__name__', hint)}, which JSON does not have. Use str, int, float, bool, list, "
        "dict, Literal or a TypedDict."
    )
