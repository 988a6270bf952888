"""What `bench.sdks` needs of each provider's API: what a request says, and the answer to it, whole
or as events of a stream. Written apart from the product's own reading, which it checks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bench.sdk_scenarios import Usage

Json = dict[str, Any]


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: Json


@dataclass
class Message:
    role: str
    text: str = ""
    calls: list[Call] = field(default_factory=list)
    call_id: str = ""


@dataclass
class Request:
    messages: list[Message]
    tools: Json  # the schema of its arguments, by name
    model: str
    streams: bool = False
    previous: str = ""  # the response that it goes on with


@dataclass
class Answer:
    id: str
    model: str
    usage: Usage
    text: str = ""
    thought: str = ""
    calls: list[Call] = field(default_factory=list)
    marked: str = ""  # text and calls as DSPy's protocol writes them

    @property
    def message(self) -> Message:
        return Message("assistant", self.text, self.calls)


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return text_of(content.get("text") or content.get("content") or content.get("parts") or "")
    return "".join(text_of(part) for part in content or ())


def _loaded(arguments: Any) -> Json:
    return json.loads(arguments or "{}") if isinstance(arguments, str) else arguments or {}


# OpenAI's chat completions


def chat_request(body: Json) -> Request:
    messages = []
    for said in body["messages"]:
        role = {"developer": "system"}.get(said["role"], said["role"])
        calls = [
            Call(call["id"], call["function"]["name"], _loaded(call["function"].get("arguments")))
            for call in said.get("tool_calls") or ()
        ]
        messages.append(
            Message(role, text_of(said.get("content")), calls, said.get("tool_call_id") or "")
        )
    tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or ()}
    schemas = {name: tool.get("parameters") or {} for name, tool in tools.items()}
    return Request(messages, schemas, body["model"], bool(body.get("stream")))


def chat_answer(answer: Answer, asked: Json) -> Json:
    said = answer.marked or answer.text or None
    message: Json = {"role": "assistant", "content": said, "refusal": None}
    if answer.calls and not answer.marked:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in answer.calls
        ]
    reason = "tool_calls" if "tool_calls" in message else "stop"
    used = answer.usage
    return {
        "id": answer.id,
        "object": "chat.completion",
        "created": 1_795_000_000,
        "model": answer.model,
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": {
            "prompt_tokens": used.input,
            "completion_tokens": used.output,
            "total_tokens": used.input + used.output,
            "prompt_tokens_details": {"cached_tokens": used.cached},
            "completion_tokens_details": {"reasoning_tokens": used.reasoning},
        },
    }


def chat_events(answer: Answer, asked: Json) -> Iterator[Json]:
    """Who speaks, what is said in pieces, why it ended, and the usage where it was asked for."""
    whole = chat_answer(answer, asked)
    head = {name: whole[name] for name in ("id", "created", "model")} | {
        "object": "chat.completion.chunk"
    }
    deltas: list[Json] = [{"role": "assistant", "content": None if answer.calls else ""}]
    for index, call in enumerate(whole["choices"][0]["message"].get("tool_calls", ())):
        said = call["function"]["arguments"]
        begins = call | {"index": index, "function": call["function"] | {"arguments": ""}}
        deltas.append({"tool_calls": [begins]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": part}}]}
            for part in (said[:5], said[5:])
        ]
    deltas += [{"content": part} for part in _pieces(answer.text)]
    ends = [None] * len(deltas) + [whole["choices"][0]["finish_reason"]]
    for delta, end in zip([*deltas, {}], ends, strict=True):
        choice = {"index": 0, "delta": delta, "finish_reason": end, "logprobs": None}
        yield head | {"choices": [choice], "usage": None}
    if (asked.get("stream_options") or {}).get("include_usage"):
        yield head | {"choices": [], "usage": whole["usage"]}


def _pieces(text: str) -> list[str]:
    return [text[at : at + 7] for at in range(0, len(text), 7)]


# OpenAI's responses


def responses_request(body: Json) -> Request:
    said = body.get("input") or []
    messages = [Message("system", body["instructions"])] if body.get("instructions") else []
    for item in [{"role": "user", "content": said}] if isinstance(said, str) else said:
        kind = item.get("type", "message")
        if kind == "function_call":
            call = Call(item["call_id"], item["name"], _loaded(item["arguments"]))
            messages.append(Message("assistant", calls=[call]))
        elif kind == "function_call_output":
            messages.append(Message("tool", text_of(item["output"]), call_id=item["call_id"]))
        elif kind == "message":
            role = {"developer": "system"}.get(item["role"], item["role"])
            messages.append(Message(role, text_of(item["content"])))
    tools = {tool["name"]: tool.get("parameters") or {} for tool in body.get("tools") or ()}
    return Request(
        messages,
        tools,
        body.get("model") or "",
        bool(body.get("stream")),
        body.get("previous_response_id") or "",
    )


def responses_answer(answer: Answer, asked: Json) -> Json:
    output: list[Json] = []
    if answer.thought:
        summary = [{"type": "summary_text", "text": answer.thought}]
        thought = {"type": "reasoning", "id": f"rs_{answer.id}", "summary": summary}
        output.append(thought | {"encrypted_content": "c2ln"})
    for call in answer.calls:
        output.append(
            {
                "type": "function_call",
                "id": f"fc_{call.id}",
                "call_id": call.id,
                "name": call.name,
                "arguments": json.dumps(call.arguments),
                "status": "completed",
            }
        )
    if answer.text:
        content = {
            "type": "output_text",
            "text": answer.text,
            "annotations": [],
            "logprobs": [],
        }
        output.append(
            {
                "type": "message",
                "id": f"msg_{answer.id}",
                "role": "assistant",
                "status": "completed",
                "content": [content],
            }
        )
    used = answer.usage
    return {
        "id": answer.id,
        "object": "response",
        "created_at": 1_795_000_000,
        "status": "completed",
        "model": answer.model,
        "output": output,
        "instructions": asked.get("instructions"),
        "previous_response_id": asked.get("previous_response_id"),
        "tools": asked.get("tools") or [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "error": None,
        "incomplete_details": None,
        "metadata": {},
        "temperature": 1.0,
        "top_p": 1.0,
        "usage": {
            "input_tokens": used.input,
            "input_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": 0},
            "output_tokens": used.output,
            "output_tokens_details": {"reasoning_tokens": used.reasoning},
            "total_tokens": used.input + used.output,
        },
    }


def responses_events(answer: Answer, asked: Json) -> Iterator[Json]:
    whole = responses_answer(answer, asked)
    started = whole | {"status": "in_progress", "output": [], "usage": None}
    events: list[Json] = [
        {"type": "response.created", "response": started},
        {"type": "response.in_progress", "response": started},
    ]
    for index, item in enumerate(whole["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        empty = item | {
            name: type(item[name])() for name in ("arguments", "content", "summary") if name in item
        }
        events.append({"type": "response.output_item.added", "output_index": index, "item": empty})
        if item["type"] == "function_call":
            said = item["arguments"]
            kind = "response.function_call_arguments"
            events += [{"type": f"{kind}.delta", "delta": part} | place for part in _pieces(said)]
            events.append({"type": f"{kind}.done", "arguments": said, "name": item["name"]} | place)
        elif item["type"] == "message":
            (content,) = item["content"]
            place["content_index"] = 0
            part = {"part": content | {"text": ""}}
            events.append({"type": "response.content_part.added"} | place | part)
            kind = "response.output_text"
            events += [
                {"type": f"{kind}.delta", "delta": part, "logprobs": []} | place
                for part in _pieces(content["text"])
            ]
            events.append({"type": f"{kind}.done", "text": content["text"], "logprobs": []} | place)
            events.append({"type": "response.content_part.done", "part": content} | place)
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": whole})
    for number, event in enumerate(events):
        yield event | {"sequence_number": number}


# Anthropic's messages


def anthropic_request(body: Json) -> Request:
    messages = [Message("system", text_of(body["system"]))] if body.get("system") else []
    for said in body["messages"]:
        content = said["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        texts = "".join(block["text"] for block in blocks if block["type"] == "text")
        calls = [
            Call(block["id"], block["name"], block["input"])
            for block in blocks
            if block["type"] == "tool_use"
        ]
        messages += [
            Message("tool", text_of(block.get("content")), call_id=block["tool_use_id"])
            for block in blocks
            if block["type"] == "tool_result"
        ]
        if texts or calls:
            messages.append(Message(said["role"], texts, calls))
    tools = {tool["name"]: tool.get("input_schema") or {} for tool in body.get("tools") or ()}
    return Request(messages, tools, body["model"], bool(body.get("stream")))


def anthropic_answer(answer: Answer, asked: Json) -> Json:
    content: list[Json] = []
    if answer.thought:
        content.append({"type": "thinking", "thinking": answer.thought, "signature": "c2ln"})
    if answer.text:
        content.append({"type": "text", "text": answer.text})
    content += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for call in answer.calls
    ]
    used = answer.usage
    return {
        "id": answer.id,
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
        "stop_reason": "tool_use" if answer.calls else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": used.input - used.cached,
            "cache_read_input_tokens": used.cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": used.output,
        },
    }


def anthropic_events(answer: Answer, asked: Json) -> Iterator[Json]:
    whole = anthropic_answer(answer, asked)
    begun = whole | {"content": [], "stop_reason": None}
    begun["usage"] = whole["usage"] | {"output_tokens": 1}
    yield {"type": "message_start", "message": begun}
    for index, block in enumerate(whole["content"]):
        empty, deltas = _block_deltas(block)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    used = {"output_tokens": answer.usage.output}
    yield {"type": "message_delta", "delta": ended, "usage": used}
    yield {"type": "message_stop"}


def _block_deltas(block: Json) -> tuple[Json, list[Json]]:
    if block["type"] == "tool_use":
        said = json.dumps(block["input"])
        parts = [{"type": "input_json_delta", "partial_json": part} for part in _pieces(said)]
        return block | {"input": {}}, parts
    if block["type"] == "thinking":
        return block | {"thinking": "", "signature": ""}, [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    return block | {"text": ""}, [
        {"type": "text_delta", "text": part} for part in _pieces(block["text"])
    ]


# Gemini's contents


GEMINI_SCHEMAS = ("parameters", "parametersJsonSchema", "parameters_json_schema")


def gemini_request(body: Json) -> Request:
    system = text_of(body.get("systemInstruction") or body.get("system_instruction"))
    messages = [Message("system", system)] if system else []
    for said in body["contents"]:
        parts = said["parts"]
        role = {"model": "assistant"}.get(said.get("role") or "user", "user")
        texts = "".join(part.get("text", "") for part in parts if not part.get("thought"))
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        messages += [
            Message("tool", json.dumps(reply["response"]), call_id=reply.get("id") or "")
            for part in parts
            if (reply := part.get("functionResponse"))
        ]
        if texts or calls:
            made = [Call(c.get("id") or "", c["name"], c.get("args") or {}) for c in calls]
            messages.append(Message(role, texts, made))
    tools = {
        tool["name"]: next((tool[name] for name in GEMINI_SCHEMAS if tool.get(name)), {})
        for group in body.get("tools") or ()
        for tool in group.get("functionDeclarations") or ()
    }
    return Request(messages, tools, "")


def gemini_answer(answer: Answer, asked: Json) -> Json:
    parts: list[Json] = [{"text": answer.thought, "thought": True}] if answer.thought else []
    parts += [
        {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}}
        for call in answer.calls
    ]
    parts += [{"text": answer.text}] if answer.text else []
    used = answer.usage
    counts = {
        "promptTokenCount": used.input,
        "candidatesTokenCount": used.output - used.reasoning,
        "totalTokenCount": used.input + used.output,
    }
    counts |= {"cachedContentTokenCount": used.cached} if used.cached else {}
    counts |= {"thoughtsTokenCount": used.reasoning} if used.reasoning else {}
    content = {"role": "model", "parts": parts}
    return {
        "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
        "usageMetadata": counts,
        "modelVersion": answer.model,
        "responseId": answer.id,
    }


def gemini_events(answer: Answer, asked: Json) -> Iterator[Json]:
    whole = gemini_answer(answer, asked)
    (candidate,) = whole["candidates"]
    parts = candidate["content"]["parts"]
    pieces = [
        part | {"text": text}
        for part in parts
        for text in (_pieces(part["text"]) if "text" in part else ("",))
    ]
    pieces = [part if part["text"] else {"functionCall": part["functionCall"]} for part in pieces]
    for number, part in enumerate(pieces, 1):
        event = {"content": {"role": "model", "parts": [part]}, "index": 0}
        is_last = number == len(pieces)
        yield whole | {"candidates": [event | ({"finishReason": "STOP"} if is_last else {})]}


# Bedrock's converse


def bedrock_request(body: Json) -> Request:
    messages = [Message("system", text_of(body["system"]))] if body.get("system") else []
    for said in body["messages"]:
        blocks = said["content"]
        calls = [
            Call(use["toolUseId"], use["name"], use["input"])
            for block in blocks
            if (use := block.get("toolUse"))
        ]
        messages += [
            Message("tool", text_of(reply["content"]), call_id=reply["toolUseId"])
            for block in blocks
            if (reply := block.get("toolResult"))
        ]
        texts = "".join(block.get("text", "") for block in blocks)
        if texts or calls:
            messages.append(Message(said["role"], texts, calls))
    offered = (body.get("toolConfig") or {}).get("tools") or ()
    tools = {tool["toolSpec"]["name"]: tool["toolSpec"]["inputSchema"]["json"] for tool in offered}
    return Request(messages, tools, "")


def bedrock_answer(answer: Answer, asked: Json) -> Json:
    content: list[Json] = []
    if answer.thought:
        said = {"text": answer.thought, "signature": "c2ln"}
        content.append({"reasoningContent": {"reasoningText": said}})
    content += [{"text": answer.text}] if answer.text else []
    content += [
        {"toolUse": {"toolUseId": call.id, "name": call.name, "input": call.arguments}}
        for call in answer.calls
    ]
    used = answer.usage
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": "tool_use" if answer.calls else "end_turn",
        "usage": {
            "inputTokens": used.input - used.cached,
            "outputTokens": used.output,
            "totalTokens": used.input + used.output,
            "cacheReadInputTokens": used.cached,
            "cacheWriteInputTokens": 0,
        },
        "metrics": {"latencyMs": 5},
    }
