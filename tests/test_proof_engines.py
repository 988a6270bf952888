"""The same 60 held-out tasks, greedy, with three engines: in this process, real vLLM that a worker
serves with the adapter loaded at run time, and a scripted server that gives the first one's
answers. The scores are the same within two tasks.

FLYWHEEL_PROOF_ADAPTER names an adapter of SmolLM2 to be used in place of the one that this trains
(minutes).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from apps.core import runner
from apps.core.models import JobState
from apps.demo.recipes import FAST, HARNESS, MODEL, VERIFIER
from apps.environments.actions import save_environment, save_verifier
from apps.evals import actions as evals
from apps.evals import drafts
from apps.evals.models import EvalRun, EvalSet, Split
from apps.evals.submission import submit_eval
from apps.registry import managed, servers
from apps.registry.actions import register_adapter, register_base, register_endpoint
from apps.registry.artifacts import store_folder
from apps.registry.engines import adapter_name
from apps.registry.models import ModelVersion, Server
from apps.registry.server_states import state_of
from tests.factories import admin_of, make_project
from tests.flywheel.machine import eventually
from tests.registry.model_server import chat, models, serving
from workers.lib.environments.requests import make_requests

ROOT = Path(__file__).resolve().parent.parent
VLLM = ROOT / ".venv-vllm" / "bin" / "vllm"
pytestmark = [
    pytest.mark.proof,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not VLLM.exists(), reason="no .venv-vllm: run `make vllm`"),
]
TASKS, WITHIN, PATIENCE_S = 60, 2, 1800.0
GREEDY = HARNESS | {"temperature": 0.0}


class World:
    def __init__(self, folder: Path) -> None:
        self.folder, self.project = folder, make_project()
        self.by = admin_of(self.project)
        verifier = save_verifier(project=self.project, name="tool-call", spec=VERIFIER, by=self.by)
        self.environment = save_environment(
            project=self.project,
            slug="workplace",
            builtin="workplace",
            harness=GREEDY,
            verifier=verifier,
            by=self.by,
        )
        model = ROOT / "var" / "models" / MODEL
        subprocess.run(
            [sys.executable, "-m", "workers.prepare_demo_model", str(model)], cwd=ROOT, check=True
        )
        self.base = register_base(project=self.project, name="smollm2", folder=model, by=self.by)
        requests = make_requests(0, 2 * TASKS)
        self.eval_set = self.held_out(requests[:TASKS])
        given = os.environ.get("FLYWHEEL_PROOF_ADAPTER")
        artifact = store_folder(Path(given) if given else self.trained(requests[TASKS:]))
        self.adapter = register_adapter(
            project=self.project,
            name="sft",
            parent=self.base,
            artifact=artifact,
            lineage={},
            by=self.by,
        )

    def held_out(self, requests: list[dict]) -> EvalSet:
        eval_set = evals.create_eval_set(project=self.project, slug="held-out", by=self.by)
        for number, request in enumerate(requests):
            evals.add_task(
                eval_set=eval_set,
                key=f"task-{number}",
                request=request["request"],
                split=Split.HOLDOUT,
                expected=request["expected"],
                by=self.by,
            )
        return drafts.freeze(eval_set=eval_set, by=self.by)

    def trained(self, requests: list[dict]) -> Path:
        """The adapter of the demo's short SFT on other requests."""
        system, examples = (
            {"role": "system", "content": HARNESS["system_prompt"]},
            HARNESS["examples"],
        )
        rows = [
            {
                "messages": [system, *examples, {"role": "user", "content": request["request"]}],
                "completion": json.dumps(request["expected"]),
            }
            for request in requests
        ]
        out = self.folder / "sft"
        spec = {
            "kind": "sft",
            "seed": 0,
            "out_dir": str(out),
            "model": {"base": self.base.base},
            "rows": rows,
            "config": FAST.sft,
        }
        (self.folder / "sft.json").write_text(json.dumps(spec))
        command = [sys.executable, "-m", "workers.sft", str(self.folder / "sft.json")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        results = [json.loads(line) for line in done.stdout.splitlines() if '"result"' in line]
        return Path(results[-1]["adapter"])

    def evaluate(self, version: ModelVersion, engine: str) -> EvalRun:
        version = ModelVersion.objects.get(pk=version.pk)
        run = submit_eval(
            project=self.project,
            model_version=version,
            eval_set=self.eval_set,
            split=Split.HOLDOUT,
            environment=self.environment,
            samples_per_task=1,
            engine=engine,
            by=self.by,
        )
        runner.run(run)
        run.refresh_from_db()
        assert run.state == JobState.SUCCEEDED, run.error
        assert not run.samples.filter(masked=True).exists(), (
            run.samples.filter(masked=True).first().mask_reason
        )
        said = f"{version} by {engine}: {passed(run)} of {TASKS} in {run.seconds:.0f} s"
        print(said, file=sys.stderr)
        return run


def passed(run: EvalRun) -> int:
    assert run.samples.count() == TASKS
    return run.samples.filter(success=True).count()


@pytest.fixture
def world(data_dir: Path, settings: Any) -> World:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    settings.FLYWHEEL_VLLM = str(VLLM)
    return World(data_dir)


@pytest.fixture
def local(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A managed server that is up: what a worker of the queue `serve` does, in a thread."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    fields = {
        "name": "local",
        "base": world.base,
        "dialect": "text",
        "dtype": "float32",
        "context": 1024,
        "lora_slots": 1,
    }
    server = managed.add_managed(
        project=world.project, fields=fields | {"options": {"enforce-eager": True}}, by=world.by
    )
    run = server.runs.get()

    def work() -> None:
        try:
            runner.run(run)
        finally:
            connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        eventually(lambda: state_of(server.runs.get()).name in ("up", "failed"), PATIENCE_S)
        assert state_of(server.runs.get()).name == "up", server.runs.get().error
        server.refresh_from_db()
        yield server
    finally:
        managed.stop(server=server, by=world.by)
        thread.join()


def test_three_engines_give_the_same_greedy_score(world: World, local: Server) -> None:
    for version in (world.base, world.adapter):
        here, there = world.evaluate(version, "transformers"), world.evaluate(version, "local")
        assert abs(passed(here) - passed(there)) <= WITHIN
    assert (
        here.spec["engine"]["kind"] == "transformers"
        and there.spec["engine"]["adapter"] == world.adapter.pk
    )
    runner.run(local.probes.latest("created_at"))
    local = servers.refresh_health(local)
    assert adapter_name(world.adapter) in [row["id"] for row in local.served]
    assert (
        local.can("runtime_lora") is True
        and local.can("logprobs") is True
        and local.can("token_ids") is True
    )

    answers = {
        sample.task.messages[-1]["content"]: sample.output
        for sample in here.samples.select_related("task")
    }
    with serving(
        {
            ("GET", "/v1/models"): models("scripted"),
            ("POST", "/v1/chat/completions"): replay(answers),
        }
    ) as live:
        server = servers.add_server(
            project=world.project, fields={"name": "scripted", "base_url": live.base}, by=world.by
        )
        endpoint = register_endpoint(
            project=world.project,
            name="scripted",
            server=server,
            served_as="scripted",
            dialect="text",
            by=world.by,
        )
        scripted = world.evaluate(endpoint, "scripted")
    assert abs(passed(scripted) - passed(here)) <= WITHIN
    assert passed(here) > 0, "an adapter that learned nothing says nothing"


def replay(answers: dict[str, str]) -> Any:
    def answer(body: dict) -> tuple[int, dict]:
        return chat({"content": answers.get(body["messages"][-1]["content"], "Hi")})

    return answer
