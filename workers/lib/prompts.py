"""Prompt versions: what an agent brings to any task, whatever model it runs on. Pure and light.

A prompt sets some of: the system prompt, examples, how tools are described to the model, sampling.
In an evaluation it replaces these parts of the environment's harness; anything it omits stays as in
the environment. The tools themselves, the limits and the verifier define the task, so no prompt
changes them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from workers.lib.messages import function_of, functions_of, schemas_of
from workers.lib.storable import storable_json
from workers.lib.typed import AnswerTokens, Form, FormError, Temperature, Text, TopP, convert, plain

# The parts of a harness that belong to the agent and may be changed. Everything else (tools,
# limits) defines the task.
PROMPT_PART = ("system_prompt", "examples", "show_tools", "shown_tools")
AGENT_PART = (*PROMPT_PART, "temperature", "top_p", "max_new_tokens")
LARGEST = 400_000  # characters of a prompt as JSON
IN_HARNESS = {"tools": "shown_tools"}  # a harness's own `tools` are those that run
NAMED = ("properties", "patternProperties", "$defs", "definitions")  # parts whose keys are names
# Parts of a JSON Schema that have no effect on validation.
FOR_READERS = ("title", "description", "examples", "default", "$comment")


class ExampleFunction(Form, kw_only=True):
    name: Text
    arguments: str


class ExampleCall(Form, kw_only=True):
    id: Text
    function: ExampleFunction
    type: Literal["function"] = "function"


class ExampleMessage(Form, kw_only=True):
    """A few-shot message in the format of OpenAI's chat completions."""

    role: Literal["user", "assistant", "tool"]
    content: str | None = None
    name: str | UnsetType = UNSET
    tool_calls: Annotated[list[ExampleCall], Meta(max_length=64)] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET


class ToolFunction(Form, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    description: str = ""
    parameters: dict[str, Any] | UnsetType = UNSET
    strict: bool | UnsetType = UNSET


class Tool(Form, kw_only=True):
    function: ToolFunction
    type: Literal["function"] = "function"


class Prompt(Form, kw_only=True):
    """`tools`: definitions that the model is shown instead of the environment's tools of the same
    names. `show_tools` false: none is shown, because the system prompt describes them. Anything
    omitted stays as in the environment.
    """

    system_prompt: Annotated[str, Meta(max_length=200_000)] | UnsetType = UNSET
    examples: Annotated[list[ExampleMessage], Meta(max_length=200)] | UnsetType = UNSET
    tools: Annotated[list[Tool], Meta(max_length=128)] | UnsetType = UNSET
    show_tools: bool | UnsetType = UNSET
    temperature: Temperature | UnsetType = UNSET
    top_p: TopP | UnsetType = UNSET
    max_new_tokens: AnswerTokens | UnsetType = UNSET


FIELDS: tuple[str, ...] = Prompt.__struct_fields__


def checked_prompt(given: Any) -> dict[str, Any]:
    """The prompt in its normal form, as JSON. Raises FormError naming the invalid field."""
    found = plain(convert(given, Prompt))
    if not found:
        raise FormError("", f"says nothing: give at least one of {', '.join(FIELDS)}")
    named = Counter(tool["function"]["name"] for tool in found.get("tools", []))
    if twice := [name for name, count in named.items() if count > 1]:
        raise FormError("tools", f"names {twice[0]} twice")
    if storable_json(found) != found:
        raise FormError("", "holds characters that no text may have (NUL, half of a pair)")
    if len(text := json.dumps(found, ensure_ascii=False)) > LARGEST:
        raise FormError("", f"has {len(text):,} characters as JSON; {LARGEST:,} is the most")
    return found


def applied(harness: dict[str, Any], prompt: dict[str, Any]) -> dict[str, Any]:
    """A harness with the parts that a prompt sets replaced."""
    return harness | {IN_HARNESS.get(name, name): value for name, value in prompt.items()}


def from_harness(harness: dict[str, Any]) -> dict[str, Any]:
    """The prompt that is part of a harness."""
    names = {IN_HARNESS.get(name, name): name for name in FIELDS}
    found = {names[name]: value for name, value in harness.items() if name in names}
    return {name: value for name, value in found.items() if value not in (None, [])}


def shown(offered: list[dict], definitions: list[dict]) -> list[dict]:
    """The offered tools as the model is shown them."""
    given = {
        name: {"type": "function", "function": function}
        for name, function in functions_of(definitions)
    }
    return (
        [given.get((function_of(tool) or {}).get("name", ""), tool) for tool in offered]
        if given
        else offered
    )


def tool_problem(definitions: Iterable[dict], offered: list[dict]) -> str:
    """Why these definitions cannot replace the offered tools, as a sentence; "" if they can."""
    there = schemas_of(offered)
    for name, schema in schemas_of(list(definitions)).items():
        if name not in there:
            known = ", ".join(there) or "it shows none, so describe tools in the system prompt"
            return (
                f"The prompt describes the tool {name}, which the environment does not show. It"
                f" shows: {known}."
            )
        if _binding(schema) != _binding(there[name]):
            return (
                f"The prompt's parameters of the tool {name} are not those that the environment"
                " takes. A prompt may change descriptions only: the tools that run stay as they"
                " are."
            )
    return ""


def _binding(schema: Any, names: bool = False) -> Any:
    """A JSON Schema without the parts that do not affect validation. `names`: its keys are
    names.
    """
    if isinstance(schema, list):
        return [_binding(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = (
        schema.items()
        if names
        else ((key, item) for key, item in schema.items() if key not in FOR_READERS)
    )
    return {key: _binding(item, key in NAMED and not names) for key, item in kept}


def as_lines(prompt: dict[str, Any]) -> list[str]:
    """A prompt for people: texts line by line, everything else as JSON."""
    return [line for lines in as_parts(prompt).values() for line in lines]


def as_parts(prompt: dict[str, Any]) -> dict[str, list[str]]:
    """The lines of each field, in order of the field names."""
    parts = {}
    for name, value in sorted(prompt.items()):
        text = (
            value
            if isinstance(value, str)
            else json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True)
        )
        parts[name] = (
            [f"{name}: {text}"]
            if "\n" not in text
            else [f"{name}:", *(f"  {line}" for line in text.split("\n"))]
        )
    return parts
