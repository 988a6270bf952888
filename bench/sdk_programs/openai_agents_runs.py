"""The OpenAI Agents SDK, by chat completions or responses (MODE)."""

import common

common.trace_all()

from agents import (  # noqa: E402
    Agent,
    Runner,
    function_tool,
    set_default_openai_api,
    set_tracing_disabled,
)

if common.MODE == "chat":
    set_default_openai_api("chat_completions")
if not any(common.INSTRUMENTS):
    set_tracing_disabled(True)
get_weather = function_tool(common.get_weather)


async def answer(question: str, scenario: str) -> str:
    agent = Agent(
        name="helpdesk", instructions=common.SYSTEM, model=common.MODEL, tools=[get_weather]
    )
    if scenario == "handoff":
        agent.name = "specialist"
        agent = Agent(
            name="helpdesk", instructions="Hand over.", model=common.MODEL, handoffs=[agent]
        )
    if scenario == "stream":
        running = Runner.run_streamed(agent, question)
        async for _ in running.stream_events():
            pass
        return running.final_output
    options = {"auto_previous_response_id": True} if scenario == "state" else {}
    return (await Runner.run(agent, question, **options)).final_output


common.play(answer)
