"""Mistral's SDK in a loop."""

import common

common.trace_all()

try:
    from mistralai.client import Mistral
except ImportError:
    from mistralai import Mistral

client = Mistral(api_key="none", server_url=common.URL)


def answer(question: str, scenario: str) -> str:
    messages: list = [
        {"role": "system", "content": common.SYSTEM},
        {"role": "user", "content": question},
    ]
    while True:
        said = client.chat.complete(
            model="mistral-large-latest", messages=list(messages), tools=[common.CHAT_TOOL]
        )
        message = said.choices[0].message
        messages.append(message.model_dump(exclude_none=True, exclude_unset=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            result = common.result_of(call.function.arguments)
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": call.id,
                    "name": call.function.name,
                    "content": result,
                }
            )


common.play(answer)
