"""One list of processes: what `up` starts on one machine, docker/compose.yaml starts in
containers.
"""

from __future__ import annotations

import json
import logging
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from celery import current_app
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from apps.core.kinds import job_models, kind_of
from flywheel.logs import Line, NotHealth, about, note, readable, with_request_id
from flywheel.processes import (
    LIGHT,
    NAMES,
    OPTIONAL,
    PARTS,
    STOP_SIGNAL,
    THREADED,
    WORKERS,
    command,
)
from flywheel.settings import env_service
from flywheel.supervisor import Stack

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
PROGRAM = ["python", "-m", "flywheel.processes"]
TARGETS = {"eval": "worker", "train": "worker", "serve": "serve"}


@pytest.fixture
def services() -> dict[str, dict[str, Any]]:
    """Of compose.yaml, those that run Flywheel for good, by the process they run."""
    found = COMPOSE["services"].values()
    return {s["command"][3]: s for s in found if s.get("command", [])[:3] == PROGRAM}


def test_compose_runs_all_processes(services: dict[str, dict]) -> None:
    assert set(services) == set(NAMES)
    for name, service in services.items():
        assert service["command"] == [*PROGRAM, name]
        assert service.get("stop_signal", "SIGTERM") == STOP_SIGNAL.get(name, signal.SIGTERM).name
        assert service["build"]["target"] == TARGETS.get(name, "web")
        assert ("profiles" in service) == (name in OPTIONAL)
        assert {"postgres", "valkey", "migrate"} == set(service["depends_on"])


def test_up_runs_what_the_containers_run(data_dir: Path) -> None:
    """In fewer processes: the endpoint's container stores its answers, light parts share one."""
    parts = Counter(program.name for program in Stack("127.0.0.1", 1).programs)
    assert parts == PARTS
    assert {*PARTS} - {"storing", "light"} | {*LIGHT, "beat"} == set(NAMES)
    for queue, at_once in WORKERS.items():
        assert queue in LIGHT or PARTS[queue] == (1 if queue in THREADED else at_once)


READS = re.compile(r"""(?:os\.environ(?:\.get)?[\[(]|env_\w+\()\s*"([A-Z][A-Z0-9_]+)\"""")
OF_THE_IMAGE = {
    "FLYWHEEL_DATA_DIR",
    "FLYWHEEL_DESIGNER_PYTHON",
    "FLYWHEEL_ENDPOINT_SPOOL",
    "FLYWHEEL_ENVIRONMENTS_DIR",
    "FLYWHEEL_GEPA_PYTHON",
    "FLYWHEEL_PRESIDIO_MODELS",
    "FLYWHEEL_VLLM",
}
OF_SOME_SERVICES = {
    "FLYWHEEL_ADMIN_PASSWORD",
    "FLYWHEEL_API_KEY",
    "FLYWHEEL_SERVE_HOST",
    "FLYWHEEL_SERVE_PORTS",
}
NOT_OF_CONTAINERS = {"DEBUG", "PATH", "FLYWHEEL_EMBEDDED_CONNECTIONS", "FLYWHEEL_EMBEDDED_FSYNC"}


def test_compose_passes_every_setting_on() -> None:
    read = set(
        READS.findall("".join(path.read_text() for path in (ROOT / "flywheel").glob("*.py")))
    )
    read |= {f"FLYWHEEL_OIDC_{name}" for name in ("ISSUER", "CLIENT_ID", "CLIENT_SECRET")}
    read |= {key.partition("@")[0] for key in settings.FLYWHEEL_OUTGOING_KEYS}
    passed = set(COMPOSE["x-flywheel"]["environment"])
    assert len(read) > 60
    assert read - OF_THE_IMAGE - OF_SOME_SERVICES - NOT_OF_CONTAINERS <= passed
    for service in COMPOSE["services"].values():
        assert "build" not in service or set(service["environment"]) >= passed


def test_no_secret_stands_in_a_url_of_compose() -> None:
    """A password may have any character: / and # would end the address before its time."""
    for name, value in COMPOSE["x-flywheel"]["environment"].items():
        assert "://" not in str(value) or "$" not in value, name
    assert COMPOSE["x-flywheel"]["environment"]["PGPASSWORD"] == "${POSTGRES_PASSWORD:?}"


@pytest.mark.parametrize(
    "url",
    [
        "postgres://u:pa/ss@host/db",
        "postgres://u:12#x@host/db",
        "postgres://u:p?w@host:d/b",
        "redis://:a#b@h/0",
    ],
)
def test_a_url_that_its_password_breaks_is_refused_without_repeating_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    with pytest.raises(ImproperlyConfigured, match="percent-encoded") as refused:
        env_service("DATABASE_URL")
    assert url not in str(refused.value) and "ss@" not in str(refused.value)


def test_the_images_start_processes_of_that_list() -> None:
    lines = (ROOT / "docker" / "Dockerfile").read_text().splitlines()
    starts = [
        yaml.safe_load(line.removeprefix("CMD ")) for line in lines if line.startswith("CMD ")
    ]
    assert len(starts) == 3 and all(start[:3] == PROGRAM and start[3] in NAMES for start in starts)


def test_each_queue_that_is_written_to_has_a_worker() -> None:
    used = {kind_of(model()).queue for model in job_models()}
    used |= {route["queue"] for route in settings.CELERY_TASK_ROUTES.values()} | {
        settings.CELERY_TASK_DEFAULT_QUEUE
    }
    assert used <= set(WORKERS) == {*settings.QUEUES, *OPTIONAL}
    for queue in WORKERS:
        words = command(queue)
        assert words[words.index("-Q") + 1] == queue


def test_rounds_that_ask_the_judge_hold_up_neither_classification_nor_what_people_wait_for() -> (
    None
):
    current_app.loader.import_default_modules()
    for name in settings.ROUNDS:
        assert name in current_app.tasks
        route = current_app.amqp.router.route({}, name)
        assert route["queue"].name == "judge" != settings.CELERY_TASK_DEFAULT_QUEUE
        tried = current_app.amqp.router.route({"queue": None}, "failures.try_signal")
        assert tried["queue"].name == "judge" and tried["priority"] < route["priority"]


def record(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("granian.access", logging.INFO, "", 0, message, args, None)


def test_a_line_has_time_and_level() -> None:
    made = record("%s asked", "Ada")
    made.created, made.msecs = 1_767_225_600.25, 250
    assert Line().format(made) == "2026-01-01T00:00:00.250Z INFO granian.access: Ada asked"


def test_a_line_says_what_it_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    made = record("%s asked", "Ada")
    made.created, made.msecs = 1_767_225_600.25, 250
    with about(request="r1"):
        note(project="my-agent")
        text = Line().format(made)
        monkeypatch.setenv("LOG_FORMAT", "json")
        said = json.loads(Line().format(made))
    assert text.endswith("INFO granian.access: Ada asked [request=r1 project=my-agent]")
    assert said == {
        "time": "2026-01-01T00:00:00.250Z",
        "level": "INFO",
        "logger": "granian.access",
        "message": "Ada asked",
        "request": "r1",
        "project": "my-agent",
    }
    assert "request" not in json.loads(Line().format(made))


@pytest.mark.parametrize(
    ("asked", "is_taken"), [("abc-1", True), ("a b", False), ("x" * 65, False)]
)
def test_a_request_has_an_id_and_a_line(
    caplog: pytest.LogCaptureFixture, asked: str, is_taken: bool
) -> None:
    headers: list[tuple[str, str]] = []

    def application(sent: dict[str, Any], start: Any) -> list[bytes]:
        start("200 OK", [("A", "b")])
        return [b"x"]

    sent = {
        "HTTP_X_REQUEST_ID": asked,
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/a",
        "REMOTE_ADDR": "10.0.0.1",
    }
    with caplog.at_level(logging.INFO, "flywheel.access"):
        body = with_request_id(application)(sent, lambda status, given: headers.extend(given))
    assert body == [b"x"] and headers[0] == ("A", "b")
    assert (dict(headers)["X-Request-ID"] == asked) == is_taken
    assert re.fullmatch(r'10\.0\.0\.1 "GET /a" 200 \d+\.\d ms', caplog.messages[-1])


def test_a_path_stays_on_its_line() -> None:
    assert readable("/a\n2026 INFO forged") == r"/a\n2026 INFO forged"
    assert readable("/ä".encode().decode("latin-1")) == "/ä"
    assert readable("/password/reset/1-d4x7k-0f3c/") == "/password/reset/…/"
    assert readable("/rollout/k9-_aZ/tools/a.b") == "/rollout/…/tools/a.b"
    path = ("/rollout/k9-_aZ/mcp",)
    said = logging.LogRecord("a", logging.WARNING, "", 1, "Gone: %s", path, None)
    assert Line().format(said).partition("a: ")[2].startswith("Gone: /rollout/…/mcp")


@pytest.mark.parametrize(
    ("path", "is_written"), [("/healthz", False), ("/health", True), ("/p/x /metrics", True)]
)
def test_only_probes_have_no_line(
    path: str, is_written: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever else has such words in a path or an error cannot hide behind them."""
    caplog.handler.addFilter(NotHealth())
    sent = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "REMOTE_ADDR": "10.0.0.1"}
    with caplog.at_level(logging.INFO, "flywheel.access"):
        with_request_id(lambda sent, start: [])(sent, lambda *given: None)
    assert bool(caplog.messages) == is_written
    logging.getLogger("flywheel.rules").error("A rule failed: %s", "GET /healthz")
    logging.getLogger("flywheel.rules").error("A rule failed: /metrics")
    assert len(caplog.messages) == is_written + 2
