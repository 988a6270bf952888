"""What four real instrumentations posted gives the right trajectories: one per run, with its
messages and its failure.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from apps.trajectories import schema
from apps.trajectories.otlp import LogRecord, Run, Span, assemble, decode_logs, decode_traces

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "otlp"
PYDANTIC, AGENTS = "pydantic-ai-default", "openinference-openai-agents"
OPENAI, TRACELOOP = "otel-openai-v2-content", "traceloop-openai-0.47-legacy"
ALL = (PYDANTIC, AGENTS, OPENAI, TRACELOOP)
RAW = (OPENAI, TRACELOOP)

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="needs ../shared/data/otlp")


def read(name: str, as_json: bool = False) -> tuple[list[Span], list[LogRecord]]:
    suffix = "json" if as_json else "pb"
    spans = decode_traces((FOLDER / name / f"traces-01.{suffix}").read_bytes(), as_json)
    logs = FOLDER / name / f"logs-01.{suffix}"
    assert spans.rejected == 0
    return spans.items, decode_logs(logs.read_bytes(), as_json).items if logs.exists() else []


def runs(name: str) -> list[Run]:
    return assemble(*read(name))


def conversation(row: dict[str, Any]) -> list[tuple]:
    """Per message: role, content, and the calls as (id, name, arguments) or the id of the call that
    is answered.
    """
    said = []
    for message in row["messages"]:
        calls = [
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls", [])
        ]
        said.append(
            (
                message["role"],
                message["content"],
                *calls,
                *filter(None, [message.get("tool_call_id")]),
            )
        )
    return said


SYSTEM = ("system", "You are a weather assistant. Use the tool.")
ATLANTIS = ("user", "What's the weather in Atlantis? BADARGS")


@pytest.mark.parametrize("name", ALL)
def test_json_and_protobuf_say_the_same(name: str) -> None:
    assert read(name) == read(name, as_json=True)


@pytest.mark.parametrize("name", ALL)
def test_three_runs_are_three_rows_of_the_form(name: str) -> None:
    rows = [schema.parse(run.row) for run in runs(name)]
    assert [row.outcome.status for row in rows] in (
        ["unknown", "unknown", "failure"],
        ["unknown", "failure", "failure"],
    )
    assert len({row.id for row in rows}) == 3
    for row in rows:
        assert row.agent.name in ("weather_agent", "weather-agent") and row.agent.version == "0.1.0"
        assert 50 < row.latency_ms < 1_000 and row.started_at < row.ended_at


@pytest.mark.parametrize("name", ALL)
def test_the_good_run_is_told_whole(name: str) -> None:
    row = runs(name)[0].row
    call = row["messages"][2]["tool_calls"][0]["id"]
    assert conversation(row) == [
        SYSTEM,
        ("user", "What's the weather in Paris?"),
        ("assistant", None, (call, "get_weather", {"city": "Paris"})),
        ("tool", '{"temp_c": 18, "sky": "sunny"}', call),
        ("assistant", "It is 18 C and sunny in Paris."),
    ]
    assert row["outcome"] == {"status": "unknown"}
    assert row["usage"]["output_tokens"] == 24
    assert row["usage"]["input_tokens"] == (117 if name == PYDANTIC else 127)
    assert row["model"] == "gpt-4o-mini-2024-07-18"
    if name != OPENAI:  # which sends no definitions
        assert [tool["function"]["name"] for tool in row["tools"]] == ["get_weather"]
        assert row["tools"][0]["function"]["parameters"]["required"] == ["city"]


def test_a_tool_that_raised_ends_a_pydantic_ai_run() -> None:
    row = runs(PYDANTIC)[1].row
    assert conversation(row) == [
        SYSTEM,
        ATLANTIS,
        ("assistant", None, ("call_w3", "get_weather", {"city": "Atlantis"})),
        ("tool", "ValueError: unknown city: Atlantis", "call_w3"),
    ]
    assert row["outcome"] == {"status": "failure", "reason": "ValueError: unknown city: Atlantis"}
    assert "Traceback" in row["metadata"]["errors"][-1]["stacktrace"]


@pytest.mark.parametrize(
    ("name", "reply", "answer"),
    [
        (
            AGENTS,
            "An error occurred while running the tool. Please try again.",
            "It is 18 C and sunny in Paris.",
        ),
        (OPENAI, "Error: unknown city: Atlantis", "I could not look that city up."),
        (TRACELOOP, "Error: unknown city: Atlantis", "I could not look that city up."),
    ],
)
def test_a_tool_that_raised_and_was_answered_after_is_no_failure(
    name: str, reply: str, answer: str
) -> None:
    row = runs(name)[1].row
    assert conversation(row) == [
        SYSTEM,
        ATLANTIS,
        ("assistant", None, ("call_w8", "get_weather", {"city": "Atlantis"})),
        ("tool", reply, "call_w8"),
        ("assistant", answer),
    ]
    assert row["outcome"] == {"status": "unknown"}
    assert row["metadata"].get("recovered_errors", 0) == (1 if name == AGENTS else 0)


@pytest.mark.parametrize("name", ALL)
def test_a_provider_that_answered_500_fails_the_run_also_where_the_root_says_ok(name: str) -> None:
    row = runs(name)[2].row
    assert row["outcome"]["status"] == "failure" and "500" in row["outcome"]["reason"]
    assert "\n" not in row["outcome"]["reason"] and len(row["outcome"]["reason"]) <= 300
    assert row["usage"] == {}
    if name == AGENTS:  # the instrumentation records no message of a call that failed
        assert row["messages"] == [{"role": "user", "content": None}]
        assert row["metadata"]["content_captured"] is False
    else:
        assert conversation(row) == [SYSTEM, ("user", "What's the weather? FAILHTTP")]
        assert row["model"] == "gpt-4o-mini"


@pytest.mark.parametrize("name", ALL)
def test_traces_are_stitched_only_where_each_holds_one_call(name: str) -> None:
    spans, logs = read(name)
    sizes = [len(run.trace_ids) for run in assemble(spans, logs)]
    assert sizes == ([2, 2, 1] if name in RAW else [1, 1, 1])
    assert set().union(*(run.trace_ids for run in assemble(spans, logs))) == {
        span.trace_id for span in spans
    }


def test_the_same_talk_seen_by_several_instrumentations_stays_apart() -> None:
    both = [read(name) for name in ALL]
    spans = [span for found, _ in both for span in found]
    logs = [log for _, found in both for log in found]
    apart = [run for name in ALL for run in runs(name)]
    together = assemble(spans, logs)
    assert sorted(run.key for run in together) == sorted(run.key for run in apart)
    assert {run.key: run.row for run in together} == {run.key: run.row for run in apart}


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("name", ALL)
def test_the_order_of_arrival_changes_nothing(name: str) -> None:
    spans, logs = read(name)
    for step in (3, 7, 11):
        mixed = [span for start in range(step) for span in spans[start::step]][::-1]
        assert assemble(mixed, logs[::-1]) == runs(name)


def test_steps_point_into_the_conversation() -> None:
    row = runs(PYDANTIC)[0].row
    steps = [(step["kind"], step.get("message_index")) for step in row["metadata"]["steps"]]
    assert steps == [("agent", None), ("model", 2), ("tool", 3), ("model", 4)]
    assert row["metadata"]["steps"][0]["start_ms"] == 0


def test_what_no_convention_reads_is_kept() -> None:
    metadata = runs(OPENAI)[0].row["metadata"]
    assert metadata["attributes"]["gen_ai.request.temperature"] == 0.2
    assert metadata["resource"]["deployment.environment.name"] == "capture"
    assert metadata["scope"] == ["opentelemetry.instrumentation.openai_v2"]
    assert runs(PYDANTIC)[0].row["usage"]["cost_usd"] == pytest.approx(3.195e-05)
