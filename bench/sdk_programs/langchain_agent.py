"""LangChain's agent on LangGraph, by chat completions or responses (MODE)."""

import common

common.trace_all()
callbacks = []
if "langfuse" in common.INSTRUMENTS:
    from langfuse.langchain import CallbackHandler

    callbacks = [CallbackHandler()]

from langchain.agents import create_agent  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402

get_weather = tool(common.get_weather)


def answer(question: str, scenario: str) -> str:
    options: dict = {"use_responses_api": common.MODE == "responses", "max_retries": 0}
    if scenario == "state":
        options["use_previous_response_id"] = True
    if scenario == "stream":
        options |= {"streaming": True, "stream_usage": True}
    model = ChatOpenAI(model=common.MODEL, **options)
    agent = create_agent(model, tools=[get_weather], system_prompt=common.SYSTEM, name="helpdesk")
    asked = {"messages": [{"role": "user", "content": question}]}
    config = {"callbacks": callbacks} if callbacks else {}
    if scenario == "stream":
        *_, last = agent.stream(asked, config, stream_mode="values")
    else:
        last = agent.invoke(asked, config)
    return last["messages"][-1].text


common.play(answer)
