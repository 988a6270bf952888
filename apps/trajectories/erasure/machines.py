"""What machines have on their own disks of a person who is deleted: folders of jobs that have
ended, answers that the database refused.

The deletion waits until each machine whose worker lives has looked through its files. One that was
away meanwhile does not learn who it was. When it is back, it removes the folders of all jobs of the
project that had ended before: what a job continues from is in the store (`job_files`).
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from apps.core import job_files, mentions
from apps.core.bus import ask, on
from apps.core.data_folder import identity
from apps.core.kinds import job_models
from apps.core.mentions import Words
from apps.core.models import TERMINAL_STATES, Job, JobState, Project, Worker
from apps.core.watching.workers import MachineTidied
from apps.trajectories.erasure.waiting import KeptFiles
from apps.trajectories.erasure.wanted import wanted_of
from apps.trajectories.models import DataDeletion, MachineSweep

PHASE = "machines"  # of a deletion that waits for them


def ended_jobs(project: Project) -> list[Job]:
    return [
        row
        for model in job_models()
        for row in model.objects.filter(project=project, state__in=TERMINAL_STATES).only(
            "pk", "finished_at"
        )
    ]


def remove_here(project: Project, words: Words) -> int:
    """Files of this machine that mention the words. Returns how many."""
    places = [job_files.job_folder(job) for job in ended_jobs(project)]
    places += [path for paths in ask(KeptFiles(project)) for path in paths]
    found = list(mentions.files_mentioning(filter(Path.exists, places), words))
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


def note_sweep(deletion: DataDeletion, files: int) -> None:
    sweep = MachineSweep(
        deletion=deletion, machine=identity(), host=socket.gethostname(), files=files
    )
    MachineSweep.objects.bulk_create([sweep], ignore_conflicts=True)


def awaited(deletion: DataDeletion) -> tuple[set[str], set[str]]:
    """The hosts that have not looked through their files: those whose workers live, and those whose
    workers do not answer.
    """
    swept = set(deletion.sweeps.values_list("machine", flat=True))
    silent = set(Worker.objects.silent().values_list("pk", flat=True))
    living, away = set[str](), set[str]()
    for pk, host, has in Worker.objects.values_list("pk", "host", "has"):
        if has.get("data_folder") not in swept:
            (away if pk in silent else living).add(host)
    return living, away - living


@on(MachineTidied)
def sweep(_: MachineTidied) -> None:
    """Of deletions that this machine has not seen."""
    seen = MachineSweep.objects.filter(machine=identity()).values("deletion")
    # The machine that runs a deletion is its first; those of earlier versions have none.
    unseen = DataDeletion.objects.filter(sweeps__isnull=False).exclude(pk__in=seen).distinct()
    for deletion in unseen.filter(state=JobState.RUNNING, cursor__phase=PHASE):
        note_sweep(deletion, remove_here(deletion.project, wanted_of(deletion).words))
    for deletion in unseen.filter(state=JobState.SUCCEEDED):
        note_sweep(deletion, sum(_remove_folders(deletion)))


def _remove_folders(deletion: DataDeletion) -> Iterator[int]:
    """The folders of jobs that had ended before. Yields how many files each had."""
    for job in ended_jobs(deletion.project):
        folder = job_files.job_folder(job)
        if job.finished_at and job.finished_at < deletion.finished_at and folder.is_dir():
            yield sum(path.is_file() for path in folder.rglob("*"))
            shutil.rmtree(folder, ignore_errors=True)
