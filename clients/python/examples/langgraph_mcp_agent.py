"""An agent on LangGraph whose tools are those of an MCP server: `uvicorn langgraph_mcp_agent:app`.
Only the server's address is Flywheel's.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI
from langchain.agents import create_agent
from langchain_core.messages import convert_to_openai_messages
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from mcp import Client

app = FastAPI()


def bound(server: Client, tool: Any) -> StructuredTool:
    async def call(**args: Any) -> str:
        done = await server.call_tool(tool.name, args)
        return "\n".join(part.text for part in done.content)

    named = {"name": tool.name, "description": tool.description, "args_schema": tool.input_schema}
    return StructuredTool(coroutine=call, **named)


async def run(
    messages: list[dict[str, Any]], mcp_url: str, model_url: str | None = None
) -> list[dict[str, Any]]:
    """What the agent says and does, after the messages that it is given."""
    async with Client(mcp_url) as server:
        tools = [bound(server, tool) for tool in (await server.list_tools()).tools]
        agent = create_agent(ChatOpenAI(model="gpt-5-mini", base_url=model_url), tools)
        done = await agent.ainvoke({"messages": messages})
        return convert_to_openai_messages(done["messages"][len(messages) :])


@app.post("/v1/chat/completions")
async def chat(body: dict[str, Any]) -> dict[str, Any]:
    place = body["metadata"]
    model_url = place.get("flywheel_model_url")  # where the model is trained or compared here
    return {"messages": await run(body["messages"], place["flywheel_mcp"], model_url)}


def answer(task: Any) -> list[dict[str, Any]]:
    return asyncio.run(run(task.messages, task.mcp_url))
