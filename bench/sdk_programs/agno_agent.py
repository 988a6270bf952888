"""Agno."""

import common

common.trace_all()

from agno.agent import Agent  # noqa: E402
from agno.models.openai import OpenAIChat, OpenAIResponses  # noqa: E402


def answer(question: str, scenario: str) -> str:
    kind = OpenAIResponses if common.MODE == "responses" else OpenAIChat
    agent = Agent(
        model=kind(id=common.MODEL, base_url=f"{common.URL}/v1", api_key="none", max_retries=0),
        name="helpdesk",
        instructions=common.SYSTEM,
        tools=[common.get_weather],
        telemetry=False,
        retries=0,
    )
    if scenario == "stream":
        return "".join(str(event.content or "") for event in agent.run(question, stream=True))
    return str(agent.run(question).content)


common.play(answer)
