"""Estimates by the model in use, what they put into the inbox, who is checked, and learning as a
job.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from apps.core import jobs, runner
from apps.core.models import JobState, Project
from apps.failures import reclassify
from apps.failures.actions.decisions import decide
from apps.failures.actions.diagnose import classify_project, diagnose, diagnose_and_draw
from apps.failures.models import (
    Classifier,
    Failure,
    FailureState,
    JudgeVerdict,
    OutcomeCheck,
    OutcomeEstimate,
    OutcomeModel,
    OutcomeTraining,
    Rubric,
)
from apps.failures.outcomes import checks, estimates, train_job
from apps.failures.outcomes.features import Usual, bucket_of
from apps.failures.outcomes.model import Weights
from apps.failures.outcomes.training import Example
from apps.trajectories import digest
from apps.trajectories.actions.store import ingest
from apps.trajectories.models import Trajectory, with_content
from tests.factories import make_failed, make_member, make_project, row, tool_message

pytestmark = pytest.mark.django_db
CALL = {"tool": "tickets.close", "args": {"id": 1234}}
ASK = {"role": "user", "content": "Please close ticket 1234."}
WRONG = [
    ASK,
    {"role": "assistant", "content": "Unfortunately I cannot do that."},
    {"role": "user", "content": "Please close ticket 1234!"},
    {"role": "assistant", "content": "Unfortunately I cannot do that."},
    {"role": "user", "content": "Are you sure? Please close ticket 1234."},
    tool_message(CALL),
]


def unknown(name: str, wrong: bool = False) -> dict:
    messages = {"messages": WRONG} if wrong else {}
    return row(name=name, tools=[], **messages) | {"outcome": {"status": "unknown"}}


def estimating(project: Project, word: str = "agent unfortunately", **more: Any) -> OutcomeModel:
    """Puts a model into use that flags the runs with a word, as `wrong` ones have."""
    weights = Weights({}, -3.0, {bucket_of(word): 30.0}, **more)
    number = project.outcome_models.count() + 1
    return OutcomeModel.objects.create(
        project=project, number=number, is_better=True, weights=weights.as_json()
    )


@pytest.fixture
def project() -> Project:
    """With a model in use."""
    project = make_project()
    estimating(project)
    return project


def send(project: Project, *rows: dict) -> list[Trajectory]:
    assert not ingest(project=project, rows=list(rows)).rejected
    return with_content(list(project.trajectories.order_by("pk")))


def test_a_run_that_probably_failed_is_in_the_inbox_with_its_reasons(project: Project) -> None:
    send(project, unknown("bad", wrong=True), unknown("good"))
    classify_project(project=project)
    failure = Failure.objects.get()
    assert failure.trajectory.external_id == "bad" and failure.state == FailureState.OPEN
    assert {item["rule"] for item in failure.evidence} == {"estimate"} and failure.evidence[0][
        "confidence"
    ] == "hint"
    texts = [item["text"] for item in failure.evidence]
    assert "more like a failure than" in texts[0] and "“unfortunately”" in texts[1]
    assert failure.rule_mode == ""  # no rule saw a fault
    low, high = OutcomeEstimate.objects.order_by("score")
    assert high.reasons and high.trajectory_id == failure.trajectory_id
    assert low.score < 0.2 and not low.reasons


def test_without_a_model_that_is_better_nothing_is_estimated() -> None:
    project = make_project()
    send(project, unknown("bad", wrong=True))
    OutcomeModel.objects.create(project=project, number=1, note="it is not better")
    classify_project(project=project)
    assert not OutcomeEstimate.objects.exists() and not Failure.objects.exists()


def test_an_outcome_that_is_known_later_takes_the_estimate_away(project: Project) -> None:
    runs = send(project, unknown("bad", wrong=True))
    diagnose(project, runs)
    Trajectory.objects.update(outcome_status="success")
    diagnose(project, with_content(list(project.trajectories.all())))
    assert not OutcomeEstimate.objects.exists() and not Failure.objects.exists()


def test_a_persons_decision_on_an_estimate_stays(project: Project) -> None:
    runs = send(project, unknown("bad", wrong=True))
    diagnose(project, runs)
    decide(failure=Failure.objects.get(), by=make_member(project), state=FailureState.DISMISSED)
    diagnose(project, runs)
    assert Failure.objects.get().state == FailureState.DISMISSED


def test_the_rules_of_today_change_no_estimated_failure(project: Project) -> None:
    send(project, unknown("bad", wrong=True))
    classify_project(project=project)
    job = reclassify.start(project=project, by=make_member(project))
    runner.run(job)
    assert not job.changes.exists()


def test_runs_are_drawn_by_their_own_numbers_and_more_often_where_the_rules_flag_them(
    project: Project,
) -> None:
    Classifier.objects.create(project=project, check_share=0.3)
    send(
        project,
        *(
            unknown(f"r{n}") | {"outcome": {"status": ("failure", "unknown")[n % 2]}}
            for n in range(60)
        ),
    )
    classify_project(project=project)
    flagged = set(Failure.objects.exclude(rule_mode="").values_list("trajectory_id", flat=True))
    drawn = dict(OutcomeCheck.objects.values_list("trajectory_id", "probability"))
    assert len(flagged) == 30 and all(
        drawn[pk] == 1.0 for pk in flagged
    )  # five times 0.3, at most 1
    others = set(project.trajectories.values_list("pk", flat=True)) - flagged
    assert {
        pk for pk in others if estimates.number_of(project.pk, pk) < 0.3
    } == drawn.keys() - flagged
    assert 0 < len(drawn.keys() - flagged) < len(others)
    classify_project(project=project)
    assert dict(OutcomeCheck.objects.values_list("trajectory_id", "probability")) == drawn
    Classifier.objects.update(check_share=0.6)
    classify_project(project=project)
    assert {OutcomeCheck.objects.get(pk=pk).probability for pk in drawn.keys() - flagged} == {0.6}


def test_the_numbers_are_spread_evenly() -> None:
    from uuid import uuid4

    numbers = [estimates.number_of(3, uuid4()) for _ in range(2000)]
    assert 0.45 < sum(numbers) / 2000 < 0.55 and sum(number < 0.02 for number in numbers) < 80


def decided_project(n: int = 100) -> Project:
    """Runs whose outcome people recorded: the wrong ones failed."""
    project = make_project()
    rows = [
        unknown(f"r{at}", wrong=at % 4 == 0)
        | {
            "metadata": {"task_id": f"t{at}"},
            "outcome": {"status": ("success", "failure")[at % 4 == 0]},
        }
        for at in range(n)
    ]
    send(project, *rows)
    return project


def test_a_model_that_is_better_than_none_is_used_and_estimates_the_open_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project = decided_project()
    send(project, *(unknown(f"open{n}", wrong=n == 0) for n in range(5)))
    other = {"agent": {"name": "shop"}, "messages": [ASK, tool_message(CALL | {"tool": "find"})]}
    send(project, unknown("other agent") | other)
    monkeypatch.setattr(train_job, "CHUNK", 2)
    job = train_job.start(project=project, by=make_member(project))
    assert train_job.start(project=project, by=None) == job  # one at a time
    assert job.total == 6 and job.claim("a worker")
    going = train_job.steps(job)
    for _ in range(3):
        job.cursor = next(going).cursor  # the model, then two runs; and dies
    job.save()
    assert OutcomeEstimate.objects.count() == 1 and jobs.retry_or_fail(job, "The worker died.")
    runner.run(job)
    job.refresh_from_db()
    model = project.outcome_models.get()
    assert model.is_better and model.measured["n"] == 100 and model.measured["failed"] == 25
    assert job.state == JobState.SUCCEEDED and job.result["estimated_again"] == 6
    estimated = OutcomeEstimate.objects.filter(model=model)
    assert not estimated.filter(trajectory__external_id="other agent").exists()
    assert estimated.count() == 5
    assert Failure.objects.get(evidence__0__rule="estimate").trajectory.external_id == "open0"


def test_what_is_learned_from_too_few_is_not_used_and_says_so(project: Project) -> None:
    for _ in range(6):
        make_failed(project)
    send(project, unknown("open", wrong=True))
    classify_project(project=project)
    runner.run(train_job.start(project=project, by=None))
    model = project.outcome_models.first()
    assert "6 failed, 0 successful" in model.note and not model.is_better
    assert train_job.needed(project).endswith("So far: 6 failed, 0 successful.")
    assert OutcomeEstimate.objects.get().model != model  # what was in use stays


def test_neither_outcomes_nor_decisions_nor_verdicts_after_them_are_features() -> None:
    """Else a model that looks excellent knows nothing."""
    project = make_project()
    by, rubric = make_member(project), Rubric.objects.create(project=project, version=1, text="x")
    Classifier.objects.create(project=project, check_share=1.0)
    runs = send(project, *(unknown(f"r{n}") for n in range(3)))
    runs += send(project, unknown("known") | {"outcome": {"status": "failure"}})[-1:]
    diagnose_and_draw(project, runs)

    def read_off() -> list[Example]:
        return list(train_job._examples(project, train_job.decided(project), Usual({})))

    checks.answer(trajectory=runs[0], answer="failed", by=by)
    decide(failure=Failure.objects.get(trajectory=runs[0]), by=by)
    checks.answer(trajectory=runs[1], answer="fine", by=by)
    failed, fine, known = sorted(read_off(), key=lambda item: (not item.drawn, not item.failed))
    assert (failed.failed, fine.failed, known.failed) == (True, False, True)
    assert failed.run == fine.run == known.run and (failed.drawn, known.drawn) == (True, False)
    for run in runs:
        JudgeVerdict.objects.create(
            rubric=rubric, trajectory=run, content_digest=str(run.pk)[:32], mode="x", confidence=0.9
        )
    assert all("judge" not in item.run.dense for item in read_off())
    JudgeVerdict.objects.update(at=timezone.now() - timedelta(days=1))
    judged = sorted(read_off(), key=lambda item: not item.drawn)
    assert [item.run.dense.get("judge") for item in judged] == [0.9, 0.9, None]


def test_a_training_that_was_killed_begins_again() -> None:
    project = decided_project()
    job = train_job.start(project=project, by=None)
    assert job.claim("a worker")
    next(train_job.steps(job))  # and dies
    job.refresh_from_db()
    assert jobs.retry_or_fail(job, "The worker died.") and not project.outcome_models.exists()
    runner.run(job)
    assert project.outcome_models.get().number == 1


def test_two_trainings_at_once_are_refused_by_the_database(project: Project) -> None:
    OutcomeTraining.objects.create(project=project, name="one")
    with pytest.raises(IntegrityError), transaction.atomic():
        OutcomeTraining.objects.create(project=project, name="two")


def test_it_learns_again_when_enough_decisions_are_new() -> None:
    project = decided_project(24)
    digest.run()
    assert train_job.due() == [project]  # no model yet
    OutcomeModel.objects.create(project=project, number=1, decisions=5)
    assert train_job.due() == []
    OutcomeModel.objects.update(decisions=4)
    assert train_job.due() == [project]
    train_job.start(project=project, by=None)
    assert train_job.due() == []


def test_a_person_comes_before_a_recorded_outcome(project: Project) -> None:
    make_failed(project)
    classify_project(project=project)
    decide(failure=Failure.objects.get(), by=make_member(project), state=FailureState.DISMISSED)
    assert [answer.failed for answer in train_job.decided(project).values()] == [False]
