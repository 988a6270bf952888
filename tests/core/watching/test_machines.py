"""What can be wrong on several machines is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from apps.core.models import AuditEvent, Worker
from apps.core.watching import machines

pytestmark = pytest.mark.django_db


def worker(host: str, **common: Any) -> Worker:
    has = {"gpus": [], "memory_mb": 1, "things": [], "common": machines.common() | common}
    return Worker.objects.create(
        name=f"train@{host}", queue="train", host=host, pid=1, has=has, at_once=40
    )


def says(check: Any) -> list[str]:
    return [finding.says for finding in check()]


def test_machines_of_one_installation_are_alike(data_dir: Path) -> None:
    worker("same")
    Worker.objects.create(name="new@new", queue="train", host="new", pid=1)
    assert says(machines.machines_that_differ) == []


@pytest.mark.parametrize(
    ("common", "text"),
    [
        ({"key": "another"}, "gpu has another SECRET_KEY"),
        ({"store": "another/place"}, "gpu keeps files elsewhere"),
        ({"folder": "another"}, "gpu has a data folder of its own"),
    ],
)
def test_one_that_differs_is_named(data_dir: Path, common: dict, text: str) -> None:
    worker("gpu", **common)
    (found,) = says(machines.machines_that_differ)
    assert found.startswith(text)


def test_a_sandbox_that_refuses_or_is_weak_is_said(data_dir: Path) -> None:
    row = worker("gpu")
    assert says(machines.refusing_sandboxes) == says(machines.weak_sandboxes) == []
    for what, check in (
        ("refuses", machines.refusing_sandboxes),
        ("accepted", machines.weak_sandboxes),
    ):
        row.has["sandbox"] = {"refuses": "", "accepted": ""} | {what: "No namespaces."}
        row.save()
        assert says(check) == ["gpu: No namespaces."]
    assert says(machines.refusing_sandboxes) == []


def test_no_pooler_stands_between(monkeypatch: pytest.MonkeyPatch) -> None:
    assert says(machines.misplaced_pooler) == []
    monkeypatch.setattr(machines, "has_pooler", lambda link: True)
    assert "DATABASE_DIRECT_URL is not set" in says(machines.misplaced_pooler)[0]
    monkeypatch.setattr(machines, "is_pooled", lambda: True)
    assert "leads to a pooler" in says(machines.misplaced_pooler)[0]


def test_connections_are_added_up(data_dir: Path) -> None:
    worker("one")
    assert says(machines.connection_budget) == []
    worker("two")  # 10 + 2 * (2 + 40 * 2) are more than the suite's server allows
    (found,) = says(machines.connection_budget)
    assert "0 web processes and 2 workers may need 174 connections" in found


def test_a_machine_is_drained_by_its_name(data_dir: Path, capsys: Any) -> None:
    worker("one"), worker("two")
    call_command("drain", "one", "--wait")
    assert [row.host for row in Worker.objects.exclude(drained_at=None)] == ["one"]
    call_command("drain", "train@one", "--resume")
    assert not Worker.objects.exclude(drained_at=None).exists()
    assert list(AuditEvent.objects.order_by("pk").values_list("action", flat=True)) == [
        "operator.drained",
        "operator.resumed",
    ]
    with pytest.raises(CommandError, match="no worker or machine “three”"):
        call_command("drain", "three")
