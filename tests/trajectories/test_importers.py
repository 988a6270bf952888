"""Each format by small samples written by hand, the real files where they lie beside the project,
and hostile input.
"""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.trajectories.decoding import RowError
from apps.trajectories.importers import (
    FORMATS,
    ImportError_,
    batches,
    langfuse,
    nvidia_flywheel,
    read,
    records,
)
from apps.trajectories.importers.sources import open_source
from apps.trajectories.schema import Row, parse, plain
from tests.amounts import amount
from workers.lib.messages import text_of

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
USER = {"role": "user", "content": "Close ticket 5."}
SAID = {"role": "assistant", "content": "Done."}
CALL = {"id": "c1", "type": "function", "function": {"name": "close", "arguments": '{"id": 5}'}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
REPLY = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
TOOL = {"type": "function", "function": {"name": "close", "parameters": {"type": "object"}}}


def shared(name: str) -> Path:
    if not (SHARED / name).exists():
        pytest.skip(f"the sample data {name} is not beside the project")
    return SHARED / name


def lines(*rows: Any) -> bytes:
    return b"\n".join(row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows)


def rows_of(data: bytes, name: str = "file.jsonl", format: str = "auto") -> list[tuple[int, Any]]:
    return list(read(io.BytesIO(data), name, format).rows)


def row_of(record: Any, name: str = "file.jsonl", format: str = "auto") -> Row:
    [(_, row)] = rows_of(lines(record), name, format)
    if isinstance(row, RowError):
        raise row
    return parse(row)


def error_of(record: Any, format: str) -> RowError:
    [(_, error)] = rows_of(lines(record), format=format)
    assert isinstance(error, RowError), error
    return error


def shape(row: Row) -> list[tuple]:
    """(role, content, names of the tools called) of each message."""
    return [
        (turn.role, turn.content, [call.function.name for call in turn.tool_calls or []])
        for turn in row.messages
    ]


def tau(**changes: Any) -> dict:
    return {
        "task_id": 3,
        "trial": 1,
        "reward": 1.0,
        "info": {"task": {"actions": []}},
        "traj": [USER, SAID],
    } | changes


def gym(**changes: Any) -> dict:
    params = {
        "input": [
            {"role": "system", "content": "Be brief.", "type": "message"},
            {"role": "user", "content": "Close 5."},
        ],
        "tools": [
            {"type": "function", "name": "close", "parameters": {"type": "object"}, "strict": False}
        ],
    }
    output = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I should close it."}]},
        {"type": "function_call", "name": "close", "arguments": '{"id": 5}', "call_id": "c1"},
        {"type": "function_call", "name": "close", "arguments": '{"id": 6}', "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        {"type": "function_call_output", "call_id": "c2", "output": "no"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Done."}],
        },
    ]
    response = {
        "id": "resp_1",
        "model": "m",
        "created_at": 1758499694.0,
        "output": output,
        "usage": {"input_tokens": 9},
    }
    return {"responses_create_params": params, "response": response, "reward": 1.0} | changes


def log(asked: list[dict], answer: dict, client: str = "c", **changes: Any) -> dict:
    return {
        "timestamp": 1758499694,
        "workload_id": "helpdesk",
        "client_id": client,
        "request": {"model": "m", "messages": asked, "tools": [TOOL]},
        "response": {
            "id": f"chatcmpl-{len(asked)}",
            "choices": [{"message": answer, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 2},
        },
    } | changes


def trace(**changes: Any) -> dict:
    return {
        "id": "t1",
        "name": "helpdesk",
        "timestamp": "2026-01-01T10:00:00.000Z",
        "userId": "u",
        "sessionId": "s",
        "tags": ["a"],
        "scores": [],
        "observations": [
            generation("g2", "2026-01-01T10:00:02Z", [USER, CALLS, REPLY], SAID),
            generation("g1", "2026-01-01T10:00:01Z", [USER], {**CALLS, "content": ""}),
        ],
    } | changes


def generation(name: str, at: str, asked: Any, said: Any, **changes: Any) -> dict:
    return {
        "id": name,
        "traceId": "t1",
        "type": "GENERATION",
        "startTime": at,
        "endTime": at,
        "model": "m",
        "input": asked,
        "output": said,
        "usageDetails": {"input": 10, "output": 2, "total": 12},
        "parentObservationId": "root",
    } | changes


def swe(**changes: Any) -> dict:
    return {
        "environment": "swe_main",
        "trajectory": [
            {"action": "ls", "observation": "a.py", "response": "Look.\nls", "thought": "Look."}
        ],
        "history": [
            {"role": "system", "content": "You fix bugs.", "agent": "main"},
            {"role": "user", "content": "A demonstration", "is_demo": True},
            {"role": "user", "content": [{"type": "text", "text": "Fix it."}], "agent": "main"},
            {
                "role": "assistant",
                "content": "Look.",
                "tool_calls": [CALL],
                "thought": "Look.",
                "action": "ls",
            },
            {"role": "tool", "content": "a.py", "tool_call_ids": ["c1"]},
        ],
        "info": {
            "exit_status": "submitted",
            "submission": "diff --git",
            "model_stats": {
                "instance_cost": 0.5,
                "tokens_sent": 100,
                "tokens_received": 7,
                "api_calls": 3,
            },
        },
        "replay_config": json.dumps({"agent": {"model": {"name": "gpt-4o"}}}),
    } | changes


def smith(**changes: Any) -> dict:
    """A model's run in a trace of its own."""
    asked = {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "HumanMessage"],
        "kwargs": {"content": "Hi"},
    }
    return {
        "id": "r1",
        "trace_id": "t1",
        "run_type": "llm",
        "name": "helpdesk",
        "inputs": {"messages": [[asked]]},
        "outputs": {"generations": [[{"text": "Yo"}]]},
        "prompt_tokens": 3,
        "completion_tokens": 1,
    } | changes


def atif(**changes: Any) -> dict:
    call = {"tool_call_id": "c1", "function_name": "close", "arguments": {"id": 5}}
    steps = [
        {"step_id": 1, "source": "user", "message": "Close ticket 5."},
        {
            "step_id": 2,
            "source": "agent",
            "message": "",
            "tool_calls": [call],
            "observation": {"results": [{"source_call_id": "c1", "content": "ok"}]},
            "metrics": {"prompt_tokens": 3, "completion_tokens": 1, "cost_usd": 0.5},
        },
        {"step_id": 3, "source": "agent", "message": "Done.", "metrics": {"prompt_tokens": 4}},
    ]
    agent = {"name": "helpdesk", "version": "2", "model_name": "m"}
    return {
        "schema_version": "ATIF-v1.4",
        "session_id": "s",
        "agent": agent,
        "steps": steps,
    } | changes


def otlp(number: int = 1) -> dict:
    """An export request with one model call."""
    said = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    for name, role, words in (("input", "user", "Hi"), ("output", "assistant", "Yo")):
        said[f"gen_ai.{name}.messages"] = json.dumps(
            [{"role": role, "parts": [{"type": "text", "content": words}]}]
        )
    attributes = [{"key": key, "value": {"stringValue": value}} for key, value in said.items()]
    span = {
        "traceId": f"{number:032x}",
        "spanId": f"{number:016x}",
        "name": "chat m",
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "2",
    }
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span | {"attributes": attributes}]}]}]}


SAMPLES = {
    "chat": {"id": "r1", "messages": [USER, SAID], "outcome": {"status": "success"}},
    "tau-bench": tau(),
    "nvidia-flywheel": log([USER], SAID),
    "nemo-gym": gym(),
    "langfuse": trace(),
    "openai-sft": {"messages": [USER, SAID], "parallel_tool_calls": False},
    "swe-agent": swe(),
    "langsmith": smith(),
    "sharegpt": {
        "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]
    },
    "history": {
        "history": [
            {"name": "user_proxy", "role": "user", "content": "Hi"},
            {"name": "Coder", "role": "Coder", "content": "Yo"},
        ]
    },
    "atif": atif(),
    "otlp": otlp(),
    "spans": {
        "name": "chat",
        "context": {"trace_id": "0x" + "a" * 32, "span_id": "0x" + "b" * 16},
        "start_time": "2026-01-01T10:00:00Z",
        "end_time": "2026-01-01T10:00:01Z",
        "attributes": {
            "openinference.span.kind": "LLM",
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": "Hi",
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": "Yo",
        },
    },
    "openai-evals": {
        "object": "eval.run.output_item",
        "id": "outputitem_1",
        "run_id": "evalrun_1",
        "status": "fail",
        "datasource_item": {"number": 5},
        "results": [{"name": "exact", "passed": False, "score": 0.0}],
        "sample": {"input": [USER], "output": [SAID], "model": "m", "usage": {"prompt_tokens": 3}},
    },
    "openai-preference": {
        "input": {"messages": [USER], "tools": [TOOL]},
        "preferred_output": [SAID],
        "non_preferred_output": [{"role": "assistant", "content": "No."}],
    },
    "promptfoo": {
        "promptIdx": 0,
        "testIdx": 1,
        "prompt": {"raw": json.dumps([USER]), "label": "v2"},
        "provider": {"id": "openai:m"},
        "response": {"output": "Done.", "tokenUsage": {"prompt": 3, "completion": 1}},
        "success": True,
        "score": 1,
        "gradingResult": {"componentResults": [{"pass": True, "assertion": {"type": "equals"}}]},
    },
    "intercom": {
        "type": "conversation",
        "id": "7",
        "source": {"body": "<p>Close it</p>", "author": {"type": "lead", "id": "u"}},
        "conversation_parts": {
            "conversation_parts": [
                {"part_type": "comment", "body": "<p>Done</p>", "author": {"type": "admin"}}
            ]
        },
    },
    "zendesk": {
        "id": 7,
        "requester_id": 1,
        "comments": [
            {"author_id": 1, "body": "Close it", "public": True},
            {"author_id": 2, "body": "Done", "public": True},
        ],
    },
    "claude-code": {"type": "user", "uuid": "u1", "sessionId": "s1", "message": USER},
    "codex": {
        "timestamp": "2026-11-29T10:00:00Z",
        "type": "response_item",
        "payload": {"type": "message"} | USER,
    },
}
PACKINGS = {
    "lines": lambda record: lines(record, record),
    "one line": lambda record: lines(record),
    "array": lambda record: json.dumps([record]).encode(),
    "indented array": lambda record: json.dumps([record, record], indent=2).encode(),
    "indented object": lambda record: json.dumps(record, indent=4).encode(),
    "byte order mark": lambda record: b"\xef\xbb\xbf" + lines(record),
    "gzip": lambda record: gzip.compress(lines(record)),
}


def test_there_is_a_sample_of_every_format() -> None:
    assert set(SAMPLES) == set(FORMATS)


@pytest.mark.more(rows=70)
@pytest.mark.parametrize("format", SAMPLES)
@pytest.mark.parametrize("packing", PACKINGS)
def test_the_format_is_found_and_its_rows_are_good(format: str, packing: str) -> None:
    reading = read(io.BytesIO(PACKINGS[packing](SAMPLES[format])), "runs")
    assert reading.format == format
    found = list(reading.rows)
    assert found and all(parse(row).messages for _, row in found)


@pytest.mark.parametrize("format", SAMPLES)
def test_ids_are_stable_and_follow_the_content(format: str) -> None:
    first, again = ([parse(row).id for _, row in rows_of(lines(SAMPLES[format]))] for _ in range(2))
    assert first == again and all(0 < len(name) <= 200 for name in first)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"  \n ", "is empty"),
        (b"task_id", "is not JSON"),
        (b"[1, 2]", "no record with fields"),
        (gzip.compress(b'{"messages": []}' * 1000, mtime=0)[:-20], "cannot be read"),
        (b"\x1f\x8bnonsense", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence(data: bytes, message: str) -> None:
    with pytest.raises(ImportError_, match=message):
        rows_of(data)


def test_a_broken_line_does_not_cost_its_neighbours() -> None:
    utf8 = '{"messages": [{"role": "user", "content": "Grüße"}]}'.encode()
    found = rows_of(lines(SAMPLES["chat"], b"{broken", b"", b"[1]", b'{"a": "\xff"}', utf8))
    assert [position for position, _ in found] == [1, 2, 4, 5, 6]
    assert [isinstance(row, RowError) for _, row in found] == [False, True, True, True, False]


def test_a_broken_item_ends_an_array_and_says_so() -> None:
    whole = json.dumps([SAMPLES["chat"]] * 3).encode()
    assert [type(row) for _, row in rows_of(whole[:-30])] == [dict, dict, RowError]
    assert [type(row) for _, row in rows_of(whole[:-1])] == [dict, dict, dict, RowError]
    assert [type(row) for _, row in rows_of(b'[{"messages": []} {"messages": []}]')] == [
        dict,
        RowError,
    ]


@pytest.mark.parametrize(
    "text",
    [
        '{"messages": [{"role": "user", "content": NaN}]}',
        '{"messages": ' + "[" * 100 + "]" * 100 + "}",
        '{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"messages": [], "n": ' + "9" * 5000 + "}",
    ],
)
def test_values_that_cannot_be_kept_are_the_rows_error(text: str) -> None:
    [(_, error)] = rows_of(text.encode(), format="chat")
    assert isinstance(error, RowError)


def test_characters_that_cannot_be_kept_are_replaced() -> None:
    row = row_of(b'{"messages": [{"role": "user", "content": "a\\u0000b\\ud800c"}]}')
    assert row.messages[0].content == "a\ufffdb\ufffdc"


def test_a_record_that_is_too_long_is_an_error_and_the_next_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "MAX_RECORD", 1000)
    monkeypatch.setattr(records, "CHUNK", 100)
    long = {"messages": [{"role": "user", "content": "x" * 5000}]}
    found = rows_of(lines(SAMPLES["chat"], long, SAMPLES["chat"]))
    assert [type(row) for _, row in found] == [dict, RowError, dict]
    found = rows_of(json.dumps([SAMPLES["chat"], long]).encode())
    assert [type(row) for _, row in found] == [dict, RowError]


@pytest.mark.proof
def test_what_comes_out_of_a_gzip_is_limited() -> None:
    packed = gzip.compress(lines(*[SAMPLES["chat"]] * 20_000))
    with pytest.raises(ImportError_, match="more than 1 MiB"):
        list(read(io.BytesIO(packed), "bomb.gz", limit=2**20).rows)
    reading = read(io.BytesIO(packed), "bomb.gz", limit=2**20, stop=True)
    assert 0 < len(list(reading.rows)) < 20_000 and reading.source.stopped


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("array", [False, True])
def test_a_long_file_is_not_held_in_memory(array: bool) -> None:
    number = amount(6_000, 15_000)
    rows = [
        {"id": f"r{at}", "messages": [{"role": "user", "content": "x" * 2000}]}
        for at in range(number)
    ]
    data = json.dumps(rows).encode() if array else lines(*rows)
    del rows
    tracemalloc.start()
    try:
        assert sum(1 for _ in read(io.BytesIO(data), "long").rows) == number
        assert tracemalloc.get_traced_memory()[1] < len(data) / 2
    finally:
        tracemalloc.stop()


def test_a_chat_row_stays_as_it_is_and_what_it_cannot_have_goes_into_its_metadata() -> None:
    sent = SAMPLES["chat"] | {"score": 3, "metadata": {"a": 1}}
    [(_, row)] = rows_of(lines(sent))
    assert row == SAMPLES["chat"] | {"metadata": {"a": 1, "extra": {"score": 3}}}


def test_bare_messages_get_the_contents_digest_as_id() -> None:
    one, other = row_of({"messages": [USER, SAID]}), row_of({"messages": [USER]})
    assert one.id != other.id and one.id.startswith("chat-") and one.outcome.status == "unknown"


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            {
                "messages": [
                    USER,
                    {"role": "assistant", "function_call": {"name": "close", "arguments": "{}"}},
                ],
                "functions": [],
            },
            [("user", "Close ticket 5.", []), ("assistant", None, ["close"])],
        ),
        ({"prompt": "Hi", "completion": "Ho"}, [("user", "Hi", []), ("assistant", "Ho", [])]),
        (
            {"prompt": [USER], "completion": [SAID]},
            [("user", "Close ticket 5.", []), ("assistant", "Done.", [])],
        ),
    ],
)
def test_fine_tuning_rows_are_demonstrations(record: dict, expected: list) -> None:
    row = row_of(record)
    assert shape(row) == expected and (row.outcome.status, row.outcome.label) == (
        "success",
        "demonstration",
    )


@pytest.mark.parametrize(
    ("reward", "status"), [(1.0, "success"), (1, "success"), (0.0, "failure"), (0.5, "failure")]
)
def test_tau_bench_reward_is_the_outcome(reward: float, status: str) -> None:
    row = row_of(tau(reward=reward, traj=[USER, CALLS, REPLY, SAID]))
    assert (row.outcome.status, row.outcome.reward) == (status, reward)
    assert [kind for kind, _, _ in shape(row)] == ["user", "assistant", "tool", "assistant"]
    assert row.metadata["task_id"] == "3" and row.metadata["trial"] == "1"


def test_a_tau_bench_run_that_crashed_is_refused_with_its_reason() -> None:
    error = error_of(tau(traj=[], info={"error": "rate limit"}), "tau-bench")
    assert (error.path, "rate limit" in error.problem) == ("traj", True)


def test_the_same_task_of_two_files_is_two_runs() -> None:
    assert row_of(tau()).id != row_of(tau(reward=0.0)).id


def test_a_nemo_gym_rollout_becomes_chat_messages() -> None:
    row = row_of(gym(_ng_task_index=4, _ng_rollout_index=1, agent_ref={"name": "simple_agent"}))
    assert shape(row) == [
        ("system", "Be brief.", []),
        ("user", "Close 5.", []),
        ("assistant", None, ["close", "close"]),
        ("tool", "ok", []),
        ("tool", "no", []),
        ("assistant", "Done.", []),
    ]
    assert (
        row.id == "resp_1:4:1" and row.agent.name == "simple_agent" and row.usage.input_tokens == 9
    )
    assert row.tools == [
        {
            "type": "function",
            "function": {"name": "close", "parameters": {"type": "object"}, "strict": False},
        }
    ]
    assert row.metadata["reasoning"] == [{"before": 2, "text": "I should close it."}]
    assert row.started_at is not None and row.started_at.year == 2025


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"reward": 0.0}, "failure", ""),
        ({"reward": -1}, "failure", ""),
        ({"reward": 0.25}, "unknown", "Reward 0.25 of 1."),
        (
            {"reward": 0.0, "mask_sample": True, "failure_reason": "the sandbox died"},
            "unknown",
            "the sandbox died",
        ),
        ({"reward": None, "mask_sample": True}, "unknown", "The sample is masked."),
    ],
)
def test_nemo_gym_outcomes(changes: dict, status: str, reason: str) -> None:
    row = row_of(gym(**changes))
    assert (row.outcome.status, row.outcome.reason) == (status, reason)


def test_a_nemo_gym_task_is_refused_with_a_sentence() -> None:
    error = error_of(
        {name: value for name, value in gym().items() if name != "response"}, "nemo-gym"
    )
    assert error.path == "response" and "Import it as tasks" in error.problem


def test_calls_that_share_history_become_one_run() -> None:
    other = {"role": "user", "content": "Another."}
    answered = {
        **CALLS,
        "tool_calls": [{**CALL, "function": {"name": "close", "arguments": {"id": 5}}}],
    }
    found = rows_of(
        lines(
            log([USER], answered),
            log([other], SAID),
            log([USER, CALLS, REPLY], SAID),
            log([USER, CALLS, REPLY], SAID, client="someone else"),
        )
    )
    assert [
        (position, len(row["messages"]), row["metadata"]["calls"]) for position, row in found
    ] == [
        (1, 4, 2),
        (2, 2, 1),
        (4, 4, 1),
    ]
    usage = found[0][1]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], len(usage["calls"])) == (20, 4, 2)
    assert found[0][1]["id"] == rows_of(lines(log([USER], answered)))[0][1]["id"], (
        "one id, however far the run has come"
    )


def test_calls_are_not_joined_where_two_runs_fit() -> None:
    found = rows_of(
        lines(log([USER], CALLS), log([USER], CALLS, timestamp=9), log([USER, CALLS, REPLY], SAID))
    )
    assert [len(row["messages"]) for _, row in found] == [2, 2, 4]


def test_a_branch_of_a_run_is_a_run_of_its_own() -> None:
    found = rows_of(
        lines(
            log([USER], CALLS),
            log([USER, CALLS, REPLY], SAID),
            log([USER, CALLS, REPLY], USER | SAID),
        )
    )
    assert [len(row["messages"]) for _, row in found] == [4, 4]


def test_runs_are_given_out_where_too_many_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_flywheel, "MAX_OPEN", 2)
    asked = [[{"role": "user", "content": str(number)}] for number in range(5)]
    found = rows_of(lines(*(log(one, SAID) for one in asked)))
    assert [position for position, _ in found] == [1, 2, 3, 4, 5]


def test_a_logged_error_of_the_provider_is_a_failure() -> None:
    row = row_of(log([USER], SAID, response={"error": {"message": "overloaded"}}))
    assert (row.outcome.status, row.outcome.reason) == ("failure", "overloaded")
    assert (
        error_of(log([USER], SAID, response={"choices": []}), "nvidia-flywheel").path
        == "response.choices"
    )


def test_a_logged_answer_keeps_the_tier_that_it_was_served_by() -> None:
    logged = log([USER], SAID)
    logged["response"]["service_tier"] = "flex"
    [call] = row_of(logged).usage.calls
    assert call.usage["service_tier"] == "flex"


def test_a_langfuse_trace_is_one_run() -> None:
    row = row_of(trace())
    assert [(kind, calls) for kind, _, calls in shape(row)] == [
        ("user", []),
        ("assistant", ["close"]),
        ("tool", []),
        ("assistant", []),
    ]
    assert (row.id, row.agent.name, row.user_id, row.session_id, row.tags) == (
        "t1",
        "helpdesk",
        "u",
        "s",
        ["a"],
    )
    assert (row.usage.input_tokens, row.usage.output_tokens, row.model) == (20, 4, "m")
    assert row.latency_ms == 2000 and row.metadata["observations"] == 2


def test_langfuse_shapes_say_the_same() -> None:
    plain = {
        name: value for name, value in trace().items() if name not in ("observations", "scores")
    }
    wanted = shape(row_of(trace()))
    texts = [
        row | {"input": json.dumps(row["input"]), "output": json.dumps(row["output"])}
        for row in trace()["observations"]
    ]
    snake = [
        {"id": row["id"], "trace_id": "t1", "type": row["type"], "start_time": row["startTime"]}
        | {name: row[name] for name in ("input", "output")}
        for row in texts
    ]
    for data in (
        lines({"trace": plain, "observations": trace()["observations"]}),
        lines(trace(observations=texts)),
        lines(*trace()["observations"]),
        lines(*snake),
        lines({"data": texts, "meta": {"page": 1}}),
    ):
        [(position, row)] = rows_of(data)
        assert (position, row["id"]) == (1, "t1") and shape(parse(row)) == wanted


def test_langfuse_calls_that_go_on_with_an_answer_on_the_server_are_one_conversation() -> None:
    def call(number: int, parameters: dict) -> dict:
        said = [{"type": "message", "role": "assistant", "content": f"Answer {number}"}]
        asked = [{"role": "user", "content": f"Question {number}"}]
        answered = {"id": f"resp_{number}", "output": said}
        at = f"2026-11-20T10:00:0{number}Z"
        return generation(f"g{number}", at, asked, answered, modelParameters=parameters)

    second = call(2, {"previous_response_id": "resp_1"})
    row = row_of(trace(observations=[call(1, {}), second]))
    said = [message.content for message in row.messages]
    assert said == ["Question 1", "Answer 1", "Question 2", "Answer 2"] and row.tags == ["a"]
    assert row_of(trace(observations=[second])).tags == ["a", "missing-history"]


def test_geminis_shapes_are_read_in_exports() -> None:
    parts = [{"text": "hm", "thought": True}, {"text": "Yo"}]
    asked = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
    answered = {"candidates": [{"content": {"role": "model", "parts": parts}}]}
    for record in (
        trace(observations=[generation("g", "2026-11-20T10:00:00Z", asked, answered)]),
        smith(inputs=asked, outputs=answered),
    ):
        messages = row_of(record).messages
        assert [text_of(plain(message)) for message in messages] == ["Hi", "Yo"]


def test_a_langfuse_trace_without_generations_is_made_of_its_tools() -> None:
    tool = {
        "id": "o1",
        "type": "TOOL",
        "name": "close",
        "startTime": "2026-01-01T10:00:01Z",
        "input": {"id": 5},
        "output": "ok",
    }
    row = row_of(trace(input="Close 5.", output="Done.", observations=[tool]))
    assert shape(row) == [
        ("user", "Close 5.", []),
        ("assistant", None, ["close"]),
        ("tool", "ok", []),
        ("assistant", "Done.", []),
    ]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "unknown"),
        ({"scores": [{"name": "success", "value": 1}]}, "success"),
        ({"scores": [{"name": "correctness", "value": 0, "comment": "wrong ticket"}]}, "failure"),
        ({"scores": [{"name": "tone", "value": 1}]}, "unknown"),
        (
            {
                "observations": [
                    generation(
                        "g",
                        "2026-01-01T10:00:01Z",
                        [USER],
                        None,
                        level="ERROR",
                        statusMessage="500",
                    )
                ]
            },
            "failure",
        ),
        (
            {
                "observations": [
                    generation(
                        "g",
                        "2026-01-01T10:00:01Z",
                        [USER],
                        SAID,
                        level="ERROR",
                        statusMessage="GraphInterrupt(())",
                    )
                ]
            },
            "unknown",
        ),
        (
            {
                "observations": [
                    generation("g1", "2026-01-01T10:00:01Z", [USER], None, level="ERROR"),
                    generation("g2", "2026-01-01T10:00:02Z", [USER], SAID),
                ]
            },
            "unknown",
        ),
    ],
)
def test_langfuse_outcomes(changes: dict, status: str) -> None:
    assert row_of(trace(**changes)).outcome.status == status


def test_anthropic_blocks_become_calls_and_replies() -> None:
    asked = [
        USER,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "close", "input": {"id": 5}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [{"type": "text", "text": "ok"}],
                }
            ],
        },
    ]
    row = row_of(
        trace(observations=[generation("g", "2026-01-01T10:00:01Z", {"messages": asked}, "Done.")])
    )
    assert [(kind, calls) for kind, _, calls in shape(row)][1:] == [
        ("assistant", ["close"]),
        ("tool", []),
        ("assistant", []),
    ]
    assert row.messages[2].tool_call_id == "c1" and row.messages[2].content == "ok"


def test_too_many_observations_of_a_table_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(langfuse, "MAX_GATHERED", 1)
    with pytest.raises(ImportError_, match="Export it in parts"):
        rows_of(lines(*trace()["observations"]))


def test_a_swe_agent_file_is_one_run() -> None:
    row = row_of(swe(), name="runs/django__django-1.traj")
    assert shape(row) == [
        ("system", "You fix bugs.", []),
        ("user", "A demonstration", []),
        ("user", "Fix it.", []),
        ("assistant", "Look.", ["close"]),
        ("tool", "a.py", []),
    ]
    assert row.messages[1].name == "example_user" and row.messages[4].tool_call_id == "c1"
    assert (row.session_id, row.model, row.usage.cost_usd) == ("django__django-1", "gpt-4o", 0.5)
    assert (row.outcome.status, row.outcome.label) == ("unknown", "submitted")


@pytest.mark.parametrize(
    ("info", "status"),
    [
        ({"exit_status": "exit_cost", "submission": None}, "failure"),
        ({"exit_status": "submitted (exit_cost)", "submission": "diff"}, "unknown"),
        ({"exit_status": "submitted", "resolved": True}, "success"),
        ({}, "unknown"),
        ("not an object", "unknown"),
    ],
)
def test_swe_agent_outcomes(info: Any, status: str) -> None:
    assert row_of(swe(info=info)).outcome.status == status


def test_mini_swe_agent_and_files_with_steps_only() -> None:
    mini = {
        "trajectory_format": "mini-swe-agent-1.1",
        "instance_id": "x-1",
        "messages": [USER, SAID, {"role": "exit", "content": "diff"}],
        "info": {
            "exit_status": "Submitted",
            "submission": "diff",
            "config": {"model": {"model_name": "m"}},
        },
    }
    row = row_of(mini)
    assert (len(row.messages), row.session_id, row.model) == (2, "x-1", "m")
    steps = row_of(swe(history=[]), name="a.traj")
    assert shape(steps) == [("assistant", "Look.\nls", []), ("user", "a.py", [])]


def test_the_real_tau_bench_file() -> None:
    path = shared("tau_bench/gpt-4o-airline-trials-0-1.json")
    with path.open("rb") as file:
        found = [parse(row) for _, row in read(file, path.name).rows]
    assert Counter(row.outcome.status for row in found) == {"failure": 57, "success": 43}
    assert len({row.id for row in found}) == 100 and all(len(row.messages) > 1 for row in found)


def test_the_real_nemo_gym_files() -> None:
    path = shared("workplace_assistant/example_rollouts.jsonl")
    with path.open("rb") as file:
        found = [parse(row) for _, row in read(file, path.name).rows]
    assert [row.outcome.reward for row in found] == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert [row.outcome.status for row in found] == ["failure", *["success"] * 4]
    assert all(row.tools and row.messages[0].role == "system" for row in found)
    assert all(turn.tool_call_id for row in found for turn in row.messages if turn.role == "tool")
    with shared("workplace_assistant/example.jsonl").open("rb") as file:
        tasks = [row for _, row in read(file, "example.jsonl").rows]
    assert len(tasks) == 5 and all(
        isinstance(row, RowError) and row.path == "response" for row in tasks
    )


def test_rows_go_into_the_store_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "ROWS", 2)
    path = tmp_path / "rows.jsonl"
    bad = {"messages": [{"role": "nobody"}]}
    path.write_bytes(
        lines(*[{"id": str(n), "messages": [USER]} for n in range(3)], bad, b"{", SAMPLES["chat"])
    )
    sizes: list[int] = []

    def store(rows: list[dict]) -> batches.Checked:
        sizes.append(len(rows))
        return batches.check(rows)

    def opened(name: str) -> Any:
        from contextlib import contextmanager

        @contextmanager
        def reading() -> Any:
            with open_source(name) as file:
                yield read(file, name)

        return reading()

    summary = batches.run([str(tmp_path / "missing"), str(path)], opened, store)
    assert sizes == [2, 2, 1] and (summary.accepted, summary.rejected, summary.done) == (4, 3, 6)
    assert [(item["position"], item["path"]) for item in summary.errors] == [
        ("", ""),
        ("line 4", "messages[0].role"),
        ("line 5", ""),
    ]
    assert "cannot be opened" in summary.errors[0]["error"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def mutations(sample: Any) -> st.SearchStrategy[Any]:
    """The sample with any of its parts replaced by any JSON, or left out."""
    if isinstance(sample, dict):
        parts = {name: mutations(value) for name, value in sample.items()}
        return st.one_of(
            st.fixed_dictionaries({}, optional=parts), st.fixed_dictionaries(parts), JSON
        )
    if isinstance(sample, list):
        return st.one_of(st.tuples(*map(mutations, sample)).map(list), JSON)
    return st.one_of(st.just(sample), JSON)


def take_all(data: bytes, format: str, name: str = "any.jsonl") -> None:
    """Reads it all: nothing but the declared errors may come, and a row is a dict with an id and
    messages.
    """
    try:
        for position, row in read(io.BytesIO(data), name, format).rows:
            assert position >= 1
            assert isinstance(row, RowError) or (
                (isinstance(row, dict) and "messages" in row) or format == "chat"
            )
            batches.check([row] if isinstance(row, dict) else [])
    except ImportError_:
        pass


@pytest.mark.more
@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=amount(3, 60), deadline=None)
@given(data=st.data())
def test_any_json_gives_rows_or_row_errors(format: str, data: st.DataObject) -> None:
    found = data.draw(st.lists(mutations(SAMPLES[format]), min_size=1, max_size=3))
    take_all(lines({}, *found), format)
    take_all(
        json.dumps(found, indent=1).encode(), format, name=data.draw(st.text(max_size=10)) or "x"
    )


@settings(max_examples=150, deadline=None)
@given(
    data=st.binary(max_size=300),
    prefix=st.sampled_from([b"", b"[", b"{", b'{"messages": [', b"\x1f\x8b", b"[{}, "]),
)
def test_any_bytes_give_rows_or_declared_errors(data: bytes, prefix: bytes) -> None:
    for format in ("auto", *FORMATS):
        take_all(prefix + data, format)


def test_langsmith_runs_of_a_trace_are_one_trajectory() -> None:
    root = smith(
        id="t1",
        run_type="chain",
        inputs={"input": "Hi"},
        outputs={"output": "Yo"},
        feedback_stats={"correctness": {"avg": 0.0}},
        start_time="2026-01-01T00:00:00",
        end_time="2026-01-01T00:00:02",
        prompt_tokens=3,
    )
    [(_, raw)] = rows_of(lines(smith(parent_run_id="t1"), root))
    row = parse(raw)
    assert [(turn.role, turn.content) for turn in row.messages] == [
        ("user", "Hi"),
        ("assistant", "Yo"),
    ]
    assert (row.id, row.outcome.status, row.latency_ms, row.usage.input_tokens) == (
        "t1",
        "failure",
        2000,
        3,
    )


@pytest.mark.parametrize(
    ("error", "status", "tags"),
    [
        ("GraphInterrupt((Interrupt(value='Ship it?'),))", "unknown", ["paused"]),
        ("GeneratorExit()Traceback (most recent call last):", "unknown", ["client-left"]),
        ("CancelledError()", "unknown", ["cancelled"]),
        ("ValueError('no such order')", "failure", []),
    ],
)
def test_an_exception_that_steers_is_no_failure(error: str, status: str, tags: list[str]) -> None:
    row = parse(rows_of(lines(smith(error=error, status="error")))[0][1])
    assert (row.outcome.status, row.tags) == (status, tags)
    given = generation(
        "g", "2026-01-01T10:00:01Z", [USER], SAID, level="ERROR", statusMessage=error
    )
    row = row_of(trace(observations=[given], tags=[]))
    assert (row.outcome.status, row.tags) == (status, tags)


def test_imports_count_the_whole_input_and_keep_its_parts() -> None:
    buckets = {"input": 3, "input_cached_tokens": 90, "output": 2, "total": 95}
    row = row_of(
        trace(
            observations=[
                generation("g", "2026-01-01T10:00:01Z", [USER], SAID, usageDetails=buckets)
            ]
        )
    )
    assert (row.usage.input_tokens, row.usage.cache_read_tokens) == (93, 90)
    said = {
        "generations": [[{"text": "Yo"}]],
        "usage_metadata": {"input_token_details": {"cache_read": 2}},
    }
    row = parse(rows_of(lines(smith(outputs=said)))[0][1])
    assert (row.usage.input_tokens, row.usage.cache_read_tokens) == (3, 2)


def test_json_that_was_cut_is_nobodys_words_in_an_import() -> None:
    asked = json.dumps([USER, {"role": "assistant", "content": "x" * 50}])[:-20]
    row = row_of(trace(observations=[generation("g", "2026-01-01T10:00:01Z", asked, SAID)]))
    assert [message.role for message in row.messages] == [
        "user",
        "assistant",
    ] and "cut-off" in row.tags
    assert row.messages[0].content == USER["content"]


def test_langsmith_without_a_model_call_is_made_of_its_tools() -> None:
    root = smith(
        id="t1", run_type="chain", inputs={"input": "Hi"}, outputs=None, error="ValueError: no"
    )
    tool = smith(
        id="x",
        parent_run_id="t1",
        run_type="tool",
        name="close",
        inputs={"input": "{'id': 5}"},
        outputs={"output": "ok"},
    )
    row = parse(rows_of(lines(root, tool))[0][1])
    assert (
        shape(row)[1:] == [("assistant", None, ["close"]), ("tool", "ok", [])]
        and row.outcome.status == "failure"
    )
    assert row.messages[1].tool_calls[0].function.arguments == {"id": 5}


def test_sharegpt_calls_are_answered_by_observations() -> None:
    said = [
        ("human", "Hi"),
        ("function_call", '{"name": "close", "arguments": {"id": 5}}'),
        ("observation", "ok"),
        ("gpt", "Done."),
    ]
    row = row_of(
        {
            "conversations": [{"from": who, "value": what} for who, what in said],
            "system": "Be brief.",
        }
    )
    assert shape(row) == [
        ("system", "Be brief.", []),
        ("user", "Hi", []),
        ("assistant", None, ["close"]),
        ("tool", "ok", []),
        ("assistant", "Done.", []),
    ]
    assert row.messages[3].tool_call_id == row.messages[2].tool_calls[0].id


def test_a_history_keeps_the_names_of_its_agents() -> None:
    talk = [
        {"role": "human", "content": "Do it."},
        {"role": "Orchestrator (thought)", "content": "Hm."},
        {"role": "assistant", "name": "Coder", "content": None, "tool_calls": [CALL]},
        {
            "role": "tool",
            "tool_responses": [{"tool_call_id": "c1", "role": "tool", "content": "ok"}],
        },
    ]
    row = row_of({"history": talk, "is_correct": False, "question": "Do it."})
    assert [(turn.role, turn.name) for turn in row.messages] == [
        ("user", None),
        ("assistant", "Orchestrator (thought)"),
        ("assistant", "Coder"),
        ("tool", None),
    ]
    assert row.outcome.status == "failure" and row.metadata["extra"]["question"] == "Do it."
    [(_, whole)] = rows_of(json.dumps([USER, CALLS, REPLY, SAID]).encode())
    assert [turn["role"] for turn in whole["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ], "one file, one run"


def test_autogens_events_are_calls_and_replies() -> None:
    talk = [
        {"source": "user", "type": "TextMessage", "content": "Hi"},
        {
            "source": "helper",
            "type": "ToolCallRequestEvent",
            "content": [{"id": "c1", "name": "close", "arguments": "{}"}],
        },
        {
            "source": "helper",
            "type": "ToolCallExecutionEvent",
            "content": [{"call_id": "c1", "content": "ok", "is_error": False}],
        },
        {"source": "helper", "type": "TextMessage", "content": "Done."},
    ]
    row = row_of({"history": talk})
    assert shape(row) == [
        ("user", "Hi", []),
        ("assistant", None, ["close"]),
        ("tool", "ok", []),
        ("assistant", "Done.", []),
    ]
    assert row.messages[3].name == "helper"
    listed = read(io.BytesIO(json.dumps(talk).encode()), "run.json")
    assert listed.format == "history" and [shape(parse(one)) for _, one in listed.rows] == [
        shape(row)
    ]


def test_atif_steps_are_turns() -> None:
    row = row_of(atif())
    assert shape(row) == [
        ("user", "Close ticket 5.", []),
        ("assistant", None, ["close"]),
        ("tool", "ok", []),
        ("assistant", "Done.", []),
    ]
    assert (row.usage.input_tokens, row.agent.name, row.model) == (7, "helpdesk", "m")
    assert [call.usage.get("cost_usd") for call in row.usage.calls] == [0.5, None]
    assert error_of(atif(steps=[{"source": "nobody"}]), "atif").path == "steps[0].source"


def test_otlp_files_are_traces_by_line_or_protobuf() -> None:
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    assert [row["id"] for _, row in rows_of(lines(otlp(1), otlp(2)))] == [f"{1:032x}", f"{2:032x}"]
    packed = [
        ParseDict(given, ExportTraceServiceRequest(), ignore_unknown_fields=True)
        for given in (otlp(1), otlp(2))
    ]
    spans = [request.resource_spans[0].scope_spans[0].spans[0] for request in packed]
    for number, span in enumerate(spans, 1):
        span.trace_id, span.span_id = (
            bytes.fromhex(f"{number:032x}"),
            bytes.fromhex(f"{number:016x}"),
        )
    bodies = [request.SerializeToString() for request in packed]
    assert [row["id"] for _, row in rows_of(bodies[0])] == [f"{1:032x}"]
    framed = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    assert [row["id"] for _, row in rows_of(framed)] == [f"{1:032x}", f"{2:032x}"]
