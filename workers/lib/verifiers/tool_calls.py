"""The guide's reward of one tool call. Light and pure."""

from __future__ import annotations

from collections.abc import Callable

from workers.lib.checks import json_of, normalise
from workers.lib.verifiers.types import Execution, Score

TOOL_CALL_WEIGHTS = {"invalid": -1.0, "tool": 0.4, "arguments": 0.4, "safe": 0.2}


def parse_call(text: str) -> dict | None:
    """The agent's output as {"tool": str, "args": dict}; None where it is not exactly one such JSON object.

    What is nested deeper than MAX_DEPTH counts as invalid: it would make the verifier fail, and a failed verifier
    masks the sample, so that an absurd answer would escape its penalty.
    """
    value = json_of(text)
    if not isinstance(value, dict) or not isinstance(value.get("tool"), str):
        return None
    if not isinstance(value.get("args"), dict):
        return None
    return {"tool": value["tool"], "args": value["args"]}


def argument_match(args: dict, expected: dict) -> float:
    """Share of arguments that are right, in [0, 1]; an argument that was not asked for counts as a wrong one."""
    names = args.keys() | expected.keys()
    if not names:
        return 1.0
    right = sum(
        name in args and name in expected and normalise(args[name]) == normalise(expected[name]) for name in names
    )
    return right / len(names)


def tool_call(
    text: str, expected: dict, execute: Callable[[dict], Execution], weights: dict[str, float] | None = None
) -> tuple[Score, dict | None, Execution | None]:
    """The guide's reward: −1 for invalid JSON, else 0.4 tool + 0.4 × arguments + 0.2 executed safely.

    Success is the whole of it: right tool, every argument right, executed, no harm. Returns the score, the parsed
    call and what its execution gave.
    """
    w = TOOL_CALL_WEIGHTS | (weights or {})
    call = parse_call(text)
    if call is None:
        return Score(reward=w["invalid"], components={"invalid": w["invalid"]}), None, None
    tool_ok = call["tool"] == expected["tool"]
    args_score = argument_match(call["args"], expected["args"])
    execution = execute(call)
    safe = execution.ok and not execution.unsafe
    components = {
        "tool": w["tool"] * tool_ok,
        "arguments": w["arguments"] * args_score,
        "safe": w["safe"] * safe,
    }
    score = Score(
        reward=sum(components.values()),
        components=components,
        valid=True,
        tool_ok=tool_ok,
        args_score=args_score,
        executed=execution.ok,
        unsafe=execution.unsafe,
        success=tool_ok and args_score == 1.0 and safe,
    )
    return score, call, execution
