"""What webhooks are told: evaluations, gate reports, promotions, rollbacks; nothing that is held
out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from apps.core import jobs
from apps.core.models import JobState, Project
from apps.evals.models import Split
from apps.evals.submission import submit_eval
from apps.promotion import actions as promotion
from apps.promotion.moves import locked
from apps.promotion.moves import move as make_move
from apps.webhooks.models import Delivery, Webhook
from tests.factories import (
    admin_of,
    make_adapter,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
)

pytestmark = pytest.mark.django_db


def told(event: str) -> dict[str, Any]:
    """The data of the only event of this kind."""
    return json.loads(Delivery.objects.get(event=event).body)["data"]


@pytest.fixture
def scene(project: Project, hook: Webhook, data_dir: Path) -> dict[str, Any]:
    base = make_base(project, data_dir)
    return {
        "by": admin_of(project),
        "base": base,
        "adapter": make_adapter(project, base, data_dir),
        "environment": make_environment(project),
        "eval_set": make_eval_set(project),
    }


def start(scene: dict[str, Any]) -> Any:
    run = submit_eval(
        project=scene["eval_set"].project,
        split=Split.HOLDOUT,
        eval_set=scene["eval_set"],
        environment=scene["environment"],
        model_version=scene["base"],
        samples_per_task=2,
        by=scene["by"],
    )
    Delivery.objects.all().delete()
    return run


def test_the_end_of_an_evaluation(scene: dict[str, Any], project: Project) -> None:
    run = start(scene)
    assert run.claim("test")
    jobs.end(run, JobState.SUCCEEDED, result={"metrics": {"success": {"mean": 0.5, "n": 4}}})
    data = told("evaluation.finished")
    assert data["project"] == project.slug and data["api"] == f"/api/v1/eval-runs/{run.pk}/"
    said = data["evaluation"]
    assert (said["id"], said["state"], said["model_version"]) == (
        str(run.pk),
        "succeeded",
        str(scene["base"]),
    )
    assert said["metrics"]["success"] == {"mean": 0.5, "n": 4} and said["finished_at"]


def test_an_evaluation_that_fails_tells_nothing_of_what_is_held_out(scene: dict[str, Any]) -> None:
    held = scene["eval_set"].tasks.holdout().first()
    request = held.messages[-1]["content"]
    run = start(scene)
    assert run.claim("test")
    jobs.end(run, JobState.FAILED, error=f"The task “{request}” broke it.")
    body = Delivery.objects.get(event="evaluation.finished").body
    assert told("evaluation.finished")["evaluation"]["state"] == "failed" and request not in body


def test_an_evaluation_that_is_cancelled_before_it_began(scene: dict[str, Any]) -> None:
    run = start(scene)
    assert jobs.cancel(run, by=scene["by"])
    assert told("evaluation.finished")["evaluation"]["state"] == "cancelled"


def test_a_gate_report_a_promotion_and_a_rollback(scene: dict[str, Any], project: Project) -> None:
    runs = [
        make_eval_run(scene["eval_set"], scene[name], scene["environment"], success=success)
        for name, success in (("base", 0.25), ("adapter", 1.0))
    ]
    channel = promotion.channel_of(project)
    promotion.set_initial(channel=channel, version=scene["base"], by=scene["by"])
    assert not Delivery.objects.exists()  # what runs first is no promotion
    report = promotion.make_gate_report(baseline=runs[0], candidate=runs[1], by=scene["by"])
    said = told("gate_report.made")["gate_report"]
    assert (said["id"], said["verdict"], said["candidate"]) == (
        str(report.pk),
        report.verdict,
        str(runs[1].pk),
    )
    assert said["checks"] and isinstance(said["improved"], int)
    body = Delivery.objects.get(event="gate_report.made").body
    for task in scene["eval_set"].tasks.holdout():
        assert str(task.pk) not in body and task.messages[-1]["content"] not in body
    channel.refresh_from_db()
    move = make_move(
        locked(channel),
        scene["adapter"],
        "promote",
        scene["by"],
        reason="better",
        gate_report=report,
    )
    assert told("promotion.made")["promotion"] == {
        "id": move.pk,
        "channel": "production",
        "from_version": str(scene["base"]),
        "to_version": str(scene["adapter"]),
        "kind": "promote",
        "reason": "better",
        "by": scene["by"].get_username(),
        "gate_report": str(report.pk),
        "at": json.loads(Delivery.objects.get(event="promotion.made").body)["data"]["promotion"][
            "at"
        ],
        "overridden": False,
        "deployment": None,
        "proof": [],
    }
    promotion.rollback(channel=channel, by=scene["by"], reason="worse after all")
    assert told("rollback.made")["promotion"]["to_version"] == str(scene["base"])
