"""Training through an agent's own harness: which method may be played by which agent."""

from __future__ import annotations

from apps.registry import harness
from apps.registry.models import ModelVersion, Reach
from apps.training.models import Method


def why_not_played(agent: ModelVersion, method: str) -> str:
    """Why an agent cannot play a run's episodes; "" if it can."""
    if method != Method.GRPO:
        return f"{Method(method).label} does not sample with an agent; only GRPO does."
    return harness.why_not_played(agent)


def why_not_divided(agent: ModelVersion, processes: int) -> str:
    """Workers ask one program, so it cannot be divided."""
    if agent.reached_by != Reach.PULL or processes == 1:
        return ""
    return f"{agent} waits for work of one process. Set “config.processes” to 1."
