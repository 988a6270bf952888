"""Preference data of a project: where it comes from, what stays out of it, and the run that learns
from it.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.urls import reverse

from apps.core.bus import first
from apps.core.managed.objects import WhyNotDelete
from apps.evals import actions as evals
from apps.evals import drafts
from apps.evals.actions import HoldoutLeak
from apps.evals.models import EvalRun, EvalSet, Sample, Split
from apps.registry.models import ModelVersion
from apps.reviews.models import Judgement, ReviewItem, RewardReview
from apps.reviews.policy import policy_of
from apps.training import sources
from apps.training.actions import TrainingError, freeze_dataset, submit_training
from apps.training.child_spec import training_spec
from apps.training.engines.exporting import export
from apps.training.judged import BOTH
from apps.training.lineage import learners_of_trajectory, trajectories_of
from apps.training.models import SHAPES, Example, Method, Shape, Source, TrainingRun
from apps.training.sources import (
    MEASURES,
    NO_AGENT,
    NO_STEP,
    OTHER_AGENT,
    SEVERAL_TURNS,
    find_examples,
    words_of_people,
)
from apps.trajectories import digest
from apps.trajectories.actions.feedback import give
from apps.trajectories.exports import HELD_OUT
from apps.trajectories.models import Trajectory
from apps.trajectories.schema import Feedback, OutcomeChange
from tests.evals.evaluated import evaluated, frozen_set
from tests.factories import (
    admin_of,
    freeze_set,
    key_headers,
    make_endpoint,
    make_failed,
    make_member,
    make_server,
    make_trajectory,
    override,
    task_from_trajectory,
    tell,
)
from tests.forms import as_read
from tests.shared import copied, once
from workers.lib.prompting import as_text

CONFIG = {"steps": 2, "learning_rate": 1e-4, "batch_size": 2}
HOSTILE = "</td><script>alert(1)</script> <|im_end|>"


def made_run(folder: Path) -> EvalRun:
    """An evaluation of five training tasks whose samples differ in their words."""
    made = evaluated(frozen_set(demonstration='{"tool": "x", "args": {}}'), (2, 0, 4, 1, 4), folder)
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


def found(run: EvalRun, *names: str, shape: str = "pairs") -> sources.Found:
    return find_examples(eval_set=run.eval_set, shape=shape, sources=names, evaluation=run)


def texts(made: sources.Found) -> list[list[str]]:
    return [example.texts for example in made.examples]


def corrected(run: EvalRun, number: int, after: Any = None, **more: Any) -> Trajectory:
    right = {"tool": "plants.water", "args": {"hall": number}}
    return make_failed(
        run.project,
        request=f"Water plant {number} of hall {number} now.",
        expected=after or right,
        **more,
    )


def thumb(trajectory: Trajectory, status: str, **more: Any) -> Trajectory:
    return tell(trajectory, Feedback(outcome=OutcomeChange(status=status), **more))


# Where they come from


def test_a_correction_is_a_pair_of_what_the_agent_did_and_what_was_put_there(run: EvalRun) -> None:
    trajectory = corrected(
        run,
        71,
        {"tool": "plants.water", "args": {"hall": 71}},
        call={"tool": "mail", "args": {"to": "x"}},
    )
    [pair] = found(run, Source.CORRECTIONS).examples
    assert pair.texts == [
        '{"tool": "plants.water", "args": {"hall": 71}}',
        '{"tool": "mail", "args": {"to": "x"}}',
    ]
    assert (pair.trajectory, pair.task, pair.source) == (trajectory.pk, None, Source.CORRECTIONS)
    assert [message["role"] for message in pair.data["messages"]] == ["user"] and pair.data[
        "tools"
    ] == trajectory.tools


def test_of_several_turns_the_corrected_one_counts_with_what_came_before(run: EvalRun) -> None:
    turns = [
        {"role": "user", "content": "Water the ferns."},
        {"role": "assistant", "content": "Which hall?"},
        {"role": "user", "content": "Hall nine."},
        {"role": "assistant", "content": HOSTILE},
    ]
    trajectory = make_trajectory(run.project, messages=turns)
    tell(
        trajectory,
        Feedback(outcome=OutcomeChange(status="failure"), corrected="Done.", message_index=3),
    )
    [pair] = found(run, Source.CORRECTIONS).examples
    assert pair.texts == ["Done.", HOSTILE] and [
        one["content"] for one in pair.data["messages"]
    ] == [
        "Water the ferns.",
        "Which hall?",
        "Hall nine.",
    ]


def test_a_correction_that_changes_nothing_or_of_no_step_is_left_out(run: EvalRun) -> None:
    corrected(run, 72, "I closed it.")
    silent = make_trajectory(
        run.project, messages=[{"role": "user", "content": "Feed the cats in hall ten."}]
    )
    tell(silent, Feedback(outcome=OutcomeChange(status="failure"), corrected="Done."))
    made = found(run, Source.CORRECTIONS)
    assert not made.examples and (made.left_out[BOTH], made.left_out[NO_STEP]) == (1, 1)


def test_the_last_thumb_on_a_run_counts_for_the_step_that_it_names(run: EvalRun) -> None:
    up, down = (
        make_trajectory(run.project, request=f"Sweep hall {word} please.")
        for word in ("seven", "eight")
    )
    thumb(thumb(up, "failure"), "success")
    thumb(down, "failure", comment="Rude.")
    make_trajectory(
        run.project, request="Paint hall six.", outcome={"status": "success"}
    )  # nobody said so
    labels = found(run, Source.FEEDBACK, shape="labels").examples
    assert sorted((one.data["good"], str(one.trajectory)) for one in labels) == [
        (False, str(down.pk)),
        (True, str(up.pk)),
    ]


def test_thumbs_on_answers_to_one_request_make_a_pair(run: EvalRun) -> None:
    for word, status in (("Swept.", "success"), ("No.", "failure")):
        turns = [
            {"role": "user", "content": "Sweep hall seven please."},
            {"role": "assistant", "content": word},
        ]
        thumb(make_trajectory(run.project, messages=turns), status)
    assert texts(found(run, Source.FEEDBACK)) == [["Swept.", "No."]]


def test_a_page_of_feedback_is_a_source(run: EvalRun) -> None:
    """As a person gives it, not the API."""
    trajectory = make_trajectory(run.project, request="Sweep hall seven please.")
    give(
        trajectory=trajectory,
        news=Feedback(outcome=OutcomeChange(status="failure"), corrected="Swept."),
        by=admin_of(run.project),
    )
    assert texts(found(run, Source.CORRECTIONS)) == [["Swept.", "I closed it."]]


def test_an_evaluation_gives_the_best_against_the_worst(run: EvalRun) -> None:
    made = found(run, Source.EVALUATION)
    tasks = list(run.eval_set.tasks.trainable())
    assert [(one.task, one.texts) for one in made.examples] == [
        (tasks[0].pk, ["right 0", "wrong 2"]),
        (tasks[3].pk, ["right 0", "wrong 1"]),
    ]
    assert len(found(run, Source.EVALUATION, shape="answers").examples) == 2 + 4 + 1 + 4


def test_examples_belong_to_an_agent(run: EvalRun) -> None:
    """A set learns from the runs of the agents that its tasks come from, and the advisor counts no
    others.
    """
    mine = corrected(run, 71, agent={"name": "greenhouse", "version": "1"})
    thumb(mine, "success")
    thumb(corrected(run, 72, agent={"name": "billing", "version": "1"}), "success")
    digest.run()
    unknown = found(
        run, *Source
    )  # no task of the set comes from a run, and the project has two agents
    assert not unknown.by_source.get(Source.CORRECTIONS) and unknown.left_out[NO_AGENT] == 2
    assert words_of_people(run.eval_set)["preference_pairs"] == 0
    by = admin_of(run.project)
    eval_set = evals.create_eval_set(project=run.project, slug="greenhouse", by=by)
    evals.tasks_from_trajectories(eval_set=eval_set, trajectories=[mine], by=by)
    own = find_examples(
        eval_set=eval_set, shape="labels", sources=[Source.CORRECTIONS, Source.FEEDBACK]
    )
    assert {example.trajectory for example in own.examples} == {mine.pk} and own.left_out[
        OTHER_AGENT
    ] == 1
    counted = words_of_people(eval_set)
    assert counted["preference_pairs"] == 1 and counted["thumbs"][0] == 1


def test_masked_samples_and_those_of_several_turns_say_nothing(run: EvalRun) -> None:
    run.samples.filter(success=True).update(masked=True, reward=None)
    assert not found(run, Source.EVALUATION).examples
    run.samples.update(masked=False, reward=1, turns=3)
    assert found(run, Source.EVALUATION).left_out[SEVERAL_TURNS] == run.samples.count()


def review_of(run: EvalRun, *verdicts: tuple[Sample, bool]) -> None:
    review = RewardReview.objects.create(
        project=run.project,
        verifier=run.environment.verifier,
        policy=policy_of(run.project),
        scope={"runs": {}},
    )
    people = [make_member(run.project), make_member(run.project)]
    for position, (sample, word) in enumerate(verdicts):
        item = ReviewItem.objects.create(
            review=review, sample=sample, position=position, reward=0, success=sample.success
        )
        for person in people:
            Judgement.objects.create(item=item, by=person, success=word)


def test_a_review_says_which_samples_are_better_whatever_their_score(run: EvalRun) -> None:
    tasks = list(run.eval_set.tasks.trainable())
    first = list(run.samples.filter(task=tasks[0]).order_by("index"))
    second = run.samples.filter(task=tasks[1]).first()
    review_of(run, (first[0], False), (first[3], True), (second, False))
    assert texts(found(run, Source.REVIEWS)) == [
        ["wrong 3", "right 0"],
        [tasks[1].demonstration, "wrong 0"],
    ]


# What stays out


def hold_out(run: EvalRun, trajectory: Trajectory) -> EvalSet:
    by = admin_of(run.project)
    held = evals.create_eval_set(project=run.project, slug="secret", by=by)
    task_from_trajectory(eval_set=held, trajectory=trajectory, split=Split.HOLDOUT, by=by)
    return drafts.freeze(eval_set=held, by=by)


def test_what_is_held_out_is_left_out_and_counted(run: EvalRun) -> None:
    secret, fine = corrected(run, 73, session_id="s-held"), corrected(run, 74)
    other = make_failed(
        run.project, request="Buy bread and milk for Ana.", expected="Bought.", session_id="s-held"
    )
    hold_out(run, secret)
    made = found(run, Source.CORRECTIONS)
    assert [one.trajectory for one in made.examples] == [fine.pk] and made.left_out[HELD_OUT] == 2
    assert str(other.pk) not in str(made.examples)


def test_runs_of_validation_tasks_are_left_out_by_run_by_group_and_by_request(run: EvalRun) -> None:
    """A run's curves and its best checkpoint are of the validation tasks: their corrections would
    train on what measures.
    """
    by = admin_of(run.project)
    measured, fine = (
        corrected(run, 83, session_id="s-valid"),
        corrected(run, 84, session_id="s-train"),
    )
    related = make_failed(
        run.project, request="Buy bread and milk for Ana.", expected="Bought.", session_id="s-valid"
    )
    eval_set = evals.create_eval_set(project=run.project, slug="divided", by=by)
    task_from_trajectory(eval_set=eval_set, trajectory=measured, split=Split.VALIDATION, by=by)
    task_from_trajectory(eval_set=eval_set, trajectory=fine, split=Split.TRAIN, by=by)
    freeze_set(eval_set, by)
    again = corrected(run, 83, session_id="s-later")  # the same request of somebody else
    made = find_examples(eval_set=eval_set, shape="pairs", sources=[Source.CORRECTIONS])
    assert [one.trajectory for one in made.examples] == [fine.pk]
    assert made.left_out[MEASURES] >= 3 and not {measured.pk, related.pk, again.pk} & {
        one.trajectory for one in made.examples
    }
    assert len(found(run, Source.CORRECTIONS).examples) == 3  # they train what another set measures


def test_an_answer_that_says_a_held_out_request_is_left_out(run: EvalRun) -> None:
    secret = corrected(run, 75)
    hold_out(run, secret)
    echo = "Water plant 75 of hall 75 now. Yes."
    make_failed(run.project, request="Repeat after me, slowly and clearly.", expected=echo)
    made = found(run, Source.CORRECTIONS)
    assert not made.examples and made.left_out[HELD_OUT] == 2


def test_a_dismissed_failure_teaches_nothing(run: EvalRun) -> None:
    from apps.failures.actions.diagnose import classify_project
    from apps.failures.models import Failure, FailureState

    corrected(run, 76)
    classify_project(project=run.project)
    assert len(found(run, Source.CORRECTIONS).examples) == 1
    Failure.objects.update(state=FailureState.DISMISSED)
    assert not found(run, Source.CORRECTIONS).examples


def test_other_projects_and_other_splits_are_not_read(run: EvalRun, data_dir: Path) -> None:
    other = evaluated(frozen_set(), (2, 2), data_dir)
    make_failed(other.project, expected="Done.")
    held = evaluated(run.eval_set, (2, 2), data_dir, split=Split.HOLDOUT)
    assert not found(run, Source.CORRECTIONS, Source.FEEDBACK).examples
    for wrong in (other, held):
        assert not find_examples(
            eval_set=run.eval_set, shape="pairs", sources=["evaluation"], evaluation=wrong
        ).examples


def test_the_gate_refuses_examples_that_were_held_out_since(run: EvalRun) -> None:
    trajectory = corrected(run, 77)
    made = found(run, Source.CORRECTIONS)
    job = submitted(run, made)
    hold_out(run, trajectory)
    with pytest.raises(TrainingError, match="belong to the hold-out"):
        freeze_dataset(eval_set=run.eval_set, by=None, shape=Shape.PAIRS, examples=made.examples)
    with pytest.raises(HoldoutLeak, match="Nothing was trained"):
        training_spec(job)


def test_a_job_whose_production_runs_were_held_out_since_is_refused_when_it_starts(
    run: EvalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share a session with a held-out run, and not a word: no comparison of texts would find
    that.
    """
    make_failed(
        run.project,
        request="Buy bread and milk for Ana.",
        expected="Bought.",
        session_id="s-shared",
    )
    job = submitted(run, found(run, Source.CORRECTIONS))
    training_spec(job)
    hold_out(run, corrected(run, 79, session_id="s-shared"))
    with pytest.raises(
        HoldoutLeak,
        match=r"Nothing was trained\. 1 of these production runs belong to the hold-out",
    ):
        training_spec(job)
    with pytest.raises(HoldoutLeak, match="production runs belong to the hold-out"):
        export(run=job, engine="trl", by=job.created_by)
    monkeypatch.setattr("apps.training.refusals.refuse_held_runs", lambda run: None)
    training_spec(job)  # nothing else would have noticed


def test_the_database_refuses_an_example_of_a_held_out_task(run: EvalRun) -> None:
    dataset = submitted(run, found(run, Source.EVALUATION)).dataset
    held = run.eval_set.tasks.holdout().first()
    for split in (Split.TRAIN, Split.HOLDOUT):
        with pytest.raises(IntegrityError), transaction.atomic():
            Example.objects.create(
                dataset=dataset, position=99, source="reviews", task=held, split=split, data={}
            )
            connection.check_constraints()


# The run


def submitted(
    run: EvalRun,
    made: sources.Found,
    method: Method = Method.DPO,
    samples_of: EvalRun | None = None,
    **config: Any,
) -> TrainingRun:
    shape = SHAPES[method]
    return submit_training(
        project=run.project,
        method=method,
        parent=run.model_version,
        environment=run.environment,
        config=CONFIG | config,
        dataset=freeze_dataset(eval_set=run.eval_set, by=None, shape=shape, examples=made.examples),
        by=admin_of(run.project),
        samples_of=samples_of,
    )


def test_a_dpo_job_is_given_the_conversation_as_an_agent_is(run: EvalRun, settings: Any) -> None:
    trajectory = corrected(run, 78)
    job = submitted(run, found(run, Source.CORRECTIONS, Source.EVALUATION), beta=0.2)
    spec = as_read(training_spec(job))
    assert spec.config.beta == 0.2 and len(spec.rows) == 3
    row = spec.rows[0]
    assert (row.chosen, row.rejected) == (
        '{"tool": "plants.water", "args": {"hall": 78}}',
        "I closed it.",
    )
    harness = run.environment.harness
    assert row.messages[0]["content"] == harness["system_prompt"] and row.messages[-1][
        "content"
    ].startswith("Water plant 78")
    assert job.spec["sources"] == {"corrections": 1, "evaluation": 2} and str(job.dataset).endswith(
        "(3 pairs)"
    )
    assert trajectories_of([job.dataset_id]).get() == trajectory
    assert [one.job for one in learners_of_trajectory(trajectory.pk)] == [job]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(("method", "program"), [(Method.KTO, "kto"), (Method.REJECTION, "sft")])
def test_other_methods_are_given_answers(run: EvalRun, method: Method, program: str) -> None:
    shape = "labels" if method == Method.KTO else "answers"
    spec = training_spec(submitted(run, found(run, Source.EVALUATION, shape=shape), method))
    rows = as_read(spec).rows
    assert spec.program() == program and rows[0].completion == "right 0"


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("method", [Method.DPO, Method.KTO, Method.REJECTION])
def test_an_export_has_the_rows_of_the_job(run: EvalRun, method: Method) -> None:
    """With the calls and results that came before the answer, as text: this base's template knows
    no tools.
    """
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "plants.water", "arguments": '{"hall": 9}'},
    }
    turns = [
        {"role": "user", "content": "Water the ferns."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "The tank is empty."},
        {"role": "assistant", "content": "Watered."},
    ]
    trajectory = make_trajectory(run.project, messages=turns)
    tell(
        trajectory,
        Feedback(
            outcome=OutcomeChange(status="failure"), corrected="It is empty.", message_index=3
        ),
    )
    sources_of = [Source.EVALUATION] if method == Method.REJECTION else [Source.CORRECTIONS]
    job = submitted(run, found(run, *sources_of, shape=SHAPES[method].value), method)
    with zipfile.ZipFile(
        io.BytesIO(export(run=job, engine="trl", by=job.created_by).content)
    ) as archive:
        files = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    rows, wanted = (
        [json.loads(line) for line in files["data/train.jsonl"].splitlines()],
        training_spec(job).rows,
    )
    said = ("chosen", "rejected", "completion")
    assert [[row.get(name) for name in said] for row in rows] == [
        [getattr(row, name, None) for name in said] for row in wanted
    ]
    assert [row["messages"] for row in rows] == [as_text(row.messages, row.tools) for row in wanted]
    assert [row.get("label") for row in rows] == [getattr(row, "good", None) for row in wanted]
    assert json.loads(files["manifest.json"])["facts"]["method"] == method
    if method != Method.REJECTION:
        assert (
            '"hall": 9' in rows[0]["messages"][-2]["content"]
            and "tank is empty" in rows[0]["messages"][-1]["content"]
        )


def test_the_same_examples_twice_are_one_dataset_and_none_is_refused(run: EvalRun) -> None:
    one, two = (submitted(run, found(run, Source.EVALUATION)).dataset for _ in range(2))
    assert one == two and one.examples.count() == 2
    with pytest.raises(TrainingError, match="contain no pairs to learn from"):
        submitted(run, found(run, Source.CORRECTIONS))
    with pytest.raises(TrainingError, match="learns from tasks, not from"):
        submit_training(
            project=run.project,
            method=Method.SFT,
            parent=run.model_version,
            environment=run.environment,
            config=CONFIG,
            dataset=one,
            by=admin_of(run.project),
        )


# The pages


def sent(run: EvalRun, **changes: Any) -> dict[str, Any]:
    return {
        "method": "dpo",
        "parent": run.model_version_id,
        "eval_set": run.eval_set_id,
        "environment": run.environment_id,
        "sources": ["corrections", "evaluation"],
        "samples_of": run.pk,
        "steps": 2,
        "preference_rate": 1e-5,
        "learning_rate": 1e-5,
        "batch_size": 8,
        "preference_beta": 0.3,
        "dpo_loss": "ipo",
        "seed": 0,
    } | changes


@pytest.fixture
def engineer(client: Client, run: EvalRun) -> Client:
    client.force_login(make_member(run.project))
    return client


@pytest.mark.proof
def test_the_form_starts_a_dpo_run(engineer: Client, run: EvalRun) -> None:
    answer = engineer.post(reverse("training:new", args=[run.project.slug]), sent(run))
    job = TrainingRun.objects.get()
    assert answer.status_code == 302 and job.method == "dpo" and job.dataset.shape == Shape.PAIRS
    config = job.spec["config"]
    assert (config["beta"], config["loss_type"], config["learning_rate"]) == (0.3, "ipo", 1e-5)
    html = engineer.get(
        reverse("training:detail", args=[run.project.slug, job.pk])
    ).content.decode()
    assert "2 pairs" in html.lower() and "samples 2" in html
    listed = engineer.get(
        reverse("training:run_examples", args=[run.project.slug, job.pk])
    ).content.decode()
    assert "right 0" in listed and "wrong 2" in listed


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sources": []}, "sources"),
        ({"sources": ["feedbackk"]}, "sources"),
        ({"sources": ["evaluation"], "samples_of": ""}, "samples_of"),
        ({"method": "rejection", "sources": [], "samples_of": ""}, "samples_of"),
        ({"preference_beta": 0}, "preference_beta"),
        ({"dpo_loss": "sigmoud"}, "dpo_loss"),
    ],
)
def test_what_cannot_train_is_said_at_its_field(
    engineer: Client, run: EvalRun, change: dict, field: str
) -> None:
    answer = engineer.post(reverse("training:new", args=[run.project.slug]), sent(run, **change))
    assert field in answer.context["form"].errors and not TrainingRun.objects.exists()


@pytest.mark.proof
def test_without_examples_the_form_says_so_and_keeps_what_was_typed(
    engineer: Client, run: EvalRun
) -> None:
    answer = engineer.post(
        reverse("training:new", args=[run.project.slug]),
        sent(run, sources=["corrections"], steps=77),
    )
    assert (
        "contain no pairs to learn from" in answer.content.decode()
        and 'value="77"' in answer.content.decode()
    )


def test_an_evaluation_of_another_set_is_refused(
    engineer: Client, run: EvalRun, data_dir: Path
) -> None:
    by = admin_of(run.project)
    other = drafts.freeze(eval_set=drafts.new_version(eval_set=run.eval_set, by=by), by=by)
    answer = engineer.post(
        reverse("training:new", args=[run.project.slug]), sent(run, eval_set=other.pk)
    )
    assert "It evaluated" in str(answer.context["form"].errors["samples_of"])


def preview(client: Client, run: EvalRun, **changes: Any) -> str:
    names = ("method", "eval_set", "picked_by", "per_group", "sources", "samples_of")  # hx-params
    query = {name: value for name, value in sent(run, **changes).items() if name in names}
    answer = client.get(reverse("training:examples", args=[run.project.slug]), query)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.proof
def test_the_preview_counts_by_source_and_shows_a_few(engineer: Client, run: EvalRun) -> None:
    corrected(run, 79, HOSTILE)
    secret = corrected(run, 80)
    hold_out(run, secret)
    html = preview(engineer, run)
    assert (
        "3 pairs" in html
        and "Corrections in production" in html
        and "samples</span><span>2" in html
    )
    assert "<script>" not in html and "&lt;script&gt;" in html
    assert f"Left out: {HELD_OUT}" in html and "plant 80" not in html
    labels = preview(engineer, run, method="kto", sources=["evaluation"])
    assert "labelled answers" in labels and "good answers have weight" in labels
    assert "Choose" in preview(engineer, run, sources=["evaluation"], samples_of="")
    for nonsense in (
        {"eval_set": "x"},
        {"samples_of": "' or 1=1"},
        {"method": "x"},
        {"sources": "9" * 300},
    ):
        preview(engineer, run, **nonsense)


def test_the_preview_of_sft_and_grpo_counts_the_tasks_of_the_set_by_split(
    engineer: Client, run: EvalRun
) -> None:
    sft, grpo = preview(engineer, run, method="sft"), preview(engineer, run, method="grpo")
    held = run.eval_set.tasks.filter(split=Split.HOLDOUT).count()
    assert (
        "5 demonstrations" in sft
        and "{&quot;tool&quot;: &quot;x&quot;" in sft
        and "Without" not in sft
    )
    assert "5 training tasks" in grpo and "<table" not in grpo
    assert f"Held out, never trained on</span><span>{held}</span>" in sft
    assert "Choose" in preview(engineer, run, method="x") or "valid choice" in preview(
        engineer, run, method="x"
    )


def test_a_viewer_sees_no_preview_and_a_stranger_no_examples(client: Client, run: EvalRun) -> None:
    from apps.core.models import Role

    job = submitted(run, found(run, Source.EVALUATION))
    client.force_login(make_member(run.project, Role.VIEWER))
    assert client.get(reverse("training:examples", args=[run.project.slug])).status_code == 403
    assert (
        client.get(reverse("training:run_examples", args=[run.project.slug, job.pk])).status_code
        == 200
    )
    client.force_login(admin_of(frozen_set().project))
    assert (
        client.get(reverse("training:run_examples", args=[run.project.slug, job.pk])).status_code
        == 404
    )


# The API


def asked(run: EvalRun, name: str, *args: Any, **query: Any) -> Any:
    return Client().get(
        reverse(f"training_api:{name}", args=args), query, **key_headers(run.project)
    )


def test_the_api_says_the_same_as_the_pages(run: EvalRun) -> None:
    trajectory = corrected(run, 81)
    hold_out(run, corrected(run, 82))
    query = {"method": "dpo", "eval_set": str(run.eval_set), "evaluation": run.pk}
    made = asked(run, "examples", **query).json()
    assert (made["shape"], made["count"], made["sources"]) == (
        "pairs",
        3,
        {"corrections": 1, "evaluation": 2},
    )
    assert made["left_out"][HELD_OUT] == 1 and "plant 82" not in str(made)
    assert (
        made["results"][0]["trajectory"] == str(trajectory.pk)
        and made["results"][0]["messages"][0]["role"] == "user"
    )
    assert asked(run, "examples", **query, source="corrections").json()["count"] == 1
    job = submitted(run, found(run, Source.CORRECTIONS, Source.EVALUATION))
    first = asked(run, "run_examples", job.pk, limit=2).json()
    rest = asked(run, "run_examples", job.pk, limit=2, cursor=first["next"]).json()
    assert len(first["results"]) == 2 and len(rest["results"]) == 1 and rest["next"] is None
    assert [one["rejected"] for one in first["results"] + rest["results"]] == [
        one["rejected"] for one in made["results"]
    ]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"method": "grpo"}, 400),
        ({"method": ""}, 400),
        ({"source": "thumbs"}, 400),
        ({"eval_set": "x@1"}, 404),
        ({"evaluation": "x"}, 404),
        ({"method": "rejection", "source": "feedback"}, 400),
    ],
)
def test_the_api_refuses_what_it_does_not_know(run: EvalRun, change: dict, status: int) -> None:
    assert (
        asked(
            run, "examples", **({"method": "dpo", "eval_set": str(run.eval_set)} | change)
        ).status_code
        == status
    )


def test_another_projects_key_finds_nothing(run: EvalRun) -> None:
    job = submitted(run, found(run, Source.EVALUATION))
    other = key_headers(frozen_set().project)
    query = {"method": "dpo", "eval_set": str(run.eval_set)}
    assert (
        Client().get(reverse("training_api:run_examples", args=[job.pk]), **other).status_code
        == 404
    )
    assert Client().get(reverse("training_api:examples"), query, **other).status_code == 404


# A teacher


def by_a_teacher(run: EvalRun) -> ModelVersion:
    """The evaluation becomes that of a served model."""
    teacher = make_endpoint(
        run.project, make_server(run.project, "https://gpu.example.com/v1"), name="teacher"
    )
    EvalRun.objects.filter(pk=run.pk).update(model_version=teacher)
    return teacher


def test_distillation_learns_from_a_teachers_passing_samples(
    engineer: Client, run: EvalRun
) -> None:
    teacher = by_a_teacher(run)
    answer = engineer.post(
        reverse("training:new", args=[run.project.slug]),
        sent(run, method="distill", sources=["evaluation"]),
    )
    job = TrainingRun.objects.get()
    assert answer.status_code == 302 and (job.spec["sampled_from"], job.spec["samples_of"]) == (
        str(teacher),
        str(run.pk),
    )
    rows = as_read(training_spec(job)).rows
    assert len(rows) == 2 + 4 + 1 + 4 and all(row.completion.startswith("right") for row in rows)
    html = engineer.get(
        reverse("training:detail", args=[run.project.slug, job.pk])
    ).content.decode()
    assert f">{teacher}</a>" in html
    assert "A training run learned from its samples" in (first(WhyNotDelete(run)) or "")


def test_a_teacher_is_another_model_and_rejection_sampling_ones_own(
    engineer: Client, run: EvalRun
) -> None:
    url = reverse("training:new", args=[run.project.slug])
    own = (
        engineer.post(url, sent(run, method="distill", sources=["evaluation"]))
        .context["form"]
        .errors["samples_of"]
    )
    assert "itself" in str(own)
    with pytest.raises(TrainingError, match="itself"):
        submitted(
            run, found(run, Source.EVALUATION, shape="answers"), Method.DISTILL, samples_of=run
        )
    by_a_teacher(run)
    other = (
        engineer.post(url, sent(run, method="rejection", sources=["evaluation"]))
        .context["form"]
        .errors["samples_of"]
    )
    assert "a different model" in str(other) and not TrainingRun.objects.exists()


@pytest.mark.proof
def test_a_choice_of_tasks_that_the_page_hides_says_nothing_of_the_run(
    engineer: Client, run: EvalRun
) -> None:
    engineer.post(reverse("training:new", args=[run.project.slug]), sent(run, picked_by=run.pk))
    assert "picked_by" not in TrainingRun.objects.get().spec
