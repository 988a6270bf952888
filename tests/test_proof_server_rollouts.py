"""GRPO through a real vLLM (CPU) for five steps: the same loss and gradient as the update in
process on the same samples.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.server_rollouts import MODEL, SMALL, TOLERANCE, compared
from workers.lib.serving import Address, list_models
from workers.prepare_demo_model import prepare

ROOT = Path(__file__).resolve().parent.parent
VLLM = ROOT / ".venv-vllm" / "bin" / "vllm"
PORT, PATIENCE_S = 8462, 900.0
pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(not VLLM.exists(), reason="no .venv-vllm: run `make vllm`"),
]


OPTIONS = shlex.split("""
    --served-model-name base --dtype float32 --enforce-eager --generation-config vllm --enable-lora
    --max-lora-rank 16 --max-loras 2 --logprobs-mode processed_logprobs --max-model-len 1024
    --max-num-seqs 8 --gpu-memory-utilization 0.15
""")
VARIABLES = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}


@contextmanager
def serving(command: Sequence[str | Path], port: int, log: Path) -> Iterator[str]:
    """The base URL of a model server while it runs, from when it answers."""
    url = f"http://127.0.0.1:{port}/v1"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            cwd=ROOT,
            stdout=out,
            stderr=out,
            env=os.environ | VARIABLES,
        )
        try:
            until = time.monotonic() + PATIENCE_S
            while list_models(Address(url, allow_private=True)).health != "healthy":
                assert process.poll() is None and time.monotonic() < until, log.read_text()[-3000:]
                time.sleep(2)
            yield url
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture
def base_url(tmp_path: Path) -> Iterator[str]:
    prepare(ROOT / MODEL)
    command = [VLLM, "serve", ROOT / MODEL, *OPTIONS]
    with serving(command, PORT, tmp_path / "vllm.log") as url:
        yield url


def test_five_steps_through_vllm_have_the_loss_of_the_update_in_process(
    base_url: str, tmp_path: Path
) -> None:
    steps = compared(
        ROOT / MODEL,
        tmp_path,
        {"base_url": base_url, "model": "base", "allow_private": True, "lora_slots": 2},
        SMALL,
    )
    assert len(steps) == 5 and any(step.here["train/grad_norm"] > 0 for step in steps)
    for at, step in enumerate(steps):
        assert step.gap < TOLERANCE, f"step {at + 1}"
        assert step.served["train/grad_norm"] == pytest.approx(
            step.here["train/grad_norm"], rel=1e-3
        )
        assert step.served["train/ratio_min"] > 0.999 and step.served["train/ratio_max"] < 1.001
        assert step.served["rollout/staleness"] == 0
    assert [step.served["rollout/adapter_move"] for step in steps[1:]] == pytest.approx(
        [1.0] * 4, abs=0.05
    )
