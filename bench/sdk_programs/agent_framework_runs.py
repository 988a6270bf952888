"""Microsoft's Agent Framework with its own telemetry, by chat completions or responses (MODE)."""

import common

common.trace_all()

from agent_framework import Agent, tool  # noqa: E402
from agent_framework.observability import enable_instrumentation  # noqa: E402
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient  # noqa: E402

enable_instrumentation(enable_sensitive_data=True)
get_weather = tool(common.get_weather, approval_mode="never_require")


async def answer(question: str, scenario: str) -> str:
    kind = OpenAIChatClient if common.MODE == "responses" else OpenAIChatCompletionClient
    client = kind(model=common.MODEL, api_key="none", base_url=f"{common.URL}/v1")
    options = {"store": scenario == "state"} if common.MODE == "responses" else {}
    agent = Agent(
        client,
        name="helpdesk",
        instructions=common.SYSTEM,
        tools=[get_weather],
        default_options=options or None,
    )
    if scenario == "handoff":
        agent.name = "specialist"
        agent = Agent(
            client,
            name="helpdesk",
            instructions="Hand over.",
            tools=[agent.as_tool(name="ask_specialist")],
        )
    if scenario == "stream":
        said = ""
        async for update in agent.run(question, stream=True):
            said += update.text or ""
        return said
    return (await agent.run(question)).text


common.play(answer)
