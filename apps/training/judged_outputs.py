"""Outputs of a training run that people judge in the reward review's queue, and what their verdicts say of its reward."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

from django.db import transaction

from apps.core.errors import Rejected
from apps.evals.jobs import SAMPLE_FIELDS
from apps.reviews.actions import send_outputs
from apps.reviews.labels import labels_of
from apps.reviews.models import RewardReview, SentOutput
from apps.reviews.reservations import needed_of
from apps.training import outputs, run_alarms
from apps.training.models import Metric, Rollout, TrainingRun
from workers.lib.alarms import judged_gap

SENT = 20  # outputs of one button
OF_REVIEW = ("review/verifier_success", "review/people_success", "review/outputs")


class NothingToSend(Rejected):
    """The message is a sentence for the screen."""


@transaction.atomic
def send(
    *, run: TrainingRun, by: Any, step: int | None = None, number: int | None = None, n: int = SENT, seed: int = 0
) -> tuple[RewardReview, int]:
    """A seeded sample of a step's outputs, or the one rollout `number`, to the run's review; (it, how many were new). Only what has a
    score can be judged against it. Raises NothingToSend."""
    rows = run.rollouts.filter(masked=False).select_related("task")
    if number is not None:
        chosen = list(rows.filter(pk=number))
    else:
        steps = outputs.steps_of(run)
        step = steps[-1] if step is None and steps else step
        known = list(rows.filter(phase__in=outputs.PHASES, step=step).order_by("task__key", "index", "pk"))
        chosen = random.Random(f"review {run.pk} {step} {seed}").sample(known, min(n, len(known)))
    if not chosen:
        raise NothingToSend(
            "There are no scored outputs to send: choose a step at which the policy was sampled, or an output that is "
            "not masked."
        )
    training = {"run": str(run.pk), "name": run.name}
    return send_outputs(
        verifier=run.environment.verifier, outputs=[sent_from(run, row) for row in chosen], training=training, by=by, seed=seed
    )  # fmt: skip


def sent_from(run: TrainingRun, row: Rollout) -> SentOutput:
    source = {"run": str(run.pk), "name": run.name, "step": row.step, "rollout": row.pk}
    fields = {name: getattr(row, name) for name in SAMPLE_FIELDS}
    return SentOutput(project=run.project, environment=run.environment, task=row.task, source=source, **fields)


def reviews_of(run: TrainingRun) -> list[RewardReview]:
    return list(run.project.reward_reviews.filter(scope__training__run=str(run.pk)).select_related("verifier"))


def verdicts_of(run: TrainingRun) -> dict[int, str]:
    """{rollout: what people say of it as one, else that it is in review} of those that were sent."""
    found: dict[int, str] = {}
    for review in reviews_of(run):
        rollouts = dict(review.items.values_list("pk", "sent__source__rollout"))
        for label in labels_of([review.pk])[review.pk]:
            person = label.person(needed_of(review))
            found[rollouts[label.item]] = (
                "in review" if person is None else "people: passed" if person else "people: failed"
            )
    return found


def hear(review: RewardReview) -> None:
    """People have judged an output of a run: their verdicts are metrics of it, and the alarm `judge_gap` is judged again."""
    training = review.training or {}
    run = (
        TrainingRun.objects.filter(project=review.project_id, pk=training.get("run")).select_related("project").first()
    )
    if run is None:
        return
    pairs: dict[int, list[tuple[bool, bool]]] = defaultdict(list)
    for each in reviews_of(run):
        steps = dict(each.items.values_list("pk", "sent__source__step"))
        for label in labels_of([each.pk])[each.pk]:
            if (person := label.person(needed_of(each))) is not None:
                pairs[steps[label.item]].append((label.success, person))
    store(run, pairs)
    if pairs:
        last = max(pairs)
        least = run_alarms.limits_of(run, "judge_gap").over
        run_alarms.judge_outside(run, "judge_gap", last, judged_gap(recent(pairs, least), least))


def recent(pairs: dict[int, list[tuple[bool, bool]]], least: int) -> list[tuple[bool, bool]]:
    """Of the last steps that have at least so many together: what people said of the start is no word on the policy of now."""
    found: list[tuple[bool, bool]] = []
    for step in sorted(pairs, reverse=True):
        if len(found) >= least:
            break
        found += pairs[step]
    return found


def store(run: TrainingRun, pairs: dict[int, list[tuple[bool, bool]]]) -> None:
    rows = [
        Metric(run=run, step=step, name=name, value=value)
        for step, judged in pairs.items()
        for name, value in zip(
            OF_REVIEW,
            (sum(one for one, _ in judged) / len(judged), sum(two for _, two in judged) / len(judged), len(judged)),
            strict=True,
        )
    ]
    Metric.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["run", "name", "step"], update_fields=["value", "at"]
    )
