"""Turns an answer into a span in OpenTelemetry's conventions, so that it is stored through the
normal ingestion of trajectories. Pure.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec.structs import replace

from apps.serving import usage
from apps.serving.spool import Record
from apps.trajectories.decoding import clean
from apps.trajectories.otlp.spans import Scope, Span
from workers.lib.messages import Message, content_text, error_text, from_items
from workers.lib.messages.content import REASONING_FIELDS
from workers.lib.prices import cost_of
from workers.lib.spending import counted
from workers.lib.streamed import END, ChatPieces, Events, ResponsePieces
from workers.lib.token_usage import COLUMNS, Usage, parse

SCOPE = Scope("flywheel.endpoint", "1")
LEFT, REFUSED, UNCOUNTED = "client-left", "request-refused", "tokens-unknown"  # tags
INCOMPLETE = {
    "left": "The client went away before the answer was complete.",
    "broken": "The server ended the answer in the middle.",
    "late": "The server sent nothing for too long.",
    "unreached": "No server answered.",
}
ANSWER_FIELDS = (
    "content",
    "tool_calls",
    "function_call",
    "refusal",
    *REASONING_FIELDS,
)  # of a chat message
CLIENT, ERROR = 3, 2  # of OTLP's span kinds and status codes
CALLERS_FAULT = (
    400,
    413,
    415,
    422,
)  # statuses caused by the request, which no version would have answered
ATTRIBUTES_OF_PARTS = dict(
    zip(
        COLUMNS,
        (
            "gen_ai.usage.cache_read.input_tokens",
            "gen_ai.usage.cache_creation.input_tokens",
            "gen_ai.usage.reasoning.output_tokens",
        ),
        strict=True,
    )
)
PROVIDER = "flywheel"  # which has no list prices: a version may be called like a provider's model


def span_of(record: Record) -> Span:
    """One model call. If the request named a trace, the span is part of it, so that both become one
    run.
    """
    asked, answer = _json(record.request), answer_of(record)
    problem = problem_of(record, answer)
    refused = problem if record.status in CALLERS_FAULT and record.ended == "whole" else ""
    answered = _answer_messages(record, answer)
    used, written = _used(record, answer), _written(record)
    tags = [UNCOUNTED] if written and None in (used.input_tokens, used.output_tokens) else []
    tags += [LEFT] if record.ended == "left" else [REFUSED] if refused else []
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": record.channel,
        "gen_ai.response.model": record.version,
        "gen_ai.agent.name": record.channel,
        "gen_ai.agent.version": record.version,
        "session.id": record.session,
        "user.id": record.user,
        "gen_ai.input.messages": _dumped(_asked_messages(record, asked)),
        "gen_ai.output.messages": _dumped(answered),
        "gen_ai.tool.definitions": _dumped(asked.get("tools")),
        "flywheel.channel": record.channel,
        "flywheel.model_version": record.version_id,
        "flywheel.server": record.server,
        "flywheel.served_as": record.served_as,
        "flywheel.api_key": record.key,
        "flywheel.protocol": record.protocol,
        "flywheel.stream": record.stream,
        "flywheel.ended": record.ended,
        "flywheel.http_status": record.status,
        "flywheel.time_to_first_token_ms": (
            _ms(record.first_ns - record.started_ns) if record.first_ns else None
        ),
        "flywheel.servers_tried": record.servers_tried if record.servers_tried > 1 else None,
        "flywheel.metadata": record.metadata or None,
        "gen_ai.response.id": answer.get("id"),
        "flywheel.refused": refused,
        "langfuse.trace.tags": tags or None,
        **_usage(record, used),
    }
    failed = "" if refused else problem
    return Span(
        record.trace_id,
        record.span_id,
        record.parent_id,
        f"chat {record.channel}",
        CLIENT,
        record.started_ns,
        record.ended_ns,
        ERROR if failed else 0,
        failed,
        clean({name: value for name, value in attributes.items() if value not in (None, "")}),
        resource={"service.name": f"{record.channel}@{record.version}"},
        scope=SCOPE,
    )


def _ms(ns: int) -> float:
    return round(ns / 1e6, 1)


def _json(data: bytes) -> dict[str, Any]:
    """{} if the data is not a JSON object."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            return {}
    return found if isinstance(found, dict) else {}


def _dumped(value: Any) -> str | None:
    return json.dumps(value, ensure_ascii=False) if value else None


def _asked_messages(record: Record, asked: dict[str, Any]) -> Any:
    """The messages that the model saw, including those of a prompt version."""
    if record.protocol == "chat":
        return asked.get("messages")
    instructions = asked.get("instructions")
    system = (
        [{"role": "system", "content": instructions}]
        if isinstance(instructions, str) and instructions
        else []
    )
    try:
        return [*system, *from_items(asked.get("input") or [])]
    except ValueError:
        return [
            *system,
            {"role": "user", "content": json.dumps(asked.get("input"), ensure_ascii=False)},
        ]


def answer_of(record: Record) -> dict[str, Any]:
    """The complete answer, as far as it arrived."""
    if not record.stream or record.status != 200:
        return _json(record.answer)
    pieces: ChatPieces | ResponsePieces = (
        ResponsePieces() if record.protocol == "responses" else ChatPieces()
    )
    for data in Events().feed(record.answer):
        try:
            if data == END or pieces.add(json.loads(data)):
                break
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    whole = pieces.whole(ended=True)
    if whole is not None:
        return whole
    written = pieces.written
    calls = [
        {"id": f"call_{n}", "type": "function", "function": call}
        for n, call in enumerate(written.calls)
    ]
    message: Message = {"role": "assistant", "content": written.text or None}
    message |= {"reasoning_content": written.thought} if written.thought else {}
    message |= {"tool_calls": calls} if calls else {}
    return {"choices": [{"message": message}]} if written.text or written.thought or calls else {}


def _answer_messages(record: Record, answer: dict[str, Any]) -> list[Message]:
    """The model's message; the first one if there are several choices."""
    if record.status != 200:
        return []
    if record.protocol == "responses" and isinstance(answer.get("output"), list):
        try:
            return [
                message
                for message in from_items(answer["output"])
                if message["role"] == "assistant"
            ]
        except ValueError:
            return []
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        return []
    kept = {name: message[name] for name in ANSWER_FIELDS if message.get(name)}
    return [{"role": "assistant"} | kept] if kept else []


def _nothing_in(record: Record, answer: dict[str, Any]) -> str:
    """A sentence if the answer has neither text nor a call: the client got nothing, even if the
    response is well-formed.
    """
    if record.protocol == "responses" and isinstance(answer.get("output"), list):
        items = [item if isinstance(item, dict) else {} for item in answer["output"]]
        empty = all(
            item.get("type") == "message" and not content_text(item.get("content"), "")
            for item in items
        )
    else:
        empty = not _answer_messages(record, answer)
    return "The answer is empty." if empty else ""


def usage_of(record: Record, answer: dict[str, Any]) -> dict[str, Any]:
    """Tokens and cost by the server's count, as attributes; None if it does not count."""
    return _usage(record, _used(record, answer))


def _usage(record: Record, used: Usage) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.usage.input_tokens": used.input_tokens,
        "gen_ai.usage.output_tokens": used.output_tokens,
        "gen_ai.usage.cost": cost_of(used, record.price).usd,
    }
    parts = {ATTRIBUTES_OF_PARTS[name]: getattr(used, name) for name in COLUMNS}
    return attributes | {name: count for name, count in parts.items() if count}


def estimated_tokens(record: Record) -> int:
    """Input and output tokens for the limits of an answer whose server does not count them,
    rather too many; 0 if the model wrote nothing.
    """
    used = _used(record, answer_of(record))
    if not (text := _written(record)):
        return used.tokens
    guess = usage.estimated(_json(record.request), text)
    return (used.input_tokens or guess.input_tokens) + (
        guess.output_tokens if used.output_tokens is None else used.output_tokens
    )


def _used(record: Record, answer: dict[str, Any]) -> Usage:
    """The tokens as the server counts them. None is not counted: some count nothing, or hardly
    anything although the model wrote more.
    """
    used = parse(answer.get("usage"))
    written = usage.estimated({}, _written(record)).output_tokens
    sent, made = counted(used.input_tokens, used.output_tokens, written=written)
    return replace(used, input_tokens=sent, output_tokens=made)


def _written(record: Record) -> str:
    return usage.written_in(record.answer, stream=record.stream) if record.status == 200 else ""


def failure_in(record: Record, answer: bytes, *, stream: bool) -> str:
    """The result of `problem_of` for a complete answer, before it is recorded. `record.status` must
    be set.
    """
    whole = msgspec.structs.replace(record, answer=answer, stream=stream)
    return problem_of(whole, answer_of(whole))


def problem_of(record: Record, answer: dict[str, Any]) -> str:
    """Why a call failed, on one line; "" if it did not. A client that disconnects is not the
    model's failure.
    """
    if record.ended in ("whole", "left"):
        error = answer.get("error")
        if record.status == 200 and not error:
            if record.ended == "left":
                return ""
            answered = answer.get("choices") or isinstance(answer.get("output"), list)
            return _nothing_in(record, answer) if answered else "HTTP 200 without an answer"
        if record.ended == "left" and not record.status:
            return ""
        said = (
            error_text(error)
            if error
            else content_text(answer.get("message") or answer.get("detail"), "")
        )
        return f"HTTP {record.status}: {said}"[:500].rstrip(": ")
    return (record.problem or INCOMPLETE.get(record.ended, record.ended))[:500]
