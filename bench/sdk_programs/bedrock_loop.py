"""Amazon Bedrock's converse by boto3, in a loop."""

import common

common.trace_all()

import boto3  # noqa: E402
from botocore.config import Config  # noqa: E402

client = boto3.client(
    "bedrock-runtime",
    region_name="us-east-1",
    endpoint_url=common.URL,
    aws_access_key_id="none",
    aws_secret_access_key="none",
    config=Config(retries={"total_max_attempts": 1}),
)
MODEL = "anthropic.claude-sonnet-4-5-20250929-v1:0"
SPEC = {"name": "get_weather", "description": common.DESCRIPTION}
SPEC |= {"inputSchema": {"json": common.SCHEMA}}


def answer(question: str, scenario: str) -> str:
    messages: list = [{"role": "user", "content": [{"text": question}]}]
    while True:
        said = client.converse(
            modelId=MODEL,
            system=[{"text": common.SYSTEM}],
            messages=list(messages),
            toolConfig={"tools": [{"toolSpec": SPEC}]},
        )["output"]["message"]
        messages.append(said)
        calls = [block["toolUse"] for block in said["content"] if "toolUse" in block]
        if not calls:
            return "".join(block.get("text", "") for block in said["content"])
        results = [
            {
                "toolResult": {
                    "toolUseId": call["toolUseId"],
                    "content": [{"text": common.result_of(call["input"])}],
                }
            }
            for call in calls
        ]
        messages.append({"role": "user", "content": results})


common.play(answer)
