"""clients/pull.py against a live server: what a channel runs, on disk, also while the server is
away.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from apps.core.managed import objects
from apps.core.models import Project
from apps.promotion.models import Channel, Promotion
from apps.registry.actions import register_prompt
from tests.factories import admin_of, make_adapter, make_base, make_key, make_project
from tests.registry.model_server import serving

pytestmark = pytest.mark.django_db(transaction=True)
WEIGHTS = "adapter_model.safetensors"
found = importlib.util.spec_from_file_location(
    "pull", Path(__file__).parents[2] / "clients" / "pull.py"
)
client = importlib.util.module_from_spec(found)
found.loader.exec_module(client)
pull = client.pull


@pytest.fixture
def live(live_server: Any, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Channel:
    """A channel that runs an adapter, on a live server."""
    project = make_project()
    monkeypatch.setenv("FLYWHEEL_URL", live_server.url)
    monkeypatch.setenv("FLYWHEEL_API_KEY", make_key(project))
    channel = Channel.objects.create(project=project, name="production")
    return move(channel, adapter(project, data_dir))


def adapter(project: Project, data_dir: Path) -> Any:
    return make_adapter(project, make_base(project, data_dir), data_dir)


def move(channel: Channel, version: Any) -> Channel:
    kind, by = Promotion.Kind.INITIAL, admin_of(channel.project)
    Promotion.objects.create(
        channel=channel, kind=kind, from_version=channel.current, to_version=version, by=by
    )
    channel.current = version
    channel.save()
    return channel


def down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_URL", "http://127.0.0.1:9")


def test_the_adapter_comes_as_a_peft_folder_with_its_model_card(
    live: Channel, tmp_path: Path
) -> None:
    got = pull("production", tmp_path / "cache")
    folder = Path(got["folder"])
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "adapter_config.json",
        WEIGHTS,
    ]
    assert (
        got["model"] == str(live.current)
        and got["stale"] == ""
        and folder.name == live.current.artifact_id
    )
    assert live.current.digest in (folder / "README.md").read_text()


def test_what_has_not_changed_is_neither_answered_nor_downloaded_again(
    live: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pull("production", tmp_path / "cache")
    monkeypatch.setattr(client, "fetch", lambda *_: pytest.fail("downloaded again"))
    assert pull("production", tmp_path / "cache") == first


def test_a_promotion_is_pulled_and_the_version_before_stays_on_disk(
    live: Channel, data_dir: Path, tmp_path: Path
) -> None:
    before = pull("production", tmp_path / "cache")
    move(live, adapter(live.project, data_dir))
    after = pull("production", tmp_path / "cache")
    assert (
        after["model"] == str(live.current) != before["model"] and Path(before["folder"]).is_dir()
    )


def test_while_flywheel_is_away_the_copy_is_served_and_it_says_so(
    live: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = pull("production", tmp_path / "cache")
    down(monkeypatch)
    again = pull("production", tmp_path / "cache")
    assert (
        again["folder"] == first["folder"]
        and "refused" in again["stale"]
        and "cannot be asked" in caplog.text
    )
    with pytest.raises(OSError, match="refused"):
        pull("production", tmp_path / "other")


def test_of_an_archived_channel_the_copy_is_served(live: Channel, tmp_path: Path) -> None:
    first = pull("production", tmp_path / "cache")
    objects.archive(managed=objects.KINDS["channel"], row=live, by=admin_of(live.project))
    again = pull("production", tmp_path / "cache")
    assert again["folder"] == first["folder"] and "404" in again["stale"]


def test_a_revoked_key_stops_no_production(
    live: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull("production", tmp_path / "cache")
    monkeypatch.setenv("FLYWHEEL_API_KEY", "fw_revoked")
    assert "401" in pull("production", tmp_path / "cache")["stale"]
    with pytest.raises(HTTPError):
        pull("production", tmp_path / "other")


def test_a_copy_that_was_altered_is_never_served(
    live: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = pull("production", tmp_path / "cache")
    (Path(got["folder"]) / WEIGHTS).write_bytes(b"other")
    assert pull("production", tmp_path / "cache")["folder"] == got["folder"]
    assert (Path(got["folder"]) / WEIGHTS).read_bytes() != b"other"
    (Path(got["folder"]) / WEIGHTS).write_bytes(b"other")
    down(monkeypatch)
    with pytest.raises(OSError, match="refused"):
        pull("production", tmp_path / "cache")


def test_a_download_that_breaks_or_is_altered_leaves_what_was(
    live: Channel, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = pull("production", tmp_path / "cache")
    version = adapter(live.project, data_dir)
    move(live, version)
    (data_dir / "artifacts" / version.artifact_id / WEIGHTS).write_bytes(
        b"x" * version.artifact.files[1]["size"]
    )
    got = pull("production", tmp_path / "cache")
    assert got["folder"] == before["folder"] and got["model"] == before["model"] and got["stale"]
    assert sorted(path.name for path in (tmp_path / "cache" / "production").iterdir()) == sorted(
        ["live.json", Path(before["folder"]).name]
    )


def test_a_prompt_version_comes_as_json_with_the_adapter_that_it_stands_on(
    live: Channel, tmp_path: Path
) -> None:
    prompt = {"system_prompt": "Be brief.", "temperature": 0.2}
    on = live.current
    move(live, register_prompt(project=live.project, name="p", on=on, prompt=prompt, by=None))
    got = pull("production", tmp_path / "cache")
    assert (
        got["prompt"]["system_prompt"] == "Be brief." and Path(got["folder"]).name == on.artifact_id
    )
    assert (
        json.loads((tmp_path / "cache" / "production" / "live.json").read_text())["download"]
        is None
    )


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    "left", ['{"model": "cut', "", "[]", "{}", '{"files": null, "etag": "x"}', "\x00" * 100]
)
def test_a_damaged_note_of_what_is_kept_is_written_again(
    live: Channel, tmp_path: Path, left: str
) -> None:
    """As a machine leaves it that lost its power."""
    first = pull("production", tmp_path)
    (tmp_path / "production" / "live.json").write_text(left)
    assert pull("production", tmp_path) == first and pull("production", tmp_path) == first


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    "sent",
    [
        b"[]",
        b"null",
        b'{"status": "maintenance"}',
        b'{"files": null}',
        b"<html>",
        b"[" * 100_000,
        b'{"files": [], "adapter": null}',
    ],
)
def test_an_answer_that_is_no_channels_leaves_the_copy(
    live: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """As proxies and load balancers give while Flywheel is away: HTTP 200, and something else."""
    first = pull("production", tmp_path)
    page = b"HTTP/1.1 200 OK\r\nETag: x\r\nContent-Length: %d\r\n\r\n%s" % (len(sent), sent)
    with serving({("GET", "/api/v1/channels/production/"): page}) as there:
        monkeypatch.setenv("FLYWHEEL_URL", there.base.removesuffix("/v1"))
        got = pull("production", tmp_path)
    assert got["stale"] and got | {"stale": ""} == first


def test_the_lines_of_the_docs_download_once_verify_and_survive_our_absence(
    live: Channel, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "artifacts.md").read_text()
    source = (
        text.split("lines need only Python", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]
    )
    assert len([line for line in source.splitlines() if line and "#" not in line]) == 28
    names: dict[str, Any] = {}
    exec(source, names)
    asked: list[tuple[str, int]] = []
    open_url, altered = names["urlopen"], list[bytes]()

    def noting(what: Any, **more: Any) -> Any:
        url = what if isinstance(what, str) else what.full_url
        try:
            answer = open_url(what, **more)
        except HTTPError as error:
            asked.append((url.split("/")[5], error.code))
            raise
        asked.append((url.split("/")[5], answer.status))
        return (
            io.BytesIO(answer.read().replace(*altered))
            if altered and "/downloads/" in url
            else answer
        )

    names["urlopen"] = noting
    cache, address = tmp_path / "cache", os.environ["FLYWHEEL_URL"]
    cache.mkdir()
    pull_it = lambda: names["pull"]("production", str(cache))  # noqa: E731
    first = pull_it()
    folder = cache / live.current.artifact_id
    assert (
        first["model"] == str(live.current)
        and (folder / WEIGHTS).stat().st_size
        and first["prompt"] == {}
    )
    assert pull_it() == first and asked == [
        ("channels", 200),
        ("downloads", 200),
        ("channels", 304),
    ]
    down(monkeypatch)
    assert pull_it() == first
    with pytest.raises(OSError, match="refused"):
        names["pull"]("other", str(cache))
    monkeypatch.setenv("FLYWHEEL_URL", address)
    again = adapter(live.project, data_dir)
    move(live, again)
    weights = (data_dir / "artifacts" / again.artifact_id / WEIGHTS).read_bytes()
    altered += [weights, b"x" * len(weights)]
    assert pull_it() == first and {path.name for path in cache.iterdir()} == {
        folder.name,
        "production.json",
    }
    altered.clear()
    assert (
        pull_it()["adapter"] == again.artifact_id and (cache / again.artifact_id / WEIGHTS).exists()
    )


@pytest.mark.proof
def test_of_old_adapters_so_many_stay_and_always_the_current_one(
    live: Channel, data_dir: Path, tmp_path: Path
) -> None:
    versions = [live.current]
    for _ in range(3):
        pull("production", tmp_path)
        versions.append(move(live, adapter(live.project, data_dir)).current)
    home = tmp_path / "production"

    def there() -> list[int]:
        return [
            number
            for number, version in enumerate(versions)
            if (home / version.artifact_id).is_dir()
        ]

    for number, version in enumerate(versions[:3]):
        os.utime(home / version.artifact_id, (number, number))
    pull("production", tmp_path)
    assert there() == [0, 1, 2, 3], "nothing goes by itself"
    pull("production", tmp_path, keep=3)
    assert there() == [1, 2, 3]
    move(live, versions[1])
    pull("production", tmp_path, keep=1)
    assert there() == [1] and sorted(path.name for path in home.iterdir()) == sorted(
        [versions[1].artifact_id, "live.json"]
    )
    (home / "notes").mkdir()
    move(live, versions[2])
    given = [sys.executable, client.__file__, "production", str(tmp_path), "--keep", "2"]
    said = json.loads(subprocess.run(given, check=True, capture_output=True, text=True).stdout)
    assert said["model"] == str(versions[2]) and there() == [1, 2] and (home / "notes").is_dir()


def test_while_it_is_away_nothing_is_removed(
    live: Channel, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull("production", tmp_path)
    move(live, adapter(live.project, data_dir))
    pull("production", tmp_path)
    down(monkeypatch)
    assert pull("production", tmp_path, keep=1)["stale"]
    assert len([path for path in (tmp_path / "production").iterdir() if path.is_dir()]) == 2


def test_processes_that_pull_into_one_cache_at_once_all_get_it(
    live: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has downloaded it before the first has put it in its place."""
    together, extracted = threading.Barrier(4), client.is_whole

    def waits(home: Path, live: dict) -> bool:
        whole = extracted(home, live)
        if home.name != "production":
            together.wait(300)
        return whole

    monkeypatch.setattr(client, "is_whole", waits)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: pull("production", tmp_path), range(4)))
    assert [got["stale"] for got in found] == [""] * 4
    assert {path.name for path in (tmp_path / "production").iterdir()} == {
        "live.json",
        live.current.artifact_id,
    }
