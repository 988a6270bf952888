"""The built-in set: always the same, every task can be solved, and a wrong answer is wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from apps.evals.canonical import canonical_hash
from apps.evals.capability.generate import KINDS, PER_KIND, check, general_tasks, ideal_answer
from apps.evals.formats import read, write
from apps.evals.near_duplicates.compare import document, pairs
from workers.lib.checks import CONSTRAINTS


def test_the_set_is_the_same_every_time_and_has_no_request_twice() -> None:
    tasks = general_tasks()
    assert tasks == general_tasks()
    assert tasks != general_tasks(seed=1)
    assert Counter(task.metadata["kind"] for task in tasks) == dict.fromkeys(KINDS, PER_KIND)
    assert len({canonical_hash(task.messages) for task in tasks}) == len(tasks) == 60
    assert len({task.key for task in tasks}) == 60
    assert {task.split for task in tasks} == {"general"}
    assert list(read("flywheel", write("flywheel", tasks))) == tasks


def test_every_task_that_says_its_answer_accepts_it_and_refuses_others() -> None:
    answers = [(task.expected, ideal_answer(task.expected)) for task in general_tasks()]
    known = [(expected, answer) for expected, answer in answers if answer is not None]
    assert len(known) >= 50
    for expected, answer in known:
        assert check(expected, answer)
        assert check(expected, f" {answer}\n")
        for wrong in ("", "I do not know.", f"{answer} and more", f"not {answer}"):
            assert not check(expected, wrong)


def test_open_tasks_can_be_solved() -> None:
    """Those that many answers fit: one sentence with a word in it, one without it."""
    for task in general_tasks():
        if ideal_answer(task.expected) is None:
            constraint = task.expected["constraint"]
            word = constraint.get("contains", [""])[0]
            good = (
                "\n".join([word] * constraint["lines"]) if "lines" in constraint else word or "It lives in warm places."
            )
            assert check(task.expected, good)
            assert not check(task.expected, "")
            assert not check(task.expected, "word " * 30)


@pytest.mark.parametrize(
    ("expected", "right", "wrong"),
    [
        ({"answer": 42}, ["42", "42.0", "**42**", "42."], ["43", "the answer is 42", "4 2", ""]),
        ({"answer": "Paris"}, ["paris", ' "Paris." '], ["Paris, France"]),
        ({"answer": ["1,000", "a thousand"]}, ["1000", "A  thousand"], ["100"]),
        ({"answer": [True]}, ["true"], ["1", "yes"]),
        ({"constraint": {"words": 2}}, ["hot tea", "hot, tea!"], ["tea", "a hot tea"]),
        ({"constraint": {"max_words": 2}}, ["tea"], ["", "a hot tea"]),
        ({"constraint": {"lines": 2}}, ["a\n\nb\n"], ["a", "a\nb\nc"]),
        ({"constraint": {"exact": "aB"}}, ["aB", " aB\n"], ["ab", '"aB"']),
        ({"constraint": {"one_of": ["Ada"]}}, ["ada", "Ada."], ["Ben", "Ada or Ben"]),
        ({"constraint": {"contains": ["tea", "cup"]}}, ["A cup of Tea"], ["tea"]),
        ({"constraint": {"excludes": ["tea"]}}, ["coffee"], ["Tea", ""]),
        ({"constraint": {"starts_with": "So", "ends_with": "!"}}, ["So be it!"], ["so be it!", "So be it."]),
        ({"constraint": {"upper": True}}, ["ABC 1"], ["Abc", "123"]),
        ({"constraint": {"lower": True}}, ["abc"], ["Abc"]),
        ({"constraint": {"json": {"a": 1}}}, ['{"a": 1.0}', '```json\n{"a": 1}\n```'], ['{"a": 2}', "a: 1", "{'a': 1}"]),
        ({"constraint": {"json_keys": ["a", "b"]}}, ['{"b": 1, "a": 2}'], ['{"a": 1}', "[1]", '{"a":1,"b":2,"c":3}']),
        ({"constraint": {"list": [1, 2]}}, ["1, 2", "1\n2"], ["2, 1", "1, 2, 3", "1 2"]),
    ],
)  # fmt: skip
def test_checks(expected: dict, right: list[str], wrong: list[str]) -> None:
    assert all(check(expected, output) for output in right)
    assert not any(check(expected, output) for output in wrong)


def test_every_constraint_is_covered_above() -> None:
    [table] = [mark for mark in test_checks.pytestmark if mark.name == "parametrize"]
    covered = {name for expected, _, _ in table.args[1] for name in expected.get("constraint", {})}
    assert covered == set(CONSTRAINTS)


def test_its_tasks_are_no_near_duplicates_of_each_other() -> None:
    tasks = [(task.key, document(task.messages, task.expected)) for task in general_tasks()]
    assert pairs(tasks, most=None) == []
