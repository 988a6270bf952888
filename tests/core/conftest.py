from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection

from apps.core import jobs, runner
from apps.core.kinds import ChildProcess
from apps.core.models import Job
from apps.training.actions import freeze_dataset, submit_training
from apps.training.models import Method, TrainingRun
from tests.factories import (
    admin_of,
    make_base,
    make_environment,
    make_eval_set,
    make_project,
    override,
)
from workers.lib.specs.job import Job as Spec

CHILD = Path(__file__).parent / "child.py"


def child_of(kind: ChildProcess, spec: Spec) -> list[str]:
    """The stand-in, with what its run's script says it does."""
    script = Path(spec.out_dir).parent / "script.json"
    script.write_text(json.dumps(TrainingRun.objects.get(pk=spec.job_id).spec["script"]))
    return [sys.executable, str(CHILD), str(script)]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run `child.py`, and no message is sent."""
    monkeypatch.setattr(runner, "command", child_of)
    monkeypatch.setattr(runner, "FLUSH_EVERY_S", 0.1)
    monkeypatch.setattr(jobs, "enqueue", lambda job: None)


@pytest.fixture
def submit(stand_in: None, data_dir: Path) -> Callable[..., TrainingRun]:
    project = make_project()
    by = admin_of(project)
    environment, base, eval_set = (
        make_environment(project),
        make_base(project, data_dir),
        make_eval_set(project),
    )
    override(environment)

    def make(*script: Any) -> TrainingRun:
        run = submit_training(
            project=project,
            method=Method.SFT,
            parent=base,
            dataset=freeze_dataset(eval_set=eval_set, by=by),
            environment=environment,
            config={"steps": 2, "learning_rate": 1e-3, "batch_size": 1},
            by=by,
        )
        run.spec["script"] = list(script)
        run.save(update_fields=["spec"])
        return run

    return make


def ended(job: Job) -> Any:
    job.refresh_from_db()
    return job


def in_thread(job: Job) -> threading.Thread:
    def go() -> None:
        try:
            runner.run(type(job).objects.get(pk=job.pk))
        finally:
            connection.close()

    thread = threading.Thread(target=go)
    thread.start()
    return thread


def wait_for(what: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def terminate(pid: int) -> None:
    settings = connection.settings_dict
    with psycopg.connect(
        host=settings["HOST"] or settings["OPTIONS"]["host"],
        user=settings["USER"],
        dbname="postgres",
    ) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [pid])
