"""An agent on the OpenAI Agents SDK with the tools of an MCP server:
`uvicorn openai_agents_mcp_agent:app`. Only the server's address is Flywheel's.
"""

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent, Runner
from agents.mcp import MCPServerStreamableHttp
from fastapi import FastAPI

app = FastAPI()


async def run(messages: list[dict[str, Any]], mcp_url: str) -> str:
    """What the agent says in the end."""
    async with MCPServerStreamableHttp({"url": mcp_url}) as server:
        agent = Agent(name="support-agent", model="gpt-5-mini", mcp_servers=[server])
        done = await Runner.run(agent, messages)
        return str(done.final_output)


@app.post("/v1/chat/completions")
async def chat(body: dict[str, Any]) -> dict[str, Any]:
    return {"output": await run(body["messages"], body["metadata"]["flywheel_mcp"])}


def answer(task: Any) -> list[dict[str, Any]]:
    said = asyncio.run(run(task.messages, task.mcp_url))
    return [{"role": "assistant", "content": said}]
