"""Managed servers: started by a worker, kept up, stopped, and never left behind. vLLM is a stand-in
with its contract.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core import jobs, runner
from apps.core.models import JobState, Role
from apps.registry import managed, servers, tasks
from apps.registry.bases import base_digest
from apps.registry.engines import choose, in_words
from apps.registry.models import Health, ModelVersion, Phase, Server, ServerProbe, ServerRun
from apps.registry.rollout_servers import why_not
from apps.registry.server_states import state_of
from apps.registry.servers import ServerError, address_of
from flywheel import alive
from tests.factories import admin_of, make_base, make_member, make_project
from tests.flywheel.machine import eventually
from tests.registry.test_servers import call
from tests.workers.conftest import make_tiny_model
from workers import serve
from workers.lib.serving import list_models
from workers.lib.typed import plain

pytestmark = pytest.mark.django_db
threads = pytest.mark.django_db(transaction=True)
STAND_IN = Path(__file__).with_name("stand_in_vllm.py")


class World:
    def __init__(self, folder: Path, settings: Any) -> None:
        self.project = make_project()
        self.by = admin_of(self.project)
        self.base = make_base(self.project, folder)
        self.folder = Path(self.base.base)
        self.executable = executable(folder)
        settings.FLYWHEEL_VLLM = str(self.executable)
        self.threads: list[threading.Thread] = []

    def plan(self, **plan: Any) -> None:
        (self.folder / "stand-in.json").write_text(json.dumps(plan))

    def add(self, **fields: Any) -> Server:
        given = {"name": "local", "base": self.base, "dialect": "text", "lora_slots": 2} | fields
        return managed.add_managed(project=self.project, fields=given, by=self.by)

    def work(self, server: Server) -> ServerRun:
        """A worker takes the run up, in a thread."""
        run = server.runs.active().get()

        def go() -> None:
            try:
                runner.run(run)
            finally:
                connection.close()

        self.threads.append(threading.Thread(target=go))
        self.threads[-1].start()
        return run

    def processes(self) -> list[int]:
        """The stand-ins that serve this test's folder, and what they have started."""
        return pids_of(str(self.folder))

    def state(self, server: Server) -> str:
        return state_of(server.runs.first()).name


def executable(folder: Path) -> Path:
    path = folder / "vllm"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    path.chmod(0o755)
    return path


def pids_of(what: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            gone = b"\nState:\tZ" in (path / "status").read_bytes()
        except OSError:
            continue
        if what.encode() in words and not gone:
            found.append(int(path.name))
    return found


@pytest.fixture
def world(data_dir: Path, settings: Any, warm_jobs: None) -> Iterator[World]:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = False  # nobody typed its address in
    made = World(data_dir, settings)
    try:
        yield made
    finally:
        for run in ServerRun.objects.active():
            run.request_cancel()
        for thread in made.threads:
            thread.join()
        for pid in made.processes():
            os.kill(pid, signal.SIGKILL)


def main_of(world: World) -> int:
    """The process that listens, as its guard's only child."""
    return next(
        pid
        for pid in world.processes()
        if b"guard.py" in cmdline(ppid(pid)) and b"guard.py" not in cmdline(pid)
    )


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def ppid(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@threads
def test_it_is_started_comes_up_is_probed_and_stopped(world: World) -> None:
    server = world.add(options={"max-num-seqs": 8})
    run = world.work(server)
    eventually(lambda: world.state(server) == "up")
    server.refresh_from_db()
    assert server.health == Health.HEALTHY and server.base_url.startswith("http://127.0.0.1:")
    probe = eventually(lambda: ServerProbe.objects.filter(server=server).first())
    runner.run(probe)
    server.refresh_from_db()
    assert (
        server.can("runtime_lora") is True
        and server.can("context") == 2048
        and managed.is_up(server)
    ), probe.error
    assert server.served[0]["id"] == managed.served_name(server)
    eventually(lambda: "startup complete. <b>&" in "\n".join(ServerRun.objects.get(pk=run.pk).tail))
    assert "--max-loras 2" in "\n".join(ServerRun.objects.get(pk=run.pk).tail)
    assert len(world.processes()) >= 2
    assert managed.stop(server=server, by=world.by)
    eventually(lambda: world.state(server) == "stopped")
    assert not managed.stop(server=server, by=world.by)
    assert not world.processes()
    server.refresh_from_db()
    assert (server.base_url, server.health) == ("", Health.DOWN) and not managed.is_up(server)


@threads
def test_it_is_started_again_when_it_dies_at_another_port(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = world.add()
    run = world.work(server)
    eventually(lambda: world.state(server) == "up")
    before = world.processes()
    os.kill(main_of(world), signal.SIGKILL)
    eventually(lambda: ServerRun.objects.get(pk=run.pk).restarts == 1)
    eventually(lambda: world.state(server) == "up")
    assert not set(before) & set(world.processes()), "nothing of the first one is left"
    run.refresh_from_db()
    assert run.attempt == 1 and run.up_at and Server.objects.get(pk=server.pk).base_url


@pytest.mark.proof
@threads
def test_one_that_does_not_start_fails_and_says_what_to_do(world: World) -> None:
    world.plan(says="ValueError: No available memory for the cache blocks. <i>", status=1)
    server = world.add()
    runner.run(server.runs.get())
    run = server.runs.get()
    assert run.state == JobState.FAILED and "tried 3 times" in run.error and "lower it" in run.error
    page = Client()
    page.force_login(world.by)
    text = page.get(reverse("registry:server", args=[world.project.slug, "local"])).content.decode()
    assert "Failed" in text and "&lt;i&gt;" in text and "<i>" not in text
    world.plan()
    again = managed.start(server=server, by=world.by)
    assert again.pk != run.pk and managed.start(server=server, by=world.by) == again, (
        "one at a time"
    )
    world.work(server)
    eventually(lambda: world.state(server) == "up")


@threads
def test_one_that_is_not_installed_says_what_to_do(world: World, settings: Any) -> None:
    settings.FLYWHEEL_VLLM = "/nowhere/vllm"
    server = world.add()
    runner.run(server.runs.get())
    assert "make vllm" in server.runs.get().error


@threads
def test_one_that_never_answers_is_stopped_at_once_when_asked(world: World) -> None:
    world.plan(deaf=True)
    server = world.add()
    world.work(server)
    eventually(lambda: len(world.processes()) >= 2)
    assert world.state(server) == "starting"
    managed.stop(server=server, by=world.by)
    eventually(lambda: world.state(server) == "stopped")
    assert not world.processes()


def spec_of(world: World, folder: Path) -> Path:
    run = world.add().runs.get()
    path = folder / "spec.json"
    path.write_text(json.dumps(plain(managed.serve_spec(run))))
    return path


@pytest.mark.proof
def test_it_does_not_outlive_the_process_that_keeps_it(world: World, tmp_path: Path) -> None:
    """A worker that is killed takes its child with it (tests/core); here the child takes vLLM with
    it, and its engine.
    """
    keeper = subprocess.Popen(
        [sys.executable, "-m", "workers.serve", str(spec_of(world, tmp_path))],
        stdout=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
    )
    eventually(lambda: len(world.processes()) >= 2)
    keeper.kill()
    keeper.wait()
    eventually(lambda: not world.processes())


@pytest.mark.proof
@threads
def test_a_worker_that_died_is_followed_by_another_that_starts_it_again(world: World) -> None:
    server = world.add()
    run = server.runs.get()
    assert run.max_attempts > 1000 and run.claim("gone")
    ServerRun.objects.filter(pk=run.pk).update(
        phase=Phase.UP, heartbeat_at=timezone.now() - timezone.timedelta(seconds=60)
    )
    run.refresh_from_db()
    assert state_of(run).name == "lost"
    jobs.reap()
    assert world.state(server) == "queued"
    world.work(server)
    eventually(lambda: world.state(server) == "up")


@threads
@pytest.mark.proof
def test_one_with_transformers_needs_no_vllm_and_is_started_again_after_kill_9(
    world: World, settings: Any, tmp_path: Path
) -> None:
    settings.FLYWHEEL_VLLM = "/nowhere/vllm"
    make_tiny_model(world.folder)
    ModelVersion.objects.update(digest=base_digest(world.folder))
    server = world.add(kind="transformers", dialect="native", options={"max-num-seqs": 8})
    run = world.work(server)
    eventually(lambda: world.state(server) == "up")
    server.refresh_from_db()
    first = list_models(address_of(server))
    assert [row["id"] for row in first.models] == [managed.served_name(server)]
    os.kill(main_of(world), signal.SIGKILL)
    eventually(lambda: ServerRun.objects.get(pk=run.pk).restarts == 1)
    eventually(lambda: world.state(server) == "up")
    server.refresh_from_db()
    assert list_models(address_of(server)).health == "healthy"
    assert choose(world.base)["kind"] == "transformers", (
        "a job computes by itself, unless the server is named"
    )
    assert choose(world.base, serving=True)["server"] == server.pk
    named = choose(world.base, "local")
    assert (named["kind"], named["model"]) == ("openai", managed.served_name(server)) and why_not(
        server
    ) == ""
    assert in_words(named, world.base).startswith("managed server local (transformers), model")
    assert managed.stop(server=server, by=world.by)
    eventually(lambda: world.state(server) == "stopped")
    assert not world.processes()


def test_a_port_of_those_that_are_allowed_is_taken() -> None:
    port = serve.free_port("127.0.0.1", [])
    assert serve.free_port("127.0.0.1", [port, port]) == port
    with pytest.raises(serve.JobError, match="FLYWHEEL_SERVE_PORTS"):
        serve.free_port("192.0.2.1", [port, port])


# What may be asked of it


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"base": None}, "base"),
        ({"dtype": "int4"}, "dtype"),
        ({"context": -1}, "context"),
        ({"lora_slots": 65}, "lora_slots"),
        ({"max_lora_rank": 17}, "max_lora_rank"),
        ({"options": {"trust-remote-code": True}}, "options"),
        ({"kind": "sglang"}, "kind"),
        ({"kind": "transformers", "options": {"enforce-eager": True}}, "options"),
        ({"name": "auto"}, "name"),
    ],
)
def test_what_may_not_be_served(world: World, fields: dict, field: str) -> None:
    with pytest.raises(ServerError) as refused:
        world.add(**fields)
    assert refused.value.field == field and not Server.objects.exists()


def test_what_it_serves_changes_only_while_it_is_stopped(world: World) -> None:
    server = world.add()
    with pytest.raises(ServerError, match="stop it first"):
        managed.edit_managed(server=server, fields={"lora_slots": 3}, by=world.by)
    assert (
        managed.edit_managed(
            server=server, fields={"name": "b", "dialect": "native"}, by=world.by
        ).name
        == "b"
    )
    with pytest.raises(ServerError, match="stop it first"):
        servers.remove_server(server=server, by=world.by)
    managed.stop(server=server, by=world.by)
    assert (
        managed.edit_managed(server=server, fields={"lora_slots": 3}, by=world.by).serving[
            "lora_slots"
        ]
        == 3
    )
    servers.remove_server(server=server, by=world.by)
    assert not Server.objects.exists()


def test_one_that_is_not_up_is_neither_asked_nor_probed(world: World) -> None:
    server = world.add()
    tasks.check_server(server.pk)
    assert tasks.check_servers() == 0
    with pytest.raises(ServerError, match="not up"):
        servers.submit_probe(server=server, by=world.by)
    with pytest.raises(ServerError, match="run externally"):
        managed.start(
            server=Server.objects.create(project=world.project, name="o", base_url="http://x/v1"),
            by=None,
        )


def test_without_a_worker_the_page_says_how_to_get_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads what beat's task noted last: it does not ask the broker, which may be frozen."""
    cache.delete(alive.NOTED)
    server = world.add()
    for silent, is_told in ((["serve"], True), ([], False)):
        with monkeypatch.context() as patch:
            patch.setattr(alive, "missing", lambda names, silent=silent: silent)
            alive.note(["serve"])
        monkeypatch.setattr(alive, "client", None)
        assert ("make vllm" in state_of(server.runs.get()).sentence) is is_told


# By page and API


def client(world: World, role: Role) -> Client:
    made = Client()
    made.force_login(make_member(world.project, role))
    return made


@pytest.mark.proof
def test_by_page(world: World) -> None:
    member, slug = client(world, Role.OPERATOR), world.project.slug
    new = reverse("registry:managed_new", args=[slug])
    given = {
        "name": "local",
        "base": world.base.pk,
        "kind": "vllm",
        "dialect": "text",
        "dtype": "auto",
        "lora_slots": 4,
        "max_lora_rank": 16,
    }
    refused = member.post(new, given | {"options": "--trust-remote-code"}).content.decode()
    assert "cannot be set here" in refused and not Server.objects.exists()
    page = reverse("registry:server", args=[slug, "local"])
    assert member.post(new, given | {"options": "max-num-seqs 8"})["Location"] == page
    shown = member.get(page).content.decode()
    assert (
        "Queued" in shown
        and "max-num-seqs 8" in shown
        and "Nothing yet" in shown
        and "Stop" in shown
    )
    assert "managed" in member.get(reverse("registry:servers", args=[slug])).content.decode()
    run = ServerRun.objects.get()
    fragment = reverse("registry:server_run", args=[slug, "local"])
    assert member.get(fragment, {"was": "queued", "seen": run.last_seq}).status_code == 204
    assert "HX-Refresh" not in member.get(fragment, {"was": "queued", "seen": "x"})
    assert member.get(fragment, {"was": "up"})["HX-Refresh"] == "true"
    edit = reverse("registry:server_edit", args=[slug, "local"])
    assert "stop it first" in member.post(edit, given | {"lora_slots": 5}).content.decode()
    member.post(reverse("registry:server_stop", args=[slug, "local"]))
    assert world.state(Server.objects.get()) == "stopped"
    assert (
        "is not running"
        in member.post(
            reverse("registry:server_stop", args=[slug, "local"]), follow=True
        ).content.decode()
    )
    assert member.post(edit, given | {"lora_slots": 5, "context": 512}).status_code == 302
    assert Server.objects.get().serving["lora_slots"] == 5
    member.post(reverse("registry:server_start", args=[slug, "local"]))
    assert world.state(Server.objects.get()) == "queued" and ServerRun.objects.count() == 2
    member.post(reverse("registry:server_stop", args=[slug, "local"]))
    assert (
        member.post(edit, given | {"kind": "transformers", "options": "max-num-seqs 4"}).status_code
        == 302
    )
    assert "transformers, in this installation" in member.get(page).content.decode()
    member.post(reverse("registry:server_start", args=[slug, "local"]))
    engineer = client(world, Role.ENGINEER)
    assert (
        engineer.get(page).status_code == 200
        and "Stop</button>" not in engineer.get(page).content.decode()
    )


def test_by_api(world: World) -> None:
    body = {
        "name": "local",
        "dialect": "text",
        "managed": {"base": world.base.pk, "options": {"max-num-seqs": 8}},
    }
    made = call(world.project, "post", "servers/", body)
    assert made.status_code == 201 and made.json()["managed"]["state"] == "queued", made.json()
    assert (
        made.json()["managed"] | {"lora_slots": 4, "base": world.base.pk} == made.json()["managed"]
    )
    assert (
        call(world.project, "patch", "servers/local/", {"managed": {"lora_slots": 1}}).status_code
        == 409
    )
    assert (
        call(world.project, "post", "servers/local/stop/").json()["managed"]["state"] == "stopped"
    )
    changed = call(
        world.project, "patch", "servers/local/", {"name": "b", "managed": {"lora_slots": 1}}
    ).json()
    assert (changed["name"], changed["managed"]["lora_slots"]) == ("b", 1)
    assert call(world.project, "post", "servers/b/start/").json()["managed"]["state"] == "queued"
    assert call(world.project, "delete", "servers/b/").status_code == 409
    ours = {"name": "t", "managed": {"base": world.base.pk, "engine": "transformers"}}
    started = call(world.project, "post", "servers/", ours).json()
    assert (started["kind"], started["managed"]["engine"]) == ("transformers", "transformers")
    other = {"name": "o", "base_url": "https://gpu.example.com/v1"}
    assert (
        call(world.project, "post", "servers/", other | {"kind": "transformers"}).status_code == 400
    )
    assert call(world.project, "post", "servers/", other).json()["managed"] is None
    assert call(world.project, "post", "servers/o/start/").status_code == 409
    assert call(make_project(), "post", "servers/b/stop/").status_code == 404


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"managed": {}}, "managed.base"),
        ({"managed": {"base": 2**70}}, "managed.base"),
        ({"managed": {"base": "x"}}, "managed.base"),
        ({"managed": {"base": "BASE", "dtype": "int4"}}, "managed.dtype"),
        ({"managed": {"base": "BASE", "context": -1}}, "context"),
        ({"managed": {"base": "BASE", "engine": "sglang"}}, "managed.engine"),
        ({"managed": {"base": "BASE", "options": {"host": "0.0.0.0"}}}, "options"),
        ({"managed": {"base": "BASE"}, "base_url": "http://x/v1"}, "base_url"),
        ({"managed": {"base": "BASE"}, "adapters_at": "/x"}, "adapters_at"),
    ],
)
def test_what_the_api_refuses(world: World, change: dict, path: str) -> None:
    if change["managed"].get("base") == "BASE":
        change = change | {"managed": change["managed"] | {"base": world.base.pk}}
    refused = call(world.project, "post", "servers/", {"name": "local"} | change)
    assert refused.status_code == 400 and refused.json()["path"] == path, refused.json()
    assert not Server.objects.exists()
