"""Claude Agent SDK."""

import common

common.trace_all()

import claude_agent_sdk as sdk  # noqa: E402


@sdk.tool("get_weather", common.DESCRIPTION, {"city": str})
async def get_weather(given: dict) -> dict:
    return {"content": [{"type": "text", "text": common.weather(given["city"])}]}


async def answer(question: str, scenario: str) -> str:
    server = sdk.create_sdk_mcp_server("weather", tools=[get_weather])
    environment = {
        "ANTHROPIC_BASE_URL": common.URL,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "CLAUDE_CODE_MAX_RETRIES": "0",
    }
    options = sdk.ClaudeAgentOptions(
        system_prompt=common.SYSTEM,
        mcp_servers={"weather": server},
        env=environment,
        tools=[],
        allowed_tools=["mcp__weather__get_weather"],
        max_turns=4,
        model="claude-sonnet-4-5",
    )
    said = ""
    async with sdk.ClaudeSDKClient(options) as client:
        await client.query(question)
        async for message in client.receive_response():
            said = getattr(message, "result", said) or said
    return said


common.play(answer)
