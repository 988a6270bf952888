"""Training on the tasks that an evaluation says teach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import AuditEvent
from apps.evals.learnability.run import RunLearnability
from apps.evals.models import EvalRun, Split
from apps.training.actions import TrainingError, freeze_dataset
from apps.training.models import Dataset, TrainingRun
from apps.training.picks import offers
from tests.evals.evaluated import evaluated, frozen_set
from tests.factories import admin_of, make_eval_set, make_member, make_project, override
from tests.shared import copied, once

PASSED = (2, 0, 4, 1, 4)


def made_run(folder: Path) -> EvalRun:
    return unlocked(evaluated(frozen_set(demonstration="x"), PASSED, folder))


def unlocked(run: EvalRun) -> EvalRun:
    override(run.environment)
    return run


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[tuple[EvalRun, Path]]:
    yield from once(request, made_run)


@pytest.fixture
def run(kept: tuple[EvalRun, Path], db: None, settings: Any) -> EvalRun:
    return copied(kept, settings)


def sent(run: EvalRun, **changes: Any) -> dict[str, Any]:
    return {
        "method": "grpo",
        "parent": run.model_version_id,
        "eval_set": run.eval_set_id,
        "environment": run.environment_id,
        "steps": 2,
        "learning_rate": 1e-4,
        "batch_size": 8,
        "prompts_per_step": 4,
        "generations": 8,
        "beta": 0,
        "seed": 0,
    } | changes


def train(client: Client, run: EvalRun, **changes: Any) -> Any:
    client.force_login(admin_of(run.project))
    return client.post(reverse("training:new", args=[run.project.slug]), sent(run, **changes))


def test_all_training_tasks_are_the_default(client: Client, run: EvalRun) -> None:
    assert train(client, run).status_code == 302
    made = TrainingRun.objects.get()
    assert made.dataset.size == 5 and "picked_by" not in made.spec
    assert "of" not in AuditEvent.objects.get(action="dataset.frozen").detail


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_the_tasks_that_teach_are_trained_on_when_chosen(
    client: Client, run: EvalRun, method: str
) -> None:
    assert train(client, run, picked_by=run.pk, method=method).status_code == 302
    made = TrainingRun.objects.get()
    tasks = [row.task_id for row in made.dataset.rows.all()]
    assert tasks == [
        task.pk for task, n in zip(run.eval_set.tasks.trainable(), PASSED, strict=True) if 0 < n < 4
    ]
    assert (made.spec["picked_by"], made.spec["picked"], made.spec["picked_of"]) == (
        str(run.pk),
        2,
        5,
    )
    told = AuditEvent.objects.get(action="dataset.frozen").detail
    assert (told["size"], told["of"], told["picked_by"]) == (2, 5, str(run.pk))


def test_the_cap_on_a_group_holds(client: Client, db: None, data_dir: Path) -> None:
    run = unlocked(evaluated(frozen_set(group="one"), PASSED, data_dir))
    train(client, run, picked_by=run.pk, per_group=1)
    assert TrainingRun.objects.get().dataset.size == 1


@pytest.mark.proof
def test_the_form_offers_what_an_evaluation_says_and_the_link_chooses_it(
    client: Client, run: EvalRun
) -> None:
    client.force_login(admin_of(run.project))
    url = reverse("training:new", args=[run.project.slug])
    html = client.get(url).content.decode()
    assert f"The 2 of 5 in {run.eval_set} that" in html and f'value="{run.pk}" selected' not in html
    html = client.get(url, {"picked_by": run.pk, "per_group": 3}).content.decode()
    assert f'value="{run.pk}" selected' in html and 'name="per_group" value="3"' in html
    assert '<option value="grpo" selected>' in html
    for nonsense in ("x", "0" * 32, "' or 1=1"):
        assert client.get(url, {"picked_by": nonsense, "per_group": nonsense}).status_code == 200


def test_an_empty_project_is_told_what_a_run_needs(client: Client, db: None) -> None:
    project = make_project()
    client.force_login(admin_of(project))
    page = client.get(reverse("training:new", args=[project.slug])).content.decode()
    assert "Required before a run can start" in page and '<fieldset id="start" disabled>' in page
    assert "Freeze an eval set" in page and reverse("environments:new", args=[project.slug]) in page


@pytest.mark.proof
def test_without_such_an_evaluation_nothing_is_offered(client: Client, db: None) -> None:
    project = make_project()
    client.force_login(make_member(project))
    html = client.get(reverse("training:new", args=[project.slug])).content.decode()
    assert "picked_by" not in html and "evaluate the train split" in html


def test_hold_outs_unfinished_and_other_projects_evaluations_are_not_offered(
    run: EvalRun, data_dir: Path
) -> None:
    evaluated(run.eval_set, (1, 2), data_dir, split=Split.HOLDOUT)
    evaluated(run.eval_set, (1, 2), data_dir, finished=False)
    evaluated(run.eval_set, (0, 4), data_dir)  # nothing in it teaches
    other = evaluated(make_eval_set(make_project()), (1, 2), data_dir)
    assert list(offers(run.project)) == [str(run.pk)]
    assert list(offers(run.project, named=str(other.pk))) == [str(run.pk)]


def test_a_named_evaluation_is_offered_however_old(
    run: EvalRun, data_dir: Path, monkeypatch: Any
) -> None:
    newer = evaluated(run.eval_set, PASSED, data_dir)
    monkeypatch.setattr("apps.training.picks.OFFERED", 1)
    assert list(offers(run.project)) == [str(newer.pk)]
    assert list(offers(run.project, named=str(run.pk))) == [str(newer.pk), str(run.pk)]


def test_a_foreign_or_held_out_evaluation_is_refused(
    client: Client, run: EvalRun, data_dir: Path
) -> None:
    held = evaluated(run.eval_set, (1, 2), data_dir, split=Split.HOLDOUT)
    foreign = evaluated(make_eval_set(make_project()), (1, 2), data_dir)
    for wrong in (held.pk, foreign.pk, "x"):
        response = train(client, run, picked_by=wrong)
        assert response.status_code == 200 and "errorlist" in response.content.decode()
    assert not TrainingRun.objects.exists() and not Dataset.objects.exists()


@pytest.mark.proof
def test_an_evaluation_of_another_set_is_refused(client: Client, run: EvalRun) -> None:
    other = make_eval_set(run.project)
    response = train(client, run, picked_by=run.pk, eval_set=other.pk)
    assert f"It evaluated {run.eval_set}, not {other}." in response.content.decode()
    with pytest.raises(TrainingError, match="did not evaluate"):
        freeze_dataset(eval_set=other, by=None, picked_by=run)


def test_a_selection_is_a_dataset_of_its_own_and_the_same_twice_is_one(run: EvalRun) -> None:
    ids = RunLearnability(run).pick().chosen
    every = freeze_dataset(eval_set=run.eval_set, by=None)
    some = freeze_dataset(eval_set=run.eval_set, by=None, keys=ids, picked_by=run)
    assert some.digest != every.digest and some.size == 2
    assert freeze_dataset(eval_set=run.eval_set, by=None, keys=[*reversed(ids), *ids]) == some


def test_only_training_tasks_of_the_set_can_be_selected(run: EvalRun) -> None:
    fine = str(run.eval_set.tasks.trainable()[0].pk)
    held = run.eval_set.tasks.holdout()[0].pk
    foreign = make_eval_set(run.project).tasks.trainable()[0].pk
    for wrong in (held, foreign, "nonsense"):
        with pytest.raises(TrainingError, match="1 of the 2 chosen tasks are not training tasks"):
            freeze_dataset(eval_set=run.eval_set, by=None, keys=[fine, wrong])
    with pytest.raises(TrainingError, match="No tasks selected"):
        freeze_dataset(eval_set=run.eval_set, by=None, keys=[])
    assert not Dataset.objects.exists()
