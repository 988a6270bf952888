"""The results of a review: agreement with intervals, calibration, strata, reviewers, and
disagreements of people and score.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models.functions import Coalesce

from apps.core import charts
from apps.reviews import agreement, pool
from apps.reviews.agreement import Bin, Correlation, Judged, Rate
from apps.reviews.labels import OUTPUT, TASK, HumanLabel, Label
from apps.reviews.models import Judgement, RewardReview
from apps.reviews.pool import Pool, Sample, Scores
from apps.reviews.sampling import content_key

BREAK = timedelta(minutes=5)  # a longer pause between two judgements is not work on them


@dataclass(frozen=True)
class Reviewer:
    """One person's part: how often their blind verdict is the score's and the others', how long
    they took.

    `seen_before`: samples that they had judged in an earlier review too. `second_thoughts`:
    answers, the score shown, against their blind verdict.
    """

    user: Any
    n: int
    with_verifier: Rate
    with_others: Rate
    finds_right: Rate
    second_thoughts: int
    seen_before: int
    minutes: float


@dataclass(frozen=True)
class Stratum:
    name: str
    n: int
    judged: int
    people_pass: Rate
    verifier_pass: Rate
    agreement: Rate


def pairs_of(labels: Iterable[Label], needed: int) -> list[tuple[bool, bool]]:
    return agreement.pairs_of([label.settled(needed) for label in labels])


def on_all(review: RewardReview, labels: Iterable[Label], needed: int) -> Pool | None:
    """How right the verifier is on all outputs that the samples were drawn from; None if that is
    not known of the review: it is of a training run, or older.
    """
    if not (scores := [Scores(**of) for of in review.scope.get("pool", [])]):
        return None
    samples = [
        Sample(label.stratum, label.success, label.reward, label.person(needed))
        for label in labels
        if label.person(needed) is not None or label.differs(needed)
    ]
    return pool.on_all(scores, samples)


def rank_correlation(labels: list[Label], needed: int) -> Correlation:
    """Spearman's ρ between the reward and the people's verdict."""
    known = [
        (label.reward, person) for label in labels if (person := label.person(needed)) is not None
    ]
    return agreement.spearman(
        [reward for reward, _ in known], [float(person) for _, person in known]
    )


def calibration_of(
    labels: list[Label], needed: int, bins: int = 5
) -> tuple[list[Bin], float | None, float, float]:
    """Bins over the rewards from the least to the greatest there may be, the expected calibration
    error, and those bounds.
    """
    known = [
        (label.reward, person) for label in labels if (person := label.person(needed)) is not None
    ]
    rewards = [label.reward for label in labels]
    low, high = min([0.0, *rewards]), max([1.0, *rewards])
    found, error = agreement.calibration(
        [reward for reward, _ in known], [person for _, person in known], bins, (low, high)
    )
    return found, error, low, high


def calibration_figure(bins: list[Bin], low: float, high: float) -> dict:
    """The share that people call a success over the mean reward of each bin; the diagonal is a
    reward that means it.
    """
    full = [item for item in bins if item.mean_score is not None]
    reward = [low + item.mean_score * (high - low) for item in full]
    figure = charts.lines(
        {
            "as the reward says": ([low, high], [0, 1]),
            "people": (reward, [item.judged.value for item in full]),
        },
        "What people call a success, by reward",
        x="mean reward",
        y="share",
        height=250,
    )
    figure["data"][0] |= {
        "mode": "lines",
        "line": {"dash": "dot", "width": 1.2, "color": charts.UNKNOWN},
    }
    figure["data"][1] |= {
        "mode": "markers",
        "marker": {"size": 8, "color": charts.PALETTE[0]},
        "text": [f"n = {item.judged.n}" for item in full],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [item.judged.high - item.judged.value for item in full],
            "arrayminus": [item.judged.value - item.judged.low for item in full],
            "thickness": 1.4,
        },
    }
    figure["layout"]["yaxis"] |= {"range": [-0.04, 1.04], "tickformat": ".0%"}
    return figure


def reviewers_of(review: RewardReview, labels: list[Label]) -> list[Reviewer]:
    """Those who have judged, the busiest first."""
    said: dict[int, list[tuple[Label, HumanLabel]]] = defaultdict(list)
    for label in labels:
        for answer in label.answers:
            said[answer.by].append((label, answer))
    users = get_user_model().objects.in_bulk(list(said))
    before = _seen_before(review)
    found = [_reviewer(users[pk], rows, before) for pk, rows in said.items()]
    return sorted(found, key=lambda one: (-one.n, str(one.user)))


def _reviewer(
    user: Any, rows: list[tuple[Label, HumanLabel]], before: set[tuple[int, int]]
) -> Reviewer:
    others = [
        other.success == answer.success
        for label, answer in rows
        for other in label.answers
        if other.by != answer.by
    ]
    checked = [answer.agrees for _, answer in rows if answer.agrees is not None]
    return Reviewer(
        user=user,
        n=len(rows),
        with_verifier=agreement.rate(
            sum(label.success == answer.success for label, answer in rows), len(rows)
        ),
        with_others=agreement.rate(sum(others), len(others)),
        finds_right=agreement.rate(sum(checked), len(checked)),
        second_thoughts=sum(label.second_thoughts(answer) for label, answer in rows),
        seen_before=sum((label.item, answer.by) in before for label, answer in rows),
        minutes=minutes_of([answer.agreed_at or answer.at for _, answer in rows]),
    )


def minutes_of(times: Iterable[datetime]) -> float:
    """Minutes between the first and the last, without pauses longer than BREAK."""
    ordered = sorted(times)
    gaps = [later - earlier for earlier, later in pairwise(ordered)]
    return sum((gap for gap in gaps if gap <= BREAK), timedelta()) / timedelta(minutes=1)


def _seen_before(review: RewardReview) -> set[tuple[int, int]]:
    """(item, user) if they had judged the same output in an earlier review of the verifier, and so
    seen a score of it.
    """
    keys = _keys(review.items)
    tasks = review.items.values(task=TASK)
    rows = (
        Judgement.objects.filter(
            item__review__verifier__name=review.verifier.name,
            item__review__project=review.project_id,
            item__review__pk__lt=review.pk,
        )
        .annotate(
            task=Coalesce("item__sample__task", "item__sent__task"),
            output=Coalesce("item__sample__output", "item__sent__output"),
        )
        .filter(task__in=tasks)
        .values_list("task", "output", "by")
    )
    known = {(content_key(str(task), output), by) for task, output, by in rows}
    said = Judgement.objects.filter(item__review=review).values_list("item", "by")
    return {(item, by) for item, by in said if (keys[item], by) in known}


def _keys(items: Any) -> dict[int, str]:
    """{item: the key of its content}."""
    rows = items.values_list("pk", TASK, OUTPUT)
    return {pk: content_key(str(task), output) for pk, task, output in rows}


def held_out(review: RewardReview) -> set[int]:
    """The items whose labels are kept from whoever edits the verifier: in the figures, never in a
    list.
    """
    return {pk for pk, key in _keys(review.items).items() if agreement.is_held_out(key)}


def strata_of(labels: list[Label], needed: int) -> list[Stratum]:
    groups: dict[str, list[Label]] = defaultdict(list)
    for label in labels:
        groups[label.stratum or "all"].append(label)
    return [_stratum(name, groups[name], needed) for name in sorted(groups)]


def _stratum(name: str, labels: list[Label], needed: int) -> Stratum:
    pairs = pairs_of(labels, needed)
    return Stratum(
        name=name,
        n=len(labels),
        judged=len(pairs),
        people_pass=agreement.rate(sum(person for person, _ in pairs), len(pairs)),
        verifier_pass=agreement.rate(sum(label.success for label in labels), len(labels)),
        agreement=agreement.rate(sum(person == verifier for person, verifier in pairs), len(pairs)),
    )


def disagreements_of(labels: list[Label], needed: int) -> list[int]:
    """pks of the items that people and the verifier see otherwise: reward for bad behaviour first,
    by reward.
    """
    settled: list[Judged] = [label.settled(needed) for label in labels]
    return [int(found.item) for found in agreement.disagreements(settled)]


def open_to(label: Label, user: Any, needed: int, judges: bool) -> bool:
    """Whether the person may see the score and others' verdicts: their own verdict is final, or no
    longer needed.
    """
    return (
        not judges
        or label.by(user.pk) is not None
        or label.ruling is not None
        or label.is_complete(needed)
    )
