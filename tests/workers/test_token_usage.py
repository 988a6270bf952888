"""The usage objects of providers, gateways and SDKs: what went in and came out, whatever is counted
inside of what.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from workers.lib.token_usage import COLUMNS, counting, parse

CACHE_READ, CACHE_WRITE, REASONING = COLUMNS
BOTH = {CACHE_READ: 900, CACHE_WRITE: 70}
USAGES: dict[str, tuple[dict[str, Any], tuple[int, int], dict[str, int]]] = {
    "OpenAI chat": (
        {
            "prompt_tokens": 1000,
            "completion_tokens": 60,
            "total_tokens": 1060,
            "prompt_tokens_details": {"cached_tokens": 900},
            "completion_tokens_details": {"reasoning_tokens": 40},
        },
        (1000, 60),
        {CACHE_READ: 900, REASONING: 40},
    ),
    "OpenAI Responses": (
        {
            "input_tokens": 1000,
            "output_tokens": 60,
            "total_tokens": 1060,
            "input_tokens_details": {"cached_tokens": 900},
            "output_tokens_details": {"reasoning_tokens": 40},
        },
        (1000, 60),
        {CACHE_READ: 900, REASONING: 40},
    ),
    "Anthropic": (
        {
            "input_tokens": 3000,
            "cache_read_input_tokens": 900,
            "cache_creation_input_tokens": 70,
            "output_tokens": 60,
            "cache_creation": {"ephemeral_5m_input_tokens": 70, "ephemeral_1h_input_tokens": 0},
            "server_tool_use": {"web_search_requests": 1},
            "service_tier": "standard",
        },
        (3970, 60),
        BOTH,
    ),
    "Anthropic, with a compaction that its counts leave out": (
        {
            "input_tokens": 100,
            "output_tokens": 10,
            "iterations": [
                {"type": "compaction", "input_tokens": 900, "output_tokens": 50},
                {"type": "message", "input_tokens": 100, "output_tokens": 10},
            ],
        },
        (1000, 60),
        {},
    ),
    "Anthropic, one request that its counts hold": (
        {
            "input_tokens": 30,
            "cache_read_input_tokens": 900,
            "cache_creation_input_tokens": 70,
            "output_tokens": 60,
            "iterations": [
                {
                    "type": "message",
                    "input_tokens": 30,
                    "cache_read_input_tokens": 900,
                    "cache_creation_input_tokens": 70,
                    "output_tokens": 60,
                }
            ],
        },
        (1000, 60),
        BOTH,
    ),
    "Anthropic's names from a gateway that counts all": (
        {
            "input_tokens": 3970,
            "cache_read_input_tokens": 900,
            "cache_creation_input_tokens": 70,
            "output_tokens": 60,
            "total_tokens": 4030,
        },
        (3970, 60),
        BOTH,
    ),
    "LiteLLM": (
        {
            "prompt_tokens": 1000,
            "completion_tokens": 60,
            "cache_read_input_tokens": 900,
            "cache_creation_input_tokens": 70,
            "prompt_tokens_details": {"cached_tokens": 900},
        },
        (1000, 60),
        BOTH,
    ),
    "Bedrock": (
        {
            "inputTokens": 30,
            "outputTokens": 60,
            "totalTokens": 1060,
            "cacheReadInputTokens": 900,
            "cacheWriteInputTokens": 70,
        },
        (1000, 60),
        BOTH,
    ),
    "Gemini": (
        {
            "promptTokenCount": 1000,
            "cachedContentTokenCount": 900,
            "candidatesTokenCount": 20,
            "thoughtsTokenCount": 40,
            "totalTokenCount": 1060,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 1000}],
        },
        (1000, 60),
        {CACHE_READ: 900, REASONING: 40},
    ),
    "Gemini with tools": (
        {
            "prompt_token_count": 990,
            "tool_use_prompt_token_count": 10,
            "candidates_token_count": 60,
            "total_token_count": 1060,
        },
        (1000, 60),
        {},
    ),
    "DeepSeek": (
        {
            "prompt_tokens": 1000,
            "completion_tokens": 60,
            "prompt_cache_hit_tokens": 900,
            "prompt_cache_miss_tokens": 100,
        },
        (1000, 60),
        {CACHE_READ: 900},
    ),
    "Groq": (
        {"queue_time": 0.1, "prompt_tokens": 1000, "prompt_time": 0.2, "completion_tokens": 60},
        (1000, 60),
        {},
    ),
    "Mistral": (
        {"prompt_tokens": 1000.0, "completion_tokens": 60.0, "prompt_audio_seconds": None},
        (1000, 60),
        {},
    ),
    "xAI, which leaves reasoning out": (
        {
            "prompt_tokens": 1000,
            "completion_tokens": 20,
            "total_tokens": 1060,
            "completion_tokens_details": {"reasoning_tokens": 40},
        },
        (1000, 60),
        {REASONING: 40},
    ),
    "Cohere": (
        {
            "billed_units": {"input_tokens": 5, "output_tokens": 60},
            "tokens": {"input_tokens": 1000, "output_tokens": 60},
        },
        (1000, 60),
        {},
    ),
    "Ollama": ({"prompt_eval_count": 1000, "eval_count": 60, "eval_duration": 7}, (1000, 60), {}),
    "LangChain": (
        {
            "input_tokens": 1000,
            "output_tokens": 60,
            "input_token_details": {"cache_read": 900, "cache_creation": 70},
        },
        (1000, 60),
        BOTH,
    ),
    "AI SDK 5": (
        {
            "inputTokens": 1000,
            "outputTokens": 60,
            "totalTokens": 1060,
            "cachedInputTokens": 900,
            "reasoningTokens": 40,
        },
        (1000, 60),
        {CACHE_READ: 900, REASONING: 40},
    ),
    "AI SDK 6": (
        {
            "inputTokens": {"total": 1000, "noCache": 100, "cacheRead": 900},
            "outputTokens": {"total": 60, "reasoning": 40},
        },
        (1000, 60),
        {CACHE_READ: 900, REASONING: 40},
    ),
    "Langfuse's buckets": (
        {
            "input": 30,
            "input_cached_tokens": 900,
            "input_cache_creation": 70,
            "output": 20,
            "output_reasoning_tokens": 40,
        },
        (1000, 60),
        BOTH | {REASONING: 40},
    ),
    "Langfuse, whole counts": (
        {
            "input": 1000,
            "input_cached_tokens": 900,
            "output": 60,
            "total": 1060,
            "unit": "TOKENS",
            "inputCost": 3,
        },
        (1000, 60),
        {CACHE_READ: 900},
    ),
    "counts as text": ({"prompt_tokens": "1,000", "completion_tokens": "60"}, (1000, 60), {}),
    "LangChain.js": (
        {"llmOutput": {"tokenUsage": {"promptTokens": 1000, "completionTokens": 60}}},
        (1000, 60),
        {},
    ),
    "a response with its headers": (
        {"response_metadata": {"model": "m", "usage": {"inputTokens": 1000, "outputTokens": 60}}},
        (1000, 60),
        {},
    ),
    "llama.cpp": (
        {"timings": {"prompt_n": 1000, "prompt_ms": 5.0, "predicted_n": 60, "predicted_ms": 9.1}},
        (1000, 60),
        {},
    ),
    "llama.cpp, its own endpoint": (
        {"tokens_evaluated": 1000, "tokens_predicted": 60, "tokens_cached": 0},
        (1000, 60),
        {},
    ),
    "TGI": (
        {"details": {"generated_tokens": 60, "prefill": [{"id": 1}] * 1000, "tokens": []}},
        (1000, 60),
        {},
    ),
    "vLLM": ({"num_prompt_tokens": 1000, "num_generation_tokens": 60}, (1000, 60), {}),
    "OpenTelemetry's names": (
        {"gen_ai.usage.input_tokens": 1000, "gen_ai.usage.output_tokens": 60},
        (1000, 60),
        {},
    ),
    "limits and speeds beside it": (
        {
            "max_tokens": 8,
            "max_completion_tokens": 9,
            "prompt_per_second": 7.0,
            "prompt_tokens": 1000,
            "completion_tokens": 60,
        },
        (1000, 60),
        {},
    ),
}


@pytest.mark.parametrize(("usage", "counts", "details"), USAGES.values(), ids=USAGES)
def test_the_whole_input_and_output_are_counted(
    usage: dict, counts: tuple[int, int], details: dict
) -> None:
    found = parse(usage)
    assert (found.input_tokens, found.output_tokens) == counts
    assert {name: n for name in COLUMNS if (n := getattr(found, name))} == details


@pytest.mark.parametrize("usage", [usage for usage, _, _ in USAGES.values()], ids=USAGES)
def test_the_members_that_count_say_what_all_do(usage: dict[str, Any]) -> None:
    step = {"span_id": "ab12", "kind": "model", "duration_ms": 12.5, "cost_basis": "sent"}
    whole, alone = parse(step | usage), parse(counting(step | usage))
    assert structs.replace(whole, unread={}) == structs.replace(alone, unread={})
    assert counting(step) == {}


def test_a_convention_that_includes_the_cache_is_believed_unless_the_part_is_larger() -> None:
    usage = {"input_tokens": 3000, "cache_read_input_tokens": 900, "output_tokens": 60}
    assert parse(usage, includes_cache=True).input_tokens == 3000
    assert parse(usage | {"input_tokens": 5}, includes_cache=True).input_tokens == 905


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"cost": 0.0012, "cost_details": {"upstream_inference_cost": 1}}, 0.0012),
        ({"cost": {"input_tokens_cost": 0.1, "total_cost": 0.3}}, 0.3),
        ({"total_cost": "0.5"}, 0.5),
        ({"cost": -1}, None),
        ({"cost": float("inf")}, None),
    ],
)
def test_a_cost_is_read(usage: dict, cost: float | None) -> None:
    assert parse(usage).cost_usd == cost


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [],
        "",
        {},
        {"a": 1},
        {"input_tokens": -1},
        {"input_tokens": True},
        {"input": "x"},
        {"max_tokens": 5},
        {"prompt_per_second": 5.5},
        {"prompt_time": 1, "completion_time": 2},
    ],
)
def test_what_is_not_known_is_none(usage: Any) -> None:
    assert parse(usage).counts == {}
