"""The guide's tool-call reward over a rollout: kind `tool_call`. One call, as text or native. Light and pure."""

from __future__ import annotations

import json
from typing import Any

from workers.lib.typed import Number
from workers.lib.verifiers.base import Guarded, Options, Unscorable, options, weights_of
from workers.lib.verifiers.tool_calls import TOOL_CALL_WEIGHTS, argument_match, parse_call, tool_call
from workers.lib.verifiers.types import Execution, Rollout, Score


class ToolCallOptions(Options):
    weights: dict[str, Number] = {}


class ToolCall(Guarded):
    """−1 for what is not exactly one call, else 0.4 tool + 0.4 × arguments + 0.2 executed safely.

    Whether it worked is taken from the rollout's executed calls; where there are none, from the tool's JSON Schema.
    """

    def __init__(self, weights: dict[str, float]) -> None:
        self.weights = weights

    def judge(self, rollout: Rollout) -> Score:
        expected = rollout.expected
        if not isinstance(expected.get("tool"), str) or not isinstance(expected.get("args"), dict):
            raise Unscorable("The task expects no single call: its “expected” needs “tool” and “args”.")
        ran = rollout.calls[0] if rollout.calls else None
        score, _, _ = tool_call(
            text_of_call(rollout), expected, lambda call: ran or by_schema(call, rollout, expected), self.weights
        )
        return score


def text_of_call(rollout: Rollout) -> str:
    """The one call of the last answer as JSON text; several native calls, or a broken one, are no call."""
    last = next((item for item in reversed(rollout.messages) if item.get("role") == "assistant"), {})
    native = last.get("tool_calls")
    if not native:
        return rollout.output
    function = native[0].get("function") if len(native) == 1 and isinstance(native[0], dict) else None
    if not isinstance(function, dict):
        return ""
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    args = parse_call('{"tool": "", "args": ' + text + "}")
    return json.dumps({"tool": function.get("name"), "args": args["args"]}) if args else ""


def by_schema(call: dict, rollout: Rollout, expected: dict) -> Execution:
    """What would be known of a call without running it: the tool exists and its schema allows the arguments."""
    tools = rollout.tools or rollout.task.get("tools") or []
    functions = {item["function"]["name"]: item["function"] for item in tools if isinstance(item.get("function"), dict)}
    function = functions.get(call["tool"])
    if function is None:
        return Execution(not tools and call["tool"] == expected["tool"], False, "", call["tool"], call["args"])
    right = call["tool"] == expected["tool"] and argument_match(call["args"], expected["args"]) == 1.0
    unsafe = bool(function.get("x-dangerous")) and not right
    problem = _problem(call["args"], function.get("parameters") or {})
    return Execution(problem == "", unsafe, problem, call["tool"], call["args"], problem)


def _problem(args: dict, schema: dict) -> str:
    from jsonschema import Draft202012Validator

    problem = next(Draft202012Validator(schema).iter_errors(args), None)
    return "" if problem is None else problem.message[:300]


def from_spec(spec: dict, clients: Any, path: str) -> ToolCall:
    given = options(spec, path, ToolCallOptions).weights
    return ToolCall(weights_of(given, TOOL_CALL_WEIGHTS, f"{path}.weights"))
