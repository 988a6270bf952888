"""pydantic-ai with its own telemetry, in the version of its conventions that VERSION names."""

import os

import common

common.trace_all()

from pydantic_ai import Agent  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: E402

if not any(common.INSTRUMENTS):
    from pydantic_ai.models.instrumented import InstrumentationSettings

    version = os.environ.get("VERSION")
    Agent.instrument_all(InstrumentationSettings(version=int(version)) if version else True)


async def answer(question: str, scenario: str) -> str:
    kind = OpenAIResponsesModel if common.MODE == "responses" else OpenAIChatModel
    settings = {}
    if common.MODE == "responses" and scenario == "state":
        settings["openai_previous_response_id"] = "auto"
    agent = Agent(
        kind(common.MODEL),
        name="helpdesk",
        instructions=common.SYSTEM,
        tools=[common.get_weather],
        model_settings=settings or None,
    )
    if scenario == "handoff":
        specialist = agent
        specialist.name = "specialist"
        agent = Agent(kind(common.MODEL), name="helpdesk", instructions="Hand over.")

        @agent.tool_plain
        async def ask_specialist(request: str) -> str:
            """Asks the specialist."""
            return (await specialist.run(request)).output

    if scenario == "stream":
        async with agent.run_stream(question) as running:
            return await running.get_output()
    return (await agent.run(question)).output


common.play(answer)
