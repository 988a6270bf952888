"""An agent of the OpenAI Agents SDK (Responses API). A tool that raises ends the run instead of
being told to the model.
"""

import sys

from agents import Agent, Runner, function_tool


@function_tool(failure_error_function=None)
def get_weather(city: str) -> str:
    """The weather in a city."""
    if city == "Atlantis":
        raise ValueError("no such city: Atlantis")
    return "7 °C and rain"


agent = Agent(name="helpdesk", instructions="Be brief.", model="gpt-5-mini", tools=[get_weather])


def answer(question: str) -> str:
    return Runner.run_sync(agent, question).final_output


for question in sys.argv[1:]:
    try:
        print(answer(question))
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
