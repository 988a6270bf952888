"""Alarms are kept, shown, told and counted; a paused run is resumed; a fork goes on from a
checkpoint with other settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core import (
    job_files,
    runner,
)
from apps.core.models import JobState, Role
from apps.notifications.models import Notification
from apps.training import actions, forking, run_alarms
from apps.training.charts import curves
from apps.training.child_spec import training_spec
from apps.training.models import TrainingRun
from tests.core.conftest import ended
from tests.factories import admin_of, key_headers, make_member

pytestmark = pytest.mark.django_db(transaction=True)
Submit = Callable[..., TrainingRun]


def alarm(step: int, action: str = "warn", **changes: Any) -> list[Any]:
    given = {
        "name": "kl",
        "step": step,
        "action": action,
        "value": 0.7,
        "threshold": 0.5,
        "message": "KL <b>is</b> high.",
        "todo": "Lower the learning rate.",
        "cleared": False,
    }
    return ["alarm", given | changes]


def config_of(run: TrainingRun, **changes: Any) -> dict:
    return run.spec["config"] | changes


def page(run: TrainingRun, role: Role = Role.ENGINEER) -> str:
    client = Client()
    client.force_login(make_member(run.project, role))
    return client.get(reverse("training:detail", args=[run.project.slug, run.pk])).content.decode()


@pytest.fixture
def warned(submit: Submit) -> TrainingRun:
    run = submit(
        ["metric", {"step": 3, "values": {"train/kl": 0.7}}],
        ["checkpoint at", 2],
        alarm(3),
        alarm(5, cleared=True),
        ["checkpoint at", 4],
        ["checkpoint at", 6],
        alarm(7),
        alarm(8, "stop"),
        "fail",
    )
    runner.run(run)
    return ended(run)


@pytest.mark.proof
def test_alarms_are_kept_with_their_ends(warned: TrainingRun) -> None:
    rows = [(row.step, row.action, row.cleared_step) for row in warned.alarms.order_by("pk")]
    assert rows == [(3, "warn", 5), (7, "warn", None), (8, "stop", None)]


@pytest.mark.proof
def test_the_page_shows_what_the_run_has_achieved(submit: Submit) -> None:
    run = submit(["finish with", {"outcome": ["Reward: <b>0.5</b> at the start."]}])
    runner.run(run)
    address = f"/api/v1/training-runs/{run.pk}/"
    answer = Client().get(address, **key_headers(run.project)).json()
    assert answer["outcome"] == ["Reward: <b>0.5</b> at the start."]
    html = page(ended(run))
    assert "Result of training" in html and "Reward: &lt;b&gt;0.5&lt;/b&gt; at the start." in html


@pytest.mark.proof
def test_the_page_shows_them_and_marks_the_chart(warned: TrainingRun) -> None:
    html = page(warned)
    assert (
        "KL to the start" in html
        and "Lower the learning rate." in html
        and "Over at step 5." in html
    )
    assert "<b>is</b>" not in html and "&lt;b&gt;is" in html
    marks = run_alarms.marks_of(run_alarms.listed(warned), {"train/kl"})
    assert [step for step, _, _ in marks] == [8, 7, 3] and run_alarms.marks_of(
        run_alarms.listed(warned), {"train/x"}
    ) == []
    ((_, figure),) = curves({"train/kl": [(3, 0.7)]}, lambda metrics: [(3, "a <b>", "#123456")])
    assert (
        figure["layout"]["shapes"][0]["x0"] == 3
        and "a &lt;b&gt;" in figure["layout"]["annotations"][0]["hovertext"]
    )


@pytest.mark.proof
def test_the_api_has_them(warned: TrainingRun, client: Client) -> None:
    url = reverse("training_api:run", args=[warned.pk])
    found = client.get(url, **key_headers(warned.project)).json()
    assert [(one["step"], one["action"], one["cleared_step"]) for one in found["alarms"]] == [
        (8, "stop", None),
        (7, "warn", None),
        (3, "warn", 5),
    ]
    assert found["paused"] is None and found["forked_from"] is None


def test_whoever_started_it_is_told_once_an_attempt(warned: TrainingRun) -> None:
    told = Notification.objects.filter(topic="training.alarm", user=warned.created_by)
    assert sorted(row.subject.rsplit("” ", 1)[1] for row in told) == ["stopped it", "warns"]
    assert all("is</b>" not in row.subject + row.excerpt for row in told)


def test_the_checkpoint_before_an_alarm_is_kept(submit: Submit, settings: Any) -> None:
    settings.FLYWHEEL_KEPT_CHECKPOINTS = 1
    run = submit(
        ["checkpoint at", 1],
        ["checkpoint at", 2],
        alarm(3),
        ["checkpoint at", 4],
        ["checkpoint at", 5],
        "fail",
    )
    runner.run(run)
    assert sorted(run.checkpoints.values_list("step", flat=True)) == [2, 5]
    assert "before the alarm" in page(ended(run)) and "?step=2" in page(run)


@pytest.mark.proof
def test_a_warning_from_the_start_does_not_hide_the_checkpoint_before_an_explosion(
    submit: Submit, settings: Any
) -> None:
    """A run that was stopped offered the exploded checkpoint for its fork, since another alarm had
    warned at step 0.
    """
    settings.FLYWHEEL_KEPT_CHECKPOINTS = 1
    run = submit(
        alarm(0, name="exploits"),
        ["checkpoint at", 2],
        alarm(3),
        ["checkpoint at", 4],
        ["checkpoint at", 5],
        alarm(6, "stop"),
        ["checkpoint at", 6],
        "fail",
    )
    runner.run(run)
    assert sorted(run.checkpoints.values_list("step", flat=True)) == [2, 6]
    assert "before the alarm" in page(ended(run)) and forking.ForkForm(run).initial["step"] == 2


def test_a_paused_run_has_not_failed_and_is_resumed(submit: Submit) -> None:
    run = submit(alarm(3, "pause"), ["checkpoint at", 3], "exit 143", "finish")
    runner.run(run)
    run = ended(run)
    assert (run.state, run.paused_by["step"], run.attempt) == (JobState.CANCELLED, 3, 1)
    assert (
        "Paused by an alarm at step 3" in page(run)
        and not Notification.objects.filter(topic="job.failed").exists()
    )
    assert actions.resume(run=run, by=admin_of(run.project)) == 3
    assert (
        ended(run).result == {} and run.paused_by is None and ended(run).cancel_requested_at is None
    )


def test_a_fork_has_its_own_copy_of_the_checkpoint(warned: TrainingRun) -> None:
    by = admin_of(warned.project)
    config = config_of(warned, learning_rate=5e-4, steps=9)
    made = forking.fork(run=warned, step=6, config=config, by=by, name="again")
    (checkpoint,) = made.checkpoints.all()
    assert (made.forked_from, made.done, checkpoint.step, made.total) == (warned, 6, 6, 9)
    assert job_files.has(made, checkpoint.folder)
    assert {name for name, _, _ in forking.changes(made)} == {"learning_rate", "steps"}
    assert made.spec["forked_from"] == {"run": str(warned.pk), "name": warned.name, "step": 6}
    html = page(made)
    assert "Forked from" in html and "learning_rate" in html
    assert "again" in page(warned)


@pytest.mark.proof
def test_a_run_that_an_alarm_stopped_before_any_good_checkpoint_is_forked_from_the_start(
    submit: Submit,
) -> None:
    """Its only checkpoint has the exploded weights, and was what its primary button offered."""
    run = submit(alarm(1, "stop"), ["checkpoint at", 1], "fail")
    runner.run(run)
    run = ended(run)
    form = forking.ForkForm(run)
    assert form.initial["step"] == 0 and [step for step, _ in form.fields["step"].choices] == [1, 0]
    by, changes = admin_of(run.project), {"learning_rate": 1e-6, "lora_rank": 3, "steps": 9}
    made = forking.fork(run=run, step=0, config=config_of(run, **changes), by=by)
    assert (
        made.forked_from,
        made.done,
        made.checkpoints.count(),
        made.spec["config"]["lora_rank"],
    ) == (run, 0, 0, 3)
    assert training_spec(made).resume_from is None and "step 0" in page(made)
    with pytest.raises(actions.TrainingError, match="lora_rank cannot change"):
        forking.fork(run=run, step=1, config=config_of(run, **changes), by=by)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("name", "primary", "default"),
    [
        ("kl", "Fork …", 0),
        ("hacking", "Fork …", 0),
        ("stall", "Resume from step 3", 3),
        ("masked", "Resume from step 3", 3),
    ],
)
def test_the_primary_button_of_a_paused_run_does_not_go_on_with_spoiled_weights(
    submit: Submit, name: str, primary: str, default: int
) -> None:
    """All its checkpoints come after the alarm. A stall has not spoiled them."""
    run = submit(alarm(3, "pause", name=name), ["checkpoint at", 3], "exit 143")
    runner.run(run)
    assert forking.default_step(ended(run)) == default
    html = page(run)
    [shown] = re.findall(r'class="(?:btn )?primary"[^>]*>([^<]+)<', html)
    assert shown == primary and ("An alarm paused this run at step 3" in html) is (default == 0)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("step", "changes", "said"),
    [
        (5, {}, "no checkpoint at step 5"),
        (6, {"steps": 6}, "already. Set more steps"),
        (6, {"lora_rank": 3}, "lora_rank cannot change"),
        (6, {"stepz": 3}, "did you mean “steps”"),
        (6, {"alarms": {"kll": {}}}, "did you mean “kl”"),
    ],
)
def test_what_cannot_be_forked(warned: TrainingRun, step: int, changes: dict, said: str) -> None:
    with pytest.raises(actions.TrainingError, match=said):
        forking.fork(run=warned, step=step, config=config_of(warned, steps=9) | changes, by=None)
    assert TrainingRun.objects.count() == 1


@pytest.mark.proof
def test_the_form_of_a_fork(warned: TrainingRun) -> None:
    client, url = Client(), reverse("training:fork", args=[warned.project.slug, warned.pk])
    client.force_login(make_member(warned.project, Role.ENGINEER))
    form = client.get(url).context["form"]
    assert form.initial["step"] == 6 and "learning_rate:" in form.initial["config"]
    sent = {
        "step": "4",
        "name": "n",
        "seed": "1",
        "config": form.initial["config"].replace("steps: 2", "steps: 20"),
    }
    for config, said in (
        ("a: [", "Line 1: "),
        (f"{form.initial['config']}\nsteps: 30", "“steps” is written twice"),
        ("a: &a [1, 2]\nb: *a", "Aliases (*name) are not read"),
        ("learning_rate: 1e-5", "is missing"),
        ("- 1", "names"),
        ("x: 1", "is not known"),
        ("", "required"),
    ):
        assert said in client.post(url, sent | {"config": config}).content.decode(), config
    answer = client.post(url, sent, follow=True)
    made = TrainingRun.objects.exclude(pk=warned.pk).get()
    assert (
        "Forked from" in answer.content.decode()
        and made.spec["seed"] == 1
        and made.checkpoints.get().step == 4
    )
