"""The guide's reward for one tool call. Light and pure."""

from __future__ import annotations

from collections.abc import Callable

from workers.lib.messages import argument_share, call_of, json_of, without_reasoning
from workers.lib.verifiers.types import Execution, Score

TOOL_CALL_WEIGHTS = {"invalid": -1.0, "tool": 0.4, "arguments": 0.4, "safe": 0.2}


def parse_call(text: str) -> dict | None:
    """The agent's output, without its reasoning, as {"tool": str, "args": dict}; None if it is not
    exactly one such JSON object.

    JSON nested deeper than MAX_DEPTH counts as invalid: it would make the verifier fail, which
    masks the sample, so that an absurd answer would escape its penalty.
    """
    value = json_of(without_reasoning(text))
    if (
        not isinstance(value, dict)
        or not isinstance(value.get("args"), dict)
        or not isinstance(value.get("tool"), str)
    ):
        return None
    call = call_of(value)
    return None if call is None or call.problem else call.plain


def tool_call(
    call: dict | None,
    expected: dict,
    execute: Callable[[dict], Execution],
    weights: dict[str, float] | None = None,
) -> Score:
    """The guide's reward: −1 if there is not exactly one call (None), else 0.4 tool + 0.4 ×
    arguments + 0.2 executed safely.

    It is a success only if everything is right: the tool, every argument, executed, without harm.
    """
    w = TOOL_CALL_WEIGHTS | (weights or {})
    if call is None:
        return Score(
            reward=w["invalid"],
            components={"invalid": w["invalid"]},
            valid=False,
            tool_ok=False,
            args_score=0.0,
        )
    tool_ok = call["tool"] == expected["tool"]
    args_score = argument_share(call["args"], expected["args"])
    execution = execute(call)
    safe = execution.ok and not execution.unsafe
    components = {
        "tool": w["tool"] * tool_ok,
        "arguments": w["arguments"] * args_score,
        "safe": w["safe"] * safe,
    }
    return Score(
        reward=sum(components.values()),
        components=components,
        valid=True,
        tool_ok=tool_ok,
        args_score=args_score,
        executed=execution.ok,
        unsafe=execution.unsafe,
        success=tool_ok and args_score == 1.0 and safe,
    )
