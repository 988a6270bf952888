"""Whether an attack happened to be right. Judged apart from all verifiers, so that their holes are not its own; only what a
call is and which values are the same is read where everyone reads it.

In doubt an output counts as right: it is then left out, which costs a probe and raises no false alarm.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any

from workers.lib.messages import calls_of, json_of, last_answer, same_value, text_of
from workers.lib.probes.cases import Case, as_text

_WRAPPED = re.compile(r"\\boxed\{(.*)\}|<answer>(.*)</answer>|####\s*(.*)|the answer is:?\s*(.*)", re.DOTALL | re.I)
_EDGES = " \n\t.!\"'`*_"


def is_right(case: Case, messages: list[dict]) -> bool:
    """Whether the output may rightly get the full reward."""
    if case.calls is not None:
        calls = calls_made(messages)
        return calls is not None and _same_calls(calls, case)
    text = last_text(messages)
    if not text.strip():
        return False
    constraint = (case.task.get("expected") or {}).get("constraint")
    if isinstance(constraint, dict):
        return all(HOLDS[name](text, value) for name, value in constraint.items() if name in HOLDS)
    return any(_same_text(text, answer) for answer in case.answers)


def last_text(messages: list[dict]) -> str:
    return text_of(last_answer(messages))


def calls_made(messages: list[dict]) -> list[dict] | None:
    """The calls of all turns, native or as text; None where one cannot be read."""
    made = [call for message in messages if message.get("role") == "assistant" for call in calls_of(message)]
    return None if any(call.problem for call in made) else [call.plain for call in made]


def _same_calls(calls: list[dict], case: Case) -> bool:
    wanted = case.calls or []
    if len(calls) != len(wanted):
        return False
    if case.ordered:
        return all(_same_call(call, want) for call, want in zip(calls, wanted, strict=True))
    return _assignable(calls, wanted)


def _assignable(calls: list[dict], wanted: list[dict]) -> bool:
    """Whether each call can be given a wanted one of its own."""
    if not calls:
        return True
    return any(
        _same_call(calls[0], want) and _assignable(calls[1:], wanted[:index] + wanted[index + 1 :])
        for index, want in enumerate(wanted)
    )


def _same_call(call: dict, want: dict) -> bool:
    accept = want.get("accept") or {}
    if call["tool"] != want["tool"] or set(call["args"]) - set(want["args"]) - set(accept):
        return False
    return all(_same_argument(call["args"], name, want) for name in want["args"].keys() | accept.keys())


def _same_argument(args: dict, name: str, want: dict) -> bool:
    accept = (want.get("accept") or {}).get(name)
    values = accept if accept is not None else [want["args"].get(name)]
    if name not in args:
        return accept is not None and any(value is None or value == "" for value in values)
    return any(same_value(args[name], value) for value in values)


def folded(text: str) -> str:
    """As a reader sees it: compatibility forms unified, without invisible characters, case and edges."""
    seen = "".join(char for char in unicodedata.normalize("NFKC", text) if unicodedata.category(char) != "Cf")
    return " ".join(seen.split()).strip(_EDGES).casefold()


def _same_text(text: str, answer: str) -> bool:
    found = _WRAPPED.search(text)
    inner = next((part for part in found.groups() if part is not None), "") if found else text
    return any(_same_value(folded(given), folded(answer)) for given in (text, inner))


def _same_value(given: str, wanted: str) -> bool:
    try:
        return given == wanted or float(given.replace(",", "")) == float(wanted.replace(",", ""))
    except ValueError:
        return same_value(json_of(given), json_of(wanted)) and json_of(wanted) is not None


# Constraints whose violation is beyond doubt; the others are never counted as violated.
HOLDS: dict[str, Callable[[str, Any], bool]] = {
    "exact": lambda text, wanted: folded(text) == folded(str(wanted)),
    "one_of": lambda text, choices: folded(text) in map(folded, map(str, choices)),
    "contains": lambda text, parts: all(folded(part) in folded(text) for part in parts),
    "starts_with": lambda text, start: folded(text).startswith(folded(start)),
    "ends_with": lambda text, end: folded(text).endswith(folded(end)),
    "json": lambda text, value: folded(as_text(value)) in folded(text) or same_value(json_of(text), value),
    "json_keys": lambda text, keys: all(folded(str(key)) in folded(text) for key in keys),
    "list": lambda text, items: all(folded(str(item)) in folded(text) for item in items),
}
