"""Pictures, sounds and files in messages: kept apart, given back as they were sent, harmless."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.html import escape
from django.utils.http import content_disposition_header

from apps.core.models import Project, Role
from apps.core.projects import deletion
from apps.core.stores import OtherFiles
from apps.registry.moving import move_all
from apps.trajectories import digest as words
from apps.trajectories import media, media_store
from apps.trajectories.actions import deletions
from apps.trajectories.actions.redaction import redactor_of
from apps.trajectories.actions.store import find, ingest
from apps.trajectories.exports import jsonl
from apps.trajectories.models import Medium, Trajectory
from tests.factories import make_member, make_project, row

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data_dir")]


def png(width: int = 3, height: int = 2, more: bytes = b"") -> bytes:
    size = width.to_bytes(4) + height.to_bytes(4)
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + size + bytes(range(100)) + more


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


WAV = b"RIFF\0\0\0\0WAVE" + bytes(300)
PICTURE, FILE = b64(png()), b64(b"%PDF-1.7" + bytes(200))
URL_SAFE = base64.urlsafe_b64encode(png(more=b"\xff\xfe\xfb" * 40)).decode().rstrip("=")
LINES = base64.encodebytes(bytes(60_000)).decode()
SENT = {
    "openai image": [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
    ],
    "openai audio": [{"type": "input_audio", "input_audio": {"data": b64(WAV), "format": "wav"}}],
    "openai file": [
        {"type": "file", "file": {"filename": "a", "file_data": f"data:a/b;base64,{FILE}"}}
    ],
    "anthropic": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
        {"type": "document", "source": {"type": "base64", "media_type": "a/b", "data": FILE}},
    ],
    "url-safe, unpadded": [{"type": "image", "mimeType": "image/png", "data": URL_SAFE}],
    "otlp blob": [{"type": "blob", "modality": "image", "mime_type": "a/b", "content": PICTURE}],
    "in lines": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{LINES}"}}],
    "a text": f"data:image/png;base64,{PICTURE}",
    "in a tool's JSON": json.dumps({"images": [{"data": b64(png(more=bytes(5000)))}]}),
}


def run(content: Any, name: str = "r", **more: Any) -> dict:
    messages = [{"role": "user", "content": content, **more}, {"role": "assistant", "content": "a"}]
    return row(name) | {"messages": messages}


def stored(project: Project, name: str = "r") -> Trajectory:
    found = find(project, name)
    assert found is not None
    return found


def files(data_dir: Path) -> set[str]:
    return {path.name for path in data_dir.glob("artifacts/media/*/*")}


def shown(viewer: Client, project: Project, digest: str, name: str = "r", **query: str) -> Any:
    address = reverse("trajectories:medium", args=[project.slug, stored(project, name).pk, digest])
    return viewer.get(address, query)


@pytest.fixture
def viewer(project: Project) -> Client:
    client = Client()
    client.force_login(make_member(project, Role.VIEWER))
    return client


@pytest.mark.more(rows=3)
@pytest.mark.parametrize("content", SENT.values(), ids=SENT)
def test_what_was_sent_is_given_back_and_kept_apart(
    project: Project, agent: Client, content: Any
) -> None:
    sent = run(content)
    assert ingest(project=project, rows=[sent]).accepted == 1
    kept = json.dumps(stored(project).content["messages"])
    assert media.SCHEME in kept and len(kept) < 700
    assert stored(project).messages == sent["messages"]
    assert agent.get("/api/v1/trajectories/r/").json()["messages"] == sent["messages"]
    light = agent.get("/api/v1/trajectories/").json()["results"][0]
    assert light["messages"] == stored(project).content["messages"]
    (line,) = jsonl(Trajectory.objects.all())
    assert json.loads(line)["messages"] == sent["messages"]
    assert ingest(project=project, rows=[sent]).duplicates == 1


def test_a_list_has_one_room_for_all_runs(
    project: Project, agent: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media, "MOST_BACK", 1_000)
    sent = [
        run(f"data:image/png;base64,{b64(png(more=n.encode() * 300))}", f"r{n}") for n in "1234"
    ]
    ingest(project=project, rows=sent)
    rows = agent.get("/api/v1/trajectories/", {"media": "embedded"}).json()["results"]
    embedded = [media.SCHEME not in json.dumps(row["messages"]) for row in rows]
    assert embedded == [True, True, False, False]


def test_what_is_no_medium_stays(project: Project) -> None:
    secret = b64(png(more=bytes(500)))
    content = [
        {"type": "redacted_thinking", "data": secret},
        {"type": "reasoning", "encrypted_content": secret},
        {"type": "text", "text": "A" * 300},
        {"type": "image_url", "image_url": {"url": "https://x.test/" + "a" * 300}},
    ]
    ingest(project=project, rows=[run(content)])
    assert stored(project).content["messages"][0]["content"] == content
    assert not Medium.objects.exists()


def test_rules_of_redaction_leave_base64_whole(project: Project) -> None:
    given = run(SENT["anthropic"] + SENT["openai audio"])
    redactor = redactor_of(project)
    assert redactor and redactor.redact(given)[0]["messages"] == given["messages"]


HOSTILE = {
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>" * 4, "file"),
    "html": (b"<!doctype html><script>alert(1)</script>" * 4, "file"),
    "bomb": (png(60_000, 60_000), "file"),
    "empty picture": (png(0, 7), "file"),
    "cut off": (b"\xff\xd8\xff\xe0" + bytes(200), "file"),
    "endless marker": (b"\xff\xd8\xff" + b"\xff" * 200, "file"),
    "pdf": (b"%PDF-1.7 /JS (app.alert(1))" + bytes(200), "file"),
    "polyglot": (png(more=b"<script>alert(1)</script>"), "image"),
    "gif": (b"GIF89a\x02\0\x03\0" + b"<script>*/" * 20, "image"),
    "sound": (WAV, "audio"),
}


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(("data", "kind"), HOSTILE.values(), ids=HOSTILE)
def test_the_page_shows_what_the_bytes_are(
    project: Project, viewer: Client, data: bytes, kind: str
) -> None:
    """Whatever was said of them: everything is sent as a picture."""
    content = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64(data)}"}}]
    ingest(project=project, rows=[run(content)])
    digest = hashlib.sha256(data).hexdigest()
    page = viewer.get(stored(project).get_absolute_url()).content.decode()
    assert (f"/media/{digest}/" in page) and ("<img" in page) == (kind == "image")
    assert ("<audio" in page) == (kind == "audio") and "<script>alert" not in page
    answer = shown(viewer, project, digest)
    assert b"".join(answer) == data
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Content-Security-Policy"].endswith("sandbox")
    assert answer["Content-Disposition"].startswith("attachment" if kind == "file" else "inline")
    assert "html" not in answer["Content-Type"] and "svg" not in answer["Content-Type"]
    saved = shown(viewer, project, digest, download="1")
    assert saved["Content-Disposition"].startswith("attachment")


def test_addresses_are_links_and_words_are_read(project: Project, viewer: Client) -> None:
    content = [
        {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
        {"type": "uri", "modality": "image", "uri": "javascript:alert(1)"},
    ]
    audio = {"id": "a", "data": b64(WAV), "transcript": "Where is my order?"}
    ingest(project=project, rows=[run(content, audio=audio)])
    page = viewer.get(stored(project).get_absolute_url()).content.decode()
    assert 'href="https://x.test/a.png"' in page and 'src="https' not in page
    assert 'href="javascript' not in page and "Where is my order?" in page


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("name", "saved"),
    [
        ("Rechnung März.pdf", "Rechnung März.pdf"),
        ('../a".html', "__a_.pdf"),
        ("\u202efdp.exe", "fdp.pdf"),
    ],
)
def test_a_file_has_the_name_of_its_message(
    project: Project, viewer: Client, name: str, saved: str
) -> None:
    data = b"%PDF-1.7" + bytes(200)
    part = {"type": "file", "file": {"filename": name, "file_data": f"data:a/b;base64,{FILE}"}}
    ingest(project=project, rows=[run([part])])
    page = viewer.get(stored(project).get_absolute_url()).content.decode()
    assert escape(name.replace("\u202e", "")) in page
    address = re.search(r'href="([^"]+\?download=1[^"]*)"', page)
    answer = viewer.get(unescape(address[1]))
    assert answer["Content-Disposition"] == content_disposition_header(True, saved)
    assert b"".join(answer) == data


def test_another_project_gives_nothing_away(
    project: Project, viewer: Client, agent: Client
) -> None:
    """Neither to who knows a digest, nor to a run that refers to it."""
    other, digest = make_project(), hashlib.sha256(png()).hexdigest()
    ingest(project=other, rows=[run(SENT["openai image"])])
    refers = [{"type": "image_url", "image_url": {"url": f"{media.SCHEME}{digest}"}}]
    ingest(project=project, rows=[run(refers)])
    assert stored(project).messages[0]["content"] == refers
    assert shown(viewer, project, digest).status_code == 404
    address = reverse("trajectories:medium", args=[other.slug, stored(other).pk, digest])
    assert viewer.get(address).status_code == 404
    assert agent.get(f"/api/v1/media/{digest}/").status_code == 404
    # One of its own that this run does not have.
    ingest(project=project, rows=[run(SENT["openai audio"], "s")])
    sound = hashlib.sha256(WAV).hexdigest()
    assert shown(viewer, project, sound, "s").status_code == 200
    assert shown(viewer, project, sound).status_code == 404


def test_what_a_person_writes_is_no_reference(project: Project, agent: Client) -> None:
    """Neither changed nor expanded, though the project has the medium; also beside a real one."""
    ingest(project=project, rows=[run(SENT["openai image"], "other")])
    digest = hashlib.sha256(png()).hexdigest()
    written = [f"{media.SCHEME}{digest}", f"{media.SCHEME}{digest}#base64", f"{media.SCHEME}: a"]
    written += [f"See data:image/png;base64,{written[1]} and {written}"]
    for number, text in enumerate(written):
        said = [{"type": "text", "text": text}, {"type": "text", "url": text}]
        parts = [*said, *SENT["openai audio"]]
        for content in (text, json.dumps({"url": text}), parts):
            sent = run(content, name := f"{number}-{type(content).__name__}-{len(str(content))}")
            assert ingest(project=project, rows=[sent]).accepted == 1
            assert stored(project, name).messages == sent["messages"]
            assert agent.get(f"/api/v1/trajectories/{name}/").json()["messages"] == sent["messages"]
            own = Medium.objects.filter(uses__trajectory_id=stored(project, name).pk)
            assert own.filter(digest=digest).count() == 0


@pytest.mark.proof
def test_what_a_person_writes_is_shown_and_found_as_it_is(project: Project, viewer: Client) -> None:
    text = f"data: what does {media.SCHEME}{'a' * 64}#base64 mean, dear zebra?"
    ingest(project=project, rows=[run(text)])
    words.run()
    page = viewer.get(stored(project).get_absolute_url()).content.decode()
    assert text in page and "no longer stored" not in page
    listed = viewer.get(reverse("trajectories:list", args=[project.slug]), {"q": "zebra"})
    assert stored(project).get_absolute_url() in listed.content.decode()


def test_an_upload_is_referred_to(project: Project, agent: Client, viewer: Client) -> None:
    sent = agent.post("/api/v1/media/?name=../a%22b.html", png(), content_type="text/html")
    made = sent.json()
    assert sent.status_code == 201 and made["media_type"] == "image/png"
    assert (made["width"], made["height"]) == (3, 2)
    ingest(project=project, rows=[run([{"type": "image_url", "image_url": {"url": made["url"]}}])])
    answer = shown(viewer, project, made["sha256"])
    assert answer["Content-Disposition"] == 'inline; filename="__a_b.png"'
    whole = agent.get("/api/v1/trajectories/r/").json()["messages"][0]["content"][0]
    assert whole["image_url"]["url"] == f"data:image/png;base64,{PICTURE}"
    assert b"".join(agent.get(f"/api/v1/media/{made['sha256']}/")) == png()
    assert agent.post("/api/v1/media/", b"", content_type="a/b").status_code == 400
    named = agent.post(f"/api/v1/media/?name={'a' * 201}", b"a", content_type="a/b")
    assert named.status_code == 400 and named.json()["path"] == "name"


def test_an_upload_that_no_run_refers_to_goes(
    project: Project,
    agent: Client,
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Any,
) -> None:
    agent.post("/api/v1/media/", png(), content_type="a/b")
    ingest(project=project, rows=[run(SENT["openai audio"])])
    assert media_store.forget_unused() == 0
    monkeypatch.setattr(media_store, "UNUSED", -media_store.UNUSED)
    with django_capture_on_commit_callbacks(execute=True):
        assert media_store.forget_unused() == 1
    assert files(data_dir) == {hashlib.sha256(WAV).hexdigest()}


def test_a_medium_goes_with_its_last_run(
    project: Project, data_dir: Path, django_capture_on_commit_callbacks: Any
) -> None:
    """A revision that a later copy replaced has media, too."""
    ingest(project=project, rows=[run(SENT["openai image"]), run(SENT["openai image"], "s")])
    ingest(project=project, rows=[run(SENT["openai audio"])])
    assert len(files(data_dir)) == 2
    with django_capture_on_commit_callbacks(execute=True):
        deletions.delete(trajectory=stored(project, "s"))
    assert len(files(data_dir)) == 2
    with django_capture_on_commit_callbacks(execute=True):
        deletions.delete(trajectory=stored(project))
    assert not files(data_dir) and not Medium.objects.exists()


def test_media_go_with_their_project(
    project: Project, data_dir: Path, django_capture_on_commit_callbacks: Any
) -> None:
    ingest(project=project, rows=[run(SENT["openai image"])])
    ingest(project=make_project(), rows=[run(SENT["openai image"])])
    lookups = deletion.tables()
    with django_capture_on_commit_callbacks(execute=True):
        for group in deletion.groups():
            if {"MediumUse", "Medium"} & {model.__name__ for model in group}:
                deletion._remove(group, project, lookups)
    assert len(files(data_dir)) == 1 and not project.media.exists()


def test_a_lost_file_is_said(project: Project, viewer: Client, data_dir: Path) -> None:
    ingest(project=project, rows=[run(SENT["openai image"])])
    (path,) = data_dir.glob("artifacts/media/*/*")
    path.write_bytes(b"<html>")
    assert shown(viewer, project, path.name).status_code == 404
    assert media.SCHEME in json.dumps(stored(project).messages)


def test_references_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "MOST_BACK", 1000)
    reference = f"{media.SCHEME}{'a' * 64}#base64 "
    found = media.put_back(
        [{"role": "user", "content": reference * 500}], lambda _: (bytes(300), "")
    )
    assert len(found[0]["content"]) < 500 * len(reference) + 2000


def test_media_move_with_the_store(project: Project, data_dir: Path, tmp_path: Path) -> None:
    from django.core.files.storage import FileSystemStorage

    from apps.core.stores import DataFolder, store

    class Elsewhere(DataFolder):
        base_location = str(tmp_path / "elsewhere")  # type: ignore[assignment]
        location = base_location  # type: ignore[assignment]

    ingest(project=project, rows=[run(SENT["openai image"])])
    target: FileSystemStorage = Elsewhere()
    moved = move_all(store(), target, remove=True, said=print)
    assert (moved.copied, moved.failed) == (1, []) and not files(data_dir)
    (path,) = (tmp_path / "elsewhere").glob("media/*/*")
    assert path.read_bytes() == png() and OtherFiles
