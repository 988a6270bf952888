"""The invariants of `make chaos` find what they are there for, and a seed is a plan. Some rounds
themselves are a proof.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from apps.core import job_files, jobs
from apps.core.actions import audit
from apps.core.models import JobLog, JobState, Project
from apps.failures.models import Classification
from apps.promotion import actions
from apps.promotion.models import Channel, Promotion
from apps.promotion.policies import channel_of
from apps.registry.actions import register_adapter
from apps.registry.artifacts import local_path, store_folder
from apps.training.actions import freeze_dataset, submit_training
from apps.training.models import Method, TrainingRun
from apps.trajectories import digest
from flywheel.version import VERSION
from tests.chaos import rounds
from tests.chaos.__main__ import ROOT, drawn
from tests.chaos.invariants import Settled
from tests.chaos.operator import STEPS
from tests.chaos.rounds import Round
from tests.chaos.world import Acknowledged
from tests.factories import (
    adapter_weights,
    admin_of,
    make_base,
    make_endpoint,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_server,
    make_trajectory,
)
from tests.flywheel.machine import Machine


def test_a_seed_draws_each_kind_equally_often() -> None:
    kinds = list("abcd")
    assert drawn(kinds, 10, 7) == drawn(kinds, 10, 7) != drawn(kinds, 10, 8)
    assert set(Counter(drawn(kinds, 12, 7)).values()) == {3}
    assert drawn(kinds, 12, 7)[:10] == drawn(kinds, 10, 7)


@pytest.fixture
def settled(tmp_path: Path) -> Settled:
    world = SimpleNamespace(
        machine=Machine(tmp_path), acknowledged=Acknowledged(), problems=[], stopped=set()
    )
    return Settled(world)  # type: ignore[arg-type]


def wrong(check: Any) -> str:
    return "; ".join(check())


@pytest.mark.django_db
def test_a_run_that_is_missing_or_not_counted_is_found(settled: Settled, project: Project) -> None:
    for name in ("one", "two"):
        make_trajectory(project, name=name)
    digest.run()
    settled.world.acknowledged.runs.extend(["one", "two"])
    assert wrong(settled.runs) == ""
    settled.world.acknowledged.runs.append("three")
    assert "1 acknowledged runs are missing: ['three']" in wrong(settled.runs)


@pytest.mark.django_db
def test_a_job_that_failed_or_was_done_by_halves_is_found(
    settled: Settled, project: Project
) -> None:
    eval_set = make_eval_set(project)
    run = make_eval_run(eval_set, make_endpoint(project), make_environment(project))
    settled.world.acknowledged.evaluations.extend([str(run.pk), str(uuid4())])
    assert "has 12 samples" in wrong(settled.evaluations)
    assert "was acknowledged and is not there" in wrong(settled.evaluations)
    assert wrong(settled.jobs) == ""
    job = Classification.objects.create(project=project, name="c")
    job.claim("w")
    job.finish(JobState.FAILED, error="out of memory")
    assert "out of memory" in wrong(settled.jobs)


@pytest.mark.django_db
def test_a_channel_whose_moves_do_not_lead_to_what_is_live_is_found(
    settled: Settled, project: Project
) -> None:
    by, channel = admin_of(project), channel_of(project)
    server = make_server(project)
    one, two = (make_endpoint(project, server, name, name=name) for name in ("one", "two"))
    actions.set_initial(channel=channel, version=one, by=by)
    assert wrong(settled.channel) == ""
    settled.world.acknowledged.moves.append("rollback")
    assert "1 moves were acknowledged as rollback, 0 are there" in wrong(settled.channel)
    Channel.objects.update(current=two)
    assert "two-v1 is live, and the last move led to one-v1" in wrong(settled.channel)
    Promotion.objects.create(
        channel=channel, kind="rollback", from_version=two, from_name="two-v1", to_version=one
    )
    found = wrong(settled.channel)
    assert "began at two-v1, which was not live" in found
    assert "1 moves (rollback), 0 lines in the audit log" in found


@pytest.fixture
def trained(project: Project, data_dir: Path) -> Callable[..., TrainingRun]:
    """A training that has ended, by its seed and the name that its weights are made of."""
    environment, eval_set = make_environment(project), make_eval_set(project)
    base, by = make_base(project, data_dir), admin_of(project)
    dataset = freeze_dataset(eval_set=eval_set, by=by)

    def make(seed: int, weights: str) -> TrainingRun:
        run = submit_training(
            project=project,
            method=Method.SFT,
            parent=base,
            dataset=dataset,
            environment=environment,
            config={"steps": STEPS, "learning_rate": 1e-3, "batch_size": 1},
            by=by,
            seed=seed,
        )
        folder = data_dir / str(run.pk)
        folder.mkdir()
        (folder / "adapter_config.json").write_text("{}")
        (folder / "adapter_model.safetensors").write_bytes(adapter_weights(weights))
        run.model_version = register_adapter(
            project=project,
            name="a",
            parent=base,
            artifact=store_folder(folder),
            lineage={},
            by=by,
        )
        run.save(update_fields=["model_version"])
        for step in range(1, STEPS + 1):
            run.metrics.create(step=step, name="train/loss", value=1)
        run.claim("w")
        run.finish(JobState.SUCCEEDED)
        return run

    return make


@pytest.mark.django_db
def test_a_training_that_was_not_whole_or_ended_otherwise_is_found(
    settled: Settled, trained: Callable[..., TrainingRun]
) -> None:
    runs = [trained(1, "same"), trained(1, "same"), trained(2, "other")]
    settled.world.acknowledged.trainings.extend(str(run.pk) for run in runs)
    assert wrong(settled.trainings) == ""
    trained(2, "another")
    assert "seed 2 ended with 2 different weights" in wrong(settled.trainings)
    runs[0].metrics.filter(step=7).delete()
    assert f"{runs[0].pk} has {STEPS - 1} steps" in wrong(settled.trainings)
    (local_path(runs[1].model_version.artifact) / "adapter_model.safetensors").unlink()
    assert f"{runs[1].pk}: Artifact" in wrong(settled.trainings)
    TrainingRun.objects.filter(pk=runs[2].pk).update(model_version=None)
    found = wrong(settled.trainings)
    assert (
        f"{runs[2].pk} (succeeded) made None" in found and "1 versions are no training's" in found
    )
    settled.world.acknowledged.trainings.append("lost")
    assert "the training lost was acknowledged and is not there" in wrong(settled.trainings)


@pytest.mark.django_db
def test_an_attempt_that_began_before_the_last_checkpoint_is_found(
    settled: Settled, trained: Callable[..., TrainingRun]
) -> None:
    run = trained(1, "same")
    TrainingRun.objects.update(attempt=2)
    run.checkpoints.create(step=5, attempt=1)
    run.checkpoints.create(step=10, attempt=2)
    run.attempt = 2
    jobs.note(run, "Attempt 2, on w, continues from the checkpoint at step 5: no step was lost.")
    assert wrong(settled.resumed) == "" and settled.resumed_since() == 1
    JobLog.objects.update(message="Attempt 2, on w, begins at the start: 5 steps were lost")
    assert "There was a checkpoint at step 5." in wrong(settled.resumed)


@pytest.mark.django_db
def test_a_hold_out_that_a_training_was_given_is_found(
    settled: Settled, trained: Callable[..., TrainingRun]
) -> None:
    run = trained(1, "same")
    spec = job_files.spec_path(run, 1)
    spec.parent.mkdir(parents=True)
    tasks = run.dataset.eval_set.tasks
    spec.write_text(json.dumps({"rows": tasks.filter(split="train").first().messages}))
    assert wrong(settled.holdout) == ""
    spec.write_text(json.dumps({"rows": tasks.filter(split="holdout").first().messages}))
    assert "spec-1.json has 1 requests of hold-out tasks" in wrong(settled.holdout)


def test_a_violation_is_of_the_round_that_it_came_with(
    settled: Settled, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ["jobs: one failed"]
    monkeypatch.setattr(settled, "_violations", lambda: list(found))
    assert settled.violations() == ["jobs: one failed"] and settled.violations() == []
    found.append("jobs: another failed")
    assert settled.violations() == ["jobs: another failed"]


def a_round(number: int, kind: str, **more: Any) -> Round:
    return Round(
        seed=7,
        number=number,
        kind=kind,
        began=f"2026-11-30T20:{number:02d}:00+00:00",
        version=VERSION,
        commit="abc",
        did="",
        well_s=number,
        done_s=2.0 * number,
        load=3.0,
        took={},
        acknowledged={"runs": 1000, "evaluations": 2},
        **more,
    )


def test_rounds_of_several_files_are_kept_once_and_make_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "KEPT", tmp_path / "kept.jsonl")
    monkeypatch.setattr(rounds, "NEW", tmp_path / "new.jsonl")
    first, second, third = (
        a_round(1, "full-disk"),
        a_round(2, "kill-up"),
        a_round(3, "full-disk", resumed=2, violations=["a job failed"]),
    )
    rounds.append(rounds.NEW, second)
    rounds.append(rounds.NEW, first)
    assert rounds.keep([rounds.NEW]) == [first, second]
    rounds.append(rounds.NEW, third)
    assert rounds.keep([rounds.NEW]) == rounds.read(rounds.KEPT) == [first, second, third]
    text = rounds.table(rounds.read(rounds.KEPT))
    assert f"3 rounds of version {VERSION}, 30 November 2026, seeds 7;" in text
    assert "3,000 runs, 6 evaluations" in text and "where they were 2 times" in text
    assert "| full-disk | 2 | 1 | 2 | 3 | 4 | 6 |" in text and "| kill-up | 1 | 0 | 2 | 2 |" in text


@pytest.mark.django_db
def test_an_audit_log_that_lost_a_line_is_found(settled: Settled, project: Project) -> None:
    audit("x.y", project=project, by=admin_of(project), target=project)
    assert wrong(settled.audit_log) == ""
    audit("x.z", project=project, by=admin_of(project), target=project)
    assert wrong(settled.audit_log) == ""
    count, digest_, last = settled.audit
    settled.audit = (count + 1, digest_, last)
    assert f"{count + 1} lines were {count} later" in wrong(settled.audit_log)


@pytest.mark.django_db
def test_what_is_left_behind_is_found(settled: Settled, tmp_path: Path) -> None:
    assert wrong(settled.leftovers) == ""
    (tmp_path / "jobs" / "evalrun" / "00000000-0000-4000-8000-000000000000").mkdir(parents=True)
    (tmp_path / "artifacts" / "incoming-1").mkdir(parents=True)
    assert "1 folders of jobs that are not there" in wrong(settled.leftovers)
    assert "incoming-1" in wrong(settled.leftovers)


@pytest.mark.proof
def test_some_rounds_leave_nothing_wrong() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--rounds", "4", "--seed", "5"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
