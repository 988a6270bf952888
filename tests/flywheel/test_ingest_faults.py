"""What was acknowledged is there, once: web and PostgreSQL are killed while agents send."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter

import httpx2

from tests.factories import row
from tests.flywheel.machine import Machine, eventually, free_port, health, up

KEY = "fw_test-key-0123456789"
SECONDS = 6


class Sender(threading.Thread):
    """Sends batches and traces until it is told to stop; keeps the ids of what was acknowledged."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(daemon=True)
        self.url, self.number, self.stopping = url, number, threading.Event()
        self.acknowledged: list[str] = []
        self.refused: Counter[str] = Counter()

    def run(self) -> None:
        count = 0
        with httpx2.Client(headers={"Authorization": f"Bearer {KEY}"}, timeout=20) as client:
            while not self.stopping.is_set():
                count += 1
                path, body, names = self.traces(count) if count % 3 == 0 else self.rows(count)
                while not self.stopping.is_set() and not self.send(client, path, body, names):
                    time.sleep(0.1)  # and sends the same again, as an exporter does

    def send(self, client: httpx2.Client, path: str, body: bytes, names: list[str]) -> bool:
        try:
            answer = client.post(f"{self.url}{path}", content=body, headers={"Content-Type": "application/json"})
        except httpx2.HTTPError as error:
            self.refused[type(error).__name__] += 1
            return False
        if answer.status_code != 200:
            self.refused[str(answer.status_code)] += 1
            return False
        assert not answer.json().get("rejected") and not answer.json().get("partialSuccess"), answer.text
        self.acknowledged += names
        return True

    def rows(self, count: int) -> tuple[str, bytes, list[str]]:
        names = [f"{self.number}-{count}-{n}" for n in range(20)]
        started = "2026-11-01T00:00:00Z"
        body = [row(name=name, started_at=started, call={"tool": "files.share", "args": {}}) for name in names]
        return "/api/v1/trajectories/batch/", json.dumps(body).encode(), names

    def traces(self, count: int) -> tuple[str, bytes, list[str]]:
        names = [f"{self.number:08x}{count:016x}{n:08x}" for n in range(1, 6)]
        said = json.dumps([{"role": "user", "parts": [{"type": "text", "content": f"Question {count}"}]}])
        given = {"gen_ai.operation.name": "invoke_agent", "gen_ai.input.messages": said, "gen_ai.agent.name": "a"}
        spans = [
            {
                "traceId": name,
                "spanId": "0000000000000001",
                "name": "invoke_agent",
                "startTimeUnixNano": "1790000000000000000",
                "endTimeUnixNano": "1790000001000000000",
                "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in given.items()],
            }
            for name in names
        ]
        return "/v1/traces", json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode(), names


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


COUNTED = """
from apps.trajectories.models import Trajectory, TrajectoryKey, HourlyCount, Trace, Content
from django.db.models import Sum
import json
print(json.dumps({
    "names": list(Trajectory.objects.values_list("external_id", flat=True)),
    "keys": TrajectoryKey.objects.count(),
    "contents": Content.objects.count(),
    "counted": HourlyCount.objects.aggregate(n=Sum("trajectories"))["n"],
    "waiting": Trace.objects.filter(due_at__isnull=False).count(),
}))
"""


def test_what_was_acknowledged_is_there_once(machine: Machine) -> None:
    machine.environment |= {"FLYWHEEL_API_KEY": KEY}
    port = free_port()
    up(machine, port)
    senders = [Sender(f"http://127.0.0.1:{port}", number) for number in range(1, 5)]
    for sender in senders:
        sender.start()
    for kill in (machine.postmaster, lambda: min(machine.processes("granian")), machine.postmaster):
        time.sleep(SECONDS / 4)
        os.kill(kill(), signal.SIGKILL)
        recovers(port)
    time.sleep(SECONDS / 4)
    for sender in senders:
        sender.stopping.set()
    for sender in senders:
        sender.join(30)
    acknowledged = [name for sender in senders for name in sender.acknowledged]
    assert len(acknowledged) == len(set(acknowledged)) > 400
    refused = sum((sender.refused for sender in senders), Counter())
    assert refused, "nothing was ever refused: the kills hit nothing"
    assert "500" not in refused, f"exporters drop what is answered with 500: {refused}"

    def stored() -> dict | None:
        found = json.loads(machine.python(COUNTED).splitlines()[-1])
        return found if found["waiting"] == 0 and found["counted"] == len(found["names"]) else None

    found = eventually(stored)
    assert set(acknowledged) <= set(found["names"])
    assert len(found["names"]) == len(set(found["names"])) == found["keys"] == found["contents"]
