"""The false alarms of the outcome model in use, by random checks; too many switch it off."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import compress

from django.db import transaction
from django.db.models import Exists, OuterRef
from django.urls import reverse
from django.utils import timezone

from apps.core.actions import audit
from apps.core.intervals import exact
from apps.core.models import Project
from apps.core.sequential import above
from apps.failures.models import Failure, FailureState, OutcomeCheck, OutcomeModel, Source
from apps.failures.outcomes import train_job
from apps.failures.outcomes.checks import drawn, turn_of
from apps.failures.outcomes.model import FALSE_ALARMS, OVER
from apps.failures.outcomes.rate import ESTIMATE, Estimate, effective
from apps.notifications.actions import notify
from apps.notifications.catalogue import Topic

ANSWERED = timedelta(hours=1)  # four rounds, so that a missed one is made up for


@dataclass(frozen=True)
class Alarms:
    """The false alarms of a model in random checks since it was made: their share of the runs
    without a failure, and the evidence that it has risen above the limit. `newest` are (how many,
    how many of them were flagged) that speak for that most.
    """

    share: Estimate
    evidence: float
    newest: tuple[int, int]

    @property
    def progress(self) -> float:
        """Towards the evidence that switches it off."""
        return min(1.0, self.evidence / OVER)


def observed(project: Project, model: OutcomeModel) -> Alarms | None:
    """From runs that people answered after the model was made, in the random order in which they
    are asked. The share is weighted by the inverse of the runs' probability (Hájek), with Korn and
    Graubard's interval. None if there are none.
    """
    answered = OutcomeCheck.objects.filter(project=project, at__gt=model.made_at)
    decided = Failure.objects.filter(
        project=project, source=Source.PERSON, decided_at__gt=model.made_at
    ).exclude(state=FailureState.OPEN)
    later = {*answered.values_list("pk", flat=True), *decided.values_list("trajectory", flat=True)}
    fine = [
        (check.asked, turn_of(run), check)
        for run, check in drawn(project)
        if run in later and check.failed is False and check.asked
    ]
    if not fine:
        return None
    checks = [check for _, _, check in sorted(fine, key=lambda row: row[:2])]
    flagged = [ESTIMATE in check.flags for check in checks]
    weights = [check.weight for check in checks]
    share, n = sum(compress(weights, flagged)) / sum(weights), effective(weights)
    found = above(FALSE_ALARMS, zip(flagged, (w / max(weights) for w in weights), strict=True))
    newest = flagged[found.since :]
    return Alarms(
        Estimate(share, *exact(share * n, n), len(fine)), found.value, (len(newest), sum(newest))
    )


def watched() -> list[Project]:
    """Active projects with a model in use on whose runs people have decided in the last rounds:
    only that changes what is known of its false alarms.
    """
    since, of_project = timezone.now() - ANSWERED, {"project": OuterRef("project")}
    answers = OutcomeCheck.objects.filter(at__gt=since, **of_project)
    cases = Failure.objects.filter(source=Source.PERSON, decided_at__gt=since, **of_project)
    models = OutcomeModel.objects.filter(is_better=True, project__in=Project.objects.running())
    newest = models.order_by("project_id", "-number").distinct("project_id")
    in_use = OutcomeModel.objects.filter(pk__in=newest.values("pk"), off_at=None)
    return [
        model.project
        for model in in_use.filter(Exists(answers) | Exists(cases))
        .defer("weights", "usual", "measured")
        .select_related("project")
    ]


@transaction.atomic
def watch(project: Project) -> bool:
    """Switch the model off if its false alarms have risen above the limit, and train another. Only
    a new model that is better than none switches the estimates on again. A model that keeps to the
    limit is switched off by chance after OVER checks of successful runs or more, on average.
    """
    model = OutcomeModel.in_use(project)
    seen = observed(project, model) if model else None
    if model is None or seen is None or seen.evidence < OVER:
        return False
    checks, flagged = seen.newest
    note = (
        f"Switched off: in the newest {checks} random checks of successful runs it flagged"
        f" {flagged}. The limit is {FALSE_ALARMS:.0%}."
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
