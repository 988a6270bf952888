"""The random share of all traffic that the judge reviews, so that its verdicts say something about
the runs that nobody looked at.

Of a new project all runs are drawn: its first ones, by their arrival (`First`), with probability 1,
the others with the share of their stratum. Neither depends on an answer.

A run is drawn by the same number as for people's checks, so a judge with the larger share reviews
every run that people check, and those are a random part of its share. Drawn runs are reviewed in
the order of their numbers, old and new together: where the budget ends the day, what was reviewed
is a random share still, only a smaller one.

A rubric that learned from people's decisions is measured only on runs whose decisions are held back
from it (`people`), which a hash of the request decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from msgspec import UNSET, Meta, Struct, UnsetType

from apps.core.actions import audit
from apps.core.models import Project
from apps.failures import rates
from apps.failures.agent_versions import ALL, KEY, AgentVersion, Chosen
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
from workers.lib.typed import Share

DRAWN_AMONG = 20_000  # newest runs
MOST = 20_000  # newest verdicts that are read


class SharesChange(Struct, forbid_unknown_fields=True, kw_only=True):
    """What the judge reviews, drawn at random. What is left out stays."""

    unflagged: Annotated[
        Share | UnsetType, Meta(description="Of the runs that the rules do not flag")
    ] = UNSET
    flagged: Annotated[Share | UnsetType, Meta(description="Of the runs that they flag")] = UNSET
    first: Annotated[
        Annotated[int, Meta(ge=0, le=DRAWN_AMONG)] | UnsetType,
        Meta(description="So many of the project's first runs are all reviewed"),
    ] = UNSET


@transaction.atomic
def set_shares(*, project: Project, by: Any, given: SharesChange) -> None:
    """Sets the shares of the runs that the judge reviews. Whatever was drawn before keeps its
    probability, or gets the higher one.
    """
    known = {"unflagged": "judge_share", "flagged": "judge_share_flagged", "first": "judge_first"}
    changes = {
        column: value
        for name, column in known.items()
        if (value := getattr(given, name)) is not UNSET
    }
    if given.first is not UNSET:
        changes |= {"judge_first_until": None, "judge_first_last": None}
    classifier, _ = Classifier.objects.update_or_create(project=project, defaults=changes)
    audit(
        "judge.share_set",
        project=project,
        by=by,
        unflagged=round(100 * classifier.judge_share, 2),
        flagged=round(100 * classifier.judge_share_flagged, 2),
        first=classifier.judge_first,
    )


def classifier_of(project: Project) -> Classifier:
    """With its shares; the usual ones, not saved, before the first classification."""
    return Classifier.objects.filter(project=project).first() or Classifier(project=project)


def shares_of(project: Project) -> dict[bool, float]:
    """The share of the runs that the rules flag (True), and of the others."""
    classifier = classifier_of(project)
    return {True: classifier.judge_share_flagged, False: classifier.judge_share}


@dataclass(frozen=True)
class First:
    """The first runs of a project, which are all reviewed: those up to the `last` one in the order
    of their arrival; `all_yet`: so few have arrived that all are among them.
    """

    last: tuple[datetime, UUID] | None = None
    all_yet: bool = False

    @classmethod
    def of(cls, classifier: Classifier, arrivals: Sequence[tuple[datetime, UUID]]) -> First:
        """`arrivals` are those of the newest runs. What is imported once all of the first runs have
        arrived is not among them.
        """
        until, last = classifier.judge_first_until, classifier.judge_first_last
        if until and last:
            return cls((until, last))
        if len(arrivals) < classifier.judge_first:
            return cls(all_yet=True)
        if not classifier.judge_first or len(arrivals) >= DRAWN_AMONG:
            return cls()  # those of a large project were long ago
        return cls(sorted(arrivals)[classifier.judge_first - 1])

    def includes(self, arrival: tuple[datetime, UUID]) -> bool:
        return self.all_yet or (self.last is not None and arrival <= self.last)

    def store(self, classifier: Classifier) -> None:
        """For good, unless people set another number of first runs."""
        if self.last and classifier.judge_first_until is None:
            until, last = self.last
            same = Classifier.objects.filter(
                pk=classifier.pk, judge_first=classifier.judge_first, judge_first_until=None
            )
            same.update(judge_first_until=until, judge_first_last=last)


@dataclass(frozen=True)
class Draw:
    """{(run, digest of its content): its probability} of the drawn runs, in the order in which they
    are reviewed.
    """

    chances: dict[tuple[UUID, str], float]
    classifier: Classifier
    first: First

    @classmethod
    def of(cls, project: Project) -> Draw:
        classifier, shares = classifier_of(project), shares_of(project)
        by_rules = Exists(Failure.objects.filter(trajectory=OuterRef("pk")).exclude(rule_mode=""))
        rows = project.trajectories.order_by("-pk").annotate(flagged=by_rules)
        columns = ("pk", "content_digest", "flagged", "received_at")
        newest = list(rows.values_list(*columns)[:DRAWN_AMONG])
        first = First.of(classifier, [(at, pk) for pk, _, _, at in newest])
        numbers = {pk: number_of(project.pk, pk) for pk, *_ in newest}
        chances = {
            (pk, digest): share
            for pk, digest, flagged, at in sorted(newest, key=lambda row: numbers[row[0]])
            if numbers[pk] < (share := 1.0 if first.includes((at, pk)) else shares[flagged])
        }
        return cls(chances, classifier, first)

    def of_settled(self, settled: QuerySet[JudgeVerdict]) -> QuerySet[JudgeVerdict]:
        runs = [pk for pk, _ in self.chances]
        return settled.filter(trajectory_id__among=runs, probability__gt=0)

    def left(self, settled: QuerySet[JudgeVerdict]) -> dict[UUID, float]:
        """{run: its probability} of those that have no verdict yet."""
        known = set(self.of_settled(settled).values_list("trajectory_id", "content_digest"))
        return {key[0]: share for key, share in self.chances.items() if key not in known}


def draw(project: Project, rubric: Rubric, settled: QuerySet[JudgeVerdict]) -> dict[UUID, float]:
    """{run: its probability} of the drawn runs that have no verdict yet, in the order in which they
    are reviewed. A raised share holds for all runs among which is drawn, reviewed or not.

    `settled` are the verdicts that are given, or not to be tried again now. One that was given for
    another reason counts from the moment that the run is drawn.
    """
    drawn = Draw.of(project)
    drawn.first.store(drawn.classifier)
    columns = ("trajectory_id", "content_digest", "probability")
    for run, digest, probability in drawn.of_settled(settled).values_list(*columns):
        if (share := drawn.chances.get((run, digest), 0.0)) > probability:
            rubric.verdicts.filter(content_digest=digest).update(probability=share)
    return drawn.left(settled)


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
    of: AgentVersion
    weight: float
    score: float
    failed: bool
    by_rules: bool


def reviewed(project: Project, since: datetime | None = None, of: Chosen = ALL) -> Reviewed:
    """The verdicts of the newest judge on drawn runs since some day, of one agent version if
    chosen.
    """
    rows = JudgeVerdict.objects.filter(rubric__project=project, error="", probability__gt=0)
    if since:
        rows = rows.filter(trajectory_id__gte=floor_of(rates.midnight(since)))
    judge, scores = _read(of.among(rows, "trajectory__"))
    return _reviewed(judge, scores)


def reviewed_by_version(project: Project) -> dict[AgentVersion, Reviewed]:
    judge, scores = _read(
        JudgeVerdict.objects.filter(rubric__project=project, error="", probability__gt=0)
    )
    versions: dict[AgentVersion, list[_Score]] = {}
    for score in scores:
        versions.setdefault(score.of, []).append(score)
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
    key = (f"trajectory__{name}" for name in KEY)
    given = given.values_list("trajectory_id", *key, *columns)[:MOST]
    scores = {
        run: _Score(
            run,
            AgentVersion(agent, version),
            1 / probability,
            _score(mode, confidence),
            bool(mode),
            bool(rule),
        )
        for run, agent, version, probability, mode, confidence, rule in reversed(given)
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
