"""Files that a process leaves for others, in the data folder and in a bucket."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from apps.core import kept
from apps.core.models import KeptFile
from apps.core.stores import store
from tests.registry.s3 import BUCKET, client_of, s3_server, use_bucket

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with s3_server() as address:
        client_of(address).create_bucket(Bucket=BUCKET)
        yield address


@pytest.fixture(params=["folder", "bucket"])
def where(
    request: pytest.FixtureRequest,
    address: str,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    data_dir: Path,
) -> Iterator[str]:
    if request.param == "bucket":
        use_bucket(settings, monkeypatch, address)
    yield request.param
    for row in client_of(address).list_objects_v2(Bucket=BUCKET).get("Contents", []):
        client_of(address).delete_object(Bucket=BUCKET, Key=row["Key"])


@pytest.fixture
def other_machine(where: str, settings: Any, tmp_path: Path) -> Callable[[], Path]:
    """Goes on with another data folder, where the store is a bucket."""

    def move() -> Path:
        if where == "bucket":
            settings.FLYWHEEL_DATA_DIR = tmp_path / "other"
        return settings.FLYWHEEL_DATA_DIR

    return move


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "made"
    made.mkdir()
    (made / "weights").write_bytes(b"w" * 3_000_000)
    (made / "state.json").write_text("{}")
    return made


def keep(folder: Path, owner: str = "jobs/a/1", **more: Any) -> None:
    kept.put(owner, {f"out/step/{path.name}": path for path in folder.iterdir()}, **more)


def stored() -> int:
    return sum(store().has(row.stored_as, row.size) for row in KeptFile.objects.all())


def test_another_machine_has_the_folder(
    folder: Path, other_machine: Callable[[], Path], where: str
) -> None:
    keep(folder, is_final=True)
    target = other_machine() / "jobs" / "step"
    assert kept.fetch("jobs/a/1", "out/step", target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        "weights": b"w" * 3_000_000,
        "state.json": b"{}",
    }
    assert [path.name for path in target.parent.iterdir()] == ["step"]
    (target / "weights").write_bytes(b"of this machine")
    assert kept.fetch("jobs/a/1", "out/step", target)  # it replaces what is there
    assert (target / "weights").read_bytes() == b"w" * 3_000_000
    assert not kept.fetch("jobs/a/1", "out/st", target / "x") and not (target / "x").exists()


def test_one_file_is_read_where_it_is_needed(
    other_machine: Callable[[], Path], where: str, settings: Any
) -> None:
    kept.put_chunks("uploads/1", {"file": [b"ab", b"c"], "answers": []})
    other_machine()
    path = kept.path_of("uploads/1", "file")
    assert path and path.read_bytes() == b"abc" and path.is_relative_to(settings.FLYWHEEL_DATA_DIR)
    assert kept.path_of("uploads/1", "answers").read_bytes() == b""
    assert (
        kept.path_of("uploads/1", "nothing") is None and kept.path_of("uploads/2", "file") is None
    )
    if where == "bucket":
        path.write_bytes(b"altered")
        assert kept.path_of("uploads/1", "file").read_bytes() == b"abc"


def test_bytes_go_with_the_last_row_that_has_them(folder: Path, where: str) -> None:
    keep(folder)
    kept.copy("jobs/a/1", "jobs/a/2", ["out/step"])
    assert KeptFile.objects.count() == 4 and stored() == 4
    row = KeptFile.objects.get(folder="jobs/a/1", path="out/step/weights")
    kept.remove_folder("jobs/a/1")
    assert KeptFile.objects.count() == 2 and stored() == 2
    kept.remove_folder("jobs/a/2")
    assert not store().has(row.stored_as, row.size)


def test_a_file_that_is_kept_again_replaces_the_one_before(folder: Path, where: str) -> None:
    keep(folder)
    before = KeptFile.objects.get(path="out/step/state.json")
    (folder / "state.json").write_text("[]")
    keep(folder)
    assert KeptFile.objects.count() == 2 and stored() == 2
    assert not store().has(before.stored_as, before.size)


def test_all_are_kept_or_none(folder: Path, where: str) -> None:
    def refuse() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        keep(folder, require=refuse)
    assert not KeptFile.objects.exists()


def test_a_file_that_may_change_is_no_link(folder: Path, where: str) -> None:
    keep(folder)
    with (folder / "state.json").open("a") as file:
        file.write("more")
    assert kept.path_of("jobs/a/1", "out/step/state.json").read_text() == "{}"


def test_what_nobody_came_back_for_is_removed(where: str) -> None:
    for name in ("left", "awaited", "new"):
        kept.put_chunks(f"uploads/{name}", {"file": [name.encode()]})
    old = timezone.now() - timedelta(days=3)
    KeptFile.objects.exclude(folder="uploads/new").update(kept_at=old)
    kept.remove_leftovers("uploads/", lambda names: names & {"awaited"})
    assert {row.folder for row in KeptFile.objects.all()} == {"uploads/awaited", "uploads/new"}


def test_a_machine_forgets_what_was_removed_elsewhere(
    other_machine: Callable[[], Path], where: str
) -> None:
    for name in "ab":
        kept.put_chunks(f"uploads/{name}", {"file": [name.encode()]})
    other_machine()
    there = {name: kept.path_of(f"uploads/{name}", "file") for name in "ab"}
    KeptFile.objects.filter(folder="uploads/a").delete()  # as by another machine
    kept.tidy_copies()
    assert there["b"].exists() and there["a"].exists() == (where == "folder")
