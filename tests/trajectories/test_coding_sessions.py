"""Session files of Claude Code and Codex: a session is a run."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from typing import Any

import pytest

from apps.trajectories.decoding import RowError
from apps.trajectories.importers import ImportError_, coding_sessions, read
from apps.trajectories.schema import parse

COUNTS = {"cache_creation_input_tokens": 20, "cache_read_input_tokens": 300, "output_tokens": 30}


def read_all(*records: Any) -> tuple[str, list[dict]]:
    data = b"\n".join(
        record if isinstance(record, bytes) else json.dumps(record).encode() for record in records
    )
    file = read(io.BytesIO(data), "session.jsonl")
    rows = [row for _, row in file.rows]
    for row in rows:
        if isinstance(row, dict):
            parse(row)
    return file.format, rows


def claude(kind: str, second: int, message: dict, **more: Any) -> dict:
    return {
        "type": kind,
        "uuid": f"u{second}",
        "parentUuid": f"u{second - 1}",
        "sessionId": "s1",
        "timestamp": f"2026-11-29T10:00:{second:02}.000Z",
        "version": "2.1",
        "cwd": "/work",
        "isSidechain": False,
        "message": message,
    } | more


def asked(second: int, content: Any, **more: Any) -> dict:
    return claude("user", second, {"role": "user", "content": content}, **more)


def block(second: int, answer: str, tokens: int, part: dict, **more: Any) -> dict:
    """Claude Code writes a record for each block of an answer, each with the answer's counts."""
    usage = {"input_tokens": tokens, **COUNTS}
    message = {"id": answer, "role": "assistant", "model": "sonnet", "usage": usage}
    return claude("assistant", second, message | {"content": [part]}, **more)


def calls(identity: str, name: str, **arguments: Any) -> dict:
    return {"type": "tool_use", "id": identity, "name": name, "input": arguments}


def gave(identity: str, content: str, **more: Any) -> list[dict]:
    return [{"type": "tool_result", "tool_use_id": identity, "content": content, **more}]


def says(text: str) -> dict:
    return {"type": "text", "text": text}


HEAD = {"type": "queue-operation", "operation": "enqueue", "sessionId": "s1", "content": "x"}
SESSION = [
    HEAD,
    asked(1, "How many files?"),
    {**asked(2, "A reminder"), "isMeta": True},
    block(3, "m1", 100, says("I look.")),
    block(4, "m1", 100, calls("t1", "Bash", command="ls")),
    asked(5, gave("t1", "hello.txt")),
    block(6, "m1", 100, calls("t2", "Read", file_path="/none")),
    asked(7, gave("t2", "No such file", is_error=True)),
    block(8, "m2", 101, says("One file.")),
    {"type": "last-prompt", "lastPrompt": "x", "leafUuid": "u8", "sessionId": "s1"},
]
TALK = [
    ("user", "How many files?"),
    ("assistant", "I look.", "Bash", "Read"),
    ("tool", "hello.txt"),
    ("tool", "No such file"),
    ("assistant", "One file."),
]


def talk(row: dict) -> list[tuple]:
    return [
        (
            message["role"],
            message["content"],
            *(call["function"]["name"] for call in message.get("tool_calls") or ()),
        )
        for message in row["messages"]
    ]


def test_a_session_of_claude_code_is_a_run() -> None:
    """An answer is one message and counts once, also where results came between its blocks."""
    name, [row] = read_all(*SESSION)
    assert name == "claude-code"
    assert talk(row) == TALK
    assert {name: value for name, value in row["usage"].items() if name != "calls"} == {
        "input_tokens": 420 + 421,
        "output_tokens": 60,
        "cache_read_tokens": 600,
        "cache_write_tokens": 40,
    }
    assert (row["session_id"], row["model"]) == ("s1", "sonnet")
    assert row["agent"] == {"name": "claude-code", "version": "2.1"}
    assert row["latency_ms"] == 7000
    assert row["outcome"] == {"status": "unknown"}


def test_a_session_is_known_by_any_of_its_first_records() -> None:
    title = {"type": "ai-title", "aiTitle": "Files", "sessionId": "s1"}
    name, [row] = read_all(title, {"type": "mode", "sessionId": "s1"}, *SESSION)
    assert name == "claude-code" and talk(row) == TALK
    note = {"kind": "note", "text": "What was exported here"}
    name, [row] = read_all(note, *ROLLOUT)
    assert name == "codex" and row["session_id"] == "c1"
    name, _ = read_all(note, {"messages": [{"role": "user", "content": "Hi"}]})
    assert name == "mapped", "only files of several kinds of records begin with another"


def test_each_answer_of_codex_is_a_call_where_they_add_up_to_the_total() -> None:
    def told(second: int, calls: int, last: int) -> dict:
        record = counted(second, calls)
        record["payload"]["info"]["last_token_usage"] = {"input_tokens": last, "output_tokens": 30}
        return record

    rest = [one for one in ROLLOUT if one["payload"].get("type") != "token_count"]
    _, [row] = read_all(*rest, told(4, 1, 150), told(5, 1, 150), told(8, 2, 150))
    assert [call["usage"]["input_tokens"] for call in row["usage"]["calls"]] == [150, 150]
    assert {call["model"] for call in row["usage"]["calls"]} == {"gpt-5"}
    _, [row] = read_all(*rest, told(4, 1, 150), told(8, 2, 90))
    assert row["usage"]["input_tokens"] == 300 and "calls" not in row["usage"]


def test_a_sub_agent_is_a_run_of_the_same_session() -> None:
    inner = [{**record, "agentId": "a1", "isSidechain": True} for record in SESSION[1:-1]]
    _, rows = read_all(*SESSION, *inner)
    assert [row["id"] for row in rows] == ["claude-code:s1", "claude-code:s1:a1"]
    assert {row["session_id"] for row in rows} == {"s1"}


def test_an_error_of_the_api_that_nothing_came_after_is_a_failure() -> None:
    error = claude(
        "assistant",
        9,
        {"id": "e", "role": "assistant", "model": "<synthetic>", "content": [says("API Error")]},
        isApiErrorMessage=True,
    )
    _, [row] = read_all(*SESSION, error)
    assert row["outcome"] == {"status": "failure", "reason": "API Error"}
    assert talk(row) == TALK
    _, [row] = read_all(*SESSION, error, asked(10, "Again"), block(11, "m3", 1, says("Yes.")))
    assert row["outcome"] == {"status": "unknown"}


def codex(kind: str, second: int, **payload: Any) -> dict:
    at = f"2026-11-29T10:00:{second:02}.000Z"
    return {"timestamp": at, "type": kind, "payload": payload}


def item(second: int, kind: str, **more: Any) -> dict:
    return codex("response_item", second, type=kind, **more)


def message(second: int, role: str, text: str) -> dict:
    kind = "output_text" if role == "assistant" else "input_text"
    return item(second, "message", role=role, content=[{"type": kind, "text": text}])


def counted(second: int, calls: int) -> dict:
    total = {
        "input_tokens": 150 * calls,
        "cached_input_tokens": 60 * calls,
        "output_tokens": 30 * calls,
        "reasoning_output_tokens": 8 * calls,
        "total_tokens": 180 * calls,
    }
    return codex("event_msg", second, type="token_count", info={"total_token_usage": total})


ROLLOUT = [
    codex(
        "session_meta",
        1,
        id="c1",
        cwd="/work",
        originator="codex_exec",
        cli_version="0.17",
        base_instructions={"text": "Be brief."},
    ),
    codex("event_msg", 1, type="task_started"),
    message(2, "user", "<environment_context>\n</environment_context>"),
    codex("turn_context", 2, model="gpt-5"),
    message(3, "user", "How many files?"),
    item(4, "reasoning", summary=[], encrypted_content="x"),
    item(4, "function_call", name="exec_command", arguments='{"cmd":"ls"}', call_id="k1"),
    counted(4, 1),
    item(5, "function_call_output", call_id="k1", output="hello.txt"),
    item(6, "custom_tool_call", name="apply_patch", input="*** Begin", call_id="k2"),
    item(7, "custom_tool_call_output", call_id="k2", output="done"),
    message(8, "assistant", "One file."),
    counted(8, 2),
    codex("event_msg", 9, type="task_complete"),
]


def test_a_rollout_of_codex_is_a_run() -> None:
    name, [row] = read_all(*ROLLOUT)
    assert name == "codex"
    assert talk(row) == [
        ("system", "Be brief."),
        ("developer", "<environment_context>\n</environment_context>"),
        ("user", "How many files?"),
        ("assistant", None, "exec_command"),
        ("tool", "hello.txt"),
        ("assistant", None, "apply_patch"),
        ("tool", "done"),
        ("assistant", "One file."),
    ]
    assert row["usage"] == {
        "input_tokens": 300,
        "output_tokens": 60,
        "cache_read_tokens": 120,
        "reasoning_tokens": 16,
    }
    assert (row["session_id"], row["model"]) == ("c1", "gpt-5")
    assert row["agent"] == {"name": "codex_exec", "version": "0.17"}
    assert row["outcome"] == {"status": "unknown"}


def test_how_a_rollout_ended() -> None:
    failed = codex("event_msg", 9, type="task_complete", error={"message": "No room"})
    _, [row] = read_all(*ROLLOUT[:-1], failed)
    assert row["outcome"] == {"status": "failure", "reason": "No room"}
    _, [row] = read_all(*ROLLOUT[:-1], codex("event_msg", 9, type="turn_aborted"))
    assert (row["outcome"]["status"], row["tags"]) == ("unknown", ["cancelled"])
    _, [row] = read_all(*ROLLOUT[:-1], failed, *ROLLOUT[1:])
    assert row["outcome"] == {"status": "unknown"}


def test_a_broken_line_is_an_error_and_the_session_stays() -> None:
    for session in (SESSION, ROLLOUT):
        _, rows = read_all(*session, b'{"type": "assistant", "mess')
        assert [type(row) for row in rows] == [RowError, dict]


@pytest.mark.proof
def test_odd_values_are_no_crash() -> None:
    """Each record once with each of its values replaced."""
    for session in (SESSION, ROLLOUT):
        for place, record in enumerate(session):
            inner = "payload" if "payload" in record else "message"
            for odd in (None, 7, [], {}, [None], "x"):
                for name in record.get(inner) or ():
                    changed = {**record, inner: {**record[inner], name: odd}}
                    with suppress(RowError):  # what schema.parse refuses
                        read_all(*session[:place], changed, *session[place + 1 :])


def test_a_file_of_too_many_records_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coding_sessions, "MAX_RECORDS", 5)
    with pytest.raises(ImportError_, match="more than 5 records"):
        read_all(*SESSION)
