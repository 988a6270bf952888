"""LiteLLM in a loop, with its own callback `otel` or an instrumentation."""

import time

import common

if "otel" not in common.INSTRUMENTS:
    common.trace_all()

import litellm

if "otel" in common.INSTRUMENTS:
    litellm.callbacks = ["otel"]
litellm.suppress_debug_info = True


def answer(question: str, scenario: str) -> str:
    messages: list = [
        {"role": "system", "content": common.SYSTEM},
        {"role": "user", "content": question},
    ]
    try:
        while True:
            asked = {"messages": list(messages), "tools": [common.CHAT_TOOL]}
            asked |= {"api_base": f"{common.URL}/v1", "api_key": "none", "num_retries": 0}
            if scenario == "stream":
                asked |= {"stream": True, "stream_options": {"include_usage": True}}
            said = litellm.completion(f"openai/{common.MODEL}", **asked)
            if scenario == "stream":
                said = litellm.stream_chunk_builder(list(said), messages=messages)
            message = said.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content
            for call in message.tool_calls:
                result = common.result_of(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    finally:
        time.sleep(1)  # its callbacks run in a thread


common.play(answer)
