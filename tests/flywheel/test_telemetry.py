"""Traces of Flywheel itself: off they cost nothing; on they say what was done, and no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, connection
from django.test import RequestFactory

from apps.core import outbox
from apps.core.models import Project
from flywheel import celery as celery_module
from flywheel import logs, telemetry
from flywheel.logs import with_request_id
from tests.factories import key_headers, row

VARIABLES = ("OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_PROTOCOL")


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


# Off


def test_an_endpoint_of_agents_alone_turns_nothing_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:8000")
    assert not telemetry.is_wanted() and telemetry.problem() == ""


def test_off_it_imports_and_wraps_nothing() -> None:
    program = (
        "import sys, django\n"
        "from flywheel import telemetry\n"
        "django.setup()\n"
        "from django.core.wsgi import get_wsgi_application\n"
        "from flywheel.celery import app\n"
        "import apps.serving.endpoint\n"
        "application = get_wsgi_application()\n"
        "telemetry.begin('web')\n"
        "assert telemetry.traced(application) is application\n"
        "assert 'get_response' not in vars(application)\n"
        "assert telemetry.queries([b'x']) is telemetry.NOTHING\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk.trace',"
        " 'opentelemetry.exporter', 'flywheel.tracing'))])\n"
    )
    given = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    environment = given | {"DJANGO_SETTINGS_MODULE": "flywheel.settings"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("OTEL_SDK_DISABLED", "true", ""),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf only, not as grpc"),
    ],
)
def test_what_is_not_possible_is_said(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv(variable, value)
    found = telemetry.problem()
    assert says in found and bool(says) == bool(found)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.delitem(sys.modules, "flywheel.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert "is not installed" in telemetry.problem() and "telemetry.txt" in telemetry.problem()


def test_a_message_carries_the_request_that_posted_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    fake = SimpleNamespace(send_task=lambda name, **given: sent.append(given))
    monkeypatch.setattr(outbox, "current_app", fake)
    posted = outbox.Outbox()
    monkeypatch.setattr(outbox, "_outbox", posted)
    with logs.about(request="r-1"):
        outbox.post("core.reap", expires_s=60)
    assert posted.flush(60)
    assert sent[0]["headers"] == {"request": "r-1"}


@contextmanager
def run_task(name: str, args: tuple[Any, ...], **headers: str) -> Iterator[None]:
    """As Celery does."""
    task = SimpleNamespace(name=name, request=SimpleNamespace(**headers))
    celery_module._enter(task=task, args=args)
    yield
    celery_module._leave(state="SUCCESS", retval=None)


def test_the_lines_of_a_task_name_the_request_that_asked_for_it() -> None:
    with run_task("core.reap", (), request="r-1"):
        assert logs.current()["request"] == "r-1"
    assert "request" not in logs.current()


# On


@pytest.fixture
def spans() -> Iterator[Any]:
    pytest.importorskip("opentelemetry.sdk", reason="make setup installs it")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from flywheel import tracing

    exporter = InMemorySpanExporter()
    tracing.start("web", SimpleSpanProcessor(exporter))
    telemetry._tracing = tracing
    yield exporter.get_finished_spans
    telemetry._tracing = None
    tracing.end()


@pytest.fixture(autouse=True)
def _keep_the_connection() -> Iterator[None]:
    """As Django's test client does."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


def answered(path: str, **given: Any) -> int:
    application = with_request_id(telemetry.traced(get_wsgi_application()))
    method = given.pop("method", "GET")
    request = RequestFactory().generic(method, path, **given)
    statuses: list[int] = []
    list(application(request.environ, lambda status, *_: statuses.append(int(status[:3]))))
    return statuses[0]


@pytest.mark.django_db
def test_a_request_is_a_span_with_its_queries_and_nothing_that_is_secret(
    spans: Any, project: Project
) -> None:
    headers = key_headers(project)
    status = answered(
        "/api/v1/trajectories/",
        method="POST",
        data=json.dumps(row(name="hidden-in-body")),
        content_type="application/json",
        HTTP_X_REQUEST_ID="r-7",
        HTTP_COOKIE="hidden-in-cookie",
        **headers,
    )
    assert status == 201
    *queries, request = spans()
    answered("/api/v1/failures/?mode=hidden-in-query", **headers)
    assert spans()[-1].name == "GET /api/v1/failures/"
    assert request.name == "POST /api/v1/trajectories/"
    assert request.attributes["flywheel.request"] == "r-7"
    assert request.attributes["flywheel.project"] == project.slug
    assert request.attributes["http.response.status_code"] == 201
    assert len(queries) > 2
    assert all(one.parent.span_id == request.context.span_id for one in queries)
    assert any(one.name.startswith("INSERT ") for one in queries)
    written = json.dumps([one.to_json() for one in spans()])
    assert "hidden" not in written and headers["HTTP_AUTHORIZATION"].split()[1] not in written


@pytest.mark.django_db
def test_what_stands_in_a_query_itself_is_left_out(spans: Any, project: Project) -> None:
    from flywheel import tracing

    with telemetry.task("core.run_job", ("evals.EvalRun", "1"), {}), connection.cursor() as cursor:
        cursor.execute("SELECT 'hidden', $$hidden$$, %s FROM core_project", ["hidden"])
        for _ in range(2 * tracing.MOST_QUERIES):
            cursor.execute("SELECT 1")
    query, *_, job = spans()
    assert query.attributes["db.query.text"] == "SELECT ?, ?, %s FROM core_project"
    assert query.attributes["db.collection.name"] == "core_project"
    assert len(spans()) == tracing.MOST_QUERIES + 1
    assert job.attributes["flywheel.queries"] == 2 * tracing.MOST_QUERIES + 1
    assert job.name == "job EvalRun"


def test_a_job_belongs_to_the_trace_of_the_request_that_posted_it(spans: Any) -> None:
    with telemetry.task("core.run_job", ("evals.EvalRun", "1"), {}), logs.about(request="r-9"):
        headers = telemetry.carried()
    assert headers["request"] == "r-9"
    with (
        run_task("core.run_job", ("evals.EvalRun", "2"), **headers),
        logs.about(job="2", project="mine"),
    ):
        pass
    with run_task("trajectories.digest", (), **headers):
        pass
    first, job, task = spans()
    assert {one.context.trace_id for one in spans()} == {first.context.trace_id}
    assert job.parent.span_id == task.parent.span_id == first.context.span_id
    found = {name: job.attributes[f"flywheel.{name}"] for name in ("request", "job", "project")}
    assert found == {"request": "r-9", "job": "2", "project": "mine"}


def test_what_beat_sends_is_no_span(spans: Any) -> None:
    with run_task("core.reap", ()):
        pass
    assert spans() == ()


@pytest.mark.django_db
def test_spans_that_flywheel_sends_to_itself_cause_no_others(
    spans: Any, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[dict[str, str]] = []
    post = outbox._outbox
    monkeypatch.setattr(post, "add", lambda message: posted.append(message.headers))
    status = answered(
        "/api/v1/trajectories/",
        method="POST",
        data=json.dumps(row(name="a")),
        content_type="application/json",
        HTTP_X_FLYWHEEL_TELEMETRY="1",
        **key_headers(project),
    )
    assert status == 201
    for headers in (*posted, telemetry.carried()):
        with run_task("trajectories.digest", (), **headers):
            assert "traceparent" not in telemetry.carried() or telemetry.carried()[
                "traceparent"
            ].endswith("-00")
    assert spans() == ()


def test_an_error_is_named_and_not_quoted(spans: Any) -> None:
    with (
        pytest.raises(ValueError, match="hidden"),
        telemetry.task("core.run_job", ("evals.EvalRun", "1"), {}),
    ):
        raise ValueError("hidden")
    (job,) = spans()
    assert job.attributes["error.type"] == "ValueError" and "hidden" not in job.to_json()


def test_it_says_which_service_it_is_unless_the_environment_does(
    spans: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flywheel import tracing

    assert tracing.resource("web").attributes["service.name"] == "flywheel"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    assert tracing.resource("web").attributes["service.name"] == "ours"
    assert tracing.resource("web").attributes["flywheel.process"] == "web"


def test_what_it_sends_says_whose_it_is_beside_the_operators_headers(
    spans: Any, monkeypatch: pytest.MonkeyPatch, collected: list[dict[str, str]]
) -> None:
    from flywheel import tracing

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20key")
    with telemetry.task("core.run_job", ("evals.EvalRun", "1"), {}):
        pass
    tracing.exporter().export(spans())
    (headers,) = collected
    assert {tracing.OURS.lower(): "1", "authorization": "Bearer key"}.items() <= headers.items()


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, str]]]:
    """The headers of what a collector on this machine is sent."""
    got: list[dict[str, str]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append({name.lower(): value for name, value in self.headers.items()})
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        yield got
        server.shutdown()
