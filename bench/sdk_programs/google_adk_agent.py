# pip install google-adk>=2.10 "litellm<1.107" mcp>=2 opentelemetry-sdk
# opentelemetry-exporter-otlp-proto-http ruff: noqa: E402
"""Google's ADK with its own telemetry."""

import asyncio
import os
import sys

os.environ.setdefault("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental")
os.environ.setdefault("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import set_tracer_provider

set_tracer_provider(provider := TracerProvider())
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))

from google.adk.agents import Agent  # noqa: E402
from google.adk.models.lite_llm import LiteLlm  # noqa: E402
from google.adk.runners import InMemoryRunner  # noqa: E402
from google.genai import types  # noqa: E402


def get_weather(city: str) -> str:
    """The weather in a city."""
    if city == "Atlantis":
        raise ValueError("no such city: Atlantis")
    return "7 °C and rain"


async def main() -> None:
    model = LiteLlm("openai/gpt-5-mini", api_base=os.environ["OPENAI_BASE_URL"], api_key="none")
    runner = InMemoryRunner(
        Agent(name="helpdesk", model=model, instruction="Be brief.", tools=[get_weather]),
        app_name="helpdesk",
    )
    for city in sys.argv[1:]:
        session = await runner.session_service.create_session(
            app_name="helpdesk", user_id="u", session_id=f"session {city}"
        )
        asked = types.Content(
            role="user", parts=[types.Part(text=f"What is the weather in {city}?")]
        )
        try:
            async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=asked):
                pass
        except ValueError:
            pass


asyncio.run(main())
