"""`flywheel-work`, as it is installed, against a live server and a real worker: evaluations that an
agent plays on its own machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from apps.core.models import JobLog, JobState
from apps.evals.models import EvalRun, HoldoutView
from apps.registry import harness
from apps.registry.actions import register_agent
from apps.registry.models import Reach
from tests.e2e.workers import worker
from tests.evals.test_played import N, World, model
from tests.factories import admin_of, make_key
from tests.registry.model_server import serving
from workers.lib.harness import pulled
from workers.lib.specs.harness import AgentPull

pytestmark = pytest.mark.django_db(transaction=True)
CLIENT = Path(__file__).parents[2] / "clients" / "python" / "src"
AGENT = """
import json, os, pathlib, sys, time, urllib.error, urllib.request

notes = pathlib.Path(sys.argv[1])


def post(url, body):
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked) as response:
        return json.load(response)


task = json.loads(pathlib.Path(os.environ["FLYWHEEL_TASK"]).read_text())
assert task == json.load(sys.stdin) and "FLYWHEEL_API_KEY" not in os.environ
said = []
while not said or said[-1]["role"] == "tool":
    asked = {"messages": [*task["messages"], *said], "tools": task["tools"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    said.append(post(url, asked)["choices"][0]["message"])
    for call in said[-1].get("tool_calls") or ():
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        if (notes / "hang").exists():
            (notes / "hang").unlink()
            (notes / "begun").write_text(str(os.getpid()))
            while not (notes / "go").exists():
                time.sleep(0.05)
            try:
                post(f"{os.environ['FLYWHEEL_TOOLS_URL']}/{name}", arguments)
            except urllib.error.HTTPError as error:
                (notes / "refused.tmp").write_text(str(error.code))
                (notes / "refused.tmp").rename(notes / "refused")
            sys.exit(1)
        done = post(f"{os.environ['FLYWHEEL_TOOLS_URL']}/{name}", arguments)
        said.append({"role": "tool", "tool_call_id": call["id"], "content": done["output"]})
print("Some words before the last line.")
print(json.dumps({"messages": said}))
"""
PATH = ("POST", "/v1/chat/completions")


class Scene(World):
    def __init__(self, served: str, notes: Path) -> None:
        super().__init__(served, "http://127.0.0.1:9/v1")
        self.agent = register_agent(
            project=self.project,
            name="tidy",
            agent_version="3",
            by=admin_of(self.project),
            reached_by=Reach.PULL,
        )
        self.notes, self.started = notes, list[subprocess.Popen]()
        (notes / "agent.py").write_text(AGENT)

    def begin(self, **changes: Any) -> EvalRun:
        made = self.start(**{"played_by": str(self.agent)} | changes)
        assert made.status_code == 201, made.content
        return EvalRun.objects.get(pk=made.json()["id"])

    def work(self, *options: str, agent: str = "", key: str = "") -> subprocess.Popen:
        command = [sys.executable, "-m", "flywheel_eval.work", agent or str(self.agent), *options]
        command += ["--", sys.executable, str(self.notes / "agent.py"), str(self.notes)]
        key = key or make_key(self.project, may_see_holdout=True)
        more = {"PYTHONPATH": str(CLIENT), "FLYWHEEL_API_KEY": key}
        process = subprocess.Popen(
            command, env=os.environ | more, stderr=subprocess.PIPE, text=True
        )
        self.started.append(process)
        return process


def until(done: Callable[[], Any]) -> Any:
    """The first result that is true; the suite's own limit ends what never is."""
    while not (found := done()):
        time.sleep(0.1)
    return found


def ended(run: EvalRun) -> EvalRun:
    until(lambda: EvalRun.objects.get(pk=run.pk).state not in (JobState.QUEUED, JobState.RUNNING))
    run.refresh_from_db()
    return run


@pytest.fixture
def scene(
    live_server: Any, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> Iterator[Scene]:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    monkeypatch.setenv("FLYWHEEL_URL", live_server.url)
    with serving({PATH: model, ("GET", "/v1/models"): (200, {"data": []})}) as server:
        made = Scene(server.base, tmp_path)
        with worker(EvalRun):
            yield made
        for process in made.started:
            process.kill()
            process.wait()
        with suppress(OSError, ValueError):  # the command of a worker that was killed
            os.kill(int((tmp_path / "begun").read_text()), signal.SIGKILL)


def test_an_agent_that_waits_for_work_plays_an_evaluation(scene: Scene) -> None:
    process = scene.work()
    run = ended(scene.begin())
    assert (run.state, run.error) == (JobState.SUCCEEDED, "")
    metrics = run.result["metrics"]
    assert metrics["success"]["mean"] == 1.0
    assert (metrics["counts"]["samples"], metrics["counts"]["masked"]) == (N, 0)
    assert [m["role"] for m in run.samples.first().messages] == ["assistant", "tool", "assistant"]
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[1]
    assert process.returncode == 0 and said.count("done (") == N and "Traceback" not in said


def test_a_worker_that_is_killed_loses_its_rollout_to_another(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "AgentPull", partial(AgentPull, lease_s=6))
    (scene.notes / "hang").touch()
    first = scene.work("--concurrency", "1")
    run = scene.begin()
    until((scene.notes / "begun").exists)
    first.kill()
    scene.work("--concurrency", "1")
    done = ended(run)
    assert (done.state, done.error) == (JobState.SUCCEEDED, "")
    assert done.result["metrics"]["success"]["mean"] == 1.0
    assert {sample.mask_reason for sample in done.samples.all()} == {""}


def test_what_a_killed_worker_left_behind_cannot_act_any_more(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "AgentPull", partial(AgentPull, lease_s=6, noted_after_s=8))
    (scene.notes / "hang").touch()
    first = scene.work("--concurrency", "1")
    run = scene.begin()
    until((scene.notes / "begun").exists)
    first.kill()
    told = partial(JobLog.objects.filter, job=run.pk, message__startswith="No worker asks")
    until(lambda: told().exists())
    assert EvalRun.objects.get(pk=run.pk).label == pulled.NO_WORKER.format(scene.agent)
    (scene.notes / "go").touch()
    until((scene.notes / "refused").exists)
    assert (scene.notes / "refused").read_text() == "410"
    scene.work()
    assert ended(run).result["metrics"]["success"]["mean"] == 1.0


def test_held_out_tasks_are_given_to_those_who_may_see_them(scene: Scene) -> None:
    run = scene.begin(split="holdout")
    seen = HoldoutView.objects.filter(kind=HoldoutView.Kind.VIEW)
    blind = scene.work(key=make_key(scene.project))
    assert "may not see" in (until(blind.stderr.readline) + until(blind.stderr.readline))
    assert not seen.exists()
    scene.work()
    assert ended(run).result["metrics"]["success"]["mean"] == 1.0
    assert seen.get().detail == f"given to a worker of {scene.agent}"


def test_what_does_not_wait_for_work_is_refused(scene: Scene) -> None:
    for agent, sentence in (("tidy@1", "waits for work"), ("tidy@9", "waits for work")):
        process = scene.work(agent=agent)
        assert sentence in process.communicate()[1] and process.returncode == 3
    refused = scene.start(model_version=scene.agent.pk, played_by=None)
    assert "under “Played by”" in refused.content.decode()
