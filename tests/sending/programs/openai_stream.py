"""The loop asynchronous and streamed: what is said and the arguments of a call come in pieces."""

import asyncio
import json
import sys

from openai import AsyncOpenAI

client = AsyncOpenAI()
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


async def get_weather(city: str) -> str:
    """The weather in a city."""
    if city == "Atlantis":
        raise ValueError("no such city: Atlantis")
    return "7 °C and rain"


async def streamed(messages: list) -> dict:
    """The assistant's message, put together from its pieces."""
    said, calls = "", {}
    stream = await client.chat.completions.create(
        model="gpt-5-mini",
        messages=messages,
        tools=TOOLS,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        for choice in chunk.choices:
            said += choice.delta.content or ""
            for piece in choice.delta.tool_calls or ():
                call = calls.setdefault(
                    piece.index, {"type": "function", "function": {"name": "", "arguments": ""}}
                )
                call["id"] = piece.id or call["id"]
                call["function"]["name"] += piece.function.name or ""
                call["function"]["arguments"] += piece.function.arguments or ""
    return {"role": "assistant", "content": said or None} | (
        {"tool_calls": list(calls.values())} if calls else {}
    )


async def answer(question: str) -> str:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
    while True:
        said = await streamed(messages)
        messages.append(said)
        if "tool_calls" not in said:
            return said["content"]
        for call in said["tool_calls"]:
            result = await get_weather(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


async def main() -> None:
    for question in sys.argv[1:]:
        try:
            print(await answer(question))
        except Exception as error:
            print(f"{type(error).__name__}: {error}")


asyncio.run(main())
