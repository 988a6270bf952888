"""The steps that exports of Langfuse and LangSmith record, and what their calls used and cost."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from apps.core.models import Project
from apps.trajectories import digest
from apps.trajectories.actions import store
from apps.trajectories.importers import read
from apps.trajectories.models import Score, Step, Trajectory
from tests.factories import make_project

CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"id": 7}'}}
ASKED = [{"role": "user", "content": "Where is 7?"}]
TALK = [
    *ASKED,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "In Turku"},
    {"role": "assistant", "content": "In Turku."},
]


def observation(name: str, kind: str, second: float, ms: int, **more: Any) -> dict:
    def at(seconds: float) -> str:
        return f"2026-11-20T10:00:{seconds:06.3f}Z"

    return {
        "id": name,
        "traceId": "t1",
        "type": kind,
        "name": name,
        "startTime": at(second),
        "endTime": at(second + ms / 1000),
        "level": "DEFAULT",
    } | more


LANGFUSE = {
    "id": "t1",
    "name": "orders",
    "timestamp": "2026-11-20T10:00:00.000Z",
    "userId": "u",
    "public": False,
    "scores": [
        {"name": "tone", "value": 0.5, "dataType": "NUMERIC", "observationId": "second"},
    ],
    "observations": [
        observation("desk", "AGENT", 0, 4000),
        observation("other", "SPAN", 0.1, 50, parentObservationId="desk"),
        observation(
            "first",
            "GENERATION",
            0.2,
            800,
            model="gpt-4o",
            input=ASKED,
            output=TALK[1],
            usageDetails={"input": 56, "input_cached_tokens": 64, "output": 30},
            costDetails={"total": 0.25},
            parentObservationId="desk",
        ),
        observation("find", "TOOL", 1.5, 250, level="ERROR", statusMessage="Too slow"),
        observation(
            "second", "GENERATION", 2, 1000, model="gpt-4o", input=TALK[:3], output=TALK[3]
        ),
    ],
}


def run(number: int, kind: str, name: str, second: float, **more: Any) -> dict:
    return {
        "id": f"r{number}",
        "trace_id": "r1",
        "run_type": kind,
        "name": name,
        "start_time": f"2026-11-20T10:00:{second:06.3f}",
        "end_time": f"2026-11-20T10:00:{second + 0.5:06.3f}",
        "parent_run_id": "r1" if number > 1 else None,
        "inputs": {"messages": ASKED},
        "outputs": {"messages": TALK},
    } | more


def answer(message: dict, cached: int, **more: Any) -> dict:
    """As LangChain's models give it: what was asked for is an alias of what answered."""
    fields = {
        "content": message["content"] or "",
        "tool_calls": [{"id": "c1", "name": "find", "args": {"id": 7}, "type": "tool_call"}]
        if message.get("tool_calls")
        else [],
        "usage_metadata": {
            "input_tokens": 1000,
            "output_tokens": 60,
            "total_tokens": 1060,
            "input_token_details": {"cache_read": cached},
            "output_token_details": {"reasoning": 40},
        },
        "response_metadata": {"model_name": "gpt-4o-2024-08-06"},
    }
    said = {"lc": 1, "type": "constructor", "id": ["langchain", "AIMessage"], "kwargs": fields}
    return {
        "outputs": {"generations": [[{"text": "", "message": said}]]},
        "extra": {"metadata": {"ls_provider": "openai", "ls_model_name": "gpt-4o"}},
        "prompt_tokens": 1000,
        "completion_tokens": 60,
    } | more


LANGSMITH = [
    run(1, "chain", "desk", 0),
    run(2, "llm", "ChatOpenAI", 1, **answer(TALK[1], 900)),
    run(3, "tool", "find", 2, inputs={"input": '{"id": 7}'}, outputs={"output": "In Turku"}),
    run(4, "llm", "ChatOpenAI", 3, **answer(TALK[3], 0), inputs={"messages": TALK[:3]}),
]


@pytest.fixture
def project(db: None) -> Project:
    return make_project()


def imported(project: Project, *records: dict) -> Trajectory:
    data = "\n".join(map(json.dumps, records)).encode()
    rows = [row for _, row in read(io.BytesIO(data), "file.jsonl").rows]
    done = store.ingest(project=project, rows=rows)
    assert not done.rejected, done.rejected
    digest.run()
    return project.trajectories.get()


def steps(project: Project) -> list[tuple]:
    found = Step.objects.filter(project=project).order_by("number")
    return [(one.key, one.kind, one.name, one.status, one.duration_ms) for one in found]


def test_observations_of_langfuse_are_steps_with_times_tokens_and_errors(
    project: Project,
) -> None:
    row = imported(project, LANGFUSE)
    assert row.agent_name == "desk"
    assert steps(project) == [
        ("desk", "agent", "desk", "ok", 4000),
        ("first", "model", "first", "ok", 800),
        ("find", "tool", "find", "error", 250),
        ("second", "model", "second", "ok", 1000),
    ]
    first = Step.objects.get(project=project, key="first")
    assert (first.input_tokens, first.output_tokens, first.cost_usd) == (120, 30, 0.25)
    assert (first.model, first.message_index) == ("gpt-4o", 1)
    tool = Step.objects.get(project=project, key="find")
    assert (json.loads(tool.arguments), tool.error) == ({"id": 7}, "Too slow")
    assert Score.objects.get(project=project).step == "second"


def test_runs_of_langsmith_are_steps_and_their_cached_tokens_are_priced(project: Project) -> None:
    row = imported(project, *LANGSMITH)
    assert steps(project) == [
        ("r1", "agent", "desk", "ok", 500),
        ("r2", "model", "ChatOpenAI", "ok", 500),
        ("r3", "tool", "find", "ok", 500),
        ("r4", "model", "ChatOpenAI", "ok", 500),
    ]
    assert (row.model, row.cache_read_tokens, row.reasoning_tokens) == (
        "gpt-4o-2024-08-06",
        900,
        80,
    )
    bill = (1100 * 2.50 + 900 * 1.25 + 120 * 10.00) / 1e6
    assert row.cost_usd == pytest.approx(bill, rel=1e-12)
    costs = Step.objects.filter(project=project, kind="model").order_by("number")
    assert sum(one.cost_usd for one in costs) == pytest.approx(bill, rel=1e-12)
