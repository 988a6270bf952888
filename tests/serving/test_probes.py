"""What the endpoint says of itself, to load balancers and process managers."""

from __future__ import annotations

import shutil
from typing import Any
from urllib.parse import urlsplit

import httpx2

from flywheel.processes import works
from tests.serving.conftest import Running


def ready(running: Running, query: str = "") -> tuple[int, Any]:
    answer = httpx2.get(f"{running.url}/readyz{query}", trust_env=False)
    return answer.status_code, answer.json()


def test_one_that_knows_its_channels_and_can_spool_is_ready(running: Running) -> None:
    parts = {"table": {"state": "ok"}, "spool": {"state": "ok"}}
    assert ready(running) == (200, {"ready": True, "parts": parts})
    assert ready(running, "?parts=table") == (
        200,
        {"ready": True, "parts": {"table": {"state": "ok"}}},
    )
    assert ready(running, "?parts=tables")[0] == 400
    assert [path.name for path in running.folder.iterdir()] == []


def test_without_a_table_it_lives_and_is_not_ready(running: Running) -> None:
    running.tables.known = False
    status, said = ready(running)
    assert (status, said["ready"], said["parts"]["spool"]["state"]) == (503, False, "ok")
    (wrong,) = said["parts"]["table"]["wrong"]
    assert "has not been read" in wrong["says"] and wrong["todo"]
    alive = httpx2.get(f"{running.url}/livez", trust_env=False)
    assert (alive.status_code, alive.json()) == (200, {"alive": True})
    assert works("endpoint", urlsplit(running.url).port or 0)


def test_one_that_cannot_spool_says_so(running: Running) -> None:
    shutil.rmtree(running.folder)
    status, said = ready(running)
    (wrong,) = said["parts"]["spool"]["wrong"]
    assert status == 503 and wrong["says"] == "Answers cannot be written to the spool."
    assert str(running.folder) not in str(said), "anybody may ask"
    assert ready(running, "?parts=table")[0] == 200
    running.folder.mkdir()
    running.endpoint.writer.unwritten.append(b"an answer")
    assert "spool: 1 wait in memory" in str(ready(running))
    running.endpoint.writer.unwritten.clear()
    assert ready(running)[0] == 200


def test_they_are_only_read(running: Running) -> None:
    """Whoever can have a server POST somewhere does not read them by that."""
    for path in ("/livez", "/readyz"):
        answer = httpx2.post(f"{running.url}{path}", trust_env=False)
        assert answer.status_code == 405 and "GET" in answer.headers["Allow"]
