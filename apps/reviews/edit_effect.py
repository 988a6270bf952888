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
from apps.reviews.reservations import needed_of
from apps.reviews.sampling import content_key


@dataclass(frozen=True)
class Effect:
    """`labelled`: outputs that people have judged with any version; `scored`: those that both
    versions have scored; `samples`: all that the numbers are of."""

    effect: EditEffect
    labelled: int
    scored: int
    samples: tuple[int, ...]


def effect_of(before: Verifier, after: Verifier) -> Effect:
    """On labels of all reviews of all versions of the verifier, each output once however often it
    was judged or generated. Nothing is scored here: known scores are used."""
    words = _words(after)
    keys = _keys(words)
    labels = {keys[str(pk)]: word for pk, word in words.items()}
    first, second = (
        {keys[pk]: success for pk, success in successes(one, words).items()}
        for one in (before, after)
    )
    return Effect(
        edit_effect(labels, first, second),
        len(labels),
        len(first.keys() & second.keys()),
        tuple(words),
    )


def _words(verifier: Verifier) -> dict[int, bool]:
    """{sample: people's verdict}, in the order of the reviews; the newest counts."""
    reviews = {
        row.pk: row for row in verifier.project.reward_reviews.filter(verifier__name=verifier.name)
    }
    samples = dict(
        ReviewItem.objects.filter(review__in=reviews, sent=None).values_list("pk", "sample")
    )
    found: dict[int, bool] = {}
    for pk, labels in sorted(labels_of(reviews).items()):
        for label in labels:
            if (
                label.item in samples
                and (person := label.person(needed_of(reviews[pk]))) is not None
            ):
                found.pop(samples[label.item], None)  # so that the newest is also last
                found[samples[label.item]] = person
    return found


def _keys(samples: Iterable[int]) -> dict[str, str]:
    """{sample: the key of its content}."""
    rows = Sample.objects.filter(pk__in=list(samples)).values_list("pk", "task", "output")
    return {str(pk): content_key(str(task), output) for pk, task, output in rows}


def successes(verifier: Verifier, samples: Iterable[int]) -> dict[str, bool]:
    """{sample: success} if the score of exactly this content is known: from the evaluation, or from
    a rescoring.
    """
    wanted = list(samples)
    rows = Sample.objects.filter(
        pk__in=wanted, masked=False, run__environment__verifier__hash=verifier.hash
    )
    known = {str(pk): success for pk, success in rows.values_list("pk", "success")}
    jobs = Rescore.objects.filter(
        project=verifier.project_id,
        candidate_hash=verifier.hash,
        state=JobState.SUCCEEDED,
        samples__in=wanted,
    )
    for scores in jobs.distinct().order_by("created_at").values_list("result__scores", flat=True):
        known |= {
            pk: one["success"]
            for pk, one in (scores or {}).items()
            if not one["masked"] and pk not in known
        }
    names = {str(pk) for pk in wanted}
    return {pk: success for pk, success in known.items() if pk in names}
