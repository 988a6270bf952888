"""Whom an environment's verifier may ask in a job: the project's judge, where the installation
allows its key.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from apps.core.models import Project
from apps.environments.actions import save_environment, save_verifier
from apps.environments.clients import completer, job_spec, judge_of
from apps.environments.models import Environment, EnvironmentKind
from apps.failures.judge import rubrics
from apps.failures.judge.client import ServerError
from tests.environments.gym import called, make_gym
from tests.factories import admin_of, make_environment, make_project
from tests.failures.judge_server import running
from workers.lib.specs.engines import ModelServer
from workers.lib.specs.environment import Clients

pytestmark = pytest.mark.django_db
URL = "http://127.0.0.1:9/v1"


@pytest.fixture(autouse=True)
def _rules(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS, settings.FLYWHEEL_OUTGOING_KEYS = True, ["SOME_KEY"]
    monkeypatch.setenv("SOME_KEY", "k")


def judged(project: Project, spec: dict | None = None) -> Environment:
    by = admin_of(project)
    spec = spec or {
        "kind": "compose",
        "parts": [{"name": "kind", "verifier": {"kind": "judge", "rubric": "Kind?"}}],
    }
    verifier = save_verifier(project=project, name="judged", spec=spec, by=by)
    return save_environment(
        project=project,
        slug="judged",
        kind=EnvironmentKind.SINGLE_TURN,
        harness={},
        verifier=verifier,
        by=by,
    )


def switch_on(project: Project, key: str = "SOME_KEY", url: str = URL) -> None:
    fields = {
        "text": "x",
        "base_url": url,
        "model": "m",
        "key_variable": key,
        "usd_per_day": 1.0,
    }
    made = rubrics.save_version(project=project, fields=fields, by=admin_of(project))
    assert made
    rubrics.switch(project=project, version=made.version, by=admin_of(project))


def test_a_judged_environment_names_the_judge_and_never_the_key() -> None:
    project = make_project()
    switch_on(project)
    spec = job_spec(judged(project))
    judge = ModelServer(base_url=URL, model="m", api_key_env="SOME_KEY", allow_private=True)
    assert spec.clients == Clients(judge=judge)


def test_without_need_or_without_a_judge_there_is_none() -> None:
    project = make_project()
    assert job_spec(judged(project)).clients == Clients()
    switch_on(project)
    assert job_spec(make_environment(project)).clients == Clients()


def test_a_variable_that_is_not_allowed_any_more_is_refused(settings: Any) -> None:
    project = make_project()
    switch_on(project)
    settings.FLYWHEEL_OUTGOING_KEYS = []
    with pytest.raises(ServerError, match="may not be read"):
        job_spec(judged(project))


@pytest.mark.parametrize("allowed", [True, False])
def test_a_reward_model_inside_the_network_is_called_only_where_that_is_allowed(
    settings: Any, allowed: bool
) -> None:
    """By the web process, over the protocol."""
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = allowed
    asked: list[str] = []

    class Rewards(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"rewards": [0.75]}')

    with ThreadingHTTPServer(("127.0.0.1", 0), Rewards) as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        url = f"http://127.0.0.1:{server.server_port}/score"
        scored = make_gym(judged(make_project(), {"kind": "reward_model", "url": url})).verify(
            called(text="Hello.")
        )
        server.shutdown()
    assert asked == ["/score"] * allowed and scored.get("mask_sample") is not allowed
    assert (
        scored["reward"] == 0.75
        if allowed
        else "FLYWHEEL_ALLOW_PRIVATE_URLS" in scored["failure_reason"]
    )


def test_a_grader_s_request_reaches_the_judge_s_server_whole() -> None:
    project = make_project()
    form = {"type": "json_schema", "json_schema": {"name": "grade", "schema": {"type": "object"}}}
    body = {
        "model": "grader-1",
        "messages": [{"role": "user", "content": "Grade."}],
        "response_format": form,
        "temperature": 0.3,
    }
    with running() as server:
        switch_on(project, key="", url=server.url)
        answer = completer(judge_of(project))(body)
    assert (
        server.seen == [body]
        and answer["model"] == "grader-1"
        and answer["usage"]["total_tokens"] == 1100
    )
