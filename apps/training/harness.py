"""Training through an agent's own harness: which agents may play a run's episodes, and how its
program reaches them (docs/agents.md).
"""

from __future__ import annotations

from typing import Any

from django.conf import settings

from apps.registry.engines import agent_endpoint
from apps.registry.models import ModelKind, ModelVersion, Reach
from apps.training.models import Method, TrainingRun
from workers.lib.specs.harness import AgentHarness


def why_not_played(agent: ModelVersion, method: str) -> str:
    """Why an agent cannot play a run's episodes; "" if it can."""
    if method != Method.GRPO:
        return f"{Method(method).label} does not sample with an agent; only GRPO does."
    if agent.kind != ModelKind.AGENT or agent.reached_by != Reach.HTTP:
        return f"{agent} is not an agent that is called over HTTP. Register one under Models."
    if agent.archived_at:
        return f"{agent} is archived. Choose another, or unarchive it on its page."
    return ""


def playable(agents: Any) -> Any:
    """Of a project's model versions, those that may play."""
    return agents.current().filter(kind=ModelKind.AGENT, reached_by=Reach.HTTP)


def agent_of(run: TrainingRun) -> ModelVersion | None:
    """The agent that plays a run's episodes."""
    played = run.spec.get("harness")
    return ModelVersion.objects.get(pk=played["agent"]) if played else None


def in_spec(agent: ModelVersion | None) -> dict[str, Any]:
    """What a run stores of its agent."""
    if agent is None:
        return {}
    return {"harness": {"agent": agent.pk, "name": str(agent), "digest": agent.digest}}


def harness_spec(run: TrainingRun) -> AgentHarness | None:
    """Raises ModelError, RefusedKey if the agent may not be called any more."""
    agent = agent_of(run)
    if agent is None:
        return None
    return AgentHarness(
        name=agent.name,
        version=agent.agent_version,
        endpoint=agent_endpoint(agent),
        host=settings.FLYWHEEL_ROLLOUTS_HOST,
        port=settings.FLYWHEEL_ROLLOUTS_PORT,
        url=settings.FLYWHEEL_ROLLOUTS_URL,
    )
