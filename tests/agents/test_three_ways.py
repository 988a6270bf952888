"""The same right agent, which runs its own loop with the tools of its sample's address by REST, in
all three ways: in an environment with a state, every sample is right; and none of a wrong agent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from apps.core.models import JobState
from apps.evals import rollouts, traces
from apps.evals.models import EvalRun, SampleRollout, Split
from apps.evals.submission import submit_eval
from apps.registry.actions import register_agent
from apps.registry.models import Reach
from tests.amounts import amount
from tests.evals import office
from tests.evals.test_answers import Agent, work
from tests.factories import admin_of, make_project
from tests.registry.model_server import serving

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("warm_jobs")]
N = amount(3, 80)
VERSION = "3f2a9c1"


def act(messages: list[dict], url: str, shift: int = 0) -> str:
    """Throws away the mail that is asked for; with a `shift`, another one."""
    number = int(re.findall(r"\d{8}", messages[-1]["content"])[-1]) + shift
    answer = httpx2.post(f"{url}/{office.DELETE}", json={"email_id": f"{number:08}"}, timeout=60)
    assert answer.status_code == 200 and not answer.json()["is_error"]
    return "Done."


@contextmanager
def served(shift: int) -> Iterator[str]:
    """The address of the agent."""

    def answer(body: dict) -> tuple[int, dict]:
        return 200, {"output": act(body["messages"], body["metadata"]["flywheel_tools"], shift)}

    with serving({("POST", "/v1/chat/completions"): answer}) as server:
        yield server.base


class Office:
    def __init__(self, url: str) -> None:
        self.project = make_project()
        self.set = office.make_deletions(self.project, N)
        self.environment, self.url = office.make_office(self.project), url

    def over_http(self, shift: int = 0) -> EvalRun:
        by = admin_of(self.project)
        with served(shift) as base:
            version = register_agent(
                project=self.project,
                name="http-agent",
                agent_version=f"{VERSION}-{shift}",
                by=by,
                reached_by=Reach.HTTP,
                base_url=base,
            )
            run = submit_eval(
                model_version=version,
                by=by,
                project=self.project,
                eval_set=self.set,
                split=Split.REGRESSION,
                environment=self.environment,
                samples_per_task=1,
            )
            return work(run)

    def elsewhere(self, way: str, shift: int = 0) -> EvalRun:
        version = f"{VERSION}-{shift}"
        agent = Agent(
            self.project,
            self.set,
            self.environment,
            version,
            samples_per_task=1,
            split="regression",
            agent={"name": f"{way}-agent", "version": version, "reached_by": way},
        )
        rows = [
            (task, act(task["messages"], self.reachable(task["rollouts"][0]["tools"]), shift))
            for task in agent.tasks()
        ]
        if way == "ci":
            agent.send([{"task": task["id"], "output": said} for task, said in rows])
            return work(agent.run)
        for task, said in rows:
            words = [*task["messages"], {"role": "assistant", "content": said}]
            row = {"id": task["id"], "messages": words, "eval": {"run": str(agent.run.pk)}}
            row["eval"] |= {"task": task["id"], "sample": 0}
            row["agent"] = {"name": f"{way}-agent", "version": version}
            assert agent.post("api:trajectories", body=row).status_code < 300
        assert traces.settle() == N
        return work(agent.run)

    def reachable(self, link: str) -> str:
        """Of Django's test client, which asks another host than that of the live server."""
        return self.url + link[link.index(rollouts.PATH) :]


@pytest.fixture
def desk(live_server: Any, data_dir: Path, settings: Any) -> Office:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS, settings.FLYWHEEL_TRACES_SETTLE_S = True, 0
    settings.FLYWHEEL_URL = live_server.url
    return Office(live_server.url)


def check(run: EvalRun, success: float) -> None:
    assert (run.state, run.error) == (JobState.SUCCEEDED, "")
    counts = run.result["metrics"]["counts"]
    assert (counts["samples"], counts["masked"], counts["called"]) == (N, 0, N)
    assert run.result["metrics"]["success"]["mean"] == success
    rows = SampleRollout.objects.filter(run=run)
    assert list(rows.values_list("calls", "state").distinct()) == [(1, None)]
    assert rows.count() == N and not rows.filter(ended_at=None).exists()


@pytest.mark.more
def test_all_are_right_over_http(desk: Office) -> None:
    check(desk.over_http(), 1.0)


@pytest.mark.more
@pytest.mark.parametrize("way", ["ci", "traces"])
def test_all_are_right_from_elsewhere(desk: Office, way: str) -> None:
    check(desk.elsewhere(way), 1.0)


@pytest.mark.proof
def test_a_wrong_agent_is_wrong_in_all_ways(desk: Office) -> None:
    check(desk.over_http(shift=1), 0.0)
    check(desk.elsewhere("ci", shift=1), 0.0)
    check(desk.elsewhere("traces", shift=1), 0.0)
