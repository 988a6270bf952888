"""An agent of two turns that knows nothing of Flywheel but a file with its task.

`python two_turns_agent.py [WAY]`: each function below is a way to behave.
"""

import json
import os
import sys
import threading
import urllib.request
from pathlib import Path

BASE, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]


def ask(messages: list, **more: object) -> dict:
    body = json.dumps({"model": "flywheel", "messages": messages} | more).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"{BASE}/chat/completions", body, headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


def talk(messages: list, **more: object) -> list:
    first = ask(messages, **more)
    messages = [*messages, first, {"role": "user", "content": "Now digits."}]
    return [*messages, ask(messages, **more)]


def plain(messages: list) -> list:
    return talk(messages)


def hotter(messages: list) -> list:
    return talk(messages, temperature=0.1, top_p=0.5, seed=1)


def silent(messages: list) -> list:
    return [*messages, {"role": "assistant", "content": "abc"}] * 2


def makes_it_up(messages: list) -> list:
    return [*talk(messages)[:-1], {"role": "assistant", "content": "12345678"}]


def edits(messages: list) -> list:
    """Rewrites what it said before it goes on."""
    first = ask(messages)
    told = [*messages, first | {"content": f"Well: {first['content']}"}]
    told.append({"role": "user", "content": "Now digits."})
    return [*told[:-2], first, told[-1], ask(told)]


def forks(messages: list) -> list:
    """Has two others answer something else, at the same time, before it answers."""
    others = [
        threading.Thread(target=ask, args=([{"role": "user", "content": f"Side {n}"}],))
        for n in range(2)
    ]
    for other in others:
        other.start()
    for other in others:
        other.join()
    return talk(messages)


def many(messages: list) -> list:
    ask(messages, n=8)
    return messages


def crashes(messages: list) -> list:
    ask(messages)
    raise SystemExit("out of ideas")


if __name__ == "__main__":
    task = json.loads(Path(os.environ["FLYWHEEL_TASK"]).read_text())
    way = globals()[sys.argv[1] if len(sys.argv) > 1 else "plain"]
    print(json.dumps({"messages": way(task["messages"])}))
