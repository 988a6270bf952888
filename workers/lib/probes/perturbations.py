"""Right outputs in other forms, which must not lose reward. Only tolerances that a verifier
promises are tested.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

from workers.lib.probes.cases import TEXT, Case, answered, bare, called, golds, said
from workers.lib.probes.context import Context
from workers.lib.probes.tricks import is_number
from workers.lib.probes.types import KEEP, Wish

VALID = {"enum", "const", "pattern", "format"}


def gold(case: Case, context: Context) -> Iterator[Wish]:
    for messages in golds(case, context.form(case)):
        yield _kept("the right output", messages)


def key_order(case: Case, context: Context) -> Iterator[Wish]:
    if not case.calls:
        return
    turned = [{"tool": call["tool"], "args": _turned(call["args"])} for call in case.calls]
    yield _kept("arguments in reverse", called(turned, context.form(case)))
    if context.form(case) == TEXT:
        swapped = [{"args": call["args"], "tool": call["tool"]} for call in case.calls]
        text = json.dumps(swapped[0] if len(swapped) == 1 else swapped, ensure_ascii=False)
        yield _kept("args before tool", said(text))


def _turned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _turned(value[key]) for key in reversed(value)}
    return [_turned(item) for item in value] if isinstance(value, list) else value


def json_space(case: Case, context: Context) -> Iterator[Wish]:
    if not case.calls:
        return
    layouts = {
        "indented": {"indent": 2},
        "compact": {"separators": (",", ":")},
        "escaped": {"ensure_ascii": True},
    }
    for what, layout in layouts.items():
        yield _kept(f"{what} JSON", called(case.calls, context.form(case), **layout))
    if context.form(case) == TEXT:
        (turn,) = called(case.calls, TEXT)
        yield _kept("spaces around", said(f"\n  {turn['content']} \n"))


def number(case: Case, context: Context) -> Iterator[Wish]:
    """4 as 4.0, and 4.0 as 4."""
    changed = [{"tool": call["tool"], "args": _respelt(call["args"])} for call in case.calls or []]
    if json.dumps(changed) != json.dumps([bare(call) for call in case.calls or []]):
        yield _kept("numbers written otherwise", called(changed, context.form(case)))


def _respelt(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return float(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _respelt(item) for key, item in value.items()}
    return [_respelt(item) for item in value] if isinstance(value, list) else value


def answer_number(case: Case, context: Context) -> Iterator[Wish]:
    if case.calls is not None or not case.answers or not is_number(case.answers[0]):
        return
    plain = case.answers[0].replace(",", "").strip()
    forms = {f"{float(plain):,}", plain} | ({f"{plain}.0"} if "." not in plain else set())
    for text in sorted(forms - {case.answers[0]}):
        if float(text.replace(",", "")) == float(plain):
            yield _kept(f"written as {text}", answered(text, context.form(case)))


def case_of_text(case: Case, context: Context) -> Iterator[Wish]:
    yield from _text_changed(case, context, str.upper, "in capitals")
    yield from _text_changed(case, context, str.lower, "in small letters")


def text_space(case: Case, context: Context) -> Iterator[Wish]:
    yield from _text_changed(
        case, context, lambda text: f" {text.replace(' ', '  ')} ", "with more spaces"
    )


def date_form(case: Case, context: Context) -> Iterator[Wish]:
    for form in ("%Y/%m/%d", "%B %d, %Y"):
        yield from _text_changed(
            case, context, lambda text, form=form: _redated(text, form), f"dates as {form}"
        )


def _redated(text: str, form: str) -> str:
    try:
        return date.fromisoformat(text).strftime(form)
    except ValueError:
        return text


def _text_changed(
    case: Case, context: Context, change: Callable[[str], str], what: str
) -> Iterator[Wish]:
    """Change texts among the arguments, or the answer; nothing if the change has no effect.

    An argument whose schema restricts its texts (enum, pattern, format) stays unchanged, since
    changing it would make another call.
    """
    if case.calls:
        bound = {tool.name: _bound(tool.properties) for tool in case.tools}
        changed = [
            {
                "tool": call["tool"],
                "args": _mapped(call["args"], change, bound.get(call["tool"], frozenset())),
            }
            for call in case.calls
        ]
        if changed != [bare(call) for call in case.calls]:
            yield _kept(what, called(changed, context.form(case)))
    elif case.answers and not case.silent and change(case.answers[0]) != case.answers[0]:
        yield _kept(what, answered(change(case.answers[0]), context.form(case)))


def _bound(properties: dict[str, dict]) -> frozenset[str]:
    return frozenset(name for name, item in properties.items() if VALID & item.keys())


def _mapped(args: dict, change: Callable[[str], str], bound: frozenset[str]) -> dict:
    free = {
        name: value for name, value in args.items() if isinstance(value, str) and name not in bound
    }
    return args | {name: change(value) for name, value in free.items()}


def parallel_order(case: Case, context: Context) -> Iterator[Wish]:
    if not case.ordered and len(case.calls or []) > 1:
        yield _kept(
            "the calls in another order", called((case.calls or [])[::-1], context.form(case))
        )


def default_argument(case: Case, context: Context) -> Iterator[Wish]:
    """An optional argument, given with its default."""
    tools = {tool.name: tool for tool in case.tools}
    full = []
    for call in case.calls or []:
        tool = tools.get(call["tool"])
        properties = tool.properties if tool else {}
        given = {name: item["default"] for name, item in properties.items() if "default" in item}
        full.append({"tool": call["tool"], "args": given | call["args"]})
    if full != [bare(call) for call in case.calls or []]:
        yield _kept("defaults written out", called(full, context.form(case)))


def accepted_value(case: Case, context: Context) -> Iterator[Wish]:
    """Values that the task itself accepts. An argument that its tool requires is not left out, even
    if the task allows it.
    """
    required = {tool.name: set(tool.required) for tool in case.tools}
    for position, call in enumerate(case.calls or []):
        for name, values in (call.get("accept") or {}).items():
            for value in values:
                if value not in (None, "") or name not in required.get(call["tool"], set()):
                    yield _alternative(case, context, position, name, value)
    if not case.calls and not case.silent:
        for answer in case.answers[1:]:
            yield _kept("another right answer", answered(answer, context.form(case)))


def _alternative(case: Case, context: Context, position: int, name: str, value: Any) -> Wish:
    calls = [bare(call) for call in case.calls or []]
    args = {key: item for key, item in calls[position]["args"].items() if key != name}
    left_out = value is None or value == ""
    calls[position]["args"] = args if left_out else args | {name: value}
    return _kept(
        f"{name} left out" if left_out else f"{name}, another right value",
        called(calls, context.form(case)),
    )


def labelled_right(case: Case, context: Context) -> Iterator[Wish]:
    for sample in context.samples.get(case.id, []):
        if sample.get("label") is True:
            yield _kept("a real output that people judged right", sample["messages"])


def _kept(what: str, messages: list[dict]) -> Wish:
    return Wish(what, messages, KEEP)


@dataclass(frozen=True)
class Perturbation:
    """`promise` names the tolerance that the verifier must have promised; "" if the task itself
    states it.
    """

    name: str
    about: str
    make: Callable[[Case, Context], Iterator[Wish]]
    why: str
    promise: str = ""


CALLS = "no task expects calls"
PROBES = (
    Perturbation("gold", "the right output", gold, "no task knows what is right"),
    Perturbation(
        "accepted_value",
        "other values that the task lists as right",
        accepted_value,
        "no task lists any",
    ),
    Perturbation("key_order", "JSON keys in another order", key_order, CALLS, "key_order"),
    Perturbation(
        "json_space", "JSON with other spaces and escapes", json_space, CALLS, "json_space"
    ),
    Perturbation("number", "4 as 4.0 among arguments", number, "no call has a number", "number"),
    Perturbation(
        "answer_number", "42 as 42.0", answer_number, "no answer is a number", "answer_number"
    ),
    Perturbation(
        "case",
        "capitals and small letters",
        case_of_text,
        "no right output has letters to change",
        "case",
    ),
    Perturbation(
        "text_space",
        "more spaces within texts",
        text_space,
        "no right output is a text",
        "text_space",
    ),
    Perturbation(
        "date", "the same date, written otherwise", date_form, "no right output has a date", "date"
    ),
    Perturbation(
        "parallel_order",
        "calls in another order",
        parallel_order,
        "no task has several calls in free order",
        "parallel_order",
    ),
    Perturbation(
        "default_argument",
        "defaults written out",
        default_argument,
        "no call leaves out a default",
        "default_argument",
    ),
    Perturbation(
        "judged_right",
        "real outputs that people judged right",
        labelled_right,
        "no sample carries a person's success",
    ),
)
