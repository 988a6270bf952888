"""NeMo Gym's rows as tasks, and its responses as agent messages. Pure."""

from __future__ import annotations

from typing import Any

from apps.environments.protocol.bodies import Refusal
from workers.lib.environments.gym_rows import ANSWER, ASKED, TRUTH
from workers.lib.messages import chat_tool, from_items, known_call

OURS = {"messages": list, "expected": dict, "tools": list, "metadata": dict}


def task_of(row: dict) -> dict:
    """{id, messages, tools, expected, metadata}. Raises Refusal naming the path of the error.

    A row exported by Flywheel contains the whole task below `verifier_metadata.flywheel`, which
    takes precedence.
    """
    asked = row.get(ASKED)
    if not isinstance(asked, dict):
        raise _wrong(ASKED, "must be the request, an object with “input”")
    exported = _exported(row)
    if exported is not None:
        return {"id": str(exported.get("key") or row.get("id") or "task")} | {
            name: exported[name] for name in OURS
        }
    return {
        "id": str(row.get("id", row.get("_ng_task_index", "task"))),
        "messages": _messages(asked),
        "tools": _tools(asked.get("tools")),
        "expected": _expected(row),
        "metadata": {
            "nemo_gym": {
                name: value for name, value in row.items() if name not in (ASKED, TRUTH, ANSWER)
            }
        },
    }


def _exported(row: dict) -> dict | None:
    """Raises Refusal if there is one of ours that is not whole: it must not be scored as another
    task.
    """
    metadata = row.get("verifier_metadata")
    exported = metadata.get("flywheel") if isinstance(metadata, dict) else None
    if exported is None:
        return None
    for name, kind in OURS.items():
        if not isinstance(exported, dict) or not isinstance(exported.get(name), kind):
            raise _wrong(
                f"verifier_metadata.flywheel.{name}",
                "is missing; export the row again, or leave the block out",
            )
    _check_objects(exported["messages"], "verifier_metadata.flywheel.messages")
    _check_tools(exported["tools"], "verifier_metadata.flywheel.tools")
    return exported


def _messages(asked: dict) -> list[dict]:
    try:
        found = from_items(asked.get("input"))
    except ValueError as error:
        raise _wrong(
            f"{ASKED}.input", f"must be text or a list of Responses items ({error})"
        ) from error
    system = asked.get("instructions")
    return ([{"role": "system", "content": system}] if isinstance(system, str) else []) + found


def _tools(given: Any) -> list[dict]:
    given = [] if given is None else given
    _check_objects(given, f"{ASKED}.tools")
    tools = [chat_tool(tool) for tool in given if tool.get("type", "function") == "function"]
    _check_tools(tools, f"{ASKED}.tools")
    return tools


def _check_objects(given: Any, path: str) -> None:
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise _wrong(path, "must be a list of objects")


def _check_tools(tools: Any, path: str) -> None:
    _check_objects(tools, path)
    for index, tool in enumerate(tools):
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _wrong(f"{path}[{index}]", "must be a function with a name")


def _expected(row: dict) -> dict:
    """{} if the row has no expected answer: not every verifier needs one."""
    for holder in (row, row.get("verifier_metadata"), row.get("task_data")):
        if isinstance(holder, dict) and isinstance(holder.get(TRUTH), list):
            return _calls(holder[TRUTH])
        if isinstance(holder, dict) and ANSWER in holder:
            return {"answer": holder[ANSWER]}
    return {}


def _calls(truth: list) -> dict:
    calls = [_call(call, f"{TRUTH}[{index}]") for index, call in enumerate(truth)]
    return calls[0] if len(calls) == 1 else {"calls": calls}


def _call(call: Any, path: str) -> dict:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise _wrong(path, 'must be {"name", "arguments"}')
    found = known_call(call)
    if found.args is None:
        raise _wrong(f"{path}.arguments", "must be a JSON object, or the text of one")
    return found.plain


def said_in(response: Any) -> list[dict]:
    """The messages in a Responses object's output. Raises Refusal."""
    output = response.get("output") if isinstance(response, dict) else None
    if not isinstance(output, list):
        raise _wrong("response.output", "must be the list of items of an OpenAI Responses object")
    try:
        return from_items(output)
    except ValueError as error:
        raise _wrong("response.output", str(error)) from error


def _wrong(path: str, what: str) -> Refusal:
    return Refusal(422, f"“{path}” {what}.")
