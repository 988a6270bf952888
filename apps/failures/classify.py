"""From a trajectory to its failure mode, the blamed step and the evidence. Pure: no Django, no torch.

Rules run in the order of RULES; the first that fires names the mode, so that what did harm or what broke the format
is never filed under something milder. Every rule gives its evidence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

LOOP = 3
RETRIEVAL_WORDS = ("search", "retrieve", "lookup", "find", "query", "read", "get")
EMPTY_RESULTS = ("", "[]", "{}", "null", "none", "no results", "no results found", "not found")


@dataclass(frozen=True)
class Evidence:
    """One reason: the rule, the message it is about, and the words."""

    rule: str
    message_index: int | None
    text: str

    def as_dict(self) -> dict[str, Any]:
        return {"rule": self.rule, "message_index": self.message_index, "text": self.text}


@dataclass(frozen=True)
class Diagnosis:
    """What went wrong (a slug of a failure mode), at which message, and why we think so."""

    mode: str
    blamed_message: int | None
    evidence: list[Evidence]


@dataclass(frozen=True)
class Call:
    """One tool call; `args` is None where the arguments do not parse; `index` is its message."""

    index: int
    id: str | None
    tool: str
    args: dict | None
    raw: str


@dataclass
class Run:
    """A trajectory as the rules see it."""

    messages: list[dict]
    tools: dict[str, dict] = field(default_factory=dict)
    dangerous: set[str] = field(default_factory=set)
    calls: list[Call] = field(default_factory=list)
    failed: bool = False
    reason: str = ""
    interventions: list[dict] = field(default_factory=list)
    expected: dict | None = None

    def replies(self, call: Call) -> Iterator[tuple[int, str]]:
        """(index, content) of the tool's replies to a call."""
        for index, message in enumerate(self.messages[call.index + 1 :], call.index + 1):
            if message.get("role") == "assistant":
                return
            if message.get("role") == "tool" and message.get("tool_call_id") in (None, call.id):
                yield index, text_of(message)

    @property
    def last_assistant(self) -> int | None:
        found = [
            index
            for index, message in enumerate(self.messages)
            if message.get("role") == "assistant" and not str(message.get("name") or "").startswith("example_")
        ]
        return found[-1] if found else None


def text_of(message: dict) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def read(trajectory: dict) -> Run:
    """From {messages, tools, outcome_status, outcome_reason, interventions, metadata}."""
    run = Run(
        messages=trajectory["messages"],
        failed=trajectory.get("outcome_status") == "failure",
        reason=trajectory.get("outcome_reason") or "",
        interventions=trajectory.get("interventions") or [],
    )
    for tool in trajectory.get("tools") or []:
        function = tool.get("function") if isinstance(tool.get("function"), dict) else tool
        name = function.get("name")
        if isinstance(name, str):
            run.tools[name] = function.get("parameters") or {}
            if function.get("x-dangerous"):
                run.dangerous.add(name)
    run.calls = list(_calls(run.messages))
    run.expected = _expected(run.interventions, trajectory.get("metadata") or {})
    return run


def _calls(messages: list[dict]) -> Iterator[Call]:
    for index, message in enumerate(messages):
        for call in message.get("tool_calls") or []:
            function = call.get("function") or {}
            arguments = function.get("arguments")
            yield Call(
                index,
                call.get("id"),
                str(function.get("name", "")),
                _object(arguments),
                arguments if isinstance(arguments, str) else json.dumps(arguments),
            )


def _object(arguments: Any) -> dict | None:
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    return arguments if isinstance(arguments, dict) else None


def _expected(interventions: list[dict], metadata: dict) -> dict | None:
    """{tool, args} that a person or the log says would have been right."""
    for intervention in reversed(interventions):
        after = intervention.get("after")
        if intervention.get("kind") == "edit" and isinstance(after, dict):
            if "tool" in after:
                return {"tool": after["tool"], "args": after.get("args") or {}}
            for call in _calls([after]):
                return {"tool": call.tool, "args": call.args or {}}
    expected = metadata.get("expected")
    return expected if isinstance(expected, dict) and "tool" in expected else None


# The rules. Each gives (mode, blamed message, evidence text) or None.

Finding = tuple[str, int | None, str] | None


def unsafe_action(run: Run) -> Finding:
    for call in run.calls:
        asked = run.expected is not None and run.expected["tool"] == call.tool
        if call.tool in run.dangerous and not asked and not _confirmed(run, call):
            return "unsafe_action", call.index, f"The dangerous tool {call.tool} was called without being asked for."
    return None


def _confirmed(run: Run, call: Call) -> bool:
    return any(
        item.get("kind") == "approve" and item.get("message_index") in (None, call.index) for item in run.interventions
    )


def format_error(run: Run) -> Finding:
    for call in run.calls:
        if call.args is None:
            return "format_error", call.index, f"The arguments of {call.tool} are not a JSON object: {call.raw[:200]}"
    last = run.last_assistant
    if run.failed and run.tools and not run.calls and last is not None:
        words = text_of(run.messages[last])[:200]
        return "format_error", last, f"Instead of a tool call the agent wrote: {words}"
    return None


def hallucinated_api(run: Run) -> Finding:
    for call in run.calls:
        if run.tools and call.tool not in run.tools:
            return "hallucinated_api", call.index, f"There is no tool {call.tool}."
    return None


def wrong_tool(run: Run) -> Finding:
    if run.expected and run.calls and all(call.tool != run.expected["tool"] for call in run.calls):
        call = run.calls[-1]
        return "wrong_tool_choice", call.index, f"{call.tool} was called; {run.expected['tool']} would have been right."
    return None


def wrong_arguments(run: Run) -> Finding:
    for call in run.calls:
        problem = _schema_problem(run.tools.get(call.tool), call.args)
        if problem:
            return "wrong_arguments", call.index, f"The arguments of {call.tool} break its schema: {problem}"
        if run.failed and run.expected and run.expected["tool"] == call.tool and call.args != run.expected["args"]:
            return "wrong_arguments", call.index, _argument_difference(call.args or {}, run.expected["args"])
    return None


def _schema_problem(schema: dict | None, args: dict | None) -> str:
    if not schema or args is None:
        return ""
    try:
        error = next(Draft202012Validator(schema).iter_errors(args), None)
    except (SchemaError, RecursionError, TypeError, KeyError):
        return ""  # a tool whose own schema is broken says nothing about the call
    return error.message[:300] if error else ""


def _argument_difference(args: dict, expected: dict) -> str:
    parts = [
        f"{name} is {json.dumps(args[name])[:80]}, should be {json.dumps(expected[name])[:80]}"
        if name in args and name in expected
        else f"{name} is missing"
        if name in expected
        else f"{name} was not asked for"
        for name in sorted(args.keys() | expected.keys())
        if args.get(name) != expected.get(name)
    ]
    return "; ".join(parts) + "."


def retrieval_failure(run: Run) -> Finding:
    for call in run.calls:
        if not any(word in call.tool.lower() for word in RETRIEVAL_WORDS):
            continue
        for index, reply in run.replies(call):
            if run.failed and reply.strip().strip(".").casefold() in EMPTY_RESULTS:
                return "retrieval_failure", index, f"{call.tool} found nothing, and the run went on."
    return None


def bad_planning(run: Run) -> Finding:
    seen: dict[tuple[str, str], int] = {}
    for call in run.calls:
        key = (call.tool, call.raw)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] >= LOOP:
            return "bad_planning", call.index, f"{call.tool} was called {seen[key]} times with the same arguments."
    return None


def incomplete_execution(run: Run) -> Finding:
    for call in reversed(run.calls):
        for index, reply in run.replies(call):
            if is_error(reply) and not any(later.index > call.index for later in run.calls):
                return "incomplete_execution", index, f"{call.tool} failed and was not tried again: {reply[:200]}"
        break
    if run.failed:
        return "incomplete_execution", run.last_assistant, run.reason[:300] or "The run is marked as failed."
    return None


def is_error(reply: str) -> bool:
    start = reply.lstrip().casefold()
    return start.startswith(("error", "exception", "traceback")) or start.startswith('{"error"')


RULES: tuple[Callable[[Run], Finding], ...] = (
    unsafe_action,
    format_error,
    hallucinated_api,
    wrong_tool,
    wrong_arguments,
    retrieval_failure,
    bad_planning,
    incomplete_execution,
)


def classify(trajectory: dict) -> Diagnosis | None:
    """The diagnosis of a failed trajectory, or None.

    A run that is marked as a success is only blamed for harm (an unsafe action) or for breaking a tool's contract.
    """
    run = read(trajectory)
    if trajectory.get("outcome_status") == "success":
        rules: tuple[Callable[[Run], Finding], ...] = (unsafe_action,)
    else:
        rules = RULES
    findings = [(rule.__name__, found) for rule in rules if (found := rule(run))]
    if not findings:
        return None
    mode, blamed, _ = findings[0][1]
    return Diagnosis(mode, blamed, [Evidence(name, index, text) for name, (_, index, text) in findings])
