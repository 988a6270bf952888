# pip install dspy "litellm<1.107" openinference-instrumentation-dspy
# openinference-instrumentation-litellm opentelemetry-sdk opentelemetry-exporter-otlp-proto-http
# ruff: noqa: E402
"""DSPy's ReAct by OpenInference."""

import os
import sys

from openinference.instrumentation import using_session
from openinference.instrumentation.dspy import DSPyInstrumentor
from openinference.instrumentation.litellm import LiteLLMInstrumentor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
DSPyInstrumentor().instrument(tracer_provider=provider)
LiteLLMInstrumentor().instrument(tracer_provider=provider)

import dspy

dspy.configure(
    lm=dspy.LM(
        "openai/gpt-5-mini",
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key="none",
        cache=False,
        temperature=1.0,
        max_tokens=16000,
    )
)


def get_weather(city: str) -> str:
    """The weather in a city."""
    if city == "Atlantis":
        raise ValueError("no such city: Atlantis")
    return "7 °C and rain"


for city in sys.argv[1:]:
    with using_session(f"session {city}"):
        dspy.ReAct("question -> answer", tools=[get_weather], max_iters=3)(
            question=f"What is the weather in {city}?"
        )
