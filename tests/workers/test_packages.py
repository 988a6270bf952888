"""Environments as packages: made, found, checked, run beside and in the sandbox; a broken one harms
nobody.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest

import flywheel_sdk
from workers.lib.environments import load
from workers.lib.environments.packages import checking, config_of, discovery, runners
from workers.lib.environments.packages.checking import Checked, check
from workers.lib.environments.packages.discovery import Found, discover
from workers.lib.environments.packages.files import PackageProblem
from workers.lib.environments.packages.template import new_package
from workers.lib.messages import to_native
from workers.lib.verifiers import Score

ROOT = Path(__file__).parents[2]
HEAD = "from flywheel_sdk import Attempt, Environment, ToolError, tool\n"
WHOLE = """
class Counter(Environment):
    def start(self, task):
        return {"value": 0}
    @tool
    def add(self, amount: int) -> int:
        "Adds."
        self.state["value"] += amount
        return self.state["value"]
    def tasks(self):
        return [{"id": "two", "prompt": "Two.", "expected": {"tool": "add", "args": {"amount": 2}}}]
    def verify(self, attempt):
        return attempt.state["value"] == 2
"""


@pytest.fixture(autouse=True)
def ended() -> Any:
    yield
    runners.close_all()


def put(folder: Path, name: str, code: str) -> Path:
    home = folder / name
    home.mkdir(parents=True)
    (home / "__init__.py").write_text(code)
    return home


def found_of(tmp_path: Path, code: str, name: str = "counter") -> Found:
    put(tmp_path, name, code)
    return next(found for found in discover(tmp_path) if found.name == name)


def errors(checked: Checked) -> str:
    return "\n".join(
        f"{one.text} → {one.do} @ {one.where}" for one in checked.findings if one.level == "error"
    )


def spec_of(found: Found, **config: Any) -> dict:
    described = checking.describe(found)
    return {
        "kind": "package",
        "config": (
            config_of(found.name, found.digest, described, trusted=found.trusted)
            | {"files": found.files}
            | config
        ),
    }


def play(spec: dict, calls: list[tuple[str, dict]], task: dict | None = None) -> tuple[Any, Score]:
    async def run() -> tuple[Any, Score]:
        episode = load(spec).open(
            task
            or {
                "id": "two",
                "messages": [{"role": "user", "content": "Two."}],
                "expected": {},
                "metadata": {},
            }
        )
        for name, args in calls:
            if not episode.done:
                await episode.step({"content": None, "tool_calls": [to_native(name, args, "c")]})
        if not episode.done:
            await episode.step({"content": "Done."})
        return episode, await episode.score()

    return asyncio.run(run())


# A new one


def test_a_new_package_is_right_at_once_and_its_tests_pass(tmp_path: Path) -> None:
    for path, text in new_package("bug_tracker").items():
        target = tmp_path / "bug_tracker" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    (found,) = discover(tmp_path)
    checked = check(found)
    assert checked.is_usable, errors(checked)
    assert [one.level for one in checked.findings] == ["ok"] * 4
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            str(tmp_path / "bug_tracker" / "tests"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # Django's would import us all
    )
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout


@pytest.mark.parametrize(
    "name", ["Bug", "1st", "class", "json", "a-b", "", "x" * 61, "../up", "flywheel_sdk"]
)
def test_a_name_that_python_cannot_import_is_refused(name: str) -> None:
    with pytest.raises(PackageProblem, match="is not a valid package name"):
        new_package(name)


# Schemas


class Place(TypedDict):
    street: str
    number: int


def test_a_schema_comes_from_signature_and_docstring() -> None:
    class Tools(flywheel_sdk.Environment):
        @flywheel_sdk.tool(dangerous=True)
        def move(
            self,
            where: Place,
            how: Literal["car", "train"],
            tags: list[str],
            note: str | None = None,
            times: Annotated[int, "how often"] = 2,
        ) -> str:
            """Moves it.

            More words.

            Args:
                where: The new place,
                    in full
                how (str): By what

            Returns:
                text: nothing of an argument
            """
            return ""

    function = flywheel_sdk.schema_of("move", flywheel_sdk.tools_of(Tools)["move"])["function"]
    assert function["description"] == "Moves it. More words." and function["x-dangerous"]
    assert function["parameters"] == {
        "type": "object",
        "additionalProperties": False,
        "required": ["where", "how", "tags"],
        "properties": {
            "where": {
                "description": "The new place, in full",
                "type": "object",
                "required": ["number", "street"],
                "properties": {"street": {"type": "string"}, "number": {"type": "integer"}},
                "additionalProperties": False,
            },
            "how": {"description": "By what", "type": "string", "enum": ["car", "train"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "times": {"description": "how often", "type": "integer", "default": 2},
        },
    }


STYLES = {
    "google": (
        """Books a room.

    It sends no mail.

    Args:
        day (str): When,
            in UTC
        minutes: How long

    Returns:
        str: the number

    Ask first.
    """
    ),
    "google after another section": (
        """Books a room. It sends no mail. Ask first.

    Raises:
        ToolError: no room
    Args:
        day: When, in UTC
        minutes: How long
    """
    ),
    "numpy": (
        """Books a room. It sends no mail. Ask first.

    Parameters
    ----------
    day : str
        When,
        in UTC
    minutes : int, optional
        How long

    Returns
    -------
    str
        the number
    """
    ),
    "rest": (
        """Books a room. It sends no mail. Ask first.

    :param day: When,
        in UTC
    :type day: str
    :param int minutes: How long
    :returns: the number
    :raises ToolError: no room
    """
    ),
}


@pytest.mark.parametrize("style", STYLES)
def test_a_docstring_of_any_style_describes_the_arguments(style: str) -> None:
    def book(self: Any, day: str, minutes: int = 30) -> None: ...

    book.__doc__ = STYLES[style]
    assert flywheel_sdk.documented(book) == (
        "Books a room. It sends no mail. Ask first.",
        {"day": "When, in UTC", "minutes": "How long"},
    )


TYPED = """
import asyncio
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import Enum

class Kind(Enum):
    CALL = "call"
    LUNCH = "lunch"

@dataclass
class Person:
    name: str
    born: date | None = None

@dataclass
class Meeting:
    at: datetime
    people: list[Person]
    kind: Kind = Kind.CALL

class Calendar(Environment):
    @tool
    async def book(self, meeting: Meeting, remind: Kind | None = None, before: date = date(2027, \
1, 1)) -> list[Meeting]:
        "Books."
        await asyncio.sleep(0)
        assert meeting.at.date() < before and isinstance(meeting.kind, Kind) and not \
isinstance(remind, str)
        assert all(isinstance(one, Person) and not isinstance(one.born, str) for one in \
meeting.people)
        return [meeting]
    async def tasks(self):
        return [{"id": "a", "prompt": "Book."}]
    async def verify(self, attempt):
        return any(call.ok for call in attempt.calls)
"""


@pytest.mark.parametrize("trusted", [True, False])
def test_a_tool_gets_enums_dates_and_dataclasses_and_may_return_them(
    tmp_path: Path, trusted: bool
) -> None:
    found = replace(found_of(tmp_path, HEAD + TYPED), trusted=trusted)
    assert check(found).is_usable
    people = [{"name": "Ana", "born": "2000-02-29"}, {"name": "Bo"}]
    calls = [
        ("book", {"meeting": {"at": "2026-01-31T09:30", "people": people}, "remind": "lunch"}),
        ("book", {"meeting": {"at": "tomorrow", "people": []}}),
        ("book", {"meeting": {"at": "2026-01-31", "people": [], "kind": "dinner"}}),
        ("book", {"meeting": {"at": "2026-01-31", "people": [{"name": "Ana", "born": "May"}]}}),
    ]
    episode, score = play(spec_of(found), calls)
    said = [call.observation for call in episode.calls]
    assert (
        said[0]
        == '[{"at": "2026-01-31T09:30:00", "people": [{"name": "Ana", "born": "2000-02-29"},'
        ' {"name": "Bo", "born": null}], "kind": "call"}]'
    )
    assert said[1] == "Error: meeting: 'tomorrow' is not in ISO form, such as 2026-01-31T09:30."
    assert '"dinner" is not one of ["call", "lunch"]' in said[2]
    assert said[3].startswith('Error: "May" is not valid under any of the schemas')
    assert score.success and not episode.faults
    (function,) = [tool["function"] for tool in load(spec_of(found)).tools]
    schema = function["parameters"]
    assert (
        schema["required"] == ["meeting"]
        and schema["properties"]["before"]["default"] == "2027-01-01"
    )
    meeting = schema["properties"]["meeting"]
    assert meeting["required"] == ["at", "people"]
    assert meeting["properties"]["at"] == {"type": "string", "examples": ["2026-01-31T09:30"]}
    assert meeting["properties"]["kind"] == {"type": "string", "enum": ["call", "lunch"]}


# What may be wrong

BROKEN = {
    "syntax": ("def x(:\n", "__init__.py, line 1"),
    "library": ("import no_such_library\n" + HEAD + WHOLE, "No module named 'no_such_library'"),
    "exit": ("import sys\nsys.exit(3)\n", "Importing it raised SystemExit"),
    "dies": ("import os\nos._exit(3)\n", "ended the process"),
    "nothing": ("x = 1\n", "exactly one subclass"),
    "two": (HEAD + WHOLE + WHOLE.replace("Counter", "Other"), "Counter, Other"),
    "no verifier": (HEAD + WHOLE.replace("def verify", "def verified"), "has no verifier"),
    "untyped": (
        HEAD + WHOLE.replace("amount: int", "amount"),
        "The argument amount of the tool add has no type",
    ),
    "strange type": (
        HEAD + WHOLE.replace("amount: int", "amount: set"),
        "has the type set, which JSON does not have",
    ),
    "star": (HEAD + WHOLE.replace("amount: int", "*amount: int"), "Name each argument"),
    "no tasks": (HEAD + WHOLE.replace("def tasks", "def taskz"), "tasks() gives no tasks"),
    "same ids": (
        HEAD + WHOLE.replace("return [{", "return 2 * [{"),
        "Several tasks have the id two",
    ),
    "no id": (HEAD + WHOLE.replace('"id": "two", ', ""), "Task 1 has no id"),
    "no prompt": (HEAD + WHOLE.replace('"prompt"', '"messages"'), "Task two has no request"),
    "empty prompt": (HEAD + WHOLE.replace('"Two."', '" "'), "Task two has no request"),
    "unknown field": (
        HEAD + WHOLE.replace('"id": "two"', '"id": "two", "answr": 1'),
        "Task 1 has the unknown key answr",
    ),
    "verifier raises": (
        HEAD + WHOLE.replace('return attempt.state["value"] == 2', "return 1 / 0"),
        "verify() raised ZeroDivisionError",
    ),
    "nan": (
        HEAD + WHOLE.replace('return attempt.state["value"] == 2', 'return float("nan")'),
        "not a finite number",
    ),
    "reward out of range": (
        HEAD + WHOLE.replace('return attempt.state["value"] == 2', "return -1e9"),
        "The reward -1e+09 is not within ±1,000,000: beside it no other would count.",
    ),
    "expected calls out of range": (
        HEAD + WHOLE.replace("== 2", "* 1e9"),
        "The reward 2e+09 is not within ±1,000,000: beside it no other would count.",
    ),
    "no number": (
        HEAD + WHOLE.replace('return attempt.state["value"] == 2', 'return "good"'),
        "not a finite number",
    ),
    "random": (
        "import random\n"
        + HEAD
        + WHOLE.replace('return attempt.state["value"] == 2', "return random.random()"),
        "for the same attempt",
    ),
    "state": (
        HEAD + WHOLE.replace('return {"value": 0}', 'return {"value": {1, 2}}'),
        "The state is not JSON",
    ),
    "state of a tool": (
        HEAD + WHOLE.replace('self.state["value"] += amount', 'self.state["seen"] = {1}'),
        "The state is not JSON",
    ),
    "tool raises": (
        HEAD + WHOLE.replace('self.state["value"] += amount', 'self.state["valu"] += amount'),
        "its expected calls do not succeed: The tool add raised KeyError: 'valu'.",
    ),
    "gold": (
        HEAD + WHOLE.replace('{"amount": 2}', '{"amount": 3}'),
        "its expected calls do not succeed: the reward is 0",
    ),
    "number as id": (
        HEAD + WHOLE.replace('"id": "two"', '"id": 2'),
        'the id 2 is not text. → Write "2"',
    ),
    "wrong argument": (
        HEAD + WHOLE.replace('{"amount": 2}', '{"amuont": 2}'),
        (
            "expected calls add with arguments that do not fit: Additional properties are not"
            " allowed ('amuont' was unexpected). →"
            " add takes amount; the task gives amuont."
        ),
    ),
    "a list as type": (
        HEAD + WHOLE.replace("amount: int", "amount: [int]"),
        "has the type [<class 'int'>], which JSON does not have",
    ),
    "no self": (
        HEAD + WHOLE.replace("self, amount", "amount"),
        "The tool add has no self. Write def add(self, …).",
    ),
    "static": (
        HEAD + WHOLE.replace("@tool", "@tool\n    @staticmethod"),
        "The tool add is a staticmethod. Make it a method",
    ),
    "class method": (
        HEAD + WHOLE.replace("@tool", "@classmethod\n    @tool"),
        "The tool add is a classmethod. Make it a method",
    ),
    "name of Environment": (
        HEAD + WHOLE.replace("def add(", "def finish("),
        '@tool(name="finish") keeps the name that the agent sees',
    ),
    "name by position": (
        HEAD + WHOLE.replace("@tool", '@tool("plus")'),
        'Write @tool, or @tool(name="…").',
    ),
    "default": (
        HEAD + WHOLE.replace("amount: int", "amount: int = {1}"),
        (
            "The argument amount of the tool add has the default {1}, which JSON does not have. Use"
            " None instead."
        ),
    ),
    "own class": (
        HEAD + "class Cent:\n    pass\n" + WHOLE.replace("amount: int", "amount: Cent"),
        (
            "has the type Cent, which JSON does not have. Use str, int, float, bool, list, dict,"
            " Literal, an Enum, date"
        ),
    ),
    "recursive type": (
        HEAD
        + "from typing import TypedDict\nclass Tree(TypedDict):\n    left: 'Tree'\n"
        + WHOLE.replace("amount: int", "amount: Tree"),
        "refers to itself. Use dict for the inner Tree",
    ),
    "unknown type inside": (
        HEAD
        + "from typing import TypedDict\nclass Leaf(TypedDict):\n    left: 'Tree'\n"
        + WHOLE.replace("amount: int", "amount: Leaf"),
        "the types of Leaf cannot be read: name 'Tree' is not defined",
    ),
    "ToolError in start": (
        HEAD + WHOLE.replace('return {"value": 0}', 'raise ToolError("No room.")'),
        "start() raised ToolError: No room.",
    ),
    "ToolError in verify": (
        HEAD + WHOLE.replace('return attempt.state["value"] == 2', 'raise ToolError("No room.")'),
        "verify() raised ToolError: No room.",
    ),
    "attribute of the instance": (
        HEAD + WHOLE.replace('self.state["value"] += amount', "self.total += amount"),
        "has no attribute 'total'. Between calls only self.state is kept.",
    ),
    "tasks give nothing": (HEAD + WHOLE.replace("return [{", "[{"), "tasks() returned None"),
    "endless tasks": (
        HEAD
        + "import itertools\n"
        + WHOLE.replace("return [{", "return itertools.cycle([{").replace("}}}]", "}}}])"),
        "tasks() gives more than 100,000 tasks",
    ),
    "key of the state": (
        HEAD + WHOLE.replace('{"value": 0}', '{"value": 0, "rooms": [{7: "free"}]}'),
        "The state has the key 7, which JSON would turn into text. Use '7'",
    ),
    "huge reward": (
        HEAD + WHOLE.replace('return attempt.state["value"] == 2', "return 10**400"),
        "not a finite number",
    ),
    "limits": (
        HEAD + WHOLE.replace("def start", "max_turns = 0\n    def start"),
        "Counter.max_turns must be a number from 1 to 200",
    ),
}


def of_tasks(tmp_path: Path, last: str) -> Found:
    """A package with eight tasks in a file, of which the last has this for `expected`."""
    rows = [
        f'{{"id": "t{n}", "prompt": "{n}?", "expected": {{"tool": "add", "args": {{"amount":'
        " 2}}}"
        for n in range(7)
    ]
    code = HEAD.replace("tool\n", "tool, read_jsonl\n") + "from pathlib import Path\n" + WHOLE
    start = code.index("return [{")
    code = (
        code[:start]
        + 'return read_jsonl(Path(__file__).with_name("t.jsonl"))'
        + code[code.index("\n", start) :]
    )
    home = put(tmp_path, "counter", code)
    (home / "t.jsonl").write_text(
        "\n".join([*rows, f'{{"id": "last", "prompt": "x", "expected": {last}}}'])
    )
    return discover(tmp_path)[0]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("last", "sentence", "do"),
    [
        (
            '{"tool": "ad", "args": {"amount": 2}}',
            "expected names the tool ad, which the package does not have",
            "mean add?",
        ),
        ('{"calls": [{"tool": "x", "args": {}}]}', "expected names the tool x", "Its tools: add."),
        (
            '{"tool2": "add", "args": {"amount": 2}}',
            "expected has the unknown key tool2",
            "metadata",
        ),
        ('{"tool2": "add"}', "expected has the unknown key tool2", "metadata"),
        (
            '{"tool": "add", "args": {"amount": 2}, "note": 1}',
            "expected has the unknown key note",
            "metadata",
        ),
        (
            '{"calls": [{"tool": "add", "args": {}, "id": 1}]}',
            "a call in expected has the unknown key id",
            "tool and args",
        ),
        ('{"tool": "add"}', "a call in expected is not {“tool”: text, “args”: dict}", "both"),
        ('{"calls": {}}', "the calls in expected are not a list", "calls"),
        ('{"calls": [], "tool": "add", "args": {}}', "expected has both calls and tool", "calls"),
        (
            '{"tool": "add", "args": {"amount": 3}}',
            "its expected calls do not succeed: the reward is 0",
            "Correct",
        ),
    ],
)
def test_a_mistake_in_the_last_task_is_found_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, sentence: str, do: str
) -> None:
    checked = check(of_tasks(tmp_path, last), seconds=60)
    (one,) = [one for one in checked.findings if one.level == "error"]
    assert f"Task last: {sentence}" in one.text and do in one.do and one.where == "t.jsonl:8"


def test_without_time_a_sample_is_tried_and_said_to_be_one(tmp_path: Path) -> None:
    found = of_tasks(tmp_path, '{"answer": "2"}')
    said = {
        seconds: [(one.level, one.text) for one in check(found, seconds=seconds).findings]
        for seconds in (0, 60)
    }
    missing = ("warning", "1 of 8 tasks has no expected calls.")
    assert said[0][2:] == [
        missing,
        (
            "ok",
            "verify() judged an empty attempt at 5 tasks, twice alike; 5 of 8 tasks were tried.",
        ),
        ("ok", "The expected calls of 5 tasks succeed; 5 of 7 tasks were tried."),
    ]
    assert said[60][2:] == [
        missing,
        ("ok", "verify() judged an empty attempt at 8 tasks, twice alike."),
        ("ok", "The expected calls of 7 tasks succeed."),
    ]


@pytest.mark.proof
def test_a_mistake_of_all_tasks_is_shown_for_some(tmp_path: Path) -> None:
    many = WHOLE.replace('"id": "two", "prompt": "Two."', '"id": f"t{n}", "prompt": f"{n}?"')
    many = many.replace("}}}]", "}}} for n in range(30)]")
    for name, code, count in (
        ("unknown", many.replace('"tool": "add"', '"tool": "drop"'), 11),
        ("raises", many.replace("return attempt", "raise attempt"), 10),
        ("wrong", many.replace('{"amount": 2}', '{"amount": 3}'), 10),
    ):
        checked = check(found_of(tmp_path, HEAD + code, name), seconds=60)
        assert len([one for one in checked.findings if one.level == "error"]) == count
    idle = check(found_of(tmp_path, HEAD + many.replace("== 2", ">= 0"), "idle"), seconds=60)
    warnings = [one.text for one in idle.findings if one.level == "warning"]
    assert warnings[-1] == "Doing nothing succeeds at 25 more tasks."


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("name", [*BROKEN])
def test_what_is_wrong_with_a_package_is_said_with_what_to_do(tmp_path: Path, name: str) -> None:
    code, sentence = BROKEN[name]
    checked = check(found_of(tmp_path, code))
    assert not checked.is_usable
    assert sentence in errors(checked)
    assert all(one.do for one in checked.findings if one.level == "error")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("verifier raises", "__init__.py:14 return 1 / 0"),
        ("tool raises", '__init__.py:9 self.state["valu"] += amount'),
    ],
)
def test_an_error_names_the_line_of_the_package(tmp_path: Path, name: str, line: str) -> None:
    checked = check(found_of(tmp_path, BROKEN[name][0]))
    assert line in errors(checked)


@pytest.mark.parametrize("trusted", [True, False])
def test_a_verifier_that_never_ends_is_stopped(tmp_path: Path, trusted: bool) -> None:
    code = HEAD + WHOLE.replace('return attempt.state["value"] == 2', "while True: pass").replace(
        "def start", "verify_seconds = 0.2\n    def start"
    )
    checked = check(replace(found_of(tmp_path, code), trusted=trusted))
    assert "verify() took longer than 0.2 s" in errors(checked)


@pytest.mark.proof
def test_after_a_timeout_no_more_tasks_are_tried(tmp_path: Path) -> None:
    many = HEAD + WHOLE.replace('"id": "two", "prompt": "Two."', '"id": f"t{n}", "prompt": f"{n}?"')
    many = many.replace("}}}]", "}}} for n in range(30)]").replace(
        "def start", "tool_seconds = 0.2\n    def start"
    )
    for name, code in (
        ("starts", many.replace('return {"value": 0}', "while True: pass")),
        ("calls", many.replace('self.state["value"] += amount', "while True: pass")),
    ):
        checked = check(found_of(tmp_path, code, name), seconds=0.1)
        (error,) = [one.text for one in checked.findings if one.level == "error"]
        assert "took longer than 0.2 s" in error


def test_tasks_with_one_request_are_a_warning(tmp_path: Path) -> None:
    code = WHOLE.replace('"id": "two"', '"id": f"t{n}"').replace("}}}]", "}}} for n in range(3)]")
    checked = check(found_of(tmp_path, HEAD + code))
    assert checked.is_usable
    assert [one.text for one in checked.findings if one.level == "warning"] == [
        "Task t1 has the same request as t0."
    ]


def test_an_environment_without_tools_is_a_warning(tmp_path: Path) -> None:
    code = WHOLE.replace("@tool", "").replace('"tool": "add", "args": {"amount": 2}', "")
    checked = check(found_of(tmp_path, HEAD + code))
    assert checked.is_usable and "It has no tools." in [
        one.text for one in checked.findings if one.level == "warning"
    ]


def test_a_renamed_package_is_imported_under_its_new_name(tmp_path: Path) -> None:
    home = put(tmp_path, "counter", "from counter.inner import Counter\n")
    (home / "inner.py").write_text(HEAD + WHOLE)
    assert check(discover(tmp_path)[0]).is_usable
    home.rename(tmp_path / "adder")
    (found,) = discover(tmp_path)
    assert "No module named 'counter'" in errors(check(found))


def test_what_it_prints_is_a_warning_and_harms_nothing(tmp_path: Path) -> None:
    code = HEAD + WHOLE.replace(
        "def verify(self, attempt):", 'def verify(self, attempt):\n        print("x" * 100_000)'
    )
    code = "import os\nos.write(1, b'{}')\n" + code
    checked = check(found_of(tmp_path, code))
    assert checked.is_usable and [
        one.text for one in checked.findings if one.level == "warning"
    ] == ["Its code prints."]


def test_a_task_at_which_doing_nothing_succeeds_is_a_warning(tmp_path: Path) -> None:
    checked = check(found_of(tmp_path, HEAD + WHOLE.replace("== 2", ">= 0")))
    assert checked.is_usable
    assert [one.text for one in checked.findings if one.level == "warning"] == [
        "Task two: doing nothing succeeds."
    ]


def test_two_packages_of_one_name_are_told_and_the_others_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "counter", HEAD + WHOLE)
    put(tmp_path, "other", HEAD + WHOLE)
    point = EntryPoint("counter", "counter_of_mine", discovery.GROUP)
    monkeypatch.setattr(discovery, "entry_points", lambda group: [point])
    first, second, other = discover(tmp_path)
    for one in (first, second):
        assert one.problem and "Several packages are named counter" in one.problem.text
    assert other.problem is None and check(other).is_usable


def test_an_entry_point_is_found_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "site", "counter_of_mine", "raise SystemExit\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    point = EntryPoint("counter", "counter_of_mine", discovery.GROUP)
    monkeypatch.setattr(discovery, "entry_points", lambda group: [point])
    (found,) = discover(tmp_path / "nothing")
    assert (found.name, found.problem, list(found.files)) == ("counter", None, ["__init__.py"])
    assert "counter_of_mine" not in sys.modules


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda folder: (folder / "empty").mkdir(), "neither empty/empty/__init__.py"),
        (lambda folder: put(folder, "Not-A-Name", WHOLE), "is not a valid package name"),
        (lambda folder: put(folder, "random", WHOLE), "taken by Python's standard library"),
        (
            lambda folder: (put(folder, "link", WHOLE) / "x").symlink_to("/etc/passwd"),
            "x is a link",
        ),
        (
            lambda folder: (put(folder, "large", WHOLE) / "x.bin").write_bytes(b"0" * (2**21 + 1)),
            "more than 500 files or 2 MB",
        ),
        (
            lambda folder: (put(folder / "p", "p", WHOLE).parent / "pyproject.toml").write_text(
                "["
            ),
            "pyproject.toml cannot be read",
        ),
    ],
)
def test_a_folder_that_is_no_package_is_told(tmp_path: Path, make: Any, sentence: str) -> None:
    make(tmp_path)
    (found,) = discover(tmp_path)
    assert found.problem and sentence in found.problem.text and found.problem.do


def test_the_digest_is_of_the_files_alone(tmp_path: Path) -> None:
    home = put(tmp_path, "counter", HEAD + WHOLE)
    before = discover(tmp_path)[0].digest
    (home / "__pycache__").mkdir()
    (home / "__pycache__" / "x.pyc").write_bytes(b"0")
    assert discover(tmp_path)[0].digest == before
    (home / "data.txt").write_text("new")
    assert discover(tmp_path)[0].digest != before


def test_pyproject_can_mark_a_package_as_untrusted(tmp_path: Path) -> None:
    put(tmp_path / "counter", "counter", HEAD + WHOLE)
    assert discover(tmp_path)[0].trusted
    (tmp_path / "counter" / "pyproject.toml").write_text("[tool.flywheel]\nuntrusted = true\n")
    assert not discover(tmp_path)[0].trusted


# Episodes


@pytest.mark.parametrize("trusted", [True, False])
def test_an_episode_keeps_its_state_and_is_judged_by_the_package(
    tmp_path: Path, trusted: bool
) -> None:
    spec = spec_of(replace(found_of(tmp_path, HEAD + WHOLE), trusted=trusted))
    episode, score = play(spec, [("add", {"amount": 1}), ("add", {"amount": 1})])
    assert [call.observation for call in episode.calls] == ["1", "2"]
    assert (score.reward, score.success, score.masked) == (1.0, True, False)
    again = load(spec).open(episode.task, episode.state)
    assert asyncio.run(again.call("add", {"amount": 3})).observation == "5"
    assert play(spec, [])[1].reward == 0.0


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("add", {"amount": "x"}), 'not of type "integer"'),
        (("add", {"amount": 1, "more": 2}), "Additional properties"),
        (("drop", {}), "There is no tool drop"),
    ],
)
def test_what_the_agent_does_wrong_is_an_observation(
    tmp_path: Path, call: tuple, said: str
) -> None:
    episode, score = play(spec_of(found_of(tmp_path, HEAD + WHOLE)), [call])
    assert said in episode.calls[0].observation and not score.masked


def test_a_tools_crash_shows_the_agent_no_path(tmp_path: Path) -> None:
    code = HEAD + WHOLE.replace('self.state["value"] += amount', "1 / 0")
    episode, score = play(spec_of(found_of(tmp_path, code)), [("add", {"amount": 2})])
    assert episode.calls[0].observation == "Error: The tool failed (crash)." and score.reward == 0.0
    assert score.details == []  # prompt search shows these to a model
    assert episode.faults == [
        "The tool add raised ZeroDivisionError: division by zero (__init__.py:9 1 / 0)"
    ]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("act", ["import os; os._exit(1)", "import time; time.sleep(60)"])
def test_a_tool_that_ends_or_hangs_its_process_harms_no_other_call(
    tmp_path: Path, act: str
) -> None:
    code = HEAD + WHOLE.replace(
        'self.state["value"] += amount', f"{act}" if "exit" in act else act
    ).replace(
        "def start",
        "tool_seconds = 0.3\n    @tool\n    def peek(self) -> int:\n        'Peeks.'\n       "
        " return self.state['value']\n    def start",
    )
    episode, score = play(spec_of(found_of(tmp_path, code)), [("add", {"amount": 2}), ("peek", {})])
    assert [call.ok for call in episode.calls] == [False, True]
    assert score.reward == 0.0 and not score.masked


def test_code_that_forks_is_answered_once(tmp_path: Path) -> None:
    """Both processes have the pipe: two answers would be taken for those of two requests."""
    checked = check(found_of(tmp_path, f"import os\nos.fork()\n{HEAD}{WHOLE}"))
    assert checked.is_usable, checked


def test_a_process_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    found = found_of(
        tmp_path,
        HEAD
        + WHOLE.replace(
            "def start(self, task):", "def start(self, task):\n        import os"
        ).replace('{"value": 0}', '{"value": os.getpid()}'),
    )
    pids = []
    for _ in range(2):
        thread = threading.Thread(
            target=lambda: pids.append(found.runner.ask("start", {"task": {}}, 60)["value"])
        )
        thread.start()
        thread.join()
    assert pids[0] == pids[1]


def test_a_state_that_is_not_json_masks_the_sample(tmp_path: Path) -> None:
    code = HEAD + WHOLE.replace('self.state["value"] += amount', 'self.state["seen"] = {1}')
    episode, _ = play(spec_of(found_of(tmp_path, code)), [("add", {"amount": 2})])
    assert "The state is not JSON" in episode.failure


def test_a_verifier_that_stumbles_over_one_answer_fails_it_and_over_all_masks(
    tmp_path: Path,
) -> None:
    stumbles = HEAD + WHOLE.replace(
        "def verify(self, attempt):",
        "def verify(self, attempt):\n        1 / (attempt.answer != 'Done.')",
    )
    _, score = play(spec_of(found_of(tmp_path, stumbles)), [("add", {"amount": 2})])
    assert (score.reward, score.masked) == (0.0, False)
    never = HEAD + WHOLE.replace(
        "def verify(self, attempt):", "def verify(self, attempt):\n        1 / 0"
    )
    _, score = play(spec_of(found_of(tmp_path, never, "never")), [("add", {"amount": 2})])
    assert (
        score.masked and "ZeroDivisionError: division by zero (__init__.py:14)" in score.mask_reason
    )


def test_a_tool_can_end_the_episode(tmp_path: Path) -> None:
    code = HEAD + WHOLE.replace(
        'self.state["value"] += amount', 'self.state["value"] += amount; self.finish()'
    )
    episode, _ = play(
        spec_of(found_of(tmp_path, code)), [("add", {"amount": 2}), ("add", {"amount": 2})]
    )
    assert (episode.stop_reason, len(episode.calls)) == ("finished", 1)


def test_edits_of_the_folder_do_not_change_a_version_that_runs(tmp_path: Path) -> None:
    found = found_of(tmp_path, HEAD + WHOLE)
    spec = spec_of(found)
    (tmp_path / "counter" / "__init__.py").write_text("this is broken (")
    assert play(spec, [("add", {"amount": 2})])[1].reward == 1.0
    (now,) = discover(tmp_path)
    assert now.digest != found.digest and not check(now).is_usable


def test_files_of_a_package_import_each_other(tmp_path: Path) -> None:
    home = put(
        tmp_path,
        "counter",
        "from counter.inner import Counter\nfrom .inner import Counter as Same\n",
    )
    (home / "inner.py").write_text(HEAD + WHOLE)
    checked = check(discover(tmp_path)[0])
    assert checked.is_usable, errors(checked)


# What an untrusted one may not


def test_an_untrusted_package_reaches_neither_network_nor_files(tmp_path: Path) -> None:
    code = HEAD + WHOLE.replace(
        'self.state["value"] += amount',
        "import socket, pathlib\n        for act in (lambda: socket.create_connection(('127.0.0.1',"
        " 1)), lambda: pathlib.Path('/etc/passwd').read_text()):\n            try:\n               "
        " act()\n                self.state['value'] += 100\n            except OSError as error:\n"
        "                self.state['value'] += isinstance(error, (PermissionError,"
        " FileNotFoundError))",
    )
    spec = spec_of(replace(found_of(tmp_path, code), trusted=False))
    episode, score = play(spec, [("add", {"amount": 2})])
    assert episode.inner == {"value": 2} and score.reward == 1.0


def test_an_untrusted_package_without_its_library_says_who_can_help(tmp_path: Path) -> None:
    checked = check(replace(found_of(tmp_path, "import numpy\n" + HEAD + WHOLE), trusted=False))
    assert "An operator may install it" in errors(checked)


def test_a_spec_without_files_is_refused() -> None:
    with pytest.raises(Exception, match="files of the package counter are missing"):
        load({"kind": "package", "config": {"package": "counter", "digest": "0"}})
