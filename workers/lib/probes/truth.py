"""Whether an attack happened to be right. Decided independently of all verifiers, so that their
holes do not affect it; it only shares the parsing of calls and the comparison of values.

In doubt an output counts as right: it is then left out, which weakens a probe but raises no false
alarm.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from difflib import SequenceMatcher
from typing import Any

from workers.lib.messages import calls_of, json_of, last_answer, same_value, text_of
from workers.lib.probes.cases import Case, as_text
from workers.lib.probes.programs import same_program, surely_no_solution

_WRAPPED = re.compile(
    r"\\boxed\{(.*)\}|<answer>(.*)</answer>|####\s*(.*)|the answer is:?\s*(.*)", re.DOTALL | re.I
)
_EDGES = " \n\t.!\"'`*_"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d{1,3})?", re.I)
LONG_ANSWER = 40  # from this length on, an answer may be right in other words
UNLIKE = 0.4  # share of letters that even unrelated texts may have in common
SHORT = 300  # characters up to which texts are compared letter by letter
NAME_SHARE = 0.5  # weight of a call's name; the rest is its arguments


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
    if case.has_code and any(same_program(text, answer) for answer in case.answers):
        return True
    return any(_same_text(text, answer) for answer in case.answers)


def surely_wrong(case: Case, messages: list[dict]) -> bool:
    """Whether nobody could fairly consider an output right, including the most lenient reader.
    Outputs that the search may use.

    Calls: a different number of them, or one whose name or values differ from the expected in
    letters and digits; where only the end state counts, an expected call is missing. A text: it
    contains no right answer, in any layout; for a long answer, less than half of it. A constraint:
    one that can be checked does not hold. A program: it never uses its input although the right one
    does, or there is none; other programs may be right in other words.
    """
    if case.calls is not None:
        return _surely_other_calls(case, messages)
    text = last_text(messages)
    constraint = (case.task.get("expected") or {}).get("constraint")
    if isinstance(constraint, dict):
        return not all(
            HOLDS[name](text, value) for name, value in constraint.items() if name in HOLDS
        )
    if case.has_code:
        return surely_no_solution(text, case.answers)
    if any(len(answer) > LONG_ANSWER for answer in case.answers):
        return merit(case, messages) < 0.5
    return not any(_stands_in(answer, text) for answer in case.answers)


def _surely_other_calls(case: Case, messages: list[dict]) -> bool:
    wanted = case.calls or []
    read = [call for message in messages for call in calls_of(message)]
    made = [call.plain for call in read if not call.problem]
    if not case.by_state and len(made) != len(read):
        return True
    matched = [any(_alike(call, want) for call in made) for want in wanted]
    return not all(matched) or (len(made) != len(wanted) and not case.by_state)


def _alike(call: dict, want: dict) -> bool:
    accept = want.get("accept") or {}
    return _bones(call["tool"]) == _bones(want["tool"]) and all(
        name in accept or _value_bones(call["args"].get(name)) == _value_bones(value)
        for name, value in want["args"].items()
    )


def _value_bones(value: Any) -> Any:
    return float(value) if isinstance(value, int | float) else _bones(as_text(value))


def _bones(text: str) -> str:
    return "".join(char for char in folded(text) if char.isalnum())


def _stands_in(answer: str, text: str) -> bool:
    """Whether the text contains the answer's letters and digits, or a number of the same value."""
    if _bones(answer) in _bones(text):
        return True
    try:
        wanted = float(answer.replace(",", ""))
    except ValueError:
        return False
    return any(
        float(found) == wanted
        for found in _NUMBER.findall(text.replace(",", ""))
        if len(found) < 30
    )


def merit(case: Case, messages: list[dict]) -> float:
    """How much of the right answer an output contains, in [0, 1]: what partial credit may reward.
    In doubt, rather too much.

    Calls: F1 over the best matches of made and expected calls, half of each for its name and half
    for its arguments. A constraint: the share of its parts that hold. A text: the closest of the
    right answers, by F1 over its words or, if both are short, by its letters.
    """
    if case.calls is not None:
        made = [
            call.plain for message in messages for call in calls_of(message) if not call.problem
        ][:400]
        best = sorted(
            (max((_call_share(call, want) for call in made), default=0.0) for want in case.calls),
            reverse=True,
        )
        return 2 * sum(best) / (len(made) + len(case.calls)) if made else 0.0
    text = last_text(messages)
    constraint = (case.task.get("expected") or {}).get("constraint")
    shares = [_text_share(text, answer) for answer in case.answers]
    if isinstance(constraint, dict):
        held = [
            share
            for name, value in constraint.items()
            for share in _parts_that_hold(text, name, value)
        ]
        shares.append(sum(held) / len(held) if held else 1.0)
    return max(shares, default=0.0)


def _parts_that_hold(text: str, name: str, value: Any) -> list[float]:
    """For each part of a constraint, whether it holds; [] if that cannot be decided."""
    parts = [[item] for item in value] if name in SEVERAL and isinstance(value, list) else [value]
    return [float(HOLDS[name](text, part)) for part in parts] if name in HOLDS else []


def _call_share(call: dict, want: dict) -> float:
    args, wanted = call["args"], want["args"]
    named = NAME_SHARE * (call["tool"] == want["tool"])
    if not args.keys() | wanted.keys():
        return named + (1 - NAME_SHARE) * bool(named)
    same = sum(_argument_share(args[name], wanted[name]) for name in args.keys() & wanted.keys())
    return named + (1 - NAME_SHARE) * same / len(args.keys() | wanted.keys())


def _argument_share(given: Any, wanted: Any) -> float:
    if same_value(given, wanted):
        return 1.0
    return (
        _text_share(str(given), str(wanted))
        if isinstance(given, str) and isinstance(wanted, str)
        else 0.0
    )


def _text_share(text: str, answer: str) -> float:
    given, wanted = folded(text[:20_000]), folded(answer)
    found = _WRAPPED.search(text[:20_000])
    inner = (
        folded(next((part for part in found.groups() if part is not None), "")) if found else given
    )
    left, right = Counter(re.findall(r"\w+", given)), Counter(re.findall(r"\w+", wanted))
    common = (left & right).total()
    shares = [2 * common / (left.total() + right.total()) if common else 0.0]
    near = [part for part in {given, inner} if max(len(part), len(wanted)) <= SHORT]
    ratios = (SequenceMatcher(None, part, wanted).ratio() for part in near)
    shares += [max(0.0, (ratio - UNLIKE) / (1 - UNLIKE)) for ratio in ratios]
    return max(shares)


def last_text(messages: list[dict]) -> str:
    return text_of(last_answer(messages))


def calls_made(messages: list[dict]) -> list[dict] | None:
    """The calls of all turns, native or as text; None if one cannot be parsed."""
    made = [
        call
        for message in messages
        if message.get("role") == "assistant"
        for call in calls_of(message)
    ]
    return None if any(call.problem for call in made) else [call.plain for call in made]


def _same_calls(calls: list[dict], case: Case) -> bool:
    wanted = case.calls or []
    if len(calls) != len(wanted):
        return False
    if case.ordered:
        return all(_same_call(call, want) for call, want in zip(calls, wanted, strict=True))
    return _assignable(calls, wanted)


def _assignable(calls: list[dict], wanted: list[dict]) -> bool:
    """Whether each call can be assigned a different expected call."""
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
    return all(
        _same_argument(call["args"], name, want) for name in want["args"].keys() | accept.keys()
    )


def _same_argument(args: dict, name: str, want: dict) -> bool:
    accept = (want.get("accept") or {}).get(name)
    values = accept if accept is not None else [want["args"].get(name)]
    if name not in args:
        return accept is not None and any(value is None or value == "" for value in values)
    return any(same_value(args[name], value) for value in values)


def folded(text: str) -> str:
    """The text as a reader sees it: with compatibility forms unified, without invisible characters,
    case and surrounding punctuation.
    """
    if not text.isascii():
        text = "".join(
            char
            for char in unicodedata.normalize("NFKC", text)
            if unicodedata.category(char) != "Cf"
        )
    return " ".join(text.split()).strip(_EDGES).casefold()


def _same_text(text: str, answer: str) -> bool:
    found = _WRAPPED.search(text)
    inner = next((part for part in found.groups() if part is not None), "") if found else text
    return any(_same_value(folded(given), folded(answer)) for given in (text, inner))


def _same_value(given: str, wanted: str) -> bool:
    try:
        return given == wanted or float(given.replace(",", "")) == float(wanted.replace(",", ""))
    except ValueError:
        return same_value(json_of(given), json_of(wanted)) and json_of(wanted) is not None


# Constraints whose violation is beyond doubt; others never count as violated.
HOLDS: dict[str, Callable[[str, Any], bool]] = {
    "exact": lambda text, wanted: folded(text) == folded(str(wanted)),
    "one_of": lambda text, choices: folded(text) in map(folded, map(str, choices)),
    "contains": lambda text, parts: all(folded(part) in folded(text) for part in parts),
    "starts_with": lambda text, start: folded(text).startswith(folded(start)),
    "ends_with": lambda text, end: folded(text).endswith(folded(end)),
    "json": lambda text, value: (
        folded(as_text(value)) in folded(text) or same_value(json_of(text), value)
    ),
    "json_keys": lambda text, keys: all(folded(str(key)) in folded(text) for key in keys),
    "list": lambda text, items: all(folded(str(item)) in folded(text) for item in items),
}
SEVERAL = ("contains", "json_keys", "list")
