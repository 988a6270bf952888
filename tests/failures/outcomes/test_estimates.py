"""Estimates beside the rules' diagnoses, what they put into the inbox, who is checked, and learning
as a job.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.db import IntegrityError, transaction

from apps.core import jobs, runner
from apps.core.models import JobState, Project
from apps.failures import reclassify
from apps.failures.actions.decisions import decide
from apps.failures.actions.diagnose import as_input, classify_project, diagnose
from apps.failures.models import (
    Classifier,
    Failure,
    FailureState,
    OutcomeCheck,
    OutcomeEstimate,
    OutcomeModel,
    OutcomeTraining,
)
from apps.failures.outcomes import estimates, train_job
from apps.failures.outcomes.estimates import Estimator, agent_of, facts_of
from apps.failures.outcomes.model import PRIOR
from apps.failures.rules.reading import read
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


@pytest.fixture
def project() -> Project:
    return make_project()


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
    assert (
        any("same thing again" in item["text"] for item in failure.evidence)
        and failure.blamed_message is not None
    )
    assert failure.rule_mode == ""  # no rule saw a fault
    low, high = OutcomeEstimate.objects.order_by("probability")
    assert (
        high.reasons
        and high.trajectory_id == failure.trajectory_id
        and low.probability < 0.2
        and not low.reasons
    )


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


def decided_project() -> Project:
    """Enough decisions to learn from: closing fails here."""
    project = make_project()
    requests = ["alpha", "beta", "gamma", "delta", "omega", "sigma", "kappa"]
    rows = [
        unknown(f"r{n}", wrong=n % 2 == 0)
        | {
            "metadata": {"task_id": requests[n % 7]},
            "outcome": {"status": ("success", "failure")[n % 2]},
        }
        for n in range(28)
    ]
    send(project, *rows)
    return project


def test_a_model_is_made_of_decisions_and_estimates_from_then_on() -> None:
    project = decided_project()
    job = train_job.start(project=project, by=make_member(project))
    assert train_job.start(project=project, by=None) == job  # one at a time
    runner.run(job)
    model = project.outcome_models.get()
    assert model.measured["n"] == 28 and model.measured["failed"] == 14 and model.decisions == 28
    job.refresh_from_db()
    assert job.state == JobState.SUCCEEDED and job.result["number"] == 1
    send(project, unknown("new"))
    diagnose(project, with_content(list(project.trajectories.filter(external_id="new"))))
    assert OutcomeEstimate.objects.get().model == model


def test_runs_of_an_agent_that_nobody_decided_on_keep_the_shipped_weights() -> None:
    project = decided_project()
    runner.run(train_job.start(project=project, by=None))
    call = tool_message({"tool": "orders.find", "args": {"id": 1}})
    send(
        project,
        unknown("same"),
        unknown("other") | {"agent": {"name": "shop"}, "messages": [ASK, call]},
    )
    rows = with_content(list(project.trajectories.filter(external_id__in=["same", "other"])))
    diagnose(project, rows)
    estimator = Estimator.of(project)
    shipped = replace(estimator, weights=PRIOR)
    for item in rows:
        run = read(as_input(item))
        made, of_prior = (
            by.of_run(run, facts_of(item), agent_of(item, run)) for by in (estimator, shipped)
        )
        stored = OutcomeEstimate.objects.get(trajectory=item).probability
        assert stored == pytest.approx(made.probability)
        assert (made.probability == of_prior.probability) is (item.external_id == "other")


def test_a_new_model_estimates_the_open_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    project = decided_project()
    open_runs = send(project, *(unknown(f"open{n}") for n in range(5)))[-5:]
    diagnose(project, open_runs)
    assert set(OutcomeEstimate.objects.values_list("model", flat=True)) == {None}
    monkeypatch.setattr(train_job, "CHUNK", 2)
    job = train_job.start(project=project, by=None)
    assert job.total == 5 and job.claim("a worker")
    going = train_job.steps(job)
    for _ in range(3):
        job.cursor = next(going).cursor  # the model, then two runs; and dies
    assert OutcomeEstimate.objects.filter(model=None).count() == 3
    job.save()
    assert jobs.retry_or_fail(job, "The worker died.")
    runner.run(job)
    job.refresh_from_db()
    assert job.result["estimated_again"] == 5 and project.outcome_models.count() == 1
    assert set(OutcomeEstimate.objects.values_list("model", flat=True)) == {
        project.outcome_models.get().pk
    }


def test_one_kind_of_decision_is_said_to_be_too_little(project: Project) -> None:
    for _ in range(6):
        make_failed(project)
    job = train_job.start(project=project, by=None)
    runner.run(job)
    model = project.outcome_models.get()
    assert "are needed" in model.note and not model.measured and model.weights["dense"]


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
    project = decided_project()
    Classifier.objects.create(project=project)
    assert train_job.due() == [project]  # no model yet
    OutcomeModel.objects.create(project=project, number=1, weights={}, decisions=10)
    assert train_job.due() == []
    OutcomeModel.objects.update(decisions=8)
    assert train_job.due() == [project]
    train_job.start(project=project, by=None)
    assert train_job.due() == []


def test_a_person_comes_before_a_recorded_outcome(project: Project) -> None:
    make_failed(project)
    classify_project(project=project)
    decide(failure=Failure.objects.get(), by=make_member(project), state=FailureState.DISMISSED)
    assert list(train_job.decided(project).values()) == [False]
