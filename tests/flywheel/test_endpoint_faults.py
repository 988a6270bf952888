"""What the endpoint answered is there, once: the endpoint and PostgreSQL are killed right after answers."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx2

from tests.flywheel.machine import Machine, eventually, free_port, up
from tests.serving.scripted import scripted

KEY = "fw_test-key-0123456789"
SEED = """
from apps.core.models import Project
from apps.promotion import actions
from apps.promotion.policies import channel_of
from apps.registry.actions import register_endpoint
from apps.registry.servers import add_server
project = Project.objects.get()
by = project.memberships.first().user
server = add_server(project=project, fields={{"name": "alpha", "kind": "vllm", "base_url": "{url}"}}, by=by, operator=True)
version = register_endpoint(project=project, server=server, served_as="m", name="m", by=by)
actions.set_initial(channel=channel_of(project), version=version, by=by)
"""
COUNTED = """
from apps.trajectories.models import Trajectory
import json
print(json.dumps(sorted(Trajectory.objects.values_list("preview", flat=True))))
"""


def endpoint_url(machine: Machine) -> str:
    words = _command(min(machine.processes("flywheel.endpoint:application")))
    return f"http://127.0.0.1:{words[words.index('--port') + 1]}"


def _command(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def ask(url: str, number: int) -> bool:
    """Whether it was answered. Half of them as a stream."""
    message = {"role": "user", "content": f"Question {number:03}"}
    body: dict[str, Any] = {"model": "production", "messages": [message], "stream": bool(number % 2)}
    try:
        with httpx2.Client(headers={"Authorization": f"Bearer {KEY}"}, timeout=30, trust_env=False) as client:
            answer = client.post(f"{url}/v1/chat/completions", json=body)
    except httpx2.HTTPError:
        return False
    return answer.status_code == 200 and "alpha" in answer.text


def test_what_was_answered_is_there_once(machine: Machine) -> None:
    machine.environment |= {"FLYWHEEL_API_KEY": KEY, "FLYWHEEL_ALLOW_PRIVATE_URLS": "1"}
    up(machine, free_port())
    url, answered = endpoint_url(machine), list[str]()

    def ask_some(first: int) -> None:
        for number in range(first, first + 6):
            assert ask(url, number)
            answered.append(f"Question {number:03}")

    with scripted("alpha") as server:
        machine.python(SEED.format(url=server.url))
        eventually(lambda: ask(url, 0))
        answered.append("Question 000")
        ask_some(10)
        os.kill(max(machine.processes("flywheel.endpoint:application")), signal.SIGKILL)
        eventually(lambda: ask(url, 1))
        answered.append("Question 001")
        postmaster = machine.postmaster()
        os.kill(postmaster, signal.SIGKILL)
        ask_some(20)  # nobody waits for the database
        os.kill(min(machine.processes("flywheel.endpoint:application")), signal.SIGKILL)  # the master, and with it all
        eventually(lambda: ask(url, 2))
        answered.append("Question 002")

    def all_there() -> bool:
        found = json.loads(machine.python(COUNTED))
        assert len(found) == len(set(found)), found
        return set(answered) <= set(found)

    eventually(all_there)
