"""An installation under load: agents send runs by REST and OTLP, evaluations and classifications
are started, a channel is promoted and rolled back. What was acknowledged is remembered.
"""

from __future__ import annotations

import re
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx2
from django.db import connections
from msgspec import structs

from apps.core.actions import create_api_key
from apps.core.models import Project
from apps.core.scopes import Scope
from apps.promotion import actions, policies
from apps.promotion.models import Promotion
from tests import factories as make
from tests.chaos import clock
from tests.flywheel.faults import Sender
from tests.flywheel.installation import Inbox, Installation
from tests.flywheel.machine import Machine, up
from tests.serving.scripted import scripted

SENDERS, PAUSE_S, TURN_S = 2, 0.5, 1.0
TASKS, SAMPLES = 32, 2
FAKE_GPU = """#!/bin/sh
test -e {gone} && {{ echo "No devices were found"; exit 6; }}
echo "Simulated GPU, 81920"
"""


@dataclass(frozen=True)
class Acknowledged:
    """What was answered with 2xx: names of runs, ids of evaluations, moves of the channel."""

    runs: list[str]
    evaluations: list[str]
    moves: list[str]


class Operator(threading.Thread):
    """Promotes and rolls back in turn, and has evaluations and classifications run."""

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self.world, self.stopping = world, threading.Event()
        self.evaluations = list[str]()
        self.moves = list[str]()
        self.refused = list[str]()

    def run(self) -> None:
        turn = 0
        with httpx2.Client(
            base_url=f"http://127.0.0.1:{self.world.it.port}/api/v1",
            headers={"Authorization": f"Bearer {self.world.key}"},
            timeout=20,
        ) as client:
            while not self.stopping.wait(TURN_S):
                turn += 1
                try:
                    (self.move, self.move, self.classify)[turn % 3](client)
                    if turn % 4 == 1:
                        self.evaluate(client)
                except (httpx2.HTTPError, KeyError, ValueError) as error:
                    self.refused.append(type(error).__name__)

    def move(self, client: httpx2.Client) -> None:
        """To where the channel is not: what it runs is read first, since an answer may be lost."""
        live = client.get("/channels/production/").json()["model"]
        if live == self.world.versions["alpha"]:
            self.promote()
            return
        body = {"from_version": live, "reason": "worse"}
        if self.is_done(client.post("/channels/production/rollback/", json=body)):
            self.moves.append(Promotion.Kind.ROLLBACK)

    def promote(self) -> None:
        """By an owner, on the page: what was rolled back is not promoted by a key."""
        page = self.world.it.client.get(self.world.report_page)
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)
        if token is None:
            raise ValueError(f"the report's page is {page.status_code}")
        sent = self.world.it.client.post(
            f"{self.world.report_page}promote/",
            data={"reason": "better", "csrfmiddlewaretoken": token[1]},
            headers={"Referer": str(self.world.it.client.base_url)},
            follow_redirects=True,
        )
        if "is now live in" in sent.text:
            self.moves.append(Promotion.Kind.PROMOTE)
        else:
            self.refused.append(f"promote: {sent.status_code}")

    def classify(self, client: httpx2.Client) -> None:
        self.is_done(client.post("/classification/", json={}))

    def evaluate(self, client: httpx2.Client) -> None:
        body = {
            "eval_set": self.world.eval_set,
            "split": "holdout",
            "environment": self.world.environment,
            "model_version": self.world.versions["alpha"],
            "samples_per_task": SAMPLES,
        }
        answer = client.post("/eval-runs/", json=body)
        if self.is_done(answer):
            self.evaluations.append(answer.json()["id"])

    def is_done(self, answer: httpx2.Response) -> bool:
        if answer.is_success:
            return True
        self.refused.append(f"{answer.status_code} {answer.text[:200]}")
        return False


class World:
    """`folder` holds the data folder, temporary files, the clock and the simulated GPU."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stack = folder, ExitStack()
        self.machine = Machine(folder / "data")
        self.temporary = folder / "tmp"
        self.temporary.mkdir(mode=0o1777)
        self.temporary.chmod(0o1777)
        self.clock = folder / "clock"
        self.has_clock = False
        self.gpu_gone = folder / "gpu-is-gone"
        self._rounds: tuple[list[Sender], Operator] | None = None
        self._number = 0
        self.acknowledged = Acknowledged([], [], [])
        self.problems = list[str]()

    def start(self) -> None:
        tool = self.folder / "bin" / "nvidia-smi"
        tool.parent.mkdir()
        tool.write_text(FAKE_GPU.format(gone=self.gpu_gone))
        tool.chmod(0o755)
        path = self.machine.env()["PATH"]
        moved = clock.environment(self.clock)
        self.has_clock = moved is not None
        self.machine.environment |= {
            "TMPDIR": str(self.temporary),
            "PATH": f"{tool.parent}:{path}",
            "FLYWHEEL_ALLOW_PRIVATE_URLS": "1",
            **(moved or {}),
        }
        self.it = Installation(self.machine, Inbox())
        self.server = self.stack.enter_context(scripted("alpha"))
        self.server.models = ("alpha", "beta")
        self._fill()

    def start_again(self) -> None:
        """`up`, which was killed, as a process manager does."""
        up(self.machine, self.it.port)

    def _fill(self) -> None:
        self.project = project = Project.objects.get()
        by = project.memberships.first().user
        server = make.make_server(project, self.server.url, name="alpha", kind="vllm")
        alpha, beta = (
            make.make_endpoint(project, server, served_as=name, name=name)
            for name in ("alpha", "beta")
        )
        channel = policies.channel_of(project)
        policy = structs.replace(policies.policy_of(channel)[0], api_keys=True)
        policies.save_policy(channel=channel, policy=policy, reason="a script moves it", by=None)
        actions.set_initial(channel=channel, version=alpha, by=by)
        channel.refresh_from_db()
        eval_set = make.make_eval_set(project, train=8, holdout=TASKS)
        environment = make.make_environment(project)
        report = actions.make_gate_report(
            baseline=make.make_eval_run(eval_set, alpha, environment, success=0.0),
            candidate=make.make_eval_run(eval_set, beta, environment, success=1.0),
            by=by,
            channel=channel,
        )
        _, self.key = create_api_key(
            project=project, name="chaos", by=by, scopes=Scope.values, may_see_holdout=True
        )
        self.report_page, self.eval_set = report.get_absolute_url(), str(eval_set.pk)
        self.it.log_in()
        self.environment = f"{environment.slug}@{environment.version}"
        self.versions = {"alpha": str(alpha), "beta": str(beta)}

    def begin(self) -> None:
        """Traffic, until `end`."""
        assert self._rounds is None
        senders = []
        for _ in range(SENDERS):
            self._number += 1
            senders.append(
                Sender(f"http://127.0.0.1:{self.it.port}", self._number, pause_s=PAUSE_S)
            )
        operator = Operator(self)
        for thread in (*senders, operator):
            thread.start()
        self._rounds = senders, operator

    def pause(self, seconds: float) -> None:
        """Between two requests of each sender."""
        senders, _ = self._rounds or ([], None)
        for sender in senders:
            sender.pause_s = seconds

    def sent(self) -> int:
        senders, _ = self._rounds or ([], None)
        return sum(len(sender.acknowledged) for sender in senders)

    def end(self) -> None:
        assert self._rounds is not None
        (senders, operator), self._rounds = self._rounds, None
        for thread in (*senders, operator):
            thread.stopping.set()
        for thread in (*senders, operator):
            thread.join(120)
        for sender in senders:
            self.acknowledged.runs.extend(sender.acknowledged)
            if sender.refused["500"]:
                self.problems.append(f"{sender.refused['500']} answers were 500")
            if sender.failed:
                self.problems.append(f"a sender ended: {sender.failed}")
        self.acknowledged.evaluations.extend(operator.evaluations)
        self.acknowledged.moves.extend(operator.moves)
        self.refused = operator.refused

    def close(self) -> None:
        connections.close_all()
        self.stack.close()
        self.machine.kill_everything()
