"""The Anthropic SDK in a loop."""

import common

common.trace_all()

from anthropic import Anthropic  # noqa: E402

client = Anthropic(base_url=common.URL, api_key="none")
TOOL = {"name": "get_weather", "description": common.DESCRIPTION, "input_schema": common.SCHEMA}


def answer(question: str, scenario: str) -> str:
    messages: list = [{"role": "user", "content": question}]
    asked = {"model": "claude-sonnet-4-5", "max_tokens": 2048, "tools": [TOOL]}
    asked |= {"system": common.SYSTEM}
    if scenario == "reasoning":
        asked["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    while True:
        if scenario == "stream":
            with client.messages.stream(**asked, messages=list(messages)) as stream:
                said = stream.get_final_message()
        else:
            said = client.messages.create(**asked, messages=list(messages))
        content = [block.model_dump(exclude_none=True) for block in said.content]
        messages.append({"role": "assistant", "content": content})
        calls = [block for block in said.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in said.content if block.type == "text")
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": common.result_of(call.input)}
            for call in calls
        ]
        messages.append({"role": "user", "content": results})


common.play(answer)
