"""LlamaIndex' function agents."""

import common

common.trace_all()

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent  # noqa: E402
from llama_index.llms.openai import OpenAI, OpenAIResponses  # noqa: E402


async def answer(question: str, scenario: str) -> str:
    kind = OpenAIResponses if common.MODE == "responses" else OpenAI
    model = kind(model=common.MODEL, api_base=f"{common.URL}/v1", api_key="none", max_retries=0)
    options = {"llm": model, "streaming": scenario == "stream"}
    agent = FunctionAgent(
        name="helpdesk",
        description="Knows the weather.",
        tools=[common.get_weather],
        system_prompt=common.SYSTEM,
        **options,
    )
    if scenario == "handoff":
        agent.name = "specialist"
        first = FunctionAgent(
            name="helpdesk",
            description="Hands over.",
            system_prompt="Hand over.",
            can_handoff_to=["specialist"],
            **options,
        )
        flow = AgentWorkflow(agents=[first, agent], root_agent="helpdesk")
        return str(await flow.run(user_msg=question))
    return str(await agent.run(user_msg=question))


common.play(answer)
