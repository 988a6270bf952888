"""Promotion and rollback on a real vLLM (CPU) with SmolLM2 and two adapters, proved by fingerprints
computed in process; then the server is killed in the middle of a deployment, and the version before
is what the channel runs and what serves when it is back.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.core import runner
from apps.core.models import Project
from apps.promotion import actions
from apps.promotion.deployment import actions as deployments
from apps.promotion.deployment import checking, running, unloading
from apps.promotion.deployment.placements import placements_of
from apps.promotion.models import Channel, Deployment, Fingerprint
from apps.registry.actions import register_adapter, register_base
from apps.registry.artifacts import store_folder
from apps.registry.models import ModelVersion, Server
from bench.server_rollouts import MODEL
from tests.factories import (
    admin_of,
    make_endpoint,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_server,
)
from workers.lib.chat_client import ChatClient, ChatServer
from workers.lib.serving import Address, list_models

ROOT = Path(__file__).resolve().parent.parent
VLLM = ROOT / ".venv-vllm" / "bin" / "vllm"
PORT, PATIENCE_S = 8463, 900.0
pytestmark = [
    pytest.mark.proof,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not VLLM.exists(), reason="no .venv-vllm: run `make vllm`"),
]
MAKE_ADAPTER = """
import sys, torch
from workers.lib.specs.training import Lora
from workers.ml.models import load_base, lora
folder, out, seed = sys.argv[1:]
torch.manual_seed(int(seed))
model = lora(load_base(folder)[0], Lora(lora_rank=8, lora_alpha=16, target_modules=["q_proj", \
"v_proj"]), None)
for name, weight in model.named_parameters():
    if "lora_B" in name:
        torch.nn.init.normal_(weight, std=0.02)
model.save_pretrained(out)
"""


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen]]:
    """Starts vLLM, and waits until it answers."""
    subprocess.run(
        [sys.executable, "-m", "workers.prepare_demo_model", str(ROOT / MODEL)],
        cwd=ROOT,
        check=True,
    )
    options = (
        "--served-model-name base --dtype float32 --enforce-eager --generation-config vllm"
        " --enable-lora --max-lora-rank 16 --max-loras 3 --max-model-len 512 --max-num-seqs 8"
        f" --port {PORT}"
    )
    more = {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    started: list[subprocess.Popen] = []

    def start() -> subprocess.Popen:
        log = (tmp_path / "vllm.log").open("ab")
        command = [str(VLLM), "serve", str(ROOT / MODEL), *options.split()]
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=os.environ | more, start_new_session=True
        )
        started.append(process)
        until = time.monotonic() + PATIENCE_S
        while (
            list_models(Address(f"http://127.0.0.1:{PORT}/v1", allow_private=True)).health
            != "healthy"
        ):
            assert process.poll() is None and time.monotonic() < until, (
                tmp_path / "vllm.log"
            ).read_text()[-3000:]
            time.sleep(2)
        return process

    yield start
    for process in started:
        kill(process)


def kill(process: subprocess.Popen) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def adapter(base: ModelVersion, folder: Path, seed: int) -> ModelVersion:
    out = folder / f"adapter-{seed}"
    subprocess.run(
        [sys.executable, "-c", MAKE_ADAPTER, base.base, str(out), str(seed)], cwd=ROOT, check=True
    )
    (out / "README.md").unlink(missing_ok=True)
    given = {
        "project": base.project,
        "name": f"tuned{seed}",
        "parent": base,
        "artifact": store_folder(out),
    }
    return register_adapter(**given, lineage={}, by=admin_of(base.project))


def done(job: Any, state: str = "succeeded") -> Any:
    runner.run(job)
    job.refresh_from_db()
    assert job.state == state, f"{job}: {job.state} {job.error}"
    return job


def says(served_as: str) -> str:
    question = {
        "messages": [{"role": "user", "content": "Tell me about refunds."}],
        "max_tokens": 16,
        "temperature": 0,
    }
    with ChatClient(
        ChatServer(f"http://127.0.0.1:{PORT}/v1", served_as, allow_private=True)
    ) as client:
        return str(client.ask(question)["choices"][0]["message"]["content"])


def test_promotion_rollback_and_a_server_killed_in_the_middle(
    project: Project,
    data_dir: Path,
    settings: Any,
    monkeypatch: Any,
    serve: Callable[[], subprocess.Popen],
) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    for module in (unloading, running, deployments):
        monkeypatch.setattr(module, "unload_soon", unloading.unload_leaving)
    by = admin_of(project)
    base = register_base(project=project, name="smollm2", folder=ROOT / MODEL, by=by)
    one, two = (adapter(base, data_dir, seed) for seed in (1, 2))
    channel = actions.channel_of(project)
    actions.set_initial(channel=channel, version=base, by=by)
    process = serve()
    server = make_server(
        project,
        f"http://127.0.0.1:{PORT}/v1",
        name="vllm",
        kind="vllm",
        adapters_at=str(data_dir / "artifacts"),
    )
    slots = {
        "runtime_lora": {"value": True, "how": ""},
        "lora_slots": {"value": 3, "how": "", "most": 3},
    }
    Server.objects.filter(pk=server.pk).update(capabilities=slots, health="healthy")
    make_endpoint(project, server, served_as="base", parent=base, name="served-base")
    deployments.add_target(
        channel=Channel.objects.get(pk=channel.pk), server=Server.objects.get(pk=server.pk), by=by
    )
    done(channel.deployments.active().get())
    eval_set, environment = make_eval_set(project, holdout=32), make_environment(project)

    def promoted(version: ModelVersion) -> Deployment:
        live = Channel.objects.get(pk=channel.pk)
        report = actions.make_gate_report(
            baseline=make_eval_run(eval_set, live.current, environment, success=0.0),
            candidate=make_eval_run(eval_set, version, environment, success=1.0),
            by=by,
            channel=live,
        )
        for job in version.fingerprint_jobs.active():
            done(job)
        assert Fingerprint.objects.get(version=version).source == "computed"
        return actions.promote(channel=live, report=report, by=by, reason="better")  # type: ignore[return-value]

    for version in (one, two):
        job = done(promoted(version))
        proof = job.outcomes[0]["proof"]
        assert (
            proof["level"] == "weights"
            and proof["gap"] < 0.01
            and proof["move"] == pytest.approx(1, abs=0.05)
        )
        print(version, job.outcomes[0]["seconds"], "s", proof["sentence"])
    assert Channel.objects.get(pk=channel.pk).current == two
    (now,) = placements_of(Channel.objects.get(pk=channel.pk))
    said_by_two = says(now.served_as)

    back = done(actions.rollback(channel=channel, by=by, reason="worse"))
    assert Channel.objects.get(pk=channel.pk).current == one and back.outcomes[0]["seconds"] < 30
    (now,) = placements_of(Channel.objects.get(pk=channel.pk))
    said_by_one, served_before = says(now.served_as), now.served_as
    assert said_by_one != said_by_two

    # The server is killed after it has loaded the candidate, before it is proved.
    job = actions.rollback(channel=channel, by=by, to_version=str(base))
    done(job)
    job = done(actions.rollback(channel=channel, by=by, to_version=str(one)))
    three = adapter(base, data_dir, 3)
    job = promoted(three)

    def killed(self: running.Run) -> Any:
        kill(process)
        yield self._progress("The server was killed")

    with monkeypatch.context() as patched:
        patched.setattr(running.Run, "_await_fingerprint", killed)
        done(job, "failed")
    live = Channel.objects.get(pk=channel.pk)
    assert live.current == one and "vllm" in job.error
    serve()
    unloading.unload_leaving()
    checking.check(channel.targets.select_related("server", "channel__current").get())
    done(channel.deployments.active().get())
    (now,) = placements_of(live)
    assert (
        now.version == one and now.served_as != served_before and says(now.served_as) == said_by_one
    )
    assert {
        row["id"]
        for row in list_models(Address(f"http://127.0.0.1:{PORT}/v1", allow_private=True)).models
    } == {"base", now.served_as}
