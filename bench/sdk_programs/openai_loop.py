"""The OpenAI SDK in a loop, by chat completions or responses (MODE)."""

import common

common.trace_all()

if "langfuse" in common.INSTRUMENTS:
    from langfuse.openai import OpenAI
else:
    from openai import OpenAI

client = OpenAI()
TOOL = {"type": "function", "name": "get_weather", "description": common.DESCRIPTION}
TOOL |= {"parameters": common.SCHEMA}


def chat(question: str, scenario: str) -> str:
    messages = [
        {"role": "system", "content": common.SYSTEM},
        {"role": "user", "content": question},
    ]
    while True:
        said = _completion(messages, scenario)
        messages.append(said)
        if not said.get("tool_calls"):
            return said["content"]
        for call in said["tool_calls"]:
            result = common.result_of(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def _completion(messages: list, scenario: str) -> dict:
    asked = {"model": common.MODEL, "messages": list(messages), "tools": [common.CHAT_TOOL]}
    if scenario != "stream":
        answer = client.chat.completions.create(**asked)
        return answer.choices[0].message.model_dump(exclude_none=True)
    said: dict = {"role": "assistant", "content": ""}
    calls: list[dict] = []
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options=options):
        for choice in chunk.choices:
            said["content"] += choice.delta.content or ""
            for part in choice.delta.tool_calls or ():
                if part.id:
                    function = {"name": part.function.name, "arguments": ""}
                    calls.append({"id": part.id, "type": "function", "function": function})
                calls[part.index]["function"]["arguments"] += part.function.arguments or ""
    return said | ({"tool_calls": calls} if calls else {})


def responses(question: str, scenario: str) -> str:
    items: list = [{"role": "user", "content": question}]
    previous = None
    while True:
        asked = {"model": common.MODEL, "input": list(items), "tools": [TOOL]}
        asked |= {"instructions": common.SYSTEM}
        if previous:
            asked["previous_response_id"] = previous
        answer = _response(asked, scenario)
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            return answer.output_text
        items += [item.model_dump(exclude_none=True) for item in answer.output]
        if scenario == "state":
            items, previous = [], answer.id
        for call in calls:
            result = common.result_of(call.arguments)
            items.append(
                {"type": "function_call_output", "call_id": call.call_id, "output": result}
            )


def _response(asked: dict, scenario: str):
    if scenario != "stream":
        return client.responses.create(**asked)
    for event in client.responses.create(**asked, stream=True):
        if event.type == "response.completed":
            last = event.response
    return last


common.play(responses if common.MODE == "responses" else chat)
