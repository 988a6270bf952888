"""What waits for whom: the work that only a person can do, one's own first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Count, Max
from django.urls import reverse
from django.utils import timezone

from apps.automation.models import FlowRun, RunState
from apps.core.models import Membership, Project, Role
from apps.evals.models import EvalRun
from apps.failures.models import Classification, Failure
from apps.failures.outcomes import checks
from apps.failures.prompts import undecided
from apps.failures.replies import undecided as undecided_forms
from apps.promotion.models import GateReport, Verdict
from apps.promotion.policies import PRODUCTION
from apps.reviews.models import Judgement, ReviewItem, RewardReview
from apps.reviews.reservations import needed_of
from apps.training.models import PromptSearch, TrainingRun
from apps.trajectories.models import Arrival, Trace

RECENT = timedelta(days=7)
EACH = 5  # single things of a kind that are named


@dataclass(frozen=True)
class Waiting:
    """`count` things to do at `url`. `who` is “you”, a person, or the least role that can do it;
    `failed`: something broke.
    """

    title: str
    count: int
    who: str
    url: str
    detail: str = ""
    failed: bool = False

    @property
    def yours(self) -> bool:
        return self.who == "you"


def waiting_for(project: Project, member: Membership) -> list[Waiting]:
    """The person's own work first, then what they could do as well as others, then that of others;
    failures first in each.
    """
    found = [*_triage(project, member), *_rules_and_checks(project), *_reviews(project, member)]
    found += [*_flows(project), *_reports(project)]
    found += [*_failed_jobs(project, member), *_broken(project, member)]
    able = {role.value for role in member.roles}
    return sorted(found, key=lambda item: (not item.yours, item.who not in able, not item.failed))


def _triage(project: Project, member: Membership) -> Iterator[Waiting]:
    open_cases = Failure.objects.filter(project=project).waiting().order_by()
    counted = dict(open_cases.values_list("assigned_to__username").annotate(n=Count("*")))
    url = reverse("failures:triage", args=[project.slug])
    for name, n in sorted(counted.items(), key=lambda item: -item[1])[: EACH + 2]:
        if name == member.user.get_username():
            yield Waiting("Failures assigned to you", n, "you", f"{url}?mine=1")
        elif name:
            yield Waiting(
                "Failures to triage", n, name, reverse("failures:list", args=[project.slug])
            )
        else:
            yield Waiting("Failures to triage", n, "reviewer", url, "unassigned")


def _rules_and_checks(project: Project) -> Iterator[Waiting]:
    if rules := undecided(project):
        url = reverse("failures:policy", args=[project.slug])
        yield Waiting(
            "Policy rules to review",
            rules,
            "reviewer",
            url,
            "runs that break a confirmed one are failures",
        )
    if forms := undecided_forms(project):
        yield Waiting(
            "Tool replies to review",
            forms,
            "reviewer",
            reverse("failures:replies", args=[project.slug]),
            "those of a confirmed form are tool errors",
        )
    if drawn := checks.waiting(project).count():
        url = reverse("failures:checks", args=[project.slug])
        yield Waiting(
            "Runs to check", drawn, "reviewer", url, "drawn at random, for the true failure rate"
        )


def _reviews(project: Project, member: Membership) -> Iterator[Waiting]:
    """Samples that the person can still judge in the newest review of each verifier."""
    reviews = (
        RewardReview.objects.filter(project=project)
        .order_by("verifier_id", "-created_at", "-pk")
        .select_related("verifier")
    )
    newest = list(reviews.exclude(scope__has_key="training").distinct("verifier_id")[:20])
    newest += reviews.filter(scope__has_key="training").order_by("-created_at")[:20]
    if not newest:
        return
    items = ReviewItem.objects.filter(review__in=newest, ruling=None).order_by()
    said = dict(items.annotate(n=Count("judgements")).values_list("pk", "n"))
    own = set(
        Judgement.objects.filter(by=member.user, item__review__in=newest).values_list(
            "item", flat=True
        )
    )
    half = dict(
        Judgement.objects.filter(by=member.user, item__review__in=newest, agrees=None)
        .values_list("item__review")
        .annotate(n=Count("*"))
    )
    in_review: dict[int, list[int]] = {}
    for pk, review in items.values_list("pk", "review"):
        in_review.setdefault(review, []).append(pk)
    for review in newest:
        unfinished = [
            pk for pk in in_review.get(review.pk, ()) if said.get(pk, 0) < needed_of(review)
        ]
        free = sum(pk not in own for pk in unfinished) + half.get(review.pk, 0)
        url = reverse("reviews:detail", args=[project.slug, review.pk])
        name = f"of {review.verifier}"
        if free and member.may(Role.REVIEWER):
            begun = own & set(in_review.get(review.pk, ()))
            yield Waiting(
                "Samples to judge",
                free,
                "you" if begun or half.get(review.pk) else "reviewer",
                url,
                name,
            )
        elif unfinished:
            yield Waiting(
                "Samples that need another reviewer", len(unfinished), "reviewer", url, name
            )


def _flows(project: Project) -> Iterator[Waiting]:
    runs = FlowRun.objects.filter(project=project, state=RunState.WAITING).select_related(
        "version__flow"
    )
    for run in runs[:EACH]:
        url = reverse("automation:run", args=[project.slug, run.pk])
        yield Waiting(f"Flow “{run.version.flow}” needs a decision", 1, "engineer", url, run.note)


def _reports(project: Project) -> Iterator[Waiting]:
    """Reports that say promote against what is live, of versions that are not live anywhere."""
    live = project.channels.current().filter(name=PRODUCTION).values("current")
    reports = GateReport.objects.filter(
        project=project, verdict=Verdict.PROMOTE, promotions=None, baseline__model_version__in=live
    ).select_related("candidate__model_version")
    for report in reports[:EACH]:
        url = reverse("promotion:report", args=[project.slug, report.pk])
        yield Waiting(
            "Promotion to decide",
            1,
            "engineer",
            url,
            f"{report.candidate.model_version} passed the gate",
        )


def _failed_jobs(project: Project, member: Membership) -> Iterator[Waiting]:
    """Those of one name are one, and done with once a later one succeeded."""
    for model, page in JOB_PAGES.items():
        recent = model.objects.filter(project=project, finished_at__gte=timezone.now() - RECENT)
        names = (
            recent.filter(state="failed")
            .order_by()
            .values_list("name")
            .annotate(n=Count("*"), at=Max("finished_at"))
        )
        for name, n, at in names.order_by("-at")[:EACH]:
            if recent.filter(name=name, state="succeeded", finished_at__gt=at).exists():
                continue
            job = (
                recent.filter(name=name, state="failed")
                .select_related("created_by")
                .order_by("-finished_at")[0]
            )
            who = (
                "you" if job.created_by_id == member.user_id else str(job.created_by or "engineer")
            )
            # The summary of an evaluation on the hold-out may quote a held-out task: it is shown
            # where its samples are opened.
            hidden = getattr(job, "split", "") == "holdout"
            detail = "open its samples to see why" if hidden else job.error
            url = reverse(page, args=[project.slug, job.pk])
            yield Waiting(f"{job.name} failed", n, who, url, detail[:300], failed=True)


JOB_PAGES: dict[Any, str] = {
    TrainingRun: "training:detail",
    EvalRun: "evals:run",
    PromptSearch: "training:search",
}


def _broken(project: Project, member: Membership) -> Iterator[Waiting]:
    for hook in project.webhooks.exclude(disabled_reason="") if member.may(Role.OPERATOR) else ():
        url = reverse("webhooks:detail", args=[project.slug, hook.pk])
        yield Waiting(
            f"Webhook {hook} was disabled", 1, "operator", url, hook.disabled_reason, failed=True
        )
    lost = sum(
        kind.objects.set_aside().filter(project=project).count() for kind in (Arrival, Trace)
    )
    if lost:
        url = reverse("trajectories:arrivals", args=[project.slug])
        yield Waiting(
            "Batches or traces that could not be indexed", lost, "engineer", url, failed=True
        )
    job = Classification.objects.filter(project=project).first()
    if job and job.state == "failed":
        url = reverse("failures:list", args=[project.slug])
        yield Waiting(
            "Failure classification failed", 1, "engineer", url, job.error[:300], failed=True
        )
