"""How a training program handles the alarms of a step: it reports them, and ends if one pauses or
stops the run. Light.
"""

from __future__ import annotations

from collections.abc import Sequence

from workers.lib.alarms import LEVELS, Alarm, Watchman
from workers.lib.errors import JobError
from workers.lib.events import Emitter
from workers.lib.program import Stop


class Alarmed(JobError):
    """An alarm stopped the run, which has failed; the message says which alarm, and what to do."""


class Paused(Stop):
    """An alarm paused the run: it ends like one that was asked to stop, and can be resumed."""


def report(events: Emitter, alarms: Sequence[Alarm]) -> None:
    """Emit each alarm. Raises Alarmed or Paused for the most severe one."""
    for alarm in alarms:
        events.emit("alarm", **alarm.as_event())
        events.log("info" if alarm.cleared else "warning", f"Step {alarm.step}: {alarm.message}")
    worst = max(alarms, key=lambda alarm: LEVELS[alarm.action], default=None)
    if worst is None or worst.cleared:
        return
    if worst.action == "stop":
        raise Alarmed(
            f"Stopped at step {worst.step}. {worst.message} A checkpoint is kept. {worst.todo}"
        )
    if worst.action == "pause":
        raise Paused(
            f"Paused at step {worst.step}. {worst.message} A checkpoint is kept. {worst.todo}"
        )


def judge_end(events: Emitter, watchman: Watchman, done: int) -> None:
    """Say what a run has achieved in its `done` steps, and warn about what speaks against it."""
    events.outcome = [sentence.text for sentence in watchman.outcome()]
    report(events, watchman.at_end(done))


def require_scores(watchman: Watchman, done: int, masked_by: str) -> None:
    """Raises JobError if no rollout of a run that samples had a reward."""
    seen = watchman.history.start  # a checkpoint stores it
    if "train/learning_rate" in seen and "train/reward_mean" not in seen:
        raise JobError(
            f"None of the rollouts of {done} steps could be scored, so nothing was learned. The"
            f" last reasons: {masked_by}"
        )
