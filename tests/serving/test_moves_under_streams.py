"""Promotions and rollbacks of a channel with targets while a hundred answers are open: none is
lost, and none mixes two versions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, NotFoundError

from apps.core.actions import create_api_key
from apps.core.managed import objects
from apps.core.models import Project
from apps.core.scopes import Scope
from apps.promotion import actions
from apps.promotion.deployment import actions as deployments
from apps.promotion.deployment import running, unloading
from apps.promotion.models import Channel, Placement
from apps.registry.models import ModelVersion, Server
from apps.serving import refresh, storing
from apps.serving.refresh import Tables
from apps.serving.spool import segments
from apps.serving.turns import Bounds
from apps.trajectories import assembly
from apps.trajectories.models import Trajectory, with_content
from tests.amounts import amount
from tests.factories import make_adapter, make_endpoint, make_server
from tests.flywheel.machine import eventually
from tests.promotion.scene import Scene, finish, run
from tests.promotion.serving_peer import fingerprint
from tests.serving.conftest import Running, served
from tests.serving.lora_server import WORDS, LoraServer, lora_server, word_of

pytestmark = pytest.mark.django_db(transaction=True)
PATIENT = Bounds(connect_s=600, first_s=600, idle_s=600)
TWO_SLOTS = {
    "runtime_lora": {"value": True, "how": ""},
    "lora_slots": {"value": 2, "how": "", "most": 2},
}


class Production:
    """A channel of `scene` on two servers, an endpoint before it that reads the database, and
    clients in a thread of their own.
    """

    def __init__(
        self, scene: Scene, served_by: Running, servers: list[LoraServer], secret: str
    ) -> None:
        self.scene, self.running, self.servers, self.secret = scene, served_by, servers, secret
        self.loop = asyncio.new_event_loop()
        self.client = AsyncOpenAI(
            base_url=f"{served_by.url}/v1", api_key=secret, max_retries=0, timeout=300
        )
        self.texts: list[Any] = []

    def ask(self, number: int) -> None:
        """Opens so many streams; returns when each is in the middle of its answer."""
        before = sum(len(server.held) for server in self.servers)
        for _ in range(number):
            self.texts.append(
                asyncio.run_coroutine_threadsafe(self._one(len(self.texts)), self.loop)
            )

        def all_speak() -> bool:
            for text in self.texts:
                assert not text.done(), text.result()
            return sum(len(server.held) for server in self.servers) == before + number

        eventually(all_speak)

    async def _one(self, number: int) -> tuple[str, str]:
        asked: Any = {
            "model": "production",
            "messages": [{"role": "user", "content": f"Question {number}"}],
        }
        answer = await self.client.chat.completions.with_raw_response.create(**asked, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in answer.parse()])
        return answer.headers["x-flywheel-version"], text

    def moved(self, job: Any, version: ModelVersion) -> None:
        """Ends when the endpoint has heard of it."""
        assert run(job).state == "succeeded", job.error
        routes = lambda: self.running.tables.current.routes[self.scene.project.pk]  # noqa: E731
        eventually(lambda: routes()["production"].lanes[0].version == str(version))

    def promote(self, version: ModelVersion) -> None:
        self.moved(self.scene.promote(version), version)

    def rollback(self, version: ModelVersion) -> None:
        self.moved(
            actions.rollback(channel=self.scene.channel, by=self.scene.by, reason="worse"), version
        )

    def release(self) -> list[tuple[str, str]]:
        for server in self.servers:
            server.release()
        return [text.result(120) for text in self.texts]


@pytest.fixture
def production(
    project: Project,
    base: ModelVersion,
    data_dir: Path,
    settings: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Production]:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    monkeypatch.setattr(refresh, "EVERY_S", 300.0)  # moves are heard by NOTIFY
    with ExitStack() as stack:
        scene = Scene(project, base, data_dir, stack)
        servers = [stack.enter_context(lora_server(name)) for name in ("gpu-a", "gpu-b")]
        for server in servers:
            add_target(scene, server)
        _, secret = create_api_key(project=project, name="agent", by=None, scopes=[Scope.GENERATE])
        tables = Tables()
        tables.start()
        stack.callback(stop, tables, project, monkeypatch)
        eventually(lambda: tables.known)
        served_by = stack.enter_context(served(tables, tmp_path / "spool", PATIENT))
        made = Production(scene, served_by, servers, secret)
        thread = threading.Thread(target=made.loop.run_forever, daemon=True)
        thread.start()
        yield made
        made.loop.call_soon_threadsafe(made.loop.stop)
        thread.join(300)


def stop(tables: Tables, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh, "EVERY_S", 0.05)
    tables.stop()
    create_api_key(project=project, name="wakes it", by=None)
    tables._thread.join(300)


def add_target(scene: Scene, server: LoraServer) -> None:
    row = make_server(
        scene.project,
        server.url,
        name=server.name,
        kind="vllm",
        adapters_at=str(scene.folder / "artifacts"),
    )
    Server.objects.filter(pk=row.pk).update(capabilities=TWO_SLOTS, health="healthy")
    make_endpoint(
        scene.project, row, served_as="base", parent=scene.base, name=f"{server.name}-base"
    )
    deployments.add_target(channel=scene.channel, server=Server.objects.get(pk=row.pk), by=scene.by)
    finish(scene.channel)


def stored(production: Production) -> list[Trajectory]:
    def all_are_there() -> bool:
        production.running.endpoint.writer.hand_over()
        for path in segments(production.running.folder):
            storing.store_segment(path)
        while assembly.step():
            pass
        return Trajectory.objects.count() >= len(production.texts)

    eventually(all_are_there)
    return with_content(list(Trajectory.objects.all()))


@pytest.mark.more
def test_promotions_and_rollbacks_during_streams_lose_none_and_mix_none(
    production: Production,
) -> None:
    """Each answer is held in its middle while the channel moves on, to and fro. Two slots: the
    third version needs the slot of one that has just been asked, and gets it when that is long
    enough ago."""
    scene, old, new = production.scene, production.scene.old, production.scene.new
    many, some = amount((20, 10), (100, 30))
    production.promote(old)
    production.ask(many)
    production.promote(new)
    production.ask(some)
    production.rollback(old)
    production.ask(some)
    third = make_adapter(scene.project, scene.base, scene.folder)
    fingerprint(third)
    job = scene.promote(third)
    waited: list[str] = []
    with pytest.MonkeyPatch.context() as patched:

        def room(*given: Any, **more: Any) -> None:
            try:
                unloading.make_room(*given, **more)
            except unloading.StillAsked as error:
                waited.append(str(error))
                if len(waited) == 3:  # now let the time be over
                    patched.setattr(unloading, "GRACE", -unloading.GRACE)
                raise

        patched.setattr(running, "make_room", room)
        assert not any(server.peer.unloads for server in production.servers)
        production.moved(job, third)
    assert len(waited) == 3 and f"that {new} still answers" in waited[0]
    production.ask(10)
    said = production.release()
    words = {str(version): word_of(version) for version in (old, new, third)}
    asked = [old] * many + [new] * some + [old] * some + [third] * 10
    assert said == [(str(version), f"{words[str(version)]} " * WORDS) for version in asked]
    rows = {row.messages[0]["content"]: row for row in stored(production)}
    assert len(rows) == len(asked)
    for number, version in enumerate(asked):
        row = rows[f"Question {number}"]
        assert (row.agent_version, row.model, row.outcome_status) == (
            str(version),
            str(version),
            "unknown",
        )
        assert row.messages[1]["content"] == f"{words[str(version)]} " * WORDS
        assert row.metadata["attributes"]["flywheel.model_version"] == version.pk


@pytest.mark.proof
def test_what_leaves_a_server_waits_for_what_was_just_asked_of_it(production: Production) -> None:
    scene = production.scene
    production.promote(scene.old)
    production.ask(5)
    for target in scene.channel.targets.current():
        deployments.remove_target(target=target, by=scene.by)
    assert unloading.unload_leaving() == 0 and all(
        server.peer.adapters for server in production.servers
    )
    assert len(production.release()) == 5
    Placement.objects.update(at=scene.channel.updated_at - unloading.GRACE)
    assert unloading.unload_leaving() == 4 and not any(
        server.peer.adapters for server in production.servers
    )


@pytest.mark.proof
def test_while_a_channel_is_archived_open_streams_end_whole_and_new_requests_get_404(
    production: Production,
) -> None:
    scene, by = production.scene, production.scene.by
    production.promote(scene.old)
    production.ask(20)
    channel = Channel.objects.select_related("project").get(pk=scene.channel.pk)
    objects.archive(managed=objects.KINDS["channel"], row=channel, by=by)
    table = lambda: production.running.tables.current  # noqa: E731
    eventually(lambda: "production" in table().closed.get(scene.project.pk, {}))
    with pytest.raises(
        NotFoundError, match="The channel “production” is archived and serves nothing"
    ):
        asyncio.run_coroutine_threadsafe(production._one(0), production.loop).result(60)
    assert unloading.unload_leaving() == 0 and all(
        server.peer.adapters for server in production.servers
    )
    assert production.release() == [(str(scene.old), f"{word_of(scene.old)} " * WORDS)] * 20
    Placement.objects.update(at=channel.updated_at - unloading.GRACE)
    assert unloading.unload_leaving() > 0 and not any(
        server.peer.adapters for server in production.servers
    )


@pytest.mark.proof
def test_a_request_that_meets_a_version_that_has_left_is_answered_by_what_runs_now(
    production: Production,
) -> None:
    """The endpoint's table is behind: it asks for a name that the server does not hold any more."""
    scene, endpoint = production.scene, production.running
    production.promote(scene.old)
    before = endpoint.tables.current
    production.promote(scene.new)
    for server in production.servers:
        server.release()
        for name in [
            name for name, path in server.peer.adapters.items() if name in placed(scene.old)
        ]:
            server.peer.unload({"lora_name": name})
    behind = Tables()
    behind.current, behind.known = before, True
    endpoint.endpoint.callers.tables = behind
    text = asyncio.run_coroutine_threadsafe(production._one(0), production.loop).result(60)
    assert text == (str(scene.new), f"{word_of(scene.new)} " * WORDS)


def placed(version: ModelVersion) -> set[str]:
    return set(Placement.objects.filter(version=version).values_list("served_as", flat=True))
