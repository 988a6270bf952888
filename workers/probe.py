"""Attacks a verifier through its environment. `python -m workers.probe spec.json`
(docs/jobs.md).
"""

from __future__ import annotations

import asyncio

from msgspec import structs

from workers.lib.chat_client import ChatClient
from workers.lib.clients import chat_server
from workers.lib.environments import load
from workers.lib.events import Emitter
from workers.lib.probes import Cheat, Options, attack
from workers.lib.program import StopFlag, run_main
from workers.lib.rollouts import replay
from workers.lib.specs.probe import Probe
from workers.lib.verifiers import Score


def cheat_of(spec: Probe) -> Cheat | None:
    """The model that is instructed to cheat, if the spec names a server for it. Raises
    SpecError.
    """
    if spec.server is None:
        return None
    server = chat_server(
        spec.server, "server", name="cheating model's server", droppable=("temperature",)
    )
    return Cheat(ChatClient(server).ask, spec.server.model, spec.cheat_tokens)


def main(spec: Probe, events: Emitter, stop: StopFlag) -> None:
    environment = load(spec.environment)
    options = Options(**structs.asdict(spec.options))
    scored = 0
    with asyncio.Runner() as runner:

        def score(task: dict, messages: list[dict]) -> Score:
            nonlocal scored
            stop.check()
            scored += 1
            if scored % 50 == 0:
                events.progress(scored, 0, f"{scored} attempts scored")
            return runner.run(replay(environment, task, messages))

        cheat = cheat_of(spec)
        tasks = [task | {"tools": task.get("tools") or environment.tools} for task in spec.tasks]
        report = attack(score, tasks, spec.samples, options, cheat)
    events.result(report=report.as_dict())


if __name__ == "__main__":
    run_main(Probe, main)
