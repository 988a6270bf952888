"""Google's Agent Development Kit with Gemini."""

import os

import common

os.environ["GOOGLE_API_KEY"] = "none"
os.environ["GOOGLE_GEMINI_BASE_URL"] = common.URL
common.trace_all()

from google.adk.agents import Agent, RunConfig  # noqa: E402
from google.adk.agents.run_config import StreamingMode  # noqa: E402
from google.adk.runners import InMemoryRunner  # noqa: E402
from google.genai import types  # noqa: E402


def get_weather(city: str) -> str:
    """The weather in a city."""
    return common.weather(city)


async def answer(question: str, scenario: str) -> str:
    options = {"model": "gemini-2.5-flash", "description": "Knows the weather."}
    agent = Agent(
        name="specialist" if scenario == "handoff" else "helpdesk",
        instruction=common.SYSTEM,
        tools=[get_weather],
        **options,
    )
    if scenario == "handoff":
        agent = Agent(name="helpdesk", instruction="Hand over.", sub_agents=[agent], **options)
    runner = InMemoryRunner(agent, app_name="helpdesk")
    session = await runner.session_service.create_session(app_name="helpdesk", user_id="anna")
    message = types.Content(role="user", parts=[types.Part(text=question)])
    mode = StreamingMode.SSE if scenario == "stream" else StreamingMode.NONE
    said = ""
    async for event in runner.run_async(
        user_id="anna",
        session_id=session.id,
        new_message=message,
        run_config=RunConfig(streaming_mode=mode),
    ):
        if event.error_message:
            raise RuntimeError(event.error_message)
        if event.is_final_response() and event.content:
            said = "".join(part.text or "" for part in event.content.parts)
    return said


common.play(answer)
