"""Messages of other dialects than OpenAI chat, as REST and imports convert them."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from apps.trajectories.importers import read
from apps.trajectories.schema import parse_row

ASKED = {"role": "user", "content": "Wo ist Paket 9?"}
CALL = {"type": "function", "function": {"name": "locate", "arguments": {"id": 9}}, "id": "u1"}
REPLY = {"role": "tool", "content": "Bremen", "tool_call_id": "u1"}
SAID = {"role": "assistant", "content": "In Bremen."}
CALLED = {"role": "assistant", "content": "Moment.", "tool_calls": [CALL]}

ANTHROPIC = [
    ASKED,
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Moment."},
            {"type": "tool_use", "id": "u1", "name": "locate", "input": {"id": 9}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "u1",
                "content": [{"type": "text", "text": "Bremen"}],
            }
        ],
    },
    {"role": "assistant", "content": [{"type": "text", "text": "In Bremen."}]},
]
GEMINI = [
    {"role": "user", "parts": [{"text": "Wo ist Paket 9?"}]},
    {
        "role": "model",
        "parts": [
            {"text": "Moment."},
            {"functionCall": {"id": "u1", "name": "locate", "args": {"id": 9}}},
        ],
    },
    {
        "role": "user",
        "parts": [{"functionResponse": {"id": "u1", "name": "locate", "response": "Bremen"}}],
    },
    {"role": "model", "parts": [{"text": "In Bremen."}]},
]
VERCEL = [
    {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Wo ist Paket 9?"}]},
    {
        "id": "m2",
        "role": "assistant",
        "parts": [
            {"type": "step-start"},
            {"type": "text", "text": "Moment.", "state": "done"},
            {
                "type": "tool-locate",
                "toolCallId": "u1",
                "state": "output-available",
                "input": {"id": 9},
                "output": "Bremen",
            },
            {"type": "step-start"},
            {"type": "text", "text": "In Bremen."},
        ],
    },
]
SHAREGPT = [{"from": "human", "value": "Wo ist Paket 9?"}, {"from": "gpt", "value": "In Bremen."}]
DIALECTS: dict[str, tuple[list[dict], list[dict]]] = {
    "anthropic": (ANTHROPIC, [ASKED, CALLED, REPLY, SAID]),
    "gemini": (GEMINI, [ASKED, CALLED, REPLY | {"name": "locate"}, SAID]),
    "vercel": (VERCEL, [ASKED, CALLED, REPLY | {"name": "locate"}, SAID]),
    "sharegpt": (SHAREGPT, [ASKED, SAID]),
}


def said(messages: list[dict]) -> list[dict]:
    return [
        message
        | {
            "content": "".join(part["text"] for part in message["content"])
            if isinstance(message["content"], list)
            else message["content"]
        }
        for message in messages
    ]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_row_stores_chat_messages_whatever_the_dialect(dialect: str) -> None:
    sent, expected = DIALECTS[dialect]
    parsed = parse_row({"id": "r", "messages": sent})
    assert said(parsed.value["messages"]) == expected
    assert not parsed.warnings


def test_messages_of_openai_stay_as_they_were_sent() -> None:
    sent = [ASKED, {"role": "assistant", "content": [{"type": "text", "text": "x", "extra": 1}]}]
    assert parse_row({"id": "r", "messages": sent}).value["messages"] == sent


def test_a_failed_result_of_anthropic_stays_a_failure() -> None:
    block = {"type": "tool_result", "tool_use_id": "u1", "is_error": True, "content": "no"}
    sent = [*ANTHROPIC[:2], {"role": "user", "content": [block]}]
    assert parse_row({"id": "r", "messages": sent}).value["messages"][2]["is_error"] is True


@pytest.mark.parametrize(
    "beside",
    [
        {"system": [{"type": "text", "text": "Kurz.", "cache_control": {}}], "messages": ANTHROPIC},
        {"system": "Kurz.", "messages": ANTHROPIC},
        {"systemInstruction": {"parts": [{"text": "Kurz."}]}, "contents": GEMINI},
    ],
)
def test_a_file_of_requests_keeps_the_system_prompt_and_tools(beside: dict[str, Any]) -> None:
    tool = {"name": "locate", "parameters": {"type": "object"}}
    tools = [{"functionDeclarations": [tool]}] if "contents" in beside else [tool]
    reading = read(io.BytesIO(json.dumps(beside | {"tools": tools}).encode()), "a.jsonl")
    [(_, row)] = reading.rows
    parsed = parse_row(row)
    assert reading.format == "chat"
    assert parsed.value["messages"][0] == {"role": "system", "content": "Kurz."}
    assert [tool["function"]["name"] for tool in parsed.value["tools"]] == ["locate"]
    assert not parsed.metadata
