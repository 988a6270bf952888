"""A whole agent on LangGraph, behind an endpoint: `uvicorn langgraph_agent:app`. Put your own graph
in place of this one.
"""

from __future__ import annotations

import re
from typing import Any

from fastapi import FastAPI
from langchain_core.messages import AIMessage, ToolMessage, convert_to_openai_messages
from langgraph.graph import START, MessagesState, StateGraph

app = FastAPI()


def decide(state: MessagesState) -> dict[str, Any]:
    """Where a model would choose the next step: closes the ticket that the request names."""
    ticket = re.search(r"\d+", str(state["messages"][-1].content))
    call = (
        {"name": "tickets.close", "args": {"id": int(ticket[0])}, "id": "call_1"}
        if ticket
        else None
    )
    return {"messages": [AIMessage("", tool_calls=[call]) if call else AIMessage("Which ticket?")]}


def close(state: MessagesState) -> dict[str, Any]:
    done = [
        ToolMessage("closed", tool_call_id=call["id"]) for call in state["messages"][-1].tool_calls
    ]
    return {"messages": [*done, AIMessage("It is closed.")] if done else []}


graph = (
    StateGraph(MessagesState)
    .add_sequence([decide, close])
    .add_edge(START, "decide")
    .compile(name="support-agent")
)


def run(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the graph says and does, after the messages that it is given."""
    said = graph.invoke({"messages": messages})["messages"]
    return convert_to_openai_messages(said[len(messages) :])


@app.post("/v1/chat/completions")
def chat(body: dict[str, Any]) -> dict[str, Any]:
    """The first way: called over HTTP. It answers with all that it did."""
    return {"messages": run(body["messages"])}


def answer(task: Any) -> list[dict[str, Any]]:
    """The second way: from CI, `flywheel-eval langgraph_agent:answer`."""
    return run(task.messages)
