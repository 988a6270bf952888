"""An agent as people write it: the OpenAI SDK in a loop, and nothing of Flywheel in it."""

import json
import sys

from openai import OpenAI

client = OpenAI()
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


def get_weather(city: str) -> str:
    """The weather in a city."""
    if city == "Atlantis":
        raise ValueError("no such city: Atlantis")
    return "7 °C and rain"


def answer(question: str) -> str:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
    while True:
        said = (
            client.chat.completions.create(model="gpt-5-mini", messages=messages, tools=TOOLS)
            .choices[0]
            .message
        )
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            return said.content
        for call in said.tool_calls:
            result = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


for question in sys.argv[1:]:
    try:
        print(answer(question))
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
