"""Langfuse: what its SDKs set on spans. Its exports say the same under the names of its API
(`importers/langfuse.py`).
"""

from __future__ import annotations

import re

from apps.trajectories.dialects import definition_in
from apps.trajectories.otlp.conventions.base import Convention, Spoken, kind_in, problem_of
from apps.trajectories.values import label, number, structured, text
from workers.lib.token_usage import parse

KINDS = {
    "GENERATION": "model",
    "AGENT": "agent",
    "TOOL": "tool",
    "RETRIEVER": "retriever",
    "GUARDRAIL": "guardrail",
}
TYPE, LEVEL = "langfuse.observation.type", "langfuse.observation.level"
STATUS_MESSAGE = "langfuse.observation.status_message"
INPUT, OUTPUT = "langfuse.observation.input", "langfuse.observation.output"
USAGE, COST = "langfuse.observation.usage_details", "langfuse.observation.cost_details"
TOOLS = "langfuse.observation.metadata.tools"

EXPERIMENT, ITEM = (
    ("langfuse.experiment.name", "langfuse.experiment.id"),
    "langfuse.experiment.item.id",
)
SAMPLE = "langfuse.experiment.item.metadata.sample"
# As we write an evaluation's id: other names and ids are experiments of Langfuse's own.
EVAL_RUN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

kind_of = kind_in(KINDS)


def _experiment(spoken: Spoken) -> None:
    """An experiment that is named after an evaluation of ours: its items are that evaluation's
    tasks.
    """
    attributes, reading = spoken.attributes, spoken.reading
    named = (label(attributes.get(name)) for name in EXPERIMENT)
    reading.eval_run = reading.eval_run or next(
        (name for name in named if EVAL_RUN.fullmatch(name)), ""
    )
    reading.eval_task = reading.eval_task or label(attributes.get(ITEM))
    reading.eval_sample = reading.eval_sample or label(attributes.get(SAMPLE))


def _rest(spoken: Spoken) -> None:
    attributes, reading = spoken.attributes, spoken.reading
    if any(name in attributes for name in EXPERIMENT):
        _experiment(spoken)
    if attributes.get(LEVEL) == "ERROR" or reading.error is not None:
        reading.error = problem_of(spoken.span, text(attributes.get(STATUS_MESSAGE)))
    if not reading.has_messages:
        return
    usage, cost = structured(attributes.get(USAGE)), structured(attributes.get(COST))
    if isinstance(usage, dict):
        reading.usage = parse(usage)
    if isinstance(cost, dict):
        parts = [
            part
            for name, value in cost.items()
            if name != "total" and (part := number(value)) is not None
        ]
        total = number(cost.get("total"))
        reading.cost_usd = total if total is not None or not parts else sum(parts)


def _messages(spoken: Spoken) -> None:
    """Only tools, which are in the request, beside it or among its messages: messages stand in the
    raw input and output.
    """
    if spoken.reading.tools:
        return
    given = structured(spoken.attributes.get(INPUT))
    if isinstance(given, dict) and given.get("tools"):
        spoken.reading.tools = [given["tools"]]
    elif beside := spoken.attributes.get(TOOLS):
        spoken.reading.tools = [beside]
    elif isinstance(given, list):
        found = (definition_in(item) for item in given if isinstance(item, dict))
        spoken.reading.tools = [list(filter(None, found))]


LANGFUSE = Convention(
    name="langfuse",
    namespaces=("langfuse",),
    fields={
        "session_id": ("langfuse.session.id",),
        "user_id": ("langfuse.user.id",),
        "agent_version": ("langfuse.version", "langfuse.release"),
        "workload": ("langfuse.trace.name",),
        "tags": ("langfuse.trace.tags",),
        "model": ("langfuse.observation.model.name",),
    },
    rest=_rest,
    messages=_messages,
    given=(INPUT, "langfuse.trace.input"),
    answer=(OUTPUT, "langfuse.trace.output"),
    plumbing=(TYPE, LEVEL, STATUS_MESSAGE, USAGE, COST, TOOLS),
)
