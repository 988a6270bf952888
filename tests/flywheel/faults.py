"""What was acknowledged or answered is there, once: web, the endpoint and PostgreSQL are killed
while agents send and ask.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2

from tests.amounts import amount
from tests.factories import row
from tests.flywheel.machine import Machine, eventually, health
from tests.serving.scripted import scripted

KEY = "fw_test-key-0123456789"
# rows and traces that are acknowledged between two kills: however slow the machine is, each kill
# hits senders at work
A_WHILE = 120


class Sender(threading.Thread):
    """Sends batches and traces until it is told to stop, with a pause after each; keeps the ids of
    what was acknowledged. `failed`: why it ended by itself.
    """

    def __init__(self, url: str, number: int, pause_s: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.url, self.number, self.stopping = url, number, threading.Event()
        self.pause_s, self.failed = pause_s, ""
        self.acknowledged: list[str] = []
        self.refused: Counter[str] = Counter()

    def run(self) -> None:
        try:
            self.send_all()
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"
            raise

    def send_all(self) -> None:
        count = 0
        with httpx2.Client(headers={"Authorization": f"Bearer {KEY}"}, timeout=20) as client:
            while not self.stopping.is_set():
                count += 1
                path, body, names = self.traces(count) if count % 3 == 0 else self.rows(count)
                while not self.stopping.is_set() and not self.send(client, path, body, names):
                    time.sleep(0.1)  # and sends the same again, as an exporter does
                self.stopping.wait(self.pause_s)

    def send(self, client: httpx2.Client, path: str, body: bytes, names: list[str]) -> bool:
        try:
            answer = client.post(
                f"{self.url}{path}", content=body, headers={"Content-Type": "application/json"}
            )
        except httpx2.HTTPError as error:
            self.refused[type(error).__name__] += 1
            return False
        if answer.status_code != 200:
            self.refused[str(answer.status_code)] += 1
            return False
        assert not answer.json().get("rejected") and not answer.json().get("partialSuccess"), (
            answer.text
        )
        self.acknowledged += names
        return True

    def rows(self, count: int) -> tuple[str, bytes, list[str]]:
        names = [f"{self.number}-{count}-{n}" for n in range(20)]
        started = "2026-11-01T00:00:00Z"
        body = [
            row(name=name, started_at=started, call={"tool": "files.share", "args": {}})
            for name in names
        ]
        return "/api/v1/trajectories/batch/", json.dumps(body).encode(), names

    def traces(self, count: int) -> tuple[str, bytes, list[str]]:
        names = [f"{self.number:08x}{count:016x}{n:08x}" for n in range(1, 6)]
        said = json.dumps(
            [{"role": "user", "parts": [{"type": "text", "content": f"Question {count}"}]}]
        )
        given = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.input.messages": said,
            "gen_ai.agent.name": "a",
        }
        spans = [
            {
                "traceId": name,
                "spanId": "0000000000000001",
                "name": "invoke_agent",
                "startTimeUnixNano": "1790000000000000000",
                "endTimeUnixNano": "1790000001000000000",
                "attributes": [
                    {"key": key, "value": {"stringValue": value}} for key, value in given.items()
                ],
            }
            for name in names
        ]
        return (
            "/v1/traces",
            json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode(),
            names,
        )


def recovers(port: int) -> None:
    """Waits until all parts are well again. Fails with what the parts say."""
    said: list = [None]

    def well() -> bool:
        said[0] = health(port)
        return bool((said[0] or {}).get("healthy"))

    try:
        eventually(well)
    except AssertionError as error:
        raise AssertionError(f"{error}: {said[0]}") from error


STORED = """
import json, time
from apps.trajectories.models import Trajectory, TrajectoryKey, HourlyCount, Trace, Content
from django.db.models import Sum
for _ in range(500):
    names = list(Trajectory.objects.values_list("external_id", flat=True))
    counted = HourlyCount.objects.aggregate(n=Sum("trajectories"))["n"]
    waiting = Trace.objects.filter(due_at__isnull=False).count()
    if waiting == 0 and counted == len(names):
        break
    time.sleep(0.5)
print(json.dumps({
    "names": names, "counted": counted, "waiting": waiting, "keys": TrajectoryKey.objects.count(), \
"contents": Content.objects.count(),
}))
"""


def what_was_acknowledged_is_there_once(machine: Machine, port: int) -> None:
    senders = [Sender(f"http://127.0.0.1:{port}", number) for number in range(1, 5)]
    for sender in senders:
        sender.start()

    def acknowledged() -> list[str]:
        return [name for sender in senders for name in sender.acknowledged]

    def send_a_while() -> None:
        enough = len(acknowledged()) + A_WHILE
        eventually(lambda: len(acknowledged()) >= enough)

    kills = (machine.postmaster, lambda: machine.part("web")[0], machine.postmaster)
    for kill in amount(kills[:2], kills):
        send_a_while()
        os.kill(kill(), signal.SIGKILL)
        recovers(port)
    send_a_while()
    for sender in senders:
        sender.stopping.set()
    for sender in senders:
        sender.join()
    assert len(acknowledged()) == len(set(acknowledged())) >= 3 * A_WHILE
    refused = sum((sender.refused for sender in senders), Counter())
    assert refused, "nothing was ever refused: the kills hit nothing"
    assert "500" not in refused, f"exporters drop what is answered with 500: {refused}"

    all_are_stored_once(machine, acknowledged())


def all_are_stored_once(machine: Machine, acknowledged: list[str]) -> None:
    found = json.loads(machine.python(STORED).splitlines()[-1])
    assert found["waiting"] == 0 and found["counted"] == len(found["names"])
    assert set(acknowledged) <= set(found["names"])
    assert len(found["names"]) == len(set(found["names"])) == found["keys"] == found["contents"]


# By the endpoint

SEED = """
from apps.core.models import Project
from apps.promotion import actions
from apps.promotion.policies import channel_of
from apps.registry.actions import register_endpoint
from apps.registry.servers import add_server
project = Project.objects.get()
by = project.memberships.first().user
server = add_server(project=project, fields={{"name": "alpha", "kind": "vllm", "base_url": \
"{url}"}}, by=by, operator=True)
version = register_endpoint(project=project, server=server, served_as="m", name="m", by=by)
actions.set_initial(channel=channel_of(project), version=version, by=by)
"""
ANSWERED = """
import json, time
for _ in range(500):
    with connection.cursor() as cursor:
        cursor.execute("SELECT preview FROM trajectories_trajectory WHERE preview LIKE 'Asked %'")
        found = sorted(preview for (preview,) in cursor.fetchall())
    if set({answered!r}) <= set(found) or len(found) > len(set(found)):
        break
    time.sleep(0.5)
print(json.dumps(found))
"""


def endpoint_url(machine: Machine) -> str:
    (pid,) = eventually(lambda: machine.part("endpoint"))  # it may be starting again
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(line.split("=", 1) for line in variables if line)["FLYWHEEL_ENDPOINT_URL"]


def ask(url: str, number: int) -> bool:
    """Whether it was answered. Half of them as a stream."""
    message = {"role": "user", "content": f"Asked {number}"}
    body: dict[str, Any] = {
        "model": "production",
        "messages": [message],
        "stream": bool(number % 2),
    }
    try:
        with httpx2.Client(
            headers={"Authorization": f"Bearer {KEY}"}, timeout=300, trust_env=False
        ) as client:
            answer = client.post(f"{url}/v1/chat/completions", json=body)
    except httpx2.HTTPError:
        return False
    return answer.status_code == 200 and "alpha" in answer.text


def what_was_answered_is_there_once(machine: Machine) -> None:
    url, answered, numbers = endpoint_url(machine), list[str](), itertools.count()

    def is_answered() -> bool:
        """Each try is a question of its own: an answer may be kept and yet not reach who asked."""
        number = next(numbers)
        if is_it := ask(url, number):
            answered.append(f"Asked {number}")
        return is_it

    def ask_some() -> None:
        for _ in range(6):
            assert is_answered()

    with scripted("alpha") as server:
        machine.python(SEED.format(url=server.url))
        eventually(is_answered)
        ask_some()
        os.kill(machine.part("endpoint")[0], signal.SIGKILL)
        eventually(is_answered)
        postmaster = machine.postmaster()
        os.kill(postmaster, signal.SIGKILL)
        ask_some()  # nobody waits for the database
        os.kill(machine.part("forks")[0], signal.SIGKILL)  # and with it all parts
        eventually(is_answered)

    found = json.loads(
        machine.python(ANSWERED.format(answered=answered), apps=False).splitlines()[-1]
    )
    assert len(found) == len(set(found)), found
    assert set(answered) <= set(found)
