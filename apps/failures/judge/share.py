"""The random share of all traffic that the judge reviews, so that its verdicts say something about
the runs that nobody looked at.

A run is drawn by the same number as for people's checks, so a judge with the larger share reviews
every run that people check, and those are a random part of its share. Drawn runs are reviewed in
the order of their numbers, old and new together: where the budget ends the day, what was reviewed
is a random share still, only a smaller one.

A rubric that learned from people's decisions is measured only on runs whose decisions are held back
from it (`people`), which a hash of the request decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from apps.core.actions import audit
from apps.core.models import Project
from apps.failures import rates
from apps.failures.actions.decisions import Refused
from apps.failures.judge import people
from apps.failures.models import Classifier, Failure, JudgeVerdict, Rubric
from apps.failures.outcomes.estimates import number_of
from apps.failures.outcomes.rate import (
    JUDGE,
    Check,
    Estimate,
    above_mean,
    effective,
    failure_rate,
    strata,
)
from apps.trajectories.ids import floor_of

DRAWN_AMONG = 20_000  # newest runs
MOST = 20_000  # newest verdicts that are read


@transaction.atomic
def set_shares(*, project: Project, unflagged: float, flagged: float, by: Any) -> None:
    """Set the shares of runs that the judge reviews. Raises Refused."""
    if not (0 <= unflagged <= 1 and 0 <= flagged <= 1):
        raise Refused("The shares must be between 0% and 100%.")
    shares = {"judge_share": unflagged, "judge_share_flagged": flagged}
    Classifier.objects.update_or_create(project=project, defaults=shares)
    percent = {"unflagged": round(100 * unflagged, 2), "flagged": round(100 * flagged, 2)}
    audit("judge.share_set", project=project, by=by, **percent)


def shares_of(project: Project) -> dict[bool, float]:
    """The share of the runs that the rules flag (True), and of the others."""
    classifier = Classifier.objects.filter(project=project).first() or Classifier()
    return {True: classifier.judge_share_flagged, False: classifier.judge_share}


def draw(project: Project, rubric: Rubric, settled: QuerySet[JudgeVerdict]) -> dict[UUID, float]:
    """{run: its probability} of the drawn runs that have no verdict yet, in the order in which they
    are reviewed. A raised share holds for all runs among which is drawn, reviewed or not.

    `settled` are the verdicts that are given, or not to be tried again now. One that was given for
    another reason counts from the moment that the run is drawn.
    """
    shares = shares_of(project)
    by_rules = Exists(Failure.objects.filter(trajectory=OuterRef("pk")).exclude(rule_mode=""))
    rows = project.trajectories.order_by("-pk").annotate(flagged=by_rules)
    newest = rows.values_list("pk", "content_digest", "flagged")[:DRAWN_AMONG]
    numbers = {pk: number_of(project.pk, pk) for pk, _, _ in newest}
    drawn = {
        (pk, digest): shares[flagged]
        for pk, digest, flagged in sorted(newest, key=lambda row: numbers[row[0]])
        if numbers[pk] < shares[flagged]
    }
    known = settled.filter(trajectory_id__among=[pk for pk, _ in drawn], probability__gt=0)
    for run, digest, probability in known.values_list(
        "trajectory_id", "content_digest", "probability"
    ):
        share = drawn.pop((run, digest), 0.0)
        if share > probability:
            rubric.verdicts.filter(content_digest=digest).update(probability=share)
    return {pk: share for (pk, _), share in drawn.items()}


@dataclass(frozen=True)
class Reviewed:
    """The judge's random share: its size, effectively, among the runs that the rules flag and the
    others; each run's score minus the mean of those of its time, and the probability with which it
    was drawn; the runs in which the judge sees a failure, and their share of all runs.
    """

    judge: str = ""
    size: dict[bool, float] = field(default_factory=dict)
    scores: dict[UUID, float] = field(default_factory=dict)
    chances: dict[UUID, float] = field(default_factory=dict)
    failed: frozenset[UUID] = frozenset()
    rate: Estimate | None = None

    def on(self, run: UUID, check: Check) -> Check:
        """A check with the verdict on its run, which is the same whatever people answered."""
        if run not in self.scores:
            return check
        flags = check.flags - {JUDGE} | ({JUDGE} if run in self.failed else set())
        return replace(check, verdict=self.scores[run], flags=flags)

    def also_reviewed(self, checks: Iterable[tuple[UUID, Check]]) -> list[Check]:
        """The checks of runs that the judge reviewed, too, with the probability of both: one number
        decides both draws.
        """
        return [
            replace(self.on(run, check), probability=min(check.probability, self.chances[run]))
            for run, check in checks
            if run in self.chances
        ]


@dataclass(frozen=True)
class _Score:
    run: UUID
    version: str
    weight: float
    score: float
    failed: bool
    by_rules: bool


def reviewed(project: Project, since: datetime | None = None, version: str = "") -> Reviewed:
    """The verdicts of the newest judge on drawn runs since some day, of one agent version if
    given.
    """
    rows = JudgeVerdict.objects.filter(rubric__project=project, error="", probability__gt=0)
    if since:
        rows = rows.filter(trajectory_id__gte=floor_of(rates.midnight(since)))
    if version:
        rows = rows.filter(trajectory__agent_version=version)
    judge, scores = _read(rows)
    return _reviewed(judge, scores)


def reviewed_by_version(project: Project) -> dict[str, Reviewed]:
    judge, scores = _read(
        JudgeVerdict.objects.filter(rubric__project=project, error="", probability__gt=0)
    )
    versions: dict[str, list[_Score]] = {}
    for score in scores:
        versions.setdefault(score.version, []).append(score)
    return {version: _reviewed(judge, those) for version, those in versions.items()}


def _read(rows: QuerySet[JudgeVerdict]) -> tuple[str, list[_Score]]:
    """The newest judge's model, and its scores of the newest runs, the oldest first."""
    newest = (
        rows.order_by("-rubric__is_on", "-rubric__version")
        .select_related("rubric__project")
        .first()
    )
    if newest is None:
        return "", []
    columns = ("probability", "mode", "confidence", "trajectory__failure__rule_mode")
    given = rows.filter(rubric=newest.rubric).order_by("-trajectory_id", "-at")
    given = given.values_list("trajectory_id", "trajectory__agent_version", *columns)[:MOST]
    scores = {
        run: _Score(run, of, 1 / probability, _score(mode, confidence), bool(mode), bool(rule))
        for run, of, probability, mode, confidence, rule in reversed(given)
    }
    if has_learned(newest.rubric):
        held_back = people.sides(newest.rubric.project, scores)
        scores = {run: score for run, score in scores.items() if held_back.get(run)}
    return newest.rubric.model, list(scores.values())


def has_learned(rubric: Rubric) -> bool:
    """Whether it, or a version before it that it may come from, learned from people's decisions. On
    those its verdicts are better than on other runs, so they say nothing of all.
    """
    known = rubric.project.rubrics.filter(version__lte=rubric.version)
    return known.filter(Q(search__isnull=False) | Q(examples__isnull=False)).exists()


def _reviewed(judge: str, scores: Collection[_Score]) -> Reviewed:
    if not scores:
        return Reviewed()
    size, centred = {}, {}
    for by_rules in (True, False):
        those = [score for score in scores if score.by_rules == by_rules]
        if those:
            weights = [score.weight for score in those]
            size[by_rules] = effective(weights)
            above = above_mean([score.score for score in those], weights)
            centred |= zip((score.run for score in those), above, strict=True)
    failed = frozenset(score.run for score in scores if score.failed)
    chances = {score.run: 1 / score.weight for score in scores}
    return Reviewed(judge, size, centred, chances, failed, _rate(scores))


def _score(mode: str, confidence: float | None) -> float:
    """From 0, surely fine, to 1, surely failed."""
    sure = 1.0 if confidence is None else confidence
    return sure if mode else 1 - sure


def _rate(scores: Collection[_Score]) -> Estimate | None:
    runs = {True: 0.0, False: 0.0}
    for score in scores:
        runs[score.by_rules] += score.weight
    checks = [Check(score.by_rules, 1 / score.weight, score.failed) for score in scores]
    return failure_rate(strata(runs, checks))
