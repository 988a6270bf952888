"""The built-in set: always the same, every task can be solved, and a wrong answer is wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from apps.evals.canonical import canonical_hash
from apps.evals.capability.generate import LEVELS, PER_LEVEL, VERIFIER, general_tasks, made_tasks
from apps.evals.capability.kinds import KINDS
from apps.evals.formats import read, write
from apps.evals.formats.rows import TaskRow
from apps.evals.models import Task
from apps.evals.subsets import subset
from workers.lib.checks import CONSTRAINTS, check
from workers.lib.verifiers import Rollout, Score, build

KIND_LEVELS = [f"{kind} {level}" for kind in KINDS for level in LEVELS]


def test_the_set_is_the_same_every_time_and_has_no_request_twice() -> None:
    tasks = general_tasks()
    assert tasks == general_tasks() and tasks != general_tasks(seed=1)
    counts = Counter(f"{task.metadata['kind']} {task.metadata['level']}" for task in tasks)
    assert counts == dict.fromkeys(KIND_LEVELS, PER_LEVEL)
    assert (
        len({canonical_hash(task.messages) for task in tasks})
        == len({task.key for task in tasks})
        == len(tasks)
        == 500
    )
    assert {task.split for task in tasks} == {"general"}
    assert list(read("flywheel", write("flywheel", tasks))) == tasks


def graded(row: TaskRow, answer: str) -> Score:
    task = {"id": row.key, "messages": row.messages, "tools": row.tools, "expected": row.expected}
    return build(VERIFIER).score(Rollout.of_text(task, answer))


@pytest.mark.parametrize("seed", [0, 20261122])
def test_right_answers_pass_and_wrong_ones_fail(seed: int) -> None:
    """Those of one task in ten, as the environment grades them; `python -m bench.capability` grades
    all.
    """
    found = list(made_tasks(seed))
    assert all(row.demonstration == made.right for row, made in found)
    for row, made in found[seed % 10 :: 10]:
        assert graded(row, made.right).success, (row.key, made.request, made.right)
        for wrong in (made.wrong, "", "I do not know.", "word " * 30):
            score = graded(row, wrong)
            assert not score.success and not score.masked, (row.key, wrong)


def test_higher_levels_ask_for_more() -> None:
    """Requests or answers become longer with the level, in every kind."""
    sizes: dict[str, Counter[int]] = {kind: Counter() for kind in KINDS}
    for row, made in made_tasks():
        sizes[row.metadata["kind"]][row.metadata["level"]] += (
            len(made.request) + len(made.right) + 20 * len(made.tools)
        )
    for kind, by_level in sizes.items():
        assert by_level[1] < by_level[3] and by_level[2] < by_level[5], kind


def test_a_subset_has_its_share_of_every_kind_and_level() -> None:
    tasks = [Task(key=row.key, metadata=row.metadata) for row in general_tasks()]
    for size in (50, 120, 500, 900):
        chosen = subset(tasks, size)
        counts = Counter((task.metadata["kind"], task.metadata["level"]) for task in chosen)
        assert len(chosen) == len({task.pk for task in chosen}) == min(size, 500)
        assert len(counts) == 50 and max(counts.values()) - min(counts.values()) <= 1
        assert chosen == subset(tasks[::-1], size) or size >= 500
    assert subset(tasks, None) == tasks


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
        (
            {"constraint": {"starts_with": "So", "ends_with": "!"}},
            ["So be it!"],
            ["so be it!", "So be it."],
        ),
        ({"constraint": {"upper": True}}, ["ABC 1"], ["Abc", "123"]),
        ({"constraint": {"lower": True}}, ["abc"], ["Abc"]),
        (
            {"constraint": {"json": {"a": 1}}},
            ['{"a": 1.0}', '```json\n{"a": 1}\n```'],
            ['{"a": 2}', "a: 1", "{'a': 1}"],
        ),
        (
            {"constraint": {"json_keys": ["a", "b"]}},
            ['{"b": 1, "a": 2}'],
            ['{"a": 1}', "[1]", '{"a":1,"b":2,"c":3}'],
        ),
        ({"constraint": {"list": [1, 2]}}, ["1, 2", "1\n2"], ["2, 1", "1, 2, 3", "1 2"]),
    ],
)
def test_checks(expected: dict, right: list[str], wrong: list[str]) -> None:
    assert all(check(expected, output) for output in right)
    assert not any(check(expected, output) for output in wrong)


def test_every_constraint_is_covered_above() -> None:
    [table] = [mark for mark in test_checks.pytestmark if mark.name == "parametrize"]
    covered = {name for expected, _, _ in table.args[1] for name in expected.get("constraint", {})}
    assert covered == set(CONSTRAINTS)
