"""An agent's own harness in place of the built-in loop, in evaluations and in training: which
agents may play, and how a job's program reaches them (docs/agents.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.conf import settings
from django.utils.crypto import salted_hmac

from apps.core.models import Job
from apps.registry.engines import agent_endpoint
from apps.registry.models import ModelKind, ModelVersion, Reach
from workers.lib.specs.harness import AgentHarness, AgentPull

PLAYS = (Reach.HTTP, Reach.PULL)
WORK = "/rollout/work/"


def playable(versions: Any) -> Any:
    """Of a project's model versions, those that may play."""
    return versions.current().filter(kind=ModelKind.AGENT, reached_by__in=PLAYS)


def why_not_played(agent: ModelVersion) -> str:
    """Why an agent cannot play a job's episodes; "" if it can."""
    if agent.kind != ModelKind.AGENT or agent.reached_by not in PLAYS:
        return (
            f"{agent} is not an agent that is called over HTTP or waits for work. Register one"
            " under Models."
        )
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


def harness_spec(job: Job) -> AgentHarness | None:
    """Raises ModelError, RefusedKey if the agent may not be called any more."""
    agent = agent_in(job.spec)
    if agent is None:
        return None
    pulled, given = agent.reached_by == Reach.PULL, job.spec["harness"]
    endpoint = None if pulled else agent_endpoint(agent)
    if endpoint is not None:
        endpoint.timeout_s = given.get("timeout_s", endpoint.timeout_s)
    return AgentHarness(
        name=agent.name,
        version=agent.agent_version,
        endpoint=endpoint,
        pull=AgentPull(token=_work_token(job)) if pulled else None,
        **{"at_once": given["at_once"]} if "at_once" in given else {},
        host=settings.FLYWHEEL_ROLLOUTS_HOST,
        port=settings.FLYWHEEL_ROLLOUTS_PORT,
        url=settings.FLYWHEEL_ROLLOUTS_URL,
    )


def _work_token(job: Job) -> str:
    said = f"{job.pk}/{job.attempt}"
    return salted_hmac("flywheel.work", said, algorithm="sha256").hexdigest()


def store_address(job: Job, events: Iterable[Mapping[str, Any]]) -> None:
    """Where the job's program listens for the agents of its rollouts."""
    for event in events:
        if event["type"] == "rollouts":
            job.cursor = job.cursor | {"rollouts": event["url"], "attempt": job.attempt}
            type(job).objects.filter(pk=job.pk).update(cursor=job.cursor)


def work_address(job: Job) -> str:
    """Where workers ask for rollouts of a running job; "" before its program listens."""
    is_open = job.cursor.get("attempt") == job.attempt
    return f"{job.cursor['rollouts']}{WORK}{_work_token(job)}" if is_open else ""
