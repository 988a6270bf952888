"""The attacks on a verifier, through its environment. `python -m workers.probe spec.json` (docs/jobs.md)."""

from __future__ import annotations

import asyncio
from typing import Any

from workers.lib.environments import load
from workers.lib.events import Emitter
from workers.lib.probes import Options, attack
from workers.lib.rollouts import replay
from workers.lib.spec import SpecError, StopFlag, run_main
from workers.lib.verifiers import Score


def options_of(given: dict[str, Any]) -> Options:
    """Raises SpecError for an option there is not."""
    sets = {name: frozenset(given[name]) for name in ("promises", "dangerous") if name in given}
    try:
        return Options(**given | sets)
    except TypeError as error:
        raise SpecError(f"The spec's “options”: {error}.") from error


def main(spec: dict, events: Emitter, stop: StopFlag) -> None:
    environment = load(spec["environment"])
    scored = 0
    with asyncio.Runner() as runner:

        def score(task: dict, messages: list[dict]) -> Score:
            nonlocal scored
            stop.check()
            scored += 1
            if scored % 50 == 0:
                events.progress(scored, 0, f"{scored} attempts scored")
            return runner.run(replay(environment, task, messages))

        tasks = [task | {"tools": task.get("tools") or environment.tools} for task in spec["tasks"]]
        report = attack(score, tasks, spec.get("samples", []), options_of(spec.get("options", {})))
    events.result(report=report.as_dict())


if __name__ == "__main__":
    run_main("probe", main)
