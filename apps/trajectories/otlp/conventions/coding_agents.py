"""Coding agents that say in log events what they do: Claude Code and Codex.

`FORMS` is what each of their events says, as attributes of OpenTelemetry's conventions for
generative AI: what a span lacks is completed from them (`told`), and an event that belongs to no
span becomes one (`events`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from apps.trajectories.otlp.conventions.base import Attributes, Convention, Spoken, first
from apps.trajectories.otlp.spans import LogRecord
from apps.trajectories.values import label, number, text
from workers.lib.token_usage import Usage, parse

PROMPT, ANSWER, REQUEST, CALL, TOOL = "prompt", "answer", "request", "call", "tool"
REDACTED = "<REDACTED>"  # what stands for content that is not logged
NS_PER_MS = 1_000_000
OPERATIONS = {CALL: "chat", TOOL: "execute_tool"}
KINDS = {"interaction": "agent", "llm_request": "model", "tool": "tool"}  # Claude Code's spans
OUTPUT = "tool.output"  # the span event with a tool's result


class Agent(Struct, frozen=True):
    """An agent whose events have `prefix`. `talk`: the attribute that names what its events belong
    to. `has_spans`: its spans are steps; else they are its internal tracing.
    """

    name: str
    prefix: str
    talk: str
    has_spans: bool


CLAUDE = Agent("claude-code", "claude_code.", "prompt.id", has_spans=True)
CODEX = Agent("codex", "codex.", "conversation.id", has_spans=False)
AGENTS = (CLAUDE, CODEX)
PREFIXES = tuple(agent.prefix for agent in AGENTS)
INTERNAL = tuple(agent.name for agent in AGENTS if not agent.has_spans)
RUST = ("busy_ns", "target")  # of every span of Rust's `tracing`


class Form(Struct, frozen=True):
    """What an event says that has all the attributes that it `needs`: `says` is PROMPT or ANSWER
    (in the attribute `words`), REQUEST (a model is asked), CALL (a model answered or failed) or
    TOOL; `usage` and `fields` are by our names.
    """

    name: str
    says: str
    words: str = ""
    needs: tuple[str, ...] = ()
    usage: tuple[tuple[str, str], ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    error: str = ""


MODEL = (("gen_ai.request.model", "model"), ("gen_ai.response.id", "request_id"))
CLAUDE_USAGE = (
    ("input_tokens", "input_tokens"),
    ("output_tokens", "output_tokens"),
    ("cache_read_input_tokens", "cache_read_tokens"),
    ("cache_creation_input_tokens", "cache_creation_tokens"),
)
FORMS = (
    Form("claude_code.user_prompt", PROMPT, "prompt"),
    Form("claude_code.assistant_response", ANSWER, "response", fields=MODEL),
    Form(
        "claude_code.api_request",
        CALL,
        usage=CLAUDE_USAGE,
        fields=(
            *MODEL,
            ("gen_ai.response.model", "model"),
            ("gen_ai.usage.cost", "cost_usd"),
        ),
    ),
    Form("claude_code.api_error", CALL, fields=MODEL, error="error"),
    Form(
        "claude_code.tool_result",
        TOOL,
        fields=(
            ("gen_ai.tool.name", "tool_name"),
            ("gen_ai.tool.call.id", "tool_use_id"),
            ("gen_ai.tool.call.arguments", "tool_input"),
        ),
        error="error",
    ),
    Form("codex.user_prompt", PROMPT, "prompt"),
    Form("codex.api_request", CALL, needs=("error.message",), fields=MODEL, error="error.message"),
    Form("codex.api_request", REQUEST),
    Form(
        "codex.sse_event",
        CALL,
        needs=("input_token_count",),
        usage=(
            ("input_tokens", "input_token_count"),
            ("output_tokens", "output_token_count"),
            ("cached_tokens", "cached_token_count"),
            ("cache_write_tokens", "cache_write_token_count"),
            ("reasoning_tokens", "reasoning_token_count"),
        ),
        fields=(*MODEL, ("gen_ai.response.model", "model")),
    ),
    Form("codex.sse_event", CALL, needs=("error.message",), fields=MODEL, error="error.message"),
    Form(
        "codex.tool_result",
        TOOL,
        fields=(
            ("gen_ai.tool.name", "tool_name"),
            ("gen_ai.tool.call.id", "call_id"),
            ("gen_ai.tool.call.arguments", "arguments"),
            ("gen_ai.tool.call.result", "output"),
        ),
    ),
)
BY_NAME: dict[str, list[Form]] = {}
for _form in FORMS:
    BY_NAME.setdefault(_form.name, []).append(_form)


class Told(Struct):
    """What one event says; `attributes` are those of a span that would say the same."""

    says: str
    log: LogRecord
    words: str = ""
    error: str = ""
    attributes: Attributes = {}

    @property
    def started_ns(self) -> int:
        """An event is written at its end."""
        lasted = number(self.log.attributes.get("duration_ms")) or 0
        return max(self.log.time_ns - int(lasted * NS_PER_MS), 0)


def agent_of(log: LogRecord) -> Agent | None:
    name = name_of(log)
    return next((agent for agent in AGENTS if name.startswith(agent.prefix)), None)


def name_of(log: LogRecord) -> str:
    """Claude Code has the whole name in the body alone, Codex in an attribute alone."""
    names = (log.body, log.attributes.get("event.name"))
    return next((name for name in names if isinstance(name, str) and name.startswith(PREFIXES)), "")


def told_by(log: LogRecord) -> Told | None:
    said = log.attributes
    for form in BY_NAME.get(name_of(log), ()):
        if all(label(said.get(name)) for name in form.needs):
            return Told(form.says, log, _words(said.get(form.words)), *_read(form, said))
    return None


def _words(value: Any) -> str:
    return value if isinstance(value, str) and value != REDACTED else ""


def _read(form: Form, said: Attributes) -> tuple[str, Attributes]:
    """The error and the attributes."""
    found = {ours: said[theirs] for ours, theirs in form.fields if said.get(theirs) is not None}
    if form.says in OPERATIONS:
        found["gen_ai.operation.name"] = OPERATIONS[form.says]
    for name, value in _usage(form.usage, said).as_sent.items():
        found[f"gen_ai.usage.{name}"] = value
    has_failed = label(said.get("success")).lower() == "false" or said.get("success") is False
    error = text(said.get(form.error)) if form.error else ""
    if not error and has_failed:
        error = "failed"
    if error:
        found["error.type"] = label(said.get("error_type")) or "_OTHER"
    return error, found


def _usage(names: tuple[tuple[str, str], ...], said: Attributes) -> Usage:
    return parse({ours: said[theirs] for ours, theirs in names if said.get(theirs) is not None})


def is_internal(scope: str, names: Iterable[str]) -> bool:
    """Whether a span of this scope, with attributes of these names, is the internal tracing of an
    agent whose runs come from its events.
    """
    return scope.startswith(INTERNAL) and any(name in RUST for name in names)


def kind_of(span_type: Any) -> str:
    return KINDS.get(label(span_type), "")


def _rest(spoken: Spoken) -> None:
    attributes, reading = spoken.attributes, spoken.reading
    if reading.kind == "model":
        reading.usage = _usage(CLAUDE_USAGE, attributes)
    if reading.kind == "tool":
        said = next((event.attributes for event in spoken.span.events if event.name == OUTPUT), {})
        reading.tool_result = first(said, ("output", "content", "result"))


def _messages(spoken: Spoken) -> None:
    if spoken.reading.kind == "agent" and (words := _words(spoken.attributes.get("user_prompt"))):
        spoken.add_messages([{"role": "user", "content": words}], None)


CLAUDE_CODE = Convention(
    name=CLAUDE.name,
    namespaces=(),
    signs=("span.type",),
    fields={"tool_name": ("tool_name",), "tool_call_id": ("tool_use_id",)},
    rest=_rest,
    messages=_messages,
    plumbing=(
        *(theirs for _, theirs in CLAUDE_USAGE),
        "user_prompt",
        "model",
        "duration_ms",
        "success",
        "request_id",
        "error",
    ),
)
