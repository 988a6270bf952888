"""What the programs share: telemetry, the tool, and the scenarios one after the other.

A program is called with the scenarios' names. INSTRUMENTS names what records it, separated by
commas: a class of an OpenTelemetry instrumentation (`module:Class`), a method of logfire
(`logfire:instrument_openai`), or a name for which the program itself has a branch.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from bench.sdk_scenarios import DESCRIPTION, SCENARIOS, SYSTEM, weather

URL = os.environ["PROVIDER_URL"]
MODE = os.environ.get("MODE", "")
INSTRUMENTS = os.environ.get("INSTRUMENTS", "").split(",")
MODEL = "gpt-5-mini"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Its name."}},
    "required": ["city"],
}
CHAT_TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": DESCRIPTION, "parameters": SCHEMA},
}
__all__ = ["DESCRIPTION", "SYSTEM", "get_weather", "play", "result_of", "trace_all", "weather"]


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Its name.
    """
    return weather(city)


def result_of(arguments: str | dict[str, str]) -> str:
    """What a loop without a framework tells the model, also of an error."""
    try:
        return weather(**(json.loads(arguments) if isinstance(arguments, str) else arguments))
    except ValueError as error:
        return f"Error: {error}"


def trace_all() -> Any:
    """Spans and log records to the provider, and the instrumentations."""
    if any(name.startswith("logfire") for name in INSTRUMENTS):
        return _logfire()
    if "langfuse" in INSTRUMENTS:
        return None
    from opentelemetry import trace
    from opentelemetry._logs import set_logger_provider
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    logs = LoggerProvider()
    logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    set_logger_provider(logs)
    for name in INSTRUMENTS:
        module, _, kind = name.partition(":")
        if kind:
            getattr(importlib.import_module(module), kind)().instrument(tracer_provider=provider)
    return provider


def _logfire() -> Any:
    import logfire

    logfire.configure(send_to_logfire=False, console=False)
    for name in INSTRUMENTS:
        getattr(logfire, name.partition(":")[2])()
    return None


def play(answer: Callable[[str, str], Any]) -> None:
    """Runs each scenario; what it is asked, and its name, are given to `answer`."""
    loop = asyncio.new_event_loop()  # one for all, since clients keep their connections
    asyncio.set_event_loop(loop)
    for name in sys.argv[1:]:
        urllib.request.urlopen(f"{URL}/scenario/{name}", b"").close()
        try:
            said = answer(SCENARIOS[name].question, name)
            if inspect.iscoroutine(said):
                said = loop.run_until_complete(said)
            print(f"{name}: {said}", flush=True)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:600]}", flush=True)
            if os.environ.get("TRACEBACKS"):
                import traceback

                traceback.print_exc()
        time.sleep(0.05)
    _flush()


def _flush() -> None:
    if "langfuse" in INSTRUMENTS:
        import langfuse

        langfuse.get_client().flush()
    from opentelemetry import _logs, trace

    for provider in (trace.get_tracer_provider(), _logs.get_logger_provider()):
        getattr(provider, "force_flush", bool)()
