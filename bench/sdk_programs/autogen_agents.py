"""AutoGen's AgentChat."""

import common

common.trace_all()

from autogen_agentchat.agents import AssistantAgent  # noqa: E402
from autogen_agentchat.conditions import (  # noqa: E402
    MaxMessageTermination,
    TextMentionTermination,
)
from autogen_agentchat.teams import Swarm  # noqa: E402
from autogen_ext.models.openai import OpenAIChatCompletionClient  # noqa: E402


async def get_weather(city: str) -> str:
    """The weather in a city."""
    return common.weather(city)


async def answer(question: str, scenario: str) -> str:
    model = OpenAIChatCompletionClient(
        model=common.MODEL, api_key="none", base_url=f"{common.URL}/v1", max_retries=0
    )
    options: dict = {"model_client": model, "model_client_stream": scenario == "stream"}
    agent = AssistantAgent(
        "helpdesk" if scenario != "handoff" else "specialist",
        tools=[get_weather],
        system_message=common.SYSTEM,
        max_tool_iterations=3,
        description="Knows the weather.",
        **options,
    )
    if scenario == "handoff":
        first = AssistantAgent(
            "helpdesk", handoffs=["specialist"], system_message="Hand over.", **options
        )
        ends = TextMentionTermination("It rains") | MaxMessageTermination(8)
        team = Swarm([first, agent], termination_condition=ends)
        return (await team.run(task=question)).messages[-1].to_text()
    if scenario == "stream":
        async for said in agent.run_stream(task=question):
            last = said
        return last.messages[-1].to_text()
    return (await agent.run(task=question)).messages[-1].to_text()


common.play(answer)
