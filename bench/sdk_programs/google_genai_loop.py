"""Google's Gen AI SDK in a loop."""

import common

common.trace_all()

from google import genai  # noqa: E402
from google.genai import types  # noqa: E402

client = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=common.URL))
TOOL = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(
            name="get_weather",
            description=common.DESCRIPTION,
            parameters_json_schema=common.SCHEMA,
        )
    ]
)
CONFIG = types.GenerateContentConfig(
    system_instruction=common.SYSTEM,
    tools=[TOOL],
    automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
)


def answer(question: str, scenario: str) -> str:
    contents = [types.Content(role="user", parts=[types.Part(text=question)])]
    while True:
        asked = {"model": "gemini-2.5-flash", "contents": list(contents), "config": CONFIG}
        if scenario == "stream":
            chunks = list(client.models.generate_content_stream(**asked))
            parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts or ()]
        else:
            parts = client.models.generate_content(**asked).candidates[0].content.parts
        contents.append(types.Content(role="model", parts=parts))
        calls = [part.function_call for part in parts if part.function_call]
        if not calls:
            return "".join(part.text or "" for part in parts if not part.thought)
        replies = [
            types.Part(
                function_response=types.FunctionResponse(
                    id=call.id, name=call.name, response={"result": common.result_of(call.args)}
                )
            )
            for call in calls
        ]
        contents.append(types.Content(role="user", parts=replies))


common.play(answer)
