"""Checks whether a verifier can parse a task's right answers, before anything runs. Pure and
quick.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workers.lib.checks import assertions_in
from workers.lib.maths import LONGEST
from workers.lib.maths.reading import Unreadable, read
from workers.lib.verifiers.base import Unscorable
from workers.lib.verifiers.by_task import FORMS, NO_JUDGE, RUBRIC, form_of
from workers.lib.verifiers.calls import wanted_of
from workers.lib.verifiers.mathematics import gold_text, number_of


def problem_of(spec: dict, expected: dict) -> str:
    """What is wrong, after its path (“expected.answer[1]”); "" if nothing is. The spec is valid for
    `build`.

    For mathematics only the structure is checked; parsing is left to the helper process.
    """
    if (
        spec["kind"] == "expected"
        and form_of(expected) == RUBRIC
        and RUBRIC not in (spec.get("verifiers") or {})
    ):
        return f"“expected.rubric” needs a judge. {NO_JUDGE}"
    if not any(kind["kind"] == "math" and kind.get("values") is None for kind in _kinds(spec)):
        return ""
    answer = expected.get("answer")
    for at, value in enumerate(answer if isinstance(answer, list) else [answer]):
        path = f"expected.answer[{at}]" if isinstance(answer, list) else "expected.answer"
        if problem := _unreadable(value):
            return f"“{path}” is not mathematics that can be compared: {problem}"
    return ""


def _kinds(spec: dict) -> Iterator[dict]:
    """The spec, and those inside of it that judge the same answer."""
    yield spec
    inside = (
        [part["verifier"] for part in spec.get("parts") or []] if spec["kind"] == "compose" else []
    )
    inside += [spec["outcome"]] if spec["kind"] == "trajectory" and spec.get("outcome") else []
    inside += (
        [item for form, item in (spec.get("verifiers") or {}).items() if form == "answer"]
        if spec["kind"] == "expected"
        else []
    )
    for item in inside:
        yield from _kinds(item)


def _unreadable(value: Any) -> str:
    text = gold_text(value)
    if value is None or number_of(text) is not None:
        return ""
    if len(text) > LONGEST:
        return f"has {len(text):,} characters; {LONGEST:,} are allowed"
    try:
        read(text)
    except Unreadable as error:
        return str(error)
    return ""


# Which tasks need calls

OF_WORDS = ("exact", "number", "regex", "json", "math", "constraints", "unit_tests", "no_call")
OF_STATES = ("tables", "service", "bfcl_turns")  # environments with a comparison of their own


def needs_calls(environment: dict, task: dict) -> bool | None:
    """Whether no answer to a task can be right without a call, in an environment ({"kind",
    "verifier"}) in which an answer in words alone has failed. None if that is up to code or a model
    that sees the whole run.
    """
    metadata = task.get("metadata")
    if environment["kind"] == "replay" and assertions_in(metadata if metadata else {}):
        return True
    expected = task.get("expected")
    return _judged_by_calls(environment["verifier"], expected if isinstance(expected, dict) else {})


def _judged_by_calls(spec: dict, expected: dict) -> bool | None:
    kind = spec["kind"]
    if kind in ("tool_call", "state"):  # a state that is not as expected after no call needs one
        return True
    if kind == "calls" or kind in OF_STATES:
        return _expects_calls(expected)
    if kind == "trajectory":
        return _judged_by_calls(spec["outcome"], expected) if spec.get("outcome") else False
    if kind == "compose":
        return _any_part(spec, expected)
    if kind == "expected":
        form = form_of(expected)
        inside = (spec.get("verifiers") or {}).get(form) or {"kind": dict(FORMS).get(form, "judge")}
        return _judged_by_calls(inside, expected)
    return False if kind in OF_WORDS else None


def _any_part(spec: dict, expected: dict) -> bool | None:
    """Of a success that needs all of its parts, or any one of them."""
    parts = [part for part in spec.get("parts") or [] if not part.get("optional")]
    rule = spec.get("success", "all")
    parts = [part for part in parts if part.get("gate")] if rule == "gates" else parts
    needs = [_judged_by_calls(part["verifier"], expected) for part in parts]
    decisive = rule == "any"  # words suffice where one part is content with them
    if not needs or (not decisive) in needs or None not in needs:
        return bool(needs) and (all(needs) if decisive else any(needs))
    return None


def _expects_calls(expected: dict) -> bool:
    if expected.get("any_call") is True:
        return True
    try:
        return bool(wanted_of(expected))
    except Unscorable:
        return any(map(bool, expected.get("ground_truth") or ()))
