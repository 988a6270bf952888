"""Semantic Kernel, whose messages come as log records."""

import logging

import common

common.trace_all()

from opentelemetry import _logs  # noqa: E402
from opentelemetry.sdk._logs import LoggingHandler  # noqa: E402
from semantic_kernel.agents import ChatCompletionAgent  # noqa: E402
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion  # noqa: E402
from semantic_kernel.functions import kernel_function  # noqa: E402

logger = logging.getLogger("semantic_kernel")
logger.setLevel(logging.INFO)
logger.addHandler(LoggingHandler(logger_provider=_logs.get_logger_provider()))


class Weather:
    @kernel_function(name="get_weather", description=common.DESCRIPTION)
    def get_weather(self, city: str) -> str:
        return common.weather(city)


async def answer(question: str, scenario: str) -> str:
    agent = ChatCompletionAgent(
        service=OpenAIChatCompletion(ai_model_id=common.MODEL, api_key="none"),
        name="helpdesk",
        instructions=common.SYSTEM,
        plugins=[Weather()],
    )
    if scenario == "stream":
        return "".join([str(part.message) async for part in agent.invoke_stream(question)])
    return str((await agent.get_response(question)).message)


common.play(answer)
