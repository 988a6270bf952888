"""A model with too many false alarms among random checks is switched off, and says so."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from apps.core import runner
from apps.core.models import AuditEvent, Project
from apps.failures.actions.decisions import decide
from apps.failures.actions.diagnose import classify_project
from apps.failures.models import Classifier, Failure, FailureState, OutcomeEstimate, OutcomeModel
from apps.failures.outcomes import alarms, checks, train_job
from apps.failures.outcomes.model import OVER
from apps.notifications.models import Notification
from apps.trajectories.models import Trajectory
from tests.factories import key_headers, make_member, make_project
from tests.failures.outcomes.test_estimates import estimating, send, unknown

pytestmark = pytest.mark.django_db


def checked(flagged: int, fine: int) -> Project:
    """A project with a model in use, and random checks of runs that all went well, the flagged ones
    evenly among them.
    """
    project = make_project()
    Classifier.objects.create(project=project, check_share=1.0)
    estimating(project)
    every = fine // flagged
    send(project, *(unknown(f"r{at}", wrong=at % every == 0) for at in range(every * flagged)))
    classify_project(project=project)
    by = make_member(project)
    for run in Trajectory.objects.filter(project=project).order_by("pk"):
        checks.answer(trajectory=run, answer="fine", by=by)
    return project


def test_false_alarms_above_the_limit_switch_the_estimates_off() -> None:
    project = checked(20, 40)
    seen = alarms.observed(project, OutcomeModel.objects.get())
    assert seen and (seen.share.value, seen.share.n) == (0.5, 40)
    assert seen.evidence > OVER
    assert OutcomeEstimate.objects.exists() and Failure.objects.count() == 20
    assert alarms.watched() == [project] and alarms.watch(project)
    assert not alarms.watch(project) and alarms.watched() == []
    assert OutcomeModel.in_use(project) is None
    assert {item.topic for item in Notification.objects.all()} == {"estimates.off"}
    assert AuditEvent.objects.filter(action="outcome_model.switched_off").count() == 1
    runner.run(project.outcometrainings.get())  # the job that was queued withdraws the estimates
    assert not OutcomeEstimate.objects.exists() and not Failure.objects.standing().exists()
    assert OutcomeModel.objects.count() == 2 and OutcomeModel.in_use(project) is None
    client = Client()
    client.force_login(make_member(project))
    page = client.get(reverse("failures:measures", args=[project.slug])).content.decode()
    assert "random checks of successful runs it flagged 20. The limit is 10%." in page
    assert "There are no estimates" in page and "So far: 0 failed, 40 successful." in page
    said = client.get(reverse("failures_api:outcomes"), **key_headers(project)).json()
    assert said["estimates"] is None
    better = estimating(project)
    assert OutcomeModel.in_use(project) == better  # only a new model switches them on again


def test_false_alarms_that_may_be_chance_switch_nothing_off() -> None:
    project = checked(4, 32)
    seen = alarms.observed(project, OutcomeModel.objects.get())
    assert seen and seen.share.value > 0.1 and not alarms.watch(project)
    page_of = Client()
    page_of.force_login(make_member(project))
    page = page_of.get(reverse("failures:measures", args=[project.slug])).content.decode()
    assert "of 32 successful runs" in " ".join(page.split())


@pytest.mark.proof
def test_what_people_choose_in_triage_is_no_random_check() -> None:
    """They look at what is flagged; what was answered before the model tells nothing of it."""
    project = make_project()
    Classifier.objects.create(project=project, check_share=1.0)
    model = estimating(project)
    send(project, *(unknown(f"r{at}", wrong=at < 20) for at in range(40)))
    classify_project(project=project)
    for failure in Failure.objects.all():
        decide(failure=failure, by=make_member(project), state=FailureState.DISMISSED)
    seen = alarms.observed(project, model)
    assert seen is None and not alarms.watch(project)
    assert train_job.decided(project)
    for run in Trajectory.objects.filter(project=project, failure=None):
        checks.answer(trajectory=run, answer="fine", by=make_member(project))
    assert alarms.observed(project, estimating(project)) is None
