"""What comes late of a deleted run is acknowledged, dropped and counted, by whatever door it comes;
what else comes is stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from msgspec import msgpack

from apps.core import runner
from apps.core.actions import revoke_api_key
from apps.core.models import ApiKey, Project, ProjectDeletion, Stage
from apps.core.projects import lifecycle
from apps.serving import storing
from apps.trajectories import digest, held
from apps.trajectories.erasure import tombstone_file, waiting
from apps.trajectories.models import Arrival, HeldBatch, LateData, Tombstone, Trace
from tests.factories import admin_of, key_headers, make_key, make_project
from tests.serving.test_storing import put, record
from tests.trajectories.erasure.conftest import ended, submit
from tests.trajectories.test_late_spans import whole_run
from tests.trajectories.test_traces import (
    agent_span,
    assembled,
    body,
    chat,
    send,
    text,
    trace_id,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data_dir")]
ROWS = "/api/v1/trajectories/"
ROW = {
    "id": trace_id(1),
    "messages": [{"role": "user", "content": "Case 1"}, {"role": "assistant", "content": "Done"}],
}
OTHER = ROW | {"id": "other"}


@pytest.fixture
def agent(project: Project) -> Client:
    client = Client()
    client.defaults |= key_headers(project)
    return client


def post(agent: Client, path: str, sent: Any) -> Any:
    return agent.post(path, json.dumps(sent), content_type="application/json")


def one_row(agent: Client, project: Project, tmp_path: Path) -> None:
    answer = post(agent, ROWS, ROW)
    assert answer.status_code == 400 and "was deleted on" in answer.json()["error"]


def one_row_by_another_spelling(agent: Client, project: Project, tmp_path: Path) -> None:
    """As others write the id of a trace."""
    for name in (trace_id(1).upper(), str(UUID(trace_id(1)))):
        answer = post(agent, ROWS, ROW | {"id": name})
        assert answer.status_code == 400 and "was deleted on" in answer.json()["error"]


def a_batch(agent: Client, project: Project, tmp_path: Path) -> None:
    answer = post(agent, f"{ROWS}batch/", [ROW, OTHER]).json()
    assert answer["accepted"] == 1 and "was deleted" in answer["rejected"][0]["error"]


def spans(agent: Client, project: Project, tmp_path: Path) -> None:
    assert send(agent, chat(1, 9, [text("user", "Case 1")], "Late", 1, at=60)).status_code == 200
    assembled()


def logs(agent: Client, project: Project, tmp_path: Path) -> None:
    item = {"traceId": trace_id(1), "spanId": f"{4:016x}", "body": {"stringValue": "Case 1"}}
    sent = {"resourceLogs": [{"scopeLogs": [{"logRecords": [item]}]}]}
    assert post(agent, "/v1/logs", sent).status_code == 200
    assembled()


def a_file_of_rows(agent: Client, project: Project, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, (ROW, OTHER))))
    with suppress(CommandError):  # which says what was rejected
        call_command("import_trajectories", str(path), project=project.slug)


def a_file_of_spans(agent: Client, project: Project, tmp_path: Path) -> None:
    """Of the second trace of the conversation, which is no run by its own name."""
    path = tmp_path / "spans.jsonl"
    path.write_text(json.dumps(body(*turn(2))))
    with suppress(CommandError):
        call_command("import_trajectories", str(path), project=project.slug)


def the_endpoint(agent: Client, project: Project, tmp_path: Path) -> None:
    put(tmp_path, record(project, ["Case 1"], trace_id=trace_id(1), span_id=f"{77:016x}"))
    storing.run(tmp_path, lambda: False)
    assembled()


def feedback(agent: Client, project: Project, tmp_path: Path) -> None:
    assert post(agent, f"{ROWS}{trace_id(1)}/feedback/", {"comment": "Bad"}).status_code == 410


def scores(agent: Client, project: Project, tmp_path: Path) -> None:
    sent = [{"run": trace_id(1), "name": "tone", "value": 1}]
    assert post(agent, "/api/v1/scores/", sent).json()["deleted"] == 1


def turn(number: int) -> list[dict]:
    """Of one conversation, each turn in a trace of its own."""
    talk = []
    for past in range(1, number):
        talk += [text("user", f"Case {past}"), text("assistant", f"Answer {past}")]
    talk.append(text("user", f"Case {number}"))
    return [chat(number, 1, talk, f"Answer {number}", at=20 * (number - 1))]


DOORS = [
    (one_row, LateData.Kind.RUN, 0),
    (one_row_by_another_spelling, LateData.Kind.RUN, 0),
    (a_batch, LateData.Kind.RUN, 1),
    (spans, LateData.Kind.SPANS, 0),
    (logs, LateData.Kind.SPANS, 0),
    (a_file_of_rows, LateData.Kind.RUN, 1),
    (a_file_of_spans, LateData.Kind.RUN, 0),
    (the_endpoint, LateData.Kind.SPANS, 0),
    (feedback, LateData.Kind.FEEDBACK, 0),
    (scores, LateData.Kind.FEEDBACK, 0),
]


@pytest.mark.parametrize(
    ("door", "kind", "others"), DOORS, ids=lambda one: getattr(one, "__name__", "")
)
def test_a_deleted_run_comes_back_by_no_door(
    agent: Client, project: Project, tmp_path: Path, door: Callable, kind: str, others: int
) -> None:
    send(agent, *turn(1), *turn(2))
    assembled()
    digest.run()
    assert [run.external_id for run in project.trajectories.all()] == [trace_id(1)]
    ended(submit(project, filters=f"q={trace_id(1)}"))
    assert not project.trajectories.exists() and not Trace.objects.exists()
    door(agent, project, tmp_path)
    digest.run()
    assert project.trajectories.count() == others and not Trace.objects.exists()
    counted = project.late_data.get()
    assert counted.kind == kind and counted.n >= 1
    shown = agent.get("/api/v1/late-data/").json()["results"]
    assert [(item["kind"], item["n"]) for item in shown] == [(kind, counted.n)]


def test_a_row_that_waited_for_presidio_does_not_bring_it_back(project: Project) -> None:
    for name, user in (("hers", "ann-17"), ("his", "bob-18")):
        data = json.dumps(ROW | {"id": name, "user_id": user}).encode()
        held.hold(project, HeldBatch.Kind.ROW, [data])
    done = ended(submit(project, users="ann-17"))
    assert done.result["deleted"] == {"waiting rows": 1}
    assert b"bob-18" in held.unsealed(HeldBatch.objects.get())


def test_spans_that_are_no_run_go_with_the_person(agent: Client, project: Project) -> None:
    """A trace that was set aside, and one that has not been assembled."""
    send(agent, agent_span(1, 1, user__id="ann-17"), chat(1, 2, [text("user", "Hi")], "Hello", 1))
    assembled()
    Trace.objects.update(problem="TypeError: ann-17", runs=[], due_at=None)
    project.trajectories.all().delete()
    send(agent, agent_span(2, 1, parent=9, user__id="ann-17"))
    send(agent, agent_span(3, 1, parent=9, user__id="bob-18"))
    ended(submit(project, users="ann-17"))
    left = set(Trace.objects.values_list("trace_id", flat=True))
    assert left == {trace_id(3)} and not Arrival.objects.exclude(problem="").exists()


@pytest.mark.parametrize(
    ("kept", "gone"),
    [
        ({"id": "a", "model": "gpt-4", "tags": ["4"], "n": "4"}, {"id": "b", "user_id": "4"}),
        ({"id": "a", "user_count": "4"}, {"id": "b", "metadata": {"enduser.id": "4"}}),
    ],
)
def test_a_short_id_is_only_looked_for_where_a_user_is_named(
    project: Project, kept: dict[str, Any], gone: dict[str, Any]
) -> None:
    held.hold(project, HeldBatch.Kind.ROW, [json.dumps(one).encode() for one in (kept, gone)])
    ended(submit(project, users="4"))
    (left,) = HeldBatch.objects.all()
    assert json.loads(held.unsealed(left)) == kept


def test_answers_that_were_refused_are_found(
    project: Project, settings: Any, tmp_path: Path
) -> None:
    settings.FLYWHEEL_ENDPOINT_SPOOL = tmp_path
    refused = tmp_path / "refused"
    refused.mkdir()
    for name, user in (("hers", "ann-17"), ("his", "bob-18")):
        one = record(project, ["Hi"], user=user, span_id=name)
        (refused / f"{name}.msgpack").write_bytes(msgpack.encode(one))
    done = ended(submit(project, users="ann-17"))
    assert [path.stem for path in refused.iterdir()] == ["his"]
    assert done.result["deleted"] == {"files of jobs": 1}
    assert waiting.Unstored


def test_a_restored_backup_loses_what_was_deleted_after_it(
    agent: Client, project: Project, tmp_path: Path
) -> None:
    file = tmp_path / "tombstones.jsonl"
    send(agent, *whole_run())
    assembled()
    post(agent, f"{ROWS}batch/", [OTHER, OTHER | {"id": "kept"}])
    digest.run()
    ended(submit(project, filters=f"q={trace_id(1)}"))
    ended(submit(project, users="nobody-1"))
    call_command("import_trajectories", _rows(tmp_path, OTHER), project=project.slug)
    ended(submit(project, filters="q=other"))
    call_command("tombstones", "export", str(file))
    assert trace_id(1) not in file.read_text() and "nobody" not in file.read_text()
    Tombstone.objects.all().delete()  # the backup is older
    send(agent, *whole_run())
    assembled()
    post(agent, ROWS, OTHER)
    assert project.trajectories.count() == 3
    with file.open("rb") as given:
        removed, again = tombstone_file.apply(given, with_copies=True)
    assert removed == {project.slug: 2} and len(again) == 1
    assert [run.external_id for run in project.trajectories.all()] == ["kept"]
    assert not Trace.objects.exists() and post(agent, ROWS, OTHER).status_code == 400


def exported_and_applied(file: Path, restore: Callable[[], Any]) -> list[str]:
    call_command("tombstones", "export", str(file))
    restore()
    with file.open("rb") as given:
        return tombstone_file.apply(given, with_copies=False)[1]


def test_a_project_that_was_deleted_after_the_backup_is_deleted_again(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.core.projects.deletion.SETTLES", timedelta(0))
    before = {"slug": project.slug, "stage": Stage.ACTIVE}
    deletion = lifecycle.delete(project=project, confirm=project.name, by=admin_of(project))
    runner.run(deletion)
    restored = Project.objects.filter(pk=project.pk)

    def restore() -> None:
        restored.update(**before)
        ProjectDeletion.objects.all().delete()

    (said,) = exported_and_applied(tmp_path / "tombstones.jsonl", restore)
    assert said == f"{project.slug}: this project was deleted. A worker deletes it again."
    assert restored.get().stage == Stage.DELETING and ProjectDeletion.objects.count() == 1


def test_another_project_with_the_number_or_the_name_of_a_deleted_one_stays(
    project: Project, tmp_path: Path
) -> None:
    lifecycle.delete(project=project, confirm=project.name, by=admin_of(project))

    def restore() -> None:
        later = project.created_at + timedelta(hours=1)
        Project.objects.update(stage=Stage.ACTIVE, created_at=later)

    (said,) = exported_and_applied(tmp_path / "tombstones.jsonl", restore)
    assert said == f"{project.slug}: there is no such project here."
    assert Project.objects.get().stage == Stage.ACTIVE


def test_runs_of_a_project_that_was_renamed_are_deleted_again(
    agent: Client, project: Project, tmp_path: Path
) -> None:
    before = project.slug
    post(agent, ROWS, OTHER)
    assert agent.delete(f"{ROWS}other/").status_code == 204
    Project.objects.update(slug="renamed")

    def restore() -> None:
        Tombstone.objects.all().delete()
        Project.objects.update(slug=before)
        post(agent, ROWS, OTHER)
        make_project()
        Project.objects.exclude(pk=project.pk).update(slug="renamed")

    assert exported_and_applied(tmp_path / "tombstones.jsonl", restore) == []
    assert not project.trajectories.exists()


def test_a_key_that_was_revoked_after_the_backup_is_revoked_again(
    project: Project, tmp_path: Path
) -> None:
    make_key(project)
    key = project.api_keys.get()
    assert revoke_api_key(key=key, by=admin_of(project))
    file = tmp_path / "tombstones.jsonl"
    back = lambda: ApiKey.objects.update(revoked_at=None)  # noqa: E731
    assert exported_and_applied(file, back) == [f"{project.slug}: revoked the key {key} again."]
    key.refresh_from_db()
    assert key.revoked_at and exported_and_applied(file, lambda: None) == []


def _rows(folder: Path, *rows: dict) -> str:
    path = folder / "again.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)
