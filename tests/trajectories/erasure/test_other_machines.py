"""What a person has left in job folders of machines without a shared disk: it goes while the
deletion waits for them, or when they are back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from apps.core.bus import publish
from apps.core.data_folder import identity
from apps.core.job_files import job_folder
from apps.core.models import Job, JobState, Project, Worker
from apps.core.watching.workers import MachineTidied
from apps.trajectories.erasure import job as erasing
from apps.trajectories.models import DataDeletion, MachineSweep, Upload
from tests.trajectories.erasure.conftest import ended, submit

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data_dir")]
NAME = "Ann Example"


class Machine:
    """Another one: a data folder of its own, with a worker."""

    def __init__(self, folder: Path, settings: Any) -> None:
        self.folder, self.settings = folder, settings
        folder.mkdir()
        with self.here():
            self.worker = Worker.objects.create(
                name="train@gpu-2",
                queue="train",
                host="gpu-2",
                pid=7,
                has={"data_folder": identity()},
            )

    @contextmanager
    def here(self) -> Iterator[None]:
        ours = self.settings.FLYWHEEL_DATA_DIR
        self.settings.FLYWHEEL_DATA_DIR = self.folder
        yield
        self.settings.FLYWHEEL_DATA_DIR = ours

    def tidy(self) -> None:
        """As its worker does every two minutes."""
        with self.here():
            publish(MachineTidied())

    def leave(self, job: Job, name: str, text: str) -> Path:
        with self.here():
            path = job_folder(job) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


@pytest.fixture
def machine(tmp_path: Path, settings: Any) -> Machine:
    return Machine(tmp_path / "gpu-2", settings)


def job_of(project: Project, state: JobState = JobState.FAILED, **more: Any) -> Upload:
    at = timezone.now() if state == JobState.FAILED else None
    return Upload.objects.create(
        project=project, name="x", file="", size=1, state=state, **{"finished_at": at} | more
    )


def test_it_waits_until_the_others_have_removed_files(
    project: Project, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(project)
    hers = machine.leave(job, "spec-1.json", f"for {NAME}")
    other = machine.leave(job, "spec-2.json", "for Joann Examples")
    monkeypatch.setattr(erasing, "MACHINES_PATIENCE", timedelta(minutes=5))
    labels: list[str] = []

    def meanwhile(_: float) -> None:
        labels.append(DataDeletion.objects.get().label)
        machine.tidy()

    monkeypatch.setattr(erasing.time, "sleep", meanwhile)
    done = ended(submit(project, texts=NAME))
    assert not hers.exists() and other.exists()
    assert done.result["deleted"]["files of jobs on other machines"] == 1
    assert done.result["left"] == [] and "gpu-2" in labels[-1]
    machine.tidy()
    assert other.exists() and MachineSweep.objects.filter(host="gpu-2").count() <= 1


def test_one_that_is_away_removes_what_ended_before_when_it_is_back(
    project: Project, machine: Machine
) -> None:
    Worker.objects.update(beat_at=timezone.now() - timedelta(hours=1))
    hers = machine.leave(job_of(project), "out/rows.jsonl", NAME)
    done = ended(submit(project, texts=NAME))
    (left,) = done.result["left"]
    assert "do not answer (gpu-2)" in left and hers.exists()
    later, running = job_of(project), job_of(project, JobState.RUNNING, finished_at=None)
    kept = [machine.leave(one, "spec-1.json", "{}") for one in (later, running)]
    machine.tidy()
    assert not hers.exists() and all(path.exists() for path in kept)
    again = machine.leave(job_of(project), "spec-1.json", NAME)
    machine.tidy()
    assert again.exists()  # once: what comes afterwards is none of that deletion's business


def test_by_filter_no_machine_is_waited_for(project: Project, machine: Machine) -> None:
    hers = machine.leave(job_of(project), "spec-1.json", NAME)
    assert ended(submit(project, filters="user=ann")).result["left"] == []
    machine.tidy()
    assert hers.exists() and not MachineSweep.objects.exists()
