"""An adapter that comes in parts by API: it goes on where it broke, and nothing that is not whole
becomes a version.
"""

# ruff: noqa: F811 - fixtures of another file

from __future__ import annotations

import hashlib
import io
import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import SuspiciousOperation
from django.db import connection
from django.test import Client
from django.utils import timezone

from apps.core import stores
from apps.core.models import Project
from apps.registry import uploads
from apps.registry.artifacts import local_path
from apps.registry.models import AdapterPart, AdapterUpload, ModelVersion
from apps.registry.trained_elsewhere import CONFIG, WEIGHTS
from tests.factories import key_headers, make_project
from tests.registry.test_trained_elsewhere import GOOD, base, lora, models  # noqa: F401 - fixtures

pytestmark = pytest.mark.django_db
URL = "/api/v1/adapter-uploads/"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PART", 100)


class Sender:
    """A client that uploads two files, part by part."""

    def __init__(self, base: ModelVersion, config: Any = GOOD, weights: bytes = b"") -> None:
        self.base = base
        self.contents = {CONFIG: json.dumps(config).encode(), WEIGHTS: weights or lora()}
        self.headers = key_headers(base.project)
        self.id = ""

    @property
    def files(self) -> list[dict[str, Any]]:
        return [
            {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for path, data in self.contents.items()
        ]

    def begin(self, **changes: Any) -> Any:
        body = {"name": "lora", "parent": self.base.pk, "files": self.files} | changes
        answer = Client().post(
            URL, json.dumps(body), content_type="application/json", **self.headers
        )
        if answer.status_code in (200, 201):
            self.id = answer.json()["id"]
        return answer

    def put(self, path: str, number: int, data: bytes | None = None) -> Any:
        sent = self.contents[path][number * 100 : number * 100 + 100] if data is None else data
        kind = {"content_type": "application/octet-stream"}
        return Client().put(f"{URL}{self.id}/{path}/{number}/", sent, **kind, **self.headers)

    def put_all(self) -> None:
        for file in Client().get(f"{URL}{self.id}/", **self.headers).json()["files"]:
            for number in file["missing"]:
                assert self.put(file["path"], number).status_code == 200

    def finish(self) -> Any:
        return Client().post(f"{URL}{self.id}/finish/", **self.headers)


def parts_on_disk(data_dir: Path) -> list[Path]:
    return [path for path in (data_dir / "artifacts").rglob("uploads/*/*") if path.is_file()]


def test_it_comes_in_parts_and_becomes_a_version(
    base: ModelVersion, data_dir: Path, django_capture_on_commit_callbacks: Any
) -> None:
    sender = Sender(base)
    assert sender.begin().status_code == 201
    sender.put_all()
    with django_capture_on_commit_callbacks(execute=True):
        answer = sender.finish()
    assert answer.status_code == 201 and answer.json()["lineage"] == {
        "trained": "elsewhere",
        "rank": 2,
        "declared_base": "",
    }
    version = ModelVersion.objects.get(pk=answer.json()["id"])
    assert (local_path(version.artifact) / WEIGHTS).read_bytes() == sender.contents[WEIGHTS]
    assert not AdapterUpload.objects.exists() and not parts_on_disk(data_dir)
    again = sender.begin()
    assert again.status_code == 200 and again.json()["model"] == "lora-v1", (
        "the answer that got lost is given again"
    )


def test_a_part_may_come_in_chunks_without_a_length(base: ModelVersion) -> None:
    sender = Sender(base)
    sender.begin()
    data = sender.contents[WEIGHTS][:100]
    chunked = {
        "CONTENT_LENGTH": "",
        "HTTP_TRANSFER_ENCODING": "chunked",
        "wsgi.input": Dripping(data),
    }
    kind = {"content_type": "application/octet-stream"}
    answer = Client().put(
        f"{URL}{sender.id}/{WEIGHTS}/0/", b"", **kind, **sender.headers, **chunked
    )
    assert answer.status_code == 200, answer.json()
    assert (
        0 not in next(file for file in answer.json()["files"] if file["path"] == WEIGHTS)["missing"]
    )


class Dripping(io.BytesIO):
    """As a server gives a body that comes in chunks: less at a time than it was asked for."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(7, size or 0))


def test_an_upload_that_broke_goes_on_with_what_is_missing(base: ModelVersion) -> None:
    sender = Sender(base)
    sender.begin()
    assert sender.put(WEIGHTS, 1).status_code == 200
    another = Sender(base)  # a program that knows nothing of the first
    answer = another.begin()
    assert answer.status_code == 200 and another.id == sender.id
    lacking = {file["path"]: file["missing"] for file in answer.json()["files"]}
    assert lacking[WEIGHTS] == [number for number in range(-(-len(lora()) // 100)) if number != 1]
    refused = another.finish()
    assert refused.status_code == 409 and "missing" in refused.json()["detail"]
    another.put_all()
    assert another.finish().status_code == 201


@pytest.mark.parametrize("data", [b"", b"x" * 99, b"x" * 101, b"x" * 5000])
def test_a_part_that_came_short_or_long_does_not_count(base: ModelVersion, data: bytes) -> None:
    sender = Sender(base)
    sender.begin()
    answer = sender.put(WEIGHTS, 0, data)
    assert answer.status_code == 400 and "Send the whole part again" in str(answer.json())
    assert not AdapterPart.objects.exists()


def test_other_bytes_than_announced_are_to_be_sent_again(base: ModelVersion) -> None:
    sender = Sender(base)
    sender.begin()
    sender.put_all()
    assert sender.put(WEIGHTS, 0, b"x" * 100).status_code == 200
    refused = sender.finish()
    assert refused.status_code == 409 and "SHA-256" in refused.json()["detail"]
    assert {row.path for row in AdapterPart.objects.all()} == {CONFIG}
    sender.put_all()
    assert sender.finish().status_code == 201


def test_what_is_no_adapter_is_refused_and_given_up(base: ModelVersion) -> None:
    sender = Sender(base, config=GOOD | {"lora_alpha": 0})
    sender.begin()
    sender.put_all()
    refused = sender.finish()
    assert refused.status_code == 400 and "lora_alpha" in str(refused.json())
    assert (
        not AdapterUpload.objects.exists()
        and not ModelVersion.objects.filter(kind="adapter").exists()
    )


@pytest.mark.parametrize(
    "files",
    [
        [],
        [{"path": CONFIG, "size": 1, "sha256": "a" * 64}],
        [
            {"path": "../../etc/passwd", "size": 1, "sha256": "a" * 64},
            {"path": WEIGHTS, "size": 1, "sha256": "a" * 64},
        ],
        [
            {"path": CONFIG, "size": 1, "sha256": "a" * 64},
            {"path": "adapter_model.bin", "size": 1, "sha256": "a" * 64},
        ],
        [
            {"path": CONFIG, "size": 1, "sha256": "a" * 64},
            {"path": WEIGHTS, "size": 2**40, "sha256": "a" * 64},
        ],
        [
            {"path": CONFIG, "size": 1, "sha256": "a" * 64},
            {"path": WEIGHTS, "size": 0, "sha256": "a" * 64},
        ],
        [
            {"path": CONFIG, "size": 1, "sha256": "../../x"},
            {"path": WEIGHTS, "size": 1, "sha256": "a" * 64},
        ],
        [
            {"path": CONFIG, "size": 1, "sha256": "a" * 64},
            {"path": CONFIG, "size": 1, "sha256": "b" * 64},
        ],
    ],
)
def test_what_is_announced_is_checked(base: ModelVersion, files: list) -> None:
    assert Sender(base).begin(files=files).status_code == 400 and not AdapterUpload.objects.exists()


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    "path", ["..%2F..%2Fsecret_key", "%2E%2E", "adapter_model.bin", WEIGHTS.upper(), "%00"]
)
def test_a_path_that_was_not_announced_is_refused(
    base: ModelVersion, data_dir: Path, path: str
) -> None:
    sender = Sender(base)
    sender.begin()
    try:
        answer = Client().put(
            f"{URL}{sender.id}/{path}/0/", b"x", content_type="a/b", **sender.headers
        )
    except SuspiciousOperation:
        pytest.fail("it reached the store")
    assert answer.status_code in (400, 404) and not parts_on_disk(data_dir)
    assert sender.put(WEIGHTS, 10**6).status_code == 400


def test_nobody_else_sees_or_sends_it(base: ModelVersion) -> None:
    sender = Sender(base)
    sender.begin()
    sender.headers = key_headers(make_project())
    assert sender.put(WEIGHTS, 0).status_code == 404 and sender.finish().status_code == 404
    assert Client().get(URL, **sender.headers).json() == {"results": []}
    refused = Client().post(
        URL,
        json.dumps({"name": "a", "parent": base.pk, "files": sender.files}),
        content_type="application/json",
        **sender.headers,
    )
    assert refused.status_code == 400 and "parent" in str(refused.json())


def test_a_store_that_is_full_says_so_and_the_part_can_be_sent_again(
    base: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = Sender(base)
    sender.begin()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(stores.DataFolder, "put", full)
        answer = sender.put(CONFIG, 0)
        assert answer.status_code == 409 and "No space left" in answer.json()["detail"]
    assert sender.put(CONFIG, 0).status_code == 200


def test_an_upload_that_nobody_goes_on_with_is_given_up(
    base: ModelVersion, data_dir: Path, django_capture_on_commit_callbacks: Any
) -> None:
    sender = Sender(base)
    sender.begin()
    sender.put(CONFIG, 0)
    assert uploads.forget_old() == 0 and parts_on_disk(data_dir)
    AdapterUpload.objects.update(created_at=timezone.now() - timedelta(days=3))
    with django_capture_on_commit_callbacks(execute=True):
        assert uploads.forget_old() == 1
    assert not AdapterUpload.objects.exists() and not parts_on_disk(data_dir)


@pytest.mark.django_db(transaction=True)
def test_two_that_upload_the_same_at_once_make_one_version(base: ModelVersion) -> None:
    statuses: list[int] = []

    def send() -> None:
        sender = Sender(base)
        if sender.begin().json().get("files"):
            for path, data in sender.contents.items():
                for number in range(-(-len(data) // 100)):
                    sender.put(path, number)
            statuses.append(sender.finish().status_code)
        connection.close()

    threads = [threading.Thread(target=send) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert 201 in statuses and set(statuses) <= {200, 201, 404, 409}
    assert (
        ModelVersion.objects.filter(kind="adapter").count() == 1
        and not AdapterUpload.objects.exists()
    )


def test_a_project_has_room_for_so_many(
    base: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MOST", 1)
    assert Sender(base).begin().status_code == 201
    assert Sender(base).begin(name="other").status_code == 409
    assert Project.objects.count() == 1


def test_another_base_by_name_keeps_the_upload_until_it_is_confirmed(
    base: ModelVersion, django_capture_on_commit_callbacks: Any
) -> None:
    sender = Sender(base, GOOD | {"base_model_name_or_path": "acme/other-7b"})
    sender.begin()
    sender.put_all()
    refused = sender.finish()
    assert (refused.status_code, refused.json()["path"]) == (400, "confirm_base")
    assert sender.begin(confirm_base=True).status_code == 200
    with django_capture_on_commit_callbacks(execute=True):
        made = sender.finish()
    assert made.status_code == 201 and made.json()["lineage"]["declared_base"] == "acme/other-7b"
    assert not AdapterUpload.objects.exists()
