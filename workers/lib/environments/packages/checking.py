"""Checks a package by trying it: imports it, reads and starts its tasks, calls its verifier, and
plays the expected calls of its tasks. Used by the command and the page.
"""

from __future__ import annotations

import asyncio
import base64
import difflib
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from workers.lib.environments import gold_calls
from workers.lib.environments.packages import Package, config_of
from workers.lib.environments.packages.discovery import Found
from workers.lib.environments.packages.files import PackageProblem
from workers.lib.environments.packages.runners import PackageFailed, Runner
from workers.lib.json_schema import refusal
from workers.lib.messages import to_native
from workers.lib.rollouts import out_of_range
from workers.lib.specs.environment import Environment as EnvironmentSpec
from workers.lib.specs.environment import Harness

TRIED = 5  # minimum number of tasks, however long they take
MOST_TRIED = 500
SECONDS = 10.0  # for starting and judging tasks, and again for playing their expected calls
MOST_FAILED = 10  # failing tasks with the same kind of error, after which no more are tried
DESCRIBE_S = 20.0
NAMES = 5  # names of tasks in a sentence
RANGE = "Scale what verify() returns: use rewards from -1 to 1, say."
CALL = {"tool", "args"}
EXPECTED = {
    "answer",
    "args",
    "calls",
    "constraint",
    "constraints",
    "grader",
    "ground_truth",
    "ordered",
    "pattern",
    "rubric",
    "schema",
    "state",
    "tests",
    "tool",
}
"""What Flywheel itself reads from `expected`; a package's verifier may read more, but not beside
calls.
"""
SPLITS = ("", "train", "validation", "holdout", "regression", "general")


@dataclass(frozen=True)
class Finding:
    """`level`: ok, warning or error. `do`: how to fix it; `where`: lines of the package."""

    level: str
    text: str
    do: str = ""
    where: str = ""


@dataclass
class Checked:
    """`described` is {} if the package cannot be imported."""

    findings: list[Finding] = field(default_factory=list)
    described: dict[str, Any] = field(default_factory=dict)
    tasks: list[dict] = field(default_factory=list)

    @property
    def is_usable(self) -> bool:
        return not any(one.level == "error" for one in self.findings)

    def add(self, level: str, text: str, do: str = "", where: str = "") -> None:
        self.findings.append(Finding(level, text, do, where))

    def failed(self, problem: PackageProblem) -> None:
        self.add("error", problem.text, problem.do, problem.where)


def check(found: Found, seconds: float = SECONDS) -> Checked:
    """All findings, in the order in which an author would fix them. Never raises, whatever the
    package does.

    `seconds`: after this time no further task is started and judged, and no further one played;
    TRIED tasks always are.
    """
    checked = Checked()
    if found.problem:
        checked.failed(found.problem)
        return checked
    try:
        _check(found, checked, seconds)
    except PackageProblem as problem:
        checked.failed(problem)
    return checked


def describe(found: Found) -> dict[str, Any]:
    """What the package says about itself. Raises PackageProblem."""
    if found.problem:
        raise found.problem
    return found.runner.ask("describe", {}, DESCRIBE_S)


def _check(found: Found, checked: Checked, seconds: float) -> None:
    runner = found.runner
    printed = runner.printed
    checked.described = describe(found)
    tools = checked.described["tools"]
    checked.add(
        "ok",
        f"{checked.described['title']} has {_count(len(tools), 'tool')}"
        + (f": {_names(tools)}." if tools else "."),
    )
    _check_tools(checked, tools)
    checked.tasks = tasks_of(runner)
    if not checked.tasks:
        raise PackageProblem(
            "tasks() gives no tasks.", "Return at least one task, with an id and a prompt."
        )
    checked.add("ok", f"tasks() gives {_count(len(checked.tasks), 'task')}.")
    _check_requests(checked)
    package = package_of(found, checked.described)
    _check_expected(checked, found, package)
    _check_tasks(checked, package, seconds)
    _check_gold(checked, package, found, seconds)
    if runner.printed > printed:
        checked.add(
            "warning",
            "Its code prints.",
            "Nobody sees that: raise ToolError, or return details from verify().",
        )


def _check_tools(checked: Checked, tools: list[dict]) -> None:
    if not tools:
        checked.add(
            "warning", "It has no tools.", "Mark the methods that the agent may call with @tool."
        )
    for tool in tools:
        function = tool["function"]
        if not function["description"]:
            checked.add(
                "warning",
                f"The tool {function['name']} has no docstring.",
                "An agent knows a tool by its description.",
            )
        if function["name"] in (
            "seed_session",
            "verify",
            "aggregate_metrics",
            "close_session",
            "reverify_mode",
        ):
            checked.add(
                "warning", f"The tool {function['name']} cannot be called over REST.", "Rename it."
            )


def tasks_of(runner: Runner) -> list[dict]:
    """All tasks, in the form in which they are opened and imported. Raises PackageProblem for the
    first invalid one.
    """
    rows: list[dict] = []
    at: int | None = 0
    while at is not None:
        page = runner.ask("tasks", {"start": at}, DESCRIBE_S)
        rows, at = rows + page["tasks"], page["next"]
    made = [task_of(row, number) for number, row in enumerate(rows, 1)]
    twice = [key for key, count in Counter(task["id"] for task in made).items() if count > 1]
    if twice:
        more = ", …" if len(twice) > NAMES else ""
        raise PackageProblem(
            f"Several tasks have the id {', '.join(twice[:NAMES])}{more}.",
            "Give each task an id of its own.",
        )
    return made


def task_of(row: Any, number: int) -> dict:
    """{id, messages, expected, metadata, split, group, demonstration} from a row of tasks(). Raises
    PackageProblem.
    """
    if not isinstance(row, dict):
        raise PackageProblem(f"Task {number} is not a dict.", 'Return {"id": …, "prompt": …}.')
    known = ("id", "prompt", "messages", "expected", "metadata", "split", "group", "demonstration")
    if unknown := [str(name) for name in row if name not in known]:
        raise PackageProblem(
            f"Task {number} has the unknown key {', '.join(unknown)[:200]}.",
            f"Known are {', '.join(known)}. Put the rest into metadata.",
        )
    name = row.get("id")
    if name is not None and not isinstance(name, str):
        raise PackageProblem(
            f"Task {number}: the id {name!r:.80} is not text.",
            f'Write "{str(name)[:80]}", for example.',
        )
    if not name or len(name) > 120:
        raise PackageProblem(f"Task {number} has no id.", "Give it a text of 1 to 120 characters.")
    if isinstance(row.get("prompt"), str) and "messages" not in row:
        messages = [{"role": "user", "content": row["prompt"]}] if row["prompt"].strip() else None
    else:
        messages = row.get("messages")
    if not isinstance(messages, list) or not any(
        isinstance(one, dict) and one.get("role") == "user" for one in messages
    ):
        raise PackageProblem(
            f"Task {name} has no request.",
            "Give it a prompt (text), or messages with one of the role user.",
        )
    for part, kind in (
        ("expected", dict),
        ("metadata", dict),
        ("split", str),
        ("group", str),
        ("demonstration", str),
    ):
        if not isinstance(row.get(part, kind()), kind):
            raise PackageProblem(
                f"Task {name}: {part} is not {'a dict' if kind is dict else 'text'}.",
                "Correct it, or leave it out.",
            )
    if row.get("split", "") not in SPLITS:
        raise PackageProblem(
            f"Task {name}: there is no split “{row['split']}”.",
            f"Use one of {', '.join(SPLITS[1:])}.",
        )
    defaults = {"expected": {}, "metadata": {}, "split": "", "group": "", "demonstration": ""}
    return (
        defaults
        | {part: row[part] for part in defaults if part in row}
        | {"id": name, "messages": messages}
    )


def package_of(found: Found, described: dict) -> Package:
    config = config_of(found.name, found.digest, described, trusted=found.trusted) | {
        "files": found.files
    }
    return Package(EnvironmentSpec(kind="package", config=config, harness=Harness(), verifier={}))


def _in_time(tasks: list[dict], seconds: float) -> Iterator[dict]:
    """As many tasks as can be tried in this time."""
    end = time.monotonic() + seconds
    for number, task in enumerate(tasks[:MOST_TRIED]):
        if number >= TRIED and time.monotonic() >= end:
            return
        yield task


def _of(tried: int, every: int) -> str:
    return "" if tried == every else f"; {tried:,} of {_count(every, 'task')} were tried"


def _check_requests(checked: Checked) -> None:
    first: dict[str, str] = {}
    for task in checked.tasks:
        earlier = first.setdefault(json.dumps(task["messages"], sort_keys=True), task["id"])
        if earlier != task["id"]:
            checked.add(
                "warning",
                f"Task {task['id']} has the same request as {earlier}.",
                "Change it: an eval set keeps one of them.",
            )
            return  # one example is enough


def _check_expected(checked: Checked, found: Found, package: Package) -> None:
    """Check that the expected calls of all tasks name existing tools, with arguments that fit;
    nothing runs.
    """
    wrong = [(task, why) for task in checked.tasks if (why := _wrong_in(task["expected"], package))]
    for task, (text, do) in wrong[:MOST_FAILED]:
        checked.add("error", f"Task {task['id']}: {text}", do, _place_of(found, task["id"]))
    if len(wrong) > MOST_FAILED:
        checked.add(
            "error",
            f"The expected calls of {_count(len(wrong) - MOST_FAILED, 'more task')} are wrong.",
            "See above.",
        )
    if without := sum(not _has_calls(task) for task in checked.tasks):
        checked.add(
            "warning",
            f"{without:,} of {_count(len(checked.tasks), 'task')}"
            f" {'has' if without == 1 else 'have'} no expected calls.",
            "Without them the check cannot show that a right attempt succeeds, people see no"
            " solution, and SFT has no calls to learn from.",
        )


def _has_calls(task: dict) -> bool:
    return bool(task["expected"].keys() & {"calls", "tool"})


def _wrong_in(expected: dict, package: Package) -> tuple[str, str] | None:
    """(what is wrong, what to do), or None."""
    names = list(package.schemas)
    if len(expected.keys() & {"calls", "tool"}) == 2:
        return "expected has both calls and tool.", "Put all calls into calls."
    is_call = "calls" in expected or bool(expected.keys() & CALL)
    for key in sorted(expected.keys() - EXPECTED):
        if is_call or difflib.get_close_matches(key, ("tool", "calls", "args")):
            return (
                f"expected has the unknown key {key[:80]}.",
                (
                    'Use {"tool": …, "args": …} or {"calls": […]}; what your verifier needs belongs'
                    " into metadata."
                ),
            )
    calls = expected.get("calls", [expected] if is_call else [])
    if not isinstance(calls, list):
        return "the calls in expected are not a list.", 'Use {"calls": [{"tool": …, "args": …}]}.'
    for call in calls:
        if (
            not isinstance(call, dict)
            or not isinstance(call.get("tool"), str)
            or not isinstance(call.get("args"), dict)
        ):
            return (
                "a call in expected is not {“tool”: text, “args”: dict}.",
                "Give each call both, even without arguments.",
            )
        if "calls" in expected and (stray := sorted(call.keys() - CALL)):
            return (
                f"a call in expected has the unknown key {str(stray[0])[:80]}.",
                "Use tool and args.",
            )
        if call["tool"] not in names:
            like = difflib.get_close_matches(call["tool"], names, 1)
            return (
                f"expected names the tool {call['tool'][:80]}, which the package does not have.",
                f"Did you mean {like[0]}?" if like else f"Its tools: {', '.join(names) or 'none'}.",
            )
        if problem := refusal(package.schemas[call["tool"]], call["args"]):
            return (
                (
                    f"expected calls {call['tool']} with arguments that do not fit:"
                    f" {problem[:300].rstrip('.')}."
                ),
                (
                    f"{call['tool']} takes {_arguments(package, call['tool'])}; the task gives"
                    f" {', '.join(call['args']) or 'nothing'}."
                ),
            )
    return None


def _arguments(package: Package, name: str) -> str:
    tool = next(tool for tool in package.tools if tool["function"]["name"] == name)
    return ", ".join(tool["function"]["parameters"]["properties"]) or "no arguments"


def _place_of(found: Found, task: str) -> str:
    """File and line of a task in the package's JSON Lines files; "" if it comes from elsewhere."""
    quoted = json.dumps(task, ensure_ascii=False), json.dumps(task)
    for path, content in found.files.items():
        if not path.endswith(".jsonl"):
            continue
        lines = base64.b64decode(content).decode(errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            if any(text in line for text in quoted) and _id_in(line) == task:
                return f"{path}:{number}"
    return ""


def _id_in(line: str) -> Any:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row.get("id") if isinstance(row, dict) else None


def _check_tasks(checked: Checked, package: Package, seconds: float) -> None:
    """Try an empty attempt at as many tasks as there is time for."""
    tried, failed, idle, end = 0, 0, list[str](), time.monotonic() + seconds
    for task in _in_time(checked.tasks, seconds):
        if failed == MOST_FAILED or (failed and time.monotonic() > end):
            break
        tried += 1
        found = _check_task(checked, package, task)
        failed += found is None
        if found and found["success"]:
            idle.append(task["id"])
    for name in idle[:NAMES]:
        checked.add(
            "warning",
            f"Task {name}: doing nothing succeeds.",
            "Have verify() ask for a call or an answer, or train on other tasks.",
        )
    if len(idle) > NAMES:
        checked.add(
            "warning",
            f"Doing nothing succeeds at {_count(len(idle) - NAMES, 'more task')}.",
            "See above.",
        )
    if not failed:
        checked.add(
            "ok",
            f"verify() judged an empty attempt at {_count(tried, 'task')}, twice"
            f" alike{_of(tried, len(checked.tasks))}.",
        )


def _check_task(checked: Checked, package: Package, task: dict) -> dict | None:
    """Check that the task starts, and that an empty attempt gets the same number twice. Returns the
    result of verify(), or None after an error.
    """
    try:
        package.start(task)
        attempt = {
            "task": {part: task[part] for part in ("id", "messages", "expected", "metadata")},
            "messages": [],
            "calls": [],
            "answer": "",
        }
        rewards = []
        for _ in range(2):
            state = package.start(task)
            found = package.runner.ask(
                "verify", {"attempt": attempt | {"state": state}}, package.config.verify_seconds
            )
            rewards.append(found["reward"])
            if problem := out_of_range(found["reward"]):
                checked.add("error", f"Task {task['id']}: {problem}", RANGE)
                return None
    except PackageFailed as error:
        checked.add("error", f"Task {task['id']}: {error.text}", error.do, error.where)
        return None
    if rewards[0] != rewards[1]:
        checked.add(
            "error",
            f"Task {task['id']}: verify() gave {rewards[0]:g} and then {rewards[1]:g} for the same"
            " attempt.",
            "Draw nothing at random, and do not read the clock: seed from the task's id.",
        )
        return None
    return found


def _check_gold(checked: Checked, package: Package, found: Found, seconds: float) -> None:
    """Check the score of the tasks' expected calls: they should succeed."""
    given = [task for task in checked.tasks if _has_calls(task)]
    if not given or not checked.is_usable:
        return
    tried, failed, end = 0, 0, time.monotonic() + seconds
    for task in _in_time(given, seconds):
        if failed == MOST_FAILED or (failed and time.monotonic() > end):
            break
        tried += 1
        if problem := _gold_problem(package, task):
            text, do, where = problem
            failed += 1
            checked.add("error", text, do, where or _place_of(found, task["id"]))
    if not failed:
        checked.add(
            "ok", f"The expected calls of {_count(tried, 'task')} succeed{_of(tried, len(given))}."
        )


def _gold_problem(package: Package, task: dict) -> tuple[str, str, str] | None:
    """(what is wrong, what to do, where), or None."""
    score, refused, crash = asyncio.run(_played(package, task))
    if problem := out_of_range(score.reward):
        return f"Task {task['id']}: {problem}", RANGE, ""
    if score.success:
        return None
    why = (
        refused
        or score.mask_reason
        or "; ".join(score.details)
        or f"the reward is {score.reward:g}"
    )
    do, where = "Correct the task's expected calls, a tool, or verify().", ""
    if crash:
        why, do, where = crash.text, crash.do, crash.where
    return f"Task {task['id']}: its expected calls do not succeed: {why.rstrip('.')}.", do, where


async def _played(package: Package, task: dict) -> tuple[Any, str, PackageFailed | None]:
    """(the score, the first refusal by a tool, the first crash of one)."""
    episode = package.open(task)
    try:
        calls = [
            to_native(call["tool"], call["args"], f"call_{n}")
            for n, call in enumerate(gold_calls(task))
        ]
        await episode.step({"content": None, "tool_calls": calls})
        if not episode.done:
            await episode.step({"content": task["demonstration"] or "Done."})
        refused = next((f"{call.name}: {call.error}" for call in episode.calls if not call.ok), "")
        return await episode.score(), refused, next(iter(episode.crashes), None)
    finally:
        await episode.close()


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _names(tools: list[dict]) -> str:
    return ", ".join(tool["function"]["name"] for tool in tools[:12]) + (
        ", …" if len(tools) > 12 else ""
    )
