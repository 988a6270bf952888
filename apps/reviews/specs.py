"""Verifier specs as people read and write them: JSON, a place to begin for each kind, and what differs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from apps.core.diffing import changed_lines

MAX_SPEC = 200_000  # characters
CODE = ("source", "code", "tests")  # texts in a spec that are programs
GRADE = '''def grade(sample, item):
    """From 0 (wrong) to 1 (right). sample["output_text"] is what the agent said, item the task."""
    return 1.0 if sample["output_text"].strip() == str(item["expected"].get("answer", "")) else 0.0
'''


@dataclass(frozen=True)
class Start:
    """A spec to begin with, and what it is good for."""

    kind: str
    title: str
    about: str
    spec: dict[str, Any]


STARTS = (
    Start("expected", "By the task", "Each task says what is right, in its own way: calls, an answer, a constraint.",
          {"kind": "expected"}),
    Start("calls", "Tool calls", "One or several calls against what was expected, with tolerant matching.",
          {"kind": "calls"}),
    Start("tool_call", "One tool call, part credit", "The guide's reward: −1 for invalid JSON, then tool, arguments, safety.",
          {"kind": "tool_call"}),
    Start("no_call", "No call", "Right is not to call a tool: the request is out of the agent's reach.", {"kind": "no_call"}),
    Start("state", "End state", "What the episode left behind, table by table, whatever way it took.", {"kind": "state"}),
    Start("trajectory", "The whole way", "An outcome, less for too many turns, tool errors and unsafe actions.",
          {"kind": "trajectory", "outcome": {"kind": "state"}, "max_turns": 6}),
    Start("json", "JSON and its schema", "The answer is JSON, and fits a schema.",
          {"kind": "json", "schema": {"type": "object", "required": ["answer"]}}),
    Start("exact", "Exact answer", "The same text, case and spaces aside.", {"kind": "exact"}),
    Start("number", "Number", "The same number within a tolerance.", {"kind": "number", "tolerance": 0.01}),
    Start("math", "Maths", "The same expression, compared by value.", {"kind": "math"}),
    Start("regex", "Pattern", "The answer fits a regular expression (RE2).", {"kind": "regex", "pattern": "^(yes|no)$"}),
    Start("constraints", "Instructions", "Checkable instructions: length, words, form.", {"kind": "constraints"}),
    Start("unit_tests", "Unit tests", "The answer is code; it runs the task's tests in the sandbox.", {"kind": "unit_tests"}),
    Start("python", "Python", "Your own grade(sample, item), run in the sandbox.", {"kind": "python", "source": GRADE}),
    Start("judge", "A model as judge", "A rubric and a range, several votes. Set the model up under Failures → Judge.",
          {"kind": "judge", "rubric": "Does the answer do what was asked, and nothing else?", "low": 0, "high": 10}),
    Start("openai_grader", "OpenAI grader", "A grader's JSON as it runs there.",
          {"kind": "openai_grader", "grader": {"type": "string_check", "name": "same", "operation": "eq",
                                               "input": "{{sample.output_text}}", "reference": "{{item.expected.answer}}"}}),
    Start("compose", "Several, weighed", "Weights, and gates: no credit unless one of them passes.",
          {"kind": "compose", "parts": [{"name": "form", "verifier": {"kind": "json"}, "gate": True, "weight": 0.0},
                                        {"name": "call", "verifier": {"kind": "calls"}}]}),
)  # fmt: skip


class SpecTextError(ValueError):
    """A text that is no JSON object; the message is a sentence with line and column."""


def read(text: str) -> dict[str, Any]:
    """The spec that someone typed. Raises SpecTextError."""
    if len(text) > MAX_SPEC:
        raise SpecTextError(f"The spec has {len(text):,} characters; at most {MAX_SPEC:,} are taken.")
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise SpecTextError(f"Line {error.lineno}, column {error.colno}: {error.msg}.") from error
    except RecursionError as error:
        raise SpecTextError("The spec is nested too deeply.") from error
    if not isinstance(value, dict):
        raise SpecTextError("The spec must be a JSON object: { … }.")
    return value


def shown(spec: dict[str, Any]) -> str:
    return json.dumps(spec, indent=2, ensure_ascii=False)


def split_code(spec: dict[str, Any]) -> tuple[dict[str, Any], str, str]:
    """The spec without its program, the program, and its field's name ("" where there is none)."""
    for name in CODE:
        if isinstance(spec.get(name), str):
            return {key: value for key, value in spec.items() if key != name}, spec[name], name
    return spec, "", ""


def with_code(spec: dict[str, Any], code: str, field: str) -> dict[str, Any]:
    return spec | {field: code.replace("\r\n", "\n")} if field in CODE else spec


def lines(spec: dict[str, Any]) -> list[str]:
    """The spec line by line, a program in it as its own lines."""
    rest, code, field = split_code(spec)
    found = shown(rest).splitlines()
    return [*found, "", f"{field}:", *code.splitlines()] if field else found


def diff(before: dict[str, Any], after: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(kind, line) as `changed_lines` has them."""
    return changed_lines(lines(before), lines(after))
