"""Runs, steps and scores as Parquet by day: what changed is written, nothing that was said is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse

from apps.core.models import Project, Role
from apps.trajectories import digest, parquet_files
from apps.trajectories.actions import deletions
from apps.trajectories.actions.store import find, ingest
from apps.trajectories.models import ParquetExport, ParquetFile, Score
from apps.trajectories.parquet_files import TABLES, Column
from tests.factories import admin_of, make_member, make_project, row, tool_message

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data_dir")]
FIRST = datetime(2026, 11, 3, 23, 59, 59, 999_000, tzinfo=UTC)


def run(name: str, day: int = 0, **more: Any) -> dict:
    call = tool_message({"tool": "search", "args": {"query": "SAID in arguments"}})
    messages = [{"role": "user", "content": "SAID in a message"}, call]
    reply = {"role": "tool", "tool_call_id": "call_1", "content": "Error: SAID in a reply"}
    return (
        row(name)
        | {
            "messages": [*messages, reply, {"role": "assistant", "content": "SAID in an answer"}],
            "outcome": {"status": "failure", "reason": "SAID in a reason"},
            "started_at": (FIRST + timedelta(days=day)).isoformat(),
        }
        | more
    )


def stored(project: Project, *rows: dict) -> None:
    ingest(project=project, rows=list(rows))
    digest.run()


def export(project: Project, stop_after: int = 1_000, **cursor: Any) -> dict[str, Any]:
    """As `runner` does; its result, or its cursor if it is stopped."""
    job = ParquetExport(project=project, cursor=cursor)
    progress = parquet_files.steps(job)
    for _ in range(stop_after):
        try:
            cursor = dict(next(progress).cursor)
        except StopIteration as end:
            return end.value
    return cursor


def files(data_dir: Path) -> dict[str, Path]:
    home = data_dir / "artifacts" / "parquet"
    return {"/".join(path.parts[-3:-1]): path for path in home.glob("*/*/*/*.parquet")}


def test_days_have_files_that_say_what_rows_say(project: Project, data_dir: Path) -> None:
    stored(project, run("a"), run("b", 1, tags=["vip"]), run("c", -40))
    score = {"project": project, "external_id": "a", "source": "code", "created_at": FIRST}
    Score.objects.create(**score, name="tone", kind="category", text="calm", key="k")
    Score.objects.create(**score, name="note", kind="text", text="SAID in a score", key="k")
    assert export(project) == {"written": 7, "removed": 0, "rows": 3 + 9 + 2}
    found = files(data_dir)
    days = ("2026-11-03", "2026-11-04", "2026-09-24")
    assert set(found) == {
        *(f"{table}/day={day}" for table in ("runs", "steps") for day in days),
        "scores/day=2026-11-03",
    }
    (second,) = pq.read_table(found["runs/day=2026-11-04"], partitioning=None).to_pylist()
    assert second["external_id"] == "b" and second["tags"] == ["vip"]
    assert second["started_at"] == FIRST + timedelta(days=1)
    steps = pq.read_table(found["steps/day=2026-11-04"], partitioning=None).to_pylist()
    assert {step["run_id"] for step in steps} == {second["run_id"]}
    assert [step["name"] for step in steps if step["kind"] == "tool"] == ["search"]
    scores = pq.read_table(found["scores/day=2026-11-03"], partitioning=None).to_pylist()
    assert [one["category"] for one in scores] == ["calm", ""]
    assert not any("SAID" in str(pq.read_table(path).to_pylist()) for path in found.values())


@pytest.mark.proof
def test_only_what_changed_is_written_again(
    project: Project, data_dir: Path, django_capture_on_commit_callbacks: Any
) -> None:
    stored(project, run("a"), run("b"), run("c", 1))
    export(project)
    assert export(project)["written"] == 0
    stored(project, run("a", tags=["vip"]))
    assert export(project) == {"written": 1, "removed": 0, "rows": 2}
    with django_capture_on_commit_callbacks(execute=True):
        deletions.delete(trajectory=find(project, "a"))
    assert set(files(data_dir)) == {"runs/day=2026-11-04", "steps/day=2026-11-04"}
    digest.run()
    assert export(project)["written"] == 2
    (left,) = pq.read_table(files(data_dir)["runs/day=2026-11-03"], partitioning=None).to_pylist()
    assert left["external_id"] == "b"


def test_an_export_goes_on_where_it_was_cut_off(project: Project) -> None:
    stored(project, run("a"), run("b", 1))
    cursor = export(project, stop_after=4)
    assert ParquetFile.objects.written().count() == 3 and ParquetFile.objects.count() == 4
    assert export(project, **cursor) == {"written": 4, "removed": 0, "rows": 2 + 6}


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("is_resumed", [False, True])
def test_an_export_that_was_killed_leaves_no_file_of_a_deleted_run(
    project: Project,
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Any,
    is_resumed: bool,
) -> None:
    stored(project, run("a"))
    cursor = export(project, stop_after=1)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError), transaction.atomic():
        patch.setattr(ParquetFile.objects, "update_or_create", killed)
        parquet_files.write(project, TABLES["runs"], FIRST.date())
    assert set(files(data_dir)) == {"runs/day=2026-11-03"}
    with django_capture_on_commit_callbacks(execute=True):
        deletions.delete(trajectory=find(project, "a"))
        digest.run()
        if is_resumed:
            export(project, **cursor)
    assert not files(data_dir) and not ParquetFile.objects.written().exists()


def killed(**given: Any) -> None:
    raise RuntimeError


def test_projects_are_apart(project: Project, data_dir: Path) -> None:
    other = make_project()
    stored(other, run("a"))
    assert export(project)["written"] == 0
    assert export(other)["written"] == 2
    assert all(str(other.pk) in path.parts for path in files(data_dir).values())


def test_no_column_holds_words() -> None:
    """What free text is in must never be added to the files."""
    words = {"preview", "arguments", "error", "outcome_reason", "comment", "text", "metadata"}
    columns: list[Column] = [one for table in TABLES.values() for one in table.columns]
    assert not words & {str(one.source or one.name) for one in columns}


@pytest.mark.proof
def test_the_page_shows_files_and_schema(project: Project) -> None:
    stored(project, run("a"))
    export(project)
    client = Client()
    client.force_login(make_member(project, Role.VIEWER))
    address = reverse("trajectories:parquet", args=[project.slug])
    page = client.get(address).content.decode()
    assert "2026-11-03" in page and "timestamp[us, UTC]" in page and "Export now" not in page
    client.force_login(admin_of(project))
    assert client.post(reverse("trajectories:parquet_export", args=[project.slug])).url == address
    assert client.post(reverse("trajectories:parquet_export", args=[project.slug])).url == address
    assert project.parquetexports.count() == 1
    client.post(reverse("trajectories:parquet_remove", args=[project.slug]))
    assert not ParquetFile.objects.exists()
