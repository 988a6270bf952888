"""On-policy distillation and rejection sampling that samples itself, from the form to the job: what
they are given, and what is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core import job_files
from apps.evals.models import EvalRun, EvalSet, Split
from apps.registry.actions import ModelError
from apps.registry.bases import base_digest
from apps.registry.models import ModelVersion, Server
from apps.training import forking, reused_samples
from apps.training.actions import TrainingError, freeze_dataset, submit_training
from apps.training.advisor import Evidence, advise
from apps.training.child_spec import training_spec
from apps.training.config_yaml import ConfigError, config_of, read, write
from apps.training.jobs import store_events, version_name
from apps.training.models import Method, Rollout, TrainingRun
from apps.training.results import lineage
from apps.training.rollouts import standing, with_advantages
from apps.training.starts import asked_from, fields_from, start_from
from apps.training.teachers import best_teacher
from tests.evals.evaluated import evaluated, frozen_set
from tests.factories import (
    admin_of,
    key_headers,
    make_adapter,
    make_base_folder,
    make_checkpoint,
    make_endpoint,
    make_managed,
    make_member,
    make_project,
    make_server,
    override,
)
from tests.forms import as_read
from tests.shared import copied, once
from workers.lib.clients import key_variables
from workers.lib.prices import Price

BEST = {"steps": 2, "learning_rate": 1e-4, "batch_size": 2}
TAUGHT = {"steps": 2, "learning_rate": 1e-4}


def made_run(folder: Path) -> EvalRun:
    made = evaluated(frozen_set(3, demonstration='{"tool": "x", "args": {}}'), (2, 1, 3), folder)
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


@pytest.fixture
def teacher(run: EvalRun, data_dir: Path) -> ModelVersion:
    return make_adapter(run.project, run.model_version, data_dir, "teacher")


def submitted(run: EvalRun, method: Method, config: dict, **given: Any) -> TrainingRun:
    return submit_training(
        project=run.project,
        method=method,
        parent=run.model_version,
        environment=run.environment,
        config=config,
        dataset=freeze_dataset(eval_set=run.eval_set, by=None),
        by=admin_of(run.project),
        **given,
    )


def test_the_job_of_distillation_names_both_models_and_the_tasks(
    run: EvalRun, teacher: ModelVersion
) -> None:
    made = submitted(run, Method.ON_POLICY, TAUGHT, teacher=teacher)
    spec = as_read(training_spec(made))
    assert spec.teacher.adapter and not spec.model.adapter and spec.teacher.base == spec.model.base
    assert (
        len(spec.tasks) == 3
        and made.spec["teacher_digest"] == teacher.digest
        and version_name(made) == "base-on-policy"
    )


def test_the_job_of_rejection_sampling_has_the_tasks_and_what_to_validate_on(run: EvalRun) -> None:
    spec = training_spec(submitted(run, Method.BEST_OF_N, BEST | {"eval_every": 1, "samples": 3}))
    typed = as_read(spec)
    validation = run.eval_set.tasks.filter(split=Split.VALIDATION).count()
    assert (
        len(typed.tasks) == 3
        and typed.config.samples == 3
        and len(typed.validation_tasks) == validation
    )
    assert not training_spec(submitted(run, Method.BEST_OF_N, BEST)).validation_tasks


def test_a_teacher_that_cannot_teach_is_refused_with_what_to_do(
    run: EvalRun, teacher: ModelVersion
) -> None:
    with pytest.raises(TrainingError, match="needs a teacher"):
        submitted(run, Method.ON_POLICY, TAUGHT)
    with pytest.raises(TrainingError, match="is the student itself"):
        submitted(run, Method.ON_POLICY, TAUGHT, teacher=run.model_version)
    with pytest.raises(TrainingError, match="GRPO does not use a teacher"):
        submitted(run, Method.GRPO, TAUGHT, teacher=teacher)
    with pytest.raises(
        TrainingError, match="Evaluate the train split with it and choose distillation"
    ):
        submitted(run, Method.ON_POLICY, TAUGHT, teacher=make_endpoint(run.project))
    other = ModelVersion.objects.get(pk=teacher.pk)
    folder = make_base_folder(Path(run.model_version.base).parent / "other")
    (folder / "model.safetensors").write_bytes(b"others")
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 1}}}')
    (Path(run.model_version.base) / "tokenizer.json").write_text('{"model": {"vocab": {"a": 2}}}')
    other.parent.base, other.parent.digest = str(folder), base_digest(folder)
    with pytest.raises(
        TrainingError, match=r"uses a different tokenizer than .*1 of 1 tokens differ \('a'\)"
    ):
        submitted(run, Method.ON_POLICY, TAUGHT, teacher=other)


def test_a_deleted_teacher_ends_the_job_with_a_sentence(
    run: EvalRun, teacher: ModelVersion
) -> None:
    made = submitted(run, Method.ON_POLICY, TAUGHT, teacher=teacher)
    teacher.delete()
    with pytest.raises(ModelError, match="The teacher teacher-v1 was deleted"):
        training_spec(made)


def form_of(run: EvalRun, method: str, **more: Any) -> dict[str, Any]:
    return {
        "method": method,
        "parent": run.model_version_id,
        "eval_set": run.eval_set_id,
        "environment": run.environment_id,
        "steps": 8,
        "learning_rate": 1e-4,
        "batch_size": 4,
        "prompts_per_step": 2,
        "generations": 2,
        "seed": 0,
        "samples": 5,
        "keep": "all",
    } | more


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


@pytest.mark.proof
def test_a_config_file_starts_both_and_methods_of_examples(
    client: Client, run: EvalRun, teacher: ModelVersion
) -> None:
    headers = key_headers(run.project)
    head = (
        f"model: {run.model_version}\ntraining_data:"
        f" {run.eval_set.slug}@{run.eval_set.version}\nenvironment: {run.environment}\n"
    )
    head += "learning_rate: 1e-4\nsteps: 2\n"

    def sent(text: str) -> Any:
        return client.post(
            "/api/v1/training-runs/",
            {"yaml": head + text},
            content_type="application/json",
            **headers,
        )

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
        {
            "type": "sample",
            "task_id": str(task.pk),
            "phase": "train",
            "step": 0,
            "index": at,
            "output": "x",
            "reward": 1.0,
            "success": True,
            "components": {"kept": float(at == 0)},
        }
        for at in range(2)
    ]
    store_events(made, events)
    rows = with_advantages(made, Rollout.objects.filter(run=made).order_by("index"))
    for row in rows:
        row.run = made
    assert [standing(row, rows, False).state for row in rows] == ["kept", "not kept"]
    assert [row.advantage for row in rows] == [None, None]


# The advisor


def evidence(**more: Any) -> Evidence:
    return Evidence(
        **{
            "success": 0.4,
            "valid_json": 1.0,
            "correct_tool": 1.0,
            "pass_at_k": 0.45,
            "k": 4,
            "mixed_share": 0.05,
        }
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
    assert fix not in {
        one.fix for one in advise(evidence(teacher=("small-v1", 0.45, True), preference_pairs=60))
    }


def test_a_teacher_is_who_did_best_on_the_same_tasks(
    run: EvalRun, teacher: ModelVersion, data_dir: Path
) -> None:
    assert best_teacher(run) is None
    other = evaluated(run.eval_set, (4, 4, 4), data_dir)
    EvalRun.objects.filter(pk=other.pk).update(model_version=teacher)
    assert best_teacher(run) == ("teacher-v1", 1.0, True)
    assert isinstance(run.eval_set, EvalSet)


# A teacher on a server


@pytest.fixture
def served(run: EvalRun, settings: Any, monkeypatch: pytest.MonkeyPatch) -> ModelVersion:
    """A larger model on a vLLM server, with a key and prices."""
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    monkeypatch.setenv("FLYWHEEL_JUDGE_API_KEY", "key")
    server = make_server(run.project, name="gpu-1", kind="vllm", prices={"m": [2.0, 8.0]})
    Server.objects.filter(pk=server.pk).update(key_variable="FLYWHEEL_JUDGE_API_KEY")
    return make_endpoint(run.project, Server.objects.get(pk=server.pk))


def test_the_job_of_a_served_teacher_names_its_server_its_key_and_its_limits(
    run: EvalRun, served: ModelVersion
) -> None:
    limits = {"teacher_tokens": 900, "teacher_usd": 1.5}
    made = submitted(run, Method.ON_POLICY, TAUGHT | limits, teacher=served)
    given = training_spec(made)
    spec = as_read(given).teacher_server
    assert (spec.base_url, spec.model) == ("http://127.0.0.1:8123/v1", "m")
    assert spec.price == Price(2.0, 8.0, source="server gpu-1")
    assert (spec.most_tokens, spec.most_usd) == (900, 1.5) and key_variables(given) == [
        "FLYWHEEL_JUDGE_API_KEY"
    ]
    found = lineage(made)
    assert (found["teacher_name"], found["teacher_engine"]["server_name"]) == (str(served), "gpu-1")
    sampled = as_read(training_spec(submitted(run, Method.BEST_OF_N, BEST, teacher=served)))
    assert sampled.teacher_server.model == "m" and sampled.teacher_server.most_tokens == 0


def test_a_model_of_this_installation_teaches_on_a_server_where_one_is_named(
    run: EvalRun, teacher: ModelVersion
) -> None:
    server = make_managed(run.model_version.base_version(), "http://127.0.0.1:8461/v1")
    base = run.model_version.base_version()
    assert "teacher_engine" not in submitted(run, Method.BEST_OF_N, BEST, teacher=base).spec
    made = submitted(run, Method.BEST_OF_N, BEST, teacher=base, teacher_on=server.name)
    assert as_read(training_spec(made)).teacher_server.base_url == server.base_url
    Server.objects.filter(pk=server.pk).update(name="renamed")
    assert "teacher_on: renamed" in write(config_of(made))


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("method", "kind", "more", "said"),
    [
        (
            "on_policy",
            "openai",
            {},
            (
                "is not a vLLM server, so it cannot provide token probabilities. Evaluate the train"
                " split"
            ),
        ),
        ("on_policy", "vllm", {"config": {"teacher_usd": 1.0}}, "No price is known for m on other"),
        ("on_policy", "vllm", {"teacher_on": "elsewhere"}, "is what the server other has"),
        ("best_of_n", "", {"config": {"teacher_tokens": 5}}, "needs a teacher on a server"),
        (
            "best_of_n",
            "",
            {"teacher_on": "gpu-1"},
            "Choose the teacher that is to run on this server",
        ),
        (
            "grpo",
            "vllm",
            {},
            (
                "GRPO does not use a teacher; only on-policy distillation and rejection sampling in"
                " the run do"
            ),
        ),
    ],
)
def test_a_served_teacher_that_cannot_teach_is_refused(
    method: str, kind: str, more: dict, said: str, run: EvalRun, settings: Any
) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    server = (
        make_server(run.project, "http://127.0.0.1:8124/v1", name="other", kind=kind)
        if kind
        else None
    )
    config = (BEST if method == "best_of_n" else TAUGHT) | more.get("config", {})
    given = {"teacher_on": more["teacher_on"]} if "teacher_on" in more else {}
    with pytest.raises(TrainingError, match=re.escape(said)):
        submitted(
            run,
            Method(method),
            config,
            teacher=make_endpoint(run.project, server) if server else None,
            **given,
        )


def test_the_tokenizer_of_a_served_teacher_is_compared_where_its_weights_are_known(
    run: EvalRun, served: ModelVersion, data_dir: Path
) -> None:
    folder = make_base_folder(Path(run.model_version.base).parent / "large")
    (folder / "model.safetensors").write_bytes(b"others")
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 1}}}')
    (Path(run.model_version.base) / "tokenizer.json").write_text('{"model": {"vocab": {"a": 2}}}')
    ModelVersion.objects.filter(pk=served.pk).update(parent=run.model_version.base_version())
    submitted(run, Method.ON_POLICY, TAUGHT, teacher=ModelVersion.objects.get(pk=served.pk))
    large = ModelVersion.objects.get(pk=served.pk)
    large.parent.base, large.parent.digest = str(folder), base_digest(folder)
    with pytest.raises(TrainingError, match=r"different tokenizer than .*1 of 1 tokens differ"):
        submitted(run, Method.ON_POLICY, TAUGHT, teacher=large)


@pytest.mark.proof
def test_the_form_and_a_config_file_choose_a_served_teacher(
    client: Client, run: EvalRun, served: ModelVersion
) -> None:
    client.force_login(make_member(run.project))
    url = reverse("training:new", args=[run.project.slug])
    sent = form_of(run, "on_policy", teacher=served.pk, teacher_tokens=5000, teacher_usd="0.5")
    panel = client.post(reverse("training:budget", args=[run.project.slug]), sent)
    assert panel.status_code == 200 and "problem" not in panel.context.flatten()
    assert client.post(url, sent).status_code == 302
    made = TrainingRun.objects.get()
    page = client.get(made.get_absolute_url()).content.decode()
    assert (
        "server gpu-1 (http://127.0.0.1:8123/v1), model m, at most 5,000 tokens, at most $0.5"
        in page
    )
    text = write(config_of(made))
    assert "teacher: m-v1" in text and "teacher_tokens: 5000" in text and "teacher_on" not in text
    [again] = start_from(read(text), project=run.project, by=admin_of(run.project))
    again.refresh_from_db()
    assert again.spec["teacher_engine"] == made.spec["teacher_engine"]
    assert fields_from(read(text), run.project)["teacher_tokens"] == 5000
    with pytest.raises(ConfigError, match="did you mean “gpu-1”"):
        asked_from(read(text + "teacher_on: gpu1\n"), project=run.project)
    Server.objects.update(project=make_project())
    assert "teacher_on" not in client.get(url).context["form"].fields


SAMPLES = '{{"task": "{}", "samples": 8, "passed": 1, "masked": 0, "kept": 1, "rows": []}}\n'


def sampled(made: TrainingRun, tasks: int = 3) -> Path:
    """The run has written down what each of its tasks gave; the last line is not whole."""
    file = job_files.job_folder(made) / reused_samples.KEPT
    file.parent.mkdir(parents=True)
    ids = [task.pk for task in made.dataset.tasks()][:tasks]
    file.write_text("".join(map(SAMPLES.format, ids)) + '{"task": "x", "sam')
    return file


@pytest.mark.proof
def test_a_fork_reuses_what_the_teacher_was_paid_for(
    client: Client, run: EvalRun, served: ModelVersion
) -> None:
    made, by = submitted(run, Method.BEST_OF_N, BEST, teacher=served), admin_of(run.project)
    file = sampled(made)
    fork = forking.fork(
        run=made, step=0, config=BEST | {"learning_rate": 1e-5, "teacher_usd": 3.0}, by=by
    )
    mine = job_files.bring(fork, reused_samples.KEPT)
    assert mine and mine.read_text() == file.read_text()
    assert not mine.samefile(file)  # the fork writes on in it
    said = f"The samples of {made} are reused (3 of 3 tasks); nothing is sampled again."
    assert fork.spec["forked_from"]["samples"] == said
    client.force_login(make_member(run.project))
    assert said in client.get(fork.get_absolute_url()).content.decode()
    panel = reverse("training:fork_budget", args=[run.project.slug, made.pk])
    asked = {"step": 0, "name": "f", "seed": 0, "config": forking.as_yaml(made.spec["config"])}
    assert said in client.post(panel, asked).content.decode()
    again = client.post(panel, asked | {"seed": 1}).content.decode()
    assert (
        "these differ: seed. All 3 tasks are sampled again. The teacher’s server is asked, and"
        " paid, again." in again
    )


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("changes", "seed", "said"),
    [
        ({"temperature": 0.5}, 0, "these differ: temperature."),
        ({"samples": 3, "keep": "all"}, 0, "these differ: samples, keep."),
        ({"max_new_tokens": 65, "top_p": 0.9}, 0, "these differ: top_p, max_new_tokens."),
        ({"teacher_answers_as": "m-2"}, 0, "these differ: teacher_answers_as."),
        ({}, 1, "these differ: seed."),
        ({}, 0, "these differ: the teacher’s server."),
        ({}, 0, "has no samples to reuse, so all 3 tasks are sampled."),
    ],
)
def test_a_fork_that_samples_otherwise_says_that_the_teacher_is_paid_again(
    run: EvalRun, served: ModelVersion, changes: dict, seed: int, said: str
) -> None:
    made = submitted(run, Method.BEST_OF_N, BEST, teacher=served)
    if "no samples" not in said:
        sampled(made)
    if "server" in said:
        Server.objects.filter(pk=served.server_id).update(base_url="http://127.0.0.1:8124/v1")
    fork = forking.fork(
        run=made, step=0, config=BEST | changes, seed=seed, by=admin_of(run.project)
    )
    assert (
        said in fork.spec["forked_from"]["samples"]
        and "paid, again." in fork.spec["forked_from"]["samples"]
    )
    assert job_files.bring(fork, reused_samples.KEPT) is None


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("step", "said"), [(0, "the other 2 are sampled"), (1, "nothing is sampled again")]
)
def test_what_a_limit_left_out_is_sampled_by_a_fork_from_the_start_only(
    run: EvalRun, step: int, said: str
) -> None:
    made = submitted(run, Method.BEST_OF_N, BEST)
    sampled(made, 1)
    make_checkpoint(made, 1)
    fork = forking.fork(run=made, step=step, config=BEST, by=admin_of(run.project))
    assert (
        fork.spec["forked_from"]["samples"]
        == f"The samples of {made} are reused (1 of 3 tasks); {said}."
    )


@pytest.mark.proof
def test_an_absurd_learning_rate_is_refused_by_name(run: EvalRun) -> None:
    for rate in (0, -1e-4, 1.5, 1e9, float("inf"), float("nan")):
        with pytest.raises(
            TrainingError, match=r"“config\.learning_rate” must be (more than 0|at most 1)\."
        ):
            submitted(run, Method.GRPO, TAUGHT | {"learning_rate": rate})
    head = "model: base-v1\nalgorithm: grpo\ntraining_data: set@1\nenvironment: env@1\nsteps: 2\n"
    with pytest.raises(ConfigError, match=r"“learning_rate” must be at most 1\."):
        read(head + "learning_rate: 1e9\n")
