"""The example agents of docs/agents.md, each evaluated in all three ways by the page's own
lines.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.core.models import JobState
from apps.evals import traces
from apps.evals.models import EvalRun
from apps.registry.models import ModelVersion, Reach
from tests.amounts import amount
from tests.e2e.workers import worker
from tests.factories import make_environment, make_eval_set, make_key, make_project
from tests.flywheel.machine import ROOT, eventually, free_port
from tests.sending.snippets import BLOCK, SDKS

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
needs_sdks = pytest.mark.skipif(not SDKS.exists(), reason="the SDKs are not installed: make sdks")
CLIENT = ROOT / "clients" / "python"
EXAMPLES = CLIENT / "examples"
AGENTS = ("fastapi_agent", "langgraph_agent")
BLOCKS = BLOCK.findall((ROOT / "docs" / "agents.md").read_text(encoding="utf-8"))
SHELL = [block for language, block in BLOCKS if language == "sh"]
*_, VARIABLES, SERVE, EVALUATE, FROM_CI = SHELL  # before: flywheel-work (tests/evals/test_work.py)
(BY_TRACES,) = (block for language, block in BLOCKS if language == "python")


def made(project: Any) -> tuple[Any, Any]:
    """The tasks and the environment that the examples are for."""
    return make_eval_set(project, regression=3), make_environment(project)


class User:
    """Someone in the examples' folder, with a project on a live server and the SDKs' Python."""

    def __init__(
        self, folder: Path, url: str, agent: str, made: Callable[[Any], tuple[Any, Any]] = made
    ) -> None:
        project = make_project()
        self.folder, self.started = folder, list[subprocess.Popen]()
        eval_set, environment = made(project)
        (folder / "bin").mkdir()
        command = folder / "bin" / "flywheel-eval"  # as pip installs it
        command.write_text(f'#!/bin/sh\nexec {SDKS} -m flywheel_eval.command "$@"\n')
        command.chmod(0o755)
        (folder / "by_traces.py").write_text(BY_TRACES)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FLYWHEEL_", "DJANGO_", "PYTHON"))
        }
        self.env = kept | {
            "PATH": f"{folder / 'bin'}:{SDKS.parent}:{os.environ['PATH']}",
            "PYTHONUTF8": "1",
            "PYTHONPATH": f"{CLIENT / 'src'}:{EXAMPLES}",
            "FLYWHEEL_URL": url,
            "AGENT": agent,
            "VERSION": "3f2a9c1",
            "FLYWHEEL_API_KEY": make_key(project, may_see_holdout=True),
            "PORT": str(free_port()),
            "EVAL_SET": str(eval_set),
            "ENVIRONMENT": str(environment),
        }

    def sh(self, script: str, **more: Any) -> str:
        """What the script prints; what it leaves running ends with the test."""
        output = self.folder / f"output-{len(self.started)}"
        with output.open("w") as file:
            started = subprocess.Popen(
                ["bash", "-eu", "-c", script],
                cwd=self.folder,
                env=self.env | {name: str(value) for name, value in more.items()},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(started)
        status = started.wait(600)
        assert status == 0, output.read_text()
        return output.read_text()

    def leave(self) -> None:
        for started in self.started:
            try:
                os.killpg(started.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture
def visit(
    live_server: Any, data_dir: Path, tmp_path: Path, settings: Any
) -> Iterator[Callable[[str], User]]:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS, settings.FLYWHEEL_TRACES_SETTLE_S = True, 0
    users: list[User] = []

    def come(agent: str) -> User:
        users.append(User(tmp_path, live_server.url, agent))
        return users[-1]

    with worker(EvalRun):
        yield come
    for user in users:
        user.leave()


def ended() -> EvalRun:
    """The newest evaluation, at its end."""
    run = EvalRun.objects.latest("created_at")
    assert eventually(
        lambda: EvalRun.objects.filter(pk=run.pk).exclude(state__in=("queued", "running")).exists(),
        600,
    )
    run.refresh_from_db()
    return run


@needs_sdks
@pytest.mark.more
@pytest.mark.parametrize("agent", amount(AGENTS[:1], AGENTS))
def test_an_example_is_evaluated_in_three_ways(visit: Callable[[str], User], agent: str) -> None:
    user, runs = visit(agent), []
    user.sh(SERVE)
    user.sh(EVALUATE, MODEL_VERSION=ModelVersion.objects.get(reached_by=Reach.HTTP).pk)
    runs.append(ended())
    user.sh(FROM_CI)
    runs.append(ended())
    named = user.sh("python by_traces.py").split()[-1]
    assert traces.settle() == 3
    runs.append(ended())
    assert str(runs[2].pk) == named and len({run.pk for run in runs}) == 3
    for run in runs:
        assert (run.state, run.error) == (JobState.SUCCEEDED, "")
        assert run.result["metrics"]["success"]["mean"] == 1.0
        assert run.result["metrics"]["counts"] == {
            "tasks": 3,
            "samples": 3,
            "masked": 0,
            "agent_errors": 0,
            "other_results": 0,
            "no_answer": 0,
            "called": 3,
            "lack_calls": 0,
            "tasks_need_calls": 0,
        }


def test_the_examples_are_short_and_the_page_says_what_it_takes_to_run_them() -> None:
    for agent in AGENTS:
        source = (EXAMPLES / f"{agent}.py").read_text(encoding="utf-8")
        lines = [
            line
            for line in source.splitlines()
            if line.strip() and not line.strip().startswith(('"""', "#"))
        ]
        assert len(lines) <= 36 and f"{agent}.py" in (ROOT / "docs" / "agents.md").read_text(
            encoding="utf-8"
        )
        compile(source, agent, "exec")
    assert re.findall(r"export (\w+)=", VARIABLES) == ["FLYWHEEL_URL", "FLYWHEEL_API_KEY", "AGENT"]
