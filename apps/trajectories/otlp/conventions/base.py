"""What an adapter fills, and how: the `Reading` of one span, and a table of attribute names for
each of its fields.

An adapter is a `Convention`. Those that a span speaks read it in a fixed order, the more exact
first; each fills only what is still empty. Messages win over raw input and output values, whichever
convention they come from.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from msgspec import Struct, field

from apps.trajectories.dialects import Lost, Message, messages_of, one_turn
from apps.trajectories.interruptions import interruption
from apps.trajectories.otlp.spans import LogRecord, Span
from apps.trajectories.values import label, nest, number, structured, text
from workers.lib.token_usage import Usage

Attributes = dict[str, Any]
NO_USAGE = Usage()
Fields = dict[str, tuple[str, ...]]

USAGE = (
    "model",
    "request_model",
    "response_id",
    "previous_id",
    "provider",
    "service_tier",
    "cost_usd",
)
TOOL = ("tool_name", "tool_call_id", "tool_arguments", "tool_result")
NUMBERS = ("cost_usd",)
RAW = ("tool_arguments", "tool_result", "tags")
MANY_PLANS, USUAL_NAMES = 1_000, 64  # attributes of one span, whose names are remembered together


class Problem(Struct):
    """An error that a span ended with. `text` is one short line, `said` is it without the error's
    type; `interruption` says what it was if it was no error.
    """

    text: str
    said: str = ""
    type: str = ""
    stacktrace: str = ""
    interruption: str = ""


class Reading(Struct):
    """What a span says. `format` names the convention; `complete` that `input` is the run's whole
    history.

    `raw_input`, `raw_output`: read from raw values that hold no messages as such; an exact form
    elsewhere wins.
    """

    kind: str
    format: str = ""
    input: list[Message] = field(default_factory=list)
    output: list[Message] = field(default_factory=list)
    complete: bool = False
    raw_input: bool = False
    raw_output: bool = False
    is_cut: bool = False  # JSON of its attributes breaks off: messages are missing
    tools: list[Any] = field(default_factory=list)
    model: str = ""
    request_model: str = ""
    response_id: str = ""
    previous_id: str = ""  # the response that the call goes on with, whose history the server keeps
    answer_id: str = ""  # the answer's, where the raw response has another one than `response_id`
    server_conversation: str = ""  # whose history the server keeps
    provider: str = ""
    service_tier: str = ""
    cost_usd: float | None = None
    usage: Usage = NO_USAGE
    error: Problem | None = None
    conversation_id: str = ""
    session_id: str = ""
    user_id: str = ""
    agent_name: str = ""
    agent_version: str = ""
    workload: str = ""
    tags: Any = None
    tool_name: str = ""
    tool_call_id: str = ""
    tool_arguments: Any = None
    tool_result: Any = None
    eval_run: str = ""
    eval_task: str = ""
    eval_sample: str = ""
    evaluations: list[dict] = field(default_factory=list)
    in_graph: bool = False  # a step of a LangGraph
    is_compacted: bool = False  # its request sums up what was said before
    is_fetched: bool = False  # an answer that was asked for before, in a call of its own
    doubts_cost: bool = False  # a cost of 0 was sent for tokens that have a price
    is_open: bool = False  # no convention says what kind of span it is
    shape: tuple[str, ...] = ()  # the attributes that were read by their shape
    is_unread: bool = False  # objects among its messages say in no known way who speaks
    unread: tuple[str, ...] = ()  # the attributes that hold these

    @property
    def has_messages(self) -> bool:
        return self.kind in ("model", "agent")

    @property
    def has_answered(self) -> bool:
        """Whether a tool came to its end: one that paused or was cancelled has not answered its
        call.
        """
        return self.tool_result is not None or self.error is None or not self.error.interruption


class Spoken(Struct):
    """A span while it is read. `seen` holds the messages that were read before, by their JSON:
    histories repeat.
    """

    span: Span
    logs: list[LogRecord]
    reading: Reading
    seen: dict[bytes, list[Message]]
    details: list[Attributes] = field(default_factory=list)  # that events say as attributes do

    @property
    def attributes(self) -> Attributes:
        return self.span.attributes

    def messages(self, value: Any, role: str) -> list[Message]:
        lost = Lost()
        messages = one_turn(messages_of(value, role, self.seen, lost))
        self.reading.is_cut = self.reading.is_cut or lost.is_cut
        if lost.is_unread:
            names = (name for name, known in self.attributes.items() if known is value)
            self.reading.unread = (*self.reading.unread, *names)
            self.reading.is_unread = True
        return messages

    def add_messages(self, given: Any, answer: Any) -> None:
        """Takes input and output, in any shape, where none has been found yet."""
        reading = self.reading
        reading.input = reading.input or self.messages(given, "user")
        reading.output = reading.output or self.messages(answer, "assistant")


def first_choice(spoken: Spoken, answers: Any) -> Any:
    """The first of several alternative answers of a model call; else all messages, which are parts
    of one turn.
    """
    answers = structured(answers)
    if spoken.reading.kind != "model" or not isinstance(answers, list) or len(answers) < 2:
        return answers
    return answers[:1] if _has_choices(spoken.attributes) else answers


def _has_choices(attributes: Attributes) -> bool:
    """Whether the request asked for several answers, or the raw response holds several."""
    parameters = structured(first(attributes, PARAMETERS))
    asked = [attributes.get("gen_ai.request.choice.count")]
    asked += [parameters.get(name) for name in CHOICES] if isinstance(parameters, dict) else []
    if any((number(count) or 0) > 1 for count in asked):
        return True
    response = structured(attributes.get("output.value"))
    listed = (
        response.get("choices") or response.get("candidates") or response.get("generations")
        if isinstance(response, dict)
        else None
    )
    while isinstance(listed, list) and len(listed) == 1 and isinstance(listed[0], list):
        listed = listed[0]
    return isinstance(listed, list) and len(listed) > 1


def _nothing(spoken: Spoken) -> None:
    pass


def kind_in(kinds: dict[str, str]) -> Callable[[Any], str]:
    """A reader of attributes that name a kind, in capitals or not."""
    return lambda kind: kinds.get(kind.upper(), "other") if isinstance(kind, str) else ""


def flattened(given: str, answer: str, tools: str) -> Callable[[Spoken], None]:
    """A reader of messages and tools that have an attribute for each field, such as
    `{given}0.role`.
    """

    def read(spoken: Spoken) -> None:
        attributes, reading = spoken.attributes, spoken.reading
        answers = [] if reading.output else nest(attributes, answer)
        answers = first_choice(spoken, answers)
        spoken.add_messages(() if reading.input else nest(attributes, given), answers)
        if found := nest(attributes, tools):
            reading.tools = [*reading.tools, found]

    return read


class Convention(Struct, frozen=True, eq=False):
    """One adapter.

    namespaces: the first parts of the names of its attributes; a span that has one speaks it signs:
    whole names that say the same fields:     for each field of Reading the attributes that fill it,
    best first rest:       reads what a table cannot say, apart from messages messages:   reads
    input, output and tool definitions of model calls and agents given, answer: attributes with raw
    input and output values; those of model calls, agents and tools plumbing, prefixes: further
    attributes that are taken up, by name and by beginning
    """

    name: str
    namespaces: tuple[str, ...]
    fields: Fields
    signs: tuple[str, ...] = ()
    rest: Callable[[Spoken], None] = _nothing
    messages: Callable[[Spoken], None] = _nothing
    given: tuple[str, ...] = ()
    answer: tuple[str, ...] = ()
    plumbing: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    @property
    def known(self) -> frozenset[str]:
        return frozenset(
            (
                *(name for names in self.fields.values() for name in names),
                *self.signs,
                *self.plumbing,
            )
        )

    def fill(self, reading: Reading, attributes: Attributes) -> None:
        """Sets the reading's empty fields that belong to its kind."""
        keys = tuple(attributes)
        plan = _plan if len(keys) <= USUAL_NAMES else _plan.__wrapped__
        for name, names, convert in plan(self, reading.kind, keys):
            found = first(attributes, names)
            if found is not None and getattr(reading, name) in (None, ""):
                setattr(reading, name, convert(found) if convert else found)


@lru_cache(MANY_PLANS)
def _plan(
    convention: Convention, kind: str, keys: tuple[str, ...]
) -> list[tuple[str, tuple[str, ...], Callable[[Any], Any] | None]]:
    """The fields that a span of a kind has, with those of its attributes that fill them and what
    makes values of these.
    """
    left_out = (() if kind == "tool" else TOOL) + (() if kind in ("model", "agent") else USAGE)
    converts = dict.fromkeys(NUMBERS, number) | dict.fromkeys(RAW)
    return [
        (name, known, converts.get(name, label))
        for name, names in convention.fields.items()
        if name not in left_out and (known := tuple(key for key in names if key in keys))
    ]


def first(attributes: Attributes, names: tuple[str, ...]) -> Any:
    """The first of the named attributes that says something."""
    for name in names:
        found = attributes.get(name)
        if found is not None and found != "":
            return found
    return None


PARAMETERS = (
    "llm.invocation_parameters",
    "gen_ai.request.model_parameters",
    "langfuse.observation.model.parameters",
)
CHOICES = ("n", "candidate_count", "candidateCount", "num_generations")
UNIQUE = 8  # characters of a call's id that is not taken for a mere number, as some servers give
MAX_LINE = 300  # of an error
SAY_NOTHING = ("Error", "Exception")  # types of which all errors are
SANITIZED = "sanitize_inputs_outputs"  # which smolagents adds


def called_with(value: Any) -> Any:
    """What a function was called with, where a decorator recorded `{args, kwargs}` (Langfuse,
    traceloop, smolagents).
    """
    found = structured(value)
    if isinstance(found, dict) and found.keys() == {"args"} and isinstance(found["args"], list):
        given = found["args"]
        return given[0] if len(given) == 1 and isinstance(structured(given[0]), dict) else value
    if not isinstance(found, dict) or found.keys() - {SANITIZED} != {"args", "kwargs"}:
        return value
    if not found["args"]:
        return found["kwargs"]
    alone = isinstance(found["args"], list) and len(found["args"]) == 1 and not found["kwargs"]
    return found["args"][0] if alone else value


def problem_of(span: Span, said: str = "") -> Problem:
    """The error of a span that failed: of its last exception, else of its status, else of what
    `said` contains.
    """
    kind = label(span.attributes.get("error.type"))
    thrown = next(
        (event.attributes for event in reversed(span.events) if event.name == "exception"), {}
    )
    said = text(thrown.get("exception.message")) or span.status_message or said
    name = label(thrown.get("exception.type")) or ("" if kind == "_OTHER" else kind)
    stack = text(thrown.get("exception.stacktrace")) or (
        said if "Traceback (most recent call last)" in said else ""
    )
    line = _one_line(said)
    return Problem(_with_type(name, line), line, name[:200], stack, interruption(name, said))


def _one_line(said: str) -> str:
    """The first line that says something; of a traceback the last."""
    before, mark, _ = said.partition("Traceback (most recent call last)")
    lines = [line.strip() for line in (before.strip() or said).splitlines() if line.strip()]
    return (lines[-1] if mark and not before.strip() else lines[0])[:MAX_LINE] if lines else ""


def _with_type(name: str, line: str) -> str:
    """`Type: message`, at most `MAX_LINE` characters."""
    short = name.rsplit(".", 1)[-1]
    if short and not line.startswith(short) and not (line and short in SAY_NOTHING):
        line = f"{short}: {line}" if line else short
    return line[:MAX_LINE] or "error"
