"""What must be true once an installation has settled after a fault."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from django.db import InterfaceError, OperationalError, connection

from apps.core import lags
from apps.core.job_files import job_folder
from apps.core.kinds import job_models
from apps.core.models import AuditEvent, JobLog, JobState, Project
from apps.core.watching.conditions import check_all
from apps.evals.models import EvalRun, Task
from apps.promotion.models import Promotion
from apps.promotion.policies import channel_of
from apps.registry.artifacts import ArtifactError, require_there
from apps.registry.models import ModelKind, ModelVersion
from apps.training.models import DatasetRow, Example, TrainingRun
from tests.chaos.operator import SAMPLES, STEPS
from tests.chaos.world import TASKS, World
from workers.lib.lora_files import WEIGHTS

STUCK_S, SETTLES_S = 240.0, 1800.0
OURS = {"server_down"}  # the model server is a thread of this process, slow on a busy machine
IN_TRANSACTION = """
SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%%'
AND state_change < clock_timestamp() - interval '30 s' AND datname = current_database()
"""
ADVISORY = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
AUDIT = """
SELECT count(*), coalesce(md5(string_agg(md5(line::text), '' ORDER BY id)), ''), max(id)
FROM core_auditevent line WHERE id <= %s
"""
NO_LIMIT = 2**62
RESUMED = re.compile(r"continues from the checkpoint at step ([\d,]+)|begins at the start")


def rows(query: str, *values: object) -> list[tuple]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return cursor.fetchall()


def weights_of(run: TrainingRun) -> set[str]:
    """Their hash."""
    files = run.model_version.artifact.files
    return {file["sha256"] for file in files if file["path"] == WEIGHTS}


def command_of(pid: int) -> str:
    with suppress(OSError):
        folder = Path(f"/proc/{pid}")
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return f"{(folder / 'comm').read_text().strip()}: {command}"
    return "gone"


def is_warm(pid: int) -> bool:
    """Whether it is the process that trainings are forked from, which stays for two minutes."""
    return "workers.lib.warm" in (command := command_of(pid)) and command.startswith("python")


class Settled:
    """`audit`: (lines, their hash, the last id) when it was last looked at. `found`: violations of
    earlier rounds, which are no others' because they last. `waited`: the seconds until each kind of
    thing was done, this time.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.audit: tuple = (0, "", 0)
        self.found = set[str]()
        self.resumes = 0
        self.waited = dict[str, float]()

    def violations(self) -> list[str]:
        """Those that are new, once nothing is left to do."""
        new = [one for one in self._violations() if one not in self.found]
        self.found.update(new)
        return new

    def resumed_since(self) -> int:
        """How many attempts of trainings went on from a checkpoint since this was last asked."""
        before = self.resumes
        self.resumes = JobLog.objects.filter(message__contains="continues from the check").count()
        return self.resumes - before

    def _violations(self) -> list[str]:
        found = self._wait()
        for check in (
            self.runs,
            self.jobs,
            self.evaluations,
            self.trainings,
            self.resumed,
            self.holdout,
            self.channel,
            self.audit_log,
            self.leftovers,
        ):
            found += self._patiently(check)
        found += self.world.problems
        self.world.problems = []
        return found

    def _patiently(self, check: Callable[[], Iterator[str]]) -> list[str]:
        """What is wrong for longer than a moment, and was not found before."""
        until, wrong = time.monotonic() + 30, [""]
        while wrong and (time.monotonic() < until or wrong == [""]):
            try:
                named = [f"{check.__name__}: {one}" for one in check()]
                wrong = [one for one in named if one not in self.found]
            except (OperationalError, InterfaceError) as error:
                connection.close()
                wrong = [f"{check.__name__}: not checked: {error}"]
            if wrong:
                time.sleep(1)
        return wrong

    def _wait(self) -> list[str]:
        """Until nothing is left to do; gives up once nothing has changed for STUCK_S."""
        began = changed = time.monotonic()
        self.waited, state = {}, ()
        while left := self._left():
            now = time.monotonic()
            self.waited |= {kind: round(now - began, 1) for kind, _ in left}
            if (latest := self._progress()) != state:
                state, changed = latest, now
            if now - changed > STUCK_S or now - began > SETTLES_S:
                return [sentence for _, sentence in left]
            time.sleep(1)
        return []

    def _progress(self) -> tuple:
        """Another one once anything was done."""
        try:
            jobs = [
                (job.pk, job.state, job.attempt, job.done, job.last_seq)
                for model in job_models()
                for job in model.objects.active().order_by("pk")
            ]
            waiting = [lag.since() for lag in lags._lags.values()]
        except (OperationalError, InterfaceError):
            return ()
        return *jobs, *waiting

    def _left(self) -> list[tuple[str, str]]:
        """(kind, sentence) of what is to be done yet, or is not well, and was not found before."""
        try:
            left = [*self._undone(), *self._unwell()]
        except (OperationalError, InterfaceError) as error:
            with suppress(Exception):
                connection.close()
            left = [("database", f"the database: {error}")]
        named = [(kind, f"settle: {sentence}") for kind, sentence in left]
        return [one for one in named if one[1] not in self.found]

    def _undone(self) -> Iterator[tuple[str, str]]:
        for model in job_models():
            for job in model.objects.active():
                kind = model.__name__
                yield kind, f"{kind} {job.pk} {job.state}, attempt {job.attempt}"
        if (arrived := rows("SELECT count(*) FROM trajectories_arrival")[0][0]) > 0:
            yield "arrivals", f"{arrived} arrivals are not digested"
        waiting = "SELECT count(*) FROM trajectories_trace WHERE due_at IS NOT NULL"
        if (traces := rows(waiting)[0][0]) > 0:
            yield "traces", f"{traces} traces are not assembled"

    def _unwell(self) -> Iterator[tuple[str, str]]:
        for one in check_all():
            name = one.condition.name
            if one.unknown:
                yield name, f"doctor: {name} is unknown: {one.unknown}"
            if name not in OURS:
                for finding in one.findings:
                    yield name, f"doctor: {name}: {finding.says}"

    def runs(self) -> Iterator[str]:
        stored = Counter(
            name for (name,) in rows("SELECT external_id FROM trajectories_trajectory")
        )
        acknowledged = self.world.acknowledged.runs
        if missing := [name for name in acknowledged if name not in stored]:
            yield f"{len(missing)} acknowledged runs are missing: {missing[:3]}"
        if doubled := [name for name, count in stored.items() if count > 1]:
            yield f"{len(doubled)} runs are stored more than once: {doubled[:3]}"
        counts = {
            table: rows(f"SELECT count(*) FROM trajectories_{table}")[0][0]
            for table in ("trajectorykey", "content")
        }
        counts["hourlycount"] = int(
            rows("SELECT coalesce(sum(trajectories), 0) FROM trajectories_hourlycount")[0][0]
        )
        for table, count in counts.items():
            if count != len(stored):
                yield f"{count} of {table} for {len(stored)} runs"

    def jobs(self) -> Iterator[str]:
        for model in job_models():
            for job in model.objects.filter(state=JobState.FAILED).order_by("created_at"):
                error = job.error[-300:]
                yield f"{model.__name__} {job.pk} failed (attempt {job.attempt}): {error}"

    def evaluations(self) -> Iterator[str]:
        """Each was done once: every task has as many samples as were asked for."""
        asked = self.world.acknowledged.evaluations
        found = {str(run.pk): run for run in EvalRun.objects.filter(pk__in=asked)}
        for pk in asked:
            if pk not in found:
                yield f"the evaluation {pk} was acknowledged and is not there"
                continue
            samples = found[pk].samples.values_list("task_id", "index")
            if len(samples) != len(set(samples)) or len(samples) != TASKS * SAMPLES:
                yield f"{pk} ({found[pk].state}) has {len(samples)} samples"

    def trainings(self) -> Iterator[str]:
        """Each made its version, in all its steps, and the same data and seed gave the same weights
        whatever happened meanwhile.
        """
        runs = {str(run.pk): run for run in TrainingRun.objects.select_related("model_version")}
        for pk in self.world.acknowledged.trainings:
            if pk not in runs:
                yield f"the training {pk} was acknowledged and is not there"
        weights: dict[int, set[str]] = {}
        for run in runs.values():
            if run.state == JobState.SUCCEEDED and run.model_version:
                yield from self._trained(run)
                weights.setdefault(run.spec["seed"], set()).update(weights_of(run))
            elif run.state == JobState.SUCCEEDED or run.model_version:
                yield f"{run.pk} ({run.state}) made {run.model_version}"
            elif run.state == JobState.CANCELLED and str(run.pk) not in self.world.stopped:
                yield f"{run.pk} was cancelled by nobody"
        for seed, found in weights.items():
            if len(found) != 1:
                yield f"the trainings of seed {seed} ended with {len(found)} different weights"
        adapters = ModelVersion.objects.filter(kind=ModelKind.ADAPTER)
        if lost := adapters.filter(made_by=None).count():
            yield f"{lost} versions are no training's"

    def _trained(self, run: TrainingRun) -> Iterator[str]:
        steps = run.metrics.filter(name="train/loss").values_list("step", flat=True)
        if sorted(steps) != [*range(1, STEPS + 1)]:
            yield f"{run.pk} has {len(steps)} steps: {sorted(steps)}"
        try:
            require_there(run.model_version.artifact)
        except ArtifactError as error:
            yield f"{run.pk}: {error}"

    def resumed(self) -> Iterator[str]:
        """Each attempt began where the last checkpoint before it was."""
        for run in TrainingRun.objects.filter(attempt__gt=1):
            checkpoints = [(one.attempt, one.step) for one in run.checkpoints.all()]
            lines = JobLog.objects.filter(job=run.pk, message__startswith="Attempt ")
            for attempt, message in lines.values_list("attempt", "message"):
                if not (said := RESUMED.search(message)):
                    continue
                step = int((said[1] or "0").replace(",", ""))
                newest = max((at for by, at in checkpoints if by < attempt), default=0)
                if step < newest:
                    yield f"{run.pk}: {message} There was a checkpoint at step {newest}."

    def holdout(self) -> Iterator[str]:
        """Nothing that is held out is in a dataset that trains, or was given to a training."""
        held_out = Task.objects.filter(split="holdout")
        for model in (Example, DatasetRow):
            if learned := model.objects.filter(task__in=held_out).count():
                yield f"{learned} of {model.__name__} are of hold-out tasks"
        requests = [
            json.dumps(messages[-1]["content"])
            for messages in held_out.values_list("messages", flat=True)
        ]
        for run in TrainingRun.objects.all():
            for spec in job_folder(run).glob("spec-*.json"):
                text = spec.read_text()
                if shown := [request for request in requests if request in text]:
                    yield f"{spec} has {len(shown)} requests of hold-out tasks"

    def channel(self) -> Iterator[str]:
        """One version is live: the one to which the last of an unbroken chain of moves led."""
        channel = channel_of(Project.objects.get())
        moves = list(channel.promotions.order_by("id"))
        live = None
        for move in moves:
            if move.from_version_id != live:
                yield f"move {move.pk} began at {move.from_name}, which was not live"
            live = move.to_version_id
        if channel.current_id != live:
            yield f"{channel.current} is live, and the last move led to {moves[-1].to_name}"
        for kind in (Promotion.Kind.PROMOTE, Promotion.Kind.ROLLBACK):
            made = sum(move.kind == kind for move in moves)
            if made < (answered := self.world.acknowledged.moves.count(kind)):
                yield f"{answered} moves were acknowledged as {kind}, {made} are there"
            audited = AuditEvent.objects.filter(action=f"channel.{kind}").count()
            if audited != made:
                yield f"{made} moves ({kind}), {audited} lines in the audit log"

    def audit_log(self) -> Iterator[str]:
        """Lines are only ever added."""
        count, digest, last = self.audit
        again = rows(AUDIT, last)[0][:2] if last else (0, "")
        if again != (count, digest):
            yield f"{count} lines were {again[0]} later, or others"
        else:
            self.audit = rows(AUDIT, NO_LIMIT)[0]

    def leftovers(self) -> Iterator[str]:
        """Of what ended: processes, folders, transactions, locks."""
        machine = self.world.machine
        if running := [pid for pid in machine.processes("-m\0workers.") if not is_warm(pid)]:
            yield f"processes of jobs that ended: {[*map(command_of, running)]}"
        for model in job_models():
            folder = machine.data / "jobs" / model._meta.model_name
            there = {path.name for path in folder.glob("*")} if folder.exists() else set()
            known = {
                str(pk) for pk in model.objects.filter(pk__in=there).values_list("pk", flat=True)
            }
            if lost := there - known:
                yield f"{len(lost)} folders of jobs that are not there"
        if incoming := [*machine.data.rglob("incoming-*")]:
            yield f"half-made folders: {[path.name for path in incoming][:5]}"
        if held := rows(IN_TRANSACTION)[0][0]:
            yield f"{held} transactions are open and idle"
        if waiting := rows(ADVISORY)[0][0]:
            yield f"{waiting} wait for an advisory lock"
