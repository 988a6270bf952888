"""An agent that waits for work: programs on other machines ask for its rollouts, run it, and report
what it said (`flywheel-work`). Light: no torch.

They ask below one address of the job's program, `…/rollout/work/TOKEN`. Whoever has a rollout says
every few seconds that it is alive; if it stops, the rollout's address ends and the rollout is given
out once more from its beginning, so it is never played twice at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workers.lib.clocks import current
from workers.lib.harness.launchers import (
    SHOWN,
    AgentAway,
    Outcome,
    Work,
    messages_in,
    task_of,
    variables_of,
)
from workers.lib.openai_requests import ApiError
from workers.lib.specs.harness import AgentPull
from workers.lib.storable import storable
from workers.lib.transcripts import agent_turns

NO_WORKER = "No worker asks for this agent's rollouts; start: flywheel-work {} -- COMMAND"
ASKED_AGAIN = "a worker asks for this agent's rollouts"
LOST = "Twice, a worker that had this rollout was stopped or no longer reported."
OVER = "This rollout has ended, or was given to another worker."
REPORT = (
    "Report {“messages”: […]}, {“output”: text}, {“problem”: why the agent failed}, {“alive”: true}"
    " or {“released”: true}."
)
MOST_WAIT_S, LOOK_S, CHECK_S = 60.0, 0.1, 0.5
TIMED_OUT, FAILED = "time", "agent error"  # stop reasons


@dataclass(eq=False)
class _Offer:
    """A rollout that waits for a worker (`taken`), and then for what that reports."""

    work: Work
    taken: asyncio.Future[None]
    reported: asyncio.Future[Outcome | None]  # None: the worker was stopped
    alive_at: float = 0.0


class PulledLauncher:
    """Rollouts wait in their own event loop, workers are answered in the gateway's; the lock guards
    what both change. `notify` is called, in a rollout's loop, with what a job should say about its
    workers.
    """

    def __init__(self, pull: AgentPull, agent: str, notify: Callable[[str], None]) -> None:
        self.pull, self.agent, self.notify = pull, agent, notify
        self.lock = threading.Lock()
        self.waiting: deque[_Offer] = deque()
        self.given: dict[str, _Offer] = {}
        self.asked_at = self.noted_at = time.monotonic()
        self.is_closed = False
        self.is_missing = False  # whether the job says that no worker asks

    async def run(self, work: Work) -> Outcome:
        loop = asyncio.get_running_loop()
        offer = _Offer(work, loop.create_future(), loop.create_future())
        self.waiting.append(offer)
        try:
            with current().stopped():  # the agent has not started
                while not offer.taken.done():
                    await asyncio.wait({offer.taken}, timeout=CHECK_S)
                    self._note_missing()
            while not offer.reported.done():
                if time.monotonic() - offer.alive_at > self.pull.lease_s:
                    raise AgentAway(LOST, again=True)
                await asyncio.wait({offer.reported}, timeout=CHECK_S)
            outcome = offer.reported.result()
            if outcome is None:
                raise AgentAway(LOST, again=True)
            return outcome
        finally:
            with self.lock:
                self.given.pop(work.token, None)
                if offer in self.waiting:
                    self.waiting.remove(offer)

    def _note_missing(self) -> None:
        now = time.monotonic()
        silent, problem = now - self.asked_at, NO_WORKER.format(self.agent)
        if silent > self.pull.most_silent_s:
            raise AgentAway(problem, final=True)
        if silent <= self.pull.noted_after_s:
            if self.is_missing:
                self.is_missing = False
                self.notify(ASKED_AGAIN)
        elif not self.is_missing or now - self.noted_at > self.pull.noted_after_s:
            self.is_missing, self.noted_at = True, now
            self.notify(problem)

    # What workers ask, in the gateway's loop

    async def answer(self, path: str, data: bytes, gone: asyncio.Task[None]) -> dict[str, Any]:
        """`path` is below the address of work: the job's token, and that of a rollout in a report.
        Raises ApiError.
        """
        token, _, rollout = path.partition("/")
        if not secrets.compare_digest(token.encode(), self.pull.token.encode()):
            raise ApiError(404, "No job gives out work here.")
        body = _read(data)
        self.asked_at = time.monotonic()
        if rollout:
            return self._report(rollout, body)
        wait = body.get("wait_s", 0)
        wait = min(MOST_WAIT_S, float(wait)) if isinstance(wait, int | float) else 0.0
        return {"rollout": await self._take(wait, gone)}

    def close(self) -> None:
        """Nobody waits for a rollout any more."""
        self.is_closed = True

    async def _take(self, wait_s: float, gone: asyncio.Task[None]) -> dict[str, Any] | None:
        until = time.monotonic() + wait_s
        while not (gone.done() or self.is_closed):
            now = self.asked_at = time.monotonic()
            with self.lock:
                if self.waiting:
                    offer = self.waiting.popleft()
                    offer.alive_at, self.given[offer.work.token] = now, offer
                    _resolve(offer.taken, None)
                    return {
                        "id": offer.work.token,
                        "task": task_of(offer.work),
                        "variables": variables_of(offer.work),
                        "lease_s": self.pull.lease_s,
                    }
            if now >= until:
                return None
            await asyncio.sleep(LOOK_S)
        return None

    def _report(self, rollout: str, body: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            offer = self.given.get(rollout)
            if offer is None:
                raise ApiError(410, OVER)
            offer.alive_at = time.monotonic()
            if body.get("alive"):
                return {"lease_s": self.pull.lease_s}
            outcome = None if body.get("released") else _outcome(body, offer.work)
            del self.given[rollout]
            _resolve(offer.reported, outcome)
        return {}


def _read(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise ApiError(400, "Send a JSON object.")
    return body


def _outcome(body: dict[str, Any], work: Work) -> Outcome:
    if isinstance(problem := body.get("problem"), str):
        stop = TIMED_OUT if body.get("timed_out") else FAILED
        return Outcome(problem=storable(problem)[:SHOWN] or "The agent failed.", stop_reason=stop)
    if not body.keys() & {"messages", "output"}:
        raise ApiError(400, REPORT)
    return Outcome(agent_turns(messages_in(body), work.messages))


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    """In the future's own loop, if that still runs."""

    def resolve() -> None:
        if not future.done():
            future.set_result(value)

    with contextlib.suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(resolve)
