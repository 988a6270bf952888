"""From the spool into trajectories: once, whatever happens in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
from django.core.management import call_command
from django.db import OperationalError
from django.utils import timezone
from msgspec.structs import replace

from apps.core.models import Project
from apps.failures.models import Failure
from apps.serving import storing
from apps.serving.management.commands import store_answers
from apps.serving.spool import HEAD, Record, Writer, read, segments
from apps.trajectories import assembly, traces
from apps.trajectories.models import Trajectory, with_content
from tests.failures.test_classify_job import classified
from workers.lib.prices import Price

NS = 10**9
START = 1_795_000_000 * NS


def record(
    project: Project, turns: list[str], answer: str | bytes = "Hello", number: int = 1, **more: Any
) -> Record:
    """One call whose conversation has these turns, of the user first."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(turns)]
    said = {
        "choices": [{"message": {"role": "assistant", "content": str(answer)}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    given = {
        "trace_id": f"{number:032x}",
        "span_id": f"{number:016x}",
        "project": project.pk,
        "key": "fw_test",
        "channel": "production",
        "version": "m-v1",
        "version_id": 1,
        "server": "gpu",
        "served_as": "m",
        "status": 200,
        "request": json.dumps({"model": "m", "messages": messages}).encode(),
        "answer": answer if isinstance(answer, bytes) else json.dumps(said).encode(),
        "started_ns": START + number * NS,
        "first_ns": START + number * NS + 100,
        "ended_ns": START + number * NS + NS // 2,
    }
    return Record(**given | more)


def stored(project: Project, folder: Path) -> list[Trajectory]:
    for path in segments(folder):
        storing.store_segment(path)
    while assembly.step():
        pass
    return with_content(list(Trajectory.objects.filter(project=project).order_by("started_at")))


def put(folder: Path, *records: Record) -> None:
    writer = Writer(folder)
    for one in records:
        writer.put(one)
    os.close(writer.hand_over())


def test_an_answer_becomes_a_trajectory(project: Project, tmp_path: Path) -> None:
    put(tmp_path, record(project, ["Hi"], session="s1", user="u1", price=Price(1.0, 2.0)))
    (row,) = stored(project, tmp_path)
    assert (row.model, row.agent_name, row.agent_version) == ("m-v1", "production", "m-v1")
    assert (row.session_id, row.user_id, row.input_tokens, row.output_tokens) == ("s1", "u1", 3, 4)
    assert row.messages == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    ]
    assert row.latency_ms == 500 and float(row.cost_usd) == pytest.approx(11e-6)
    assert row.metadata["attributes"]["flywheel.model_version"] == 1
    assert not list(tmp_path.glob("*.ready"))


def test_the_turns_of_a_session_are_one_trajectory(project: Project, tmp_path: Path) -> None:
    put(tmp_path, record(project, ["Hi"], session="s1"))
    stored(project, tmp_path)
    put(tmp_path, record(project, ["Hi", "Hello", "And now?"], "Bye", 2, session="s1"))
    (row,) = stored(project, tmp_path)
    assert [message["content"] for message in row.messages] == ["Hi", "Hello", "And now?", "Bye"]
    assert row.output_tokens == 8


def test_turns_that_two_versions_answered_stay_apart(project: Project, tmp_path: Path) -> None:
    """What a promotion changed is compared by version, so no run has two."""
    put(tmp_path, record(project, ["Hi"], session="s1"))
    put(
        tmp_path,
        record(
            project,
            ["Hi", "Hello", "And now?"],
            "Bye",
            2,
            session="s1",
            version="m-v2",
            version_id=2,
        ),
    )
    assert [row.model for row in stored(project, tmp_path)] == ["m-v1", "m-v2"]


def test_what_was_read_twice_is_stored_once(project: Project, tmp_path: Path) -> None:
    put(tmp_path, one := record(project, ["Hi"]))
    stored(project, tmp_path)
    put(tmp_path, one)
    (row,) = stored(project, tmp_path)
    assert row.output_tokens == 4 and row.metadata["span_count"] == 1


def test_a_failed_call_is_a_failure_and_one_that_was_left_is_not(
    project: Project, tmp_path: Path
) -> None:
    refused = json.dumps({"error": {"message": "too long"}}).encode()
    put(
        tmp_path,
        record(project, ["a"], number=1, status=400, answer=refused),
        record(project, ["b"], number=2, ended="left"),
        record(
            project,
            ["c"],
            number=3,
            ended="unreached",
            status=0,
            answer=b"",
            problem="gpu: it hung up",
        ),
        record(project, ["d"], number=4, status=500, answer=refused),
    )
    rows = stored(project, tmp_path)
    assert [(row.outcome_status, row.outcome_reason) for row in rows] == [
        ("unknown", ""),
        ("unknown", ""),
        ("failure", "gpu: it hung up"),
        ("failure", "HTTP 500: too long"),
    ]
    assert [row.tags for row in rows[:2]] == [["request-refused"], ["client-left"]]
    assert rows[0].metadata["attributes"]["flywheel.refused"] == "HTTP 400: too long", (
        "the caller's own mistake is no failure of the version"
    )
    classified(project)
    assert Failure.objects.filter(trajectory__in=[row.pk for row in rows[:2]]).count() == 0


CHOICE = {"index": 0, "finish_reason": "stop"}
END = {"choices": [CHOICE | {"delta": {"role": "assistant", "content": ""}}]}
NO_TEXT = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ""}]}
REFUSED = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "refusal", "refusal": "No."}],
}
CALLED = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.more(rows=6)
@pytest.mark.parametrize(
    ("answer", "more", "reason"),
    [
        (
            {"choices": [CHOICE | {"message": {"role": "assistant", "content": ""}}]},
            {},
            "The answer is empty.",
        ),
        (
            {"choices": [CHOICE | {"message": {"role": "assistant", "content": None}}]},
            {},
            "The answer is empty.",
        ),
        (f"data: {json.dumps(END)}\n\ndata: [DONE]\n\n", {"stream": True}, "The answer is empty."),
        ({"output": [NO_TEXT]}, {"protocol": "responses"}, "The answer is empty."),
        ({"output": []}, {"protocol": "responses"}, "The answer is empty."),
        ({"output": [{"type": "reasoning", "summary": []}]}, {"protocol": "responses"}, ""),
        (
            {
                "output": [
                    {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "c"}
                ]
            },
            {"protocol": "responses"},
            "",
        ),
        (
            {
                "choices": [
                    CHOICE
                    | {"message": {"role": "assistant", "content": None, "tool_calls": [CALLED]}}
                ]
            },
            {},
            "",
        ),
        (
            {
                "choices": [
                    CHOICE | {"message": {"role": "assistant", "content": None, "refusal": "No."}}
                ]
            },
            {},
            "",
        ),
        (
            {
                "choices": [
                    CHOICE
                    | {"message": {"role": "assistant", "content": "", "reasoning_content": "Hm"}}
                ]
            },
            {},
            "",
        ),
        (
            {
                "choices": [
                    CHOICE | {"message": {"role": "assistant", "content": None, "reasoning": "Hm"}}
                ]
            },
            {},
            "",
        ),
        (
            {
                "choices": [
                    CHOICE
                    | {
                        "message": {
                            "role": "assistant",
                            "content": None,
                            "function_call": CALLED["function"],
                        }
                    }
                ]
            },
            {},
            "",
        ),
        (
            (
                "data:"
                f" {json.dumps({'choices': [CHOICE | {'delta': {'function_call': CALLED['function']}}]})}\n\ndata:"  # noqa: E501
                " [DONE]\n\n"
            ),
            {"stream": True},
            "",
        ),
        ({"output": [REFUSED]}, {"protocol": "responses"}, ""),
        (
            {"choices": [CHOICE | {"message": {"role": "assistant", "content": "Hi"}}]},
            {"protocol": "responses"},
            "",
        ),
        ("", {"ended": "left", "stream": True}, ""),
    ],
)
def test_an_answer_without_text_or_call_is_a_failure(
    project: Project, tmp_path: Path, answer: Any, more: dict, reason: str
) -> None:
    sent = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
    put(tmp_path, record(project, ["Hi"], sent, **more))
    (row,) = stored(project, tmp_path)
    assert (row.outcome_status, row.outcome_reason) == ("failure" if reason else "unknown", reason)


def test_a_callers_own_trace_holds_the_call(project: Project, tmp_path: Path) -> None:
    put(tmp_path, record(project, ["Hi"], trace_id="ab" * 16, parent_id="cd" * 8))
    for path in segments(tmp_path):
        storing.store_segment(path)
    assembly.step(timezone.now() + traces.PATIENCE)
    assert Trajectory.objects.get(project=project).external_id == "ab" * 16


def test_the_database_that_is_away_loses_nothing(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, record(project, ["Hi"]))
    keep, left = traces.keep, [OperationalError("gone"), psycopg.OperationalError("gone")]

    def away(**given: Any) -> None:
        if left:
            raise left.pop()
        keep(**given)

    monkeypatch.setattr(traces, "keep", away)
    monkeypatch.setattr(storing, "AWAY_S", 0.0)
    monkeypatch.setattr(storing.connection, "close", lambda: None)  # the test's own
    turns = iter([True] * 3 + [False])
    storing.run(tmp_path, lambda: next(turns))
    assert len(stored(project, tmp_path)) == 1 and not left


def test_one_that_the_database_refuses_is_set_aside(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(
        tmp_path,
        record(project, ["good"], number=1),
        record(project, ["bad"], number=2),
        record(project, ["fine"], number=3),
    )
    keep = traces.keep

    def choosy(*, project: Project, spans: list) -> None:
        if any("bad" in span.attributes["gen_ai.input.messages"] for span in spans):
            raise ValueError("no")
        keep(project=project, spans=spans)

    monkeypatch.setattr(traces, "keep", choosy)
    assert len(stored(project, tmp_path)) == 2
    assert [path.name for path in (tmp_path / "refused").iterdir()] == [f"{2:016x}.msgpack"]


def test_hostile_text_is_stored_as_text(project: Project, tmp_path: Path) -> None:
    request = (
        b'{"model":"m","messages":[{"role":"user","content":"\\u0000 \\ud800'
        b' <script>"}],"tools":"none"}'
    )
    put(
        tmp_path,
        record(project, ["x"], number=1, request=request),
        record(
            project, ["x"], number=2, request=b'{"model":"m","messages":"Hi"}', answer=b"<html>"
        ),
        record(
            project,
            ["x"],
            number=3,
            answer=b'{"choices":[{"message":{"content":7,"tool_calls":{}}}],"usage":{"prompt_tokens":-1}}',
        ),
        record(
            project,
            ["x"],
            number=4,
            protocol="responses",
            request=b'{"input":[7]}',
            answer=b'{"output":[{"type":7}]}',
        ),
        record(
            project,
            ["x"],
            number=5,
            stream=True,
            answer=b'data: {"choices":[7]}\n\ndata: nonsense\n\n',
        ),
        record(project, ["x" * 500], number=6, session="s" * 5000, user="\x00"),
    )
    assert len(stored(project, tmp_path)) == 6 and not (tmp_path / "refused").exists()


# The spool itself


def test_a_record_that_a_kill_cut_off_ends_its_segment(project: Project, tmp_path: Path) -> None:
    put(tmp_path, record(project, ["1"], number=1), record(project, ["2"], number=2))
    (path,) = segments(tmp_path)
    whole = path.read_bytes()
    for cut in (1, HEAD.size, 200):
        path.write_bytes(whole[:-cut])
        assert [one.span_id for one in read(path)] == [f"{1:016x}"]
    path.write_bytes(whole[:-1] + b"?")
    assert len(list(read(path))) == 1


def test_what_a_dead_process_left_open_is_read_and_a_live_ones_is_not(
    project: Project, tmp_path: Path
) -> None:
    writer = Writer(tmp_path)
    writer.put(record(project, ["1"]))
    assert segments(tmp_path) == []
    os.close(writer.file)  # as the kernel does with a process that is killed
    assert len(segments(tmp_path)) == 1


def test_a_full_disk_keeps_answers_in_memory(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, write, room = Writer(tmp_path), os.write, [10]

    def full(file: int, data: bytes) -> int:
        if not room:
            return write(file, data)
        if room[0] <= 0:
            raise OSError(28, "No space left on device")
        some, room[0] = data[: room[0]], 0
        return write(file, some)

    monkeypatch.setattr(os, "write", full)
    writer.put(one := record(project, ["1"], number=1))
    assert len(writer.unwritten) == 1
    room.clear()
    writer.put(replace(one, span_id=f"{2:016x}"))
    os.close(writer.hand_over())
    assert [found.span_id for path in segments(tmp_path) for found in read(path)] == [
        f"{1:016x}",
        f"{2:016x}",
    ]


def test_a_process_that_stores_ends_where_its_parent_was_gone_before_it_began(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.FLYWHEEL_ENDPOINT_SPOOL = tmp_path
    monkeypatch.setattr(store_answers, "signal", Mock())  # those of the tests stay as they are
    monkeypatch.setattr(store_answers, "end_with_parent", Mock())
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    call_command("store_answers", parent=gone.pid)
