"""Outputs of a training run that people judge in the reward review's queue, or the project's LLM judge reads at checkpoints, and what
their verdicts say of its reward. The two are kept apart; a person's verdict on an output counts in place of the judge's."""

from __future__ import annotations

import hashlib
import random
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F, Max, Q, QuerySet
from django.utils import timezone

from apps.core.errors import Rejected
from apps.core.models import ACTIVE_STATES, Project
from apps.environments.clients import load_for
from apps.evals.canonical import digest_of
from apps.evals.jobs import SAMPLE_FIELDS
from apps.failures.judge import judging
from apps.failures.models import JudgeVerdict
from apps.reviews.actions import send_outputs
from apps.reviews.labels import labels_of
from apps.reviews.models import RewardReview, SentOutput
from apps.reviews.reservations import needed_of
from apps.training import outputs, run_alarms
from apps.training.models import JudgedOutput, Metric, Rollout, TrainingRun
from workers.lib.alarms import judged_gap
from workers.lib.environments import Environment

SENT = 20  # outputs of one button
OF_REVIEW = ("review/verifier_success", "review/people_success", "review/outputs")
OF_JUDGE = ("judge/verifier_success", "judge/success", "judge/outputs")
PATIENCE = timedelta(days=1)  # after a run's end in which the judge still reads its outputs: its budget is of a day
BATCH_S, AT_ONCE = 120.0, 200  # of one task: seconds and outputs


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
    if run is not None:
        weigh(run)


Pairs = dict[int, list[tuple[bool, bool]]]
"""{step: (success by the verifier, success by who judged) of each output}"""


@dataclass(frozen=True)
class Judgement:
    """What people, or the LLM judge, say of a run's outputs beside its verifier. `gap` as `workers.lib.alarms.judged_gap`, of the last
    `recent` outputs; None where they are too few."""

    who: str
    pairs: Pairs
    least: int

    @property
    def recent(self) -> list[tuple[bool, bool]]:
        return recent(self.pairs, self.least)

    @property
    def gap(self) -> float | None:
        return judged_gap(self.recent, self.least)

    @property
    def n(self) -> int:
        return sum(map(len, self.pairs.values()))

    def share(self, place: int) -> float | None:
        """Of the recent outputs, those that pass: by the verifier (0), by who judged (1)."""
        found = [pair[place] for pair in self.recent]
        return sum(found) / len(found) if found else None

    @property
    def title(self) -> str:
        what = (
            "people, on reviewed outputs"
            if self.who == PEOPLE
            else f"the LLM judge, on {len(self.recent)} sampled outputs"
        )
        return f"Success by the verifier minus success by {what}"


PEOPLE, JUDGE = "People", "LLM judge"


def by_people(run: TrainingRun) -> tuple[Pairs, set[int]]:
    """What people settled, and the rollouts that it is about."""
    pairs: Pairs = defaultdict(list)
    settled: set[int] = set()
    for review in reviews_of(run):
        sources = dict(review.items.values_list("pk", "sent__source"))
        for label in labels_of([review.pk])[review.pk]:
            if (person := label.person(needed_of(review))) is not None:
                pairs[sources[label.item]["step"]].append((label.success, person))
                settled.add(sources[label.item]["rollout"])
    return pairs, settled


def by_judge(run: TrainingRun, settled: set[int]) -> Pairs:
    """Without the outputs that people settled: their verdict counts."""
    pairs: Pairs = defaultdict(list)
    rows = run.judged_outputs.filter(verdict__error="").exclude(rollout__in=settled)
    for step, success, mode in rows.values_list("rollout__step", "rollout__success", "verdict__mode"):
        pairs[step].append((success, not mode))
    return pairs


def judgements_of(run: TrainingRun) -> list[Judgement]:
    """Of people and of the LLM judge, apart."""
    least = run_alarms.limits_of(run, "judge_gap").over
    people, settled = by_people(run)
    return [Judgement(PEOPLE, people, least), Judgement(JUDGE, by_judge(run, settled), least)]


def weigh(run: TrainingRun) -> None:
    """Stores what people and the judge say as metrics, and judges the alarm `judge_gap` by the greater gap of the two."""
    found = [one for one in judgements_of(run) if one.pairs]
    for one in found:
        store(run, one.pairs, OF_REVIEW if one.who == PEOPLE else OF_JUDGE)
    if not found:
        return
    worst = max(found, key=lambda one: -1.0 if one.gap is None else one.gap)
    others = " ".join(in_words(one) for one in found if one is not worst)
    run_alarms.judge_outside(run, "judge_gap", max(worst.pairs), worst.gap, others, worst.title)


def in_words(one: Judgement) -> str:
    who = "People" if one.who == PEOPLE else "The LLM judge"
    if one.gap is None:
        return f"{who} judged {one.n} outputs, too few for a gap."
    return (
        f"By {'people' if one.who == PEOPLE else 'the LLM judge'}, on {len(one.recent)} outputs, it is {one.gap:.3g}."
    )


def recent(pairs: Pairs, least: int) -> list[tuple[bool, bool]]:
    """Of the last steps that have at least so many together: what was said of the start is no word on the policy of now."""
    found: list[tuple[bool, bool]] = []
    for step in sorted(pairs, reverse=True):
        if len(found) >= least:
            break
        found += pairs[step]
    return found


def store(run: TrainingRun, pairs: Pairs, names: tuple[str, ...]) -> None:
    rows = [
        Metric(run=run, step=step, name=name, value=value)
        for step, judged in pairs.items()
        for name, value in zip(
            names,
            (sum(one for one, _ in judged) / len(judged), sum(two for _, two in judged) / len(judged), len(judged)),
            strict=True,
        )
    ]
    Metric.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["run", "name", "step"], update_fields=["value", "at"]
    )


# The LLM judge


def due() -> list[UUID]:
    """Runs whose outputs the judge is to read: those that ask for it, until a day after their end."""
    asked = TrainingRun.objects.filter(
        spec__config__judge_outputs__gt=0, project__rubrics__is_on=True, project__in=Project.objects.running()
    )
    rows = asked.filter(Q(state__in=ACTIVE_STATES) | Q(finished_at__gte=timezone.now() - PATIENCE))
    return [run.pk for run in rows.distinct() if undrawn(run) or unjudged(run).exists()]


def undrawn(run: TrainingRun) -> list[int]:
    """The steps at which the policy was sampled and nothing was drawn for the judge; of a run that goes on, the last one is complete
    when a later step has reported."""
    drawn = set(run.judged_outputs.values_list("rollout__step", flat=True).distinct())
    last = run.metrics.aggregate(last=Max("step"))["last"] or 0
    return [step for step in outputs.steps_of(run) if step not in drawn and (not run.is_active or step < last)]


def unjudged(run: TrainingRun) -> QuerySet[JudgedOutput]:
    """Those that the judge is still to be asked about: after its last try it gave no verdict, and will give none."""
    failed = ~Q(verdict__error="") & ~Q(verdict__error__startswith=judging.LAST_TRY)
    return run.judged_outputs.filter(Q(verdict=None) | failed)


def draw(run: TrainingRun) -> None:
    """The same tasks at each step, in an order that does not depend on what was said; only what has a score can be compared with it."""
    for step in undrawn(run):
        rows = run.rollouts.filter(phase__in=outputs.PHASES, step=step, masked=False)
        order = sorted(rows.values_list("task", "index", "phase", "pk"), key=lambda one: place_of(run, *one[:2]))
        chosen = [JudgedOutput(run=run, rollout_id=pk) for *_, pk in order[: run.spec["config"]["judge_outputs"]]]
        JudgedOutput.objects.bulk_create(chosen, ignore_conflicts=True)


def place_of(run: TrainingRun, task: UUID, index: int) -> str:
    return hashlib.sha256(f"{run.pk} {task} {index}".encode()).hexdigest()


def ask_judge(run: TrainingRun, sleep: Callable[[float], None] = time.sleep) -> judging.Report:
    """Draws outputs, has the judge read them as far as today's budget goes, and weighs what it says. An output that it has read before,
    of the same task, is not paid for again."""
    draw(run)
    first = (F("verdict").asc(nulls_first=True), "-rollout__step", "pk")
    rows = list(unjudged(run).select_related("rollout__task").order_by(*first)[:AT_ONCE])
    environment = load_for(run.environment)
    subjects = {row.pk: subject_of(environment, row.rollout) for row in rows}
    report = judging.judge_subjects(
        project=run.project,
        subjects={one.digest: one for one in subjects.values()}.values(),
        sleep=sleep,
        for_s=BATCH_S,
    )
    digests = {one.digest for one in subjects.values()}
    known = JudgeVerdict.objects.filter(
        rubric__project=run.project, rubric__is_on=True, content_digest__in=digests, trajectory=None
    )
    verdicts = {verdict.content_digest: verdict for verdict in known}
    for row in rows:
        row.verdict = verdicts.get(subjects[row.pk].digest, row.verdict)
    JudgedOutput.objects.bulk_update(rows, ["verdict"])
    weigh(run)
    return report


def subject_of(environment: Environment, row: Rollout) -> judging.Subject:
    """The conversation as the policy had it. Neither the verifier's score nor the expected answer is shown."""
    episode = environment.open(row.task.as_spec())
    said = row.messages or [{"role": "assistant", "content": row.output}]
    conversation = {"messages": [*episode.messages, *said], "tools": episode.offered, "interventions": []}
    return judging.Subject(digest_of(["training output", conversation])[:32], conversation)


def judge_says(run: TrainingRun) -> dict[int, tuple[bool, str]]:
    """{rollout: (whether it passes by the LLM judge, its reason)} of those that it has read."""
    rows = run.judged_outputs.filter(verdict__error="").values_list("rollout", "verdict__mode", "verdict__reason")
    return {pk: (not mode, reason) for pk, mode, reason in rows}
