"""Verifiers that run code, always in the sandbox: unit tests of written code, Python graders,
OpenAI's graders.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from textwrap import dedent
from typing import Annotated, Any, Literal

from msgspec import Meta

from workers.lib.errors import SpecError
from workers.lib.graders import run as run_grader
from workers.lib.graders import sample_of
from workers.lib.graders import validate as validate_grader
from workers.lib.messages import last_answer
from workers.lib.sandbox import Budget, CodeError, Limits, shared
from workers.lib.typed import Number
from workers.lib.verifiers.assertions import PLAIN, taken_apart, value_of
from workers.lib.verifiers.base import Guarded, Options, Unavailable, Unscorable, options
from workers.lib.verifiers.types import Clients, Rollout, Score, Verifier

# A block may be quoted or in a list, and the last one not closed.
_FENCED = re.compile(
    r"^(?P<lead>[ \t>]*)(?P<fence>`{3,}|~{3,})[ \t]*\{?\.?(?P<language>[\w.+-]*)[^\n]*\n"
    r"(?P<code>.*?)(?:^[ \t>]*(?P=fence)|\Z)",
    re.DOTALL | re.MULTILINE,
)
_PYTHON = re.compile(r"(?:i?py(?:thon)?[\d.]*)?", re.IGNORECASE)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
MAX_TESTS = 200
# All tests of an answer together may take this many times the seconds of one test, up to
# MAX_SECONDS.
TESTS_AT_FULL_TIME, MAX_SECONDS = 20, 300.0
TESTS = "must be a list of statements, {call, expected} or {stdin, stdout}"


class Limited(Options, kw_only=True):
    """The limits of each run of code."""

    seconds: Annotated[float, Meta(ge=0.1, le=120)] = 5.0
    memory_mb: Annotated[int, Meta(ge=64, le=8192)] = 512


class UnitTestsOptions(Limited):
    tests: list | None = None
    setup: str = ""
    credit: Literal["all", "partial"] = "all"


class PythonOptions(Limited):
    source: str
    pass_threshold: Number = 1.0


class GraderOptions(Options):
    grader: dict | None = None
    pass_threshold: Number | None = None


# The value of a call, or of an assertion's expression, leaves the sandbox and is compared outside,
# so that the code never has access to what is expected. Other statements run together with the
# code.
HARNESS = (
    """
import sys, types

def loaded(setup, code):
    module = sys.modules["solution"] = types.ModuleType("solution")
    exec(compile(setup + "\\n" + code, "solution.py", "exec"), module.__dict__)
    return module.__dict__

def statement(setup, code, test):
    exec(compile(test, "test.py", "exec"), loaded(setup, code))
    return "passed"

def call(setup, code, expression):
    return eval(compile(expression, "test.py", "eval"), loaded(setup, code))

def value(setup, code, before, expression):
    names = loaded(setup, code)
    exec(compile(before, "test.py", "exec"), names)
    return plain(eval(compile(expression, "test.py", "eval"), names))
"""
    + PLAIN
)


def written_code(output: str) -> str:
    """The program in an answer: its last fenced block of Python that defines something other than
    tests, else its last block, with the definitions of the other blocks around it, as in a
    notebook; the whole answer if it has no block.
    """
    blocks = [
        dedent(re.sub(rf"^{re.escape(match['lead'])}", "", match["code"], flags=re.MULTILINE))
        for match in _FENCED.finditer(output)
        if _PYTHON.fullmatch(match["language"])
    ]
    if len(blocks) < 2:
        return blocks[0] if blocks else output
    programs = [at for at, code in enumerate(blocks) if any(map(_is_program, _statements(code)))]
    chosen = programs[-1] if programs else len(blocks) - 1
    parts = (code if at == chosen else _definitions(code) for at, code in enumerate(blocks))
    return "\n".join(filter(None, parts))


def _definitions(code: str) -> str:
    """What a block defines and imports, as code; "" if it is not Python."""
    try:
        return "\n".join(map(ast.unparse, filter(_defines, _statements(code))))
    except (RecursionError, MemoryError):
        return ""


def _statements(code: str) -> list[ast.stmt]:
    """Those of a block; none if it is not Python."""
    try:
        return ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _defines(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module != "__future__"  # which must come first
    return isinstance(node, (ast.Import, *_DEFINITIONS)) or _names_function(node)


def _is_program(node: ast.stmt) -> bool:
    """Whether it defines a function or a class that is no test."""
    is_test = isinstance(node, _DEFINITIONS) and node.name.lower().startswith("test")
    return (isinstance(node, _DEFINITIONS) and not is_test) or _names_function(node)


def _names_function(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Lambda)


def same(value: Any, expected: Any) -> bool:
    """Whether JSON values are equal; numbers to nine digits, and true is not 1."""
    if isinstance(expected, bool) or isinstance(value, bool):
        return value is expected
    if isinstance(expected, int | float) and isinstance(value, int | float):
        return value == expected or math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(expected, list) and isinstance(value, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(expected, dict) and isinstance(value, dict):
        return value.keys() == expected.keys() and all(
            same(value[key], expected[key]) for key in expected
        )
    return type(value) is type(expected) and value == expected


def check_tests(tests: Any, where: str) -> list:
    """The tests, unchanged. Raises SpecError if one has an unknown form."""
    if not isinstance(tests, list) or not 0 < len(tests) <= MAX_TESTS:
        raise SpecError(f"“{where}” {TESTS}, at most {MAX_TESTS}.")
    for at, test in enumerate(tests):
        texts = {"call": {"call", "expected"}, "stdin": {"stdin", "stdout"}}
        form = next(
            (keys for key, keys in texts.items() if isinstance(test, dict) and key in test), None
        )
        if isinstance(test, str) or (
            form is not None and test.keys() == form and _is_text(test, form)
        ):
            continue
        raise SpecError(f"“{where}[{at}]” {TESTS}.")
    return tests


def _is_text(test: dict, form: set[str]) -> bool:
    return all(isinstance(test[key], str) for key in form - {"expected"})


class UnitTests(Guarded):
    """Share of the tests that the answer's code passes, each in a separate process. Tests that are
    not reached within the common time limit count as failed.
    """

    def __init__(self, tests: list | None, setup: str, credit: str, limits: Limits) -> None:
        self.tests, self.setup, self.credit, self.limits = tests, setup, credit, limits

    def judge(self, rollout: Rollout) -> Score:
        tests = self._tests(rollout)
        code = written_code(rollout.answer)
        try:
            compile(code, "solution.py", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return Score(
                reward=0.0,
                components={"passed": 0.0},
                valid=False,
                details=[f"The code does not compile: {error}"],
            )
        together = Budget(
            max(self.limits.seconds, min(TESTS_AT_FULL_TIME * self.limits.seconds, MAX_SECONDS))
        )
        faults = [fault for test in tests if (fault := self._fault(code, test, together))]
        share = 1 - len(faults) / len(tests)
        reward = share if self.credit == "partial" else float(not faults)
        return Score(
            reward=reward,
            components={"passed": share},
            success=not faults,
            valid=True,
            details=faults[:20],
        )

    def _tests(self, rollout: Rollout) -> list:
        if self.tests is not None:
            return self.tests
        try:
            return check_tests(rollout.expected.get("tests"), "expected.tests")
        except SpecError as error:
            raise Unscorable(str(error)) from error

    def _fault(self, code: str, test: Any, together: Budget) -> str:
        """What was wrong in a test; "" if it passes. Errors of the sandbox itself are raised."""
        try:
            if isinstance(test, str):
                return self._wrong_statement(code, test, together)
            if "call" in test:
                value = self._call("call", [code, test["call"]], together)
                return (
                    ""
                    if same(value, test["expected"])
                    else f"{test['call'][:80]} gave {value!r:.100}"
                )
            return self._wrong_output(code, test, together)
        except CodeError as error:
            name = (
                test
                if isinstance(test, str)
                else test.get("call") or f"stdin {test['stdin'][:40]!r}"
            )
            return f"{name[:80]}: {error}"

    def _wrong_statement(self, code: str, test: str, together: Budget) -> str:
        found = taken_apart(test)
        if found is None:
            return (
                ""
                if self._call("statement", [code, test], together) == "passed"
                else f"{test[:80]}: failed"
            )
        wanted, known = found.constant()
        if not known:  # computed in a process that has not run any code of the answer
            wanted = value_of(self._call("value", ["", "", found.expected], together))
        given = self._call("value", [code, found.before, found.expression], together)
        try:
            value = value_of(given)
        except (
            TypeError,
            ValueError,
            RecursionError,
        ):  # not written by `plain`: the answer's code tampered with it
            return f"{test[:80]}: the value is forged"
        return (
            ""
            if found.is_met(value, wanted)
            else f"{test[:80]}: {found.expression[:80]} gave {value!r:.100}"
        )

    def _call(self, function: str, arguments: list[str], together: Budget) -> Any:
        return shared().call(
            HARNESS, function, [self.setup, *arguments], limits=self.limits, together=together
        )

    def _wrong_output(self, code: str, test: dict, together: Budget) -> str:
        program = f"{self.setup}\n{code}"
        ran = shared().run(program, stdin=test["stdin"], limits=self.limits, together=together)
        if not ran.ok:
            return (
                f"stdin {test['stdin'][:40]!r}:"
                f" {ran.reason if ran.reason != 'ok' else 'exit ' + str(ran.exit_code)}"
            )
        right = [line.rstrip() for line in ran.stdout.rstrip().splitlines()] == [
            line.rstrip() for line in test["stdout"].rstrip().splitlines()
        ]
        return "" if right else f"stdin {test['stdin'][:40]!r} gave {ran.stdout[:100]!r}"


def unit_tests(spec: dict, clients: Clients, path: str) -> Verifier:
    """`tests` from the spec or from the task's expected.tests; `setup` runs before the code;
    `credit` is all or partial.
    """
    del clients
    found = options(spec, path, UnitTestsOptions)
    if found.tests is not None:
        check_tests(found.tests, f"{path}.tests")
    return UnitTests(found.tests, found.setup, found.credit, _limits(found))


def _limits(found: Any) -> Limits:
    return Limits(seconds=found.seconds, memory=found.memory_mb << 20)


def item_of(rollout: Rollout) -> dict:
    """The `item` of graders: the fields of the task's metadata and of `expected`, and the task
    itself.
    """
    task = rollout.task
    metadata = task.get("metadata")
    return (
        (metadata if isinstance(metadata, dict) else {})
        | rollout.expected
        | {
            "id": task.get("id"),
            "messages": task.get("messages") or [],
            "expected": rollout.expected,
            "expected_state": rollout.expected_state,
        }
    )


def rollout_sample(rollout: Rollout) -> dict:
    """The `sample` of graders: the last answer and its calls, plus all messages, the end state and
    the stats.
    """
    return sample_of(
        rollout.output, tools=last_answer(rollout.messages).get("tool_calls") or []
    ) | {
        "messages": rollout.messages,
        "state": rollout.state,
        "stats": rollout.stats,
    }


class Graded(Guarded):
    """A reward computed from item and sample; success from `threshold` on."""

    def __init__(
        self, grade: Callable[[dict, dict], tuple[float, dict[str, float]]], threshold: float
    ) -> None:
        self.grade, self.threshold = grade, threshold

    def judge(self, rollout: Rollout) -> Score:
        reward, components = self.grade(item_of(rollout), rollout_sample(rollout))
        return Score(reward=reward, components=components, success=reward >= self.threshold)


def python(spec: dict, clients: Clients, path: str) -> Verifier:
    """`source` defines grade(sample, item) → number. An exception in it masks the sample, since it
    is the grader's own error.
    """
    del clients
    found = options(spec, path, PythonOptions)
    validate_grader({"type": "python", "source": found.source}, path)
    limits = _limits(found)

    def grade(item: dict, sample: dict) -> tuple[float, dict[str, float]]:
        try:
            reward = shared().grade(found.source, sample, item, limits=limits)
        except CodeError as error:
            raise Unscorable(f"The grader failed: {error}") from error
        return reward, {"grade": reward}

    return Graded(grade, found.pass_threshold)


def openai_grader(spec: dict, clients: Clients, path: str) -> Verifier:
    """`grader` is OpenAI's JSON; left out, each task has one in its `expected`. Clients:
    `complete(body) -> response` for model graders (or `ask`), `embed` for cosine similarity.
    """
    found = options(spec, path, GraderOptions)
    if found.grader is None:
        return GradedByTask(spec, clients, path)
    grader = validate_grader(found.grader, f"{path}.grader")
    threshold = (
        found.pass_threshold
        if found.pass_threshold is not None
        else grader.get("pass_threshold", 1.0)
    )
    ask = clients.get("complete") or (_complete_by(clients["ask"]) if clients.get("ask") else None)

    def grade(item: dict, sample: dict) -> tuple[float, dict[str, float]]:
        result = run_grader(grader, item, sample, ask=ask, embed=clients.get("embed"))
        errors = result["metadata"]["errors"]
        if errors[
            "sample_parse_error"
        ]:  # the answer is not the JSON that was asked for: the agent's fault
            return 0.0, result["metadata"]["scores"]
        if any(errors.values()):
            flags = ", ".join(name for name, value in errors.items() if value is True)
            details = result.get("details", "")
            # A server that fails, or a task without a field that the grader refers to, is not the
            # answer's fault.
            elsewhere = "server_error" in flags or details.startswith("There is no “item")
            raise (Unavailable if elsewhere else Unscorable)(
                f"The grader failed ({flags}): {details}"
            )
        return result["reward"], result["metadata"]["scores"]

    return Graded(grade, threshold)


class GradedByTask(Guarded):
    """The grader in a task's `expected`."""

    def __init__(self, spec: dict, clients: Clients, path: str) -> None:
        self.spec, self.clients, self.path = spec, clients, path

    def judge(self, rollout: Rollout) -> Score:
        grader = rollout.expected.get("grader")
        if not isinstance(grader, dict):
            raise Unscorable("The task's “expected” has no grader.")
        verifier = openai_grader(self.spec | {"grader": grader}, self.clients, self.path)
        return verifier.score(rollout)


def _complete_by(ask: Callable[[list[dict]], str]) -> Callable[[dict], dict]:
    """A chat completion from a client that takes messages and returns text: the answer's format is
    requested in the prompt.
    """

    def complete(body: dict) -> dict:
        result = body["response_format"]["json_schema"]["schema"]["properties"]["result"]
        wanted = f"one of {result['enum']}" if "enum" in result else "a number"
        form = f'Answer with JSON alone: {{"steps": [], "result": …}}, where result is {wanted}.'
        text = ask([*body["messages"], {"role": "system", "content": form}])
        return {"choices": [{"message": {"content": text}}]}

    return complete
