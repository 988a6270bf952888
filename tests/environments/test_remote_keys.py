"""The key of a remote environment: named, never stored, sent only where it may go."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import AuditEvent, Project, Role
from apps.environments.actions import connect_remote
from apps.environments.clients import job_spec, load_for
from apps.environments.models import Environment
from apps.evals.jobs import evaluation_spec
from tests.environments.gym import called, make_gym
from tests.factories import make_base, make_eval_run, make_eval_set, make_member
from workers.lib.keys import RefusedKey
from workers.lib.typed import plain

pytestmark = pytest.mark.django_db
SECRET = "sk-very-secret"


class Server(ThreadingHTTPServer):
    """A resources server that wants the key and keeps what it was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.keys.append(self.headers.get("Authorization"))
        known = self.server.keys[-1] == f"Bearer {SECRET}"
        said = json.dumps(json.loads(body) | {"reward": 1.0}).encode()
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture(autouse=True)
def _rules(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    settings.FLYWHEEL_OUTGOING_KEYS = ["GYM_KEY@127.0.0.1", "ANY_KEY", "FAR_KEY@gym.example.org"]
    for name in ("GYM_KEY", "ANY_KEY", "FAR_KEY", "DATABASE_PASSWORD"):
        monkeypatch.setenv(name, SECRET)


def logged_in(project: Project, role: Role) -> Client:
    client = Client()
    client.force_login(make_member(project, role))
    return client


def connected(project: Project, server: Server) -> Environment:
    return connect_remote(
        project=project, slug="far", url=server.url, api_key_env="GYM_KEY", by=None
    )


def form(server: Server, variable: str) -> dict[str, Any]:
    return {
        "slug": "far",
        "url": server.url,
        "api_key_env": variable,
        "timeout_s": 5,
        "success_at": 1,
        "max_turns": 3,
        "max_new_tokens": 9,
        "temperature": 0.1,
    }


def test_a_remote_one_is_connected_by_a_variable_s_name(
    project: Project, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    member = logged_in(project, Role.ENGINEER)
    with caplog.at_level(logging.DEBUG):
        tested = member.post(
            reverse("environments:test_connection", args=[project.slug]), form(server, "GYM_KEY")
        )
        member.post(reverse("environments:connect", args=[project.slug]), form(server, "GYM_KEY"))
    made = project.environments.get()
    page = member.get(reverse("environments:detail", args=[project.slug, made.pk])).content.decode()
    assert "A resources server answers" in tested.content.decode() and set(server.keys) == {
        f"Bearer {SECRET}"
    }
    assert made.config["api_key_env"] == "GYM_KEY" and "GYM_KEY" in page
    kept = [made.as_spec(), job_spec(made), list(AuditEvent.objects.values("action", "detail"))]
    assert SECRET not in page + caplog.text + json.dumps(kept, default=str)


def test_the_variable_is_part_of_the_version(project: Project, server: Server) -> None:
    first = connected(project, server)
    second = connect_remote(
        project=project, slug="far", url=server.url, api_key_env="ANY_KEY", by=None
    )
    assert connected(project, server) == first and second.version == 2 and first.hash != second.hash


@pytest.mark.parametrize(
    ("role", "variable", "said"),
    [
        (Role.ENGINEER, "", "requires a key"),
        (Role.ENGINEER, "FAR_KEY", "may go to gym.example.org only"),
        (Role.ENGINEER, "ANY_KEY", "only an operator"),
        (Role.OPERATOR, "ANY_KEY", "A resources server answers"),
        (Role.OPERATOR, "DATABASE_PASSWORD", "may not be read"),
    ],
)
def test_who_may_send_what_where(
    project: Project, server: Server, role: Role, variable: str, said: str
) -> None:
    client = logged_in(project, role)
    page = client.post(
        reverse("environments:test_connection", args=[project.slug]), form(server, variable)
    )
    client.post(reverse("environments:connect", args=[project.slug]), form(server, variable))
    allowed = "answers" in said
    assert said in page.content.decode() and project.environments.exists() == allowed
    assert (f"Bearer {SECRET}" in server.keys) == allowed


def test_the_served_environment_sends_the_key(project: Project, server: Server) -> None:
    gym = make_gym(connected(project, server))
    assert gym.verify(called(text="Done."))["reward"] == 1.0 and set(server.keys) == {
        f"Bearer {SECRET}"
    }


def test_a_variable_that_is_not_allowed_any_more_is_refused(
    project: Project, server: Server, settings: Any, data_dir: Path
) -> None:
    environment = connected(project, server)
    load_for(environment)
    run = make_eval_run(make_eval_set(project), make_base(project, data_dir), environment)
    run.spec["engine"] = {"kind": "transformers", "asked": "auto"}
    run.samples.all().delete()  # a run that is to start
    assert SECRET not in json.dumps(plain(evaluation_spec(run)))
    settings.FLYWHEEL_OUTGOING_KEYS = ["GYM_KEY@gym.example.org"]
    for ask in (
        lambda: job_spec(environment),
        lambda: evaluation_spec(run),
        lambda: load_for(environment),
    ):
        with pytest.raises(RefusedKey, match=r"may go to gym.example.org only"):
            ask()
