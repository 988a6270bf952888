"""The guide's tool-call reward for a rollout: kind `tool_call`. One call, as text or native. Light
and pure.
"""

from __future__ import annotations

from typing import Any

from workers.lib.json_schema import JsonSchema, TooMuch
from workers.lib.messages import argument_share, functions_of, last_answer, native_calls
from workers.lib.typed import Number
from workers.lib.verifiers.base import Guarded, Options, Unscorable, options, weights_of
from workers.lib.verifiers.tool_calls import TOOL_CALL_WEIGHTS, parse_call, tool_call
from workers.lib.verifiers.types import Execution, Rollout, Score


class ToolCallOptions(Options):
    weights: dict[str, Number] = {}


class ToolCall(Guarded):
    """−1 if there is not exactly one call, else 0.4 tool + 0.4 × arguments + 0.2 executed safely.

    Whether the call worked is taken from the rollout's executed calls or, if there are none, from
    the tool's JSON Schema.
    """

    only_calls = True

    def __init__(self, weights: dict[str, float]) -> None:
        self.weights = weights

    def judge(self, rollout: Rollout) -> Score:
        expected = rollout.expected
        if not isinstance(expected.get("tool"), str) or not isinstance(expected.get("args"), dict):
            raise Unscorable(
                "The task expects no single call: its “expected” needs “tool” and “args”."
            )
        ran = rollout.calls[0] if rollout.calls else None
        call = one_call(rollout)
        return tool_call(
            call, expected, lambda call: ran or by_schema(call, rollout, expected), self.weights
        )


def one_call(rollout: Rollout) -> dict | None:
    """The call of the last answer, native or as text; None for several native calls or a broken
    one.
    """
    native = native_calls(last_answer(rollout.messages))
    if not native:
        return parse_call(rollout.output)
    return native[0].plain if len(native) == 1 and not native[0].problem else None


def by_schema(call: dict, rollout: Rollout, expected: dict) -> Execution:
    """What is known about a call without running it: the tool exists and its schema allows the
    arguments.
    """
    tools = rollout.tools or rollout.task.get("tools") or []
    functions = dict(functions_of(tools))
    function = functions.get(call["tool"])
    if function is None:
        return Execution(
            not tools and call["tool"] == expected["tool"], False, "", call["tool"], call["args"]
        )
    right = (
        call["tool"] == expected["tool"] and argument_share(call["args"], expected["args"]) == 1.0
    )
    unsafe = bool(function.get("x-dangerous")) and not right
    problem = _problem(call["args"], function.get("parameters") or {})
    return Execution(problem == "", unsafe, problem, call["tool"], call["args"], problem)


def _problem(args: dict, schema: dict) -> str:
    try:
        return JsonSchema(schema, tolerant=True).problem(args)
    except TooMuch as error:
        raise Unscorable(str(error)) from error


def from_spec(spec: dict, clients: Any, path: str) -> ToolCall:
    given = options(spec, path, ToolCallOptions).weights
    return ToolCall(weights_of(given, TOOL_CALL_WEIGHTS, f"{path}.weights"))
