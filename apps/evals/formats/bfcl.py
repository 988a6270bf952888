"""Berkeley Function Calling Leaderboard: a file of questions and one of possible answers, joined by
id.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice, product
from typing import Any

from apps.evals.formats.rows import (
    Bad,
    Line,
    Read,
    RowProblem,
    TaskRow,
    checked_messages,
    expected_of,
    json_lines,
    task,
    want,
)
from workers.lib.verifiers.languages import CODE

TYPES = {"dict": "object", "float": "number", "tuple": "array"}
MOST = 256  # values of one argument, after its variants have been multiplied out
NAMES = {"key": "id", "messages": "question", "tools": "function", "expected": "ground_truth"}
NO_CALL, ANY_CALL = "irrelevance", "live_relevance"
LANGUAGES = {"javascript": "JavaScript", "java": "Java"}  # the first text that an id contains


def read(lines: Iterable[Line], answers: Iterable[Line] | None = None) -> Iterator[Read]:
    """Raises nothing; a question without an answer is a problem, and so is an answer without its
    question.

    Questions with “irrelevance” in their id expect no call, those with “live_relevance” any call;
    neither have answers. Arguments of Java and JavaScript are requested as text in that language,
    and parsed as such (workers.lib.verifiers.languages).
    """
    truths, problems = _truths(answers or ())
    yield from problems
    for number, value in json_lines(lines):
        try:
            yield (
                value
                if isinstance(value, RowProblem)
                else replace(_row(value, truths), line=number)
            )
        except Bad as error:
            yield RowProblem(number, error.field, error.message)
    for identity, (number, _) in truths.items():
        yield RowProblem(
            number,
            "id",
            f"the answer “{identity}” has no matching question. Upload the question file that"
            " belongs to it.",
        )


def _truths(lines: Iterable[Line]) -> tuple[dict[str, tuple[int, Any]], list[RowProblem]]:
    truths: dict[str, tuple[int, Any]] = {}
    problems = []
    for number, value in json_lines(lines):
        if isinstance(value, RowProblem):
            problems.append(RowProblem(number, "possible answers", value.message))
        else:
            truths[str(value.get("id"))] = (number, value.get("ground_truth"))
    return truths, problems


def _row(record: dict, truths: dict[str, tuple[int, Any]]) -> TaskRow:
    identity = want(record.get("id"), str, "id", "BFCL names each question.")
    turns = want(record.get("question"), list, "question", "Give a list of turns.")
    _, truth = truths.pop(identity, (0, None))
    if "initial_config" in record:
        return _conversation(record, identity, turns, truth)
    if len(turns) != 1:
        raise Bad(
            "question",
            f"{len(turns)} turns without an “initial_config”. Only multi_turn files have several.",
        )
    language = next((name for name in LANGUAGES if name in identity), "")
    tools = [
        _tool(tool, f"function[{at}]", language)
        for at, tool in enumerate(record.get("function") or [])
    ]
    if truth is None and NO_CALL not in identity and ANY_CALL not in identity:
        raise Bad(
            "ground_truth",
            f"“{identity}” has no possible answer. Upload the matching possible_answer_… file too.",
        )
    calls = [
        _call(call, f"ground_truth[{at}]")
        for at, call in enumerate(want(truth or [], list, "ground_truth", "Give a list of calls."))
    ]
    category = identity.rsplit("_", 1)[0]
    return task(
        key=identity,
        messages=turns[0],
        tools=tools,
        expected={"any_call": True} if ANY_CALL in identity else expected_of(calls),
        metadata={"category": category},
        names=NAMES,
    )


def _conversation(record: dict, identity: str, turns: list, truth: Any) -> TaskRow:
    """A multi_turn task for the environment bfcl_turns: its tools and its expected results come
    from BFCL's own classes.
    """
    wanted = want(truth, list, "ground_truth", "Upload the matching possible_answer_… file too.")
    if len(wanted) != len(turns):
        raise Bad("ground_truth", f"{len(wanted)} turns, but the question has {len(turns)}.")
    expected = [
        [
            _python_call(text, f"ground_truth[{turn}][{at}]")
            for at, text in enumerate(want(calls, list, f"ground_truth[{turn}]", "Give a list."))
        ]
        for turn, calls in enumerate(wanted)
    ]
    category = identity.rsplit("_", 1)[0]
    bfcl = {
        "config": want(record["initial_config"], dict, "initial_config", "Give an object."),
        "classes": want(
            record.get("involved_classes"), list, "involved_classes", "Give the names of classes."
        ),
        "turns": [
            checked_messages(turn, f"question[{at}]") if turn else []
            for at, turn in enumerate(turns[1:], 1)
        ],
        "later_tools": want(
            record.get("missed_function", {}), dict, "missed_function", "Give an object."
        ),
        "excluded": want(
            record.get("excluded_function", []), list, "excluded_function", "Give a list."
        ),
        "long_context": "long_context" in category,
    }
    return task(
        key=identity,
        messages=turns[0],
        expected={"turns": expected},
        metadata={"category": category, "bfcl": bfcl},
        names=NAMES,
    )


def _python_call(text: Any, name: str) -> dict:
    """{"tool", "args", "positional"} of a call in Python syntax."""
    try:
        call = ast.parse(want(text, str, name, "Give a call."), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("no call of a name")
        args = {str(item.arg): ast.literal_eval(item.value) for item in call.keywords}
        made = {
            "tool": call.func.id,
            "args": args,
            "positional": [ast.literal_eval(item) for item in call.args],
        }
        return json.loads(json.dumps(made, allow_nan=False))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise Bad(name, f"not a call with literal arguments ({error}).") from error


def _tool(function: Any, name: str, language: str) -> dict:
    want(function, dict, name, "Give a function.")
    given = function.get("parameters") or {}
    properties = given.get("properties") if isinstance(given, dict) else None
    if language and isinstance(properties, dict):
        made = _schema(given | {"properties": {}})
        made["properties"] = {
            key: _in_language(value, language) for key, value in properties.items()
        }
        return {"type": "function", "function": function | {"parameters": made}}
    return {"type": "function", "function": function | {"parameters": _schema(given)}}


def _in_language(value: Any, language: str) -> Any:
    """An argument as text in the language, with its type in that language."""
    if not isinstance(value, dict) or not isinstance(kind := value.get("type"), str):
        return value
    items = value["items"].get("type") if isinstance(value.get("items"), dict) else None
    note = (
        f"{value.get('description') or ''} ({LANGUAGES[language]} {kind}, written as in the"
        " language)".strip()
    )
    return {
        "type": "string",
        "description": note,
        CODE: {"language": language, "type": kind, "items": items},
    }


def _schema(value: Any) -> Any:
    """JSON Schema's type names for Python's; a type that allows anything is left out."""
    if isinstance(value, list):
        return [_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {key: _schema(item) for key, item in value.items()}
    if isinstance(made.get("type"), str):
        made["type"] = TYPES.get(made["type"], made["type"])
        if made["type"] == "any":
            del made["type"]
    return made


def _call(value: Any, name: str) -> dict:
    """{"tool", "args", "accept"}: `args` are the first accepted values of the required
    arguments.
    """
    if not isinstance(value, dict) or len(value) != 1:
        raise Bad(name, "expected an object with one function in it.")
    [(tool, arguments)] = value.items()
    want(arguments, dict, f"{name}.{tool}", "Give the arguments with lists of right values.")
    accept = {
        argument: _values(values, f"{name}.{tool}.{argument}")
        for argument, values in arguments.items()
    }
    args = {argument: values[0] for argument, values in accept.items() if "" not in values}
    return {"tool": tool, "args": args, "accept": accept}


def _values(values: Any, name: str) -> list:
    want(values, list, name, "Give the list of right values.")
    made = [concrete for value in values for concrete in _alternatives(value, name)]
    if not made or len(made) > MOST:
        raise Bad(name, f"{len(made)} right values. Between 1 and {MOST} are read.")
    return made


def _alternatives(value: Any, name: str) -> list:
    """Inside an object each value is again a list of accepted ones; "" among them means that it may
    be omitted.
    """
    if isinstance(value, dict):
        choices = [
            [(key, item) for item in _values(items, f"{name}.{key}")]
            for key, items in value.items()
        ]
        return [
            {key: item for key, item in chosen if item != ""}
            for chosen in islice(product(*choices), MOST + 1)
        ]
    if isinstance(value, list):
        choices = [_alternatives(item, name) for item in value]
        return [list(chosen) for chosen in islice(product(*choices), MOST + 1)]
    return [value]
