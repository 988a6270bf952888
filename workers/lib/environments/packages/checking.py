"""Checks a package by trying it: it is imported, its tasks are read and started, its verifier is called, and the expected calls of its
tasks are played. The same for the command and the page."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from workers.lib.environments import gold_calls
from workers.lib.environments.packages import Package, config_of
from workers.lib.environments.packages.discovery import Found
from workers.lib.environments.packages.files import PackageProblem
from workers.lib.environments.packages.runners import PackageFailed, Runner
from workers.lib.messages import to_native
from workers.lib.specs import Environment as EnvironmentSpec
from workers.lib.specs import Harness

TRIED = 5  # tasks
DESCRIBE_S = 20.0
NAMES = 5  # of tasks, in a sentence
SPLITS = ("", "train", "validation", "holdout", "regression", "general")


@dataclass(frozen=True)
class Finding:
    """`level`: ok, warning or error. `do`: what to do about it; `where`: lines of the package."""

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


def check(found: Found) -> Checked:
    """All findings, in the order in which an author would mend them. Never raises for what the package does."""
    checked = Checked()
    if found.problem:
        checked.failed(found.problem)
        return checked
    try:
        _check(found, checked)
    except PackageProblem as problem:
        checked.failed(problem)
    return checked


def describe(found: Found) -> dict[str, Any]:
    """What the package says of itself. Raises PackageProblem."""
    if found.problem:
        raise found.problem
    return found.runner.ask("describe", {}, DESCRIBE_S)


def _check(found: Found, checked: Checked) -> None:
    runner = found.runner
    printed = runner.printed
    checked.described = describe(found)
    tools = checked.described["tools"]
    checked.add(
        "ok",
        f"{checked.described['title']} has {_count(len(tools), 'tool')}" + (f": {_names(tools)}." if tools else "."),
    )
    _check_tools(checked, tools)
    checked.tasks = tasks_of(runner)
    if not checked.tasks:
        raise PackageProblem("tasks() gives no tasks.", "Return at least one task, with an id and a prompt.")
    checked.add("ok", f"tasks() gives {_count(len(checked.tasks), 'task')}.")
    package = package_of(found, checked.described)
    for task in checked.tasks[:TRIED]:
        _check_task(checked, package, task)
    if checked.is_usable:
        checked.add(
            "ok", f"verify() judged an empty attempt at {_count(min(TRIED, len(checked.tasks)), 'task')}, twice alike."
        )
    _check_gold(checked, package)
    if runner.printed > printed:
        checked.add(
            "warning", "Its code prints.", "Nobody sees that: raise ToolError, or return details from verify()."
        )


def _check_tools(checked: Checked, tools: list[dict]) -> None:
    for tool in tools:
        function = tool["function"]
        if not function["description"]:
            checked.add(
                "warning", f"The tool {function['name']} has no docstring.", "An agent knows a tool by its description."
            )
        if function["name"] in ("seed_session", "verify", "aggregate_metrics", "close_session", "reverify_mode"):
            checked.add("warning", f"The tool {function['name']} cannot be called over REST.", "Rename it.")


def tasks_of(runner: Runner) -> list[dict]:
    """All tasks, in the form in which they are opened and imported. Raises PackageProblem for the first that is wrong."""
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
            f"Several tasks have the id {', '.join(twice[:NAMES])}{more}.", "Give each task an id of its own."
        )
    return made


def task_of(row: Any, number: int) -> dict:
    """{id, messages, expected, metadata, split, group, demonstration} of what tasks() gives. Raises PackageProblem."""
    if not isinstance(row, dict):
        raise PackageProblem(f"Task {number} is not a dict.", 'Return {"id": …, "prompt": …}.')
    known = ("id", "prompt", "messages", "expected", "metadata", "split", "group", "demonstration")
    if unknown := [str(name) for name in row if name not in known]:
        raise PackageProblem(
            f"Task {number} has {', '.join(unknown)[:200]}.",
            f"Known are {', '.join(known)}. Put the rest into metadata.",
        )
    name = row.get("id")
    if not isinstance(name, str) or not 0 < len(name) <= 120:
        raise PackageProblem(f"Task {number} has no id.", "Give it a text of 1 to 120 characters.")
    if isinstance(row.get("prompt"), str) and "messages" not in row:
        messages = [{"role": "user", "content": row["prompt"]}]
    else:
        messages = row.get("messages")
    if not isinstance(messages, list) or not any(
        isinstance(one, dict) and one.get("role") == "user" for one in messages
    ):
        raise PackageProblem(
            f"Task {name} has no request.", "Give it a prompt (text), or messages with one of the role user."
        )
    for part, kind in (("expected", dict), ("metadata", dict), ("split", str), ("group", str), ("demonstration", str)):
        if not isinstance(row.get(part, kind()), kind):
            raise PackageProblem(
                f"Task {name}: {part} is not {'a dict' if kind is dict else 'text'}.", "Correct it, or leave it out."
            )
    if row.get("split", "") not in SPLITS:
        raise PackageProblem(
            f"Task {name}: there is no split “{row['split']}”.", f"Use one of {', '.join(SPLITS[1:])}."
        )
    defaults = {"expected": {}, "metadata": {}, "split": "", "group": "", "demonstration": ""}
    return defaults | {part: row[part] for part in defaults if part in row} | {"id": name, "messages": messages}


def package_of(found: Found, described: dict) -> Package:
    config = config_of(found.name, found.digest, described, trusted=found.trusted) | {"files": found.files}
    return Package(EnvironmentSpec(kind="package", config=config, harness=Harness(), verifier={}))


def _check_task(checked: Checked, package: Package, task: dict) -> None:
    """It starts, and an attempt that did nothing gets the same number twice."""
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
            found = package.runner.ask("verify", {"attempt": attempt | {"state": state}}, package.config.verify_seconds)
            rewards.append(found["reward"])
    except PackageFailed as error:
        checked.add("error", f"Task {task['id']}: {error.text}", error.do, error.where)
        return
    if found["success"]:
        checked.add(
            "warning",
            f"Task {task['id']}: doing nothing succeeds.",
            "Have verify() ask for a call or an answer, or train on other tasks.",
        )
    if rewards[0] != rewards[1]:
        checked.add(
            "error", f"Task {task['id']}: verify() gave {rewards[0]:g} and then {rewards[1]:g} for the same attempt.",
            "Draw nothing at random, and do not read the clock: seed from the task's id.",
        )  # fmt: skip


def _check_gold(checked: Checked, package: Package) -> None:
    """What the expected calls of tasks are scored with: they should succeed."""
    tried = [task for task in checked.tasks if task["expected"].keys() & {"calls", "tool"}][:TRIED]
    if not tried or not checked.is_usable:
        return
    for problem in _gold_problems(package, tried):
        checked.add("error", *problem)
    if checked.is_usable:
        checked.add("ok", f"The expected calls of {_count(len(tried), 'task')} succeed.")


def _gold_problems(package: Package, tasks: list[dict]) -> Iterator[tuple[str, str, str]]:
    for task in tasks:
        score, refused, crash = asyncio.run(_played(package, task))
        if score.success:
            continue
        why = refused or score.mask_reason or "; ".join(score.details) or f"the reward is {score.reward:g}"
        do, where = "Correct the task's expected calls, a tool, or verify().", ""
        if crash:
            why, do, where = crash.text, crash.do, crash.where
        yield f"Task {task['id']}: its expected calls do not succeed: {why.rstrip('.')}.", do, where


async def _played(package: Package, task: dict) -> tuple[Any, str, PackageFailed | None]:
    """The score, the first refusal by a tool, and the first crash in one."""
    episode = package.open(task)
    try:
        calls = [to_native(call["tool"], call["args"], f"call_{n}") for n, call in enumerate(gold_calls(task))]
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
    return ", ".join(tool["function"]["name"] for tool in tools[:12]) + (", …" if len(tools) > 12 else "")
