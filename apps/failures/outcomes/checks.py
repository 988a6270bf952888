"""Checks by people: pick the next run, record or undo an answer, and estimate from the answers how
all traffic does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import md5
from itertools import accumulate
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import CharField, Count, Exists, F, Min, OuterRef, Q, Sum
from django.db.models.functions import MD5, Cast
from django.utils import timezone

from apps.core.actions import audit
from apps.core.models import Project
from apps.failures import rates
from apps.failures.actions.decisions import Refused, dismiss_checked, reopen_checked
from apps.failures.actions.diagnose import diagnose
from apps.failures.agent_versions import ALL, KEY, AgentVersion, Chosen, newest_first
from apps.failures.classify_job import classify_again
from apps.failures.judge import share
from apps.failures.judge.people import fix_sides
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
    JUDGE,
    RULES,
    Check,
    Estimate,
    Flags,
    How,
    Stratum,
    failure_rate,
    false_alarms,
    precision,
    recall,
    strata,
)
from apps.trajectories.models import Trajectory, with_content

Answer = OutcomeCheck.Answer
TITLES = {
    RULES: "Rules",
    ESTIMATE: "Estimated outcome, where no rule found a failure",
    JUDGE: "Judge, of the runs it reviews",
}
LAYERS = tuple(TITLES)
TURN = MD5(Cast("trajectory_id", CharField()))  # as `turn_of`
OPEN_FOR = timedelta(hours=1)  # so long after it was shown a run is answered in turn
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
    drawn = waiting(project).order_by(TURN).values_list("trajectory_id", flat=True).first()
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
    decided; the open case of a run that went well is dismissed. Raises Refused.
    """
    if answer not in Answer.values:
        raise Refused("Answer failed, fine or unsure.")
    check, _ = OutcomeCheck.objects.select_for_update().get_or_create(
        trajectory=trajectory, defaults={"project_id": trajectory.project_id}
    )
    if check.answer and check.by_id != getattr(by, "pk", None):
        raise Refused(f"{check.by or 'Somebody'} has already answered: {check.answer}.")
    if not check.answer:  # the answer changes what the layers say: it teaches the model
        check.layers, check.in_turn = sorted(layers_of(trajectory)), _is_in_turn(check)
    check.answer, check.by, check.at = answer, by, timezone.now()
    check.save(update_fields=["answer", "by", "at", "layers", "in_turn"])
    fix_sides(trajectory.project, [trajectory.pk])
    audit("outcome.checked", project=trajectory.project, by=by, target=trajectory, answer=answer)
    if answer != Answer.FINE:
        reopen_checked(trajectory=trajectory, by=by)
    else:
        dismiss_checked(trajectory=trajectory, by=by)
    _diagnosed_again(trajectory)
    return check


def _is_in_turn(check: OutcomeCheck) -> bool:
    """Whether no other run was to be asked about first. Those drawn since a page may have been
    opened do not count.
    """
    opened = timezone.now() - OPEN_FOR
    before = waiting(check.project).filter(drawn_at__lt=opened).annotate(turn=TURN)
    return bool(check.probability) and not before.filter(turn__lt=turn_of(check.pk)).exists()


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
        OutcomeCheck.objects.filter(pk=check.pk).update(
            answer="", by=None, at=None, layers=[], in_turn=False
        )
    audit("outcome.unchecked", project=project, by=by, target=row)
    reopen_checked(trajectory=row, by=by)
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
class Layer:
    """How well a layer tells failed runs from others, by the checks; each is None if no checked run
    tells it, or the layer has not run.
    """

    name: str
    has_run: bool
    recall: Estimate | None = None
    precision: Estimate | None = None
    false_alarms: Estimate | None = None

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @classmethod
    def of(cls, name: str, sample: Sample, has_run: bool) -> Layer:
        if not has_run:
            return cls(name, has_run)
        given = sample.reviewed if name == JUDGE else sample.strata
        return cls(
            name, has_run, recall(given, name), precision(given, name), false_alarms(given, name)
        )


@dataclass(frozen=True)
class Traffic:
    """All runs since some day: how many failed according to the checks, and how well the layers
    that looked at any run tell. `rate` is None if nothing is known. All rests on the checks and on
    `verdicts` of the model `judge` on its random share.
    """

    runs: int
    drawn: int
    answered: int
    waiting: int
    verdicts: int
    judge: str
    rate: Estimate | None
    layers: list[Layer]

    @property
    def rests_on(self) -> str:
        return rests_on(self.answered, self.verdicts, self.judge)


def rests_on(answered: int, verdicts: int, judge: str) -> str:
    checks = f"{answered:,} check{'' if answered == 1 else 's'}"
    return f"{checks} and {verdicts:,} verdicts of {judge}" if verdicts else checks


def traffic(project: Project, since: datetime | None = None, of: Chosen = ALL) -> Traffic:
    """Estimate the failure rate and how well the layers tell from drawn runs only, each weighted by
    its sampling probability; of one agent version if chosen.

    A decision in triage also answers a drawn run, but before its turn it represents no other run.
    What is said of the judge is among the runs that it reviews.
    """
    sample = sampled(project, since, of)
    ran = _layers_that_ran(project)
    return Traffic(
        sample.runs,
        len(sample.checks),
        sample.answered,
        waiting(project).count(),
        sample.verdicts,
        sample.judge,
        failure_rate(sample.strata),
        [Layer.of(layer, sample, layer in ran) for layer in LAYERS],
    )


@dataclass(frozen=True)
class Sample:
    """The drawn runs that stand for all: what estimates are made of."""

    runs: int
    checks: list[Check]
    strata: list[Stratum]
    reviewed: list[Stratum]  # of the runs that the judge reviews
    verdicts: int
    judge: str

    @property
    def answered(self) -> int:
        return sum(check.failed is not None for check in self.checks)

    @property
    def rests_on(self) -> str:
        return rests_on(self.answered, self.verdicts, self.judge)


def sampled(
    project: Project,
    since: datetime | None = None,
    of: Chosen = ALL,
    flags: Mapping[UUID, str] | None = None,
) -> Sample:
    """The checks of drawn runs with the judge's verdicts on them, in strata. `flags`: {run: a name}
    of what else is to be estimated, beside the layers.
    """
    flagged = _since(Failure.objects.filter(project=project), since).exclude(rule_mode="")
    sizes = _sizes(rates.total(project, since, of), of.among(flagged).count())
    judged = share.reviewed(project, since, of)
    own = {run: frozenset((name,)) for run, name in (flags or {}).items()}
    asked = [
        (run, replace(check, flags=check.flags | own.get(run, frozenset())))
        for run, check in drawn(project, since, of)
    ]
    checks = [judged.on(run, check) for run, check in asked]
    return Sample(
        sum(sizes.values()),
        checks,
        strata(sizes, checks, judged.size),
        strata(sizes, judged.also_reviewed(asked), judged.size),
        len(judged.scores),
        judged.judge,
    )


@dataclass(frozen=True)
class Version:
    """An agent version's runs, and how many of them failed according to `answered` checks; `rate`
    is None without any.
    """

    of: AgentVersion
    runs: int
    answered: int
    verdicts: int
    rate: Estimate | None

    @property
    def name(self) -> str:
        return str(self.of)

    @property
    def agent(self) -> str:
        return self.of.agent

    @property
    def version(self) -> str:
        return self.of.version


def by_version(project: Project) -> list[Version]:
    """The newest versions, by their first run, the newest first."""
    rows = rates.runs(project, None).values_list(*KEY)
    counts = {tuple(key): (at, n) for *key, at, n in rows.annotate(at=Min("first"), n=Sum("runs"))}
    flagged = Failure.objects.filter(project=project).exclude(rule_mode="").order_by()
    counted = flagged.values_list(*KEY).annotate(n=Count("*"))
    by_rules = {tuple(key): n for *key, n in counted}
    drawn_rows = OutcomeCheck.objects.filter(project=project, probability__gt=0)
    named = drawn_rows.values_list("pk", *(f"trajectory__{name}" for name in KEY))
    version_of = {run: tuple(key) for run, *key in named}
    checks = drawn(project)
    reviewed = share.reviewed_by_version(project)
    found = []
    for key in newest_first({key: at for key, (at, _) in counts.items()})[: rates.VERSIONS]:
        _, runs = counts[key]
        judged = reviewed.get(key, share.Reviewed())
        own = [judged.on(run, check) for run, check in checks if version_of.get(run) == key]
        sizes = _sizes(runs, by_rules.get(key, 0))
        rate = failure_rate(strata(sizes, own, judged.size))
        answered = sum(check.failed is not None for check in own)
        found.append(Version(key, sum(sizes.values()), answered, len(judged.scores), rate))
    return found


def _sizes(runs: int, by_rules: int) -> dict[bool, int]:
    """The runs that the rules flag, and the others. Roll-ups lag by seconds."""
    return {True: by_rules, False: max(0, runs - by_rules)}


def _layers_that_ran(project: Project) -> frozenset[str]:
    ran = {
        RULES: Classifier.objects.filter(project=project).exists(),
        ESTIMATE: OutcomeEstimate.objects.filter(project=project).exists(),
        JUDGE: JudgeVerdict.objects.filter(rubric__project=project, error="").exists(),
    }
    return frozenset(layer for layer, has_run in ran.items() if has_run)


def _since(rows: Any, since: datetime | None) -> Any:
    return rows.filter(trajectory_id__gte=rates.floor_of(rates.midnight(since))) if since else rows


IS_ESTIMATE = Q(rule_mode="") & Q(evidence__contains=[{"rule": "estimate"}])


def flags_of(rule: str, judge: str, estimated: bool) -> Flags:
    """The layers that flag a failure; empty if only a person did. The estimate counts only where no
    rule found anything.
    """
    said = {RULES: bool(rule), ESTIMATE: estimated, JUDGE: bool(judge)}
    return frozenset(layer for layer, flagged in said.items() if flagged)


def drawn(
    project: Project, since: datetime | None = None, of: Chosen = ALL
) -> list[tuple[UUID, Check]]:
    """The drawn runs since some day, oldest first; of one agent version if chosen."""
    rows = _since(OutcomeCheck.objects.filter(project=project, probability__gt=0), since)
    rows = of.among(rows, "trajectory__")
    columns = ("trajectory_id", "probability", "by_rules", "drawn_at", "answer", "at")
    columns += ("in_turn", "layers")
    turns = Turns.of(project)
    return [
        (row["trajectory_id"], _as_check(row, turns))
        for row in rows.order_by("trajectory_id").values(*columns, **FAILURE).iterator()
    ]


class Turns:
    """When people were asked about which run: `asked` are (when, its turn), the first one first.

    A run that people decided when they chose to would have been asked about, too, once a later turn
    has come among runs that were drawn: then it represents others like any that was asked about. A
    turn that had come before the run was drawn says nothing.
    """

    def __init__(self, asked: Sequence[tuple[datetime, str]]) -> None:
        self._at = [at for at, _ in asked]
        self._turns = [turn for _, turn in asked]
        self._last = list(accumulate(reversed(self._turns), max))[::-1]

    @classmethod
    def of(cls, project: Project) -> Turns:
        rows = OutcomeCheck.objects.filter(project=project, in_turn=True).order_by("at", "pk")
        return cls([(at, turn_of(run)) for run, at in rows.values_list("pk", "at")])

    def came(self, run: UUID, drawn_at: datetime) -> datetime | None:
        """When the turn of a run had come that was drawn at some time; None if not yet."""
        first, turn = bisect_right(self._at, drawn_at), turn_of(run)
        if first == len(self._at) or self._last[first] < turn:
            return None
        return next(
            at
            for at, other in zip(self._at[first:], self._turns[first:], strict=True)
            if other >= turn
        )


FAILURE = {
    name: F(f"trajectory__failure__{name}")
    for name in ("rule_mode", "judge_mode", "evidence", "source", "state")
}


def _as_check(row: dict[str, Any], turns: Turns) -> Check:
    """A check's answer takes precedence over a decision in triage."""
    answer, evidence = row["answer"], row["evidence"] or []
    estimated = not row["rule_mode"] and any(item.get("rule") == ESTIMATE for item in evidence)
    decided = row["source"] == Source.PERSON and row["state"] != FailureState.OPEN
    failed = asked = None
    if answer in (Answer.FAILED, Answer.FINE):
        failed = answer == Answer.FAILED
    elif decided:
        failed = row["state"] == FailureState.CONFIRMED
    if row["in_turn"]:
        asked = row["at"]
    elif answer or decided:
        asked = turns.came(row["trajectory_id"], row["drawn_at"])
    now = flags_of(row["rule_mode"] or "", row["judge_mode"] or "", estimated)
    return Check(
        row["by_rules"],
        row["probability"],
        failed,
        How.ASKED if asked else How.CHOSEN if answer or decided else How.WAITING,
        frozenset(row["layers"]) if answer else now,
        asked=asked,
    )


def turn_of(run: UUID) -> str:
    """The place of a drawn run in the random order in which people are asked: as `next_check` sorts
    them.
    """
    return md5(str(run).encode(), usedforsecurity=False).hexdigest()
