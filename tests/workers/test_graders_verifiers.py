"""The verifiers that run code: unit_tests, python, openai_grader."""

from __future__ import annotations

import re
from typing import Any

import pytest

from workers.lib.errors import SpecError
from workers.lib.verifiers import Rollout, build
from workers.lib.verifiers.assertions import taken_apart

RIGHT = "Here:\n```python\ndef add(a, b):\n    return a + b\n```"
TESTS = [
    "assert add(1, 2) == 3",
    {"call": "add(0.1, 0.2)", "expected": 0.3},
    {"call": "add([1], [2])", "expected": [1, 2]},
]


def rollout(output: str, **task: Any) -> Rollout:
    return Rollout(
        task={"id": "t", "messages": [], "expected": {}} | task,
        messages=[{"role": "assistant", "content": output}],
    )


@pytest.mark.parametrize(
    ("output", "share"),
    [
        (RIGHT, 1.0),
        (RIGHT.replace("a + b", "a - b"), 0.0),
        ("def add(a, b): return [1, 2] if a == [1] else 0", 1 / 3),
        ("I cannot.", 0.0),
        ("", 0.0),
        ("import os; os._exit(0)", 0.0),
        ("raise SystemExit(0)", 0.0),
        ("print('passed')\nprint('{\"value\": \"passed\"}')", 0.0),
        ("import atexit, os\natexit.register(os._exit, 0)", 0.0),
        ("class Any:\n    def __eq__(self, other): return True\ndef add(a, b): return Any()", 0.0),
    ],
)
def test_unit_tests(output: str, share: float) -> None:
    score = build({"kind": "unit_tests", "tests": TESTS, "credit": "partial"}).score(
        rollout(output)
    )
    assert not score.masked and score.reward == pytest.approx(share)
    whole = build({"kind": "unit_tests"}).score(rollout(output, expected={"tests": TESTS}))
    assert whole.reward == float(share == 1.0) and whole.success is (share == 1.0)


STATEMENTS = [
    "assert add(1, 2) == 3",
    "assert -1 != add(1, -1)",
    "assert set(add([1], [2])) == set((1, 2))",
    "assert not add(0, 0)",
    "import math\nassert math.isclose(add(0.1, 0.2), 0.3, rel_tol=1e-6)",
    "assert abs(add(0.5, 0.25) - 0.75) < 1e-3",
]
WRONG = {
    "__eq__": (
        "class Any(int):\n    def __eq__(self, other): return True\n    __ne__ = __lt__ = __rsub__"
        " = __sub__ = __eq__\n    def __bool__(self): return False\n    __hash__ = int.__hash__\n  "
        "  def __iter__(self): return iter(())\ndef add(a, b): return Any(7)"
    ),
    "constants of the caller": (
        "import sys\ndef add(a, b):\n    return [x for x in sys._getframe(1).f_code.co_consts if"
        " isinstance(x, int)][-1]"
    ),
    "memory": (
        "import gc, re\ndef add(a, b):\n    for one in gc.get_objects():\n        if"
        " isinstance(one, (list, tuple, dict)):\n            if found := re.search(r'add\\(%s,"
        " %s\\) == (-?\\d+)' % (a, b), repr(one)[:100000]): return int(found[1])\n    return 1j"
    ),
    "patched builtins": (
        "import builtins\nbuiltins.exec = lambda *a: None\nbuiltins.eval = lambda *a: 1j\ndef"
        " add(a, b): return 1j"
    ),
    "forged values": (
        "import builtins\nbuiltins.isinstance = lambda one, kind: kind is dict\nclass add(dict):\n "
        "   def __new__(cls, *a): return ['dict', 7]"
    ),
}


@pytest.mark.parametrize("code", WRONG.values(), ids=WRONG.keys())
def test_what_a_statement_expects_never_meets_the_code(code: str) -> None:
    found = build({"kind": "unit_tests", "tests": STATEMENTS[:3]}).score(
        rollout(f"```python\n{code}\n```")
    )
    assert found.reward == 0.0 and not found.masked


@pytest.mark.parametrize(
    "output",
    [
        RIGHT,
        RIGHT + "\nUse it so:\n```python\nprint(add(1, 2))\n```\n```text\n3\n```",
        RIGHT.replace("python", "Python3"),
        RIGHT.replace("```", "~~~"),
        "<think>```python\ndef add(a, b): return 0\n```</think>" + RIGHT,
        RIGHT.replace("```", "````"),
        (
            "```py\nfrom __future__ import annotations\nfrom dataclasses import"
            " dataclass\n@dataclass\nclass Sum:\n    of: int\ndef add(a, b): return Sum(a +"
            " b).of\n```"
        ),
    ],
)
def test_right_code_in_other_forms(output: str) -> None:
    found = build({"kind": "unit_tests", "tests": STATEMENTS}).score(rollout(output))
    assert found.success, found.details
    thought = build({"kind": "unit_tests", "tests": STATEMENTS}).score(
        rollout(f"<think>{output}</think>No.")
    )
    assert thought.reward == 0.0


@pytest.mark.parametrize(
    ("test", "apart"),
    [
        ("assert f(1) == 2, 'why'", ("", "f(1)", "2")),
        ("assert 2 == max(1, 2)", ("", "max(1, 2)", "2")),
        ("assert f(1) in (1, 2)", ("", "f(1)", "(1, 2)")),
        ("s = S()\nassert s.pop() is None", ("s = S()", "s.pop()", "None")),
        ("assert sorted(f()) == list('ab')", ("", "sorted(f())", "list('ab')")),
        # Whose value is expected is not clear, or there is more than one comparison: these run
        # beside the code.
        ("assert f(1) == g(1)", None),
        ("assert list((1, 2)) == sorted([2, 1])", None),
        ("assert 1 < f(1) < 3", None),
        ("check(f)", None),
        ("assert f(1) == 1\nassert f(2) == 2", None),
        ("assert f(1) == 1 and f(2) == 2", None),
        ("assert (", None),
        ("", None),
    ],
)
def test_statements_that_can_be_taken_apart(test: str, apart: tuple | None) -> None:
    found = taken_apart(test)
    assert (found and (found.before, found.expression, found.expected)) == apart


@pytest.mark.parametrize(
    ("expression", "right"),
    [
        ("(1, 2)", "(1, 2)"),
        ("[1, 2]", None),
        ("{1, 2}", None),
        ("range(3)", "range(3)"),
        ("[0, 1, 2]", None),
        ("{1: 'a'}", "{1: 'a'}"),
        ("'a'", "'a'"),
        ("b'a'", "b'a'"),
        ("2**64 + 1", "2**64 + 1"),
        ("0.5", "0.5"),
        ("True", "1"),
        ("1j", "1j"),
        ("None", "None"),
        ("__import__('collections').Counter('aab')", "{'a': 2, 'b': 1}"),
        ("__import__('fractions').Fraction(1, 2)", "0.5"),
        ("float('inf')", "1e999"),
        ("'\\ud800'", "'\\ud800'"),
    ],
)
def test_values_are_compared_as_python_does(expression: str, right: str | None) -> None:
    tests = [f"assert f() == {right or (1, 2)}"]
    found = build({"kind": "unit_tests", "tests": tests}).score(
        rollout(f"def f(): return {expression}")
    )
    assert found.success is (right is not None), found.details


@pytest.mark.parametrize(
    ("code", "right"),
    [
        ("print(int(input()) * 2)", True),
        ("print('4 ')", True),
        ("print(5)", False),
        ("while True: pass", False),
        ("print(4); import sys; sys.exit(1)", False),
    ],
)
def test_programs_by_their_output(code: str, right: bool) -> None:
    spec = {
        "kind": "unit_tests",
        "tests": [{"stdin": "2\n", "stdout": "4\n"}],
        "seconds": 0.5 if "while" in code else 60,
    }
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
    [
        ('{"x": "a"}', {"answer": "a"}, 1.0),
        ('{"x": "b"}', {"answer": "a"}, 0.0),
        ("no json", {"answer": "a"}, 0.0),
        ('{"y": 1}', {"answer": "a"}, 0.0),
        ('{"x": "a"}', {}, None),
    ],
)
def test_openai_grader(output: str, expected: dict, reward: float | None) -> None:
    score = build({"kind": "openai_grader", "grader": GRADER}).score(
        rollout(output, expected=expected)
    )
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

    score = build({"kind": "openai_grader", "grader": grader}, clients={"ask": ask}).score(
        rollout("hello")
    )
    assert score.reward == 0.4 and score.success and asked[0][0]["content"] == "hello"
    assert build({"kind": "openai_grader", "grader": grader}).score(rollout("hello")).masked


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"kind": "unit_tests", "tests": []}, "verifier.tests"),
        ({"kind": "unit_tests", "tests": [{"call": "f()"}]}, "verifier.tests[0]"),
        ({"kind": "unit_tests", "credit": "half"}, "verifier.credit"),
        ({"kind": "python", "source": "x"}, "verifier.source"),
        ({"kind": "python"}, "verifier.source"),
        ({"kind": "openai_grader", "grader": {"type": "x"}}, "verifier.grader.type"),
    ],
)
def test_a_bad_option_is_named(spec: dict, path: str) -> None:
    with pytest.raises(SpecError, match=re.escape(path)):
        build(spec)
