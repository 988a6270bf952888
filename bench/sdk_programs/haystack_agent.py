"""Haystack's agent."""

import os

os.environ["HAYSTACK_CONTENT_TRACING_ENABLED"] = "true"
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "false"
import common

common.trace_all()

from haystack.components.agents import Agent  # noqa: E402
from haystack.components.generators.chat import OpenAIChatGenerator  # noqa: E402
from haystack.dataclasses import ChatMessage  # noqa: E402
from haystack.tools import create_tool_from_function  # noqa: E402
from haystack.utils import Secret  # noqa: E402

get_weather = create_tool_from_function(common.get_weather)


def answer(question: str, scenario: str) -> str:
    agent = Agent(
        chat_generator=OpenAIChatGenerator(
            model=common.MODEL,
            api_base_url=f"{common.URL}/v1",
            api_key=Secret.from_token("none"),
            max_retries=0,
            streaming_callback=(lambda chunk: None) if scenario == "stream" else None,
            generation_kwargs=(
                {"stream_options": {"include_usage": True}} if scenario == "stream" else None
            ),
        ),
        tools=[get_weather],
        system_prompt=common.SYSTEM,
        max_agent_steps=4,
    )
    return agent.run(messages=[ChatMessage.from_user(question)])["messages"][-1].text


common.play(answer)
