"""Checks whether a verifier can parse a task's right answers, before anything runs. Pure and
quick.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workers.lib.maths import LONGEST
from workers.lib.maths.reading import Unreadable, read
from workers.lib.verifiers.by_task import NO_JUDGE, RUBRIC, form_of
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
