"""A program stops, resumes and forks a training run as a person does on its page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core import runner
from apps.core.actions import create_api_key
from apps.core.models import AuditEvent, JobState, Role
from apps.reviews.actions import TrainingLocked
from apps.training.models import TrainingRun
from tests.amounts import few
from tests.core.conftest import ended
from tests.factories import make_member, make_project

pytestmark = pytest.mark.django_db(transaction=True)
Submit = Callable[..., TrainingRun]
Ask = Callable[..., Any]


@pytest.fixture
def ask() -> Ask:
    """An engineer's key of the run's project, or of another one."""

    def send(
        name: str,
        run: TrainingRun,
        body: dict | None = None,
        project: Any = None,
        role: Role = Role.ENGINEER,
    ) -> Any:
        project = project or run.project
        secret = create_api_key(project=project, name="ci", by=make_member(project, role))[1]
        headers = {"Authorization": f"Bearer {secret}"}
        url = reverse(f"training_api:{name}", args=[run.pk])
        if name == "run":
            return Client().get(url, headers=headers)
        return Client().post(url, body or {}, content_type="application/json", headers=headers)

    return send


@pytest.fixture
def failed(submit: Submit) -> TrainingRun:
    alarm = {
        "name": "kl",
        "step": 5,
        "action": "warn",
        "value": 0.7,
        "threshold": 0.5,
        "message": "m",
        "todo": "t",
        "cleared": False,
    }
    run = submit(["checkpoint at", 4], ["alarm", alarm], ["checkpoint at", 6], "fail")
    runner.run(run)
    return ended(run)


def test_a_queued_run_is_cancelled_once(submit: Submit, ask: Ask) -> None:
    run = submit("finish")
    answer = ask("run_cancel", run)
    assert answer.status_code == 200 and answer.json()["state"] == JobState.CANCELLED
    again = ask("run_cancel", run)
    assert again.status_code == 409 and "already finished" in again.json()["detail"]
    assert AuditEvent.objects.filter(action="trainingrun.cancel_requested").count() == 1


def test_a_failed_run_is_resumed_from_its_checkpoint(failed: TrainingRun, ask: Ask) -> None:
    answer = ask("run_resume", failed)
    assert (answer.status_code, answer.json()["state"], answer.json()["done"]) == (
        200,
        JobState.QUEUED,
        6,
    )
    assert "Only a run that failed or was cancelled" in ask("run_resume", failed).json()["detail"]


@pytest.mark.proof
def test_without_a_checkpoint_nothing_is_resumed_or_forked(submit: Submit, ask: Ask) -> None:
    run = submit("fail")
    runner.run(run)
    for name, said in (
        ("run_resume", "Start a new run"),
        ("run_fork", "With “step” 0 the fork begins at the start"),
    ):
        answer = ask(name, run)
        assert answer.status_code == 409 and said in answer.json()["detail"], name
    made = ask("run_fork", run, {"step": 0, "changes": {"steps": 9}})
    assert (made.status_code, made.json()["forked_from"]["step"]) == (201, 0)


def test_a_fork_starts_before_the_alarm_unless_a_step_is_named(
    failed: TrainingRun, ask: Ask
) -> None:
    assert ask("run", failed).json()["checkpoints"] == [6, 4]
    answer = ask(
        "run_fork", failed, {"changes": {"learning_rate": 5e-4, "steps": 9}, "name": "careful"}
    )
    made = answer.json()
    assert (answer.status_code, made["forked_from"]["step"], made["name"]) == (201, 4, "careful")
    assert (made["config"]["learning_rate"], made["config"]["batch_size"]) == (5e-4, 1)
    other = ask("run_fork", failed, {"step": 6, "seed": 7, "changes": {"steps": 9}}).json()
    assert (other["forked_from"]["step"], other["seed"]) == (6, 7)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"step": 5, "changes": {"steps": 9}}, 409, "no checkpoint at step 5"),
        ({"changes": {"steps": 9, "lora_rank": 3}}, 409, "lora_rank cannot change"),
        ({"changes": {"steps": 9, "stepz": 1}}, 409, "did you mean “steps”"),
        ({"changes": {"steps": "many"}}, 409, "steps"),
        ({"changes": {"steps": None}}, 409, "steps"),
        ({"changes": []}, 400, "changes"),
        ({"step": -1}, 400, "step"),
        ({"stepp": 4}, 400, "stepp"),
    ],
)
def test_what_a_fork_refuses(
    failed: TrainingRun, ask: Ask, body: dict, status: int, said: str
) -> None:
    answer = ask("run_fork", failed, body)
    assert answer.status_code == status and said in answer.content.decode()
    assert TrainingRun.objects.count() == 1


@pytest.mark.more
@pytest.mark.parametrize("name", few(["run_cancel", "run_resume", "run_fork"], 1))
def test_nobody_else_steers_it(failed: TrainingRun, ask: Ask, name: str) -> None:
    assert ask(name, failed, project=make_project()).status_code == 404
    assert ask(name, failed, role=Role.REVIEWER).status_code == 403


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("name", ["run_resume", "run_fork"])
def test_the_lock_is_asked_again(
    failed: TrainingRun, ask: Ask, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(**_: Any) -> None:
        raise TrainingLocked("The reward was edited since.")

    monkeypatch.setattr("apps.training.actions.require_reviewed", locked)
    answer = ask(name, failed, {"changes": {"steps": 9}} if name == "run_fork" else None)
    assert answer.status_code == 409 and "edited since" in answer.json()["detail"]
