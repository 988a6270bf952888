"""An agent for `flywheel-eval examples.agent:answer`: one call of an OpenAI-compatible server
(OPENAI_BASE_URL, MODEL).
"""

from __future__ import annotations

import os

import httpx
from flywheel_eval import Answer, Task


async def answer(task: Task) -> Answer:
    asked = {"model": os.environ["MODEL"], "messages": task.messages, "seed": task.sample}
    headers = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
    async with httpx.AsyncClient(
        base_url=os.environ["OPENAI_BASE_URL"], headers=headers, timeout=120
    ) as client:
        response = await client.post(
            "chat/completions", json=asked | ({"tools": task.tools} if task.tools else {})
        )
    said = response.raise_for_status().json()
    usage = said.get("usage", {})
    return Answer(
        messages=[said["choices"][0]["message"]],
        input_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
    )
