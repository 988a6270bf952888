"""What people, agents of the endpoint and the schedule do in a day of the soak, beside the runs."""

from __future__ import annotations

import itertools
import threading
from collections import Counter

import httpx2
from django.conf import settings
from django.urls import reverse

from apps.core.models import Project
from flywheel import alive
from flywheel.celery import app
from tests.chaos.world import World
from tests.factories import row
from tests.flywheel.faults import KEY, ask, endpoint_url

PAGES = (
    "dashboard:home",
    "trajectories:list",
    "trajectories:steps",
    "trajectories:sessions",
    "failures:list",
    "evals:list",
    "promotion:models",
    "training:list",
)
WHOLE = ("/operator/", "/metrics", "/readyz", "/?all")
API = ("trajectories", "eval-runs", "failures", "channels/production")
MOST_WAITING = 20
TICKS_S = 10.0  # everything that is scheduled, hourly or not, is done every so many seconds


class Repeated(threading.Thread):
    """Does `step` again and again, until it is told to stop."""

    def __init__(self, pause_s: float) -> None:
        super().__init__(daemon=True)
        self.pause_s, self.stopping = pause_s, threading.Event()
        self.done: Counter[str] = Counter()

    def run(self) -> None:
        while not self.stopping.wait(self.pause_s):
            try:
                self.step()
            except Exception as error:
                self.done[type(error).__name__] += 1

    def step(self) -> None:
        raise NotImplementedError


class Reader(Repeated):
    """Opens pages, and reads by API."""

    def __init__(self, world: World, pause_s: float) -> None:
        super().__init__(pause_s)
        project = Project.objects.get()
        pages = [reverse(name, args=[project.slug]) for name in PAGES]
        self.paths = itertools.cycle([*pages, *WHOLE, *(f"/api/v1/{name}/" for name in API)])
        self.client = httpx2.Client(
            base_url=world.it.client.base_url, cookies=world.it.client.cookies, timeout=60
        )

    def step(self) -> None:
        path = next(self.paths)
        headers = {"Authorization": f"Bearer {KEY}"} if path.startswith("/api/") else {}
        self.done[f"{path} {self.client.get(path, headers=headers).status_code}"] += 1


class Asker(Repeated):
    """Asks the endpoint, half of the time for a stream."""

    def __init__(self, world: World, pause_s: float) -> None:
        super().__init__(pause_s)
        self.url, self.numbers = endpoint_url(world.machine), itertools.count()

    def step(self) -> None:
        self.done["answered" if ask(self.url, next(self.numbers)) else "not answered"] += 1


class Failing(Repeated):
    """Sends runs that failed, for the judge."""

    def __init__(self, world: World, pause_s: float) -> None:
        super().__init__(pause_s)
        self.url, self.numbers = f"http://127.0.0.1:{world.it.port}", itertools.count()
        self.client = httpx2.Client(headers={"Authorization": f"Bearer {KEY}"}, timeout=60)

    def step(self) -> None:
        number = next(self.numbers)
        sent = row(f"failed-{number}", f"Close ticket {number}.", outcome={"status": "failure"})
        answer = self.client.post(f"{self.url}/api/v1/trajectories/", json=sent)
        self.done[str(answer.status_code)] += 1


class Ticks(Repeated):
    """What is done hourly is done as often as what is done every ten seconds, unless workers are
    behind: the messages of all these ticks would be what grows.
    """

    def __init__(self) -> None:
        super().__init__(TICKS_S / len(settings.CELERY_BEAT_SCHEDULE))
        self.tasks = itertools.cycle(
            entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()
        )

    def step(self) -> None:
        task = next(self.tasks)
        if alive.client().llen("default") < MOST_WAITING:
            app.send_task(task, expires=TICKS_S)
            self.done["sent"] += 1
