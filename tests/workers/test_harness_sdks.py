"""Agents on LangGraph, the OpenAI Agents SDK and the AI SDK (Node), Codex and Claude Code, which
find the model and the tools of their rollout by environment variables: what is learned are the
tokens of the model's own log, and the state is what they made of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workers.test_harness_tools import DELETE, SPEC, Playing, task
from workers.lib.engines import SoFar
from workers.lib.environments import load
from workers.lib.environments.episodes import tool_names
from workers.lib.harness.playing import HarnessPlayer
from workers.lib.policies import Reply
from workers.lib.rollouts import Finished, Limits, play
from workers.lib.specs.harness import AgentCommand, AgentHarness
from workers.lib.token_rows import rows_of

ROOT = Path(__file__).resolve().parent.parent.parent
AGENTS = Path(__file__).resolve().parent / "agents"
PYTHON = ROOT / ".venv-sdks" / "bin" / "python"


class Clerk(Playing):
    """Throws away the mail that it is asked to, and logs every token that it sampled."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    async def sample(
        self, messages: list[dict], tools: list[dict], so_far: SoFar | None, **more: Any
    ) -> tuple[Reply, SoFar]:
        number = re.search(r"the id (\d{8})", json.dumps(messages))
        name = next((n for n in tool_names(tools) if n.endswith(DELETE)), "")
        assert number is not None and name
        made = json.dumps({"name": name, "arguments": {"email_id": number[1]}})
        is_done = messages[-1]["role"] == "tool"
        self.answers = [f"{number[1]} is gone." if is_done else f"<tool_call>{made}</tool_call>"]
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


def installed(program: str, packages: list[str], folder: Path) -> Path:
    """The program, beside its packages."""
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    install = ["npm", "install", "--silent", "--no-audit", "--prefix", str(folder), *packages]
    if subprocess.run(install, capture_output=True, timeout=300).returncode:
        pytest.skip("the npm registry does not answer")
    return shutil.copy(AGENTS / program, folder)


def node(folder: Path) -> AgentCommand:
    program = installed("ai_sdk.mjs", ["ai@7.0.173", "@ai-sdk/openai-compatible@3.0.92"], folder)
    return AgentCommand(argv=["node", str(program)])


def codex(folder: Path) -> AgentCommand:
    return AgentCommand(argv=["sh", str(installed("codex.sh", ["@openai/codex@0.171.0"], folder))])


def claude_code(folder: Path) -> AgentCommand:
    program = installed("claude_code.sh", ["@anthropic-ai/claude-code@2.1.332"], folder)
    return AgentCommand(argv=["sh", str(program)])


AGENT: dict[str, Callable[[Path], AgentCommand]] = {
    "LangGraph": lambda folder: sdk("langgraph_mcp_agent"),
    "OpenAI Agents SDK": lambda folder: sdk("openai_agents_mcp_agent"),
    "AI SDK": node,
    "Codex": codex,
    "Claude Code": claude_code,
}


@pytest.fixture(params=AGENT)
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> AgentCommand:
    (folder := tmp_path / "agent").mkdir()
    return AGENT[request.param](folder)


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
