"""Whether an answer is what a task expects. Pure. Exported packages include this file and
`workers.lib.messages`, so both need only the standard library.

`expected` has one of these forms:

- {"tool", "args"}: exactly this call. "accept" may list all correct values of an argument; None or
  "" among them means that it may be left out. "any" may name arguments of which any value is right.
- {"calls": [such calls]}: exactly these, in any order unless "ordered" is true; an empty list means
  that no call is right. Calls of the tools in "lookups", if it is given, do not count.
- {"any_call": true}: at least one call, any.
- {"answer": value or list of values}: one of these, as text or number.
- {"constraint": {name: value}}: the text satisfies all named CONSTRAINTS.
- {"grader": OpenAI's grader}: it decides (`workers.lib.verifiers.code`); this module cannot.
- {"rubric": text}: a judge decides whether it is right (`workers.lib.verifiers.judges`); this
  module cannot.

A task may also state what must hold afterwards, as [{"path", "equals"}] for a state as returned by
`state_after`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workers.lib.messages import (
    MAX_DEPTH,
    argument_share,
    calls_of,
    exchanges,
    json_of,
    same_value,
    text_of,
    unfenced,
)

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_AROUND = "*_`\"'“”‘’ \n\t"


# Calls


def match_calls(calls: list[dict], expected: dict) -> dict[str, float]:
    """{"success", "tools", "arguments"} in [0, 1]: everything right; share of right tools; share of
    right arguments.

    Missing and superfluous calls both count as wrong.
    """
    wanted, lookups = expected.get("calls", [expected]), expected.get("lookups") or ()
    calls = [call for call in calls if call["tool"] not in lookups]
    if not wanted and not calls:
        return {"success": 1.0, "tools": 1.0, "arguments": 1.0}
    scores = [[_pair(call, want) for want in wanted] for call in calls]
    in_order = {i: i for i in range(min(len(calls), len(wanted)))}
    chosen = (in_order if expected.get("ordered") else paired(scores)).items()
    slots = max(len(calls), len(wanted))
    tools = sum(scores[i][j] > 0 for i, j in chosen) / slots
    arguments = sum(max(0.0, scores[i][j] - 1) for i, j in chosen) / slots
    return {"success": float(tools == arguments == 1.0), "tools": tools, "arguments": arguments}


def _pair(call: dict, want: dict) -> float:
    """0 for another tool, else 1 + the share of right arguments."""
    if call["tool"] != want["tool"]:
        return 0.0
    given, right = (
        {name: value for name, value in args.items() if name not in (want.get("any") or ())}
        for args in (call["args"], want["args"])
    )
    return 1 + argument_share(given, right, want.get("accept"))


def paired(scores: list[list[float]]) -> dict[int, int]:
    """The made call (row) assigned to each expected one (column), where 2 is a perfect score: as
    many perfect pairs as possible (Kuhn's algorithm), the rest by descending score."""
    pairs = perfect_pairs([[score == 2.0 for score in row] for row in scores])
    taken = set(pairs.values())
    for _, i, j in sorted(
        (-score, i, j) for i, row in enumerate(scores) for j, score in enumerate(row)
    ):
        if i not in pairs and j not in taken:
            pairs[i] = j
            taken.add(j)
    return pairs


def perfect_pairs(right: list[list[bool]]) -> dict[int, int]:
    """The largest set of pairs (row → column) with right[row][column] (Kuhn's algorithm), each row
    and column used at most once.
    """
    owner: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column, fit in enumerate(right[row]):
            if fit and column not in tried:
                tried.add(column)
                if column not in owner or place(owner[column], tried):
                    owner[column] = row
                    return True
        return False

    for row in range(len(right)):
        place(row, set())
    return {row: column for column, row in owner.items()}


# State


def assertions_in(metadata: dict) -> list[dict]:
    """A task's assertions, [{"path", "equals"}]; [] if a field of that name in some file holds
    something else.
    """
    found = metadata.get("state")
    return found if isinstance(found, list) and all(map(_is_assertion, found)) else []


def _is_assertion(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"path", "equals"}
        and isinstance(value["path"], str)
    )


def answered_calls(messages: list[dict]) -> list[dict]:
    """[{"tool", "args", "content"}] for the native calls that can be parsed; the content is None if
    the tool did not answer before the agent's next turn.
    """
    return [
        {
            "tool": item.tool,
            "args": item.call.args,
            "content": None if item.result is None else text_of(item.result),
        }
        for item in exchanges(messages)
        if not item.call.problem
    ]


def state_after(calls: list[dict]) -> dict:
    """The state that calls [{"tool", "args", "content"}] reveal: the objects that tools returned,
    merged in order, and under "calls" for each tool the "count" and the "args" and "result" of its
    last call.
    """
    state: dict = {}
    last: dict[str, dict] = {}
    for call in calls:
        text = call["content"] or ""
        result = json_of(text)
        if isinstance(result, dict):
            state = _merged(state, result)
        count = last[call["tool"]]["count"] + 1 if call["tool"] in last else 1
        last[call["tool"]] = {
            "count": count,
            "args": call["args"],
            "result": text if result is None else result,
        }
    return state | {"calls": last}


def _merged(old: dict, new: dict) -> dict:
    both = {
        name: _merged(old[name], new[name])
        for name in old.keys() & new.keys()
        if _are_objects(old, new, name)
    }
    return old | new | both


def _are_objects(old: dict, new: dict, name: str) -> bool:
    return isinstance(old[name], dict) and isinstance(new[name], dict)


def state_share(assertions: list[dict], state: dict) -> float:
    """Share of the assertions that hold, in [0, 1]. If the state lacks the path, only the assertion
    that a tool was called 0 times can hold.
    """
    held = [same_value(item["equals"], _at(state, item["path"])) for item in assertions]
    return sum(held) / len(held) if held else 1.0


_NOTHING = object()


def _at(state: dict, path: str) -> Any:
    """The value at a path such as “tickets.12.status”, “items.0.name” or
    “calls.tickets.close.count”; names may contain dots.
    """
    parts = path.split(".")
    found = _walk(state, parts) if len(parts) <= MAX_DEPTH else _NOTHING
    is_count = len(parts) > 2 and parts[0] == "calls" and parts[-1] == "count"
    return 0 if found is _NOTHING and is_count else found


def _walk(value: Any, parts: list[str]) -> Any:
    if not parts:
        return value
    if isinstance(value, list):
        inside = (
            parts[0].isascii()
            and parts[0].isdigit()
            and len(parts[0]) < 10
            and int(parts[0]) < len(value)
        )
        return _walk(value[int(parts[0])], parts[1:]) if inside else _NOTHING
    for end in range(len(parts), 0, -1) if isinstance(value, dict) else ():
        name = ".".join(parts[:end])
        if name in value and (found := _walk(value[name], parts[end:])) is not _NOTHING:
            return found
    return _NOTHING


# Text


def plain(text: str) -> str:
    """An answer without surrounding code fence, quotes, emphasis and full stop."""
    return unfenced(text).strip(_AROUND).removesuffix(".").strip(_AROUND)


def is_answer(text: str, answer: Any) -> bool:
    """Whether the text is one of the answers: the same value, the same words or the same number."""
    given = plain(text)
    for wanted in answer if isinstance(answer, list) else [answer]:
        if isinstance(wanted, str) and same_value(given, plain(wanted)):
            return True
        number = given.replace(",", "")
        if _NUMBER.fullmatch(number) and _NUMBER.fullmatch(str(wanted).replace(",", "")):
            if float(number) == float(str(wanted).replace(",", "")):
                return True
        elif not isinstance(wanted, str) and same_value(json_of(given), wanted):
            return True
    return False


def words(text: str) -> list[str]:
    return _WORD.findall(text)


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def letters(text: str) -> bool:
    return any(map(str.isalpha, text))


def _has_keys(text: str, keys: list[str]) -> bool:
    value = json_of(unfenced(text))
    return isinstance(value, dict) and sorted(value) == sorted(keys)


CONSTRAINTS: dict[str, Callable[[str, Any], bool]] = {
    "words": lambda text, count: len(words(text)) == count,
    "max_words": lambda text, count: 0 < len(words(text)) <= count,
    "lines": lambda text, count: len(lines(text)) == count,
    "exact": lambda text, wanted: text.strip() == wanted,
    "one_of": lambda text, choices: (
        plain(text).casefold() in [choice.casefold() for choice in choices]
    ),
    "contains": lambda text, parts: all(part.casefold() in text.casefold() for part in parts),
    "excludes": lambda text, parts: (
        bool(text.strip()) and not any(part.casefold() in text.casefold() for part in parts)
    ),
    "starts_with": lambda text, start: text.strip().startswith(start),
    "ends_with": lambda text, end: text.strip().endswith(end),
    "upper": lambda text, wanted: letters(text) and (text == text.upper()) is wanted,
    "lower": lambda text, wanted: letters(text) and (text == text.lower()) is wanted,
    "json": lambda text, value: same_value(json_of(unfenced(text)), value),
    "json_keys": _has_keys,
    "list": lambda text, items: (
        [part.strip(" .\n").casefold() for part in re.split(r"[,\n]", plain(text))]
        == [str(item).casefold() for item in items]
    ),
}


@dataclass(frozen=True)
class ValueKind:
    """The kind of value that a constraint takes: `name` for form controls, `label` for people."""

    name: str
    label: str
    fits: Callable[[Any], bool]


NUMBER = ValueKind(
    "number", "a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)
)
TEXT = ValueKind("text", "text", lambda value: isinstance(value, str))
TEXTS = ValueKind(
    "texts",
    "a list of texts",
    lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
)
LIST = ValueKind("list", "a list", lambda value: isinstance(value, list))
SWITCH = ValueKind("switch", "true or false", lambda value: isinstance(value, bool))
JSON = ValueKind("json", "JSON", lambda value: True)
CONSTRAINT_VALUES: dict[str, ValueKind] = {
    "words": NUMBER,
    "max_words": NUMBER,
    "lines": NUMBER,
    "exact": TEXT,
    "one_of": TEXTS,
    "contains": TEXTS,
    "excludes": TEXTS,
    "starts_with": TEXT,
    "ends_with": TEXT,
    "upper": SWITCH,
    "lower": SWITCH,
    "json": JSON,
    "json_keys": TEXTS,
    "list": LIST,
}


def check(expected: dict, output: str) -> bool:
    """Whether an output text is right. Raises ValueError if `expected` has none of the forms."""
    return score(expected, {"role": "assistant", "content": output})["success"] == 1.0


def score(expected: dict, message: dict) -> dict[str, float]:
    """{"success", …}: how far an assistant message is right, each in [0, 1]. Raises ValueError like
    `check`.
    """
    if expected.get("any_call") is True:
        return {"success": float(any(not call.problem for call in calls_of(message)))}
    if "tool" in expected or "calls" in expected:
        calls = calls_of(message)
        if any(call.problem for call in calls):
            return {"success": 0.0, "tools": 0.0, "arguments": 0.0}
        return match_calls([call.plain for call in calls], expected)
    text = text_of(message)
    if "answer" in expected:
        return {"success": float(is_answer(text, expected["answer"]))}
    if (
        isinstance(expected.get("constraint"), dict)
        and expected["constraint"].keys() <= CONSTRAINTS.keys()
    ):
        return {
            "success": float(
                all(
                    CONSTRAINTS[name](text, value) for name, value in expected["constraint"].items()
                )
            )
        }
    raise ValueError(
        "A task's expected value needs “tool”, “calls”, “answer” or known constraints."
    )
