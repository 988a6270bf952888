"""An agent on LangGraph."""

import sys

from langchain.agents import create_agent


def get_weather(city: str) -> str:
    """The weather in a city."""
    if city == "Atlantis":
        raise ValueError("no such city: Atlantis")
    return "7 °C and rain"


agent = create_agent(
    "openai:gpt-5-mini", tools=[get_weather], system_prompt="Be brief.", name="helpdesk"
)


def answer(question: str) -> str:
    thread = {"configurable": {"thread_id": question}}
    return agent.invoke({"messages": [("user", question)]}, thread)["messages"][-1].content


for question in sys.argv[1:]:
    try:
        print(answer(question))
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
