"""Agreement with people before and after an edit of a verifier, on the same labelled samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from apps.core.models import JobState
from apps.environments.models import Verifier
from apps.evals.models import Sample
from apps.reviews.agreement import EditEffect, edit_effect
from apps.reviews.labels import labels_of
from apps.reviews.models import Rescore, ReviewItem
from apps.reviews.queue import needed_of


@dataclass(frozen=True)
class Effect:
    """`labelled`: samples that people have judged with any version; `scored`: those that both versions have scored."""

    effect: EditEffect
    labelled: int
    scored: int


def effect_of(before: Verifier, after: Verifier) -> Effect:
    """On labels of all reviews of all versions of the verifier. Nothing is scored here: known scores are used."""
    words = _words(after)
    first, second = successes(before, words.keys()), successes(after, words.keys())
    labels = {str(pk): word for pk, word in words.items()}
    return Effect(edit_effect(labels, first, second), len(labels), len(first.keys() & second.keys()))


def _words(verifier: Verifier) -> dict[int, bool]:
    """{sample: the people's word}, the newest review's where several speak of it."""
    reviews = {row.pk: row for row in verifier.project.reward_reviews.filter(verifier__name=verifier.name)}
    samples = dict(ReviewItem.objects.filter(review__in=reviews).values_list("pk", "sample"))
    found: dict[int, bool] = {}
    for pk, labels in sorted(labels_of(reviews).items()):
        for label in labels:
            if (person := label.person(needed_of(reviews[pk]))) is not None:
                found[samples[label.item]] = person
    return found


def successes(verifier: Verifier, samples: Iterable[int]) -> dict[str, bool]:
    """{sample: success} where the score of this very content is known: from the evaluation, or from a rescoring."""
    wanted = list(samples)
    rows = Sample.objects.filter(pk__in=wanted, masked=False, run__environment__verifier__hash=verifier.hash)
    known = {str(pk): success for pk, success in rows.values_list("pk", "success")}
    jobs = Rescore.objects.filter(
        project=verifier.project_id, candidate_hash=verifier.hash, state=JobState.SUCCEEDED, samples__in=wanted
    )
    for scores in jobs.distinct().order_by("created_at").values_list("result__scores", flat=True):
        known |= {pk: one["success"] for pk, one in (scores or {}).items() if not one["masked"] and pk not in known}
    names = {str(pk) for pk in wanted}
    return {pk: success for pk, success in known.items() if pk in names}
