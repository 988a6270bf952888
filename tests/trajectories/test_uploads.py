"""The upload page: preview, import by a worker, progress, retry, and what a stranger may not."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core import jobs, kept, outbox, runner
from apps.core.models import AuditEvent, Project, Role
from apps.trajectories import uploads
from apps.trajectories.importers import batches
from apps.trajectories.models import Trajectory, Upload
from apps.trajectories.pages import imports
from tests.factories import make_member, make_user, row
from tests.trajectories.test_importers import lines

pytestmark = pytest.mark.django_db


@pytest.fixture
def member(project: Project, data_dir: Path) -> Client:
    client = Client()
    client.force_login(make_member(project))
    return client


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list:
    found = []

    def send(name: str, args: list | None = None, **options: Any) -> None:
        if name == jobs.TASK:
            found.append((name, args, options["queue"]))

    monkeypatch.setattr(outbox.current_app, "send_task", send)
    return found


def url(name: str, project: Project, *args: Any) -> str:
    return reverse("trajectories:" + name, args=[project.slug, *args])


def send(
    client: Client, project: Project, data: bytes, name: str = "runs.jsonl", **more: Any
) -> Any:
    return client.post(
        url("import", project), {"file": SimpleUploadedFile(name, data), "format": "auto"} | more
    )


def test_the_whole_way(
    project: Project,
    member: Client,
    sent: list,
    django_capture_on_commit_callbacks: Any,
    data_dir: Path,
) -> None:
    page = send(
        member,
        project,
        lines(
            row(call={"tool": "t", "args": {"a": 1}}),
            b"{",
            row(),
            row(request="<script>x</script>"),
            row(),
            {"id": "q", "messages": [{"role": "nobody", "content": ""}]},
        ),
    )
    seen = page.context["preview"]
    assert page.status_code == 200 and (
        seen["format"],
        seen["good"],
        seen["bad"],
        seen["total"],
        len(seen["rows"]),
    ) == ("chat", 4, 2, 6, 3)
    assert Trajectory.objects.count() == 0 and "<script>x" not in page.content.decode()
    with django_capture_on_commit_callbacks(execute=True):
        answer = member.post(url("import_start", project), {"token": seen["token"]})
    made = Upload.objects.get()
    assert answer.status_code == 302 and sent == [
        ("core.run_job", ["trajectories.Upload", str(made.pk)], "default")
    ]
    page = member.get(answer["Location"])
    assert b"every 2s" in page.content
    with django_capture_on_commit_callbacks(execute=True):
        assert runs(made) == "succeeded"
    assert counts(made) == (4, 2) and (made.done, made.total, made.attempt) == (6, 6, 1)
    assert runs(made) == "succeeded" and made.attempt == 1
    assert not uploads.is_kept(made.file)
    status = member.get(url("import_status", project, made.pk))
    assert (
        b"every 2s" not in status.content
        and reverse("failures:policy", args=[project.slug]).encode() in status.content
    )
    assert AuditEvent.objects.filter(action="upload.submitted").exists()
    again = member.post(url("import_start", project), {"token": seen["token"]}, follow=True)
    assert Upload.objects.count() == 1 and b"no longer available" in again.content


def test_the_preview_says_what_is_mended_and_what_is_odd(project: Project, member: Client) -> None:
    hostile = {"a\x00<i>": "x\ud800", "n": "\x00"}
    given = [
        row(),
        row(request="one \x00 two"),
        row(metadata=hostile),
        row(ended_at="2001-01-01T00:00:00Z"),
    ]
    page = send(member, project, lines(*given))
    seen, html = page.context["preview"], page.content.decode()
    assert (seen["good"], seen["bad"]) == (4, 0) and {
        item["position"] for item in seen["warnings"]
    } >= {2, 3}
    assert (
        seen["warned"] == len(seen["warnings"]) >= 4
        and "was replaced" in html
        and "Warnings <span" in html
    )
    assert "a\ufffd&lt;i&gt;" in html and "a\ufffd<i>" not in html
    assert "Warnings <span" not in send(member, project, lines(row())).content.decode()
    many = send(member, project, lines(*[row(request="\x00") for _ in range(30)])).context[
        "preview"
    ]
    assert (
        len(many["warnings"]) == uploads.MAX_ERRORS
        and many["more_warned"] == many["warned"] - uploads.MAX_ERRORS
    )


def test_problems(
    project: Project, member: Client, sent: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert send(member, project, b"").status_code == 400
    assert member.post(url("import", project), {}).status_code == 400
    for data in (b"abc", b"\x1f\x8bxx", b"[" * 9000, b"\xff\xfe"):
        answer = send(member, project, data)
        assert answer.status_code in (200, 400), data
    assert (
        b"Choose one of the formats" in send(member, project, lines(row()), format="nope").content
    )
    monkeypatch.setattr(imports, "MAX_UPLOAD", 10)
    answer = send(member, project, lines(row()))
    assert answer.status_code == 400 and b"larger than" in answer.content


def test_cut_preview(project: Project, member: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PREVIEW_BYTES", 3000)
    page = send(member, project, lines(*[row() for _ in range(50)]))
    seen = page.context["preview"]
    assert not seen["whole"] and seen["bad"] == 0, seen["errors"]


def test_strangers_tokens(project: Project, member: Client, sent: list) -> None:
    token = send(member, project, lines(row())).context["preview"]["token"]
    other = Client()
    other.force_login(make_member(project))
    assert (
        b"no longer available"
        in other.post(url("import_start", project), {"token": token}, follow=True).content
    )
    assert (
        b"no longer available"
        in member.post(url("import_start", project), {"token": "x"}, follow=True).content
    )
    viewer = Client()
    viewer.force_login(make_member(project, Role.VIEWER))
    assert viewer.get(url("import", project)).status_code == 403
    stranger = Client()
    stranger.force_login(make_user())
    assert stranger.get(url("import", project)).status_code == 404
    assert Upload.objects.count() == 0


def test_failed_and_retried(
    project: Project, member: Client, sent: list, django_capture_on_commit_callbacks: Any
) -> None:
    token = send(member, project, lines(row())).context["preview"]["token"]
    with django_capture_on_commit_callbacks(execute=True):
        member.post(url("import_start", project), {"token": token})
    made = Upload.objects.get()
    text = uploads.path_of(made.file).read_bytes()
    kept.put_chunks(f"{uploads.KEPT}{made.file}", {uploads.FILE: [b"{"]})
    assert (
        runs(made) == "failed" and made.summary["errors"] and "Nothing was imported" in made.error
    )
    kept.put_chunks(f"{uploads.KEPT}{made.file}", {uploads.FILE: [text]})
    with django_capture_on_commit_callbacks(execute=True):
        member.post(url("import_retry", project, made.pk))
    assert len(sent) == 2
    assert runs(made) == "succeeded" and counts(made) == (1, 0)


def submitted(client: Client, project: Project, sent: list, rows: int) -> Upload:
    token = send(client, project, lines(*[row() for _ in range(rows)])).context["preview"]["token"]
    client.post(url("import_start", project), {"token": token})
    return Upload.objects.get()


def runs(made: Upload) -> str:
    runner.run(made)
    made.refresh_from_db()
    return made.state


def counts(made: Upload) -> tuple[int, int]:
    return made.summary["accepted"], made.summary["rejected"]


class Killed(BaseException):
    """As good as SIGKILL: nothing catches it."""


def test_an_import_whose_worker_died_goes_on_where_it_stopped(
    project: Project, member: Client, sent: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "ROWS", 2)
    made = submitted(member, project, sent, rows=5)
    real, stored = uploads.ingest, []

    def ingest(*, project: Project, rows: list) -> Any:
        if len(stored) == 2:
            raise Killed
        stored.append(len(rows))
        return real(project=project, rows=rows)

    with monkeypatch.context() as patch:
        patch.setattr(uploads, "ingest", ingest)
        with pytest.raises(Killed):
            runner.run(made)
    Upload.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=5))
    assert jobs.reap()["requeued"] == 1
    made.refresh_from_db()
    assert made.cursor["done"] == made.done == 4 and project.trajectories.count() == 4
    assert runs(made) == "succeeded" and counts(made) == (5, 0) and made.summary["duplicates"] == 0


def test_an_import_can_be_stopped_and_keeps_what_it_stored(
    project: Project, member: Client, sent: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "ROWS", 2)
    made = submitted(member, project, sent, rows=5)
    real, pressed = uploads.ingest, []

    def ingest(*, project: Project, rows: list) -> Any:
        pressed.append(member.post(url("import_cancel", project, made.pk)).status_code)
        return real(project=project, rows=rows)

    assert b">Cancel</button>" in member.get(url("import_status", project, made.pk)).content
    monkeypatch.setattr(uploads, "ingest", ingest)
    assert runs(made) == "cancelled" and pressed == [302] and project.trajectories.count() == 2
    assert b"Cancel" not in member.get(url("import_status", project, made.pk)).content
    assert (
        b"already finished"
        in member.post(url("import_cancel", project, made.pk), follow=True).content
    )
    stranger = Client()
    stranger.force_login(make_user())
    assert stranger.post(url("import_cancel", project, made.pk)).status_code == 404


@pytest.mark.proof
def test_an_import_that_always_kills_its_worker_ends(
    project: Project, member: Client, sent: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = submitted(member, project, sent, rows=1)

    def ingest(**_: Any) -> None:
        raise Killed

    monkeypatch.setattr(uploads, "ingest", ingest)
    for _ in range(made.max_attempts):
        with pytest.raises(Killed):
            runner.run(made)
        Upload.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=5))
        jobs.reap()
    made.refresh_from_db()
    assert made.state == "failed" and "It was tried 3 times" in made.error
    page = member.get(url("import_detail", project, made.pk)).content.decode()
    assert "stopped answering" in page and "Try again" in page
