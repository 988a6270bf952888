"""What must be true once an installation has settled after a fault."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from django.db import InterfaceError, OperationalError, connection

from apps.core.kinds import job_models
from apps.core.models import AuditEvent, JobState, Project
from apps.core.watching.conditions import check_all
from apps.evals.models import EvalRun, Task
from apps.promotion.models import Promotion
from apps.promotion.policies import channel_of
from apps.training.models import Example
from tests.chaos.world import SAMPLES, TASKS, World

SETTLES_S = 420.0
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


def rows(query: str, *values: object) -> list[tuple]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return cursor.fetchall()


class Settled:
    """`audit`: (lines, their hash, the last id) when it was last looked at."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.audit: tuple = (0, "", 0)

    def violations(self) -> list[str]:
        """Waits until nothing is left to do, or SETTLES_S."""
        found = self._wait()
        for check in (
            self.runs,
            self.jobs,
            self.evaluations,
            self.holdout,
            self.channel,
            self.audit_log,
            self.leftovers,
        ):
            found += [f"{check.__name__}: {one}" for one in self._patiently(check)]
        found += self.world.problems
        self.world.problems = []
        return found

    def _patiently(self, check: Callable[[], Iterator[str]]) -> list[str]:
        """What is wrong for longer than a moment."""
        until, wrong = time.monotonic() + 30, [""]
        while wrong and (time.monotonic() < until or wrong == [""]):
            try:
                wrong = list(check())
            except (OperationalError, InterfaceError) as error:
                connection.close()
                wrong = [f"not checked: {error}"]
            if wrong:
                time.sleep(1)
        return wrong

    def _wait(self) -> list[str]:
        until = time.monotonic() + SETTLES_S
        while left := self._left():
            if time.monotonic() > until:
                return [f"settle: {one}" for one in left]
            time.sleep(1)
        return []

    def _left(self) -> list[str]:
        try:
            left = [
                f"{model.__name__} {job.pk} {job.state}, attempt {job.attempt}"
                for model in job_models()
                for job in model.objects.active()
            ]
            if (arrived := rows("SELECT count(*) FROM trajectories_arrival")[0][0]) > 0:
                left.append(f"{arrived} arrivals are not digested")
            waiting = "SELECT count(*) FROM trajectories_trace WHERE due_at IS NOT NULL"
            if (traces := rows(waiting)[0][0]) > 0:
                left.append(f"{traces} traces are not assembled")
            for one in check_all():
                if one.unknown:
                    left.append(f"doctor: {one.condition.name} is unknown: {one.unknown}")
                if one.condition.name not in OURS:
                    left += [f"doctor: {one.condition.name}: {it.says}" for it in one.findings]
        except (OperationalError, InterfaceError) as error:
            with suppress(Exception):
                connection.close()
            left = [f"the database: {error}"]
        return left

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

    def holdout(self) -> Iterator[str]:
        """Nothing that is held out is in a dataset that trains."""
        held_out = Task.objects.filter(split="holdout")
        if learned := Example.objects.filter(task__in=held_out).count():
            yield f"{learned} examples are of hold-out tasks"

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
        if running := machine.processes("-m\0workers."):
            commands = {
                Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ") for pid in running
            }
            yield f"processes of jobs that ended: {commands}"
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
