"""A run needs a reviewed reward if, and only if, a verifier decides what it learns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.evals.models import EvalRun
from apps.reviews.actions import TrainingLocked
from apps.training.actions import freeze_dataset, resume, submit_training
from apps.training.child_spec import training_spec
from apps.training.engines import exporting
from apps.training.judged import Example
from apps.training.models import SOURCES, Method, Shape, Source, TrainingRun
from apps.training.reward_lock import uses_reward
from tests.evals.evaluated import evaluated, frozen_set
from tests.factories import admin_of, override
from tests.shared import copied, once
from tests.training.test_picks import PASSED, sent


@pytest.mark.parametrize(
    ("method", "sources", "needed"),
    [
        (Method.SFT, [], False),
        (Method.ON_POLICY, [], False),  # a teacher's probabilities; scores are only shown
        (Method.GRPO, [], True),
        (Method.BEST_OF_N, [], True),
        (Method.REJECTION, [Source.EVALUATION], True),
        (Method.DISTILL, [Source.EVALUATION], True),
        (Method.DPO, [Source.CORRECTIONS, Source.FEEDBACK, Source.REVIEWS], False),
        (Method.DPO, [Source.CORRECTIONS, Source.EVALUATION], True),
        (Method.DPO, [Source.REPLAYS], True),
        (Method.KTO, [Source.FEEDBACK], False),
        (Method.REWARD, [Source.CORRECTIONS], False),
        (Method.REWARD, [Source.EVALUATION], True),
    ],
)
def test_which_runs_learn_from_a_verifier(
    method: Method, sources: list[Source], needed: bool
) -> None:
    assert uses_reward(method, sources) is needed


def test_the_table_has_every_method() -> None:
    assert {method for method in Method if uses_reward(method, SOURCES.get(method, ()))} == set(
        Method
    ) - {
        Method.SFT,
        Method.ON_POLICY,
    }


def made_run(folder: Path) -> EvalRun:
    """An evaluation in a project in which nobody has reviewed anything."""
    return evaluated(frozen_set(demonstration="x"), PASSED, folder)


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[tuple[EvalRun, Path]]:
    yield from once(request, made_run)


@pytest.fixture
def run(kept: tuple[EvalRun, Path], db: None, settings: Any) -> EvalRun:
    return copied(kept, settings)


def start(run: EvalRun, method: Method, **dataset: Any) -> TrainingRun:
    by = admin_of(run.project)
    return submit_training(
        project=run.project,
        method=method,
        parent=run.model_version,
        environment=run.environment,
        by=by,
        config={
            "steps": 2,
            "learning_rate": 1e-3,
            **({} if method == Method.GRPO else {"batch_size": 2}),
        },
        dataset=freeze_dataset(eval_set=run.eval_set, by=by, **dataset),
    )


def pairs(run: EvalRun, source: Source) -> dict[str, Any]:
    task = run.eval_set.tasks.trainable().first()
    return {
        "shape": Shape.PAIRS,
        "examples": [Example(source, {"chosen": "yes", "rejected": "no"}, task=task.pk)],
    }


@pytest.mark.proof
def test_demonstrations_and_corrections_train_without_a_review_and_the_run_says_so(
    run: EvalRun,
) -> None:
    for made in (start(run, Method.SFT), start(run, Method.DPO, **pairs(run, Source.CORRECTIONS))):
        assert made.spec["oversight"] == "No reward was used, so none was reviewed."
        assert training_spec(made).rows
        assert exporting.export(run=made, engine="trl", by=made.created_by).content
    with pytest.raises(TrainingLocked):
        start(run, Method.GRPO)
    with pytest.raises(TrainingLocked):
        start(run, Method.DPO, **pairs(run, Source.EVALUATION))


def test_a_run_that_learns_from_a_reward_stays_locked_when_it_is_resumed(run: EvalRun) -> None:
    override(run.environment)
    made = start(run, Method.GRPO)
    assert made.spec["oversight"].startswith("Not reviewed: ")
    run.environment.verifier.overrides.all().delete()
    with pytest.raises(TrainingLocked):
        resume(run=made, by=made.created_by)


def test_the_page_locks_its_button_by_what_is_chosen(client: Client, run: EvalRun) -> None:
    client.force_login(admin_of(run.project))
    url = reverse("training:new", args=[run.project.slug])
    locked, free = (
        client.get(url, {"method": method}).content.decode() for method in ("grpo", "sft")
    )
    assert '<fieldset id="start" disabled>' in locked and "Locked." in locked
    assert reverse("reviews:open", args=[run.project.slug, run.environment.verifier_id]) in locked
    assert '<fieldset id="start">' in free and "needs no reward review" in free
    state = reverse("training:start_state", args=[run.project.slug])
    assert 'data-off="1"' in client.post(state, sent(run, method="grpo")).content.decode()
    assert 'data-off=""' in client.post(state, sent(run, method="sft")).content.decode()
    assert (
        'data-off=""'
        in client.post(state, sent(run, method="dpo", sources="corrections")).content.decode()
    )
    override(run.environment)
    assert 'data-off=""' in client.post(state, sent(run, method="grpo")).content.decode()
