"""Tasks as the probes need them: the expected calls or answers, and right outputs in the formats
that verifiers read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from workers.lib.messages import function_of

REFUSAL = "None of the tools I have can do this."
# Formats of a final answer; the one that the verifier reads is found by trying.
ANSWER_FORMS: dict[str, str] = {
    "plain": "{}",
    "sentence": "The answer is {}",
    "boxed": "\\boxed{{{}}}",
    "tag": "<answer>{}</answer>",
    "hashes": "#### {}",
}
TEXT, NATIVE = "text", "native"
CALL_FORMS = (TEXT, NATIVE)


@dataclass(frozen=True)
class Tool:
    name: str
    properties: dict[str, dict]
    required: list[str]
    dangerous: bool


@dataclass(frozen=True)
class Case:
    """A task. `calls` are the expected ones (None: not a task about calls; []: no call is right),
    `answers` the right texts.
    """

    id: str
    task: dict
    calls: list[dict] | None
    ordered: bool
    answers: list[str]
    tools: list[Tool]
    forms: tuple[str, ...]

    @property
    def silent(self) -> bool:
        """Whether calling nothing is right; then any text may be right."""
        return self.calls == []

    @property
    def has_gold(self) -> bool:
        return self.calls is not None or bool(self.answers)

    @property
    def has_code(self) -> bool:
        """Whether the task asks for a program."""
        expected = self.task.get("expected") or {}
        return bool(expected.get("tests")) or any("def " in answer for answer in self.answers)

    @property
    def checkable(self) -> bool:
        """Whether a text can be said to be wrong."""
        expected = self.task.get("expected") or {}
        return (
            self.has_gold
            or bool(expected.get("tests"))
            or isinstance(expected.get("constraint"), dict)
        )

    @property
    def by_state(self) -> bool:
        """Whether only the end state counts, so that unnecessary calls are not a mistake."""
        return "state" in (self.task.get("expected") or {})


def case_of(task: dict, dangerous: frozenset[str], samples: list[dict]) -> Case:
    """`samples` are real outputs for this task; one that people judged right is its gold output if
    there is no other.
    """
    expected = task.get("expected") or {}
    tools = [_tool(tool, dangerous) for tool in task.get("tools") or [] if isinstance(tool, dict)]
    required = {tool.name: tool.required for tool in tools}
    calls = _calls(expected)
    calls = calls and [_complete(call, required.get(call["tool"], [])) for call in calls]
    answers = [] if calls else _answers(task, expected, samples)
    return Case(
        id=str(task.get("id") or task.get("key") or ""),
        task=task,
        calls=calls,
        ordered=bool(expected.get("ordered")),
        answers=[REFUSAL] if calls == [] else answers,
        tools=tools,
        forms=(
            CALL_FORMS
            if calls
            else tuple(ANSWER_FORMS)
            if calls is None and "answer" in expected
            else ("plain",)
        ),
    )


def _calls(expected: dict) -> list[dict] | None:
    if isinstance(expected.get("calls"), list):
        return expected["calls"]
    return [expected] if "tool" in expected else None


def _complete(call: dict, required: list[str]) -> dict:
    """The call with an accepted value for each argument that the tool requires, even if the task
    allows leaving it out.
    """
    accept = call.get("accept") or {}
    given = {
        name: next(value for value in accept[name] if value not in (None, ""))
        for name in required
        if name not in call["args"]
        and any(value not in (None, "") for value in accept.get(name, []))
    }
    return call | {"args": call["args"] | given}


def _answers(task: dict, expected: dict, samples: list[dict]) -> list[str]:
    if "answer" in expected:
        given = expected["answer"] if isinstance(expected["answer"], list) else [expected["answer"]]
        return [as_text(value) for value in given]
    if task.get("demonstration"):
        return [as_text(task["demonstration"])]
    constraint = expected.get("constraint")
    if isinstance(constraint, dict) and len(constraint) == 1:
        name, value = next(iter(constraint.items()))
        if name in FITTING:
            return [FITTING[name](value)]
    return [
        sample["output"]
        for sample in samples
        if sample.get("label") is True and sample.get("output")
    ][:1]


# Outputs that satisfy a constraint, where one can be written without a model.
FITTING: dict[str, Callable[[Any], str]] = {
    "exact": str,
    "one_of": lambda choices: str(choices[0]),
    "contains": " ".join,
    "json": lambda value: json.dumps(value, ensure_ascii=False),
    "json_keys": lambda keys: json.dumps(dict.fromkeys(keys, "given")),
    "list": lambda items: ", ".join(map(str, items)),
}


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _tool(tool: dict, dangerous: frozenset[str]) -> Tool:
    """Schemas come from files and logs, so anything in them that is not an object or list is left
    out.
    """
    function = function_of(tool) or {}
    name, schema = function.get("name", ""), function.get("parameters")
    schema = schema if isinstance(schema, dict) else {}
    given, required = schema.get("properties"), schema.get("required")
    properties = (
        {key: item for key, item in given.items() if isinstance(item, dict)}
        if isinstance(given, dict)
        else {}
    )
    names = (
        [item for item in required if isinstance(item, str)] if isinstance(required, list) else []
    )
    marked = bool(function.get("x-dangerous") or tool.get("x-dangerous"))
    return Tool(name, properties, names, marked or name in dangerous)


# Outputs


def said(text: str | None) -> list[dict]:
    return [{"role": "assistant", "content": text}]


def bare(call: dict) -> dict:
    return {"tool": call["tool"], "args": call["args"]}


def called(calls: list[dict], form: str, **layout: Any) -> list[dict]:
    """An assistant turn that makes these calls; `layout` is passed to json.dumps. As text, a single
    call is not a list.
    """
    layout = {"ensure_ascii": False} | layout
    if form == TEXT:
        made = [bare(call) for call in calls]
        return said(json.dumps(made[0] if len(made) == 1 else made, **layout))
    turn = [_native(call, number, layout) for number, call in enumerate(calls)]
    return [{"role": "assistant", "content": "", "tool_calls": turn}]


def _native(call: dict, number: int, layout: dict) -> dict:
    function = {"name": call["tool"], "arguments": json.dumps(call["args"], **layout)}
    return {"id": f"call_{number}", "type": "function", "function": function}


def answered(text: str, form: str) -> list[dict]:
    return said(ANSWER_FORMS[form].format(text))


def golds(case: Case, form: str) -> Iterator[list[dict]]:
    """The task's right output in one format; nothing if none is known."""
    if case.calls:
        yield called(case.calls, form)
    elif case.answers:
        yield answered(case.answers[0], form)


# Wrong values


def dummy(tool: Tool) -> dict:
    """A call with made-up values of the right types."""
    return {
        "tool": tool.name,
        "args": {name: _made_up(tool.properties.get(name) or {}) for name in tool.required},
    }


def _made_up(schema: dict) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    kinds = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
    kind = schema.get("type")
    return kinds.get(kind, "something") if isinstance(kind, str) else "something"


def other_value(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 17
    if isinstance(value, str):
        return "something else entirely"
    return [] if value else {"other": "value"}
