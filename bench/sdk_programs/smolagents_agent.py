"""smolagents, which writes calls and results into its prompts."""

import common

common.trace_all()

from smolagents import OpenAIModel, ToolCallingAgent, tool  # noqa: E402

get_weather = tool(common.get_weather)


def answer(question: str, scenario: str) -> str:
    model = OpenAIModel(common.MODEL, api_base=f"{common.URL}/v1", api_key="none")
    agent = ToolCallingAgent(
        tools=[get_weather],
        model=model,
        name="helpdesk",
        description="Helps.",
        max_steps=4,
        verbosity_level=0,
        stream_outputs=scenario == "stream",
    )
    return str(agent.run(question))


common.play(answer)
