"""An installation under load: agents send runs by REST and OTLP, and an operator works with it.
What was acknowledged is remembered.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from django.db import DatabaseError, InterfaceError, connections
from msgspec import structs

from apps.core.actions import create_api_key
from apps.core.kinds import job_models
from apps.core.models import JobLog, Project
from apps.core.scopes import Scope
from apps.promotion import actions, policies
from apps.registry.actions import register_base
from tests import factories as make
from tests.chaos import clock
from tests.chaos.operator import Operator
from tests.flywheel.faults import Sender
from tests.flywheel.installation import Inbox, Installation
from tests.flywheel.machine import ROOT, Machine, up
from tests.serving.scripted import scripted

SENDERS, PAUSE_S = 2, 0.5
TASKS = 32  # of the hold-out
FAKE_GPU = """#!/bin/sh
test -e {gone} && {{ echo "No devices were found"; exit 6; }}
echo "Simulated GPU, 81920"
"""


MODEL = ROOT / "var" / "chaos" / "tiny"  # made once: torch's imports are most of a start
TINY = """
import sys
from pathlib import Path
from tests.workers.conftest import make_tiny_model
make_tiny_model(Path(sys.argv[1]))
"""


@dataclass(frozen=True)
class Acknowledged:
    """What was answered with 2xx: names of runs, ids of evaluations and trainings, moves of the
    channel.
    """

    runs: list[str] = field(default_factory=list)
    evaluations: list[str] = field(default_factory=list)
    trainings: list[str] = field(default_factory=list)
    moves: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        return {name: len(done) for name, done in vars(self).items()}


class World:
    """`folder` holds the data folder, temporary files, the clock and the simulated GPU. `stopped`:
    ids of trainings that the operator asked to stop. `trains`: whether it trains now.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.trains, self.stack = folder, False, ExitStack()
        self.machine = Machine(folder / "data")
        self.temporary = folder / "tmp"
        self.temporary.mkdir(mode=0o1777)
        self.temporary.chmod(0o1777)
        self.clock = folder / "clock"
        self.has_clock = False
        self.gpu_gone = folder / "gpu-is-gone"
        self._rounds: tuple[list[Sender], Operator] | None = None
        self._number = 0
        self.acknowledged = Acknowledged()
        self.stopped = set[str]()
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
            "OMP_NUM_THREADS": "1",  # two threads wait for each other on a busy machine
            "FLYWHEEL_WARM_S": "3600",  # torch's imports take most of a small training
            "FLYWHEEL_MODEL_FOLDERS": str(self.machine.data / "models"),
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
        if not MODEL.exists():
            subprocess.run([sys.executable, "-c", TINY, str(MODEL)], cwd=ROOT, check=True)
        tiny = shutil.copytree(MODEL, self.machine.data / "models" / "tiny")
        base = register_base(project=project, name="tiny", folder=tiny, by=by)
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
        self.training_data = f"{eval_set.slug}@{eval_set.version}"
        self.it.log_in()
        self.environment = f"{environment.slug}@{environment.version}"
        self.versions = {"alpha": str(alpha), "beta": str(beta), "base": str(base)}

    def begin(self, *, trains: bool = False) -> None:
        """Traffic, until `end`."""
        assert self._rounds is None
        self.trains = trains
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

    def is_busy(self) -> bool:
        """Whether runs arrive, and the operator has started in this round what it can."""
        assert self._rounds is not None
        operator = self._rounds[1]
        trains = operator.trainings or operator.resumed or not self.trains
        return self.sent() > 20 and bool(operator.evaluations and trains)

    def end(self) -> None:
        assert self._rounds is not None
        (senders, operator), self._rounds = self._rounds, None
        for thread in (*senders, operator):
            thread.stopping.set()
        for thread in (*senders, operator):
            thread.join(150)
            if thread.is_alive():
                self.problems.append(f"{type(thread).__name__} has waited for 150 s")
        for sender in senders:
            self.acknowledged.runs.extend(sender.acknowledged)
            if sender.refused["500"]:
                self.problems.append(f"{sender.refused['500']} answers were 500")
            if sender.failed:
                self.problems.append(f"a sender ended: {sender.failed}")
        self.acknowledged.evaluations.extend(operator.evaluations)
        self.acknowledged.trainings.extend(operator.trainings)
        self.acknowledged.moves.extend(operator.moves)
        self.refused = operator.refused
        if failed := [answer for answer in self.refused if " 500" in f" {answer}"]:
            self.problems.append(f"the operator was answered with 500: {failed[:2]}")

    def keep_evidence(self, folder: Path) -> None:
        """Copies what tells why: logs, what jobs said, and all jobs."""
        with suppress(OSError):
            shutil.copytree(self.machine.data / "logs", folder, dirs_exist_ok=True)
            for path in (self.machine.data / "jobs").glob("*/*/stderr-*.log"):
                if path.stat().st_size:
                    shutil.copy(path, folder / f"{path.parent.name}-{path.name}")
        with suppress(DatabaseError, InterfaceError):
            jobs = [job for model in job_models() for job in model.objects.values()]
            lines = [*jobs, *JobLog.objects.order_by("pk").values()]
            text = "".join(json.dumps(line, default=str) + "\n" for line in lines)
            (folder / "jobs.jsonl").write_text(text)

    def close(self) -> None:
        connections.close_all()
        self.stack.close()
        self.machine.kill_everything()
