"""The job of a deletion. Each step is one transaction that deletes some and says where the next one
begins, so a job that was killed, cancelled or resumed goes on where it was.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import QuerySet, Sum
from django.utils import timezone
from msgspec import Struct, field, to_builtins
from msgspec import convert as converted

from apps.core import job_files, kept, mentions
from apps.core.actions import audit
from apps.core.data_folder import identity
from apps.core.kinds import Progress
from apps.core.models import JobState, KeptFile
from apps.core.nouns import noun
from apps.teamwork.actions import forget_orphans
from apps.trajectories import copies, uploads
from apps.trajectories.actions.deletions import purge
from apps.trajectories.erasure import machines, waiting
from apps.trajectories.erasure.wanted import (
    Wanted,
    in_sessions_of,
    is_short,
    matching,
    of_others,
    says,
    wanted_of,
)
from apps.trajectories.models import (
    Content,
    DataDeletion,
    HeldBatch,
    MediumUse,
    SearchText,
    SpanBatch,
    SpanBody,
    Step,
    StepChange,
    StepTotal,
    Tombstone,
    Trajectory,
    TrajectoryKey,
    Upload,
    with_content,
)

AT_ONCE = 2_000
READ_AT_ONCE = 500
NEEDED = ("project_id", "external_id", "session_id", "user_id")  # of a run that is deleted
PATIENCE = timedelta(minutes=2)  # that what was accepted before is waited for
MACHINES_PATIENCE = timedelta(minutes=5)  # that machines which live are waited for
PAUSE_S = 0.5
AWAY = (
    "machine whose workers do not answer ({host}): when one starts there again, the folders of jobs"
    " that have ended are removed"
)
MOST_NAMED = 200  # learners
OTHERS = "runs of other users in the same sessions"
# Of runs, which are looked through as runs, or of numbers alone.
LOOKED_THROUGH = (
    *(Trajectory, TrajectoryKey, Content, SearchText, Step, SpanBatch, SpanBody, HeldBatch),
    *(MediumUse, Tombstone, StepTotal, StepChange),
)


class State(Struct):
    """`before`: runs that are received later are none of its business. `after` is where the phase
    goes on.
    """

    phase: str = "wait"
    since: str = ""
    before: str = ""
    after: str = ""
    found: bool = False
    total: int = 0
    deleted: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    learned: list[str] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)

    def count(self, counts: Counter[str]) -> None:
        for name, n in counts.items():
            self.deleted[name] = self.deleted.get(name, 0) + n

    @property
    def runs(self) -> int:
        return self.deleted.get("runs", 0)


def steps(job: DataDeletion) -> Iterator[Progress]:
    state, wanted = converted(job.cursor, State), wanted_of(job)
    work = Deletion(job, wanted, state)
    phases = {
        "wait": work.wait,
        "runs": work.delete_runs,
        "read": work.read_runs,
        "waiting": work.drop_waiting,
        "elsewhere": work.clean_rows,
        "files": work.clean_files,
        machines.PHASE: work.wait_for_machines,
    }
    for name in list(phases)[list(phases).index(state.phase) :]:
        if state.phase != name:
            state.phase, state.after = name, ""
        for label in phases[name]():
            total = max(job.total, state.total, state.runs)
            yield Progress(state.runs, total, label, to_builtins(state))
    return work.finish()


class Deletion:
    """The phases of a job. Each yields a label where a transaction may end."""

    def __init__(self, job: DataDeletion, wanted: Wanted, state: State) -> None:
        self.job, self.project, self.wanted, self.state = job, job.project, wanted, state

    @property
    def before(self) -> datetime:
        return datetime.fromisoformat(self.state.before)

    def wait(self) -> Iterator[str]:
        """For what was accepted before the job began to become runs, which it would miss."""
        waiting.hurry(self.project, self.job.created_at)
        yield "Waiting for what was accepted to be stored"
        yield from self.settle(self.job.created_at)
        self.state.before = timezone.now().isoformat()
        yield "Counting runs"
        self.state.total = matching(self.project, self.wanted, self.before).count()
        yield "Deleting runs"

    def settle(self, before: datetime) -> Iterator[str]:
        """As long as there is progress, and for a while without."""
        state = self.state
        state.since = ""
        while left := waiting.left(self.project, before):
            if waiting.work():
                state.since = ""
            elif not state.since:
                state.since = timezone.now().isoformat()
            elif timezone.now() >= datetime.fromisoformat(state.since) + PATIENCE:
                break
            else:
                time.sleep(PAUSE_S)
            yield f"Waiting for {', '.join(left)}"

    def delete_runs(self) -> Iterator[str]:
        """In the order of their starts, again until none are left: one may have been stored behind
        the place where the job was.
        """
        state = self.state
        while True:
            # Once for all of them: to see how many match, the filters may read from the beginning,
            # where what was deleted still takes room.
            matches = matching(self.project, self.wanted, self.before).only(*NEEDED).order_by("pk")
            while some := list(_after(matches, state.after)[:AT_ONCE]):
                state.after, state.found = str(some[-1].pk), True
                self.delete(some)
                yield f"Deleted {state.runs:,} runs"
            if not state.found:
                return
            state.after, state.found = "", False
            yield f"Deleted {state.runs:,} runs"

    def delete(self, rows: list[Trajectory]) -> None:
        state, project = self.state, self.project
        if self.wanted.is_person:
            self.count_others(rows)
            known = {row.pk for row in rows}
            others = in_sessions_of(project, rows, self.before)
            rows = rows + [row for row in others if row.pk not in known]
        runs = Trajectory.objects.filter(pk__among=[row.pk for row in rows])
        state.learned = sorted({*state.learned, *copies.learners(project, runs)})[:MOST_NAMED]
        if self.wanted.copies:
            state.count(copies.erase(project, runs))
        state.count(Counter(runs=purge(project, rows, with_comments=False)))

    def count_others(self, rows: list[Trajectory]) -> None:
        """Runs of other users in the sessions of these, once. Their names are not kept."""
        names = {row.session_id for row in rows if row.session_id}
        digests = {self.wanted.digest(self.project, name): name for name in names}
        new = digests.keys() - set(self.state.sessions)
        self.state.sessions = sorted({*self.state.sessions, *new})
        if n := of_others(self.project, self.wanted, [digests[one] for one in new]):
            self.state.left[OTHERS] = self.state.left.get(OTHERS, 0) + n

    def read_runs(self) -> Iterator[str]:
        """Every run of the project, since an index of words has neither all of its texts nor all of
        what they say.
        """
        if not self.wanted.texts:
            return
        state, words = self.state, self.wanted.words_of_runs
        rows = self.project.trajectories.filter(received_at__lte=self.before).order_by("pk")
        while True:
            some = list(_after(rows, state.after)[:READ_AT_ONCE])
            if not some:
                return
            state.after = str(some[-1].pk)
            if found := [row for row in with_content(some) if says(row, words)]:
                self.delete(found)
            yield f"Reading all runs; deleted {state.runs:,}"

    def drop_waiting(self) -> Iterator[str]:
        """Spans and rows that are no runs."""
        if not self.wanted.is_person:
            return
        state = self.state
        person = waiting.Person(self.wanted.words, self.wanted.users)
        for n in waiting.drop_held(self.project, person):
            kept = n < 0
            of, name = (state.left, "unreadable") if kept else (state.deleted, "waiting rows")
            if n:
                of[name] = of.get(name, 0) + 1
                yield "Looking through what waits"
        while True:
            n, last = waiting.drop_traces(self.project, person, int(state.after or 0))
            if n:
                state.count(Counter(traces=n))
            if not last:
                return
            state.after = str(last)
            yield "Looking through spans"

    def clean_rows(self) -> Iterator[str]:
        """Comments, feedback, caches, tasks, samples and whatever else mentions a person. What the
        deleted runs take from counts is taken first.
        """
        yield from self.settle(timezone.now())
        forget_orphans(self.project)
        yield "Looking through everything else"
        words = self.wanted.words
        if not words:
            return
        for model in mentions.searched(LOOKED_THROUGH):
            if model._meta.label <= self.state.after:
                continue
            name = noun(model, 2)
            for rows in mentions.mentioning(model, self.project, words):
                whole = rows.count()
                done = 0 if mentions.why_it_stays(model) else mentions.take_out(rows, words)
                self.state.count(+Counter({name: done}))
                if stays := whole - done:
                    why = mentions.why_it_stays(model) or "an address or key names it"
                    label = f"{name}: {why}"
                    self.state.left[label] = self.state.left.get(label, 0) + stays
            self.state.after = model._meta.label
            yield f"Looking through {name}"

    def clean_files(self) -> Iterator[str]:
        """What jobs that have ended left on this machine, files that wait for a person there, and
        what jobs and failed imports left for others.
        """
        words = self.wanted.words
        if not words:
            return
        failed = Upload.objects.filter(project=self.project, state=JobState.FAILED)
        folders = [uploads.kept_as(name) for name in failed.values_list("file", flat=True)]
        ended = machines.ended_jobs(self.project)
        folders += [job_files.kept_as(type(one), one.pk) for one in ended]
        for row in KeptFile.objects.filter(folder__in=folders).order_by("pk"):
            path = kept.path_of(row.folder, row.path)
            packed = path and row.folder.startswith(uploads.KEPT) and not mentions.is_text(path)
            if path and (packed or words.are_in_path(row.path) or mentions.is_in_file(path, words)):
                kept.remove(KeptFile.objects.filter(pk=row.pk))
                self.state.count(Counter({"files of jobs": 1}))
        removed = machines.remove_here(self.project, words)
        self.state.count(Counter({"files of jobs": removed}))
        machines.note_sweep(self.job, removed)
        yield "Looking through files"

    def wait_for_machines(self) -> Iterator[str]:
        """Until those with a living worker have looked through their files, too."""
        if not self.wanted.words:
            return
        state = self.state
        state.since = timezone.now().isoformat()
        while True:
            living, away = machines.awaited(self.job)
            until = datetime.fromisoformat(state.since) + MACHINES_PATIENCE
            if not living or timezone.now() >= until:
                break
            time.sleep(PAUSE_S)
            yield f"Waiting for the workers of {', '.join(sorted(living))} to remove files"
        others = self.job.sweeps.exclude(machine=identity())
        removed = others.aggregate(n=Sum("files"))["n"] or 0
        state.count(+Counter({"files of jobs on other machines": removed}))
        for host in living | away:
            state.left[AWAY.format(host=host)] = 1

    def finish(self) -> dict[str, Any]:
        """The report, without who it was."""
        state, wanted = self.state, self.wanted
        forget_orphans(self.project)
        left = [f"{n:,} × {what}" for what, n in sorted(state.left.items())]
        if short := list(filter(is_short, wanted.users)):
            left.append(
                f"{len(short)} of the ids are too short or only digits: only runs were found by"
                " them, not what mentions them"
            )
        if not wanted.copies:
            left.append("tasks, examples and samples that were made from the runs")
        deleted = dict(sorted((name, n) for name, n in state.deleted.items() if n))
        audit(
            "datadeletion.finished",
            project=self.project,
            by=self.job.created_by,
            target=self.job,
            what=wanted.says,
            runs=state.runs,
            deleted=deleted,
            left=left,
            learned=state.learned,
            person=wanted.digests(self.project),
        )
        DataDeletion.objects.filter(pk=self.job.pk).update(wanted="", cursor={})
        return {"deleted": deleted, "left": left, "learned": state.learned}


def _after(rows: QuerySet[Trajectory], pk: str) -> QuerySet[Trajectory]:
    return rows.filter(pk__gt=UUID(pk)) if pk else rows
