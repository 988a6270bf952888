"""The verifiers that run code: unit_tests, python, openai_grader."""

from __future__ import annotations

import re
from typing import Any

import pytest

from workers.lib.errors import SpecError
from workers.lib.verifiers import Rollout, build

RIGHT = "Here:\n```python\ndef add(a, b):\n    return a + b\n```"
TESTS = [
    "assert add(1, 2) == 3",
    {"call": "add(0.1, 0.2)", "expected": 0.3},
    {"call": "add([1], [2])", "expected": [1, 2]},
]


def rollout(output: str, **task: Any) -> Rollout:
    return Rollout(
        task={"id": "t", "messages": [], "expected": {}} | task, messages=[{"role": "assistant", "content": output}]
    )


@pytest.mark.parametrize(
    ("output", "share"),
    [(RIGHT, 1.0), (RIGHT.replace("a + b", "a - b"), 0.0), ("def add(a, b): return [1, 2] if a == [1] else 0", 1 / 3),
     ("I cannot.", 0.0), ("", 0.0), ("import os; os._exit(0)", 0.0), ("raise SystemExit(0)", 0.0),
     ("print('passed')\nprint('{\"value\": \"passed\"}')", 0.0), ("import atexit, os\natexit.register(os._exit, 0)", 0.0),
     ("class Any:\n    def __eq__(self, other): return True\ndef add(a, b): return Any()", 1 / 3)],
)  # fmt: skip
def test_unit_tests(output: str, share: float) -> None:
    score = build({"kind": "unit_tests", "tests": TESTS, "credit": "partial"}).score(rollout(output))
    assert not score.masked and score.reward == pytest.approx(share)
    whole = build({"kind": "unit_tests"}).score(rollout(output, expected={"tests": TESTS}))
    assert whole.reward == float(share == 1.0) and whole.success is (share == 1.0)


@pytest.mark.parametrize(
    ("code", "right"),
    [("print(int(input()) * 2)", True), ("print('4 ')", True), ("print(5)", False), ("while True: pass", False),
     ("print(4); import sys; sys.exit(1)", False)],
)  # fmt: skip
def test_programs_by_their_output(code: str, right: bool) -> None:
    spec = {"kind": "unit_tests", "tests": [{"stdin": "2\n", "stdout": "4\n"}], "seconds": 0.5}
    assert build(spec).score(rollout(code)).success is right


def test_a_task_without_tests_is_masked() -> None:
    score = build({"kind": "unit_tests"}).score(rollout(RIGHT))
    assert score.masked and "expected.tests" in score.mask_reason


def test_python() -> None:
    spec = {
        "kind": "python",
        "source": "def grade(sample, item): return len(sample['output_text']) / item['most']",
        "pass_threshold": 0.5,
    }
    score = build(spec).score(rollout("abc", metadata={"most": 4}))
    assert (score.reward, score.success, score.masked) == (0.75, True, False)
    broken = build(spec).score(rollout("abc"))
    assert broken.masked and "KeyError" in broken.mask_reason


GRADER = {
    "type": "string_check",
    "name": "n",
    "operation": "eq",
    "input": "{{sample.output_json.x}}",
    "reference": "{{item.answer}}",
}


@pytest.mark.parametrize(
    ("output", "expected", "reward"),
    [('{"x": "a"}', {"answer": "a"}, 1.0), ('{"x": "b"}', {"answer": "a"}, 0.0), ("no json", {"answer": "a"}, 0.0),
     ('{"y": 1}', {"answer": "a"}, 0.0), ('{"x": "a"}', {}, None)],
)  # fmt: skip
def test_openai_grader(output: str, expected: dict, reward: float | None) -> None:
    score = build({"kind": "openai_grader", "grader": GRADER}).score(rollout(output, expected=expected))
    assert score.reward == reward and score.masked is (reward is None)


def test_openai_grader_asks_a_model_through_the_judge_s_client() -> None:
    grader = {
        "type": "score_model",
        "model": "m",
        "input": [{"role": "user", "content": "{{sample.output_text}}"}],
        "pass_threshold": 0.4,
    }
    asked: list[list[dict]] = []

    def ask(messages: list[dict]) -> str:
        asked.append(messages)
        return '{"steps": [], "result": 0.4}'

    score = build({"kind": "openai_grader", "grader": grader}, clients={"ask": ask}).score(rollout("hello"))
    assert score.reward == 0.4 and score.success and asked[0][0]["content"] == "hello"
    assert build({"kind": "openai_grader", "grader": grader}).score(rollout("hello")).masked


@pytest.mark.parametrize(
    ("spec", "path"),
    [({"kind": "unit_tests", "tests": []}, "verifier.tests"), ({"kind": "unit_tests", "tests": [{"call": "f()"}]}, "verifier.tests[0]"),
     ({"kind": "unit_tests", "credit": "half"}, "verifier.credit"), ({"kind": "python", "source": "x"}, "verifier.source"),
     ({"kind": "python"}, "verifier.source"), ({"kind": "openai_grader", "grader": {"type": "x"}}, "verifier.grader.type")],
)  # fmt: skip
def test_a_bad_option_is_named(spec: dict, path: str) -> None:
    with pytest.raises(SpecError, match=re.escape(path)):
        build(spec)
