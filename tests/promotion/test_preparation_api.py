"""What the gate wants to know of two evaluations beside themselves, over REST."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apps.core.actions import create_api_key
from apps.core.models import Role
from apps.core.scopes import Scope
from apps.evals.drafts import freeze
from apps.evals.models import EvalRun, LatencyMeasurement, Split
from tests.evals.test_runs_api import Api
from tests.factories import (
    admin_of,
    make_adapter,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_project,
)

pytestmark = pytest.mark.django_db
NAME = "promotion_api:preparation"


@pytest.fixture
def runs(data_dir: Path) -> list[EvalRun]:
    project = make_project()
    base, environment, eval_set = (
        make_base(project, data_dir),
        make_environment(project),
        make_eval_set(project, frozen=False),
    )
    task = eval_set.tasks.filter(split=Split.TRAIN).first()
    eval_set.tasks.filter(pk=task.pk).update(split=Split.REGRESSION)
    freeze(eval_set=eval_set, by=admin_of(project))
    models = (base, make_adapter(project, base, data_dir))
    return [make_eval_run(eval_set, model, environment, success=0.5) for model in models]


def pair(runs: list[EvalRun]) -> dict[str, str]:
    return {"baseline": str(runs[0].pk), "candidate": str(runs[1].pk)}


def states(answer: Any) -> dict[str, str]:
    return {part["title"]: part["state"] for part in answer.json()["parts"]}


def test_what_is_missing_is_seen_queued_and_polled(runs: list[EvalRun]) -> None:
    api = Api(runs[0].project)
    before = api.get(NAME, **pair(runs))
    assert (
        before.status_code == 200
        and not before.json()["ready"]
        and set(states(before).values()) == {"missing"}
    )
    made = api.post(NAME, body=pair(runs) | {"adapters": "hot"})
    assert made.status_code == 200, made.content
    after = api.get(NAME, **pair(runs))
    measured = LatencyMeasurement.objects.filter(project=runs[0].project)
    assert made.json()["problems"] == [] and set(states(after).values()) == {"queued"}
    assert measured.get().adapters == "hot"
    assert EvalRun.objects.filter(split=Split.REGRESSION).count() == 2
    again = api.post(NAME, body=pair(runs))
    assert (
        states(again) == states(after)
        and EvalRun.objects.filter(split=Split.REGRESSION).count() == 2
    )
    jobs = [job for part in after.json()["parts"] for job in part["jobs"]]
    assert {job["kind"] for job in jobs} >= {"evaluation"} and all(
        job["state"] == "queued" for job in jobs
    )


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"baseline": "x"}, 404),
        ({"general_tasks": 0}, 400),
        ({"adapters": "cold"}, 400),
        ({"x": 1}, 400),
        ({"candidate": 1}, 400),
    ],
)
def test_what_makes_no_sense_is_refused(runs: list[EvalRun], changes: dict, status: int) -> None:
    api = Api(runs[0].project)
    assert api.post(NAME, body=pair(runs) | changes).status_code == status
    assert EvalRun.objects.count() == 2


def test_who_may_prepare(runs: list[EvalRun]) -> None:
    project, api = runs[0].project, Api(runs[0].project)
    stranger = Api(make_project())
    assert (
        stranger.get(NAME, **pair(runs)).status_code
        == 404
        == stranger.post(NAME, body=pair(runs)).status_code
    )
    assert api.get(NAME).status_code == 400  # baseline and candidate are required
    anonymous = Api(project)
    anonymous.headers = {}
    assert anonymous.post(NAME, body=pair(runs)).status_code == 401
    reader = Api(project)
    secret = create_api_key(project=project, name="r", by=admin_of(project), scopes=[Scope.READ])[1]
    reader.headers = {"HTTP_AUTHORIZATION": f"Bearer {secret}"}
    assert (
        reader.get(NAME, **pair(runs)).status_code == 200
        and reader.post(NAME, body=pair(runs)).status_code == 403
    )
    project.memberships.update(role=Role.VIEWER)
    assert api.post(NAME, body=pair(runs)).status_code == 403 and EvalRun.objects.count() == 2
