"""The lists of sets, evaluations, training runs and models are sorted by the columns of their
heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.evals.models import EvalRun, Split
from apps.evals.pages import sets
from apps.promotion import views as models
from apps.training import views as training
from apps.training.actions import freeze_dataset, submit_training
from apps.training.models import Method
from tests.amounts import amount
from tests.factories import (
    admin_of,
    make_adapter,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_project,
    override,
)
from tests.shared import copied, once

pytestmark = pytest.mark.django_db


def make(data_dir: Path) -> dict[str, Any]:
    project = make_project()
    environment, base = make_environment(project), make_base(project, data_dir)
    adapter, eval_set = make_adapter(project, base, data_dir), make_eval_set(project)
    runs = [
        make_eval_run(eval_set, version, environment, success=share)
        for version, share in ((base, 0.25), (adapter, 1.0))
    ]
    make_adapter(project, base, data_dir, name="never-evaluated")
    override(environment)
    for steps in (2, 4):
        submit_training(
            project=project,
            method=Method.SFT,
            parent=base,
            dataset=freeze_dataset(eval_set=eval_set, by=admin_of(project)),
            environment=environment,
            config={"steps": steps, "learning_rate": 1e-3, "batch_size": 1},
            by=admin_of(project),
        )
    return {"project": project, "base": base, "adapter": adapter, "runs": runs}


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, make)


@pytest.fixture
def world(kept: Any, db: None, settings: Any) -> dict[str, Any]:
    made = copied(kept, settings)
    client = Client()
    client.force_login(admin_of(made["project"]))
    return made | {"client": client}


def context(world: dict[str, Any], page: str, **given: str) -> Any:
    answer = world["client"].get(reverse(page, args=[world["project"].slug]), given)
    assert answer.status_code == 200
    return answer


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("page", "parameter", "columns"),
    [
        ("evals:list", "sort", sets.RUN_COLUMNS),
        ("evals:list", "sets", sets.SET_COLUMNS),
        ("training:list", "sort", training.RUN_COLUMNS),
        ("promotion:models", "sort", models.VERSION_COLUMNS),
    ],
)
def test_every_column_sorts_both_ways(
    world: dict[str, Any], page: str, parameter: str, columns: dict[str, str]
) -> None:
    """In the suite, one column upwards, the next one downwards."""
    ways = (("", "ascending"), ("-", "descending"))
    for number, column in enumerate(columns):
        for sign, state in amount(ways[number % 2 :][:1], ways):
            said = context(world, page, **{parameter: sign + column}).content.decode()
            assert said.count(f'aria-sort="{state}"') == 1, column
    there = reverse(page, args=[world["project"].slug])
    assert world["client"].get(there, {parameter: "nonsense"}).status_code == 400
    assert "aria-sort" not in context(world, page).content.decode()


def test_evaluations_are_sorted_by_their_score(world: dict[str, Any]) -> None:
    low, high = world["runs"]

    def order(sort: str) -> list[Any]:
        return [run.pk for run in context(world, "evals:list", sort=sort).context["page"]]

    assert order("success") == [low.pk, high.pk] and order("-success") == [high.pk, low.pk]
    EvalRun.objects.filter(pk=low.pk).update(result={})
    assert order("success") == order("-success") == [high.pk, low.pk], "what has no score is last"


def test_models_are_sorted_by_their_newest_score_on_held_out_tasks(world: dict[str, Any]) -> None:
    """A later evaluation on training tasks says less."""
    train = make_eval_run(
        world["runs"][0].eval_set, world["base"], world["runs"][0].environment, success=1.0
    )
    EvalRun.objects.filter(pk=train.pk).update(split=Split.TRAIN)
    for sort, first in (("success", world["base"]), ("-success", world["adapter"])):
        shown = list(context(world, "promotion:models", sort=sort).context["page"])
        assert shown[0] == first and shown[-1].name not in (
            world["base"].name,
            world["adapter"].name,
        )
        assert (
            next(version for version in shown if version == world["base"]).finished[0]
            == world["runs"][0]
        )
