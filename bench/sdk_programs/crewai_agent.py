# pip install crewai "litellm<1.107" openinference-instrumentation-crewai
# openinference-instrumentation-litellm openinference-instrumentation-openai opentelemetry-sdk
# opentelemetry-exporter-otlp-proto-http ruff: noqa: E402
"""CrewAI by OpenInference."""

import os
import sys

os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")

from openinference.instrumentation import using_session
from openinference.instrumentation.crewai import CrewAIInstrumentor
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
CrewAIInstrumentor().instrument(tracer_provider=provider)
OpenAIInstrumentor().instrument(tracer_provider=provider)

from crewai import LLM, Agent, Crew, Task  # noqa: E402
from crewai.tools import tool  # noqa: E402


@tool("get_weather")
def get_weather(city: str) -> str:
    """The weather in a city."""
    if city == "Atlantis":
        raise ValueError("no such city: Atlantis")
    return "7 °C and rain"


for city in sys.argv[1:]:
    llm = LLM(model="openai/gpt-5-mini", base_url=os.environ["OPENAI_BASE_URL"], api_key="none")
    agent = Agent(
        role="helpdesk", goal="Answer.", backstory="Be brief.", tools=[get_weather], llm=llm
    )
    task = Task(
        description=f"What is the weather in {city}?", expected_output="A sentence.", agent=agent
    )
    with using_session(f"session {city}"):
        Crew(agents=[agent], tasks=[task]).kickoff()
provider.force_flush()
