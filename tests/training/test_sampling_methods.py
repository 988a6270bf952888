"""On-policy distillation and rejection sampling that samples itself, from the form to the job: what they are given, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.evals.models import EvalRun, EvalSet, Split
from apps.registry.actions import ModelError
from apps.registry.models import ModelVersion
from apps.training.actions import TrainingError, freeze_dataset, submit_training
from apps.training.advisor import Evidence, advise
from apps.training.jobs import child_spec, store_events, version_name
from apps.training.models import Method, Rollout, TrainingRun
from apps.training.rollouts import standing, with_advantages
from apps.training.teachers import best_teacher
from tests.evals.evaluated import evaluated, frozen_set
from tests.factories import admin_of, key_headers, make_adapter, make_endpoint, make_member, override
from workers.lib.specs import checked

BEST = {"steps": 2, "learning_rate": 1e-4, "batch_size": 2}
TAUGHT = {"steps": 2, "learning_rate": 1e-4}


@pytest.fixture
def run(db: None, data_dir: Path) -> EvalRun:
    made = evaluated(frozen_set(3, demonstration='{"tool": "x", "args": {}}'), (2, 1, 3), data_dir)
    for sample in made.samples.all():
        sample.output = f"{'right' if sample.success else 'wrong'} {sample.index}"
        sample.save(update_fields=["output"])
    override(made.environment)
    return made


@pytest.fixture
def teacher(run: EvalRun, data_dir: Path) -> ModelVersion:
    return make_adapter(run.project, run.model_version, data_dir, "teacher")


def submitted(run: EvalRun, method: Method, config: dict, **given: Any) -> TrainingRun:
    return submit_training(
        project=run.project, method=method, parent=run.model_version, environment=run.environment, config=config,
        dataset=freeze_dataset(eval_set=run.eval_set, by=None), by=admin_of(run.project), **given,
    )  # fmt: skip


def test_the_job_of_distillation_names_both_models_and_the_tasks(run: EvalRun, teacher: ModelVersion) -> None:
    made = submitted(run, Method.ON_POLICY, TAUGHT, teacher=teacher)
    spec = checked(child_spec(made) | {"out_dir": "x"}, "on_policy")
    assert spec.teacher.adapter and not spec.model.adapter and spec.teacher.base == spec.model.base
    assert (
        len(spec.tasks) == 3
        and made.spec["teacher_digest"] == teacher.digest
        and version_name(made) == "base-on-policy"
    )


def test_the_job_of_rejection_sampling_has_the_tasks_and_what_to_validate_on(run: EvalRun) -> None:
    spec = child_spec(submitted(run, Method.BEST_OF_N, BEST | {"eval_every": 1, "samples": 3}))
    typed = checked(spec | {"out_dir": "x"}, "best_of_n")
    validation = run.eval_set.tasks.filter(split=Split.VALIDATION).count()
    assert len(typed.tasks) == 3 and typed.config.samples == 3 and len(typed.validation_tasks) == validation
    assert not child_spec(submitted(run, Method.BEST_OF_N, BEST))["validation_tasks"]


def test_a_teacher_that_cannot_teach_is_refused_with_what_to_do(run: EvalRun, teacher: ModelVersion) -> None:
    with pytest.raises(TrainingError, match="needs a teacher"):
        submitted(run, Method.ON_POLICY, TAUGHT)
    with pytest.raises(TrainingError, match="is the student itself"):
        submitted(run, Method.ON_POLICY, TAUGHT, teacher=run.model_version)
    with pytest.raises(TrainingError, match="GRPO does not use a teacher"):
        submitted(run, Method.GRPO, TAUGHT, teacher=teacher)
    with pytest.raises(TrainingError, match="Evaluate the train split with it and choose distillation"):
        submitted(run, Method.ON_POLICY, TAUGHT, teacher=make_endpoint(run.project))
    other = ModelVersion.objects.get(pk=teacher.pk)
    folder = Path(run.model_version.base).parent / "other"
    folder.mkdir()
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 1}}}')
    (Path(run.model_version.base) / "tokenizer.json").write_text('{"model": {"vocab": {"a": 2}}}')
    other.base = str(folder)
    with pytest.raises(TrainingError, match=r"uses a different tokenizer than .*1 of 1 tokens differ \('a'\)"):
        submitted(run, Method.ON_POLICY, TAUGHT, teacher=other)


def test_a_deleted_teacher_ends_the_job_with_a_sentence(run: EvalRun, teacher: ModelVersion) -> None:
    made = submitted(run, Method.ON_POLICY, TAUGHT, teacher=teacher)
    teacher.delete()
    with pytest.raises(ModelError, match="The teacher teacher-v1 was deleted"):
        child_spec(made)


def form_of(run: EvalRun, method: str, **more: Any) -> dict[str, Any]:
    return {
        "method": method, "parent": run.model_version_id, "eval_set": run.eval_set_id, "environment": run.environment_id,
        "steps": 8, "learning_rate": 1e-4, "batch_size": 4, "prompts_per_step": 2, "generations": 2, "seed": 0, "samples": 5, "keep": "all",
    } | more  # fmt: skip


def test_the_form_starts_both(client: Client, run: EvalRun, teacher: ModelVersion) -> None:
    client.force_login(make_member(run.project))
    url = reverse("training:new", args=[run.project.slug])
    answer = client.post(url, form_of(run, "on_policy"))
    assert "needs a teacher" in answer.content.decode()
    assert client.post(url, form_of(run, "on_policy", teacher=teacher.pk)).status_code == 302
    made = TrainingRun.objects.get()
    assert made.spec["config"]["eval_every"] == 2 and made.spec["teacher_name"] == "teacher-v1"
    html = client.get(made.get_absolute_url()).content.decode()
    assert "Teacher" in html and "teacher-v1" in html
    assert client.post(url, form_of(run, "best_of_n", temperature=0.7)).status_code == 302
    config = TrainingRun.objects.get(method="best_of_n").spec["config"]
    assert (config["samples"], config["keep"], config["temperature"]) == (5, "all", 0.7)


def test_a_config_file_starts_both_and_methods_of_examples(client: Client, run: EvalRun, teacher: ModelVersion) -> None:
    headers = key_headers(run.project)
    head = f"model: {run.model_version}\ntraining_data: {run.eval_set.slug}@{run.eval_set.version}\nenvironment: {run.environment}\n"
    head += "learning_rate: 1e-4\nsteps: 2\n"

    def sent(text: str) -> Any:
        return client.post("/api/v1/training-runs/", {"yaml": head + text}, content_type="application/json", **headers)

    [made] = sent("algorithm: on_policy\nteacher: teacher-v1\n").json()
    assert made["method"] == "on_policy"
    answer = sent("algorithm: on_policy\nteacher: techer-v1\n")
    assert answer.status_code == 400 and "did you mean “teacher-v1”" in str(answer.json())
    [made] = sent(f"algorithm: rejection\nbatch_size: 2\nsamples_of: {run.pk}\n").json()
    again = client.get(f"/api/v1/training-runs/{made['id']}/config/", **headers).json()["yaml"]
    assert f"samples_of: {run.pk}" in again
    answer = sent("algorithm: dpo\nbatch_size: 2\nsamples_of: nobody\n")
    assert answer.status_code == 400 and "samples_of" in str(answer.json())
    assert sent("algorithm: dpo\nbatch_size: 2\n").status_code == 409  # no pairs


def test_a_rollout_says_whether_it_is_learned_from(run: EvalRun, teacher: ModelVersion) -> None:
    made, task = submitted(run, Method.BEST_OF_N, BEST), run.eval_set.tasks.trainable().first()
    events = [
        {"type": "sample", "task_id": str(task.pk), "phase": "train", "step": 0, "index": at, "output": "x", "reward": 1.0, "success": True,
         "components": {"kept": float(at == 0)}}
        for at in range(2)
    ]  # fmt: skip
    store_events(made, events)
    rows = with_advantages(made, Rollout.objects.filter(run=made).order_by("index"))
    for row in rows:
        row.run = made
    assert [standing(row, rows, False).state for row in rows] == ["kept", "not kept"]
    assert [row.advantage for row in rows] == [None, None]


# The advisor


def evidence(**more: Any) -> Evidence:
    return Evidence(
        **{"success": 0.4, "valid_json": 1.0, "correct_tool": 1.0, "pass_at_k": 0.45, "k": 4, "mixed_share": 0.05}
        | more
    )


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ({"teacher": ("big-v1", 0.8, True)}, "on_policy"),
        ({"teacher": ("big-v1", 0.8, False)}, "distill"),
        ({"preference_pairs": 250}, "reward_model"),
    ],
)
def test_the_advisor_knows_the_other_methods(given: dict, fix: str) -> None:
    found = {one.fix: one for one in advise(evidence(**given))}
    assert found[fix].method and found[fix].why
    assert fix not in {one.fix for one in advise(evidence(teacher=("small-v1", 0.45, True), preference_pairs=60))}


def test_a_teacher_is_who_did_best_on_the_same_tasks(run: EvalRun, teacher: ModelVersion, data_dir: Path) -> None:
    assert best_teacher(run) is None
    other = evaluated(run.eval_set, (4, 4, 4), data_dir)
    EvalRun.objects.filter(pk=other.pk).update(model_version=teacher)
    assert best_teacher(run) == ("teacher-v1", 1.0, True)
    assert isinstance(run.eval_set, EvalSet)
