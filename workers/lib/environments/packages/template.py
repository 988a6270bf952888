"""The files of a new package: a working to-do list as a starting point. Pure."""

from __future__ import annotations

import json
import keyword
import sys

from workers.lib.environments.packages.discovery import GROUP, NAME
from workers.lib.environments.packages.files import PackageProblem

PYPROJECT = """\
[project]
name = "{dash}"
version = "0.1.0"
description = "An environment for Flywheel"
requires-python = ">=3.11"

# Found by Flywheel where it is installed (pip install .); in its folder of environments it is \
found without.
[project.entry-points."{group}"]
{name} = "{name}"

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["{name}"]

[tool.pytest.ini_options]
pythonpath = ["."]

# To have it run in the sandbox, without network and with the standard library alone:
# [tool.flywheel]
# untrusted = true
"""

README = """\
# {dash}

An environment for Flywheel: tools, state, tasks and verifier are in `{name}/__init__.py`, the \
tasks' texts in `{name}/tasks.jsonl`.
In Flywheel's folder:

    python manage.py check_environment {name}

imports it, starts its tasks, asks the verifier, plays the expected calls and runs the tests. Then \
open Environments → Packages.
The guide is docs/own-environment.md.
"""

PACKAGE = '''\
"""A to-do list."""

from __future__ import annotations

from pathlib import Path

from flywheel_sdk import Attempt, Environment, ToolError, read_jsonl, tool


class {title}(Environment):
    """A to-do list that an assistant keeps for a user."""

    system_prompt = "You keep the user's to-do list. Call a tool for each change, then say what \
you did."
    max_turns = 6

    def start(self, task: dict) -> dict:
        """The list as the task's metadata has it: {{item: whether it is done}}."""
        return {{"items": dict(task["metadata"].get("items", {{}}))}}

    @tool
    def list_items(self) -> dict[str, bool]:
        """Lists all items, and whether each is done."""
        return self.state["items"]

    @tool
    def add_item(self, text: str) -> str:
        """Adds an item.

        Args:
            text: What is to be done
        """
        if text in self.state["items"]:
            raise ToolError(f"{{text}} is on the list.")
        self.state["items"][text] = False
        return f"Added {{text}}."

    @tool
    def mark_done(self, text: str) -> str:
        """Marks an item as done.

        Args:
            text: The item, as the list has it
        """
        if text not in self.state["items"]:
            raise ToolError(f"{{text}} is not on the list.")
        self.state["items"][text] = True
        return f"{{text}} is done."

    def tasks(self) -> list[dict]:
        return read_jsonl(Path(__file__).with_name("tasks.jsonl"))

    def verify(self, attempt: Attempt) -> dict:
        """1 where the list is as the task wants it, else 0."""
        wanted = attempt.task["metadata"]["wanted"]
        right = attempt.state["items"] == wanted
        return {{"reward": float(right), "details": [] if right else [f"The list should be \
{{wanted}}."]}}
'''

TESTS = """\
from __future__ import annotations

import pytest
from flywheel_sdk import Attempt, ToolError

from {name} import {title}


def playing(items: dict) -> {title}:
    environment = {title}()
    environment.state = environment.start({{"metadata": {{"items": items}}}})
    return environment


def test_an_item_is_added_and_done() -> None:
    environment = playing({{}})
    environment.add_item("water the plants")
    environment.mark_done("water the plants")
    assert environment.state == {{"items": {{"water the plants": True}}}}


def test_an_unknown_item_is_refused() -> None:
    with pytest.raises(ToolError):
        playing({{}}).mark_done("fly")


def test_only_the_wanted_list_is_right() -> None:
    task = {{"metadata": {{"wanted": {{"call Ana": False}}}}}}
    right = Attempt(task, {{"items": {{"call Ana": False}}}})
    wrong = Attempt(task, {{"items": {{}}}})
    assert {title}().verify(right)["reward"] == 1.0
    assert {title}().verify(wrong)["reward"] == 0.0


def test_each_task_has_an_id_of_its_own() -> None:
    ids = [task["id"] for task in {title}().tasks()]
    assert ids and len(ids) == len(set(ids))
"""

TASKS = [
    {
        "id": "add-plants",
        "prompt": "Put “water the plants” on my list.",
        "expected": {"tool": "add_item", "args": {"text": "water the plants"}},
        "metadata": {"items": {}, "wanted": {"water the plants": False}},
    },
    {
        "id": "add-ana",
        "prompt": "Remind me to call Ana.",
        "expected": {"tool": "add_item", "args": {"text": "call Ana"}},
        "metadata": {
            "items": {"buy milk": False},
            "wanted": {"buy milk": False, "call Ana": False},
        },
    },
    {
        "id": "milk-done",
        "prompt": "I bought the milk, tick it off.",
        "expected": {"tool": "mark_done", "args": {"text": "buy milk"}},
        "metadata": {"items": {"buy milk": False}, "wanted": {"buy milk": True}},
    },
    {
        "id": "all-done",
        "prompt": "I have done everything on my list.",
        "expected": {
            "calls": [
                {"tool": "mark_done", "args": {"text": "buy milk"}},
                {"tool": "mark_done", "args": {"text": "call Ana"}},
            ]
        },
        "metadata": {
            "items": {"buy milk": False, "call Ana": False},
            "wanted": {"buy milk": True, "call Ana": True},
        },
    },
]


def checked_name(name: str) -> str:
    """Raises PackageProblem."""
    if name in sys.stdlib_module_names:
        raise PackageProblem(
            f"“{name}” is not a valid package name: Python's standard library has a module of this"
            " name.",
            f"Use {name}_agent, for example.",
        )
    if not NAME.fullmatch(name) or keyword.iskeyword(name) or name in ("flywheel_sdk", "tests"):
        raise PackageProblem(
            f"“{name}” is not a valid package name.",
            "Use small letters, digits and _, a letter first, and no keyword of Python:"
            " bug_tracker.",
        )
    return name


def new_package(name: str) -> dict[str, str]:
    """{path: text} of a project. Raises PackageProblem for a name that cannot be one."""
    checked_name(name)
    title = "".join(part.capitalize() for part in name.split("_"))
    named = {"name": name, "dash": name.replace("_", "-"), "title": title, "group": GROUP}
    lines = "".join(json.dumps(task, ensure_ascii=False) + "\n" for task in TASKS)
    return {
        "pyproject.toml": PYPROJECT.format(**named),
        "README.md": README.format(**named),
        f"{name}/__init__.py": PACKAGE.format(**named),
        f"{name}/tasks.jsonl": lines,
        f"tests/test_{name}.py": TESTS.format(**named),
    }
