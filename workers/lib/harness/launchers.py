"""Runs an agent on one task: starts its command and waits for its end. Light: no torch."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from workers.lib.agent_client import AgentClient, AgentError
from workers.lib.harness.addressed import Address
from workers.lib.messages import Message
from workers.lib.specs.engines import AgentEndpoint
from workers.lib.specs.harness import AgentCommand
from workers.lib.storable import storable
from workers.lib.transcripts import agent_turns

MOST_OUTPUT = 4 * 1024 * 1024  # bytes of a command's output that are kept
LAST_WORDS_S = 2.0  # for reading them, if a process that it left behind keeps its output open
TASK = "task.json"
SHOWN = 400
KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "VIRTUAL_ENV", "NODE_PATH")


@dataclass(frozen=True)
class Work:
    """What an agent gets: the task without anything that says what is right, and its rollout's
    address. `is_fresh`: whether the model was not asked there yet, so that it may begin again.
    """

    task_id: str
    messages: list[dict]
    tools: list[dict]
    address: str
    token: str
    model: str
    seed: int
    is_fresh: Callable[[], bool] = lambda: True


@dataclass(frozen=True)
class Outcome:
    """`turns`: what the agent says that it said, [] if it does not say. `problem`: why it failed
    by itself, "" if it did not; `stop_reason` is then that of the rollout.
    """

    turns: list[Message] = field(default_factory=list)
    problem: str = ""
    stop_reason: str = ""


class Launcher(Protocol):
    async def run(self, work: Work) -> Outcome:
        """Cancelling it ends the agent. Raises AgentAway."""


class AgentAway(Exception):
    """The agent could not be started or reached, which says nothing about it. `final`: nor could
    it for any other task. `again`: the rollout may be played once more.
    """

    def __init__(self, sentence: str, *, final: bool = False, again: bool = False) -> None:
        super().__init__(sentence)
        self.final, self.again = final, again


def variables_of(work: Work) -> dict[str, str]:
    """The environment variables in which agents and SDKs look for their model and tools."""
    address = Address.below(work.address, has_model=True)
    return {
        "OPENAI_BASE_URL": address.model,
        "OPENAI_API_BASE": address.model,
        "OPENAI_API_KEY": work.token,
        "ANTHROPIC_BASE_URL": work.address,
        "ANTHROPIC_API_KEY": work.token,
        "FLYWHEEL_MODEL_URL": address.model,
        "FLYWHEEL_MODEL": work.model,
        "FLYWHEEL_MCP_URL": address.mcp,
        "FLYWHEEL_TOOLS_URL": address.tools,
        "FLYWHEEL_TASK": TASK,
    }


def task_of(work: Work) -> dict[str, Any]:
    return {"id": work.task_id, "messages": work.messages, "tools": work.tools}


class CommandLauncher:
    """Starts a command for each rollout, in a process group and a folder of its own; both are
    removed at its end. The task is in the file `FLYWHEEL_TASK`, and on standard input. If the last
    line of its output is JSON with `messages` or `output`, that is what it says that it did.
    """

    def __init__(self, command: AgentCommand) -> None:
        self.command = command

    async def run(self, work: Work) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="flywheel-agent-") as folder:
            inside = Path(folder) / "work"
            if self.command.folder:
                await asyncio.to_thread(shutil.copytree, self.command.folder, inside, symlinks=True)
            else:
                inside.mkdir()
            (inside / TASK).write_text(json.dumps(task_of(work), ensure_ascii=False))
            with (inside / TASK).open("rb") as given:
                return await self._run(inside, folder, given, work)

    async def _run(self, inside: Path, home: str, given: BinaryIO, work: Work) -> Outcome:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        own = {"HOME": home, "TMPDIR": home}
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command.argv,
                cwd=inside,
                env=kept | own | self.command.variables | variables_of(work),
                stdin=given,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            said = f"The agent's command cannot be started: {error}."
            raise AgentAway(said, final=True) from error
        out, errors = bytearray(), bytearray()
        reading = asyncio.gather(_keep(process.stdout, out), _keep(process.stderr, errors))
        try:
            try:
                status = await process.wait()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            await asyncio.wait({reading}, timeout=LAST_WORDS_S)
        finally:
            reading.cancel()
        if status != 0:
            said = storable(errors.decode(errors="replace")).strip()[-SHOWN:]
            problem = f"The agent's command ended with status {status}. {said}"
            return Outcome(problem=problem, stop_reason="agent error")
        return Outcome(agent_turns(reported_in(out.decode(errors="replace")), work.messages))


class CalledLauncher:
    """Calls an agent that is deployed, as an evaluation does, and tells it where its model and its
    tools are for this rollout: in headers, and in the request's `metadata`.
    """

    def __init__(self, agent: AgentEndpoint) -> None:
        self.agent = agent

    async def run(self, work: Work) -> Outcome:
        try:
            client = AgentClient(self.agent)
            async with contextlib.aclosing(client):
                answer = await client.ask(
                    work.messages,
                    work.tools,
                    seed=work.seed,
                    name=hashlib.sha256(work.token.encode()).hexdigest()[:32],
                    again=work.is_fresh,
                    seconds=self.agent.timeout_s,
                    address=Address.below(work.address, has_model=True),
                )
        except AgentError as error:
            if error.limit and not error.final:
                return Outcome(problem=str(error), stop_reason=error.limit)
            raise AgentAway(str(error), final=error.final) from error
        return Outcome(answer.said.turns)


def reported_in(output: str) -> list[dict]:
    """The messages that the last line of an agent's output holds."""
    lines = output.strip().splitlines()
    try:
        found: Any = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return []
    return messages_in(found) if isinstance(found, dict) else []


def messages_in(found: dict[str, Any]) -> list[dict]:
    messages = found.get("messages")
    if isinstance(messages, list):
        return [message for message in messages if isinstance(message, dict)]
    said = found.get("output")
    return [{"role": "assistant", "content": said}] if isinstance(said, str) else []


async def _keep(stream: asyncio.StreamReader | None, found: bytearray) -> None:
    """The end of what a process writes; all of it is read, so that it never waits."""
    assert stream is not None
    while data := await stream.read(65536):
        found += data
        del found[:-MOST_OUTPUT]
