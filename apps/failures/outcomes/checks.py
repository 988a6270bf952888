"""Checks by people: pick the next run, record or undo an answer, and estimate from the answers how all traffic does."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import CharField, Count, Exists, OuterRef, Q
from django.db.models.functions import MD5, Cast
from django.utils import timezone

from apps.core.actions import audit
from apps.core.models import Project
from apps.failures import rates
from apps.failures.actions.decisions import Refused
from apps.failures.actions.diagnose import diagnose
from apps.failures.actions.policy import classify_again
from apps.failures.models import Classifier, Failure, FailureState, OutcomeCheck, OutcomeEstimate, Source
from apps.failures.outcomes.estimates import SHARE, Estimator
from apps.failures.outcomes.rate import Check, Estimate, Flags, How, failure_rate, recall, strata
from apps.trajectories.models import Trajectory, with_content

Answer = OutcomeCheck.Answer
LAYERS = ("rules", "estimate", "judge")
NEAR = 20  # runs on each side of the threshold among which the most informative one is looked for


@dataclass(frozen=True)
class Next:
    """The run to ask about, and why: drawn at random, or because its answer teaches the model most."""

    trajectory: UUID
    random: bool


def next_check(project: Project) -> Next | None:
    """The next run to ask about: drawn runs without an answer first, then the run whose estimate is nearest to the
    threshold.

    Drawn runs come in a random but fixed order, so that the answered ones are a random sample of all drawn runs.
    """
    by_number = MD5(Cast("trajectory_id", CharField()))
    drawn = waiting(project).order_by(by_number).values_list("trajectory_id", flat=True).first()
    if drawn is not None:
        return Next(drawn, True)
    threshold = Estimator.of(project).weights.threshold
    open_runs = OutcomeEstimate.objects.filter(
        ~Exists(OutcomeCheck.objects.filter(trajectory=OuterRef("pk"))),
        ~Exists(Failure.objects.filter(trajectory=OuterRef("pk"))),
        project=project,
    ).values_list("probability", "pk")
    below = open_runs.filter(probability__lt=threshold).order_by("-probability", "-pk")[:NEAR]
    above = open_runs.filter(probability__gte=threshold).order_by("probability", "-pk")[:NEAR]
    found = min([*below, *above], key=lambda row: abs(row[0] - threshold), default=None)
    return Next(found[1], False) if found else None


def waiting(project: Project) -> Any:
    """Drawn runs that have no answer and no decision in triage yet."""
    decided = Failure.objects.filter(trajectory=OuterRef("pk"), source=Source.PERSON).exclude(state=FailureState.OPEN)
    return OutcomeCheck.objects.filter(~Exists(decided), project=project, answer="", probability__isnull=False)


@transaction.atomic
def answer(*, trajectory: Trajectory, answer: str, by: Any) -> OutcomeCheck:
    """Record a person's answer for a run. A failed run goes to the inbox, where its mode is decided. Raises Refused."""
    if answer not in Answer.values:
        raise Refused("Answer failed, fine or unsure.")
    check, _ = OutcomeCheck.objects.select_for_update().get_or_create(
        trajectory=trajectory, defaults={"project_id": trajectory.project_id}
    )
    if check.answer and check.by_id != getattr(by, "pk", None):
        raise Refused(f"{check.by or 'Somebody'} has already answered: {check.answer}.")
    check.answer, check.by, check.at = answer, by, timezone.now()
    check.save(update_fields=["answer", "by", "at"])
    audit("outcome.checked", project=trajectory.project, by=by, target=trajectory, answer=answer)
    _diagnosed_again(trajectory)
    return check


@transaction.atomic
def undo(*, project: Project, by: Any) -> Trajectory | None:
    """Undo the person's last answer in the project. Returns its trajectory, or None if there was no answer."""
    rows = OutcomeCheck.objects.select_for_update(of=("self",)).filter(project=project, by=by).exclude(answer="")
    check = rows.select_related("trajectory").order_by("-at").first()
    if check is None:
        return None
    row = check.trajectory
    if check.probability is None:
        check.delete()
    else:
        OutcomeCheck.objects.filter(pk=check.pk).update(answer="", by=None, at=None)
    audit("outcome.unchecked", project=project, by=by, target=row)
    _diagnosed_again(row)
    return row


def in_words(trajectory: Trajectory) -> str:
    """What the rules, the estimate and the judge say about a run, without people's answers."""
    failure = (
        Failure.objects.filter(trajectory=trajectory).annotate(estimated=IS_ESTIMATE).select_related("mode").first()
    )
    flags = flags_of(failure.rule_mode, failure.judge_mode, failure.estimated) if failure else frozenset()
    by = " and ".join(f"the {layer}" for layer in LAYERS if layer in flags)
    said = f"{by[0].upper()}{by[1:]} flagged it as “{failure.mode}”." if failure and by else "Nothing had flagged it."
    estimate = OutcomeEstimate.objects.filter(trajectory=trajectory).values_list("probability", flat=True).first()
    return said if estimate is None else f"{said} Estimated probability of failure: {estimate:.0%}."


def _diagnosed_again(trajectory: Trajectory) -> None:
    project = Project.objects.get(pk=trajectory.project_id)
    diagnose(project, with_content([Trajectory.objects.get(pk=trajectory.pk)]))


@transaction.atomic
def set_share(*, project: Project, share: float, by: Any) -> None:
    """Set the share of runs that are drawn for a check. If it is raised, more of the stored runs are drawn too. Raises Refused."""
    if not 0 <= share <= 1:
        raise Refused("The share must be between 0% and 100%.")
    is_raised = share > share_of(project)
    Classifier.objects.update_or_create(project=project, defaults={"check_share": share})
    audit("outcome.share_set", project=project, by=by, percent=round(100 * share, 2))
    if is_raised:
        classify_again(project, by)


def share_of(project: Project) -> float:
    return next(iter(Classifier.objects.filter(project=project).values_list("check_share", flat=True)), SHARE)


# Estimates for all traffic, from the answers


@dataclass(frozen=True)
class Traffic:
    """All runs since some day: how many failed according to the checks, and how many of the failures each layer flags.
    `rate` and recalls are None if nothing is known.
    """

    runs: int
    drawn: int
    answered: int
    waiting: int
    rate: Estimate | None
    recalls: list[tuple[str, Estimate | None]]


def traffic(project: Project, since: datetime | None = None) -> Traffic:
    """Estimate the failure rate and the layers' recall from drawn runs only, each weighted by its sampling probability.

    A decision in triage also answers a drawn run, but represents no other run.
    """
    flagged = _flagged(project, since)
    runs = max(rates.total(project, since), sum(flagged.values()))
    kinds = [*flagged.items(), (frozenset[str](), runs - sum(flagged.values()))]
    checks = _drawn(project, since)
    layers = strata(kinds, checks)
    return Traffic(
        runs,
        len(checks),
        sum(check.failed is not None for check in checks),
        waiting(project).count(),
        failure_rate(layers),
        [(layer, recall(layers, layer)) for layer in LAYERS],
    )


def _failures(project: Project, since: datetime | None) -> Any:
    """Everything that any layer flagged, including dismissed failures."""
    rows = Failure.objects.filter(project=project).order_by()
    return rows.filter(trajectory_id__gte=rates.floor_of(rates.midnight(since))) if since else rows


IS_ESTIMATE = Q(rule_mode="") & Q(evidence__contains=[{"rule": "estimate"}])


def _flagged(project: Project, since: datetime | None) -> dict[Flags, int]:
    found: dict[Flags, int] = {}
    rows = _failures(project, since).annotate(estimated=IS_ESTIMATE).values_list("rule_mode", "judge_mode", "estimated")
    for rule, judge, estimated, n in rows.annotate(n=Count("*")):
        if flags := flags_of(rule, judge, estimated):
            found[flags] = found.get(flags, 0) + n
    return found


def flags_of(rule: str, judge: str, estimated: bool) -> Flags:
    """The layers that flag a failure; empty if only a person did. The estimate counts only where no rule found
    anything.
    """
    said = {"rules": bool(rule), "estimate": estimated, "judge": bool(judge)}
    return frozenset(layer for layer, flagged in said.items() if flagged)


def _drawn(project: Project, since: datetime | None) -> list[Check]:
    rows = OutcomeCheck.objects.filter(project=project, probability__isnull=False)
    if since:
        rows = rows.filter(trajectory_id__gte=rates.floor_of(rates.midnight(since)))
    failure = "trajectory__failure__"
    names = [f"{failure}{name}" for name in ("rule_mode", "judge_mode", "evidence", "source", "state")]
    checks = []
    for chance, said, rule, judge, evidence, source, state in rows.values_list(
        "probability", "answer", *names
    ).iterator():
        estimated = not rule and any(item.get("rule") == "estimate" for item in evidence or [])
        decided = source == Source.PERSON and state != FailureState.OPEN
        checks.append(
            Check(
                flags_of(rule or "", judge or "", estimated), chance,
                *_answer(said, state == FailureState.CONFIRMED if decided else None),
            )
        )  # fmt: skip
    return checks


def _answer(said: str, decided: bool | None) -> tuple[bool | None, How]:
    """(whether a drawn run failed, how that is known): its check takes precedence over a decision in triage."""
    if said in (Answer.FAILED, Answer.FINE):
        return said == Answer.FAILED, How.ASKED
    if decided is not None:
        return decided, How.ASKED if said else How.CHOSEN
    return None, How.ASKED if said else How.WAITING
