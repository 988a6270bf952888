# pip install semantic-kernel opentelemetry-sdk opentelemetry-exporter-otlp-proto-http
# ruff: noqa: E402
"""Semantic Kernel's own telemetry; its content needs
SEMANTICKERNEL_EXPERIMENTAL_GENAI_ENABLE_OTEL_DIAGNOSTICS_SENSITIVE=true.
"""

import asyncio
import os
import sys

os.environ.setdefault("SEMANTICKERNEL_EXPERIMENTAL_GENAI_ENABLE_OTEL_DIAGNOSTICS_SENSITIVE", "true")

import logging

from openai import AsyncOpenAI
from opentelemetry._logs import set_logger_provider
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import set_tracer_provider

provider, logs = TracerProvider(), LoggerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
set_tracer_provider(provider)
set_logger_provider(logs)
handler = LoggingHandler(logger_provider=logs)
handler.addFilter(logging.Filter("semantic_kernel"))
logging.getLogger().addHandler(handler)
logging.getLogger().setLevel(logging.INFO)

from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function


class Weather:
    @kernel_function(name="get_weather", description="The weather in a city.")
    def get_weather(self, city: str) -> str:
        if city == "Atlantis":
            raise ValueError("no such city: Atlantis")
        return "7 °C and rain"


async def main() -> None:
    for city in sys.argv[1:]:
        client = AsyncOpenAI(api_key="none", base_url=os.environ["OPENAI_BASE_URL"])
        agent = ChatCompletionAgent(
            service=OpenAIChatCompletion(ai_model_id="gpt-5-mini", async_client=client),
            name="helpdesk",
            instructions="Be brief.",
            plugins=[Weather()],
        )
        await agent.get_response(messages=f"What is the weather in {city}?")


asyncio.run(main())
logs.force_flush()
