"""What a managed server is doing, as its pages and the API say it."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils import timezone

from apps.core.models import HEARTBEAT_STALE_AFTER, JobState
from apps.registry.models import Phase, ServerRun
from flywheel import alive

QUEUE = "serve"
NO_WORKER = (
    "No worker of the queue “serve” is running. On the machine that is to serve it, run “make up”"
    " again, or “python -m flywheel.processes serve”; for vLLM, “make vllm” once before."
)
STATES = ("stopped", "queued", "starting", "up", "restarting", "stopping", "lost", "failed")


@dataclass(frozen=True)
class State:
    """`name` of STATES for the API; `label`, `tone` and `sentence` for people."""

    name: str
    label: str
    tone: str
    sentence: str
    active: bool = True


def state_of(run: ServerRun | None) -> State:
    if run is None:
        return State("stopped", "Stopped", "", "Not started yet.", active=False)
    if run.state == JobState.FAILED:
        return State("failed", "Failed", "bad", run.error, active=False)
    if not run.is_active:
        return State("stopped", "Stopped", "", "", active=False)
    if run.state == JobState.QUEUED:
        return State(
            "queued",
            "Queued",
            "",
            "Waiting for a worker of the queue “serve”." if has_worker() else NO_WORKER,
        )
    if run.cancel_requested_at:
        return State("stopping", "Stopping", "warn", "Stopping.")
    if run.heartbeat_at and timezone.now() - run.heartbeat_at > HEARTBEAT_STALE_AFTER:
        return State(
            "lost",
            "Lost",
            "bad",
            f"The worker {run.worker} stopped answering. Another one will start it again.",
        )
    if run.phase == Phase.UP:
        return State("up", "Up", "good", "")
    if run.phase == Phase.WAITING:
        return State("restarting", "Restarting", "warn", run.detail)
    return State(
        "starting", "Starting", "", "The model is being loaded. That can take a minute or more."
    )


def has_worker() -> bool:
    return alive.noted(QUEUE)
