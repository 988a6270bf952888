"""What the endpoint counts, on /metrics."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest
from prometheus_client import Histogram
from prometheus_client.parser import text_string_to_metric_families

from apps.serving import counting
from apps.serving.spool import READY, waiting
from flywheel import metrics
from tests.flywheel.machine import eventually
from tests.serving.conftest import Running
from tests.serving.scripted import Scripted

Make = Callable[[str], Scripted]
TOKEN = "0123456789abcdef0123456789abcdef"


def ask(text: str, **more: Any) -> dict[str, Any]:
    given = {"model": "counted", "messages": [{"role": "user", "content": text}]}
    return given | more


def samples(running: Running) -> dict[tuple[str, ...], float]:
    answer = httpx2.get(f"{running.url}/metrics", trust_env=False)
    assert answer.status_code == 200
    return {
        (sample.name.removeprefix("flywheel_endpoint_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.labels.get("channel") == "counted"
    }


def test_requests_tokens_and_records_are_counted_by_channel(running: Running, server: Make) -> None:
    running.serve(server("alpha"), channel="counted")
    before = samples(running)
    assert running.post(ask("Hi")).status_code == 200
    assert running.post(ask("stream 3", stream=True)).status_code == 200
    assert running.post(ask("Hi", temperature="hot")).status_code in (200, 400)

    def grown(*key: str) -> float:
        return samples(running).get(key, 0) - before.get(key, 0)

    eventually(lambda: grown("seconds_count", "counted") == 3)
    assert grown("requests_total", "counted", "200") >= 2
    assert grown("recorded_total", "counted", "whole") >= 2
    assert grown("tokens_total", "counted", "output") > 0
    assert grown("tokens_total", "counted", "input") > 0
    assert grown("first_seconds_count", "counted") == 3
    assert samples(running)["open", "counted"] == 0


async def ignore(message: dict[str, Any]) -> None:
    pass


def test_counts_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each had been written at once, but for their number."""
    counting.flush()
    written: list[tuple[str, float]] = []
    for name in ("open_of", "requests_of", "tokens_of"):
        metric = Mock(**{"inc.side_effect": lambda n, name=name: written.append((name, n))})
        monkeypatch.setattr(counting, name, lambda *labels, metric=metric: metric)
    whole, one_by_one = (
        Histogram("seconds", "", registry=None, buckets=(0.1, 1.0)) for _ in range(2)
    )
    monkeypatch.setattr(counting, "seconds_of", lambda channel: whole)
    for n in range(5):
        counted = counting.Counted(ignore)
        counted.open("counted")
        counted.close([b'{"usage": {"prompt_tokens": 3, "completion_tokens": 4}}'])
        counted._began = time.perf_counter() - 0.4 * n
        counted.end()
    counting._observed[whole].append(0.1)  # a bound belongs to its bucket
    assert not written
    for seconds in counting._observed[whole]:
        one_by_one.observe(seconds)
    counting.flush()
    assert sorted(written) == [("open_of", 0), ("requests_of", 5), ("tokens_of", 35)]
    assert [value.get() for value in whole._buckets] == [2, 2, 2]
    assert [value.get() for value in one_by_one._buckets] == [2, 2, 2]
    assert whole._sum.get() == pytest.approx(one_by_one._sum.get())
    counting.flush()
    assert len(written) == 3


def test_a_server_that_is_away_counts_as_an_error_of_its_channel(
    running: Running, server: Make
) -> None:
    running.serve(alpha := server("alpha"), channel="counted")
    before = samples(running)
    alpha.kill()
    assert running.post(ask("Hi")).status_code == 502
    found = samples(running)
    for key in (("requests_total", "counted", "502"), ("recorded_total", "counted", "unreached")):
        assert found[key] - before.get(key, 0) == 1


def test_what_names_no_channel_is_counted_without_its_text(running: Running) -> None:
    assert running.post(ask("Hi") | {"model": "a-customers-name"}).status_code == 404
    text = httpx2.get(f"{running.url}/metrics", trust_env=False).text
    assert 'flywheel_endpoint_requests_total{channel="",code="404"}' in text
    assert "a-customers-name" not in text


def test_strangers_do_not_read_it(running: Running, settings: Any) -> None:
    settings.FLYWHEEL_METRICS_TOKEN = TOKEN

    def status(**headers: str) -> int:
        given = {"X-Forwarded-For": "10.0.0.7"} | headers
        return httpx2.get(f"{running.url}/metrics", headers=given, trust_env=False).status_code

    assert status() == 401 and status(Authorization="Bearer other") == 401
    assert status(Authorization=f"Bearer {TOKEN}") == 200


def test_what_waits_for_the_database_is_measured(tmp_path: Path) -> None:
    assert waiting(tmp_path) == (0, pytest.approx(0, abs=5))
    segment = tmp_path / f"a{READY}"
    segment.write_bytes(b"x" * 100)
    os.utime(segment, (0, 0))
    size, oldest_s = waiting(tmp_path)
    assert size == 100 and oldest_s > 1e9


def test_what_a_process_that_ended_was_doing_is_forgotten(tmp_path: Path) -> None:
    names = ("gauge_livesum_7.db", "gauge_livesum_8.db", "counter_7.db", "gauge_livemax_7.db")
    for name in names:
        (tmp_path / name).touch()
    metrics.forget(str(tmp_path), 7)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "counter_7.db",
        "gauge_livesum_8.db",
    ]
