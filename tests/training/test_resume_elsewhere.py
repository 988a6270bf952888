"""A run continues on another machine, with a data folder of its own and nothing but a bucket
between them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.core import job_files, runner
from apps.core.buckets import Bucket
from apps.core.models import JobLog, JobState, KeptFile
from apps.core.stores import NoAnswer
from apps.training import actions, forking
from apps.training.models import TrainingRun
from tests.core.conftest import ended
from tests.factories import admin_of
from tests.registry.s3 import BUCKET, client_of, s3_server, use_bucket

pytestmark = pytest.mark.django_db(transaction=True)
Submit = Callable[..., TrainingRun]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with s3_server() as address:
        client_of(address).create_bucket(Bucket=BUCKET)
        yield address


@pytest.fixture
def on(
    address: str, settings: Any, monkeypatch: pytest.MonkeyPatch, data_dir: Path, submit: Submit
) -> Iterator[Callable[[str], None]]:
    """Goes to another machine."""
    use_bucket(settings, monkeypatch, address)
    models = data_dir / "models"
    models.mkdir(exist_ok=True)
    settings.FLYWHEEL_MODEL_FOLDERS = [str(data_dir), str(models)]  # each has the bases

    def go(name: str) -> None:
        settings.FLYWHEEL_DATA_DIR = data_dir.parent / f"{data_dir.name}-{name}"

    yield go
    for row in client_of(address).list_objects_v2(Bucket=BUCKET).get("Contents", []):
        client_of(address).delete_object(Bucket=BUCKET, Key=row["Key"])


def steps(*numbers: int) -> list[Any]:
    return [["metric", {"step": one, "values": {"train/loss": 1.0}}] for one in numbers]


def test_it_continues_at_the_checkpoint_and_says_what_was_lost(
    submit: Submit, on: Callable[[str], None]
) -> None:
    run = submit(
        *steps(1, 2),
        ["checkpoint at", 2],
        *steps(3, 4, 5),
        "die unless resumed",
        "resumed from",
        "finish",
    )
    on("one")
    runner.run(run)
    assert ended(run).state == JobState.QUEUED
    on("two")
    runner.run(run)
    run = ended(run)
    assert run.state == JobState.SUCCEEDED, run.error
    said = list(JobLog.objects.filter(job=run.pk, attempt=2).order_by("-seq"))
    assert "continues from the checkpoint at step 2: 3 steps were lost and are" in said[0].message
    folder = job_files.job_folder(run) / "out" / "checkpoint-2"
    assert said[-1].message == str(folder)
    assert json.loads((folder / "state.json").read_text()) == {"step": 2}


def test_a_run_that_failed_there_is_resumed_and_forked_here(
    submit: Submit, on: Callable[[str], None]
) -> None:
    run = submit(["checkpoint at", 3], ["checkpoint at", 7], "fail unless resumed", "finish")
    on("one")
    runner.run(run)
    on("web")
    run, by = ended(run), admin_of(run.project)
    made = forking.fork(run=run, step=3, config=run.spec["config"] | {"steps": 9}, by=by)
    assert job_files.has(made, "out/checkpoint-3") and not job_files.has(made, "out/checkpoint-7")
    assert actions.resume(run=run, by=by) == 7
    on("two")
    runner.run(run)
    assert ended(run).state == JobState.SUCCEEDED


def test_what_is_kept_is_what_a_resume_may_need(
    submit: Submit, on: Callable[[str], None], settings: Any
) -> None:
    settings.FLYWHEEL_KEPT_CHECKPOINTS = 2
    run = submit(*[["checkpoint at", step] for step in (1, 2, 3)], "fail")
    on("one")
    runner.run(run)
    rows = KeptFile.objects.filter(folder=job_files.kept_as(TrainingRun, run.pk))
    assert [row.path for row in rows] == [
        "out/checkpoint-2/state.json",
        "out/checkpoint-3/state.json",
    ]
    job_files.remove(TrainingRun, run.pk)
    assert not rows.all().exists()


def test_a_store_that_is_away_stops_no_run(
    submit: Submit, on: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise NoAnswer("the bucket does not answer")

    run = submit(["checkpoint at", 1], "fail")
    on("one")
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "has", away)
        runner.run(run)
    said = JobLog.objects.filter(job=run.pk, level="warning").values_list("message", flat=True)
    assert "only this machine can continue" in said[0]
    assert actions.resume(run=ended(run), by=None) == 1
    on("two")
    with pytest.raises(actions.TrainingError, match="no checkpoint"):
        actions.resume(run=run, by=None)


def test_an_attempt_that_was_taken_over_keeps_nothing_more(
    submit: Submit, on: Callable[[str], None]
) -> None:
    run = submit("finish")
    on("frozen")
    run.claim("a worker that froze")
    folder = job_files.job_folder(run) / "out" / "checkpoint-1"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    run.checkpoints.create(step=1, attempt=1)
    TrainingRun.objects.update(attempt=2)
    with job_files.Keeper(run):
        pass
    assert not KeptFile.objects.exists()
