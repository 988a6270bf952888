"""All forms of `expected` are taken where their verifier can read them, and refused with what to do
where it cannot.
"""

from __future__ import annotations

from typing import Any

import pytest

from apps.evals.formats.rows import Bad, checked_expected
from workers.lib.verifiers import Rollout, build
from workers.lib.verifiers.expectations import problem_of

CALL = {"tool": "close", "args": {"id": 1}}


@pytest.mark.parametrize(
    "expected",
    [
        CALL | {"accept": {"id": [1, "1"]}},
        {"calls": [CALL], "ordered": True},
        {"calls": []},
        {"any_call": True},
        {"answer": 5},
        {"answer": ["a", "b"]},
        {"answer": {"a": 1}},
        {"constraint": {"words": 3, "contains": ["a"], "upper": True}},
        {
            "tests": [
                {"call": "f(1)", "expected": 2},
                {"stdin": "1", "stdout": "2"},
                "assert f(1) == 2",
            ]
        },
        {"pattern": "^(yes|no)$"},
        {"schema": {"type": "object"}},
        {"state": {"tickets": []}},
        {"rubric": "Polite, and says when."},
        {"turns": [[CALL], []]},
        {"answer": "a", "rubric": "Polite."},
        {"constraints": [{"type": "x"}]},
        {"ground_truth": [{"f": {"a": [1]}}]},
    ],
)
def test_a_form_is_taken(expected: dict) -> None:
    assert checked_expected(expected) is expected


@pytest.mark.parametrize(
    ("expected", "field"),
    [
        ({}, "expected"),
        ({"answer": []}, "expected"),
        ({"pattern": "("}, "expected.pattern"),
        ({"pattern": " "}, "expected.pattern"),
        ({"schema": {"type": "no such type"}}, "expected.schema"),
        ({"rubric": ""}, "expected.rubric"),
        ({"rubric": 3}, "expected.rubric"),
        ({"constraint": {"words": "three"}}, "expected.constraint.words"),
        ({"constraint": {"contains": "a"}}, "expected.constraint.contains"),
        ({"constraint": {"upper": 1}}, "expected.constraint.upper"),
        ({"tests": [""]}, "expected.tests[0]"),
        ({"any_call": 1}, "expected.any_call"),
        ({"tests": [{"stdin": 1, "stdout": ""}]}, "expected.tests[0]"),
        ({"state": []}, "expected.state"),
        ({"tool": " ", "args": {}}, "expected.tool"),
        ({"answer": "right", "rubric": " "}, "expected.rubric"),
        ({"turns": [CALL]}, "expected.turns[0]"),
    ],
)
def test_a_form_that_no_verifier_reads_is_refused_with_its_field(
    expected: dict, field: str
) -> None:
    with pytest.raises(Bad) as caught:
        checked_expected(expected)
    assert caught.value.field == field and caught.value.message.strip()


def asked_of(spec: dict, expected: dict) -> list[Any]:
    asked: list[Any] = []

    def ask(messages: list[dict]) -> str:
        asked.append(messages[-1]["content"])
        return '{"score": 9, "reason": "kind"}'

    task = {"messages": [{"role": "user", "content": "Hi"}], "expected": expected}
    score = build(spec, clients={"ask": ask}).score(Rollout.of_text(task, "Hello"))
    return [score, *asked]


RUBRIC = {"kind": "expected", "verifiers": {"rubric": {"kind": "judge", "rubric": "Grade it."}}}


def test_a_task_with_only_a_rubric_is_graded_by_the_judge_with_that_rubric() -> None:
    score, asked = asked_of(RUBRIC, {"rubric": "Greets by name."})
    assert (
        score.reward == 0.9
        and score.success
        and "Rubric:\nGrade it.\n\nFor this task:\nGreets by name." in asked
    )


def test_a_right_answer_decides_before_the_rubric() -> None:
    assert [
        score.success
        for score in asked_of(RUBRIC, {"answer": "hello", "rubric": "Greets by name."})
    ] == [True]


def test_a_judge_of_every_task_reads_the_rubric_of_each() -> None:
    spec = {"kind": "judge", "rubric": "Polite?"}
    assert "For this task:\nSays when." in asked_of(spec, {"rubric": "Says when."})[1]
    assert "For this task" not in asked_of(spec, {"answer": "x"})[1]


def test_a_verifier_without_a_judge_masks_a_rubric_and_says_so_before_anything_runs() -> None:
    [score] = asked_of({"kind": "expected"}, {"rubric": "Polite."})
    assert score.masked and "names no judge" in score.mask_reason
    assert "needs a judge" in problem_of({"kind": "expected"}, {"rubric": "Polite."})
    assert not problem_of(RUBRIC, {"rubric": "Polite."}) and not problem_of(
        {"kind": "expected"}, {"answer": "a"}
    )
