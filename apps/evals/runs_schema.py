"""The API's input and output for evaluations: forms that check bodies, JSON Schemas, and
examples.
"""

from __future__ import annotations

from typing import Annotated, Literal

from drf_spectacular.utils import OpenApiExample
from msgspec import Meta, Struct

from apps.core.models import JobState
from apps.core.openapi import NUMBER
from apps.core.operations import choice_of
from apps.evals.models import Split
from apps.evals.references import (
    AgentNamed,
    EnvironmentNamed,
    EvalSetNamed,
    RunNamed,
    VersionNamed,
    calls_others,
    channels_of,
    has_agents,
    has_servers,
    may_stop_early,
    splits_of,
)
from apps.registry.engines import (
    AGENT_TIMEOUT_S,
    AGENTS_AT_ONCE,
    AUTO,
    LONGEST_AGENT_S,
    MOST_AT_ONCE,
    choices,
)
from workers.lib.typed import Seed, Text

MOST_SAMPLES = 64  # of one task, as on the page

SplitName = choice_of(Split)
StateName = Literal[tuple(JobState.values)]  # type: ignore[valid-type]
Tokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Usd = Annotated[float, Meta(gt=0, le=1e6)]


class Agent(Struct, forbid_unknown_fields=True, kw_only=True):
    """An external agent, at one of its own versions, such as a git SHA."""

    name: Text
    version: Text
    reached_by: Literal["ci", "traces"] = "ci"


AUTOMATIC = (
    "Automatic: served models on their server, adapters on a server that can load them,"
    " everything else in a worker"
)


class StartRun(Struct, forbid_unknown_fields=True, kw_only=True):
    """What is evaluated, on what, and what it may use. Limits are of servers and of agents called
    over HTTP; the evaluation stops before it exceeds one, and keeps what it has.
    """

    eval_set: EvalSetNamed
    model_version: (
        Annotated[
            VersionNamed,
            Meta(
                description="Or `agent`", extra={"hint": "", "missing": "Choose a model version."}
            ),
        ]
        | None
    ) = None
    agent: Agent | None = None
    environment: EnvironmentNamed
    split: Annotated[SplitName, Meta(extra={"choices": splits_of})] = Split.HOLDOUT.value
    samples_per_task: Annotated[int, Meta(ge=1, le=MOST_SAMPLES)] = 8
    seed: Seed = 0
    engine: Annotated[
        Text,
        Meta(
            description=f"“auto”, “transformers” (in a worker) or a server's name. {AUTOMATIC}",
            extra={"hint": AUTOMATIC, "choices": choices, "only_if": has_servers},
        ),
    ] = AUTO
    played_by: (
        Annotated[
            AgentNamed,
            Meta(
                title="Played by",
                description=(
                    "An agent that is called over HTTP: it runs unchanged, and the model answers"
                    " it at an address of each sample"
                ),
                extra={"empty": "The built-in loop", "only_if": has_agents},
            ),
        ]
        | None
    ) = None
    most_tokens: (
        Annotated[
            Tokens,
            Meta(
                title="Max tokens",
                description="For servers and agents called over HTTP",
                extra={"only_if": calls_others},
            ),
        ]
        | None
    ) = None
    most_usd: (
        Annotated[
            Usd,
            Meta(
                title="Max cost (USD)",
                description="For agents called over HTTP and servers with known prices",
                extra={"only_if": calls_others},
            ),
        ]
        | None
    ) = None
    tokens_per_call: (
        Annotated[
            Tokens,
            Meta(
                title="Tokens per call",
                description="For agents, with Max tokens: assumed for calls that report none",
                extra={"only_if": has_agents},
            ),
        ]
        | None
    ) = None
    usd_per_call: (
        Annotated[
            Usd,
            Meta(
                title="Cost per call (USD)",
                description="For agents, with Max cost: assumed for calls that report none",
                extra={"only_if": has_agents},
            ),
        ]
        | None
    ) = None
    timeout_s: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=LONGEST_AGENT_S,
                title="Seconds per sample",
                description=(
                    f"For agents called over HTTP; {AGENT_TIMEOUT_S} if empty. Samples that take"
                    " longer fail"
                ),
                extra={"only_if": has_agents},
            ),
        ]
        | None
    ) = None
    at_once: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=MOST_AT_ONCE,
                title="Concurrent tasks",
                description=f"For agents called over HTTP; {AGENTS_AT_ONCE} if empty",
                extra={"only_if": has_agents},
            ),
        ]
        | None
    ) = None
    stop_against: (
        Annotated[
            RunNamed,
            Meta(
                title="Stop early against",
                description=(
                    "Stops as soon as the gate can decide between the two under the policy of"
                    " the channel below. Requires a sequential policy"
                ),
                extra={"empty": "Evaluate all tasks", "only_if": may_stop_early},
            ),
        ]
        | None
    ) = None
    stop_channel: Annotated[
        Text,
        Meta(
            title="Policy of channel",
            extra={"choices": channels_of, "only_if": may_stop_early},
        ),
    ] = "production"


ESTIMATE = {
    "type": "object",
    "description": "A mean over n tasks with its 95% interval",
    "properties": {"mean": NUMBER, "low": NUMBER, "high": NUMBER, "n": {"type": "integer"}},
}
METRICS = {
    "type": ["object", "null"],
    "description": (
        "Null until the evaluation has finished. Rates and the mean reward have intervals over"
        " tasks."
    ),
    "properties": {
        "success": ESTIMATE,
        "unsafe_action": ESTIMATE,
        "reward": ESTIMATE,
        "pass_at_k": {"type": "object", "additionalProperties": {"type": "number"}},
        "tasks": {"type": "object", "additionalProperties": {"type": "integer"}},
        "latency_ms": {"type": "object", "additionalProperties": NUMBER},
        "input_tokens": NUMBER,
        "output_tokens": NUMBER,
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "additionalProperties": True,
}
RUN = {
    "type": "object",
    "required": [
        "id",
        "name",
        "state",
        "eval_set",
        "split",
        "environment",
        "model_version",
        "samples_per_task",
        "done",
        "total",
        "label",
        "error",
        "metrics",
        "url",
        "created_at",
    ],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "name": {"type": "string"},
        "state": {"enum": JobState.values},
        "eval_set": {"type": "string"},
        "eval_set_id": {"type": "string", "format": "uuid"},
        "split": {"enum": Split.values},
        "environment": {"type": "string"},
        "verifier": {"type": "string"},
        "model_version": {"type": "string"},
        "played_by": {
            "type": "string",
            "description": "The agent in whose own harness it answered; empty: the built-in loop",
        },
        "agent": {
            "type": ["object", "null"],
            "description": "For an agent that runs elsewhere: {name, version}",
        },
        "answers": {
            "type": ["object", "null"],
            "description": (
                "For an agent that runs elsewhere: the number of answers, and the deadline for them"
            ),
            "properties": {
                "received": {"type": "integer"},
                "expected": {"type": "integer"},
                "open": {"type": "boolean"},
                "until": {"type": "string", "format": "date-time"},
            },
        },
        "unused_traces": {
            "type": "object",
            "description": (
                "For an agent that runs elsewhere: the runs that named this evaluation and were not"
                " used. Reasons of a hold-out require a key with access to hold-outs"
            ),
            "properties": {
                "count": {"type": "integer"},
                "newest": {
                    "type": "array",
                    "items": {"type": "object"},
                    "description": "trajectory, task, sample, reason",
                },
            },
        },
        "samples_per_task": {"type": "integer"},
        "seed": {"type": "integer"},
        "engine": {"type": "string", "description": "Description of what generates the answers"},
        "spent": {
            "type": ["object", "null"],
            "description": (
                "For a called agent with a limit, usage so far; calls counted in `without_tokens`"
                " or `without_cost` did not report them and are charged at `tokens_per_call` and"
                " `usd_per_call`"
            ),
            "properties": {
                "calls": {"type": "integer"},
                "tokens": {"type": "integer"},
                "usd": {"type": "number"},
                "without_tokens": {"type": "integer"},
                "without_cost": {"type": "integer"},
            },
        },
        "done": {"type": "integer", "description": "Samples so far"},
        "total": {"type": "integer", "description": "Samples requested"},
        "label": {"type": "string"},
        "error": {"type": "string"},
        "metrics": METRICS,
        "notes": {
            "type": "array",
            "items": {"type": "string"},
            "description": "What to know before trusting the metrics, as on the page",
        },
        "url": {"type": "string", "description": "Its page"},
        "gate": {
            "type": "object",
            "description": "With `against`: a gate report, see /api/v1/gate-reports/",
        },
        "created_at": {"type": "string", "format": "date-time"},
        "started_at": {"type": ["string", "null"], "format": "date-time"},
        "finished_at": {"type": ["string", "null"], "format": "date-time"},
    },
}
SAMPLE = {
    "type": "object",
    "required": ["task", "index", "output", "reward", "success", "masked"],
    "properties": {
        "task": {"type": "string", "format": "uuid"},
        "key": {"type": "string"},
        "index": {"type": "integer"},
        "output": {"type": "string"},
        "messages": {"type": "array", "items": {"type": "object"}},
        "reward": NUMBER,
        "success": {"type": "boolean"},
        "unsafe": {"type": "boolean"},
        "masked": {
            "type": "boolean",
            "description": "Could not be scored; excluded from the metrics",
        },
        "mask_reason": {"type": "string"},
        "components": {"type": "object"},
        "details": {"type": "array", "items": {"type": "string"}},
        "stop_reason": {"type": "string"},
        "latency_ms": NUMBER,
        "input_tokens": {"type": ["integer", "null"]},
        "output_tokens": {"type": ["integer", "null"]},
    },
}

SAMPLE["properties"] |= {
    "id": {"type": "integer"},
    "bucket": {
        "type": "string",
        "description": "Slug of the failure mode assigned by the rules; empty: none",
    },
    "tools": {
        "type": "array",
        "items": {"type": "string"},
        "description": "The tools that were called",
    },
    "tags": {"type": "array", "items": {"type": "string"}},
}
WHOLE_SAMPLE = {
    "type": "object",
    "required": [*SAMPLE["required"], "request", "expected", "offered_tools"],
    "properties": (
        SAMPLE["properties"]
        | {
            "request": {
                "type": "array",
                "items": {"type": "object"},
                "description": "The task's messages",
            },
            "opening": {
                "type": "array",
                "items": {"type": "object"},
                "description": "The harness's messages, which precede them",
            },
            "offered_tools": {"type": "array", "items": {"type": "object"}},
            "expected": {"type": "object"},
            "reasons": {
                "type": "object",
                "additionalProperties": {"type": "array", "items": {"type": "string"}},
                "description": "By component; reasons without a component are under the empty name",
            },
            "blamed_message": {
                "type": ["integer", "null"],
                "description": "Among opening, request and messages",
            },
            "evidence": {"type": "array", "items": {"type": "object"}},
            "cost_usd": NUMBER,
        }
    ),
}
CELLS = {
    "type": "array",
    "description": (
        "For each evaluation, its value and its paired difference from the first (null for the"
        " first, and if the two are not comparable); verdict: better, worse, differs, or empty if"
        " the interval contains 0"
    ),
    "items": {
        "type": "object",
        "properties": {
            "value": ESTIMATE,
            "difference": {"type": ["object", "null"], "description": "{mean, low, high, n}"},
            "verdict": {"type": "string"},
        },
    },
}
COMPARED_MEASURES = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "key": {"type": "string"},
            "title": {"type": "string"},
            "unit": {"enum": ["rate", "reward", "ms", "tokens", "usd"]},
            "better": {"enum": [1, 0, -1], "description": "1: more is better"},
            "cells": CELLS,
        },
    },
}
COMPARISON = {
    "type": "object",
    "required": ["results", "next"],
    "properties": {
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "format": "uuid"},
                    "model_version": {"type": "string"},
                    "metrics": METRICS,
                    "success_difference": {
                        "type": ["object", "null"],
                        "description": "{mean, low, high, n}, paired over tasks",
                    },
                    "tasks": {
                        "type": ["object", "null"],
                        "description": "{won, lost, same} against the first",
                    },
                    "cost_usd": NUMBER,
                },
            },
        },
        "problems": {
            "type": "array",
            "description": (
                "What cannot be compared, and what to do; `run` is null if it concerns all of them"
            ),
            "items": {
                "type": "object",
                "properties": {
                    "run": {"type": ["string", "null"]},
                    "text": {"type": "string"},
                    "blocks": {"type": "boolean"},
                },
            },
        },
        "correction": {
            "type": "object",
            "description": "The number of simultaneous intervals in each table, and their level",
        },
        "measures": COMPARED_MEASURES,
        "components": COMPARED_MEASURES,
        "groups": {
            "type": "array",
            "description": "Success by failure mode, tool, tag and difficulty of the tasks",
            "items": {"type": "object"},
        },
        "modes": {
            "type": "array",
            "description": (
                "The share of samples with each failure mode, and the number of tasks "
                "where it appeared or disappeared"
            ),
            "items": {"type": "object"},
        },
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "key": {"type": "string"},
                    "change": {"enum": ["regressed", "improved", "same", "missing"]},
                    "cells": {
                        "type": "array",
                        "description": (
                            "For each evaluation: {task, n, passed, reward, masked}, or null"
                        ),
                        "items": {"type": ["object", "null"]},
                    },
                },
            },
        },
        "next": {"type": ["string", "null"]},
    },
}


START_EXAMPLE = OpenApiExample(
    "A model on a hold-out",
    value={
        "eval_set": "support@3",
        "environment": "helpdesk@1",
        "model_version": "support-v4",
        "samples_per_task": 4,
    },
    request_only=True,
)
AGENT_EXAMPLE = OpenApiExample(
    "An agent in CI",
    value={
        "eval_set": "support@3",
        "environment": "helpdesk@1",
        "agent": {"name": "support-agent", "version": "3f2a9c1"},
        "samples_per_task": 4,
    },
    request_only=True,
)
RUN_EXAMPLE = OpenApiExample(
    "A finished evaluation",
    value={
        "id": "5f0c3c1e-7c0d-4b0e-9d3a-2f5a1b1f9a11",
        "name": "support-v4 on support@3 hold-out",
        "state": "succeeded",
        "eval_set": "support@3",
        "split": "holdout",
        "environment": "helpdesk@1",
        "verifier": "tool-call@2",
        "model_version": "support-v4",
        "samples_per_task": 4,
        "done": 240,
        "total": 240,
        "label": "181 of 240 succeeded",
        "error": "",
        "metrics": {"success": {"mean": 0.754, "low": 0.66, "high": 0.848, "n": 60}},
        "url": (
            "https://flywheel.example/p/support/evals/runs/5f0c3c1e-7c0d-4b0e-9d3a-2f5a1b1f9a11/"
        ),
        "created_at": "2026-11-22T08:00:00Z",
    },
    response_only=True,
)
