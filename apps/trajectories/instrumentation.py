"""Which instrumentation recorded a run, and how its users turn on what it leaves out."""

from __future__ import annotations

import re
from typing import Any

# By the name of a scope or of a convention, the first that fits. Nothing is said of others.
CONTENT = (
    ("traceloop", "TRACELOOP_TRACE_CONTENT=true"),
    (
        "openinference",
        "unset OPENINFERENCE_HIDE_INPUTS, OPENINFERENCE_HIDE_OUTPUTS and their relatives",
    ),
    (
        "semantic[_.]kernel",
        "SEMANTICKERNEL_EXPERIMENTAL_GENAI_ENABLE_OTEL_DIAGNOSTICS_SENSITIVE=true",
    ),
    ("agent_framework", "ENABLE_SENSITIVE_DATA=true"),
    ("haystack", "HAYSTACK_CONTENT_TRACING_ENABLED=true"),
    ("pydantic-ai", "InstrumentationSettings(include_content=True)"),
    ("logfire", "instrument_…(include_content=True)"),
    (
        r"com\.anthropic\.claude",
        "OTEL_LOG_USER_PROMPTS=1 and OTEL_LOG_TOOL_DETAILS=1",
    ),
    (
        r"opentelemetry\.(?:util\.genai|instrumentation\.(?:\w+_v2|\w*genai|vertexai)\b)",
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true",
    ),
    (r"opentelemetry\.instrumentation\.", "TRACELOOP_TRACE_CONTENT=true"),
)
TOOLS = (("strands", "OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_tool_definitions"),)


def scope_of(metadata: dict[str, Any]) -> str:
    """The instrumentation's name and version; "" for a run that did not come over OTLP."""
    scopes = metadata.get("scope")
    named = scopes[0] if isinstance(scopes, list) and scopes else ""
    return named if isinstance(named, str) else ""


def content_hint(metadata: dict[str, Any]) -> str:
    """How to have messages recorded; "" where it is not known."""
    return _fitting(CONTENT, metadata)


def tools_hint(metadata: dict[str, Any]) -> str:
    """How to have definitions of tools recorded; "" where it is not known."""
    return _fitting(TOOLS, metadata)


def _fitting(hints: tuple[tuple[str, str], ...], metadata: dict[str, Any]) -> str:
    scopes = metadata.get("scope")
    names = [metadata.get("format"), *(scopes if isinstance(scopes, list) else ())]
    said = " ".join(name for name in names if isinstance(name, str)).lower()
    return next((hint for pattern, hint in hints if re.search(pattern, said)), "")
