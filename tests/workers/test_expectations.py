"""A right answer that no verifier could read is found before anything runs."""

from __future__ import annotations

import pytest

from workers.lib.verifiers.expectations import problem_of

MATH = {"kind": "math"}
NESTED = {
    "kind": "compose",
    "parts": [{"name": "a", "verifier": {"kind": "expected", "verifiers": {"answer": MATH}}}],
}


@pytest.mark.parametrize("spec", [MATH, NESTED, {"kind": "trajectory", "outcome": MATH}])
@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("\\frac{1}{2}", ""),
        (["1", "1,234"], ""),
        (3.5, ""),
        ("no solution", ""),
        ("x" * 1001, "“expected.answer” is not mathematics"),
        (["3", "\\frac{1}{"], "“expected.answer[1]” is not mathematics"),
        ("3 ?", "“expected.answer” is not mathematics"),
    ],
)
def test_what_the_verifier_cannot_read_has_a_path(spec: dict, answer: object, problem: str) -> None:
    assert problem_of(spec, {"answer": answer}).startswith(problem)
    assert bool(problem_of(spec, {"answer": answer})) is bool(problem)


@pytest.mark.parametrize("spec", [{"kind": "exact"}, MATH | {"values": ["3"]}, {"kind": "calls"}])
def test_other_verifiers_read_any_text(spec: dict) -> None:
    assert problem_of(spec, {"answer": "\\frac{1}{"}) == ""
