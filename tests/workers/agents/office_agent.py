"""An agent with tools of its environment, which knows nothing of Flywheel but three variables: it
asks its model, runs the calls at the tools' address, and goes on until the model only answers.
"""

import json
import os
import sys
import urllib.request
from pathlib import Path

MODEL, TOOLS = os.environ["OPENAI_BASE_URL"], os.environ["FLYWHEEL_TOOLS_URL"]


def post(url: str, body: object) -> dict:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def main(way: str) -> None:
    task = json.loads(Path(os.environ["FLYWHEEL_TASK"]).read_text())
    messages = list(task["messages"])
    while True:
        asked = {"messages": messages, "tools": task["tools"]}
        said = post(f"{MODEL}/chat/completions", asked)["choices"][0]["message"]
        messages.append(said)
        if not said.get("tool_calls"):
            break
        for call in said["tool_calls"]:
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            arguments = json.loads(arguments)
            if way == "cheats":
                arguments = dict.fromkeys(arguments, "00000009")
            found = post(f"{TOOLS}/{name}", arguments)["output"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": found})


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "plain")
