"""What a run will cost, before its button; beside it afterwards what it did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.automation import specs
from apps.automation.dry_run import forecast
from apps.automation.specs import FlowSpec
from apps.core import jobs
from apps.core.models import JobState, Role
from apps.evals.models import EvalRun, Sample
from apps.training import forking
from apps.training.budget import measuring
from apps.training.budget.asked import Asked, whole
from apps.training.budget.estimate import estimate
from apps.training.budget.learning import NO_SCORES, teaching
from apps.training.budget.truth import compared, factor_of
from apps.training.budget.words import in_words
from apps.training.models import Measurement, TrainingRun
from tests.evals.evaluated import evaluated, frozen_set
from tests.factories import (
    admin_of,
    key_headers,
    make_checkpoint,
    make_member,
    make_project,
    override,
)
from tests.shared import copied, once
from tests.training.test_picks import PASSED, sent

GB = 10**9
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] +"
    " '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%"
    " endif %}"
)

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def add_tokenizer(folder: Path) -> None:
    """A tokenizer of bytes, as model folders have one."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    names = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        *sorted(pre_tokenizers.ByteLevel.alphabet()),
    ]
    bytes_only = Tokenizer(
        models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[])
    )
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.add_special_tokens(names[:3])
    bytes_only.save(str(folder / "tokenizer.json"))
    settings = {
        "chat_template": CHATML,
        "eos_token": "<|im_end|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def point(**given: Any) -> dict[str, Any]:
    return {"before": GB, "memory": GB} | given


MEASURED: dict[str, Any] = {
    "machine": {
        "name": "here",
        "cores": 2,
        "threads": 2,
        "processor": "x",
        "gpu": "",
        "memory": 8 * GB,
        "available": 6 * GB,
    },
    "load": {"seconds": 10.0, "memory": GB},
    "resting": GB,
    "part": 256,
    "kv_bytes": 40_000,
    "head_share": 0.2,
    "trained": 10**6,
    "plain": [
        point(tokens=100, seconds=0.5, memory=2 * GB),
        point(tokens=300, seconds=1.5, memory=4 * GB),
    ],
    "sampling": [
        point(answers=4, prompt_tokens=200, length=200, step_s=0.1, prefill_s=0.2),
        point(answers=16, prompt_tokens=800, length=200, step_s=0.16, prefill_s=0.8),
    ],
    "updates": [
        point(
            distinct=300, tokens=500, rows=2, learnt=50, kept=300, seconds=1.0, memory=int(1.5 * GB)
        ),
        point(
            distinct=1200,
            tokens=2000,
            rows=8,
            learnt=200,
            kept=900,
            seconds=4.0,
            memory=int(2.5 * GB),
        ),
    ],
    "forward": point(distinct=600, learnt=100, seconds=0.6),
}


def made_run(folder: Path) -> EvalRun:
    made = evaluated(
        frozen_set(demonstration='{"tool": "tickets.close", "args": {"id": 1}}'), PASSED, folder
    )
    override(made.environment)
    add_tokenizer(Path(made.model_version.base))
    return made


@pytest.fixture(autouse=True)
def counts_apart() -> None:
    """Not in this process, unlike elsewhere in this folder."""


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[tuple[EvalRun, Path]]:
    yield from once(request, made_run)


@pytest.fixture
def run(kept: tuple[EvalRun, Path], db: None, settings: Any, client: Client) -> EvalRun:
    run = copied(kept, settings)
    client.force_login(admin_of(run.project))
    return run


@pytest.fixture
def measured(run: EvalRun) -> Measurement:
    return finish(measuring.measure_for(asked(run), by=admin_of(run.project)))


def finish(job: Measurement, **changes: Any) -> Measurement:
    job.claim("test")
    assert job.finish(JobState.SUCCEEDED, result={"measured": MEASURED | changes})
    job.refresh_from_db()
    return job


def asked(run: EvalRun, method: str = "grpo", **config: Any) -> Asked:
    usual = {"steps": 4, "learning_rate": 1e-4}
    if method == "grpo":
        usual |= {"prompts_per_step": 2, "generations": 4, "max_new_tokens": 32, "kl_every": 0}
    elif method == "on_policy":
        usual |= {"prompts_per_step": 4, "generations": 4, "max_new_tokens": 32}
    else:
        usual |= {"batch_size": 4}
    return Asked(
        project=run.project,
        method=method,
        parent=run.model_version,
        environment=run.environment,
        eval_set=run.eval_set,
        config=whole(method, usual | config),
        tasks=list(run.eval_set.tasks.trainable()),
    )


def lengths(run: EvalRun, *written: int) -> None:
    """The evaluation's answers were that long."""
    rows = list(Sample.objects.filter(run=run))
    for at, row in enumerate(rows):
        row.output_tokens, row.input_tokens = written[at % len(written)], 100
    Sample.objects.bulk_update(rows, ["output_tokens", "input_tokens"])


# The numbers


@pytest.mark.proof
def test_processes_divide_the_time_on_gpus_and_multiply_the_memory_without(
    run: EvalRun, measured: Measurement
) -> None:
    lengths(run, 10)

    def both() -> list[Any]:
        return [estimate(asked(run, processes=count)) for count in (1, 2)]

    (alone, shared), load = both(), MEASURED["load"]["seconds"]
    assert shared.memory == alone.memory.times(2) and shared.seconds == alone.seconds
    assert "2 processes share each step" in shared.measured_on
    finish(
        measuring.measure_for(asked(run), by=admin_of(run.project)),
        machine=MEASURED["machine"] | {"gpu": "H100"},
    )
    alone, shared = both()
    assert shared.memory == alone.memory
    assert shared.seconds.likely - load == pytest.approx((alone.seconds.likely - load) / 2)
    assert shared.parts["updates"] == pytest.approx(alone.parts["updates"] / 2)
    assert shared.seconds.likely < shared.seconds.high < alone.seconds.high


def test_a_sharded_base_counts_once_and_each_process_computes_its_part_of_the_rows(
    run: EvalRun, measured: Measurement
) -> None:
    def sharded(resting: int, processes: int = 2) -> Any:
        job = measuring.measure_for(asked(run), by=admin_of(run.project))
        finish(job, machine=MEASURED["machine"] | {"gpu": "H100"}, resting=resting)
        return estimate(
            asked(run, "sft", batch_size=4 * processes, processes=processes, shard=True)
        )

    small, large, wide = sharded(GB), sharded(3 * GB), sharded(GB, processes=4)
    assert large.memory.likely - small.memory.likely == pytest.approx(GB)
    assert small.memory.likely - wide.memory.likely == pytest.approx(GB / 4)  # four rows in each
    assert small.distinct_tokens == small.training_tokens  # nothing is shared


def test_a_step_draws_each_task_once(run: EvalRun) -> None:
    """Five tasks are five prompts, however many a step may have."""
    assert (
        estimate(asked(run, prompts_per_step=1024)).rollout_tokens
        == estimate(asked(run, prompts_per_step=5)).rollout_tokens
    )


def test_tokens_are_counted_on_the_real_prompts(run: EvalRun) -> None:
    lengths(run, 10)
    found = estimate(asked(run))
    assert found.problem == "" and (found.rows, found.sampled, found.steps) == (5, 5, 4)
    whole_prompt = 10 * found.prompt  # the demo's system prompt is most of it
    assert found.prompt > 40 and whole_prompt > 400
    assert found.rollout_tokens.likely == pytest.approx(4 * 8 * 10)
    assert found.rollout_tokens.low < found.rollout_tokens.likely < found.rollout_tokens.high
    assert found.training_tokens.likely > found.distinct_tokens.likely > 0 and found.share < 0.6
    assert "Answers average 10 tokens" in found.lengths


def test_without_an_evaluation_answers_may_be_as_long_as_allowed(run: EvalRun) -> None:
    found = estimate(asked(run))
    assert found.rollout_tokens.high == 4 * 8 * 32 and found.rollout_tokens.low == 4 * 8
    assert "unknown without an evaluation" in found.lengths and "up to 32 tokens" in found.lengths


def test_without_a_measurement_time_and_memory_are_unknown(run: EvalRun) -> None:
    found = estimate(asked(run))
    assert (found.seconds, found.memory, found.usd, found.fits) == (None, None, None, True)


@pytest.fixture
def own_run(db: None, data_dir: Path) -> EvalRun:
    """For a test that changes the model's files."""
    return made_run(data_dir)


def test_a_model_without_a_tokenizer_says_so(own_run: EvalRun) -> None:
    (Path(own_run.model_version.base) / "tokenizer.json").unlink()
    assert "no tokenizer.json" in estimate(asked(own_run)).problem


@pytest.mark.proof
def test_a_template_that_never_ends_is_given_up(
    own_run: EvalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(own_run.model_version.base)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": ENDLESS}))
    monkeypatch.setattr("workers.lib.chat_tokens.SECONDS", 1)
    assert "could not be tokenized" in estimate(asked(own_run)).problem


def test_twice_the_steps_take_twice_as_long_without_the_loading(
    run: EvalRun, measured: Measurement
) -> None:
    short, long = estimate(asked(run)), estimate(asked(run, steps=8))
    assert long.seconds.likely - 10 == pytest.approx(2 * (short.seconds.likely - 10))
    assert short.seconds.low < short.seconds.likely < short.seconds.high
    assert set(short.parts) == {"loading", "sampling", "updates"}
    assert short.measured_on == "here, 2 of 2 cores, 8.0 GB"


@pytest.mark.parametrize("method", ["sft", "grpo", "on_policy", "best_of_n"])
def test_longer_work_is_dearer(run: EvalRun, measured: Measurement, method: str) -> None:
    more = {"generations": 16} if method in ("grpo", "on_policy") else {"batch_size": 5}
    few, many = estimate(asked(run, method)), estimate(asked(run, method, **more))
    assert (
        few.seconds.likely < many.seconds.likely
        and few.training_tokens.likely < many.training_tokens.likely
    )


def test_rejection_sampling_samples_once_before_its_steps(
    run: EvalRun, measured: Measurement
) -> None:
    lengths(run, 10)
    given = {"samples": 8, "max_new_tokens": 32, "batch_size": 4}
    short, long = (estimate(asked(run, "best_of_n", steps=steps, **given)) for steps in (4, 8))
    assert short.problem == "" and set(short.parts) == {"loading", "sampling", "updates"}
    assert short.rollout_tokens.likely == pytest.approx(5 * 8 * 10) == long.rollout_tokens.likely
    assert long.parts["sampling"] == pytest.approx(short.parts["sampling"])
    assert long.parts["updates"] == pytest.approx(2 * short.parts["updates"])
    fork = replace(asked(run, "best_of_n", steps=8, **given), start=4)
    assert estimate(fork).rollout_tokens.likely == pytest.approx(
        5 * 8 * 10
    )  # for all tasks, wherever it begins
    reused = estimate(replace(fork, sampled=True))
    assert (
        not reused.rollout_tokens and "sampling" not in reused.parts and reused.parts["updates"] > 0
    )


def test_a_teacher_takes_time_and_memory(run: EvalRun, measured: Measurement) -> None:
    lengths(run, 10)
    alone = asked(run, "on_policy", generations=4, max_new_tokens=32)
    taught = replace(alone, teacher=run.model_version)
    one, two = estimate(alone), estimate(taught)
    assert one.problem == "" and one.rollout_tokens.likely == pytest.approx(4 * 4 * 4 * 10)
    assert (
        two.seconds.likely > one.seconds.likely and two.memory.likely >= one.memory.likely + GB / 2
    )


def test_a_teacher_on_a_server_costs_tokens_and_money_but_no_memory_here(run: EvalRun) -> None:
    """Known before anything is measured: they are counted, not timed."""
    lengths(run, 10)
    engine = {"server_name": "gpu-1", "price": {"input": 2.0, "output": 8.0}}
    scored = replace(
        asked(run, "on_policy", generations=4, max_new_tokens=32),
        teacher=run.model_version,
        teacher_engine=engine,
    )
    found = estimate(scored)
    read, written = found.training_tokens.likely, 4 * 4 * 4
    assert found.teacher_tokens.likely == pytest.approx(read + written) and found.memory is None
    assert found.usd.likely == pytest.approx((read * 2 + written * 8) / 1e6)
    assert "$2 and $8 per million tokens on gpu-1" in found.price and "teacher tokens" in in_words(
        found
    )
    sampled = replace(
        asked(run, "best_of_n", samples=8), teacher=run.model_version, teacher_engine=engine
    )
    found = estimate(sampled)
    assert found.teacher_tokens.likely == pytest.approx(5 * 8 * (found.prompt + 10))
    assert estimate(replace(sampled, sampled=True)).teacher_tokens is None
    limited = replace(sampled, config=sampled.config | {"teacher_usd": 1e-6})
    assert estimate(limited).usd.high == 1e-6
    finish(measuring.measure_for(scored, by=None))
    here = estimate(replace(scored, teacher_engine=None))
    assert (
        estimate(scored).memory.likely < here.memory.likely
        and "sampling" not in estimate(sampled).parts
    )


def test_the_machine_has_a_price(run: EvalRun, measured: Measurement, settings: Any) -> None:
    assert estimate(asked(run)).usd is None
    settings.FLYWHEEL_MACHINE_USD = 3.6
    found = estimate(asked(run))
    assert found.usd.likely == pytest.approx(found.seconds.likely * 0.001)
    assert found.price == "$3.6 an hour for the machine"


@pytest.mark.proof
def test_what_does_not_fit_says_what_to_reduce_and_to_which_value(run: EvalRun) -> None:
    finish(
        measuring.measure_for(asked(run), by=None),
        machine=MEASURED["machine"] | {"available": int(3.2 * GB)},
        updates=[one | {"memory": GB + one["kept"] * 2 * 10**6} for one in MEASURED["updates"]],
        part=10_000,
    )
    lengths(run, 30)
    found = estimate(asked(run, generations=16))
    assert found.fits is False and found.reduce
    first = found.reduce[0]
    assert first.same and first.fits and first.memory < found.memory.likely
    assert first.words.startswith("micro_batch to ") and first.words.endswith("(now 32)")
    size = int(first.words.split()[2])
    smaller = estimate(asked(run, generations=16, micro_batch=size))
    assert smaller.fits is True and smaller.memory.likely == pytest.approx(first.memory)


def test_what_fits_has_nothing_to_reduce(run: EvalRun, measured: Measurement) -> None:
    lengths(run, 5)
    assert estimate(asked(run)).fits is True and estimate(asked(run)).reduce == []


def test_a_measurement_in_another_form_counts_as_none(run: EvalRun, measured: Measurement) -> None:
    Measurement.objects.update(result={"measured": {"machine": {}, "updates": "fast"}})
    assert estimate(asked(run)).seconds is None


# The measurement


def test_one_measurement_serves_every_config_of_that_shape(
    run: EvalRun, measured: Measurement
) -> None:
    assert estimate(asked(run, steps=99, learning_rate=1e-5)).measurement == str(measured.pk)
    assert estimate(asked(run, "sft")).measurement == str(measured.pk)
    assert estimate(asked(run, lora_rank=4)).measurement == ""


def test_it_is_queued_once(run: EvalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "enqueue", lambda job: None)
    by = admin_of(run.project)
    first, second = (measuring.measure_for(asked(run), by=by) for _ in range(2))
    assert first == second and Measurement.objects.count() == 1
    spec = measuring.measuring_spec(first)
    assert len(spec.tasks) == 5 and spec.lora.lora_rank == 16
    finish(first)
    assert measuring.measure_for(asked(run), by=by) != first


def panel(client: Client, run: EvalRun, **changes: Any) -> str:
    return client.post(
        reverse("training:budget", args=[run.project.slug]), sent(run, **changes)
    ).content.decode()


@pytest.mark.proof
def test_the_panel_offers_the_measurement_and_shows_its_progress(
    client: Client, run: EvalRun
) -> None:
    html = panel(client, run)
    assert (
        "Measure on this machine" in html
        and "has not been measured" in html
        and "Rollout tokens" in html
    )
    html = panel(client, run, measure="1")
    assert "Measuring: waiting for a worker" in html and 'hx-trigger="every 2s"' in html
    finish(Measurement.objects.get())
    html = panel(client, run)
    assert (
        "Measure again" in html
        and "on here, 2 of 2 cores" in html
        and "every 2s" not in html
        and "Peak memory" in html
    )


def test_a_measurement_that_failed_says_why(client: Client, run: EvalRun) -> None:
    job = measuring.measure_for(asked(run, generations=8, prompts_per_step=4), by=None)
    job.claim("test")
    job.finish(JobState.FAILED, error="The model folder <b>/m</b> is missing.")
    html = panel(client, run)
    assert "The measurement failed. The model folder &lt;b&gt;/m&lt;/b&gt; is missing." in html


def test_a_form_that_is_not_whole_is_no_error(client: Client, run: EvalRun) -> None:
    assert "Fill in the form" in panel(client, run, steps="")
    assert client.post(reverse("training:budget", args=[run.project.slug])).status_code == 200
    assert Measurement.objects.count() == 0


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("method", ["sft", "rejection", "dpo", "kto"])
def test_the_panel_is_there_for_every_method(
    client: Client, run: EvalRun, measured: Measurement, method: str
) -> None:
    html = panel(
        client,
        run,
        method=method,
        sources=["evaluation"],
        samples_of=run.pk,
        preference_rate=1e-5,
        preference_beta=0.1,
        dpo_loss="sigmoid",
        steps=3,
    )
    assert (
        "Training tokens" in html or "anything to train on" in html or "no examples" in html.lower()
    ), html


def test_a_viewer_and_a_stranger_see_no_estimate(run: EvalRun) -> None:
    other = Client()
    other.force_login(make_member(run.project, Role.VIEWER))
    url = reverse("training:budget", args=[run.project.slug])
    assert other.post(url, sent(run)).status_code == 403
    other.force_login(admin_of(make_project()))
    assert other.post(url, sent(run)).status_code == 404


# Whether the tasks teach


def test_the_newest_evaluation_of_the_parent_says_whether_the_tasks_teach(run: EvalRun) -> None:
    told = teaching(asked(run))
    assert told.sentence.startswith("2 of 5 tasks have samples that differ in reward; about ")
    assert told.tone == "success" and str(run.pk) in told.url
    assert "succeeds in 55% of the samples" in teaching(asked(run, "sft")).sentence
    run.samples.update(success=False, reward=0.0)
    assert teaching(asked(run)).tone == "error" and "cannot learn" in teaching(asked(run)).sentence
    run.samples.update(masked=True, reward=None)
    run.result["metrics"]["success"] = {"mean": None, "low": None, "high": None, "n": 0}
    run.save()
    assert {teaching(asked(run, method)).sentence for method in ("grpo", "sft")} == {NO_SCORES}


def test_without_an_evaluation_it_offers_one(run: EvalRun) -> None:
    EvalRun.objects.update(state=JobState.FAILED)
    told = teaching(asked(run))
    assert told.sentence.startswith("Unknown") and "split=train" in told.url


# Afterwards


def submitted(client: Client, run: EvalRun, **changes: Any) -> TrainingRun:
    answer = client.post(reverse("training:new", args=[run.project.slug]), sent(run, **changes))
    assert answer.status_code == 302
    return TrainingRun.objects.latest("created_at")


def test_the_estimate_is_frozen_with_the_run_and_the_truth_stands_beside_it(
    client: Client, run: EvalRun, measured: Measurement
) -> None:
    made = submitted(client, run)
    before = made.spec["estimate"]["seconds"]["likely"]
    Measurement.objects.all().delete()
    made.claim("test")
    made.finish(JobState.SUCCEEDED, result={"peak": {"memory": 2 * GB}})
    name, tokens = "Training tokens, distinct", [100.0] * (made.total - 1)
    for step, value in enumerate(tokens, 1):
        made.metrics.create(step=step, name="train/distinct_tokens", value=value)
    assert {row.name: row for row in compared(TrainingRun.objects.get(pk=made.pk))}[
        name
    ].truth is None  # not counted in every step
    made.metrics.create(step=made.total, name="train/distinct_tokens", value=50)
    TrainingRun.objects.update(
        finished_at=timezone.now(), started_at=timezone.now() - timedelta(seconds=2 * before)
    )
    made.refresh_from_db()
    rows = {row.name: row for row in compared(made)}
    assert rows["Time"].factor == pytest.approx(2, rel=0.01) and rows["Peak memory"].truth == 2 * GB
    assert rows[name].truth == sum(tokens) + 50 and rows[name].factor
    html = client.get(made.get_absolute_url()).content.decode()
    assert "Estimate vs. actual" in html and "2.00×" in html and "2.0 GB" in html
    assert (
        "2.00× estimate"
        in client.get(reverse("training:list", args=[run.project.slug])).content.decode()
    )


@pytest.mark.proof
def test_a_fork_is_estimated_for_the_steps_that_are_left(
    client: Client, run: EvalRun, measured: Measurement
) -> None:
    made = submitted(client, run, steps=8)
    make_checkpoint(made, 6)
    url = reverse("training:fork_budget", args=[run.project.slug, made.pk])
    fields = {"step": 6, "name": "fork", "seed": 0, "config": "steps: 8\nlearning_rate: 1.0e-4\n"}
    html = client.post(url, fields).content.decode()
    assert "Rollout tokens" in html and "Peak memory" in html
    assert "Fill in the form" in client.post(url, fields | {"config": "steps: ["}).content.decode()
    assert "stebs" in client.post(url, fields | {"config": "stebs: 8"}).content.decode()
    forked = forking.fork(run=made, step=6, config=made.spec["config"], by=admin_of(run.project))
    both = [one.spec["estimate"]["rollout_tokens"]["likely"] for one in (made, forked)]
    assert both[1] == pytest.approx(both[0] * 2 / 8)
    made.spec["rollouts"] = {
        "servers": [{"server": 1, "server_name": "gpu", "model": "m"}],
        "steps_ahead": 0,
    }
    # it samples on a server, and so would the fork: what was measured here says nothing of that
    made.save()
    html = client.post(url, fields).content.decode()
    assert "Rollout tokens" in html and "Peak memory" not in html


def test_an_attempt_that_was_broken_off_has_no_factor(
    client: Client, run: EvalRun, measured: Measurement
) -> None:
    made = submitted(client, run)
    made.claim("test")
    made.finish(JobState.FAILED, error="x")
    assert factor_of(TrainingRun.objects.get(pk=made.pk)) is None


@pytest.mark.proof
def test_an_estimate_of_another_version_is_left_out(client: Client, run: EvalRun) -> None:
    made = submitted(client, run)
    made.spec["estimate"] = {"seconds": "soon", "new": 1}
    made.save()
    assert client.get(made.get_absolute_url()).status_code == 200
    assert client.get(reverse("training:list", args=[run.project.slug])).status_code == 200


def test_the_api_estimates_a_file_and_starts_the_measurement(run: EvalRun) -> None:
    yaml = (
        f"model: {run.model_version}\nalgorithm: grpo\ntraining_data:"
        f" {run.eval_set.slug}@{run.eval_set.version}\nenvironment:"
        f" {run.environment.slug}@{run.environment.version}\nsteps: 4\nlearning_rate: 1e-4\n"
    )
    url, headers = reverse("training_api:run_estimate"), key_headers(run.project)

    def post(**body: Any) -> Any:
        return Client().post(url, body, content_type="application/json", **headers)

    found = post(yaml=yaml, seeds=3).json()
    assert (found["runs"], found["seconds"], found["measuring"]) == (3, None, None) and found[
        "rollout_tokens"
    ]["high"] > 0
    assert post(yaml=yaml, measure=True).json()["measuring"] == 0
    finish(Measurement.objects.get())
    assert (
        post(yaml=yaml).json()["seconds"]["likely"] > 10
        and post(yaml=yaml, measure=True).json()["measuring"] is None
    )
    assert post(yaml=yaml.replace("steps", "stebs")).status_code == 400


def test_a_flow_foresees_the_same(run: EvalRun, measured: Measurement) -> None:
    step = specs.Train(
        model=f"version:{run.model_version}",
        set=f"set:{run.eval_set.slug}",
        environment=run.environment.slug,
        method="grpo",
        config={"steps": 4, "learning_rate": 1e-4},
    )
    found = forecast(run.project, FlowSpec(steps=[step]))[0]
    same = Asked(
        project=run.project,
        method="grpo",
        parent=run.model_version,
        environment=run.environment,
        eval_set=run.eval_set,
        config=whole("grpo", step.config),
        tasks=list(run.eval_set.tasks.trainable()),
    )
    assert found.seconds == pytest.approx(estimate(same).seconds.likely)
