"""A reward model in a project: from pairs to a version that scores and is offered as no agent, and
the verifiers that use it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.bus import first
from apps.core.managed.objects import WhyNotDelete, WhyNotRename
from apps.core.models import JobState
from apps.environments.actions import save_verifier
from apps.environments.clients import job_spec
from apps.environments.reward_models import models_in, resolved, verifiers_with
from apps.evals.canonical import canonical_hash
from apps.evals.models import EvalRun
from apps.promotion import actions as promotion
from apps.promotion.policies import channel_of
from apps.registry.actions import ModelError, register_prompt
from apps.registry.artifacts import ArtifactError, local_path
from apps.registry.engines import choose
from apps.registry.models import ModelKind, ModelVersion
from apps.training.actions import TrainingError, freeze_dataset, submit_training
from apps.training.child_spec import training_spec
from apps.training.engines.exporting import reason_against
from apps.training.engines.folder import ENGINES
from apps.training.forking import fork
from apps.training.jobs import complete
from apps.training.judged import kept_aside
from apps.training.lineage import jobs_behind
from apps.training.models import Method, Shape, Source, TrainingRun
from tests.evals.evaluated import evaluated, frozen_set
from tests.factories import (
    adapter_weights,
    admin_of,
    key_headers,
    make_checkpoint,
    make_environment,
    make_failed,
    make_member,
    make_project,
    override,
)
from tests.forms import as_read
from tests.shared import copied, once
from workers.lib.errors import SpecError

CONFIG = {"steps": 2, "learning_rate": 1e-4, "batch_size": 2}
MEASURED = {
    "steps": 2,
    "pairs": 4,
    "aside": 10,
    "aside_right": 8,
    "chosen_passed": 7,
    "rejected_passed": 1,
    "brier": 0.2,
    "slope": 2.0,
    "intercept": -1.0,
    "threshold": 0.75,
    "lowest": -1.0,
    "highest": 2.0,
}


def made_run(folder: Path) -> EvalRun:
    """An evaluation of six training tasks, each with passing and failing samples."""
    made = evaluated(frozen_set(6), (2, 1, 3, 1, 2, 3), folder)
    for sample in made.samples.all():
        sample.output = f"{'right' if sample.success else 'wrong'} {sample.index}"
        sample.save(update_fields=["output"])
    override(made.environment)
    return made


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[tuple[EvalRun, Path]]:
    yield from once(request, made_run)


@pytest.fixture
def run(kept: tuple[EvalRun, Path], db: None, settings: Any) -> EvalRun:
    return copied(kept, settings)


def submitted(run: EvalRun, **config: Any) -> TrainingRun:
    from apps.training.sources import find_examples

    found = find_examples(
        eval_set=run.eval_set,
        shape="pairs",
        sources=[Source.EVALUATION, Source.CORRECTIONS],
        evaluation=run,
    )
    dataset = freeze_dataset(
        eval_set=run.eval_set, by=None, shape=Shape.PAIRS, examples=found.examples
    )
    return submit_training(
        project=run.project,
        method=Method.REWARD,
        parent=run.model_version,
        environment=run.environment,
        by=admin_of(run.project),
        config=CONFIG | config,
        dataset=dataset,
    )


def finished(run: EvalRun, folder: Path, **measured: Any) -> ModelVersion:
    job = submitted(run)
    source = folder / f"out-{job.pk}"
    source.mkdir()
    for name in ("adapter_config.json", "reward_model.json"):
        (source / name).write_text(json.dumps(measured))
    (source / "adapter_model.safetensors").write_bytes(adapter_weights("reward"))
    job.claim("test")
    result = complete(job, {"adapter": str(source), "metrics": MEASURED | measured})
    job.finish(JobState.SUCCEEDED, result=result)
    job.refresh_from_db()
    assert job.model_version is not None
    return job.model_version


# What trains it


def test_its_job_keeps_pairs_of_whole_groups_aside_and_leaves_the_harness_out(run: EvalRun) -> None:
    spec = training_spec(submitted(run))
    typed = as_read(spec)
    assert len(typed.rows) == 4 and len(typed.validation_rows) == 2
    asked = [json.dumps(row.messages) for row in typed.rows]
    assert not any(json.dumps(row.messages) in asked for row in typed.validation_rows)
    assert all(row.messages[0]["role"] == "user" for row in typed.rows)
    assert spec.validation_rows == training_spec(submitted(run)).validation_rows


def test_a_production_run_that_asks_what_a_task_asks_is_kept_aside_with_it(run: EvalRun) -> None:
    from apps.training.sources import groups_of

    task = run.eval_set.tasks.trainable().first()
    make_failed(run.project, request=task.messages[-1]["content"], expected="I did.")
    examples = list(submitted(run).dataset.examples.select_related("task"))
    [corrected] = [one for one in examples if one.trajectory_id]
    assert canonical_hash(corrected.data["messages"]) == task.canonical_hash
    found = dict(zip(examples, groups_of(examples), strict=True))
    assert found[corrected] == task.group


def test_a_fork_is_measured_on_what_its_checkpoint_never_saw(run: EvalRun) -> None:
    """With another share, pairs that the checkpoint has learned from would be held back and count
    as unseen.
    """
    job = submitted(run)
    make_checkpoint(job, 1)
    for share in (0.1, 0.4):
        config = job.spec["config"] | {"validation_share": share}
        with pytest.raises(TrainingError, match="holds back the same examples"):
            fork(run=job, step=1, config=config, by=job.created_by)
    assert fork(run=job, step=1, config=job.spec["config"], by=job.created_by).forked_from == job


@pytest.mark.parametrize(
    ("groups", "share", "count"),
    [
        ([], 0.2, 0),
        (["a"] * 5, 0.5, 0),
        (["a", "b"], 0.01, 1),
        (list("abcdefghij"), 0.2, 2),
        (list("abcdefghij"), 0, 0),
    ],
)
def test_what_is_kept_aside_is_whole_groups_and_leaves_something_to_train(
    groups: list[str], share: float, count: int
) -> None:
    aside = kept_aside(groups, share)
    assert len(aside) == count == len(kept_aside(groups, share))
    assert not {groups[at] for at in aside} & {
        group for at, group in enumerate(groups) if at not in aside
    }


@pytest.mark.parametrize("names", ["abcdef", "fedcba", "xyzuvw", "123456"])
def test_examples_of_both_kinds_are_left_to_train(names: str) -> None:
    """All bad answers were about one or two requests, and in some orders of the names all of them
    were kept aside.
    """
    for rare in names:
        kinds = [name != rare for name in names for _ in range(3)]
        groups = [name for name in names for _ in range(3)]
        aside = kept_aside(groups, 0.5, kinds)
        assert len(aside) == 9 and not any(groups[at] == rare for at in aside)


def test_too_few_pairs_and_one_that_starts_from_a_reward_model_are_refused(
    run: EvalRun, data_dir: Path
) -> None:
    model = finished(run, data_dir)
    dataset = TrainingRun.objects.get(model_version=model).dataset
    common = {
        "project": run.project,
        "environment": run.environment,
        "config": CONFIG,
        "by": admin_of(run.project),
    }
    with pytest.raises(TrainingError, match="is a reward model"):
        submit_training(method=Method.REWARD, parent=model, dataset=dataset, **common)
    few = freeze_dataset(
        eval_set=run.eval_set,
        by=None,
        shape=Shape.PAIRS,
        examples=[one for one in _examples(run) if one.task][:2],
    )
    with pytest.raises(TrainingError, match="needs at least 4 pairs"):
        submit_training(method=Method.REWARD, parent=run.model_version, dataset=few, **common)


def _examples(run: EvalRun) -> list[Any]:
    from apps.training.sources import find_examples

    return find_examples(
        eval_set=run.eval_set, shape="pairs", sources=[Source.EVALUATION], evaluation=run
    ).examples


def test_pairs_of_one_group_are_refused_since_none_could_be_kept_aside(run: EvalRun) -> None:
    one = _examples(run)[0]
    same = [replace(one, data={"chosen": f"right {at}", "rejected": "wrong"}) for at in range(5)]
    dataset = freeze_dataset(eval_set=run.eval_set, by=None, shape=Shape.PAIRS, examples=same)
    with pytest.raises(TrainingError, match="belong to one group of tasks"):
        submit_training(
            project=run.project,
            method=Method.REWARD,
            parent=run.model_version,
            environment=run.environment,
            config=CONFIG,
            dataset=dataset,
            by=admin_of(run.project),
        )


def test_one_that_scores_in_a_verifier_is_neither_deleted_nor_renamed(
    run: EvalRun, data_dir: Path
) -> None:
    model = finished(run, data_dir)
    assert not first(WhyNotDelete(model)) and not first(WhyNotRename(model))
    save_verifier(
        project=run.project,
        name="liked",
        spec={"kind": "trained_reward", "version": str(model)},
        by=None,
    )
    assert "It is used by liked@1" in (first(WhyNotDelete(model)) or "")
    assert "cannot be renamed" in (first(WhyNotRename(model)) or "")


@pytest.mark.proof
def test_the_form_starts_it(client: Client, run: EvalRun) -> None:
    client.force_login(make_member(run.project))
    sent = {
        "method": "reward_model",
        "parent": run.model_version_id,
        "eval_set": run.eval_set_id,
        "environment": run.environment_id,
        "sources": ["evaluation"],
        "samples_of": run.pk,
        "steps": 8,
        "learning_rate": 1e-4,
        "batch_size": 4,
        "seed": 0,
        "validation_share": 0.3,
        "center_rewards": 0.01,
    }
    answer = client.post(reverse("training:new", args=[run.project.slug]), sent)
    assert answer.status_code == 302, answer.content.decode()
    config = TrainingRun.objects.get().spec["config"]
    assert (config["validation_share"], config["eval_every"], config["center_rewards"]) == (
        0.3,
        2,
        0.01,
    )
    again = client.post(
        reverse("training:new", args=[run.project.slug]), sent | {"validation_share": 0}
    )
    assert "more than 0" in again.content.decode() and TrainingRun.objects.count() == 1


# The version


def test_what_it_makes_is_a_reward_model_and_offered_as_no_agent(
    run: EvalRun, data_dir: Path
) -> None:
    model = finished(run, data_dir)
    assert (
        model.kind == ModelKind.REWARD
        and str(model) == "base-reward-v1"
        and model.lineage["measured"]["aside"] == 10
    )
    assert jobs_behind(model)[0][1].method == Method.REWARD
    versions = run.project.model_versions
    for rows in (
        versions.run_here(),
        versions.models(),
        versions.trainable(),
        versions.evaluated_here(),
        versions.adapters(),
    ):
        assert model not in rows
    with pytest.raises(ModelError, match="scores answers but does not generate any"):
        choose(model)
    with pytest.raises(ModelError, match="scores answers but does not generate any"):
        register_prompt(
            project=run.project, name="p", on=model, prompt={"system_prompt": "x"}, by=None
        )
    with pytest.raises(promotion.PromotionError, match="is a reward model, not an agent"):
        promotion.set_initial(channel=channel_of(run.project), version=model, by=None)


@pytest.mark.proof
def test_its_page_says_what_it_is_worth_and_where_it_scores(
    client: Client, run: EvalRun, data_dir: Path
) -> None:
    model = finished(run, data_dir)
    verifier = save_verifier(
        project=run.project,
        name="liked",
        spec={"kind": "trained_reward", "version": str(model)},
        by=None,
    )
    client.force_login(make_member(run.project))
    html = client.get(
        reverse("promotion:model", args=[run.project.slug, model.pk])
    ).content.decode()
    assert "80.0%" in html and "8 of 10" in html and "liked@1" in html and "Playground" not in html
    html = client.get(
        reverse("reviews:verifier", args=[run.project.slug, verifier.pk])
    ).content.decode()
    assert "base-reward-v1" in html and ">Training run</a>" in html and "80.0%" in html
    new = f"{reverse('reviews:verifier_new', args=[run.project.slug])}?kind=trained_reward&model={model.pk}"  # noqa: E501
    assert "base-reward-v1" in client.get(new).content.decode()


# As a verifier


def test_a_verifier_freezes_the_weights_the_scale_and_the_threshold(
    run: EvalRun, data_dir: Path
) -> None:
    model = finished(run, data_dir)
    spec = {
        "kind": "compose",
        "parts": [
            {"name": "form", "verifier": {"kind": "json"}, "gate": True, "weight": 0},
            {
                "name": "liked",
                "verifier": {"kind": "trained_reward", "version": str(model)},
                "weight": 1,
            },
        ],
    }
    verifier = save_verifier(project=run.project, name="both", spec=spec, by=None)
    part = verifier.spec["parts"][1]["verifier"]
    assert part["digest"] == model.artifact_id and part["scale"] == "calibrated"
    assert part["threshold"] == pytest.approx(0.6225, abs=1e-4)  # 1 / (1 + e^−(2 × 0.75 − 1))
    assert (
        resolved(run.project, {"kind": "trained_reward", "version": str(model), "scale": "raw"})[
            "threshold"
        ]
        == 0.75
    )
    assert save_verifier(project=run.project, name="both", spec=verifier.spec, by=None) == verifier
    assert models_in(verifier) == [model] and verifiers_with(model) == [verifier]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": "base-rewrd-v1"}, "did you mean “base-reward-v1”"),
        ({"version": 7}, "verifier.version"),
        ({"digest": "0" * 64}, "verifier.digest"),
        ({"scale": "squared"}, "verifier.scale"),
        ({"weights": 1}, "verifier.weights"),
    ],
)
def test_wrong_specs_are_refused_by_name(
    change: dict, sentence: str, run: EvalRun, data_dir: Path
) -> None:
    model = finished(run, data_dir)
    with pytest.raises(SpecError, match=sentence):
        save_verifier(
            project=run.project,
            name="x",
            spec={"kind": "trained_reward", "version": str(model)} | change,
            by=None,
        )


def test_one_that_ranks_no_better_than_chance_and_one_of_another_project_score_nothing(
    run: EvalRun, data_dir: Path
) -> None:
    model = finished(run, data_dir, slope=0.0)
    spec = {"kind": "trained_reward", "version": str(model)}
    with pytest.raises(SpecError, match="no better than chance"):
        save_verifier(project=run.project, name="x", spec=spec, by=None)
    with pytest.raises(SpecError, match="Train one first"):
        save_verifier(project=make_project(), name="x", spec=spec, by=None)


def test_a_job_is_told_where_the_weights_are_and_altered_ones_are_refused(
    run: EvalRun, data_dir: Path
) -> None:
    model = finished(run, data_dir)
    save_verifier(
        project=run.project,
        name="liked",
        spec={"kind": "trained_reward", "version": str(model)},
        by=None,
    )
    spec = resolved(run.project, {"kind": "trained_reward", "version": str(model)})
    job = job_spec(run.environment, verifier=spec)
    [folder] = job.clients.reward_models
    assert (folder.name, folder.digest, folder.base) == (
        str(model),
        model.artifact_id,
        run.model_version.base,
    )
    assert job.verifier == spec
    (local_path(model.artifact) / "adapter_model.safetensors").write_bytes(b"wEights")
    with pytest.raises(
        ArtifactError, match=r"base-reward-v1 scores nothing\. Artifact .* was altered"
    ):
        job_spec(run.environment, verifier=spec)


def test_an_unreviewed_one_may_not_train_and_scores_no_page(run: EvalRun, data_dir: Path) -> None:
    from apps.environments.actions import save_environment
    from apps.environments.clients import load_for
    from apps.reviews.actions import TrainingLocked
    from workers.lib.verifiers import Rollout

    model = finished(run, data_dir)
    verifier = save_verifier(
        project=run.project,
        name="liked",
        spec={"kind": "trained_reward", "version": str(model)},
        by=None,
    )
    old = make_environment(run.project)
    environment = save_environment(
        project=run.project,
        slug="liked",
        builtin="workplace",
        harness=old.harness,
        verifier=verifier,
        by=None,
    )
    with pytest.raises(TrainingLocked):
        submit_training(
            project=run.project,
            method=Method.GRPO,
            parent=run.model_version,
            environment=environment,
            config={"steps": 1, "learning_rate": 1e-4},
            dataset=freeze_dataset(eval_set=run.eval_set, by=None),
            by=admin_of(run.project),
        )
    score = load_for(environment).verifier.score(
        Rollout.of_text(run.eval_set.tasks.first().as_spec(), "x")
    )
    assert score.masked and "scores in jobs only" in score.mask_reason


def test_a_run_that_it_scores_goes_to_no_engine_elsewhere(run: EvalRun, data_dir: Path) -> None:
    from apps.environments.actions import save_environment

    model = finished(run, data_dir)
    spec = {"kind": "trained_reward", "version": str(model)}
    liked = save_verifier(project=run.project, name="liked", spec=spec, by=None)
    harness = make_environment(run.project).harness
    environment = save_environment(
        project=run.project,
        slug="liked",
        builtin="workplace",
        harness=harness,
        verifier=liked,
        by=None,
    )
    override(environment)
    made = {
        method: submit_training(
            project=run.project,
            method=method,
            parent=run.model_version,
            environment=environment,
            config=config | {"learning_rate": 1e-4},
            dataset=freeze_dataset(eval_set=run.eval_set, by=None),
            by=admin_of(run.project),
        )
        for method, config in (
            (Method.GRPO, {"steps": 1}),
            (Method.SFT, {"steps": 1, "batch_size": 2}),
        )
    }
    assert "liked@1 uses a reward model" in reason_against(made[Method.GRPO], ENGINES["trl"])
    assert "reward model" not in reason_against(made[Method.SFT], ENGINES["trl"])


def test_the_api_saves_one_by_its_name(client: Client, run: EvalRun, data_dir: Path) -> None:
    model = finished(run, data_dir)
    body = {"name": "liked", "spec": {"kind": "trained_reward", "version": str(model)}}
    answer = client.post(
        "/api/v1/verifiers/", body, content_type="application/json", **key_headers(run.project)
    )
    assert answer.status_code == 201 and answer.json()["kind"] == "trained_reward"
