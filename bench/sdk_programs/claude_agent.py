# pip install claude-agent-sdk openinference-instrumentation-claude-agent-sdk opentelemetry-sdk
# opentelemetry-exporter-otlp-proto-http ruff: noqa: E402
"""Claude Agent SDK by OpenInference."""

import asyncio
import os
import sys

from openinference.instrumentation.claude_agent_sdk import ClaudeAgentSDKInstrumentor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
ClaudeAgentSDKInstrumentor().instrument(tracer_provider=provider)

import claude_agent_sdk as sdk  # noqa: E402


@sdk.tool("get_weather", "The weather in a city.", {"city": str})
async def get_weather(given: dict) -> dict:
    if given["city"] == "Atlantis":
        raise ValueError("no such city: Atlantis")
    return {"content": [{"type": "text", "text": "7 °C and rain"}]}


async def main() -> None:
    server = sdk.create_sdk_mcp_server("weather", tools=[get_weather])
    environment = {
        "ANTHROPIC_BASE_URL": os.environ["OPENAI_BASE_URL"].removesuffix("/v1"),
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
    }
    for city in sys.argv[1:]:
        options = sdk.ClaudeAgentOptions(
            system_prompt="Be brief.",
            mcp_servers={"weather": server},
            env=environment,
            tools=[],
            allowed_tools=["mcp__weather__get_weather"],
            max_turns=4,
            model="claude-sonnet-4-5",
        )
        async with sdk.ClaudeSDKClient(options) as client:
            await client.query(f"What is the weather in {city}?")
            async for _ in client.receive_response():
                pass


asyncio.run(main())
provider.force_flush()
