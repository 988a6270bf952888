"""What a policy says to the same tasks at its checkpoints stands side by side; a sample of it goes
to people, whose verdicts come back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.bus import publish
from apps.core.models import JobState, Project, Role, Stage
from apps.failures.judge import judging, rubrics
from apps.failures.judge.judging import Report
from apps.failures.models import Failure, JudgeVerdict, Rubric
from apps.reviews import actions as reviews
from apps.reviews.actions import OutputJudged
from apps.reviews.evidence import lock_state
from apps.reviews.models import ReviewItem, ReviewPolicy, RewardReview, SentOutput
from apps.training import judged_outputs, outputs, tasks
from apps.training.actions import TrainingError, freeze_dataset, submit_training
from apps.training.models import Method, Metric, Rollout, TrainingRun
from apps.training.outputs import Filters, choose, words_changed
from tests.factories import (
    admin_of,
    key_headers,
    make_base,
    make_environment,
    make_eval_set,
    make_member,
    make_project,
    make_rollouts,
    override,
)
from tests.failures.judge_server import JudgeServer, Reply, running, says
from tests.failures.test_judge import make_rubric
from tests.shared import copied, once
from workers.lib.prices import Price

pytestmark = pytest.mark.django_db
Say = Callable[..., None]


def made_run(folder: Path) -> TrainingRun:
    project = make_project()
    environment, eval_set, by = (
        make_environment(project),
        make_eval_set(project, train=6, validation=1),
        admin_of(project),
    )
    override(environment)
    return submit_training(
        project=project,
        method=Method.GRPO,
        parent=make_base(project, folder),
        environment=environment,
        by=by,
        dataset=freeze_dataset(eval_set=eval_set, by=by),
        config={"steps": 30, "learning_rate": 1e-3},
    )


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[tuple[TrainingRun, Path]]:
    yield from once(request, made_run)


@pytest.fixture
def run(kept: tuple[TrainingRun, Path], db: None, settings: Any) -> TrainingRun:
    return copied(kept, settings)


@pytest.fixture
def say(run: TrainingRun) -> Say:
    """Each task's output and reward at a step."""

    def make(step: int, *said: tuple[str, float | None], phase: str = "checkpoint") -> None:
        for task, (text, reward) in enumerate(said):
            (row,) = make_rollouts(run, [reward], step=step, task=task, phase=phase)
            Rollout.objects.filter(pk=row.pk).update(output=text)

    return make


def page(run: TrainingRun, query: str = "", role: Role = Role.VIEWER) -> Any:
    client = Client()
    client.force_login(make_member(run.project, role))
    answer = client.get(reverse("training:outputs", args=[run.project.slug, run.pk]) + query)
    assert answer.status_code == 200
    return answer


def shown(answer: Any) -> list[tuple[str, str]]:
    return [
        (item["row"].change, item["cells"][-1]["sample"].output) for item in answer.context["rows"]
    ]


@pytest.mark.parametrize(
    ("steps", "query", "expected"),
    [
        ([0, 5, 10], {}, (0, 5, 10)),
        ([0, 5, 10], {"at": "5"}, (0, 0, 5)),
        ([0, 5, 10], {"at": "10", "than": "0"}, (0, 0, 10)),
        ([0, 5, 10], {"at": "7"}, (0, 0, 5)),  # the nearest below
        ([0, 5, 10], {"at": "5", "than": "10"}, (0, 0, 5)),  # an earlier one is asked for
        ([0, 5, 10], {"at": "x", "than": "-1"}, (0, 5, 10)),
        ([5, 10], {"at": "0"}, (5, 5, 5)),
        ([5], {}, (5, 5, 5)),
    ],
)
def test_the_steps_are_chosen_by_the_url(steps: list[int], query: dict, expected: tuple) -> None:
    found = choose(steps, Filters.of(query))
    assert found and (found.baseline, found.than, found.at) == expected


@pytest.mark.proof
def test_a_step_that_was_only_validated_is_not_compared_unless_it_is_asked_for(
    run: TrainingRun, say: Say
) -> None:
    """It has no answers to training tasks, so every one of them stood there without what came
    before.
    """
    say(0, ("a", 0.0), ("b", 0.0))
    say(4, ("v", 0.0), phase="validation")
    say(5, ("a", 1.0), ("b", 0.0))
    assert page(run).context["chosen"].columns == [0, 5] and dict(shown(page(run))) == {
        "better": "a",
        "same": "b",
    }
    assert page(run, "?than=4").context["chosen"].columns == [0, 4, 5]


def test_nothing_is_said_before_the_first_checkpoint(run: TrainingRun) -> None:
    assert choose([], Filters.of({})) is None
    assert "No sampled outputs yet" in page(run).content.decode()


def test_what_changed_most_comes_first_whichever_way(run: TrainingRun, say: Say) -> None:
    say(0, ("a", 0.5), ("b", 0.5), ("c", 1.0), ("d", 0.0), ("e", 0.2), ("f", None))
    say(5, ("a", 0.5), ("b two", 0.5), ("c worse", 0.1), ("d better", 0.4), ("e", 0.2), ("f", 1.0))
    make_rollouts(run, [1.0], step=5, task=0)  # of the training itself
    answer = page(run)
    assert shown(answer)[:2] == [("worse", "c worse"), ("better", "d better")]
    assert {change for change, _ in shown(answer)[2:]} == {"same", "other", ""}
    assert [(name, n) for name, _, n in answer.context["changes"]] == [
        ("better", 1),
        ("worse", 1),
        ("other", 1),
        ("same", 2),
    ]
    assert shown(page(run, "?change=better")) == [("better", "d better")]
    html = answer.content.decode()
    assert "<ins>" in html and "Baseline" in html and "This checkpoint" in html


def test_a_task_is_judged_by_all_its_samples(run: TrainingRun) -> None:
    make_rollouts(run, [1.0, 1.0], step=0, phase="validation")
    make_rollouts(run, [1.0, 0.0], step=5, phase="validation")
    (item,) = page(run).context["rows"]
    assert (item["row"].delta, item["row"].cells[5].passed, item["row"].cells[5].n) == (-0.5, 1, 2)


@pytest.mark.proof
def test_search_finds_words_of_any_column_and_of_the_request(run: TrainingRun, say: Say) -> None:
    say(0, ("a whale", 0.5), ("b", 0.5))
    say(5, ("a", 0.5), ("b cat", 0.5))
    say(10, ("a", 0.5), ("b", 0.5))
    for query, found in (
        ("WHALE", 1),
        ("cat", 1),
        ("task-", 2),
        ("Close ticket", 2),
        ("%", 0),
        ("nothing", 0),
    ):
        assert len(page(run, f"?at=10&q={query}").context["rows"]) == found, query
    assert "None match these filters" in page(run, "?q=nothing").content.decode()


def test_hostile_outputs_are_text(run: TrainingRun, say: Say) -> None:
    say(0, ("<script>alert(1)</script> one", 0.0))
    say(5, ("<script>alert(1)</script> <b>two</b>", 0.5))
    html = page(run).content.decode()
    assert "<script>alert" not in html and "<b>two" not in html and "&lt;script&gt;" in html


def test_a_large_run_is_in_pages_of_bounded_size(run: TrainingRun, say: Say) -> None:
    long = "word " * 40_000
    say(0, *[(long, 0.5)] * 6)
    say(5, *[(long + "x", 0.5)] * 6)
    assert len(page(run).content) < 300_000


def test_words_are_compared_not_lines() -> None:
    assert words_changed("close ticket 12", "close ticket 13 now") == [
        ("same", "close ticket "),
        ("gone", "12"),
        ("new", "13 now"),
    ]
    assert words_changed("same", "same") == [("same", "same")]
    assert words_changed("", "new") == [("new", "new")]
    assert words_changed("a " * 2000, "b") is None


def test_hold_outs_are_not_among_them(run: TrainingRun) -> None:
    tasks = {task.pk for task in run.dataset.eval_set.tasks.holdout()}
    assert tasks and not outputs.samples_of(run).filter(task__in=tasks).exists()


def test_the_api_says_the_same(run: TrainingRun, say: Say) -> None:
    say(0, ("a", 0.0), ("b", 0.5))
    say(5, ("a!", 1.0), ("b", 0.5))
    url = reverse("training_api:run_outputs", args=[run.pk])
    found = Client().get(url, {"limit": 1}, **key_headers(run.project)).json()
    assert (found["steps"], found["at"], found["than"], found["next"]) == ([0, 5], 5, 0, 1)
    (row,) = found["results"]
    assert (row["change"], row["outputs"]["5"]["output"], row["outputs"]["0"]["reward"]) == (
        "better",
        "a!",
        0.0,
    )
    assert (
        Client().get(url, {"limit": 1, "offset": 1}, **key_headers(run.project)).json()["next"]
        is None
    )
    assert Client().get(url, **key_headers(make_project())).status_code == 404


# Review


def judge_all(review: RewardReview, verdict: Callable[[ReviewItem], bool], by: Any) -> None:
    for item in review.items.all():
        reviews.judge(item=item, success=verdict(item), by=by)


@pytest.fixture
def alone(run: TrainingRun) -> None:
    """One reviewer is enough."""
    ReviewPolicy.objects.create(project=run.project, reviewers_per_sample=1)


def test_a_seeded_sample_goes_to_the_queue_once(run: TrainingRun, say: Say, alone: None) -> None:
    say(5, *[(f"said {n}", n / 5) for n in range(5)], ("masked", None))
    before = lock_state(run.environment.verifier)
    review, new = judged_outputs.send(run=run, by=admin_of(run.project), n=3, seed=1)
    again, none = judged_outputs.send(run=run, by=None, n=3, seed=1)
    assert (new, again, none) == (3, review, 0)
    assert (
        judged_outputs.send(run=run, by=None)[1] == 2
    )  # the rest; what is masked has no score to judge
    assert review.items.count() == 5 and SentOutput.objects.filter(output="masked").count() == 0
    after = lock_state(run.environment.verifier)
    assert (after.state, after.why) == (before.state, before.why)


@pytest.mark.proof
def test_it_is_judged_blind_like_any_other(run: TrainingRun, say: Say, alone: None) -> None:
    say(5, ("the output", 0.123))
    client, slug = Client(), run.project.slug
    client.force_login(make_member(run.project, Role.ENGINEER))
    sent = client.post(
        reverse("training:outputs_send", args=[slug, run.pk]),
        {"step": "5", "query": "at=5"},
        follow=True,
    )
    assert "1 output sent to review." in sent.content.decode()
    review = RewardReview.objects.get()
    asked = client.get(
        reverse("reviews:queue", args=[slug, review.pk]), follow=True
    ).content.decode()
    assert "the output" in asked and "0.123" not in asked
    item = review.items.get()
    told = client.post(
        reverse("reviews:judge", args=[slug, item.pk]), {"success": "0"}, follow=True
    ).content.decode()
    assert "0.123" in told and f"{run.name}, step 5" in told
    detail = client.get(reverse("reviews:detail", args=[slug, review.pk])).content.decode()
    assert "do not affect the training lock" in detail and run.name in detail
    for name in ("reviews:export", "reviews:adjudicate", "reviews:list", "dashboard:home"):
        args = [slug, review.pk] if name in ("reviews:export", "reviews:adjudicate") else [slug]
        assert client.get(reverse(name, args=args)).status_code == 200, name
    assert "people: failed" in page(run).content.decode()


def test_what_people_say_is_a_metric_and_the_gap_an_alarm(
    run: TrainingRun, say: Say, alone: None, django_capture_on_commit_callbacks: Any
) -> None:
    run.claim(worker="w")
    say(5, *[(f"said {n}", 1.0) for n in range(6)])
    say(10, *[(f"later {n}", 1.0) for n in range(6)])
    for step in (5, 10):
        review, _ = judged_outputs.send(run=run, by=None, step=step)
    with django_capture_on_commit_callbacks(execute=True):
        judge_all(review, lambda item: False, by=admin_of(run.project))
    found = {(row.step, row.name): row.value for row in run.metrics.all()}
    assert found[5, "review/verifier_success"] == 1 and found[10, "review/people_success"] == 0
    assert found[10, "review/outputs"] == 6
    alarm = run.alarms.get(name="judge_gap", action="pause")
    run.refresh_from_db()
    assert (
        alarm.step == 10
        and alarm.value > 0.25
        and run.cancel_requested_at
        and run.result["paused"]["alarm"] == "judge_gap"
    )


@pytest.mark.proof
def test_people_who_agree_raise_nothing_and_a_run_that_ended_is_only_warned_of(
    run: TrainingRun, say: Say, alone: None, django_capture_on_commit_callbacks: Any
) -> None:
    say(5, *[(f"said {n}", 1.0) for n in range(6)])
    say(10, *[(f"later {n}", 1.0) for n in range(6)])
    for step in (5, 10):
        review, _ = judged_outputs.send(run=run, by=None, step=step)
    TrainingRun.objects.filter(pk=run.pk).update(
        state=JobState.CANCELLED, finished_at="2026-11-23T12:00Z"
    )
    with django_capture_on_commit_callbacks(execute=True):
        judge_all(review, lambda item: item.position != 0, by=admin_of(run.project))
    assert not run.alarms.exists()
    ReviewItem.objects.filter(position__gt=0).update(ruling=False, ruled_at="2026-11-23T12:00Z")
    publish(OutputJudged(review))
    assert list(run.alarms.values_list("name", "action")) == [("judge_gap", "warn")]


# The LLM judge

FAILS = says(mode="wrong_arguments", reason="It made that up.")
FINE = says(failed=False)


@pytest.fixture
def judge(run: TrainingRun, settings: Any) -> Iterator[JudgeServer]:
    """On, at a price; the run has six outputs at each checkpoint read."""
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    run.spec["config"]["judge_outputs"] = 6
    run.save(update_fields=["spec"])
    with running() as server:
        server.answer = lambda body: Reply(FAILS)
        make_rubric(run.project, server, price=Price(1.0, 1.0))
        yield server


def read_outputs(run: TrainingRun) -> Report:
    return judged_outputs.ask_judge(run, sleep=lambda seconds: None)


def sampled(run: TrainingRun, say: Say, *steps: int) -> None:
    for step in steps:
        say(step, *[(f"said {n} at {step}", 1.0) for n in range(6)])
        Metric.objects.create(run=run, step=step + 1, name="train/loss", value=0.1)


def test_the_judge_reads_outputs_of_each_checkpoint_and_its_gap_is_an_alarm_of_its_own_sentence(
    run: TrainingRun, say: Say, judge: JudgeServer
) -> None:
    run.claim(worker="w")
    sampled(run, say, 5, 10)
    say(15, ("not complete yet", 1.0))
    assert judged_outputs.due() == [run.pk]
    report = read_outputs(run)
    assert (report.asked, report.failures) == (12, 12) and judged_outputs.due() == []
    shown = json.dumps(judge.seen[0])
    assert (
        "said" in shown
        and "Close ticket" in shown
        and "not complete yet" not in json.dumps(judge.seen)
    )
    found = {(row.step, row.name): row.value for row in run.metrics.all()}
    assert (
        found[10, "judge/verifier_success"] == 1
        and found[5, "judge/success"] == 0
        and found[10, "judge/outputs"] == 6
    )
    assert not any(name.startswith("review/") for _, name in found)
    alarm = run.alarms.get(name="judge_gap", action="pause")
    assert alarm.message.startswith(
        "Success by the verifier minus success by the LLM judge, on 12 sampled outputs: "
    )
    assert rubrics.account_of(run.project).usd == pytest.approx(12 * 1.1e-3)
    html = page(run).content.decode()
    assert "LLM judge: failed" in html and "It made that up." in html and "people:" not in html
    client = Client()
    client.force_login(make_member(run.project, Role.VIEWER))
    detail = client.get(run.get_absolute_url()).content.decode()
    assert (
        "Verdicts on its outputs" in detail and "LLM judge" in detail and ">People<" not in detail
    )
    assert (
        "Output of a training run"
        in client.get(reverse("failures:verdicts", args=[run.project.slug])).content.decode()
    )
    answer = (
        Client()
        .get(
            reverse("training_api:run_outputs", args=[run.pk]),
            {"at": 10},
            **key_headers(run.project),
        )
        .json()
    )
    assert answer["results"][0]["outputs"]["10"]["judge"] == {
        "passed": False,
        "reason": "It made that up.",
    }
    assert not Failure.objects.exists()  # a verdict on an output is no failure in production


def test_the_judge_is_asked_within_its_budget_and_never_twice(
    run: TrainingRun, say: Say, judge: JudgeServer
) -> None:
    sampled(run, say, 5)
    say(5, *[("said 0 at 5", 1.0)] * 1, phase="validation")  # the same words to the same task
    Rubric.objects.update(usd_per_day=1e-9)
    assert (
        "used up" in read_outputs(run).stopped
        and not judge.seen
        and run.judged_outputs.count() == 6
    )
    Rubric.objects.update(usd_per_day=1.0)
    assert judged_outputs.due() == [run.pk]
    judge.answer = lambda body: Reply("no JSON") if len(judge.seen) < 3 else Reply(FINE)
    read_outputs(run)
    seen = len(judge.seen)
    assert read_outputs(run).asked == 0 and len(judge.seen) == seen
    JudgeVerdict.objects.exclude(error="").update(error=f"{judging.LAST_TRY} no JSON.")
    assert judged_outputs.due() == [] and run.judged_outputs.exclude(verdict__error="").exists()
    sampled(run, say, 10)
    assert judged_outputs.due() == [run.pk]
    Project.objects.update(stage=Stage.ARCHIVED)
    assert judged_outputs.due() == []
    Project.objects.update(stage=Stage.ACTIVE)
    assert not run.alarms.exists() and run.metrics.get(name="judge/success").value == 1
    rubrics.switch(project=run.project, version=None, by=None)
    assert judged_outputs.due() == [] and read_outputs(run).stopped == "The judge is off."


@pytest.mark.proof
def test_what_people_say_of_an_output_counts_in_place_of_the_judge(
    run: TrainingRun,
    say: Say,
    alone: None,
    judge: JudgeServer,
    django_capture_on_commit_callbacks: Any,
) -> None:
    sampled(run, say, 5, 10)
    read_outputs(run)
    alarm = run.alarms.get(name="judge_gap", cleared_step=None)
    for step in (5, 10):
        review, _ = judged_outputs.send(run=run, by=None, step=step)
    with django_capture_on_commit_callbacks(execute=True):
        judge_all(review, lambda item: True, by=admin_of(run.project))
    people, by_judge = judged_outputs.judgements_of(run)
    assert (people.n, people.gap, by_judge.n) == (12, 0.0, 0)
    alarm.refresh_from_db()
    assert alarm.cleared_step == 10
    made = run.rollouts.filter(step=10)
    SentOutput.objects.filter(source__rollout=made[0].pk).delete()
    say(15, *[(f"more {n}", 1.0) for n in range(6)])
    say(20, *[(f"later {n}", 1.0) for n in range(6)])
    TrainingRun.objects.filter(pk=run.pk).update(
        state=JobState.SUCCEEDED, finished_at=timezone.now()
    )
    run.refresh_from_db()
    read_outputs(run)
    assert "By people, on 1" in run.alarms.get(cleared_step=None).message


def test_the_judge_reads_nothing_unless_it_is_asked_for(
    run: TrainingRun, say: Say, judge: JudgeServer, client: Client
) -> None:
    sampled(run, say, 5)
    client.force_login(make_member(run.project, Role.ENGINEER))
    url = reverse("training:new", args=[run.project.slug])
    assert "judge_outputs" in client.get(url).context["form"].fields
    TrainingRun.objects.update(
        spec=run.spec | {"config": run.spec["config"] | {"judge_outputs": 0}}
    )
    assert (
        judged_outputs.due() == []
        and settings.CELERY_BEAT_SCHEDULE["judge_outputs"]["task"] == tasks.judge_outputs.name
    )
    given = {
        "project": run.project,
        "method": Method.GRPO,
        "parent": run.parent,
        "environment": run.environment,
        "by": admin_of(run.project),
        "dataset": run.dataset,
        "config": {"steps": 3, "learning_rate": 1e-3, "judge_outputs": 4},
    }
    assert submit_training(**given).spec["config"]["judge_outputs"] == 4
    rubrics.switch(project=run.project, version=None, by=None)
    assert "judge_outputs" not in client.get(url).context["form"].fields
    with pytest.raises(
        TrainingError, match=r"The LLM judge is off\. Turn it on under Failures → Judge"
    ):
        submit_training(**given)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("body", "status"),
    [({"rollout": 10**9}, 409), ({"step": 3}, 409), ({"n": 0}, 400), ({"x": 1}, 400)],
)
def test_what_cannot_be_sent_is_said(run: TrainingRun, say: Say, body: dict, status: int) -> None:
    say(5, ("a", 1.0))
    url = reverse("training_api:run_outputs_send", args=[run.pk])
    answer = Client().post(url, body, content_type="application/json", **key_headers(run.project))
    assert answer.status_code == status and not RewardReview.objects.exists()


def test_one_output_is_sent_by_api(run: TrainingRun, say: Say) -> None:
    say(5, ("a", 1.0))
    url, number = reverse("training_api:run_outputs_send", args=[run.pk]), run.rollouts.get().pk
    answer = Client().post(
        url, {"rollout": number}, content_type="application/json", **key_headers(run.project)
    )
    assert answer.status_code == 201 and answer.json()["sent"] == 1
    other = make_project()
    assert (
        Client()
        .post(url, {"rollout": number}, content_type="application/json", **key_headers(other))
        .status_code
        == 404
    )


def test_a_review_outlives_the_rollout(run: TrainingRun, say: Say) -> None:
    say(5, ("a", 1.0))
    review, _ = judged_outputs.send(run=run, by=None)
    run.rollouts.all().delete()
    assert review.items.get().scored.output == "a"
