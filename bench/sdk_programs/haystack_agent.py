# pip install haystack-ai openinference-instrumentation-haystack
# openinference-instrumentation-openai opentelemetry-sdk opentelemetry-exporter-otlp-proto-http
# ruff: noqa: E402
"""Haystack's Agent by OpenInference: its own spans, and those of the OpenAI SDK that it calls."""

import os
import sys

from openinference.instrumentation import using_session
from openinference.instrumentation.haystack import HaystackInstrumentor
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
HaystackInstrumentor().instrument(tracer_provider=provider)
OpenAIInstrumentor().instrument(tracer_provider=provider)

from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret


def get_weather(city: str) -> str:
    if city == "Atlantis":
        raise ValueError("no such city: Atlantis")
    return "7 °C and rain"


PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
for city in sys.argv[1:]:
    tool = Tool(
        name="get_weather",
        description="The weather in a city.",
        parameters=PARAMETERS,
        function=get_weather,
    )
    generator = OpenAIChatGenerator(
        model="gpt-5-mini",
        api_key=Secret.from_token("none"),
        api_base_url=os.environ["OPENAI_BASE_URL"],
    )
    agent = Agent(chat_generator=generator, tools=[tool], system_prompt="Be brief.")
    pipeline = Pipeline()
    pipeline.add_component("helpdesk", agent)
    with using_session(f"session {city}"):
        pipeline.run(
            {"helpdesk": {"messages": [ChatMessage.from_user(f"What is the weather in {city}?")]}}
        )
