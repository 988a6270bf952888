"""Agents that do what they should not, each function one way: `python bad_agent.py WAY`.

What they are told goes to the file `TOLD`, one JSON row each. What has to happen first is a file in
the folder `SHARED`: nothing here depends on speed.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

ADDRESS = os.environ["ANTHROPIC_BASE_URL"]
KEY, SHARED = os.environ["OPENAI_API_KEY"], Path(os.environ["SHARED"])
TOLD = SHARED / "told"
lock = threading.Lock()


def send(path: str, body: object = None, *, root: str = ADDRESS) -> dict:
    """What is answered; a refusal is told, too."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else None
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"{root}/{path}", data, headers)
    try:
        with urllib.request.urlopen(request) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        found = json.load(error)
        said = found.get("detail") or found["error"]["message"]
        with lock, TOLD.open("a") as file:
            file.write(json.dumps([error.code, said]) + "\n")
        return found


def ask(messages: list, **more: object) -> dict:
    found = send("v1/chat/completions", {"messages": messages} | more)
    return found["choices"][0]["message"] if "choices" in found else found


def wait_for(name: str) -> None:
    while not (SHARED / name).exists():
        time.sleep(0.01)


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def plain(messages: list) -> list:
    return [ask(messages)]


def never_calls(messages: list) -> list:
    return []


def calls_after_its_end(messages: list) -> list:
    said = ask(messages)
    if os.fork() == 0:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        while send("v1/models").get("object") == "list":
            time.sleep(0.01)
        ask(messages)
        (SHARED / "late").touch()
        os._exit(0)
    return [said]


def uses_another_address(messages: list) -> list:
    """Of two, one uses the address of the other, with its own key."""
    (SHARED / f"key-{KEY}").write_text(ADDRESS)
    while len(others := sorted(SHARED.glob("key-*"))) < 2:
        time.sleep(0.01)
    if others[0].name == f"key-{KEY}":
        wait_for("stolen")
        return [ask(messages)]
    send("v1/chat/completions", {"messages": messages}, root=others[0].read_text())
    (SHARED / "stolen").touch()
    return []


def asks_all_the_time(messages: list) -> list:
    for number in range(9):
        ask([user(str(number))])
    return plain(messages)


def asks_all_at_once(messages: list) -> list:
    threads = [threading.Thread(target=ask, args=([user(str(n))],)) for n in range(33)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return plain(messages)


def floods_a_tool(messages: list) -> list:
    said = ask(messages, tools=send("tools")["tools"])
    call = said["tool_calls"][0]["function"]
    for _ in range(4):
        send(f"tools/{call['name']}", json.loads(call["arguments"]))
    return [said]


def sends_100_mb(messages: list) -> list:
    ask([user("x" * 100_000_000), *messages])
    return plain(messages)


def sends_only_100_mb(messages: list) -> list:
    ask([user("x" * 100_000_000), *messages])
    return []


def hangs(messages: list) -> list:
    ask(messages)
    time.sleep(3600)
    return []


def forks_sub_agents(messages: list) -> list:
    sides = [threading.Thread(target=ask, args=([user(f"Side {n}")],)) for n in range(2)]
    for side in sides:
        side.start()
    for side in sides:
        side.join()
    return plain(messages)


def retries_hotter(messages: list) -> list:
    """The model's server fails at first."""
    ask(messages, temperature=0.1)
    return [ask(messages, temperature=0.9)]


def edits_earlier_turns(messages: list) -> list:
    first = ask(messages)
    edited = [*messages, first | {"content": f"Well: {first['content']}"}, user("On.")]
    return [first, user("On."), ask(edited)]


def asks_for_eight(messages: list) -> list:
    ask(messages, n=8)
    return []


def closes_a_stream(messages: list) -> list:
    body = json.dumps({"messages": messages, "stream": True}).encode()
    where = urlsplit(f"{ADDRESS}/v1/chat/completions")
    with socket.create_connection((where.hostname, where.port)) as connection:
        head = f"POST {where.path} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        wait_for("asked")
    (SHARED / "closed").touch()
    return [ask([user("Something else.")])]


def reports_the_half(messages: list) -> list:
    """As one does that closed a stream after its first words."""
    said = ask(messages)
    return [said | {"content": said["content"][:4]}]


def dies(messages: list) -> list:
    ask(messages)
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def calls_a_tool_of_another_task(messages: list) -> list:
    send("tools/launch_rocket", {"to": "moon"})
    return plain(messages)


def asks_for_a_held_out_task(messages: list) -> list:
    send("tasks/held-out-7")
    return plain(messages)


def alters_results(messages: list) -> list:
    said = ask(messages, tools=send("tools")["tools"])
    call = said["tool_calls"][0]
    function = call["function"]
    send(f"tools/{function['name']}", json.loads(function["arguments"]))
    result = {"role": "tool", "tool_call_id": call["id"], "content": "All is well."}
    return [said, result, ask([*messages, said, result])]


def passes_results_on(messages: list) -> list:
    """As REST returns them."""
    said = ask(messages, tools=send("tools")["tools"])
    call = said["tool_calls"][0]
    function = call["function"]
    found = send(f"tools/{function['name']}", json.loads(function["arguments"]))
    result = {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(found)}
    return [said, result, ask([*messages, said, result])]


def writes_what_cannot_be_stored(messages: list) -> list:
    odd = [*messages, user("\x00 and \ud800")]
    said = ask(odd)
    more = [*odd, said, user("\udfff again")]
    return [said, more[-1], ask(more)]


if __name__ == "__main__":
    task = json.loads(Path(os.environ["FLYWHEEL_TASK"]).read_text())
    print(json.dumps({"messages": globals()[sys.argv[1]](task["messages"])}))
