"""Checks by people: pick the next run, record or undo an answer, and estimate from the answers how
all traffic does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import md5
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import CharField, Exists, F, OuterRef, Q
from django.db.models.functions import MD5, Cast
from django.utils import timezone

from apps.core.actions import audit
from apps.core.models import Project
from apps.failures import rates
from apps.failures.actions.decisions import Refused
from apps.failures.actions.diagnose import diagnose
from apps.failures.classify_job import classify_again
from apps.failures.judge import share
from apps.failures.models import (
    Classifier,
    Failure,
    FailureState,
    JudgeVerdict,
    OutcomeCheck,
    OutcomeEstimate,
    Source,
)
from apps.failures.outcomes.estimates import SHARE, Estimator
from apps.failures.outcomes.rate import (
    ESTIMATE,
    RULES,
    Check,
    Estimate,
    Flags,
    How,
    failure_rate,
    recall,
    strata,
)
from apps.trajectories.models import Trajectory, with_content

Answer = OutcomeCheck.Answer
LAYERS = (RULES, ESTIMATE, "judge")
NEAR = 20  # runs on each side of the threshold among which the most informative one is looked for


@dataclass(frozen=True)
class Next:
    """The run to ask about, and why: drawn at random, or because its answer teaches the model
    most.
    """

    trajectory: UUID
    random: bool


def next_check(project: Project) -> Next | None:
    """The next run to ask about: drawn runs without an answer first, then the run whose estimate is
    nearest to the threshold.

    Drawn runs come in a random but fixed order, so that the answered ones are a random sample of
    all drawn runs.
    """
    by_number = MD5(Cast("trajectory_id", CharField()))
    drawn = waiting(project).order_by(by_number).values_list("trajectory_id", flat=True).first()
    if drawn is not None:
        return Next(drawn, True)
    if (estimator := Estimator.of(project)) is None:
        return None
    threshold = estimator.weights.threshold
    open_runs = OutcomeEstimate.objects.filter(
        ~Exists(OutcomeCheck.objects.filter(trajectory=OuterRef("pk"))),
        ~Exists(Failure.objects.filter(trajectory=OuterRef("pk"))),
        project=project,
    ).values_list("score", "pk")
    below = open_runs.filter(score__lt=threshold).order_by("-score", "-pk")[:NEAR]
    above = open_runs.filter(score__gte=threshold).order_by("score", "-pk")[:NEAR]
    found = min([*below, *above], key=lambda row: abs(row[0] - threshold), default=None)
    return Next(found[1], False) if found else None


def waiting(project: Project) -> Any:
    """Drawn runs that have no answer and no decision in triage yet."""
    decided = Failure.objects.filter(trajectory=OuterRef("pk"), source=Source.PERSON).exclude(
        state=FailureState.OPEN
    )
    return OutcomeCheck.objects.filter(
        ~Exists(decided), project=project, answer="", probability__isnull=False
    )


@transaction.atomic
def answer(*, trajectory: Trajectory, answer: str, by: Any) -> OutcomeCheck:
    """Record a person's answer for a run. A failed run goes to the inbox, where its mode is
    decided. Raises Refused.
    """
    if answer not in Answer.values:
        raise Refused("Answer failed, fine or unsure.")
    check, _ = OutcomeCheck.objects.select_for_update().get_or_create(
        trajectory=trajectory, defaults={"project_id": trajectory.project_id}
    )
    if check.answer and check.by_id != getattr(by, "pk", None):
        raise Refused(f"{check.by or 'Somebody'} has already answered: {check.answer}.")
    if not check.answer:  # the answer changes what the layers say: it teaches the model
        check.layers = sorted(layers_of(trajectory))
    check.answer, check.by, check.at = answer, by, timezone.now()
    check.save(update_fields=["answer", "by", "at", "layers"])
    audit("outcome.checked", project=trajectory.project, by=by, target=trajectory, answer=answer)
    _diagnosed_again(trajectory)
    return check


@transaction.atomic
def undo(*, project: Project, by: Any) -> Trajectory | None:
    """Undo the person's last answer in the project. Returns its trajectory, or None if there was no
    answer.
    """
    rows = (
        OutcomeCheck.objects.select_for_update(of=("self",))
        .filter(project=project, by=by)
        .exclude(answer="")
    )
    check = rows.select_related("trajectory").order_by("-at").first()
    if check is None:
        return None
    row = check.trajectory
    if check.probability is None:
        check.delete()
    else:
        OutcomeCheck.objects.filter(pk=check.pk).update(answer="", by=None, at=None, layers=[])
    audit("outcome.unchecked", project=project, by=by, target=row)
    _diagnosed_again(row)
    return row


def in_words(trajectory: Trajectory) -> str:
    """What the rules, the estimate and the judge say about a run, without people's answers."""
    failure = Failure.objects.filter(trajectory=trajectory).select_related("mode").first()
    flags = layers_of(trajectory)
    by = " and ".join(f"the {layer}" for layer in LAYERS if layer in flags)
    said = (
        f"{by[0].upper()}{by[1:]} flagged it as “{failure.mode}”."
        if failure and by
        else "Nothing had flagged it."
    )
    estimate = OutcomeEstimate.objects.filter(trajectory=trajectory).select_related("model").first()
    return f"{said} {estimate.in_words()}" if estimate else said


def layers_of(trajectory: Trajectory) -> Flags:
    """The layers that flag a run now."""
    rows = Failure.objects.filter(trajectory=trajectory).annotate(estimated=IS_ESTIMATE)
    flags = rows.values_list("rule_mode", "judge_mode", "estimated").first()
    return flags_of(*flags) if flags else frozenset()


def _diagnosed_again(trajectory: Trajectory) -> None:
    project = Project.objects.get(pk=trajectory.project_id)
    diagnose(project, with_content([Trajectory.objects.get(pk=trajectory.pk)]))


@transaction.atomic
def set_share(*, project: Project, share: float, by: Any) -> None:
    """Set the share of runs that are drawn for a check. If it is raised, more of the stored runs
    are drawn too. Raises Refused.
    """
    if not 0 <= share <= 1:
        raise Refused("The share must be between 0% and 100%.")
    is_raised = share > share_of(project)
    Classifier.objects.update_or_create(project=project, defaults={"check_share": share})
    audit("outcome.share_set", project=project, by=by, percent=round(100 * share, 2))
    if is_raised:
        classify_again(project, by)


def share_of(project: Project) -> float:
    return next(
        iter(Classifier.objects.filter(project=project).values_list("check_share", flat=True)),
        SHARE,
    )


# Estimates for all traffic, from the answers


@dataclass(frozen=True)
class Traffic:
    """All runs since some day: how many failed according to the checks, and how many of the
    failures each layer flags. `rate` and recalls are None if nothing is known. They rest on the
    checks and on `verdicts` of the model `judge` on its random share.
    """

    runs: int
    drawn: int
    answered: int
    waiting: int
    verdicts: int
    judge: str
    rate: Estimate | None
    recalls: list[tuple[str, Estimate | None]]
    ran: frozenset[str]  # layers that looked at any run: the others have no recall

    @property
    def rests_on(self) -> str:
        checks = f"{self.answered:,} check{'' if self.answered == 1 else 's'}"
        if not self.verdicts:
            return checks
        return f"{checks} and {self.verdicts:,} verdicts of {self.judge}"


def traffic(project: Project, since: datetime | None = None, version: str = "") -> Traffic:
    """Estimate the failure rate and the layers' recall from drawn runs only, each weighted by its
    sampling probability; of one agent version if given.

    A decision in triage also answers a drawn run, but before its turn it represents no other run.
    """
    flagged = _since(Failure.objects.filter(project=project), since).exclude(rule_mode="")
    by_rules = (flagged.filter(agent_version=version) if version else flagged).count()
    runs = max(rates.total(project, since, version), by_rules)
    asked, judged = drawn(project, since, version), share.reviewed(project, since, version)
    checks = [judged.on(run, check) for run, check in asked]
    layers = strata({True: by_rules, False: runs - by_rules}, checks, judged.size)
    ran = _layers_that_ran(project)
    return Traffic(
        runs,
        len(checks),
        sum(check.failed is not None for check in checks),
        waiting(project).count(),
        len(judged.scores),
        judged.judge,
        failure_rate(layers),
        [(layer, recall(layers, layer) if layer in ran else None) for layer in LAYERS],
        ran,
    )


def _layers_that_ran(project: Project) -> frozenset[str]:
    ran = {
        RULES: Classifier.objects.filter(project=project).exists(),
        ESTIMATE: OutcomeEstimate.objects.filter(project=project).exists(),
        "judge": JudgeVerdict.objects.filter(rubric__project=project, error="").exists(),
    }
    return frozenset(layer for layer, has_run in ran.items() if has_run)


def _since(rows: Any, since: datetime | None) -> Any:
    return rows.filter(trajectory_id__gte=rates.floor_of(rates.midnight(since))) if since else rows


IS_ESTIMATE = Q(rule_mode="") & Q(evidence__contains=[{"rule": "estimate"}])


def flags_of(rule: str, judge: str, estimated: bool) -> Flags:
    """The layers that flag a failure; empty if only a person did. The estimate counts only where no
    rule found anything.
    """
    said = {"rules": bool(rule), "estimate": estimated, "judge": bool(judge)}
    return frozenset(layer for layer, flagged in said.items() if flagged)


def drawn(project: Project, since: datetime | None, version: str) -> list[tuple[UUID, Check]]:
    rows = _since(OutcomeCheck.objects.filter(project=project, probability__gt=0), since)
    if version:
        rows = rows.filter(trajectory__agent_version=version)
    columns = ("trajectory_id", "probability", "by_rules", "drawn_at", "answer", "at", "layers")
    checks = {
        row["trajectory_id"]: _as_check(row)
        for row in rows.order_by("trajectory_id").values(*columns, **FAILURE).iterator()
    }
    last = max(
        (turn_of(run) for run, check in checks.items() if check.how == How.ASKED), default=""
    )
    return [
        (run, replace(check, how=How.ASKED))
        if check.how == How.CHOSEN and turn_of(run) < last
        else (run, check)
        for run, check in checks.items()
    ]


FAILURE = {
    name: F(f"trajectory__failure__{name}")
    for name in ("rule_mode", "judge_mode", "evidence", "source", "state")
}


def _as_check(row: dict[str, Any]) -> Check:
    """A check's answer takes precedence over a decision in triage."""
    answer, evidence = row["answer"], row["evidence"] or []
    estimated = not row["rule_mode"] and any(item.get("rule") == ESTIMATE for item in evidence)
    decided = row["source"] == Source.PERSON and row["state"] != FailureState.OPEN
    is_early = bool(row["at"] and row["drawn_at"] and row["at"] < row["drawn_at"])
    how = (
        How.CHOSEN if is_early or (decided and not answer) else How.ASKED if answer else How.WAITING
    )
    failed = None
    if answer in (Answer.FAILED, Answer.FINE):
        failed = answer == Answer.FAILED
    elif decided:
        failed = row["state"] == FailureState.CONFIRMED
    now = flags_of(row["rule_mode"] or "", row["judge_mode"] or "", estimated)
    flags = frozenset(row["layers"]) if answer else now
    return Check(row["by_rules"], row["probability"], failed, how, flags)


def turn_of(run: UUID) -> str:
    """The place of a drawn run in the random order in which people are asked: as `next_check` sorts
    them.
    """
    return md5(str(run).encode(), usedforsecurity=False).hexdigest()
