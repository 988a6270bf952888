"""Artifacts in a bucket: an S3 server of this machine (moto's)."""

# ruff: noqa: F811 - fixtures of another file

from __future__ import annotations

import io
import logging
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError
from botocore.response import StreamingBody
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client

from apps.core import buckets, whole_folders
from apps.registry import uploads
from apps.registry.artifacts import (
    ArtifactError,
    _home,
    chunks_of,
    free_with,
    local_path,
    read_file,
    store_folder,
)
from apps.registry.models import AdapterPart, AdapterUpload, Artifact, ModelVersion
from flywheel.settings import artifact_store
from tests.factories import make_adapter, make_base, make_project
from tests.registry.s3 import BUCKET, client_of, s3_server, use_bucket
from tests.registry.test_trained_elsewhere import base, models  # noqa: F401 - fixtures
from tests.registry.test_uploads import Sender

pytestmark = pytest.mark.django_db
PREFIX = "team/artifacts"
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with s3_server() as address:
        client_of(address).create_bucket(Bucket=BUCKET)
        yield address


@pytest.fixture
def bucket(address: str, settings: Any, monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> Any:
    use_bucket(settings, monkeypatch, address)
    client = client_of(address)
    yield client
    for row in client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        client.delete_object(Bucket=BUCKET, Key=row["Key"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    (source / WEIGHTS).write_bytes(b"weights" * 1000)
    (source / "adapter_config.json").write_text("{}")
    return source


def keys(client: Any) -> list[str]:
    return [row["Key"] for row in client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]


def elsewhere(artifact: Artifact) -> Artifact:
    """As on another machine, which has nothing of it."""
    shutil.rmtree(_home(artifact.digest))
    return artifact


@pytest.mark.proof
def test_another_machine_has_it_from_the_bucket(bucket: Any, folder: Path) -> None:
    made = elsewhere(store_folder(folder))
    assert sorted(keys(bucket)) == [
        f"{PREFIX}/{made.digest}/{name}" for name in ("adapter_config.json", WEIGHTS)
    ]
    home = local_path(made)
    assert (home / WEIGHTS).read_bytes() == b"weights" * 1000 and home == _home(made.digest)
    assert not list(home.parent.glob("incoming-*"))


def test_one_file_is_read_without_the_others(bucket: Any, folder: Path) -> None:
    made = elsewhere(store_folder(folder))
    assert read_file(made, "adapter_config.json") == b"{}" and not _home(made.digest).exists()


def test_an_upload_that_broke_goes_on(
    bucket: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, sent = buckets.Bucket.put, []

    def breaks(self: Any, name: str, path: Path) -> None:
        if WEIGHTS in name and len(sent) < 2:
            sent.append(name)
            raise buckets.StoreError("the bucket does not answer")
        sent.append(name)
        put(self, name, path)

    monkeypatch.setattr(buckets.Bucket, "put", breaks)
    with pytest.raises(ArtifactError, match="does not answer"):
        store_folder(folder)
    assert not Artifact.objects.exists(), "what is not whole in the store is no artifact"
    made = store_folder(folder)
    assert [name.rpartition("/")[2] for name in sent].count("adapter_config.json") == 1
    assert local_path(elsewhere(made)).is_dir()


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            lambda s3, key: s3.put_object(Bucket=BUCKET, Key=key, Body=b"WEIGHTS" * 1000),
            "altered or cut off",
        ),
        (
            lambda s3, key: s3.put_object(Bucket=BUCKET, Key=key, Body=b"weights" * 999),
            "altered or cut off",
        ),
        (
            lambda s3, key: s3.put_object(Bucket=BUCKET, Key=key, Body=b"weights" * 900_000),
            "altered or cut off",
        ),
        (lambda s3, key: s3.delete_object(Bucket=BUCKET, Key=key), "has no"),
    ],
)
def test_other_bytes_are_never_served(bucket: Any, folder: Path, spoil: Any, says: str) -> None:
    made = elsewhere(store_folder(folder))
    spoil(bucket, f"{PREFIX}/{made.digest}/{WEIGHTS}")
    with pytest.raises(ArtifactError, match=says):
        local_path(made)
    assert not _home(made.digest).exists() and not list(
        _home(made.digest).parent.glob("incoming-*")
    )
    with pytest.raises(ArtifactError, match=says):
        b"".join(chunks_of(made, WEIGHTS))


def test_a_copy_that_was_altered_here_is_fetched_again(bucket: Any, folder: Path) -> None:
    made = store_folder(folder)
    (_home(made.digest) / WEIGHTS).write_bytes(b"WEIGHTS" * 1000)
    assert (local_path(made) / WEIGHTS).read_bytes() == b"weights" * 1000
    (_home(made.digest) / "pytorch_model.bin").write_bytes(b"pickle")
    assert not (local_path(made) / "pytorch_model.bin").exists()


@pytest.mark.proof
def test_a_store_that_is_down_says_so(
    bucket: Any, folder: Path, settings: Any, monkeypatch: Any
) -> None:
    made = elsewhere(store_folder(folder))
    use_bucket(settings, monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(ArtifactError, match="does not answer"):
        local_path(made)


class Odd(BaseHTTPRequestHandler):
    """Answers all requests alike, and counts them."""

    status, body, asked = 403, b"<Error><Code>InvalidAccessKeyId</Code></Error>", 0

    def do_GET(self) -> None:
        type(self).asked += 1
        if not self.status:  # closes without an answer
            self.close_connection = True
            return
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        if 300 <= self.status < 400:
            self.send_header("Location", "https://127.0.0.1:9/")
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else self.body)

    do_HEAD = do_PUT = do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("status", "body", "says", "asked"),
    [
        (403, Odd.body, "refuses these credentials .InvalidAccessKeyId", 1),
        (404, b"<Error><Code>NoSuchBucket</Code></Error>", "there is no bucket", 1),
        (301, b"", "is elsewhere: FLYWHEEL_S3_ENDPOINT", None),
        (503, b"", "does not answer .503", 3),
        (0, b"", "does not answer .ConnectionClosedError", 3),
    ],
)
def test_why_a_store_gives_nothing_is_said_after_three_tries_at_most(
    bucket: Any,
    folder: Path,
    settings: Any,
    monkeypatch: Any,
    status: int,
    body: bytes,
    says: str,
    asked: int | None,
) -> None:
    made = elsewhere(store_folder(folder))
    handler = type("Handler", (Odd,), {"status": status, "body": body, "asked": 0})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    use_bucket(settings, monkeypatch, f"http://127.0.0.1:{server.server_port}")
    try:
        with pytest.raises(ArtifactError, match=says):
            local_path(made)
        assert asked in (None, handler.asked)
        with pytest.raises(ArtifactError):
            store_folder(folder)
    finally:
        server.shutdown()
        server.server_close()


def test_a_connection_that_breaks_in_the_middle_is_tried_again(
    bucket: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, tries = elsewhere(store_folder(folder)), []

    def breaks(body: Any, size: int) -> Iterator[bytes]:
        tries.append(size)
        if len(tries) in (1, 2):
            yield body.read(1)
            raise ReadTimeoutError(endpoint_url="http://s3")
        yield body.read()

    monkeypatch.setattr(StreamingBody, "iter_chunks", breaks)
    assert (local_path(made) / WEIGHTS).read_bytes() == b"weights" * 1000 and len(tries) == 4


def test_a_full_disk_says_so_and_leaves_nothing(
    bucket: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = elsewhere(store_folder(folder))
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(whole_folders.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(ArtifactError, match="MiB are free on the disk"):
        local_path(made)
    assert not list(_home(made.digest).parent.glob("incoming-*"))


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("name", ["../../etc/cron.txt", "/etc/passwd", "a/../../b", "..\\b"])
def test_a_name_that_climbs_out_is_refused(bucket: Any, folder: Path, name: str) -> None:
    made = elsewhere(store_folder(folder))
    made.files = [made.files[0] | {"path": name}]
    with pytest.raises(ArtifactError, match="leads out"):
        local_path(made)


def test_many_callers_fetch_it_once(
    bucket: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = elsewhere(store_folder(folder))
    chunks, asked, found = buckets.Bucket.chunks, [], []
    monkeypatch.setattr(
        buckets.Bucket, "chunks", lambda self, name: asked.append(name) or chunks(self, name)
    )

    def fetch() -> None:
        found.append(local_path(made))
        connection.close()

    threads = [threading.Thread(target=fetch) for _ in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(found) == 6 and len(set(found)) == 1 and len(asked) == 2


def test_what_nothing_needs_any_more_leaves_the_bucket(
    bucket: Any, data_dir: Path, django_capture_on_commit_callbacks: Any
) -> None:
    project = make_project()
    base = make_base(project, data_dir)
    gone, kept = make_adapter(project, base, data_dir), make_adapter(project, base, data_dir)
    with django_capture_on_commit_callbacks(execute=True):
        free = free_with(ModelVersion.objects.filter(pk=gone.pk))
        ModelVersion.objects.filter(pk=gone.pk)._raw_delete("default")
        free()
    assert {key.split("/")[2] for key in keys(bucket)} == {kept.artifact_id}


def test_what_came_back_meanwhile_stays(
    bucket: Any, data_dir: Path, django_capture_on_commit_callbacks: Any
) -> None:
    project = make_project()
    base = make_base(project, data_dir)
    version = make_adapter(project, base, data_dir)
    folder = next(data_dir.glob("adapter-*"))
    with django_capture_on_commit_callbacks() as callbacks:
        free = free_with(ModelVersion.objects.filter(pk=version.pk))
        ModelVersion.objects.filter(pk=version.pk)._raw_delete("default")
        free()
    again = store_folder(folder)
    [callback() for callback in callbacks]
    assert local_path(elsewhere(again)).is_dir()


@pytest.mark.proof
def test_parts_and_downloads_need_no_disk_that_is_shared(
    bucket: Any,
    base: ModelVersion,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Any,
) -> None:
    monkeypatch.setattr(uploads, "PART", 100)
    sender = Sender(base)
    sender.begin()
    sender.put_all()
    assert any(f"{PREFIX}/uploads/" in key for key in keys(bucket))
    with django_capture_on_commit_callbacks(execute=True):
        version = ModelVersion.objects.get(pk=sender.finish().json()["id"])
    assert not any("/uploads/" in key for key in keys(bucket))
    elsewhere(version.artifact)
    link = (
        Client()
        .post(f"/api/v1/model-versions/{version.pk}/download/", **sender.headers)
        .json()["url"]
    )
    answer = Client().get(link.removeprefix("http://testserver"))
    body = b"".join(answer.streaming_content)
    assert sender.contents[WEIGHTS] in body and len(body) == int(answer["Content-Length"])
    assert not _home(version.artifact_id).exists(), "it was streamed from the bucket"


@pytest.mark.django_db(transaction=True)
def test_no_part_stays_in_the_bucket_whose_upload_is_given_up(
    bucket: Any, base: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One was stored by a worker that died before it noted that; another comes after the upload was
    given up.
    """
    monkeypatch.setattr(uploads, "PART", 100)
    sender = Sender(base)
    sender.begin()
    sender.put(WEIGHTS, 0)
    AdapterPart.objects.all().delete()
    upload = AdapterUpload.objects.get()
    uploads.remove(AdapterUpload.objects.get())
    assert not keys(bucket)
    with pytest.raises(uploads.UploadError, match="finished or cancelled"):
        uploads.add_part(upload=upload, path=WEIGHTS, number=0, data=sender.contents[WEIGHTS][:100])
    assert not keys(bucket)


# From one store to another


@pytest.fixture
def kept_here(data_dir: Path, folder: Path) -> list[Artifact]:
    """Two artifacts in the data folder."""
    first = store_folder(folder)
    (folder / WEIGHTS).write_bytes(b"other weights" * 1000)
    return [first, store_folder(folder)]


def moved(*options: str) -> str:
    out = io.StringIO()
    call_command("move_artifacts", *options, stdout=out)
    return out.getvalue()


def test_artifacts_move_to_a_bucket_and_back(
    kept_here: list[Artifact],
    bucket: Any,
    settings: Any,
    data_dir: Path,
    address: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLYWHEEL_S3_ENDPOINT", address)
    assert "2 copied, 0 there already" in moved("--from", "data-folder")
    assert len(keys(bucket)) == 4 and _home(kept_here[0].digest).exists(), (
        "it is only removed where that is asked for"
    )
    assert "0 copied, 2 there already" in moved("--from", "data-folder", "--remove")
    assert not any(_home(artifact.digest).exists() for artifact in kept_here)
    assert (local_path(kept_here[1]) / WEIGHTS).read_bytes() == b"other weights" * 1000
    where = f"s3://{BUCKET}/{PREFIX}"
    with pytest.raises(CommandError, match="kept already"):
        moved("--from", where)
    shutil.rmtree(data_dir / "artifacts")
    settings.STORAGES = settings.STORAGES | {"artifacts": artifact_store("")}
    assert "2 copied" in moved("--from", where, "--remove")
    assert local_path(kept_here[0]).is_dir() and not keys(bucket)


@pytest.mark.proof
def test_a_move_goes_on_where_it_broke_and_replaces_what_is_damaged(
    kept_here: list[Artifact], bucket: Any
) -> None:
    first, second = kept_here
    lost = _home(second.digest) / WEIGHTS
    kept = lost.read_bytes()
    lost.write_bytes(b"x" * len(kept))
    with pytest.raises(CommandError, match="not what was stored"):
        moved("--from", "data-folder", "--remove")
    assert not _home(first.digest).exists() and _home(second.digest).exists(), (
        "what is not whole there stays here"
    )
    assert f"{PREFIX}/{second.digest}/{WEIGHTS}" not in keys(bucket)
    lost.write_bytes(kept)
    name = f"{PREFIX}/{first.digest}/{WEIGHTS}"
    assert "1 copied, 1 there already" in moved("--from", "data-folder")
    bucket.put_object(
        Bucket=BUCKET, Key=f"{PREFIX}/{second.digest}/{WEIGHTS}", Body=b"y" * len(kept)
    )
    assert "1 copied, 1 there already" in moved("--from", "data-folder") and name in keys(bucket)
    assert read_file(second, WEIGHTS) == kept


def test_a_store_that_is_none_is_refused(bucket: Any) -> None:
    with pytest.raises(CommandError, match="must be data-folder"):
        moved("--from", "/tmp/elsewhere")
