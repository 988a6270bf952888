"""Scores stored answers again without generating anything. `python -m workers.rescore spec.json`
(docs/jobs.md).
"""

from __future__ import annotations

from dataclasses import asdict

from workers.lib.environments import Environment, load
from workers.lib.events import Emitter
from workers.lib.policies import RecordedPolicy
from workers.lib.program import StopFlag, run_main
from workers.lib.rollouts import EXCEEDED, NO_LIMITS, Finished, failed, play
from workers.lib.specs.rescore import Rescore, StoredSample

SCORED = ("reward", "components", "success", "unsafe", "masked", "mask_reason", "details")
AT_ONCE = 16


def turns_of(sample: StoredSample) -> list[dict]:
    """The assistant's turns of a stored sample, or its output if the turns were not stored."""
    said = [message for message in sample.messages if message.get("role") == "assistant"]
    return said or [{"role": "assistant", "content": sample.output}]


def rescore(
    environment: Environment, samples: list[StoredSample], events: Emitter, stop: StopFlag
) -> list[dict]:
    """A row {id, reward, …} for each sample, in the same order."""
    rows: dict[int, dict] = {}

    def tell(index: int, _: int, done: Finished) -> None:
        ended = samples[
            index
        ].stop_reason  # stored because the messages do not show a turn that never came
        exceeded = ended in EXCEEDED and done.stop_reason not in EXCEEDED
        fields = asdict(failed(done.score, ended) if exceeded else done.score)
        rows[index] = {"id": samples[index].id} | {name: fields[name] for name in SCORED}
        events.progress(len(rows), len(samples), "scoring")
        stop.check()

    recorded = RecordedPolicy([turns_of(sample) for sample in samples])
    tasks = [sample.task for sample in samples]
    play(recorded, environment, tasks, NO_LIMITS, tell, concurrency=AT_ONCE)
    return [rows[index] for index in range(len(samples))]


def main(spec: Rescore, events: Emitter, stop: StopFlag) -> None:
    events.result(scores=rescore(load(spec.environment), spec.samples, events, stop))


if __name__ == "__main__":
    run_main(Rescore, main)
