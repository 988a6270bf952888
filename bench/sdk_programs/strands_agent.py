# pip install strands-agents[openai,otel]>=1.60
"""AWS Strands, whose own telemetry needs no instrumentation."""

import os
import sys

os.environ.setdefault("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_tool_definitions")

from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.telemetry import StrandsTelemetry

StrandsTelemetry().setup_otlp_exporter()


@tool
def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Its name
    """
    if city == "Atlantis":
        raise ValueError("no such city: Atlantis")
    return "7 °C and rain"


for city in sys.argv[1:]:
    model = OpenAIModel(
        client_args={"api_key": "none", "base_url": os.environ["OPENAI_BASE_URL"]},
        model_id="gpt-5-mini",
    )
    agent = Agent(
        model,
        name="helpdesk",
        system_prompt="Be brief.",
        tools=[get_weather],
        callback_handler=None,
        trace_attributes={"session.id": f"session {city}"},
    )
    agent(f"What is the weather in {city}?")
