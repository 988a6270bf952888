"""CrewAI."""

import os

os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"
os.environ["CREWAI_TRACING_ENABLED"] = "false"
import common

common.trace_all()

from crewai import LLM, Agent, Crew, Task  # noqa: E402
from crewai.tools import tool  # noqa: E402


@tool("get_weather")
def get_weather(city: str) -> str:
    """The weather in a city."""
    return common.weather(city)


def answer(question: str, scenario: str) -> str:
    llm = LLM(
        model=f"openai/{common.MODEL}",
        base_url=f"{common.URL}/v1",
        api_key="none",
        stream=scenario == "stream",
        max_retries=0,
    )
    agent = Agent(
        role="helpdesk", goal="Answer.", backstory=common.SYSTEM, tools=[get_weather], llm=llm
    )
    task = Task(description=question, expected_output="A sentence.", agent=agent)
    return str(Crew(agents=[agent], tasks=[task]).kickoff())


common.play(answer)
