"""An agent's own harness in place of the built-in loop, in evaluations and in training: which
agents may play, and how a job's program reaches them (docs/agents.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings

from apps.registry.engines import agent_endpoint
from apps.registry.models import ModelKind, ModelVersion, Reach
from workers.lib.specs.harness import AgentHarness

AT_ONCE = 16  # rollouts, where nobody says another number


def playable(versions: Any) -> Any:
    """Of a project's model versions, those that may play."""
    return versions.current().filter(kind=ModelKind.AGENT, reached_by=Reach.HTTP)


def why_not_played(agent: ModelVersion) -> str:
    """Why an agent cannot play a job's episodes; "" if it can."""
    if agent.kind != ModelKind.AGENT or agent.reached_by != Reach.HTTP:
        return f"{agent} is not an agent that is called over HTTP. Register one under Models."
    if agent.archived_at:
        return f"{agent} is archived. Choose another, or unarchive it on its page."
    return ""


def in_spec(agent: ModelVersion | None) -> dict[str, Any]:
    """What a job stores of its agent."""
    if agent is None:
        return {}
    return {"harness": {"agent": agent.pk, "name": str(agent), "digest": agent.digest}}


def agent_in(spec: Mapping[str, Any]) -> ModelVersion | None:
    """The agent that plays a job's episodes."""
    played = spec.get("harness")
    return ModelVersion.objects.get(pk=played["agent"]) if played else None


def harness_spec(spec: Mapping[str, Any]) -> AgentHarness | None:
    """Raises ModelError, RefusedKey if the agent may not be called any more."""
    agent = agent_in(spec)
    if agent is None:
        return None
    endpoint, given = agent_endpoint(agent), spec["harness"]
    endpoint.timeout_s = given.get("timeout_s", endpoint.timeout_s)
    return AgentHarness(
        name=agent.name,
        version=agent.agent_version,
        endpoint=endpoint,
        at_once=given.get("at_once", AT_ONCE),
        host=settings.FLYWHEEL_ROLLOUTS_HOST,
        port=settings.FLYWHEEL_ROLLOUTS_PORT,
        url=settings.FLYWHEEL_ROLLOUTS_URL,
    )
