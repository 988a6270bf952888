"""What single frameworks say in their own way inside OpenInference's conventions, known by the name
of their scope.
"""

from __future__ import annotations

from typing import Any

from apps.trajectories.dialects import Message, tool_call
from apps.trajectories.otlp.conventions.base import Spoken
from apps.trajectories.values import label, python_literal, structured, text, unquoted
from workers.lib.messages import text_of

CALLING, OBSERVED, FAILED = "Calling tools:\n", "Observation:\n", "Error:\n"
REACT = ("ReAct.forward", "CodeAct.forward")
METHOD = ".__call__"


def smolagents(spoken: Spoken) -> None:
    """Calls and what they gave are told to the model as texts, which are read back into calls and
    replies.
    """
    found: list[Message] = []
    calls: list[dict] = []
    for message in spoken.reading.input:
        said = text_of(message)
        if said.startswith(CALLING) and (read := _calls(said.removeprefix(CALLING))):
            calls = read
            found.append({"role": "assistant", "content": None, "tool_calls": calls})
        elif calls and said.startswith((OBSERVED, FAILED)):
            reply: Message = {
                "role": "tool",
                "content": said.removeprefix(OBSERVED),
                "name": calls[0]["function"]["name"],
            }
            found.append(reply | {"tool_call_id": calls[0].get("id", "")})
            calls = calls[1:]
        else:
            found.append(message)
    spoken.reading.input = found


def _calls(said: str) -> list[dict]:
    """Python's notation of a list of calls; none where it is something else."""
    found = python_literal(said)
    return [call for raw in found if (call := tool_call(raw))] if isinstance(found, list) else []


def dspy(spoken: Spoken) -> None:
    """The span of a ReAct module has the whole run in its input and output; a tool's is named after
    its method.
    """
    reading, attributes = spoken.reading, spoken.attributes
    if reading.kind == "tool":
        reading.tool_name = reading.tool_name.removesuffix(METHOD)
        called = structured(attributes.get("input.value"))
        if isinstance(called, dict) and isinstance(called.get("kwargs"), dict):
            reading.tool_arguments = called["kwargs"]
        reading.tool_result = unquoted(reading.tool_result)
    if reading.kind != "agent":
        return
    given, ended = (
        structured(attributes.get("input.value")),
        structured(attributes.get("output.value")),
    )
    asked = given.get("input_args") if isinstance(given, dict) else None
    ended = ended if isinstance(ended, dict) else {}
    steps = ended.get("trajectory")
    reading.input = [
        {"role": "user", "content": _words(asked if isinstance(asked, dict) else given)}
    ]
    reading.output = _steps(spoken.span.span_id, steps) if isinstance(steps, dict) else []
    answer = {
        name: value for name, value in ended.items() if name not in ("trajectory", "reasoning")
    }
    if answer:
        reading.output.append({"role": "assistant", "content": _words(answer)})
    reading.complete = bool(reading.output)


def llama_index(spoken: Spoken) -> None:
    """A tool's span has what it was called with in `kwargs`, and what it answered in
    `raw_output`.
    """
    reading = spoken.reading
    if reading.kind != "tool":
        return
    called, answered = structured(reading.tool_arguments), structured(reading.tool_result)
    if (
        isinstance(called, dict)
        and called.keys() == {"kwargs"}
        and isinstance(called["kwargs"], dict)
    ):
        reading.tool_arguments = called["kwargs"]
    if isinstance(answered, dict) and "raw_output" in answered and "tool_name" in answered:
        reading.tool_result = text(answered["raw_output"])


def _words(fields: Any) -> str:
    """The text of a signature's fields: of a single one its value."""
    if isinstance(fields, dict) and len(fields) == 1:
        return text(next(iter(fields.values())))
    return text(fields)


def _steps(span_id: str, steps: dict) -> list[Message]:
    """Thoughts, calls and observations of ReAct, without the `finish` at its end."""
    found: list[Message] = []
    number = 0
    while (name := label(steps.get(f"tool_name_{number}"))) and name != "finish":
        call = {
            "name": name,
            "arguments": steps.get(f"tool_args_{number}"),
            "id": f"{span_id}-{number}",
        }
        thought = label(steps.get(f"thought_{number}")) or None
        found.append({"role": "assistant", "content": thought, "tool_calls": [tool_call(call)]})
        said = text(steps.get(f"observation_{number}"))
        found.append({"role": "tool", "content": said, "tool_call_id": call["id"], "name": name})
        number += 1
    return found


MENDS = {
    "openinference.instrumentation.smolagents": smolagents,
    "openinference.instrumentation.dspy": dspy,
    "openinference.instrumentation.llama_index": llama_index,
}


def kind_of(scope: str, name: str) -> str:
    """The kind of a span that its attributes do not tell."""
    return "agent" if scope == "openinference.instrumentation.dspy" and name in REACT else ""
