from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from apps.core.models import Project
from apps.trajectories.models import Trajectory
from tests.factories import row
from tests.trajectories.test_importers import lines, shared, tau

pytestmark = pytest.mark.django_db


def run(project: Project, *files: Any, **options: Any) -> tuple[str, str, int]:
    """(standard output, standard error, exit status)."""
    out, err = io.StringIO(), io.StringIO()
    try:
        call_command(
            "import_trajectories",
            *map(str, files),
            project=project.slug,
            stdout=out,
            stderr=err,
            no_color=True,
            **options,
        )
    except CommandError as error:
        return out.getvalue(), err.getvalue() + str(error), error.returncode
    return out.getvalue(), err.getvalue(), 0


def count(project: Project) -> int:
    return Trajectory.objects.filter(project=project).count()


def test_a_file_is_imported_once(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(
        gzip.compress(lines(*(row(started_at="2026-01-01T00:00:00Z") for _ in range(3))))
    )
    out, _, status = run(project, path)
    assert status == 0 and "3 new, 0 duplicates" in out and "chat" in out
    out, _, status = run(project, path)
    assert status == 0 and "0 new, 3 duplicates" in out and count(project) == 3


def test_bad_rows_are_named_and_the_others_stored(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    bad = row() | {"messages": [{"role": "nobody", "content": "x"}]}
    path.write_bytes(lines(row(), b"{broken", bad, row()))
    out, err, status = run(project, path)
    assert status == 1 and count(project) == 2 and "2 new" in out and "2 rejected" in out
    assert "rows.jsonl line 2: not JSON" in err and "rows.jsonl line 3: messages[0].role" in err
    assert "Traceback" not in err


def test_only_the_first_errors_are_printed(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines(row(), *[b"{"] * 50))
    _, err, status = run(project, path)
    assert status == 1 and err.count("not JSON") == 20 and "… and 30 more." in err


def test_several_files_of_several_formats(project: Project, tmp_path: Path) -> None:
    chat, results, missing = tmp_path / "a.jsonl", tmp_path / "b.json", tmp_path / "missing.json"
    chat.write_bytes(lines(row()))
    results.write_text(json.dumps([tau(), tau(trial=2, reward=0)]))
    out, err, status = run(project, chat, missing, results)
    assert status == 1 and count(project) == 3 and "b.json: tau-bench" in out
    assert "missing.json cannot be opened: No such file or directory." in err


def test_a_dry_run_stores_nothing(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines(row(), {"id": "x", "messages": []}))
    out, err, status = run(project, path, dry_run=True)
    assert status == 1 and count(project) == 0 and "1 good, 1 bad" in out and "line 2" in err


def test_standard_input(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines(row()))))
    assert run(project, "-")[2] == 0 and count(project) == 1
    assert not sys.stdin.buffer.closed


def test_urls_go_through_fsspec(project: Project) -> None:
    import fsspec

    with fsspec.open("memory://runs/rows.jsonl", "wb") as file:
        file.write(lines(row()))
    assert run(project, "memory://runs/rows.jsonl")[2] == 0 and count(project) == 1
    for url in ("memory://runs/none.jsonl", "nothing://x", "file:///no/such/file"):
        _, err, status = run(project, url)
        assert status == 1 and url in err and "Traceback" not in err


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x01",
        b"\x1f\x8bnot gzip",
        b'{"a": 1}',
        b"[" * 5000,
        b'{"messages": ' + b"[" * 9000,
    ],
)
def test_a_file_of_nonsense_is_a_sentence(project: Project, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    _, err, status = run(project, path)
    assert status == 1 and err and "Traceback" not in err and count(project) == 0


def test_a_folder_is_a_sentence(project: Project, tmp_path: Path) -> None:
    _, err, status = run(project, tmp_path)
    assert status == 1 and "Is a directory" in err


def test_a_project_that_is_not_there(project: Project) -> None:
    with pytest.raises(
        CommandError, match=f"There is no project “nope”. There are: .*{project.slug}"
    ):
        call_command("import_trajectories", "x", project="nope")


@pytest.mark.proof
def test_the_real_tau_bench_file(project: Project) -> None:
    out, _, status = run(project, shared("tau_bench/gpt-4o-airline-trials-0-1.json"))
    rows = Trajectory.objects.filter(project=project)
    assert status == 0 and "100 new" in out
    assert (rows.count(), rows.filter(outcome_status="failure").count()) == (100, 57)
    assert "100 duplicates" in run(project, shared("tau_bench/gpt-4o-airline-trials-0-1.json"))[0]


def test_the_real_rollouts(project: Project) -> None:
    out, _, status = run(
        project, shared("workplace_assistant/example_rollouts.jsonl"), format="nemo-gym"
    )
    assert status == 0 and "5 new" in out
    _, err, status = run(project, shared("workplace_assistant/example.jsonl"))
    assert status == 1 and "a task without a response" in err
