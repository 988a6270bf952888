"""A whole agent, as a service on FastAPI: `uvicorn fastapi_agent:app`. Its loop is `run`; put your
own in its place.
"""

from __future__ import annotations

import re
from typing import Any

from fastapi import FastAPI

VERSION = "3f2a9c1"  # of this code, such as a git SHA
app = FastAPI()


def run(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the agent says and does. This one closes the ticket that the request names, without a
    model.
    """
    ticket = re.search(r"\d+", messages[-1]["content"])
    if not ticket:
        return [{"role": "assistant", "content": "Which ticket?"}]
    function = {"name": "tickets.close", "arguments": f'{{"id": {ticket[0]}}}'}
    call = {"id": "call_1", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "closed"},
        {"role": "assistant", "content": "It is closed."},
    ]


@app.post("/v1/chat/completions")
def chat(body: dict[str, Any]) -> dict[str, Any]:
    """The first way: called over HTTP. It answers with all that it did."""
    return {"messages": run(body["messages"], body.get("tools") or []), "agent_version": VERSION}


def answer(task: Any) -> list[dict[str, Any]]:
    """The second way: from CI, `flywheel-eval fastapi_agent:answer`."""
    return run(task.messages, task.tools)
