"""The session files of coding agents: Claude Code's `~/.claude/projects/*/*.jsonl` and Codex'
`rollout-*.jsonl`. A session is a run; a sub-agent's file is one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

from apps.trajectories.decoding import RowError
from apps.trajectories.importers.records import ImportError_, Record
from apps.trajectories.importers.shapes import (
    Row,
    as_text,
    chat_message,
    first,
    identity,
    items,
    milliseconds,
    moment,
    obj,
    require_object,
    text,
    usage,
    usage_of_calls,
    without_empty,
)
from workers.lib.messages import content_text, from_items

MAX_RECORDS = 200_000  # of a file, which is held until it has ended
SYNTHETIC = "<synthetic>"  # the model of what Claude Code itself says
CODEX_ROWS = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
HARNESS = ("<environment_context>", "<user_instructions>", "# AGENTS.md instructions")
# What the items of Codex' own tools are called where they are functions.
OUTPUTS = ("custom_tool_call_output", "local_shell_call_output", "function_call_output")


def is_claude(record: dict) -> bool:
    """Of a record that is too long to be seen, the keys alone are known."""
    names = set(record)
    marks = ({"uuid", "sessionId"}, {"operation", "sessionId"}, {"leafUuid"}, {"snapshot"})
    return "type" in names and any(mark <= names for mark in marks)


def is_codex(record: dict) -> bool:
    known = record.get("type") in (None, *CODEX_ROWS)
    return known and {"timestamp", "type", "payload"} <= set(record)


def claude_rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    return _sessions(records, name, _claude_key, _claude)


def codex_rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    """All that follows the file's beginning is one session, also what a fork repeats of
    another.
    """
    return _sessions(records, name, lambda record: "", _codex)


def _sessions(
    records: Iterable[Record],
    name: str,
    key_of: Callable[[dict], str],
    convert: Callable[[list[dict]], dict | None],
) -> Iterator[Row]:
    """A row for the records of each key, in the order in which they began."""
    sessions: dict[str, tuple[int, list[dict]]] = {}
    for number, (position, record) in enumerate(records):
        if number >= MAX_RECORDS:
            raise ImportError_(f"{name} has more than {MAX_RECORDS:,} records.")
        try:
            found = require_object(record)
        except RowError as error:
            yield position, error
            continue
        if (key := key_of(found)) is not None:
            sessions.setdefault(key, (position, []))[1].append(found)
    for position, found in sessions.values():
        try:
            if (row := convert(found)) is not None:
                yield position, row
        except RowError as error:
            yield position, error


def _times(records: list[dict]) -> dict[str, Any]:
    times = [at for record in records if (at := moment(record.get("timestamp")))]
    start, end = min(times, default=None), max(times, default=None)
    return {"started_at": start, "ended_at": end, "latency_ms": milliseconds(start, end)}


def _failure(reason: str) -> dict:
    return {"status": "failure", "reason": reason[:300]} if reason else {"status": "unknown"}


# Claude Code


def _claude_key(record: dict) -> str | None:
    """None for what is no message: titles, snapshots of files, what was attached."""
    if not isinstance(record.get("message"), dict):
        return None
    agent = text(record.get("agentId")) or ("sidechain" if record.get("isSidechain") else "")
    return f"{text(record.get('sessionId'))} {agent}"


def _claude(records: list[dict]) -> dict | None:
    last, head = records[-1], records[0]
    session, agent = text(head.get("sessionId"), 200), text(head.get("agentId"), 120)
    said = [record for record in records if not record.get("isMeta")]
    real = [record for record in said if record["message"].get("model") != SYNTHETIC]
    if not real:
        return None
    answers = _answers(real)
    return without_empty(
        {
            "id": identity("claude-code", session, agent),
            "agent": {"name": "claude-code", "version": text(last.get("version"), 120)},
            "model": next((name for one in answers if (name := text(one.get("model"), 200))), ""),
            "session_id": session,
            **_times(records),
            "messages": [
                message
                for index, turn in enumerate(_turns(real, answers))
                for message in chat_message(turn, f"messages[{index}]")
            ],
            "outcome": _failure(_claude_error(said)),
            "usage": usage_of_calls(map(_call, answers), _cost(real)),
            "metadata": without_empty(
                {
                    "source": "claude-code",
                    "cwd": text(head.get("cwd"), 500),
                    "git_branch": text(head.get("gitBranch"), 200),
                    "entrypoint": text(head.get("entrypoint"), 80),
                    "sub_agent": agent,
                    "left_out": len(records) - len(real) or None,
                }
            ),
        }
    )


def _answers(records: list[dict]) -> list[dict]:
    """The model's answers, each once: every block of one is written as a record of its own, with
    the counts of the whole.
    """
    answers: dict[str, dict] = {}
    for record in records:
        message = record["message"]
        if record.get("type") != "assistant":
            continue
        key = text(message.get("id")) or text(record.get("uuid"))
        known = answers.get(key)
        content = [*(items(known["content"]) if known else ()), *_blocks(message.get("content"))]
        at = known["at"] if known else moment(record.get("timestamp"))
        answers[key] = message | {"content": content, "at": at}
    return list(answers.values())


def _blocks(content: Any) -> list:
    return [{"type": "text", "text": content}] if isinstance(content, str) else items(content)


def _turns(records: list[dict], answers: list[dict]) -> Iterator[dict]:
    """The messages in order: an answer stands where its first block does."""
    left = iter(answers)
    seen: set[str] = set()
    for record in records:
        message = record["message"]
        if record.get("type") != "assistant":
            yield message
            continue
        key = text(message.get("id")) or text(record.get("uuid"))
        if key not in seen:
            seen.add(key)
            yield next(left)


def _claude_error(records: list[dict]) -> str:
    """An error that nothing came after."""
    last = records[-1]
    failed = last.get("isApiErrorMessage") is True
    return content_text(last["message"].get("content")).strip() if failed else ""


def _cost(records: list[dict]) -> float | None:
    """Which older versions wrote beside each message."""
    costs = [record["costUSD"] for record in records if isinstance(record.get("costUSD"), float)]
    return sum(costs) if costs else None


def _call(answer: dict) -> dict:
    model = text(answer.get("model"), 200)
    return {"usage": usage(answer.get("usage")), "model": model, "at": answer["at"]}


# Codex


def _codex(records: list[dict]) -> dict | None:
    of_kind: dict[str, list[dict]] = {}
    for record in records:
        of_kind.setdefault(text(record.get("type")), []).append(obj(record.get("payload")))
    meta = next(iter(of_kind.get("session_meta", ())), {})
    session = text(first(meta, "id", "session_id"), 200)
    events = of_kind.get("event_msg", [])
    contexts = of_kind.get("turn_context", [])
    messages = from_items([_item(item) for item in of_kind.get("response_item", ())])
    if not messages:
        raise RowError("", "a session without any message")
    if instructions := text(obj(meta.get("base_instructions")).get("text")):
        messages.insert(0, {"role": "system", "content": instructions})
    error, aborted = _codex_end(events)
    model = next((name for one in contexts if (name := text(one.get("model"), 200))), "")
    return without_empty(
        {
            "id": identity("codex", session),
            "agent": {
                "name": text(meta.get("originator"), 120) or "codex",
                "version": text(meta.get("cli_version"), 120),
            },
            "model": model,
            "session_id": session,
            **_times(records),
            "messages": messages,
            "outcome": _failure(error),
            "tags": ["cancelled"] if aborted else [],
            "usage": _codex_usage(events, model),
            "metadata": without_empty(
                {
                    "source": "codex",
                    "cwd": text(meta.get("cwd"), 500),
                    "git_branch": text(obj(meta.get("git")).get("branch"), 200),
                    "model_provider": text(meta.get("model_provider"), 80),
                }
            ),
        }
    )


def _codex_usage(events: list[dict], model: str) -> dict:
    """The session's total so far is written after each answer, and once more with other news,
    beside what the answer used: its calls, if they add up to the total.
    """
    counted = [info for event in events if (info := obj(event.get("info"))) and _total(info)]
    if not counted:
        return {}
    new = [
        info
        for before, info in pairwise([{}, *counted])
        if _total(info) != obj(before.get("total_token_usage"))
    ]
    whole = usage(_total(counted[-1]))
    calls = [{"usage": usage(info.get("last_token_usage")), "model": model} for info in new]
    summed = usage_of_calls(calls)
    sides = ("input_tokens", "output_tokens")
    return summed if all(summed.get(side) == whole.get(side) for side in sides) else whole


def _total(info: dict) -> dict:
    return obj(info.get("total_token_usage"))


def _item(item: dict) -> dict:
    """A Responses item whose tools are functions, and whose user is the person."""
    kind = item.get("type")
    if kind in OUTPUTS:
        return item | {"type": "function_call_output"}
    if kind == "custom_tool_call":
        return item | {"type": "function_call", "arguments": {"input": item.get("input")}}
    if kind == "local_shell_call":
        called = {"name": "local_shell", "arguments": obj(item.get("action"))}
        return item | called | {"type": "function_call"}
    if kind == "message" and item.get("role") == "user" and _is_of_harness(item):
        return item | {"role": "developer"}
    return item


def _is_of_harness(item: dict) -> bool:
    return content_text(item.get("content")).lstrip().startswith(HARNESS)


def _codex_end(events: list[dict]) -> tuple[str, bool]:
    """The error that the last turn ended with, and whether somebody stopped it."""
    error, aborted = "", False
    for event in events:
        kind = event.get("type")
        if kind == "task_started":
            error, aborted = "", False
        elif kind == "turn_aborted":
            aborted = True
        elif kind == "error":
            error = as_text(event.get("message"))
        elif kind == "task_complete" and isinstance(event.get("error"), dict):
            error = error or as_text(event["error"].get("message"))
    return error, aborted
