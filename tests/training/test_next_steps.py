"""Where a run's page and a model's page lead: to the held-out evaluation, and to the next run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Role
from apps.environments.actions import save_verifier
from apps.evals.models import Split
from apps.training.actions import freeze_dataset, submit_training
from apps.training.models import Method, TrainingRun
from apps.training.sources import words_of_people
from tests.evals.evaluated import evaluated
from tests.factories import (
    admin_of,
    make_adapter,
    make_base,
    make_endpoint,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_failed,
    make_member,
    make_project,
    override,
)
from tests.shared import copied, once
from tests.test_access import logged_in

pytestmark = pytest.mark.django_db


def made_run(folder: Path) -> TrainingRun:
    """A run that has made an adapter."""
    project = make_project()
    environment, eval_set, by = make_environment(project), make_eval_set(project), admin_of(project)
    override(environment)
    base = make_base(project, folder)
    made = submit_training(
        project=project,
        method=Method.GRPO,
        parent=base,
        environment=environment,
        by=by,
        dataset=freeze_dataset(eval_set=eval_set, by=by),
        config={"steps": 3, "learning_rate": 1e-3},
    )
    TrainingRun.objects.filter(pk=made.pk).update(model_version=make_adapter(project, base, folder))
    made.refresh_from_db()
    return made


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[tuple[TrainingRun, Path]]:
    yield from once(request, made_run)


@pytest.fixture
def run(kept: tuple[TrainingRun, Path], db: None, settings: Any) -> TrainingRun:
    return copied(kept, settings)


def text(run: TrainingRun, role: Role = Role.ENGINEER) -> str:
    client = logged_in(make_member(run.project, role))
    return client.get(reverse("training:detail", args=[run.project.slug, run.pk])).content.decode()


@pytest.mark.proof
def test_a_run_asks_for_the_held_out_evaluation_of_what_it_made(run: TrainingRun) -> None:
    said = text(run)
    assert (
        f"{run.model_version} is not evaluated yet" in said and "it on the held-out tasks" in said
    )
    assert f"{run.model_version} is not evaluated yet" in text(run, Role.VIEWER)
    assert "it on the held-out tasks" not in text(run, Role.VIEWER)


def test_a_run_shows_the_held_out_results_of_both_models_with_intervals(
    run: TrainingRun, data_dir: Path
) -> None:
    eval_set = run.dataset.eval_set
    make_eval_run(eval_set, run.parent, run.environment, success=0.0)
    evaluated(eval_set, [4] * 3, data_dir, split=Split.TRAIN)  # not held out: not shown
    said = text(run)
    assert (
        "is not evaluated yet" in said and "0.0% success" in said and "100.0% success" not in said
    )
    make_eval_run(eval_set, run.model_version, run.environment, success=1.0)
    said = text(run)
    assert "100.0% success" in said and "0.0% success" in said and "of 3 tasks" in said
    assert "is not evaluated yet" not in said


def test_a_model_that_trains_leads_to_its_next_run(run: TrainingRun, client: Client) -> None:
    def offered(version: object, role: Role) -> bool:
        page = logged_in(make_member(run.project, role)).get(
            reverse("promotion:model", args=[run.project.slug, version.pk])  # type: ignore[attr-defined]
        )
        return f"/training/new/?parent={version.pk}" in page.content.decode()  # type: ignore[attr-defined]

    assert offered(run.model_version, Role.ENGINEER) and offered(run.parent, Role.ENGINEER)
    assert not offered(run.model_version, Role.REVIEWER)
    assert not offered(make_endpoint(run.project), Role.ENGINEER)


def test_corrections_of_runs_that_are_held_out_are_not_counted_as_pairs(run: TrainingRun) -> None:
    project = run.project
    _, held = (
        make_failed(project, request=f"Close ticket {n}.", expected={"tool": "t", "args": {}})
        for n in (1, 2)
    )
    eval_set = run.dataset.eval_set
    counted = words_of_people(eval_set)
    make_eval_set(project, frozen=False).tasks.filter(split=Split.HOLDOUT).update(trajectory=held)
    now = words_of_people(eval_set)
    assert now["preference_pairs"] == counted["preference_pairs"] - 1


def test_a_verifier_that_no_environment_uses_leads_to_one_that_begins_with_it(
    run: TrainingRun,
) -> None:
    spec = {"kind": "tool_call", "weights": {"invalid": -0.5}}
    verifier = save_verifier(
        project=run.project, name="learned", spec=spec, by=admin_of(run.project)
    )
    engineer = logged_in(make_member(run.project))
    there = reverse("reviews:verifier", args=[run.project.slug, verifier.pk])
    query = f"?from={run.environment.pk}&amp;verifier={verifier.pk}"
    assert query in engineer.get(there).content.decode()
    assert query not in logged_in(make_member(run.project, Role.VIEWER)).get(there).content.decode()
    new = reverse("environments:new", args=[run.project.slug])
    form = engineer.get(new, {"from": run.environment.pk, "verifier": verifier.pk}).context["form"]
    assert (form["verifier"].value(), form["slug"].value()) == (verifier.pk, run.environment.slug)
    strangers = make_environment(make_project()).verifier
    assert engineer.get(new, {"verifier": strangers.pk}).context["form"]["verifier"].value() is None
    assert engineer.get(new, {"verifier": "x" * 90}).status_code == 400
