"""A managed server on a machine that shares no disk with us: what it is to load is fetched there,
verified, and kept within a bound.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.conf import settings as ours
from django.core.servers.basehttp import ServerHandler
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core import bus, runner
from apps.core.data_folder import identity
from apps.core.models import JobState
from apps.evals.jobs import evaluation_spec
from apps.evals.models import Split
from apps.evals.submission import submit_eval
from apps.promotion import actions
from apps.promotion.deployment import actions as deployments
from apps.promotion.models import Channel
from apps.registry import copies, fetching, managed
from apps.registry.actions import ModelError
from apps.registry.adapters import path_of
from apps.registry.artifacts import ArtifactError
from apps.registry.models import AdapterCopy, ModelVersion, Server, ServerRun
from apps.registry.rollout_servers import rollouts_spec, why_not
from tests.factories import (
    admin_of,
    make_adapter,
    make_base,
    make_environment,
    make_eval_set,
    make_managed,
    make_project,
)
from tests.flywheel.machine import ROOT, eventually
from tests.registry.model_server import serving
from tests.registry.test_managed import executable

WEIGHTS = "adapter_model.safetensors"


# With real processes: another data folder, another worker, and this installation's pages between
# them


class Far:
    """A managed server whose worker has the database and the broker, but a data folder of its
    own.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.project = make_project()
        self.base, self.by = make_base(self.project, folder), admin_of(self.project)
        self.adapter = make_adapter(self.project, self.base, folder)
        fields = {"name": "far", "base": self.base, "dialect": "text", "lora_slots": 2}
        self.server = managed.add_managed(project=self.project, fields=fields, by=self.by)
        self.run = self.server.runs.get()
        self.data, self.url = folder / "far", url
        self.data.mkdir()
        self.worker = self.start(executable(folder))

    def start(self, vllm: Path) -> subprocess.Popen:
        db = connection.settings_dict
        env = os.environ | {
            "FLYWHEEL_DATA_DIR": str(self.data),
            "SECRET_KEY": ours.SECRET_KEY,
            "BROKER_URL": ours.CELERY_BROKER_URL,
            "DATABASE_URL": (
                f"postgres://{db['USER']}@/{db['NAME']}?host={db['HOST'] or db['OPTIONS']['host']}"
            ),
            "FLYWHEEL_URL": self.url,
            "FLYWHEEL_VLLM": str(vllm),
        }
        return subprocess.Popen(
            [sys.executable, "-m", "tests.registry.other_machine", str(self.run.pk)],
            cwd=ROOT,
            env=env,
        )

    def loaded(self) -> dict[str, str]:
        """{name: folder} of what the server has loaded."""
        self.server.refresh_from_db()
        rows = httpx2.get(f"{self.server.base_url}/models", timeout=60).json()["data"]
        return {row["id"]: row["root"] for row in rows if row["parent"]}

    def evaluate(self) -> dict:
        run = submit_eval(
            project=self.project,
            model_version=self.adapter,
            eval_set=make_eval_set(self.project),
            split=Split.TRAIN,
            environment=make_environment(self.project),
            by=None,
        )
        assert run.claim("w")
        return evaluation_spec(run)

    def stop(self) -> None:
        self.run.request_cancel()
        self.worker.send_signal(signal.SIGTERM)
        self.worker.wait()


@pytest.fixture
def far(live_server: Any, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    shown = ServerHandler.handle_error

    def closed(handler: Any) -> None:
        """As granian does; else whoever downloads waits a minute for the rest of an answer that
        broke off.
        """
        handler.request_handler.close_connection = True
        shown(handler)

    monkeypatch.setattr(ServerHandler, "handle_error", closed)
    made = Far(data_dir, live_server.url)
    eventually(lambda: managed.is_up(Server.objects.get(pk=made.server.pk)))
    yield made
    made.stop()


@pytest.mark.proof
@pytest.mark.django_db(transaction=True)
def test_a_server_on_another_machine_loads_what_was_fetched_there(far: Far) -> None:
    run = ServerRun.objects.get(pk=far.run.pk)
    assert run.data_folder != identity() and run.data_path == str(far.data)
    far.evaluate()
    ((_, folder),) = far.loaded().items()
    assert folder == str(far.data / "fetched" / far.adapter.artifact_id)
    assert (Path(folder) / WEIGHTS).read_bytes() == (
        Path(ours.FLYWHEEL_DATA_DIR) / "artifacts" / far.adapter.artifact_id / WEIGHTS
    ).read_bytes()
    assert sorted(path.name for path in Path(folder).iterdir()) == ["adapter_config.json", WEIGHTS]

    (Path(folder) / WEIGHTS).write_bytes(b"altered there")
    assert copies.bring(run, far.adapter) == folder
    assert (Path(folder) / WEIGHTS).read_bytes() != b"altered there"

    channel = actions.channel_of(far.project)
    actions.set_initial(channel=channel, version=far.adapter, by=far.by)
    deployments.add_target(channel=Channel.objects.get(pk=channel.pk), server=far.server, by=far.by)
    job = channel.deployments.get()
    runner.run(job)
    job.refresh_from_db()
    assert job.state == JobState.SUCCEEDED, job.error
    assert set(far.loaded().values()) == {folder} and len(far.loaded()) == 2

    assert "its own data folder" in why_not(Server.objects.get(pk=far.server.pk))
    given = {
        "server": far.server.pk,
        "server_name": "far",
        "base_url": far.server.base_url,
        "managed": True,
        "model": "m",
    }
    with pytest.raises(ModelError, match="Sample in the run's own process"):
        rollouts_spec(run.pk, {"servers": [given], "steps_ahead": 0})

    weights = Path(ours.FLYWHEEL_DATA_DIR) / "artifacts" / far.adapter.artifact_id / WEIGHTS
    weights.write_bytes(b"x" * weights.stat().st_size)  # altered here, and lost there
    (Path(folder) / WEIGHTS).unlink()
    with pytest.raises(ArtifactError, match="could not be brought to the machine of far"):
        copies.bring(run, far.adapter)
    assert not (Path(folder) / WEIGHTS).exists()


# What a download may be


pytest_db = pytest.mark.django_db


@pytest.fixture
def version(data_dir: Path, settings: Any) -> ModelVersion:
    project = make_project()
    made = make_adapter(project, make_base(project, data_dir), data_dir)
    return ModelVersion.objects.select_related("artifact").get(pk=made.pk)


def contents(version: ModelVersion) -> dict[str, bytes]:
    folder = Path(ours.FLYWHEEL_DATA_DIR) / "artifacts" / version.artifact_id
    return {
        entry["path"]: (folder / entry["path"]).read_bytes() for entry in version.artifact.files
    }


def archive(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


def whole(body: bytes, status: str = "200 OK", length: int | None = None) -> bytes:
    return (
        f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode()  # noqa: E501
        + body
    )


def fetched_of(version: ModelVersion, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    with serving({("GET", "/v1/download"): sent}) as server:
        address = bus.Listener("address", lambda question: f"{server.base}/download")
        monkeypatch.setitem(bus.LISTENERS, fetching.DownloadAddress, [address])
        return fetching.fetched(version)


@pytest_db
def test_a_whole_download_is_kept_and_nothing_beside_the_announced_files(
    version: ModelVersion, monkeypatch: Any
) -> None:
    sent = archive(
        contents(version) | {"README.md": b"card", "../evil.json": b"{}", "more.safetensors": b"x"}
    )
    folder = fetched_of(version, whole(sent), monkeypatch)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents(version)
    assert sorted(path.name for path in fetching.cache().iterdir() if path.is_dir()) == [
        version.artifact_id
    ]
    monkeypatch.setitem(bus.LISTENERS, fetching.DownloadAddress, [])
    assert fetching.fetched(version) == folder, "what is there is not downloaded again"


@pytest_db
@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (
            lambda files: whole(archive(files | {WEIGHTS: b"x" * len(files[WEIGHTS])})),
            "is not what was stored",
        ),
        (
            lambda files: whole(archive(files | {WEIGHTS: files[WEIGHTS] + b"more"})),
            "is not what was stored",
        ),
        (
            lambda files: whole(archive({WEIGHTS: files[WEIGHTS]})),
            "adapter_config.json was not in it",
        ),
        (lambda files: whole(archive(files)[:700], length=10_000), "download failed"),
        (lambda files: whole(b"<html>a proxy</html>"), "download failed"),
        (lambda files: whole(b"", "403 Forbidden"), "SECRET_KEY is another one on this machine"),
        (lambda files: whole(b"", "410 Gone"), r"refused it \(HTTP 410\)"),
        (lambda files: b"nonsense", "Set FLYWHEEL_URL for its worker"),
    ],
)
def test_what_is_not_the_artifact_is_never_kept(
    version: ModelVersion, monkeypatch: Any, sent: Callable[[dict], bytes], says: str
) -> None:
    with pytest.raises(ArtifactError, match=says):
        fetched_of(version, sent(contents(version)), monkeypatch)
    assert not [path for path in fetching.cache().iterdir() if path.is_dir()], (
        "nothing half-fetched stays"
    )


# The bound


def put(name: str, size: int, age_s: float) -> Path:
    folder = fetching.cache() / name
    folder.mkdir(parents=True)
    (folder / "x").write_bytes(b"x" * size)
    os.utime(folder, (time.time() - age_s,) * 2)
    return folder


@pytest_db
def test_the_least_recently_used_leaves_and_never_what_a_server_has(
    version: ModelVersion, settings: Any
) -> None:
    loaded, told, old, new = (
        put(name, 4, age)
        for name, age in (("loaded", 400), ("told", 300), ("old", 200), ("new", 100))
    )
    left_over = put("incoming-x", 4, 0)
    listed = {
        "data": [{"id": "base", "parent": None}, {"id": "a", "parent": "base", "root": str(loaded)}]
    }
    with serving({("GET", "/v1/models"): (200, listed)}) as http:
        server = make_managed(version.parent, http.base)
        ServerRun.objects.update(data_folder=identity())
        AdapterCopy.objects.create(
            run=server.runs.get(), version=version, path=str(told), asked_at=timezone.now()
        )
        fetching.make_room(fetching.cache() / "mine", 2)
        assert [path.exists() for path in (loaded, told, old, new, left_over)] == [True] * 4 + [
            False
        ], "of one who died"
        settings.FLYWHEEL_FETCHED_GIB = 10 / 2**30
        fetching.make_room(fetching.cache() / "mine", 2)
        assert [path.exists() for path in (loaded, told, old, new, left_over)] == [
            True,
            True,
            False,
            False,
            False,
        ]
        with pytest.raises(ArtifactError, match="FLYWHEEL_FETCHED_GIB"):
            fetching.make_room(fetching.cache() / "mine", 4)
    AdapterCopy.objects.update(asked_at=timezone.now() - fetching.LOADS)
    assert str(told) in fetching.in_use(), (
        "of a server that does not answer nothing is known, so all of its stay"
    )


# Whoever asks


@pytest_db
def test_what_was_asked_for_ends_with_the_reason(version: ModelVersion) -> None:
    server = make_managed(version.parent, "http://127.0.0.1:9/v1")
    assert copies.elsewhere(server) is None and path_of(server, version).startswith(
        str(ours.FLYWHEEL_DATA_DIR)
    )
    ServerRun.objects.update(data_folder=identity(), data_path="/mnt/flywheel")
    assert path_of(server, version) == f"/mnt/flywheel/artifacts/{version.artifact_id}", (
        "the same folder, mounted elsewhere"
    )
    ServerRun.objects.update(data_folder="another")
    run = copies.elsewhere(server)
    assert copies.path_there(run, version) == "" and AdapterCopy.objects.count() == 1
    AdapterCopy.objects.update(asked_at=timezone.now() - copies.WAITS)
    with pytest.raises(ArtifactError, match=r"has not downloaded .* within 15 minutes"):
        copies.path_there(run, version)
    ServerRun.objects.update(state=JobState.CANCELLED, finished_at=timezone.now())
    with pytest.raises(ArtifactError, match="was stopped before"):
        copies.path_there(run, version)
    AdapterCopy.objects.update(problem="no room in <it>")
    with pytest.raises(ArtifactError, match="no room"):
        copies.path_there(run, version)


@pytest_db
def test_the_servers_page_says_where_its_adapters_come_from(version: ModelVersion) -> None:
    server, client = make_managed(version.parent, "http://127.0.0.1:9/v1"), Client()
    client.force_login(admin_of(version.project))
    address = reverse("registry:server", args=[version.project.slug, server.name])
    assert "separate data folder" not in client.get(address).content.decode()
    ServerRun.objects.update(data_folder="another", data_path="/srv/far")
    given = {"run": server.runs.get(), "version": version, "asked_at": timezone.now()}
    AdapterCopy.objects.create(**given, problem="no room in <it>")
    page = client.get(address).content.decode()
    assert "separate data folder" in page and "/srv/far" in page and "no room in &lt;it&gt;" in page


def test_a_copy_of_a_data_folder_is_another_one(
    data_dir: Path, settings: Any, tmp_path: Path
) -> None:
    first = identity()
    assert identity() == first
    copied = tmp_path / "copied"
    copied.mkdir()
    (copied / "folder_id").write_bytes((data_dir / "folder_id").read_bytes())
    settings.FLYWHEEL_DATA_DIR = copied
    assert identity() != first
