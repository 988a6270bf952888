"""What a job continues from, on whatever machine: each kind names files and folders in the job's
own folder (`ChildProcess.keeps`). While the child runs, and once more when it has ended, they are
kept (`kept`); a later attempt has them from there, unless its machine ran the last one.

All else in a job's folder (specs, errors, what a step needs) is of one attempt on one machine.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any, Self

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection, transaction

from apps.core import jobs, kept
from apps.core.companion import Companion
from apps.core.kinds import job_models, kind_of
from apps.core.models import Job, JobLog

log = logging.getLogger(__name__)
LOOK_EVERY_S = 5.0
MOST_TOLD = 3  # times that a log says that files cannot be kept


def job_folder(job: Job) -> Path:
    return Path(settings.FLYWHEEL_DATA_DIR) / "jobs" / job._meta.model_name / str(job.pk)


def kept_as(model: type[Job], pk: Any) -> str:
    return f"jobs/{model._meta.model_name}/{pk}"


def spec_path(job: Job, attempt: int) -> Path:
    return job_folder(job) / f"spec-{attempt}.json"


def has(job: Job, name: str) -> bool:
    """Whether a later attempt can have it, here if nowhere else."""
    return (job_folder(job) / name).exists() or kept.named(_folder(job), [name]).exists()


def bring(job: Job, name: str) -> Path | None:
    """For the attempt that begins: the file or folder as the last one left it; None if it left
    none. Raises OSError.
    """
    path = job_folder(job) / name
    ran_here = spec_path(job, job.attempt - 1).exists()
    if not (path.exists() and ran_here):
        kept.fetch(_folder(job), name, path)
    return path if path.exists() else None


def here(job: Job, name: str) -> Path | None:
    """A file of it that can be read on this machine, whoever has it; None if it left none. Raises
    OSError.
    """
    path = job_folder(job) / name
    return path if path.is_file() else kept.path_of(_folder(job), name)


def share(job: Job, other: Job, names: list[str]) -> None:
    """`other` begins with these files of `job`. Raises OSError."""
    for name in names:
        if not kept.named(_folder(job), [name]).exists():  # its worker died before it was kept
            _keep(job, name)
    kept.copy(_folder(job), _folder(other), names)


def remove(model: type[Job], pk: Any) -> None:
    """All that a job left, in the transaction that deletes it. Other machines: `tidy`."""
    kept.remove_folder(kept_as(model, pk))
    folder = job_folder(model(pk=pk))
    transaction.on_commit(lambda: shutil.rmtree(folder, ignore_errors=True))


def remove_work(model: type[Job], pks: list) -> None:
    """The logs of jobs, and the folders in which they ran."""
    JobLog.objects.filter(job__in=pks).delete()
    for pk in pks:
        remove(model, pk)


def tidy() -> None:
    """Removes from this machine the folders of jobs that were deleted on another."""
    home = Path(settings.FLYWHEEL_DATA_DIR) / "jobs"
    for model in job_models():
        there = {path.name: path for path in (home / model._meta.model_name).glob("*-*-*-*-*")}
        known = model.objects.filter(pk__in=there).values_list("pk", flat=True)
        for name in there.keys() - {str(pk) for pk in known}:
            shutil.rmtree(there[name], ignore_errors=True)


def _folder(job: Job) -> str:
    return kept_as(type(job), job.pk)


class Keeper(Companion):
    """Keeps what a running attempt leaves, from a thread: a store that is slow or away holds up
    neither the job nor its events.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(f"keeper of {job.pk}", LOOK_EVERY_S)
        self.job = job
        self.stamps: dict[str, tuple] = {}
        self.problems = 0

    def __enter__(self) -> Self:
        return super().__enter__() if kind_of(self.job).keeps else self

    def last(self) -> None:
        """A cancelled child leaves a checkpoint."""
        self.step()

    def step(self) -> None:
        try:
            self.keep()
        except OSError as error:
            self.problems += 1
            if self.problems <= MOST_TOLD:
                jobs.note(
                    self.job,
                    f"What a resume needs could not be stored: {error.strerror or error}. Until it"
                    " is, only this machine can continue this job.",
                    "warning",
                )
        except (DatabaseError, InterfaceError) as error:
            log.warning("What job %s needs was not kept: %s", self.job.pk, error)
            connection.close()
        except jobs.OwnershipLost:
            self.over.set()
        except Exception:  # thread boundary: the job goes on
            log.exception("What job %s needs was not kept", self.job.pk)

    def keep(self) -> None:
        """Keeps what is new, and forgets what the kind no longer names. Raises OSError."""
        names, folder = kind_of(self.job).keeps(self.job), _folder(self.job)
        for name in names:
            files = _files(self.job, name)
            stamp = tuple((at, *_stamp(path)) for at, path in files.items())
            if files and self.stamps.get(name) != stamp:
                _keep(self.job, name, require=lambda: jobs.owned(self.job))
                self.stamps[name] = stamp
        known = kept.named(folder, names).values("pk")
        rows = kept.KeptFile.objects.filter(folder=folder).exclude(pk__in=known)
        if rows.exists():
            jobs.owned(self.job)
            kept.remove(rows)


def _keep(job: Job, name: str, **more: Any) -> None:
    """A folder is final; a file may be one that is added to."""
    is_final = (job_folder(job) / name).is_dir()
    kept.put(_folder(job), _files(job, name), is_final=is_final, **more)


def _files(job: Job, name: str) -> dict[str, Path]:
    """{name: path} of the file, or of all files in the folder."""
    home = job_folder(job)
    path = home / name
    found = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {path.relative_to(home).as_posix(): path for path in found if path.is_file()}


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns
