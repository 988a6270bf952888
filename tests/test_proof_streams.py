"""A promotion and a rollback during a hundred streams, on the product as it runs: `manage.py up`
with the database, the endpoint and the workers, two managed servers that compute with real
adapters, and OpenAI's client. None is lost, none is answered by two versions.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from openai import AsyncOpenAI

from tests.flywheel.faults import endpoint_url
from tests.flywheel.machine import Machine, eventually, free_port, up
from tests.workers.conftest import make_tiny_model
from tests.workers.test_model_server import make_adapter
from workers.lib.engines import Prompt, Sampling
from workers.ml.models import load_policy
from workers.ml.transformers_engine import TransformersEngine

pytestmark = pytest.mark.proof
CLIENTS, TOKENS, SERVERS = 100, 48, ("gpu-a", "gpu-b")
LONG, LONG_TOKENS = (
    10,
    160,
)  # every tenth client asks for a long answer, so that some are in their middle at any time
PATIENCE_S = 3600.0  # for what never comes; nothing is measured
PATIENT = {
    f"FLYWHEEL_ENDPOINT_{name}_S": str(int(PATIENCE_S))
    for name in ("CONNECT", "FIRST_BYTE", "WHOLE", "IDLE")
}
WORLD = """
import json
from pathlib import Path
from apps.core.actions import create_api_key
from apps.core.scopes import Scope
from apps.promotion import actions
from apps.promotion.gate.policy import Policy
from apps.promotion.policies import save_policy
from apps.registry.actions import register_adapter, register_base
from apps.registry.artifacts import store_folder
from apps.registry.managed import add_managed
from tests.factories import admin_of, make_environment, make_eval_set, make_project
project = make_project()
by = admin_of(project)
base = register_base(project=project, name="tiny", folder=Path({base!r}), by=by)
adapters = [register_adapter(project=project, name=name, parent=base, \
artifact=store_folder(Path(path)), lineage={{}}, by=by)
            for name, path in {adapters!r}.items()]
channel = actions.channel_of(project)
actions.set_initial(channel=channel, version=base, by=by)
save_policy(channel=channel, policy=Policy(api_keys=True), reason="Keys promote.", by=by)
make_environment(project)
make_eval_set(project, holdout=32)
for name in {servers!r}:
    add_managed(project=project, by=by, fields={{"name": name, "kind": "transformers", "base": \
base, "dialect": "native", "lora_slots": 2}})
print(json.dumps([create_api_key(project=project, name="proof", by=by, scopes=list(Scope))[1], \
*map(str, adapters)]))
"""
REPORT = """
from django.db import transaction
from apps.core.models import Project
from apps.promotion import actions
from apps.registry.models import ModelVersion
from tests import factories
from tests.factories import admin_of, make_eval_run
project = Project.objects.get(model_versions__name="tiny")
by, channel = admin_of(project), actions.channel_of(project)
eval_set, environment = project.eval_sets.get(), project.environments.get()
candidate = next(row for row in project.model_versions.all() if str(row) == {version!r})
with transaction.atomic():  # as long as they are queued, a worker could take them
    runs = [make_eval_run(eval_set, model, environment, success=success) for model, success in \
((channel.current, 0.0), (candidate, 1.0))]
print(actions.make_gate_report(baseline=runs[0], candidate=runs[1], by=by, channel=channel).pk)
"""
LOGGED = """
import json
from apps.trajectories.models import Trajectory, with_content
print(json.dumps([
    [row.external_id, row.agent_version, row.model, row.outcome_status, [message["content"] for \
message in row.messages],
     row.metadata["attributes"]["flywheel.served_as"]]
    for row in with_content(list(Trajectory.objects.filter(session_id__startswith={name!r})))]))
"""


@dataclass
class Stream:
    """What one answer was: who gave it by its headers, the names in its pieces, and when it was
    asked for, began and ended.
    """

    question: int
    version: str = ""
    trace: str = ""
    text: str = ""
    names: set[str] = field(default_factory=set)
    ends: list[str] = field(default_factory=list)
    asked: float = field(default_factory=time.time)
    began: float = 0.0
    ended: float = 0.0


class Product:
    """The product, and its API as the holder of a key uses it."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        port, self.machine = free_port(), machine
        self.base = make_tiny_model(folder / "tiny")
        self.folders = {
            name: make_adapter(self.base, folder / name, seed)
            for seed, name in enumerate(("old", "new"))
        }
        up(machine, port)
        given = {
            "base": str(self.base),
            "adapters": {name: str(path) for name, path in self.folders.items()},
        }
        self.key, *self.versions = json.loads(
            machine.python(WORLD.format(**given, servers=SERVERS))
        )
        headers = {"Authorization": f"Bearer {self.key}"}
        self.api = httpx2.Client(
            base_url=f"http://127.0.0.1:{port}/api/v1", headers=headers, timeout=PATIENCE_S
        )
        self.endpoint = endpoint_url(machine)
        for name in SERVERS:
            eventually(
                lambda name=name: self.get(f"servers/{name}/")["health"] == "healthy", PATIENCE_S
            )
            self.ended(self.post("channels/production/targets/", server=name))

    def get(self, path: str) -> Any:
        answer = self.api.get(f"/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, **body: Any) -> Any:
        answer = self.api.post(f"/{path}", json=body)
        assert answer.status_code in (200, 201, 202), answer.text
        return answer.json()

    def ended(self, answer: Any = None) -> None:
        """Waits for the newest deployment, which must succeed."""

        def newest() -> Any:
            row = self.get("channels/production/deployments/")["results"][0]
            return row if row["state"] not in ("queued", "running") else None

        row = eventually(newest, PATIENCE_S)
        assert row and row["state"] == "succeeded", row

    def promote(self, version: str) -> None:
        report = self.machine.python(REPORT.format(version=version)).splitlines()[-1]
        self.ended(self.post("channels/production/promote/", report=report, reason="better"))

    def rollback(self) -> None:
        self.ended(self.post("channels/production/rollback/", reason="worse"))

    def moves(self) -> list[Any]:
        return self.get("channels/production/history/")["results"]


@dataclass(frozen=True)
class Question:
    """`said`: what each version answers, computed here from its weights."""

    messages: list[dict[str, str]]
    tokens: int
    said: dict[str, str]


def questions(product: Product) -> list[Question]:
    """One for each client, which all versions answer with some text, each with another one."""
    asked = [
        [{"role": "user", "content": f"Question {n}: what became of ticket {4000 + 37 * n}?"}]
        for n in range(CLIENTS + 20)
    ]
    texts: dict[tuple[str, int], list[str]] = {}
    for version, folder in zip(product.versions, product.folders.values(), strict=True):
        engine = TransformersEngine(*load_policy(product.base, folder))
        for tokens, some in ((TOKENS, asked), (LONG_TOKENS, asked[::LONG])):
            said = dict(
                engine.generate(
                    [Prompt(messages, [0]) for messages in some], Sampling(0.0, 1.0, tokens)
                )
            )
            texts[version, tokens] = [said[number][0].text for number in range(len(some))]
    found = []
    for number, messages in enumerate(asked):
        tokens, at = (TOKENS, number) if number % LONG else (LONG_TOKENS, number // LONG)
        said_here = {version: texts[version, tokens][at] for version in product.versions}
        if len({text for text in said_here.values() if text}) == len(product.versions):
            found.append(Question(messages, tokens, said_here))
    assert len(found) >= CLIENTS
    return found[:CLIENTS]


class Clients:
    """A hundred, each of which asks again as soon as it has its answer, until `stop`. Runs in the
    thread that calls `during`.
    """

    def __init__(self, product: Product, asked: list[Question]) -> None:
        self.asked, self.name = asked, uuid4().hex
        self.openai = AsyncOpenAI(
            base_url=f"{product.endpoint}/v1",
            api_key=product.key,
            max_retries=0,
            timeout=PATIENCE_S,
        )
        self.streams: list[list[Stream]] = [[] for _ in range(CLIENTS)]
        self.stop = False

    async def during(self, *acts: Callable[[], None], follow: list[str]) -> None:
        """Acts one after the other, each once every client has its answer of what ran before:
        `follow` are the versions.
        """
        clients = [asyncio.ensure_future(self._client(number)) for number in range(CLIENTS)]
        try:
            await self._all_have(1, follow[0], clients)
            for act, version in zip(acts, follow[1:], strict=True):
                before = [len(streams) for streams in self.streams]
                await asyncio.to_thread(act)
                await self._all_have(before, version, clients)
        finally:
            self.stop = True
            await asyncio.gather(*clients)

    async def _all_have(
        self, since: Any, version: str, clients: list[asyncio.Future[None]]
    ) -> None:
        first = since if isinstance(since, list) else [0] * CLIENTS
        until = time.monotonic() + PATIENCE_S
        while not all(
            any(s.version == version for s in streams[at:])
            for streams, at in zip(self.streams, first, strict=True)
        ):
            assert time.monotonic() < until, f"not everybody is answered by {version}"
            assert not any(client.done() for client in clients), [
                client for client in clients if client.done()
            ]
            await asyncio.sleep(0.1)

    async def _client(self, number: int) -> None:
        while not self.stop:
            self.streams[number].append(await self._ask(number, len(self.streams[number])))

    async def _ask(self, number: int, turn: int) -> Stream:
        stream = Stream(number)
        given: Any = {
            "model": "production",
            "messages": self.asked[number].messages,
            "max_tokens": self.asked[number].tokens,
        }
        answer = await self.openai.chat.completions.with_raw_response.create(
            **given,
            temperature=0,
            stream=True,
            extra_headers={"X-Session-Id": f"{self.name}-{number}-{turn}"},
        )
        stream.version, stream.trace = (
            answer.headers[f"x-flywheel-{name}"] for name in ("version", "trace-id")
        )
        async for chunk in answer.parse():
            stream.began = stream.began or time.time()
            stream.names.add(chunk.model)
            for choice in chunk.choices:
                stream.text += choice.delta.content or ""
                stream.ends += [choice.finish_reason] if choice.finish_reason else []
        stream.ended = time.time()
        return stream


def prove(product: Product) -> None:
    """Of a product whose channel runs the first of the versions."""
    (old, new), asked = product.versions, questions(product)
    clients = Clients(product, asked)
    asyncio.run(
        clients.during(lambda: product.promote(new), product.rollback, follow=[old, new, old])
    )
    streams = [stream for some in clients.streams for stream in some]
    for stream in streams:
        assert stream.text == asked[stream.question].said[stream.version], stream
        assert len(stream.ends) == 1 and len(stream.names) == 1, stream
    for some in clients.streams:
        assert [version for version, _ in itertools.groupby(stream.version for stream in some)] == [
            old,
            new,
            old,
        ]
    for move in product.moves()[:2]:
        at = datetime.fromisoformat(move["at"]).timestamp()
        is_open = [stream for stream in streams if stream.asked < at < stream.ended]
        amid = [stream for stream in is_open if stream.began < at]
        print(
            f"{move['kind']}: {len(is_open)} of {len(streams)} streams were open, {len(amid)} of"
            " them in their middle"
        )
        assert len(is_open) >= CLIENTS - 1, "only the client that runs can be between two questions"

    def logged() -> Any:
        found = json.loads(
            product.machine.python(LOGGED.format(name=clients.name)).splitlines()[-1]
        )
        return found if len(found) >= len(streams) else None

    rows = {row[0]: row[1:] for row in eventually(logged, PATIENCE_S) or []}
    assert len(rows) == len(streams)
    for stream in streams:
        content = [
            asked[stream.question].messages[0]["content"],
            stream.text.replace("\0", "\ufffd"),
        ]  # PostgreSQL stores no NUL
        assert rows[stream.trace] == [
            stream.version,
            stream.version,
            "unknown",
            content,
            *stream.names,
        ]


def test_a_promotion_and_a_rollback_during_100_streams_lose_none_and_mix_none(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path / "data", environment=PATIENT)
    machine.data.mkdir()
    try:
        product = Product(machine, tmp_path)
        product.promote(product.versions[0])
        prove(product)
    finally:
        machine.kill_everything()
