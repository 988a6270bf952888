"""The demo's agent against the real API: what it logs, and that a server that is away costs
nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import httpx2
import pytest
from django.db.models import QuerySet

from apps.trajectories.models import Trajectory
from tests import warm
from tests.factories import make_key, make_project
from tests.workers.conftest import Recorder, typed
from workers import demo_agent
from workers.demo_agent import feedback, main, post
from workers.lib.engines import Output, Prompt, Sampling
from workers.lib.environments.requests import make_requests
from workers.lib.policies import EnginePolicy
from workers.lib.program import StopFlag
from workers.lib.specs.demo_agent import Request
from workers.lib.verifiers import Score

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_agent.time, "sleep", lambda seconds: None)


def client(answers: list[Any], seen: list[str]) -> httpx2.Client:
    """Answers one after the other: a status, or an exception of the transport."""

    def handle(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.url.path)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return httpx2.Response(answer)

    return httpx2.Client(base_url="http://server", transport=httpx2.MockTransport(handle))


@pytest.mark.parametrize("away", [503, httpx2.ConnectError("refused"), httpx2.ReadTimeout("slow")])
def test_it_sends_again_until_the_server_is_back(away: Any) -> None:
    seen: list[str] = []
    post(client([away, away, 201], seen), "/api/v1/trajectories/", {})
    assert seen == ["/api/v1/trajectories/"] * 3


def test_it_gives_up_after_its_tries_and_at_once_on_a_refusal() -> None:
    seen: list[str] = []
    with pytest.raises(ConnectionError, match="did not answer after 40 tries"):
        post(client([502] * 40, seen), "/x", {})
    assert len(seen) == 40
    with pytest.raises(httpx2.HTTPStatusError, match="401"):
        post(client([401], seen), "/x", {})


def test_a_user_says_what_was_wanted_only_where_it_failed() -> None:
    request = Request(
        request="Close ticket 1.", expected={"tool": "tickets.close", "args": {"id": 1}}, group="g"
    )
    assert feedback(request, Score(1.0, success=True), 3) == {
        "outcome": {"status": "success"},
        "by": "user",
    }
    said = feedback(request, Score(-1.0), 3)
    assert (said["outcome"]["status"], said["corrected"], said["message_index"]) == (
        "failure",
        request.expected,
        3,
    )


class Answering:
    """An engine that answers the first request rightly, the second with a wrong tool, and the
    others in words.
    """

    def __init__(self, requests: list[dict]) -> None:
        right = json.dumps(requests[0]["expected"])
        self.answers = [
            right,
            '{"tool": "tickets.explode", "args": {}}',
            *["Sure, done!"] * (len(requests) - 2),
        ]

    def generate(
        self, prompts: list[Prompt], sampling: Sampling, show: object = None
    ) -> Iterator[tuple[int, list[Output]]]:
        for index, _ in enumerate(prompts):
            yield index, [Output(self.answers[index], [], [], 20, 5, 12.5, False)]


@pytest.fixture
def logged(
    live_server: Any,
    make_spec: Callable[..., dict],
    events: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> QuerySet:
    """Four requests answered and logged through the API of a running server."""
    project, requests = make_project(), make_requests(0, 4)
    monkeypatch.setattr(
        demo_agent, "open_policy", lambda *_: EnginePolicy(Answering(requests), Sampling())
    )
    spec = make_spec(
        requests=requests,
        api={"url": live_server.url, "key": make_key(project)},
        agent={"name": "workplace-assistant", "version": "1"},
        model_name="tiny",
        id_prefix="demo-0",
    )
    main(typed(spec, "demo_agent"), events, StopFlag())
    main(
        typed(spec, "demo_agent"), events, StopFlag()
    )  # a second time: the ids make a repeat harmless
    return Trajectory.objects.filter(project=project).order_by("external_id")


@pytest.mark.django_db(transaction=True)
def test_it_logs_every_run_once_with_its_call_and_its_outcome(
    logged: QuerySet, events: Recorder
) -> None:
    right, wrong, *words = logged
    assert [row.external_id for row in logged] == [f"demo-0-{number:04d}" for number in range(4)]
    assert [row.outcome_status for row in logged] == ["success", "failure", "failure", "failure"]
    assert right.messages[-2]["tool_calls"] and right.messages[-1]["role"] == "tool"
    assert "there is no tool tickets.explode" in wrong.messages[-1]["content"]
    assert all(row.messages[-1] == {"role": "assistant", "content": "Sure, done!"} for row in words)
    assert len(right.tools) == 8 and right.metadata["group"]
    assert [row["done"] for row in events.rows("progress")][:5] == [0, 1, 2, 3, 4]
    assert events.rows()[-1]["metrics"] == {"sent": 4}


@pytest.mark.proof
@pytest.mark.django_db(transaction=True)
def test_two_processes_log_every_run_once(
    live_server: Any, make_spec: Callable[..., dict], tmp_path: Path
) -> None:
    project, path = make_project(), tmp_path / "spec.json"
    spec = make_spec(
        requests=make_requests(0, 4),
        api={"url": live_server.url, "key": make_key(project)},
        agent={"name": "workplace-assistant", "version": "1"},
        model_name="tiny",
        id_prefix="demo-0",
    )
    del spec["tasks"]
    path.write_text(json.dumps(spec))
    agent = warm.Program(
        ["workers.demo_agent", str(path)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "2", "FLYWHEEL_EVENTS_FD": ""},
        stdout=PIPE,
        stderr=PIPE,
        text=True,
    )
    output, said = agent.communicate()
    assert agent.returncode == 0, said
    logged = Trajectory.objects.filter(project=project).order_by("external_id")
    assert [row.external_id for row in logged] == [f"demo-0-{number:04d}" for number in range(4)]
    events = [json.loads(line) for line in output.splitlines()]
    assert [row["done"] for row in events if row["type"] == "progress"] == [0, 1, 2, 3, 4]
