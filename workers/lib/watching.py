"""What a training program does with the alarms of a step: it reports them, and ends where one pauses or stops the run. Light."""

from __future__ import annotations

from collections.abc import Sequence

from workers.lib.alarms import LEVELS, Alarm
from workers.lib.errors import JobError
from workers.lib.events import Emitter
from workers.lib.program import Stop


class Alarmed(JobError):
    """An alarm stopped the run, which has failed; the message says which and what to do."""


class Paused(Stop):
    """An alarm paused the run: it ends as one that was asked to stop, and can be resumed."""


def report(events: Emitter, alarms: Sequence[Alarm]) -> None:
    """Emits each alarm. Raises Alarmed or Paused, for the gravest."""
    for alarm in alarms:
        events.emit("alarm", **alarm.as_event())
        events.log("info" if alarm.cleared else "warning", f"Step {alarm.step}: {alarm.message}")
    worst = max(alarms, key=lambda alarm: LEVELS[alarm.action], default=None)
    if worst is None or worst.cleared:
        return
    if worst.action == "stop":
        raise Alarmed(f"Stopped at step {worst.step}. {worst.message} A checkpoint is kept. {worst.todo}")
    if worst.action == "pause":
        raise Paused(f"Paused at step {worst.step}. {worst.message} A checkpoint is kept. {worst.todo}")
