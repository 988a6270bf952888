"""What a task's right answer says before anything runs: that no verifier could read it, and that
it needs calls.
"""

from __future__ import annotations

import pytest

from workers.lib.verifiers.expectations import needs_calls, problem_of

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


ANSWER, CALLED = {"answer": "12"}, {"tool": "tickets.close", "args": {"id": 12}}
MIXED = {"kind": "expected"}
PYTHON = {"kind": "python", "source": "def grade(sample, item):\n    return 1.0"}
JUDGE = {"kind": "judge", "rubric": "Is it polite?"}


def composed(*kinds: dict, **more: object) -> dict:
    return {"kind": "compose", "parts": [{"verifier": kind} for kind in kinds]} | more


@pytest.mark.parametrize(
    ("spec", "expected", "needs"),
    [
        ({"kind": "tool_call"}, CALLED, True),
        ({"kind": "calls"}, {"calls": [CALLED]}, True),
        ({"kind": "calls"}, {"any_call": True}, True),
        ({"kind": "calls"}, {"ground_truth": [{"tickets.close": {"id": [12]}}]}, True),
        ({"kind": "calls"}, {"calls": []}, False),
        ({"kind": "no_call"}, {}, False),
        ({"kind": "state"}, {"state": {"tickets": []}}, True),
        ({"kind": "tables"}, {"calls": [CALLED]}, True),
        ({"kind": "service"}, {"calls": []}, False),
        ({"kind": "bfcl_turns"}, {"ground_truth": [[], ["cd(folder='a')"]]}, True),
        ({"kind": "exact"}, ANSWER, False),
        (MATH, ANSWER, False),
        (MIXED, ANSWER, False),
        (MIXED, CALLED, True),
        (MIXED, {"state": {}, "answer": "12"}, True),
        (MIXED, {"rubric": "Is it polite?"}, None),
        (MIXED | {"verifiers": {"answer": PYTHON}}, ANSWER, None),
        ({"kind": "trajectory", "outcome": {"kind": "tool_call"}}, CALLED, True),
        ({"kind": "trajectory"}, {}, False),
        (composed({"kind": "exact"}, {"kind": "state"}), ANSWER, True),
        (composed({"kind": "exact"}, JUDGE), ANSWER, None),
        (composed({"kind": "exact"}, {"kind": "calls"}, success="any"), CALLED, False),
        (composed({"kind": "tool_call"}, {"kind": "calls"}, success="any"), CALLED, True),
        (composed({"kind": "exact"}, {"kind": "calls"}, success="gates"), CALLED, False),
        (PYTHON, CALLED, None),
        ({"kind": "package"}, CALLED, None),
        ({"kind": "remote"}, {}, None),
    ],
)
def test_a_task_needs_calls_where_nothing_else_can_be_right(
    spec: dict, expected: dict, needs: bool | None
) -> None:
    task = {"expected": expected, "metadata": {}}
    assert needs_calls({"kind": "single_turn", "verifier": spec}, task) is needs


def test_a_replayed_state_needs_the_calls_that_change_it() -> None:
    metadata = {"state": [{"path": "tickets.12.open", "equals": False}]}
    task = {"expected": ANSWER, "metadata": metadata}
    assert needs_calls({"kind": "replay", "verifier": {"kind": "exact"}}, task) is True
    assert needs_calls({"kind": "mcp", "verifier": {"kind": "exact"}}, task) is False
