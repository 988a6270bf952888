"""NVIDIA data-flywheel logs: one chat completion a row, `{timestamp, workload_id, client_id,
request, response}`.

The calls of one run carry its history: a call whose messages begin with everything an earlier call
of the same client and workload said and got continues that run. Where two open runs fit (the same
conversation twice), nothing is certain, and the call stands for itself: it carries the whole
history anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from apps.trajectories.decoding import RowError
from apps.trajectories.importers.records import Record
from apps.trajectories.importers.shapes import (
    Row,
    as_text,
    chat_message,
    chat_messages,
    chat_tools,
    digest,
    first,
    history,
    identity,
    items,
    moment,
    obj,
    require_object,
    text,
    usage,
    usage_of_calls,
    without_empty,
)

MAX_OPEN = 1000  # runs held back because a later line may continue them


@dataclass
class _Run:
    position: int
    id: str
    client: str
    workload: str
    model: str
    messages: list[dict]
    tools: list[dict]
    key: str
    times: list[str]
    used: list[dict]
    failure: str = ""
    calls: int = 1
    finish: str = ""
    prefixes: list[str] = field(default_factory=list)


def rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    """One row a run, given out when the file ends or `MAX_OPEN` newer runs are open."""
    runs: dict[int, _Run] = {}
    ends: dict[str, list[_Run]] = defaultdict(list)
    for position, record in records:
        try:
            call = _call(position, require_object(record))
        except RowError as error:
            yield position, error
            continue
        if before := _continued(call, ends):
            _close(before, runs, ends)
            call = _joined(before, call)
        runs[call.position] = call
        ends[call.key].append(call)
        if len(runs) > MAX_OPEN:
            oldest = next(iter(runs.values()))
            _close(oldest, runs, ends)
            yield oldest.position, _row(oldest)
    for run in sorted(runs.values(), key=lambda run: run.position):
        yield run.position, _row(run)


def _continued(call: _Run, ends: dict[str, list[_Run]]) -> _Run | None:
    """The one run that this call continues: the longest conversation that it begins with."""
    for prefix in reversed(call.prefixes):
        if found := ends.get(prefix):
            return found[0] if len(found) == 1 else None
    return None


def _close(run: _Run, runs: dict[int, _Run], ends: dict[str, list[_Run]]) -> None:
    del runs[run.position]
    ends[run.key].remove(run)
    if not ends[run.key]:
        del ends[run.key]


def _joined(before: _Run, call: _Run) -> _Run:
    """The later call has the whole conversation; id and start are the first call's."""
    call.position, call.id = before.position, before.id
    call.times = before.times + call.times
    call.used = before.used + call.used
    call.calls += before.calls
    call.tools = call.tools or before.tools
    return call


def _call(position: int, record: dict) -> _Run:
    request, response = record.get("request"), record.get("response")
    if not isinstance(request, dict):
        raise RowError("request", "expected a chat completion request")
    if not isinstance(response, dict):
        raise RowError("response", "expected a chat completion response")
    asked = chat_messages(request.get("messages"), "request.messages")
    answer, failure, finish = _answer(response)
    client, workload = text(record.get("client_id"), 200), text(record.get("workload_id"), 120)
    whole = [digest([client, workload, end]) for end in history(asked + answer)]
    at = moment(first(record, "timestamp") or response.get("created"))
    return _Run(
        position=position,
        id=identity(text(response.get("id"), 100) or "nvidia-flywheel", digest(record)[:16]),
        client=client,
        workload=workload,
        model=text(first(response, "model") or request.get("model"), 200),
        messages=asked + answer,
        tools=chat_tools(request.get("tools") or request.get("functions")),
        key=whole[-1] if answer else "",
        prefixes=whole[: len(asked) - 1],
        times=[at] if at else [],
        used=[
            {
                "usage": usage({name: response.get(name) for name in ("usage", "service_tier")}),
                "model": text(first(response, "model") or request.get("model"), 200),
                "at": at,
            }
        ],
        failure=failure,
        finish=finish,
    )


def _answer(response: dict) -> tuple[list[dict], str, str]:
    """(the answer's messages, why there is none, finish reason). Raises RowError."""
    if error := response.get("error"):
        return [], text(obj(error).get("message")) or as_text(error), ""
    choice = obj(next(iter(items(response.get("choices"))), None))
    message = choice.get("message")
    if not isinstance(message, dict):
        raise RowError("response.choices", "expected a choice with a message")
    answer = chat_message(
        {**message, "role": message.get("role") or "assistant"}, "response.choices[0].message"
    )
    return answer, "", text(choice.get("finish_reason"))


def _row(run: _Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "model": run.model,
        "workload": run.workload,
        "user_id": run.client,
        "started_at": run.times[0] if run.times else None,
        "ended_at": run.times[-1] if len(run.times) > 1 else None,
        "messages": run.messages,
        "tools": run.tools,
        "outcome": {"status": "failure", "reason": run.failure[:2000]} if run.failure else {},
        "usage": usage_of_calls(run.used),
        "metadata": without_empty(
            {"source": "nvidia-flywheel", "calls": run.calls, "finish_reason": run.finish}
        ),
    }
