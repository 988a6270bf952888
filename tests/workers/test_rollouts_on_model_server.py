"""GRPO that samples from the managed server that is ours learns what it learns in process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.workers.conftest import Recorder
from tests.workers.test_model_server import Running
from tests.workers.test_server_rollouts import CONFIG, metrics, spread, train  # noqa: F401 (a fixture for all)


def test_a_run_through_it_learns_what_it_learns_in_process(
    make_spec: Callable[..., dict], tiny_model: Path, events: Recorder, tmp_path: Path
) -> None:
    running = Running(tiny_model, tmp_path)
    server = {
        "base_url": f"{running.root}/v1",
        "model": "base",
        "allow_private": True,
        "lora_slots": 2,
    }
    rollouts = {"servers": [server], "folder": str(tmp_path / "adapters"), "steps_ahead": 0}
    learnt = []
    try:
        for name, more in (("here", {}), ("there", {"rollouts": rollouts})):
            given = make_spec(
                config=CONFIG, seed=3, job_id="job-1", attempt=1, out_dir=str(tmp_path / name)
            )
            train(given | more, events)
            learnt.append(load_file(tmp_path / name / "adapter" / "adapter_model.safetensors"))
        assert running.adapters.names() == []
    finally:
        running.process.kill()
        running.process.wait()
    for name, here in learnt[0].items():
        torch.testing.assert_close(learnt[1][name], here, atol=2e-4, rtol=0)
    through = metrics(events)[3:]
    assert [found["rollout/adapter_move"] for found in through[1:]] == pytest.approx(
        [1, 1], abs=0.01
    )
    assert all(found["rollout/adapter_gap"] < 1e-4 for found in through)
