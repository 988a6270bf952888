"""An agent of pydantic-ai."""

import sys

from pydantic_ai import Agent

agent = Agent("openai-chat:gpt-5-mini", instructions="Be brief.", name="helpdesk")


@agent.tool_plain
def get_weather(city: str) -> str:
    """The weather in a city."""
    if city == "Atlantis":
        raise ValueError("no such city: Atlantis")
    return "7 °C and rain"


def answer(question: str) -> str:
    return agent.run_sync(question).output


for question in sys.argv[1:]:
    try:
        print(answer(question))
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
