"""Verifier specs as people read and write them: JSON, a starting point for each kind, and
differences. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from apps.core.diffing import changed_lines
from apps.core.storable import refuse_unstorable
from workers.lib.typed import FormError

MAX_SPEC = 200_000  # characters
CODE = ("source", "code", "tests")  # texts in a spec that are programs
GRADE = '''def grade(sample, item):
    """From 0 (wrong) to 1 (right). sample["output_text"] is what the agent said, item the task."""
    return 1.0 if sample["output_text"].strip() == str(item["expected"].get("answer", "")) else 0.0
'''


@dataclass(frozen=True)
class Start:
    """A spec to start with, and what it is for."""

    kind: str
    title: str
    about: str
    spec: dict[str, Any]


STARTS = (
    Start(
        "expected",
        "As the task says",
        "Each task defines the expected calls, answer or constraint.",
        {"kind": "expected"},
    ),
    Start(
        "expected_judged",
        "As the task says, rubrics by a judge",
        "Tasks that have only a rubric are graded by the judge (Failures → Judge).",
        {
            "kind": "expected",
            "verifiers": {
                "rubric": {"kind": "judge", "rubric": "Grade by the rubric of the task."}
            },
        },
    ),
    Start(
        "calls",
        "Tool calls",
        "Compares one or several calls with the expected ones, with tolerant matching.",
        {"kind": "calls"},
    ),
    Start(
        "tool_call",
        "One tool call, partial credit",
        "−1 for invalid JSON, then points for the tool, the arguments and safety.",
        {"kind": "tool_call"},
    ),
    Start(
        "no_call",
        "No call",
        "The correct answer calls no tool, because the agent cannot fulfil the request.",
        {"kind": "no_call"},
    ),
    Start(
        "state",
        "End state",
        "Compares the final state, table by table, however the agent got there.",
        {"kind": "state"},
    ),
    Start(
        "trajectory",
        "Whole trajectory",
        "The outcome, minus penalties for too many turns, tool errors and unsafe actions.",
        {"kind": "trajectory", "outcome": {"kind": "state"}, "max_turns": 6},
    ),
    Start(
        "json",
        "JSON schema",
        "The answer is JSON that fits a schema.",
        {"kind": "json", "schema": {"type": "object", "required": ["answer"]}},
    ),
    Start("exact", "Exact answer", "The same text, ignoring case and spaces.", {"kind": "exact"}),
    Start(
        "number",
        "Number",
        "The same number within a tolerance.",
        {"kind": "number", "tolerance": 0.01},
    ),
    Start("math", "Maths", "The same expression, compared by value.", {"kind": "math"}),
    Start(
        "regex",
        "Pattern",
        "The answer matches a regular expression (RE2).",
        {"kind": "regex", "pattern": "^(yes|no)$"},
    ),
    Start(
        "constraints",
        "Instructions",
        "Instructions that can be checked: length, words, format.",
        {"kind": "constraints"},
    ),
    Start(
        "unit_tests",
        "Unit tests",
        "The answer is code: the task's tests run on it in the sandbox.",
        {"kind": "unit_tests"},
    ),
    Start(
        "python",
        "Python",
        "Your own grade(sample, item) function, run in the sandbox.",
        {"kind": "python", "source": GRADE},
    ),
    Start(
        "judge",
        "LLM judge",
        "A rubric, a range and several votes. Set up the model under Failures → Judge.",
        {
            "kind": "judge",
            "rubric": "Does the answer do what was asked, and nothing else?",
            "low": 0,
            "high": 10,
        },
    ),
    Start(
        "trained_reward",
        "Reward model",
        "A reward model trained here on preferences, as a probability or raw score.",
        {"kind": "trained_reward", "version": "support-reward-v1", "scale": "calibrated"},
    ),
    Start(
        "openai_grader",
        "OpenAI grader",
        "An OpenAI grader's JSON, unchanged.",
        {
            "kind": "openai_grader",
            "grader": {
                "type": "string_check",
                "name": "same",
                "operation": "eq",
                "input": "{{sample.output_text}}",
                "reference": "{{item.expected.answer}}",
            },
        },
    ),
    Start(
        "compose",
        "Combination",
        "Several verifiers with weights, and gates that must pass for any credit.",
        {
            "kind": "compose",
            "parts": [
                {"name": "form", "verifier": {"kind": "json"}, "gate": True, "weight": 0.0},
                {"name": "call", "verifier": {"kind": "calls"}},
            ],
        },
    ),
)


class SpecTextError(ValueError):
    """A text that is not JSON object; the message is a sentence with line and column."""


def read(text: str) -> dict[str, Any]:
    """The spec that someone typed. Raises SpecTextError."""
    if len(text) > MAX_SPEC:
        raise SpecTextError(
            f"The spec has {len(text):,} characters; at most {MAX_SPEC:,} are allowed."
        )
    try:
        value = json.loads(text, parse_constant=_refuse)
        refuse_unstorable(value)
    except json.JSONDecodeError as error:
        raise SpecTextError(f"Line {error.lineno}, column {error.colno}: {error.msg}.") from error
    except FormError as error:
        raise SpecTextError(str(error)) from error
    except RecursionError as error:
        raise SpecTextError("The spec is nested too deeply.") from error
    if not isinstance(value, dict):
        raise SpecTextError("The spec must be a JSON object: { … }.")
    return value


def _refuse(name: str) -> Any:
    raise SpecTextError(f"{name} is not a JSON number.")


def shown(spec: dict[str, Any]) -> str:
    return json.dumps(spec, indent=2, ensure_ascii=False)


def split_code(spec: dict[str, Any]) -> tuple[dict[str, Any], str, str]:
    """The spec without its program, the program, and its field's name ("" if there is none)."""
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
