# pip install "litellm<1.107" mcp opentelemetry-sdk opentelemetry-exporter-otlp-proto-http
# ruff: noqa: E402
"""LiteLLM with its own callback `otel`."""

import json
import os
import sys

import litellm

litellm.callbacks = ["otel"]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}

for city in sys.argv[1:]:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"What is the weather in {city}?"},
    ]
    for _ in range(3):
        answer = litellm.completion(
            "openai/gpt-5-mini",
            messages=messages,
            tools=[TOOL],
            api_base=os.environ["OPENAI_BASE_URL"],
            api_key="none",
            metadata={"session_id": f"session {city}"},
        )
        said = answer.choices[0].message
        messages.append(json.loads(said.model_dump_json(exclude_none=True)))
        if not said.tool_calls:
            break
        result = "no such city: Atlantis" if city == "Atlantis" else "7 °C and rain"
        messages.append({"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": result})

import time

from opentelemetry import trace

time.sleep(3)
getattr(trace.get_tracer_provider(), "force_flush", bool)()
