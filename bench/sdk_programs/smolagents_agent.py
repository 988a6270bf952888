# pip install smolagents[openai] openinference-instrumentation-smolagents opentelemetry-sdk
# opentelemetry-exporter-otlp-proto-http ruff: noqa: E402
"""smolagents' ToolCallingAgent by OpenInference."""

import os
import sys

from openinference.instrumentation import using_session
from openinference.instrumentation.smolagents import SmolagentsInstrumentor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
SmolagentsInstrumentor().instrument(tracer_provider=provider)

from smolagents import OpenAIModel, ToolCallingAgent, tool  # noqa: E402


@tool
def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Its name
    """
    if city == "Atlantis":
        raise ValueError("no such city: Atlantis")
    return "7 °C and rain"


model = OpenAIModel("gpt-5-mini", api_base=os.environ["OPENAI_BASE_URL"], api_key="none")
for city in sys.argv[1:]:
    agent = ToolCallingAgent(
        [get_weather], model, name="helpdesk", description="Answers.", max_steps=4
    )
    with using_session(f"session {city}"):
        agent.run(f"What is the weather in {city}?")
