"""Where the events of coding agents belong: to the span that they name, else to the conversation.

What a conversation's events say of calls, tools and prompts becomes spans, so that they are stored,
found and joined as all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from msgspec import json, structs

from apps.trajectories.otlp.conventions.coding_agents import (
    CALL,
    PROMPT,
    TOOL,
    Agent,
    Told,
    agent_of,
    is_internal,
    name_of,
    told_by,
)
from apps.trajectories.otlp.spans import LogRecord, Span
from apps.trajectories.values import label

STEPS = (CALL, TOOL, PROMPT)


def placed(spans: Iterable[Span], logs: Iterable[LogRecord]) -> tuple[list[Span], list[LogRecord]]:
    """The spans and log records that say something of a run. Records that belong to no trace, and
    the internal tracing of agents, are left out.
    """
    kept = [span for span in spans if not is_internal(span.scope.name, span.attributes)]
    records: list[LogRecord] = []
    for log in logs:
        agent = agent_of(log)
        if agent is None or (agent.has_spans and log.trace_id):
            records += [log] if log.trace_id else []
        elif (talk := label(log.attributes.get(agent.talk))) and (told := told_by(log)):
            span = _span(agent, talk, told)
            records.append(structs.replace(log, trace_id=span.trace_id, span_id=span.span_id))
            kept += [span] if told.says in STEPS else []
    return kept, records


def _span(agent: Agent, talk: str, told: Told) -> Span:
    log = told.log
    said = (talk, log.time_ns, told.says, log.attributes)
    return Span(
        _digest((agent.name, talk), 16),
        _digest(said, 8),
        name=name_of(log),
        start_ns=told.started_ns,
        end_ns=log.time_ns,
        status_code=2 if told.error else 0,
        status_message=told.error,
        attributes=told.attributes | _talk(agent, talk, log.attributes),
        resource=log.resource,
        scope=log.scope,
    )


def _talk(agent: Agent, talk: str, said: dict[str, Any]) -> dict[str, Any]:
    """The session, of which a talk may be one turn."""
    names = {name: said[name] for name in ("session.id", "user.id") if said.get(name)}
    return {"session.id": talk} | names


def _digest(value: Any, size: int) -> str:
    return blake2b(json.encode(value, order="sorted"), digest_size=size).hexdigest()
