"""The demo's last step: the promoted model behind the endpoint, on our own server. README's curl
talks to it, and so does the demo's agent, whose requests become trajectories with what its users
said."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from django.utils import timezone

from apps.core.models import Project
from apps.demo.wheel import curl_command
from apps.serving import storing
from apps.serving.limits import Limits
from apps.serving.routes import Backend, Key, Lane, Route
from apps.serving.spool import segments
from apps.trajectories import assembly, traces
from apps.trajectories.models import Trajectory, with_content
from tests.factories import make_key, make_project
from tests.serving.conftest import SECRET, Running
from tests.test_readme import curl_to
from tests.workers.conftest import Recorder, make_tiny_model, typed
from tests.workers.test_model_server import Running as ModelServer
from workers import demo_agent
from workers.lib.environments.requests import make_requests
from workers.lib.outgoing import check_url
from workers.lib.policies import PolicyError
from workers.lib.program import StopFlag


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    folder = tmp_path_factory.mktemp("served")
    served = ModelServer(make_tiny_model(folder / "model"), folder)
    try:
        yield served
    finally:
        served.process.kill()
        served.process.wait()


@pytest.fixture
def project(running: Running, model: ModelServer, db: None) -> Project:
    """One whose channel `production` is what the model's server has."""
    made = make_project()
    backend = Backend(
        "production",
        check_url(f"{model.root}/v1", allow_private=True),
        "base",
        allow_private=True,
        speaks_both=True,
    )
    route = Route("production", (Lane("tiny-v1", 1, (backend,)),), 1)
    running.keys(Key(1, made.pk, "fw_test", "p", Limits()))
    running.tables.current = replace(
        running.tables.current, routes={made.pk: {"production": route}}
    )
    return made


@pytest.mark.parametrize("source", ["README", "demo"])
def test_the_curl_of_readme_and_demo_talks_to_production(
    running: Running, project: Project, tmp_path: Path, source: str
) -> None:
    key = tmp_path / "var" / "demo" / "key"
    key.parent.mkdir(parents=True)
    key.write_text(SECRET)
    if source == "README":
        command = (
            curl_to("/v1/chat/completions").replace("http://127.0.0.1:8001", running.url).strip()
        )
    else:
        command = curl_command(running.url, key)
    assert '-H "Content-Type: application/json"' in command
    done = subprocess.run(
        ["sh", "-c", f"{command} --silent --fail"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer["model"] and answer["choices"][0]["message"]["role"] == "assistant"
    (record,) = running.records(1)
    assert (record.channel, record.version, record.status) == ("production", "tiny-v1", 200)


def ask(
    folder: Path,
    model: ModelServer,
    running: Running,
    api: dict,
    requests: list[dict],
    channel: str,
) -> Recorder:
    """What the agent reports."""
    events = Recorder(folder / "events.jsonl")
    harness = {"system_prompt": "One JSON call.", "max_new_tokens": 6, "temperature": 1.0}
    spec = {
        "model": {"base": str(model.model)},
        "engine": {"kind": "transformers"},
        "requests": requests,
        "api": api,
        "environment": {
            "kind": "builtin",
            "name": "workplace",
            "harness": harness,
            "verifier": {"kind": "tool_call"},
        },
        "agent": {"name": "workplace-assistant"},
        "endpoint": {"url": running.url, "key": SECRET},
        "model_name": channel,
        "id_prefix": "",
    }
    demo_agent.main(typed(spec, "demo_agent"), events, StopFlag())
    return events


def stored(running: Running, number: int) -> list[Trajectory]:
    running.records(number)
    for path in segments(running.folder):
        storing.store_segment(path)
    while assembly.step(timezone.now() + traces.PATIENCE):
        pass
    return with_content(list(Trajectory.objects.all()))


@pytest.mark.django_db(transaction=True)
def test_the_openai_client_by_both_apis_whole_and_streamed(
    running: Running, project: Project
) -> None:
    client = running.client(default_headers={"X-User-Id": "ana"})
    given: dict[str, Any] = {
        "model": "production",
        "instructions": "Answer.",
        "max_output_tokens": 6,
        "temperature": 0,
    }
    whole = client.responses.create(**given, input="Close ticket 42.")
    *_, last = client.responses.create(**given, input="Close ticket 43.", stream=True)
    system, user = (
        {"role": role, "content": text}
        for role, text in (("system", "Answer."), ("user", "Close ticket 44."))
    )
    chunks = list(
        client.chat.completions.create(
            model="production", messages=[system, user], max_tokens=6, temperature=0, stream=True
        )  # type: ignore[list-item]
    )
    assert all(chunk.choices for chunk in chunks), (
        "the count of tokens that the endpoint asked for is its own"
    )
    with pytest.raises(openai.BadRequestError, match="It stores no responses"):
        client.responses.create(**given, input="And 45?", previous_response_id=whole.id)
    said = {
        "Close ticket 42.": whole.output_text,
        "Close ticket 43.": last.response.output_text,
        "Close ticket 44.": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
    }  # type: ignore[union-attr]
    rows = {row.messages[1]["content"]: row for row in stored(running, 4)}
    for request, answer in said.items():
        row = rows[request]
        assert [message["role"] for message in row.messages] == ["system", "user", "assistant"]
        assert (row.messages[0]["content"], row.messages[2]["content"]) == ("Answer.", answer)
        assert (
            (row.model, row.user_id) == ("tiny-v1", "ana")
            and row.input_tokens
            and row.output_tokens
        )
    assert "request-refused" in rows["And 45?"].tags and rows["And 45?"].outcome_status != "failure"


@pytest.mark.django_db(transaction=True)
def test_the_agents_requests_become_trajectories_of_the_version_with_what_users_said(
    running: Running, project: Project, model: ModelServer, live_server: Any, tmp_path: Path
) -> None:
    requests = make_requests(3, 6)
    api = {"url": live_server.url, "key": make_key(project)}
    names = ask(tmp_path, model, running, api, requests, "production").rows("result")[0][
        "trajectories"
    ]
    rows = {row.external_id: row for row in stored(running, 6)}
    assert set(rows) == set(names) and len(names) == 6
    for name, request in zip(names, requests, strict=True):
        row = rows[name]
        assert (row.model, row.agent_version, row.outcome_status) == (
            "tiny-v1",
            "tiny-v1",
            "failure",
        )
        assert any(message["content"] == request["request"] for message in row.messages)
        assert row.user_id.startswith("user-")


def test_a_channel_that_is_not_served_ends_the_agent_with_what_the_endpoint_said(
    running: Running, project: Project, model: ModelServer, tmp_path: Path
) -> None:
    with pytest.raises(PolicyError, match="staging"):
        ask(
            tmp_path,
            model,
            running,
            {"url": running.url, "key": "none"},
            make_requests(3, 2),
            "staging",
        )
