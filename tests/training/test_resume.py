"""A run that failed or was cancelled goes on from its last checkpoint; old checkpoints are removed,
the best is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core import job_files, jobs, runner
from apps.core.models import AuditEvent, JobLog, JobState, Role
from apps.reviews.actions import TrainingLocked
from apps.training import actions
from apps.training.models import Method, RunAlarm, TrainingRun
from tests.core.conftest import ended
from tests.factories import (
    admin_of,
    make_checkpoint,
    make_member,
)

pytestmark = pytest.mark.django_db(transaction=True)
Submit = Callable[..., TrainingRun]


@pytest.fixture
def failed(submit: Submit) -> TrainingRun:
    """Once it is resumed it logs where from, and is done."""
    run = submit(
        ["checkpoint at", 3], ["checkpoint at", 7], "fail unless resumed", "resumed from", "finish"
    )
    runner.run(run)
    run = ended(run)
    assert run.state == JobState.FAILED
    return run


def test_it_goes_on_from_the_last_checkpoint(failed: TrainingRun) -> None:
    by = admin_of(failed.project)
    assert actions.resume(run=failed, by=by) == 7
    run = ended(failed)
    assert (run.state, run.error, run.finished_at, run.done, run.attempt) == (
        JobState.QUEUED,
        "",
        None,
        7,
        1,
    )
    runner.run(run)
    run = ended(run)
    assert (run.state, run.attempt) == (JobState.SUCCEEDED, 2) and run.model_version
    begun, came = JobLog.objects.filter(job=run.pk, attempt=2).order_by("-seq")
    assert "continues from the checkpoint at step 7: no step was lost." in begun.message
    assert came.message.endswith("checkpoint-7")
    event = AuditEvent.objects.get(action="trainingrun.resumed")
    assert (event.actor, event.detail["step"]) == (by, 7)


@pytest.mark.proof
def test_it_has_as_many_attempts_as_a_new_run(submit: Submit) -> None:
    run = submit("checkpoint", "die")
    for _ in range(3):
        runner.run(ended(run))
    assert ended(run).state == JobState.FAILED
    actions.resume(run=run, by=None)
    for _ in range(3):
        assert ended(run).state == JobState.QUEUED
        runner.run(run)
    assert ended(run).state == JobState.FAILED and run.attempt == 6


def test_a_cancelled_run_is_resumed(submit: Submit) -> None:
    run = submit("checkpoint", "finish")
    jobs.cancel(run, by=None)
    with pytest.raises(actions.TrainingError, match="no checkpoint"):
        actions.resume(run=ended(run), by=None)
    make_checkpoint(run, 1)
    assert actions.resume(run=ended(run), by=None) == 1
    assert ended(run).cancel_requested_at is None
    runner.run(run)
    assert ended(run).state == JobState.SUCCEEDED


@pytest.mark.proof
@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED])
def test_others_are_not(failed: TrainingRun, state: JobState) -> None:
    finished = failed.finished_at if state == JobState.SUCCEEDED else None
    TrainingRun.objects.update(state=state, finished_at=finished)
    with pytest.raises(actions.TrainingError, match="failed or was cancelled"):
        actions.resume(run=ended(failed), by=None)
    assert ended(failed).state == state


def test_a_reward_that_was_locked_meanwhile_trains_no_more(failed: TrainingRun) -> None:
    failed.environment.verifier.overrides.all().delete()
    TrainingRun.objects.filter(pk=failed.pk).update(method=Method.GRPO)
    failed.refresh_from_db()
    with pytest.raises(TrainingLocked):
        actions.resume(run=failed, by=None)


@pytest.mark.proof
def test_after_an_alarm_a_fork_comes_first(failed: TrainingRun) -> None:
    client = Client()
    client.force_login(make_member(failed.project, Role.ENGINEER))
    address = reverse("training:detail", args=[failed.project.slug, failed.pk])
    assert '<button class="primary">Resume from step 7' in client.get(address).content.decode()
    RunAlarm.objects.create(
        run=failed, step=7, name="kl", action="stop", message="KL exploded.", attempt=1
    )
    page = client.get(address).content.decode()
    assert (
        "An alarm stopped this run at step 7. Continue with the same settings" in page
        and 'class="btn primary"' in page
    )
    assert '<button class="primary">Resume' not in page


@pytest.mark.proof
def test_the_button(failed: TrainingRun) -> None:
    client, args = Client(), [failed.project.slug, failed.pk]
    client.force_login(make_member(failed.project, Role.ENGINEER))
    assert (
        "Resume from step 7" in client.get(reverse("training:detail", args=args)).content.decode()
    )
    page = client.post(reverse("training:resume", args=args), follow=True).content.decode()
    assert (
        "resumes from step 7" in page
        and "Resume from" not in page
        and ended(failed).state == JobState.QUEUED
    )
    again = client.post(reverse("training:resume", args=args), follow=True).content.decode()
    assert "Only a run that failed" in again
    viewer = Client()
    viewer.force_login(make_member(failed.project, Role.VIEWER))
    assert viewer.post(reverse("training:resume", args=args)).status_code == 403


@pytest.mark.proof
def test_old_checkpoints_go_and_the_best_stays(submit: Submit, settings: Any) -> None:
    settings.FLYWHEEL_KEPT_CHECKPOINTS = 2
    script: list[Any] = []
    for step, success in enumerate([0.1, 0.9, 0.3, 0.2, 0.4, 0.5], 1):
        script += [
            ["metric", {"step": step, "values": {"validation/success": success}}],
            ["checkpoint at", step],
        ]
    run = submit(*script, "fail")
    runner.run(run)
    assert sorted(run.checkpoints.values_list("step", flat=True)) == [2, 5, 6]
    out = job_files.job_folder(run) / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "checkpoint-2",
        "checkpoint-5",
        "checkpoint-6",
    ]
    assert actions.resume(run=ended(run), by=None) == 6
