"""A job goes to machines that have what it needs."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from apps.core import jobs, placing, runner
from apps.core.kinds import Needs, kind_of
from apps.core.models import JobState, Worker
from apps.evals.models import EvalRun
from tests.core.conftest import ended, stand_in, submit  # noqa: F401 - fixtures
from workers.lib import gpus

pytestmark = pytest.mark.django_db(transaction=True)
BIG, SMALL = 80_000, 8_000


def worker(host: str, *things: str, queue: str = "train", **has: Any) -> Worker:
    given = {"gpus": [], "memory_mb": BIG, "things": list(things)} | has
    return Worker.objects.create(
        name=f"{queue}@{host}", queue=queue, host=host, pid=1, has=given if has or things else {}
    )


@pytest.mark.parametrize(
    ("has", "needs", "can"),
    [
        ({}, Needs(BIG, frozenset("b")), True),
        ({"memory_mb": SMALL}, Needs(SMALL), True),
        ({"memory_mb": SMALL}, Needs(SMALL + 1), False),
        ({"memory_mb": BIG, "gpus": [{"memory_mb": SMALL}]}, Needs(SMALL + 1), False),
        ({"memory_mb": SMALL, "gpus": [{"memory_mb": BIG}]}, Needs(BIG), True),
        ({"things": ["a"]}, Needs(things=frozenset("a")), True),
        ({"things": ["a"]}, Needs(things=frozenset("ab")), False),
    ],
)
def test_what_a_machine_can_do(has: dict, needs: Needs, can: bool) -> None:
    given = {"gpus": [], "memory_mb": 0, "things": []} | has if has else {}
    assert placing.can_do(Worker(has=given), needs) == can


@pytest.fixture
def run(submit: Any, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    """A job that needs a base which some machines have."""
    made = submit("finish")
    kind = SimpleNamespace(needs=lambda job: Needs(things=frozenset({"base"})))
    monkeypatch.setattr(placing, "kind_of", lambda job: kind)
    return made


def test_it_goes_to_the_queue_where_all_can_do_it_or_none(run: Any) -> None:
    assert placing.queues_for(run, "train") == ["train"]
    worker("one", "base")
    assert placing.queues_for(run, "train") == ["train"]
    Worker.objects.all().delete()
    worker("one", "another")  # it says what is missing
    assert placing.queues_for(run, "train") == ["train"]


def test_it_goes_to_those_that_can(run: Any) -> None:
    worker("one", "base")
    worker("two", "another")
    worker("three", "base", "another")
    worker("four", "base", queue="eval")
    assert placing.queues_for(run, "train") == ["train.one", "train.three"]


def test_a_worker_that_cannot_sends_it_on(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker(socket.gethostname(), "another")
    worker("other", "base")
    sent: list[Any] = []
    monkeypatch.setattr(jobs, "enqueue", sent.append)
    runner.run(run)
    assert ended(run).state == JobState.QUEUED and sent == [run]
    assert placing.queues_for(run, "train") == ["train.other"]


def test_evaluations_need_the_base_that_they_load() -> None:
    assert kind_of(EvalRun()).needs is not None


def test_the_gpus_of_a_machine() -> None:
    assert gpus.read("NVIDIA H200, 143771\nNVIDIA A10, PCIe, 23028\n[N/A], [N/A]\n") == [
        {"name": "NVIDIA H200", "memory_mb": 143_771},
        {"name": "NVIDIA A10, PCIe", "memory_mb": 23_028},
    ]
