"""Agents on LangGraph, the OpenAI Agents SDK and the AI SDK (Node), which find the model and the
tools of their rollout by environment variables: their sampled tokens are those of the model's own
log, and the state is what they made of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workers.test_harness_tools import SPEC, Playing, call, task
from workers.lib.engines import SoFar
from workers.lib.environments import load
from workers.lib.harness.playing import HarnessPlayer
from workers.lib.policies import Reply
from workers.lib.rollouts import Finished, Limits, play
from workers.lib.specs.harness import AgentCommand, AgentHarness
from workers.lib.token_rows import rows_of

ROOT = Path(__file__).resolve().parent.parent.parent
AGENTS = Path(__file__).resolve().parent / "agents"
PYTHON = ROOT / ".venv-sdks" / "bin" / "python"
PACKAGES = ("ai@7.0.173", "@ai-sdk/openai-compatible@3.0.92")


class Clerk(Playing):
    """Throws away the mail that it is asked to, and logs every token that it sampled."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    async def sample(
        self, messages: list[dict], tools: list[dict], so_far: SoFar | None, **more: Any
    ) -> tuple[Reply, SoFar]:
        last = messages[-1]
        number = re.search(r"\d{8}", json.dumps(messages))
        assert number is not None
        asked = last["role"] == "user"
        self.answers = [call(int(number[0])) if asked else f"{number[0]} is gone."]
        reply, here = await super().sample(messages, tools, so_far, **more)
        self.log.append((tuple(reply.prompt_token_ids), tuple(reply.token_ids)))
        return reply, here


def sdk(module: str) -> AgentCommand:
    if not PYTHON.exists():
        pytest.skip("make sdks")
    variables = {
        "PYTHONPATH": str(ROOT / "clients" / "python" / "examples"),
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }
    argv = [str(PYTHON), str(AGENTS / "by_mcp.py"), module]
    return AgentCommand(argv=argv, variables=variables)


def node(tmp_path: Path) -> AgentCommand:
    """The package must lie beside the program."""
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    folder = tmp_path / "agent"
    folder.mkdir()
    shutil.copy(AGENTS / "ai_sdk.mjs", folder)
    install = ["npm", "install", "--silent", "--no-audit", "--prefix", str(folder), *PACKAGES]
    if subprocess.run(install, capture_output=True, timeout=300).returncode:
        pytest.skip("the npm registry does not answer")
    return AgentCommand(argv=["node", str(folder / "ai_sdk.mjs")])


@pytest.fixture(params=["langgraph", "openai_agents", "ai_sdk"])
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentCommand]:
    yield node(tmp_path) if request.param == "ai_sdk" else sdk(f"{request.param}_mcp_agent")


@pytest.mark.proof
def test_what_is_learned_is_what_the_model_sampled(agent: AgentCommand) -> None:
    tasks = [task(n) for n in range(1, 1 + int(os.environ.get("FLYWHEEL_ROLLOUTS_TRIED", 8)))]
    clerk, found = Clerk(), dict[int, Finished]()
    player = HarnessPlayer(AgentHarness(name="a", version="1", command=agent, at_once=4))
    player.start()
    try:
        play(
            clerk,
            load(SPEC),
            tasks,
            Limits(seconds=120),
            lambda index, sample, done: found.update({index: done}),
            concurrency=4,
            player=player,
        )
    finally:
        player.close()
    assert {done.score.mask_reason for done in found.values()} == {""}
    assert all(done.score.success for done in found.values())
    learned = Counter(
        (tuple(reply.prompt_token_ids), tuple(reply.token_ids))
        for done in found.values()
        for reply in done.replies
    )
    assert learned == Counter(clerk.log) and len(clerk.log) == 2 * len(tasks)
    for done in found.values():
        (row,) = rows_of(done)
        assert sum(row.learnt) == sum(len(reply.token_ids) for reply in done.replies)
