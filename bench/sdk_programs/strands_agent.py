"""AWS Strands, whose own telemetry needs no instrumentation."""

import common
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.telemetry import StrandsTelemetry

StrandsTelemetry().setup_otlp_exporter()
get_weather = tool(common.get_weather)


def answer(question: str, scenario: str) -> str:
    options = {"api_key": "none", "base_url": f"{common.URL}/v1", "max_retries": 0}

    def agent(name: str, prompt: str, tools: list) -> Agent:
        return Agent(
            OpenAIModel(client_args=options, model_id=common.MODEL),
            name=name,
            description="Knows the weather.",
            system_prompt=prompt,
            tools=tools,
            callback_handler=None,
        )

    helper = agent("helpdesk", common.SYSTEM, [get_weather])
    if scenario == "handoff":
        helper.name = "specialist"
        helper = agent("helpdesk", "Hand over.", [helper.as_tool(name="ask_specialist")])
    return str(helper(question))


common.play(answer)
