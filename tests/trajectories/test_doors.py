"""What the API owes senders, whatever they send: nothing is lost behind a 2xx, and an outage is one
to come back after.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import psycopg
import pytest
from django.db import connection
from django.test import Client

from apps.core.models import Project
from apps.trajectories import contents, traces
from apps.trajectories.models import SpanBatch, SpanBody, Trajectory
from tests.factories import make_key, make_project, row
from tests.flywheel.machine import free_port
from tests.trajectories.test_traces import TRACES, body, chat, packed, text

JSON, PROTOBUF = "application/json", "application/x-protobuf"
BATCH = "/api/v1/trajectories/batch/"
SPAN = chat(1, 1, [text("user", "Hi")], "Hello")


def test_every_member_of_a_gzip_is_read(agent: Client, project: Project) -> None:
    lines = [json.dumps(row(name=f"r{number}")).encode() + b"\n" for number in range(3)]
    members = b"".join(gzip.compress(line) for line in lines)
    answer = agent.post(
        BATCH, members, content_type="application/x-ndjson", HTTP_CONTENT_ENCODING="gzip"
    )
    assert answer.json()["accepted"] == 3
    # two requests one after the other are one protobuf message with the spans of both
    two = gzip.compress(packed(SPAN)) + gzip.compress(
        packed(chat(2, 1, [text("user", "Ho")], "Hello"))
    )
    assert (
        agent.post(TRACES, two, content_type=PROTOBUF, HTTP_CONTENT_ENCODING="gzip").status_code
        == 200
    )
    traces.sort_some()
    assert SpanBatch.objects.count() == 2


def test_the_limit_is_on_all_members_together(
    agent: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.trajectories.api.MAX_BYTES", 10_000)
    bomb = gzip.compress(b" " * 6_000) * 2
    assert (
        agent.post(BATCH, bomb, content_type=JSON, HTTP_CONTENT_ENCODING="gzip").status_code == 413
    )


def test_a_second_member_that_is_broken_is_refused(agent: Client) -> None:
    whole = gzip.compress(json.dumps([row(name="a")]).encode())
    for rest in (gzip.compress(b" ")[:-3], b"garbage"):
        assert (
            agent.post(
                BATCH, whole + rest, content_type=JSON, HTTP_CONTENT_ENCODING="gzip"
            ).status_code
            == 400
        )
    assert not Trajectory.objects.exists()


@pytest.mark.parametrize("path", [TRACES, "/v1/logs", "/v1/metrics", "/api/public/otel/v1/traces"])
def test_otlp_is_taken_with_a_slash_at_the_end(agent: Client, path: str) -> None:
    assert agent.post(f"{path}/", b"{}", content_type=JSON).status_code == 200


def test_a_post_without_the_last_slash_stores(agent: Client) -> None:
    assert (
        agent.post(BATCH[:-1], json.dumps([row(name="a")]).encode(), content_type=JSON).json()[
            "accepted"
        ]
        == 1
    )
    one = "/api/v1/trajectories"
    assert agent.post(one, json.dumps(row(name="b")).encode(), content_type=JSON).status_code == 201
    told = agent.post(f"{one}/b/feedback", b'{"score": 1}', content_type=JSON)
    assert told.status_code == 200 and told.json()["outcome"]["reward"] == 1
    assert agent.get(f"{one}/b").json()["id"] == "b"


def test_no_post_to_the_api_is_redirected(agent: Client) -> None:
    for path in ("/api/v1/nothing", "/v1/nothing", "/api/v1/graders/run/", "/api/v1/eval-sets"):
        assert agent.post(path, b"{}", content_type=JSON).status_code not in range(300, 400), path


@pytest.fixture
def own_connection(transactional_db: None) -> Iterator[None]:
    yield
    connection.close()


@pytest.mark.usefixtures("own_connection")
@pytest.mark.parametrize("door", [TRACES, BATCH, "/api/v1/trajectories/"])
def test_a_database_that_is_away_is_503_and_come_again(
    door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Client(
        headers={"Authorization": f"Bearer {make_key(make_project())}"},
        raise_request_exception=False,
    )
    connection.close()
    with monkeypatch.context() as patched:
        patched.setitem(connection.settings_dict, "HOST", "127.0.0.1")
        patched.setitem(connection.settings_dict, "PORT", free_port())
        answer = agent.post(door, json.dumps(body(SPAN)).encode(), content_type=JSON)
    assert answer.status_code == 503 and int(answer["Retry-After"]) > 0 and answer.json()["detail"]


@pytest.mark.usefixtures("own_connection")
@pytest.mark.parametrize("kind", [JSON, PROTOBUF])
def test_a_connection_that_dies_in_the_middle_is_503(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Client(
        headers={"Authorization": f"Bearer {make_key(make_project())}"},
        raise_request_exception=False,
    )
    sent = packed(SPAN) if kind == PROTOBUF else json.dumps(body(SPAN)).encode()
    assert agent.post(TRACES, sent, content_type=kind).status_code == 200
    kept, compress = (SpanBatch.objects.count(), SpanBody.objects.count()), contents.compress

    def cut(data: bytes) -> bytes:
        pid = connection.connection.info.backend_pid
        with psycopg.connect(
            **connection.get_connection_params() | {"cursor_factory": psycopg.Cursor}
        ) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        return compress(data)

    with monkeypatch.context() as patched:
        patched.setattr(contents, "compress", cut)
        answer = agent.post(TRACES, sent, content_type=kind)
    assert answer.status_code == 503 and int(answer["Retry-After"]) > 0
    connection.close()
    assert (SpanBatch.objects.count(), SpanBody.objects.count()) == kept


@pytest.mark.parametrize("path", [BATCH, TRACES])
def test_a_compression_that_is_not_known_is_named(agent: Client, path: str) -> None:
    answer = agent.post(path, b"(zstd)", content_type=JSON, HTTP_CONTENT_ENCODING="zstd")
    assert answer.status_code == 415 and "not with zstd" in answer.content.decode()
