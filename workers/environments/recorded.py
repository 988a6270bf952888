"""The state that recorded answers tell of, and assertions on it. Light and pure.

The same rules as docs/evals.md states for exported packages (a test holds the two to each other): objects that tools
answered with are merged in the order of the calls; below "calls" each tool has the "count" of its calls and the "args"
and "result" of its last one.
"""

from __future__ import annotations

from typing import Any

from workers.environments.strict_json import parsed
from workers.verifiers import MAX_DEPTH, normalise

_NOTHING = object()


def assertions_in(metadata: dict) -> list[dict]:
    """[{"path", "equals"}] of a task's metadata; none where the field of that name is something else."""
    found = metadata.get("state")
    fits = isinstance(found, list) and all(
        isinstance(item, dict) and item.keys() == {"path", "equals"} and isinstance(item["path"], str) for item in found
    )
    return found if fits else []


def called_before(messages: list[dict]) -> list[dict]:
    """[{"tool", "args", "content"}] of the calls in a task's own messages."""
    made: list[dict] = []
    waiting: dict[Any, dict] = {}
    for message in messages:
        if message.get("role") == "assistant":
            waiting = {call.get("id"): item for call in message.get("tool_calls") or [] if (item := _made(call))}
            made += waiting.values()
        elif message.get("role") == "tool" and isinstance(message.get("content"), str):
            waiting.pop(message.get("tool_call_id"), {})["content"] = message["content"]
    return made


def _made(call: dict) -> dict | None:
    function = call.get("function") or call
    arguments = function.get("arguments")
    args = _json(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(function.get("name"), str) or not isinstance(args, dict):
        return None
    return {"tool": function["name"], "args": args, "content": None}


def _json(text: str) -> Any:
    """The value of a JSON text; None where it is none."""
    try:
        return parsed(text)
    except ValueError:
        return None


def state_after(calls: list[dict]) -> dict:
    state: dict = {}
    last: dict[str, dict] = {}
    for call in calls:
        text = call["content"] or ""
        result = _json(text)
        if isinstance(result, dict):
            state = _merged(state, result)
        count = last[call["tool"]]["count"] + 1 if call["tool"] in last else 1
        last[call["tool"]] = {"count": count, "args": call["args"], "result": text if result is None else result}
    return state | {"calls": last}


def _merged(old: dict, new: dict) -> dict:
    both = {
        name: _merged(old[name], new[name])
        for name in old.keys() & new.keys()
        if isinstance(old[name], dict) and isinstance(new[name], dict)
    }
    return old | new | both


def state_share(assertions: list[dict], state: dict) -> float:
    """Share that holds, in [0, 1]. What the state does not tell holds for a count of no calls only."""
    held = [normalise(item["equals"]) == normalise(_at(state, item["path"])) for item in assertions]
    return sum(held) / len(held) if held else 1.0


def _at(state: dict, path: str) -> Any:
    parts = path.split(".")
    found = _walk(state, parts) if len(parts) <= MAX_DEPTH else _NOTHING
    is_count = len(parts) > 2 and parts[0] == "calls" and parts[-1] == "count"
    return 0 if found is _NOTHING and is_count else found


def _walk(value: Any, parts: list[str]) -> Any:
    if not parts:
        return value
    if isinstance(value, list):
        index = int(parts[0]) if parts[0].isascii() and parts[0].isdigit() and len(parts[0]) < 10 else len(value)
        return _walk(value[index], parts[1:]) if index < len(value) else _NOTHING
    for end in range(len(parts), 0, -1) if isinstance(value, dict) else ():
        name = ".".join(parts[:end])  # a name may have dots in it: the longest that leads somewhere
        if name in value and (found := _walk(value[name], parts[end:])) is not _NOTHING:
            return found
    return _NOTHING
