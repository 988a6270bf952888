"""The false alarms of the outcome model in use, by random checks; too many switch it off."""

from __future__ import annotations

from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from apps.core.actions import audit
from apps.core.intervals import exact
from apps.core.models import Project
from apps.failures.models import Failure, FailureState, OutcomeCheck, OutcomeModel, Source
from apps.failures.outcomes import train_job
from apps.failures.outcomes.checks import drawn
from apps.failures.outcomes.model import FALSE_ALARMS
from apps.failures.outcomes.rate import ESTIMATE, Estimate, How
from apps.notifications.actions import notify
from apps.notifications.catalogue import Topic


def observed(project: Project, model: OutcomeModel) -> Estimate | None:
    """The share of runs without a failure that the model flags, from runs that people answered
    after it was made, in the random order in which they are asked; weighted by the inverse of their
    probability (Hájek), with Korn and Graubard's interval. None if there are none.
    """
    answered = OutcomeCheck.objects.filter(project=project, at__gt=model.made_at)
    decided = Failure.objects.filter(
        project=project, source=Source.PERSON, decided_at__gt=model.made_at
    ).exclude(state=FailureState.OPEN)
    later = {*answered.values_list("pk", flat=True), *decided.values_list("trajectory", flat=True)}
    fine = [
        check
        for run, check in drawn(project, None, "")
        if run in later and check.failed is False and check.how == How.ASKED
    ]
    if not fine:
        return None
    weight = sum(1 / check.probability for check in fine)
    flagged = sum(1 / check.probability for check in fine if ESTIMATE in check.flags)
    share, n = flagged / weight, weight**2 / sum(check.probability**-2 for check in fine)
    return Estimate(share, *exact(share * n, n), len(fine))


def watched() -> list[Project]:
    """Active projects with a model in use."""
    return [project for project in Project.objects.running() if OutcomeModel.in_use(project)]


@transaction.atomic
def watch(project: Project) -> bool:
    """Switch the model off if its false alarms are above the limit for certain, and train another.
    Only a new model that is better than none switches the estimates on again.
    """
    model = OutcomeModel.in_use(project)
    seen = observed(project, model) if model else None
    if model is None or seen is None or seen.low <= FALSE_ALARMS:
        return False
    note = (
        f"Switched off: in {seen.n} random checks of successful runs it flagged {seen.value:.0%}"
        f" [{seen.low:.0%}, {seen.high:.0%}] of them. The limit is {FALSE_ALARMS:.0%}."
    )
    rows = OutcomeModel.objects.filter(pk=model.pk, off_at=None)
    if not rows.update(off_at=timezone.now(), note=note):
        return False
    audit("outcome_model.switched_off", project=project, by=None, number=model.number)
    notify(
        topic=Topic.ESTIMATES_OFF,
        project=project,
        subject=f"Estimates of {project} were switched off: too many false alarms",
        page=reverse("failures:measures", args=[project.slug]),
        key=f"outcome_model:{model.pk}:off",
        excerpt=note,
    )
    train_job.start(project=project, by=None)  # which also withdraws the estimates
    return True
