"""Agents in their own harness, trained on what a model server samples: every learned token is in
the log that the server itself keeps where it samples, and loss and gradients are those of the same
episode in the built-in loop. With `FLYWHEEL_ROLLOUTS_TRIED` tasks.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import to_builtins

from tests.test_proof_server_rollouts import OPTIONS, VLLM, serving
from tests.workers import token_log
from tests.workers.conftest import Recorder, typed
from tests.workers.mail_model import make_mail_model
from tests.workers.test_harness_rollouts import reasons, sampled
from tests.workers.test_harness_sdks import AGENT
from tests.workers.test_harness_tools import DELETE, SPEC, task
from workers import grpo
from workers.lib.environments import load
from workers.lib.program import StopFlag
from workers.lib.token_rows import rows_of
from workers.ml.groups import Group
from workers.ml.policy_gradient import add_gradients

ROOT = Path(__file__).resolve().parent.parent
TRIED = int(os.environ.get("FLYWHEEL_ROLLOUTS_TRIED", 8))
ENVIRONMENT = SPEC | {"config": {"tools": [DELETE]}}
TOLERANCE = 1e-5
SHOWN: dict[str, dict] = {"OpenAI Agents SDK": {"strict": False}}  # what a client adds to each tool
AGENTS = ["LangGraph", "OpenAI Agents SDK", "AI SDK"]
PLACES = ["in process", "our server", "vLLM"]
Log = list[tuple[tuple[int, ...], tuple[int, ...]]]
pytestmark = pytest.mark.proof


def tools_of(agent: str) -> list[dict]:
    """The environment's tools as the agent's client shows them to the model."""
    more = SHOWN.get(agent, {})
    return [tool | {"function": tool["function"] | more} for tool in load(ENVIRONMENT).tools]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shown = [tools_of(agent) for agent in AGENTS[:2]]
    return make_mail_model(tmp_path_factory.mktemp("mail"), range(1, 65), shown)


@dataclass
class Place:
    """Where a run samples. `url` "": in its own process."""

    url: str
    file: Path

    def log(self) -> Log:
        """What was sampled there since the last look."""
        found = token_log.read(self.file)
        os.truncate(self.file, 0)
        return found


@pytest.fixture(scope="module", params=PLACES)
def place(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("server")
    file = folder / "tokens.jsonl"
    file.touch()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    if request.param == "in process":
        with pytest.MonkeyPatch.context() as patch, file.open("a") as log:
            token_log.in_process(patch, log)
            yield Place("", file)
        return
    if request.param == "vLLM":
        if not VLLM.exists():
            pytest.skip("no .venv-vllm: run `make vllm`")
        command = [
            VLLM.parent / "python",
            token_log.__file__,
            "vllm",
            file,
            "serve",
            model,
            *OPTIONS,
        ]
    else:
        options = ["--served-model-name", "base", "--max-loras", "2", "--max-lora-rank", "16"]
        script = ["-m", "tests.workers.token_log", "transformers", file]
        command = [sys.executable, *script, model, *options]
    with serving(command, port, folder / "server.log") as url:
        yield Place(url, file)


@contextmanager
def trainer_of(
    name: str, url: str, model: Path, folder: Path, **more: Any
) -> Iterator[grpo.Trainer]:
    """A trainer whose weights are not those of the base, ready to sample: at `url`, or in its own
    process.
    """
    if url:
        server = {"base_url": url, "model": "base", "allow_private": True, "lora_slots": 2}
        more["rollouts"] = {"servers": [server], "folder": str(folder / "adapters")}
    spec = {
        "job_id": name,
        "attempt": 1,
        "seed": 7,
        "out_dir": str(folder / name),
        "model": {"base": str(model)},
        "engine": {"kind": "transformers", "dtype": "float32", "threads": 1},
        "environment": ENVIRONMENT,
        "tasks": [task(number) for number in range(1, 1 + TRIED)],
        "config": {"steps": 1, "learning_rate": 1e-3, "lora_rank": 8, "max_new_tokens": 40},
    }
    events = Recorder(folder / f"{name}.jsonl")
    trainer = grpo.Trainer(typed(spec | more, "grpo"), events, StopFlag())
    torch.manual_seed(1)
    for parameter in (p for key, p in trainer.model.named_parameters() if "lora_B" in key):
        torch.nn.init.normal_(parameter, std=0.01)
    try:
        if trainer.servers:
            trainer.servers.open(trainer.sampling)
            trainer.servers.publish(0)
        if trainer.player:
            trainer.player.start()
        yield trainer
    finally:
        for part in filter(None, (trainer.player, trainer.servers)):
            part.close()


def rollouts(trainer: grpo.Trainer) -> list[Group]:
    """One of each task."""
    found = trainer.play(
        trainer.tasks, trainer.sampling, 1, seed=trainer.seed, phase="train", step=1
    )
    return [Group(one, episodes) for one, episodes in zip(trainer.tasks, found, strict=True)]


def learned(trainer: grpo.Trainer, groups: list[Group]) -> tuple[float, list[torch.Tensor]]:
    """Loss and gradients, with an advantage of its own for each rollout."""
    weights = [torch.tensor([(-1.0) ** at * (1 + at / TRIED)]) for at in range(TRIED)]
    batch = trainer.batch_from(list(zip(groups, weights, strict=True)))
    _, metrics = add_gradients(trainer.model, batch, None, None, trainer.config)
    found = [p.grad for p in trainer.model.parameters() if p.grad is not None]
    return metrics["train/loss"], found


def harness_of(agent: str, folder: Path) -> dict:
    (own := folder / "agent").mkdir()
    command = to_builtins(AGENT[agent](own))
    return {"name": agent, "version": "1", "command": command, "at_once": 4}


def answers_of(groups: list[Group]) -> Counter[tuple]:
    """What the rollouts learn, as a server logs it."""
    replies = [reply for group in groups for done in group.episodes for reply in done.replies]
    return Counter((tuple(one.prompt_token_ids), tuple(one.token_ids)) for one in replies)


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_learns_what_its_server_sampled_as_the_built_in_loop_does(
    agent: str, place: Place, model: Path, tmp_path: Path
) -> None:
    harness = harness_of(agent, tmp_path)
    began = time.monotonic()
    with trainer_of("theirs", place.url, model, tmp_path, harness=harness) as trainer:
        place.log()  # so far, only the server's weights were checked
        groups, log = rollouts(trainer), place.log()
        loss, gradients = learned(trainer, groups)
    took = time.monotonic() - began
    assert reasons(groups) == {""}
    episodes = [done for group in groups for done in group.episodes]
    successes = sum(done.score.success for done in episodes)
    assert successes > len(episodes) / 4

    assert answers_of(groups) == Counter(log)
    for done in episodes:
        (row,) = rows_of(done)
        ids = [i for i, is_learned in zip(row.ids, row.learnt, strict=True) if is_learned]
        assert ids == [i for reply in done.replies for i in reply.token_ids]

    with trainer_of("ours", place.url, model, tmp_path) as trainer:
        trainer.environment.tools = tools_of(agent)
        own = rollouts(trainer)
        assert sampled(own) == sampled(groups)
        same = [learned(trainer, own)]
    with trainer_of("in-process", "", model, tmp_path) as trainer:
        same.append(learned(trainer, groups))
    gaps = [_gap(loss, other) for other, _ in same]
    gaps += [max(map(_gap, gradients, others)) for _, others in same]
    largest = max(float(gradient.abs().max()) for gradient in gradients)
    print(
        f"\n{agent}: {len(episodes)} rollouts, {successes} right, {len(log)} answers of"
        f" {sum(len(ids) for _, ids in log)} tokens, all in the log; loss {loss:.6f},"
        f" gradients up to {largest:.2g}; apart from the built-in loop {gaps[0]:.1e} and"
        f" {gaps[2]:.1e}, from the update in process {gaps[1]:.1e} and {gaps[3]:.1e};"
        f" {took:.0f} s, load {os.getloadavg()[0]:.0f}"
    )
    assert largest > 1e-3 and max(gaps) < TOLERANCE


def _gap(one: Any, other: Any) -> float:
    return float(abs(one - other).max()) if torch.is_tensor(one) else abs(one - other)
