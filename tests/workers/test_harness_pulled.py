"""Rollouts that are given out to workers: by plain HTTP, as a worker in any language asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.workers.conftest import Recorder, typed
from tests.workers.test_harness_rollouts import AGENT, reasons, sampled
from tests.workers.test_harness_tools import SPEC, Playing, call, task
from workers import grpo
from workers.lib.environments import load
from workers.lib.harness import pulled
from workers.lib.harness.gateway import WORK
from workers.lib.harness.playing import HarnessPlayer
from workers.lib.policies import PolicyError
from workers.lib.program import StopFlag
from workers.lib.rollouts import Finished, Limits, play
from workers.lib.specs.harness import AgentHarness, AgentPull

TOKEN = "w" * 40
Worker = Callable[["Asked"], None]


class Asked:
    """What a worker asks, below the address of work."""

    def __init__(self, url: str) -> None:
        self.work = f"{url}{WORK}{TOKEN}"

    def take(self, wait_s: float = 30) -> Any:
        return self.post({"wait_s": wait_s}).json()["rollout"]

    def post(self, body: Any, rollout: str = "", url: str = "") -> httpx2.Response:
        place = url or (f"{self.work}/{rollout}" if rollout else self.work)
        return httpx2.post(place, json=body, timeout=60)

    def chat(self, rollout: dict, said: list[dict]) -> dict:
        body = {
            "messages": [*rollout["task"]["messages"], *said],
            "tools": rollout["task"]["tools"],
        }
        url = f"{rollout['variables']['FLYWHEEL_MODEL_URL']}/chat/completions"
        return self.post(body, url=url).json()["choices"][0]["message"]

    def fail(self, rollout: dict, **more: Any) -> None:
        """After it has asked the model: what never does is masked."""
        self.chat(rollout, [])
        done = self.post({"problem": "It broke."} | more, rollout["id"])
        assert done.status_code == 200

    def play(self, rollout: dict) -> list[dict]:
        """An agent with a loop of its own."""
        where, said = rollout["variables"], list[dict]()
        while not said or said[-1]["role"] == "tool":
            said.append(self.chat(rollout, said))
            for one in said[-1].get("tool_calls") or ():
                url = f"{where['FLYWHEEL_TOOLS_URL']}/{one['function']['name']}"
                done = self.post(json.loads(one["function"]["arguments"]), url=url).json()
                said.append({"role": "tool", "tool_call_id": one["id"], "content": done["output"]})
        return said


def played(
    worker: Worker,
    *answers: str,
    limits: Limits = Limits(seconds=60),  # noqa: B008
    **pull: Any,
) -> tuple[Finished, list[str]]:
    """An episode, and what the job said about its workers."""
    harness = AgentHarness(name="tidy", version="1", pull=AgentPull(token=TOKEN, **pull))
    found, said = list[Finished](), list[str]()
    player = HarnessPlayer(harness, notify=said.append)
    player.start()
    working = ThreadPoolExecutor().submit(worker, Asked(player.gateway.url))
    try:
        play(
            Playing(*answers),
            load(SPEC),
            [task(1)],
            limits,
            lambda index, sample, done: found.append(done),
            player=player,
        )
    finally:
        player.close()
    working.result()
    return found[0], said


def test_what_a_worker_does_is_scored_and_a_late_report_is_refused() -> None:
    def worker(ask: Asked) -> None:
        rollout = ask.take()
        assert rollout["task"].keys() == {"id", "messages", "tools"}, "nothing says what is right"
        assert ask.take(0) is None, "it is given out once"
        assert ask.post({"alive": True}, rollout["id"]).status_code == 200
        said = ask.play(rollout)
        assert ask.post({"messages": said}, rollout["id"]).status_code == 200
        assert ask.post({"messages": said}, rollout["id"]).status_code == 410

    done, said = played(worker, call(1), "Done.")
    assert (done.score.success, done.score.masked, said) == (True, False, [])


@pytest.mark.parametrize(("report", "stop"), [({}, "agent error"), ({"timed_out": True}, "time")])
def test_an_agent_that_fails_fails(report: dict, stop: str) -> None:
    def worker(ask: Asked) -> None:
        ask.fail(ask.take(), **report)

    done, _ = played(worker, call(1))
    assert (done.score.success, done.score.masked, done.stop_reason) == (False, False, stop)
    assert done.problem == "It broke."


def test_an_agent_that_is_too_slow_fails_and_its_worker_is_told() -> None:
    def worker(ask: Asked) -> None:
        rollout = ask.take()
        ask.chat(rollout, [])
        with suppress(httpx2.TransportError):  # the job may have ended by then
            while (status := ask.post({"alive": True}, rollout["id"]).status_code) == 200:
                pass
            assert status == 410

    done, _ = played(worker, call(1), limits=Limits(seconds=1))
    assert (done.stop_reason, done.score.masked) == ("time", False)


def test_waiting_for_a_worker_is_not_the_agents_time() -> None:
    def worker(ask: Asked) -> None:
        threading.Event().wait(2.0)
        ask.fail(ask.take())

    done, _ = played(worker, call(1), limits=Limits(seconds=1))
    assert done.stop_reason == "agent error"


@pytest.mark.parametrize("how", ["silent", "released"])
def test_a_lost_rollout_begins_anew_at_another_address(how: str) -> None:
    def worker(ask: Asked) -> None:
        first = ask.take()
        said = ask.play(first)
        if how == "released":
            ask.post({"released": True}, first["id"])
        second = ask.take()
        assert second["id"] != first["id"] and second["task"] == first["task"]
        tools = first["variables"]["FLYWHEEL_TOOLS_URL"]
        late = ask.post({"email_id": "00000001"}, url=f"{tools}/email_delete_email")
        assert late.status_code == 410, "nobody acts at the address of before"
        assert ask.post({"messages": said}, first["id"]).status_code == 410
        ask.post({"messages": ask.play(second)}, second["id"])

    lease = {"lease_s": 1} if how == "silent" else {}
    done, _ = played(worker, call(2), "Done.", call(1), "Done.", **lease)
    assert (done.score.success, done.score.masked) == (True, False)
    assert len(done.replies) == 2


def test_a_rollout_that_is_lost_twice_is_masked() -> None:
    def worker(ask: Asked) -> None:
        for _ in range(2):
            ask.post({"released": True}, ask.take()["id"])
        assert ask.take(0) is None

    done, _ = played(worker, call(1))
    assert done.score.mask_reason == pulled.LOST


def test_a_job_without_a_worker_says_so_and_goes_on_with_one() -> None:
    def worker(ask: Asked) -> None:
        threading.Event().wait(3.0)
        rollout = ask.take()
        threading.Event().wait(1.5)
        ask.fail(rollout)

    done, said = played(worker, call(1), noted_after_s=1)
    assert said[0] == pulled.NO_WORKER.format("tidy@1") and said[-1] == pulled.ASKED_AGAIN
    assert done.stop_reason == "agent error"


def test_a_job_without_a_worker_ends_at_last() -> None:
    with pytest.raises(PolicyError, match="No worker asks for this agent's rollouts"):
        played(lambda ask: None, call(1), noted_after_s=1, most_silent_s=2)


def test_what_is_not_work_is_refused() -> None:
    def worker(ask: Asked) -> None:
        rollout = ask.take()
        stranger = ask.work.replace(TOKEN, "x" * 40)
        assert ask.post({}, url=stranger).status_code == 404
        assert ask.post({}, url=f"{stranger}/{rollout['id']}").status_code == 404
        for body in ([], {"messages2": []}):
            assert ask.post(body, rollout["id"]).status_code == 400
        ask.post({"output": "Done."}, rollout["id"])

    played(worker, call(1))


def test_training_samples_with_workers_what_the_built_in_loop_would(
    talk: Callable[..., dict],
    events: Recorder,
    tmp_path: Path,
) -> None:
    """Over two steps, each with an event loop of its own."""
    harness = {"name": "two-turns", "version": "1", "pull": {"token": TOKEN}}
    pulled, own = (
        grpo.Trainer(typed(talk(**fields), "grpo"), events, StopFlag())
        for fields in ({"harness": harness}, {})
    )
    pulled.player.start()
    ask, ended = Asked(pulled.player.gateway.url), threading.Event()

    def worker() -> None:
        while not ended.is_set():
            if rollout := ask.take(1):
                (file := tmp_path / rollout["id"]).write_text(json.dumps(rollout["task"]))
                variables = os.environ | rollout["variables"] | {"FLYWHEEL_TASK": str(file)}
                command = [sys.executable, str(AGENT), "plain"]
                done = subprocess.run(command, env=variables, capture_output=True, check=True)
                said = json.loads(done.stdout.splitlines()[-1])
                ask.post({"messages": said["messages"]}, rollout["id"])

    with ThreadPoolExecutor() as threads:
        working = threads.submit(worker)
        try:
            for step in range(2):
                groups = pulled.rollout(step)
                assert reasons(groups) == {""}
                assert sampled(groups) == sampled(own.rollout(step))
        finally:
            ended.set()
            working.result()
            pulled.player.close()
