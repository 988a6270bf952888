"""Outputs of a training run that people judge in the reward review's queue, or that the project's
LLM judge reads at checkpoints, and what their verdicts say about the run's reward.

The two kinds of verdicts are kept separate. If both exist for an output, the person's verdict
counts.
"""

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

from apps.core.bus import on
from apps.core.errors import Rejected
from apps.core.models import ACTIVE_STATES, Project
from apps.environments.clients import load_for
from apps.evals.canonical import digest_of
from apps.evals.sample_events import COLUMNS
from apps.failures.judge import judging
from apps.failures.models import JudgeVerdict
from apps.reviews.actions import OutputJudged, send_outputs
from apps.reviews.labels import labels_of
from apps.reviews.models import RewardReview, SentOutput
from apps.reviews.reservations import needed_of
from apps.training import outputs, run_alarms
from apps.training.models import JudgedOutput, Metric, Rollout, TrainingRun
from workers.lib.alarms import judged_gap
from workers.lib.environments import Environment

SENT = 20  # outputs per click
OF_REVIEW = ("review/verifier_success", "review/people_success", "review/outputs")
OF_JUDGE = ("judge/verifier_success", "judge/success", "judge/outputs")
PATIENCE = timedelta(
    days=1
)  # the judge still reads outputs this long after a run ends, since its budget is per day
BATCH_S, AT_ONCE = 120.0, 200  # per task: seconds and outputs


class NothingToSend(Rejected):
    """The message is a sentence for the page."""


@transaction.atomic
def send(
    *,
    run: TrainingRun,
    by: Any,
    step: int | None = None,
    number: int | None = None,
    n: int = SENT,
    seed: int = 0,
) -> tuple[RewardReview, int]:
    """Send a seeded sample of a step's outputs, or the one rollout `number`, to the run's review.
    Returns the review and how many were new.

    Only outputs with a score can be judged against it. Raises NothingToSend.
    """
    rows = run.rollouts.filter(masked=False).select_related("task")
    if number is not None:
        chosen = list(rows.filter(pk=number))
    else:
        steps = outputs.steps_of(run)
        step = steps[-1] if step is None and steps else step
        known = list(
            rows.filter(phase__in=outputs.PHASES, step=step).order_by("task__key", "index", "pk")
        )
        chosen = random.Random(f"review {run.pk} {step} {seed}").sample(known, min(n, len(known)))
    if not chosen:
        raise NothingToSend(
            "There are no scored outputs to send: choose a step at which the policy was sampled, or"
            " an output that is not masked."
        )
    training = {"run": str(run.pk), "name": run.name}
    return send_outputs(
        verifier=run.environment.verifier,
        outputs=[sent_from(run, row) for row in chosen],
        training=training,
        by=by,
        seed=seed,
    )


def sent_from(run: TrainingRun, row: Rollout) -> SentOutput:
    source = {"run": str(run.pk), "name": run.name, "step": row.step, "rollout": row.pk}
    fields = {name: getattr(row, name) for name in COLUMNS}
    return SentOutput(
        project=run.project, environment=run.environment, task=row.task, source=source, **fields
    )


def reviews_of(run: TrainingRun) -> list[RewardReview]:
    return list(
        run.project.reward_reviews.filter(scope__training__run=str(run.pk)).select_related(
            "verifier"
        )
    )


def verdicts_of(run: TrainingRun) -> dict[int, str]:
    """{rollout: people's verdict, or that it is in review} for the outputs that were sent."""
    found: dict[int, str] = {}
    for review in reviews_of(run):
        rollouts = dict(review.items.values_list("pk", "sent__source__rollout"))
        for label in labels_of([review.pk])[review.pk]:
            person = label.person(needed_of(review))
            found[rollouts[label.item]] = (
                "in review" if person is None else "people: passed" if person else "people: failed"
            )
    return found


@on(OutputJudged)
def weigh_judged(event: OutputJudged) -> None:
    """Updates the run's metrics and evaluates the alarm `judge_gap` again."""
    review = event.review
    training = review.training or {}
    run = (
        TrainingRun.objects.filter(project=review.project_id, pk=training.get("run"))
        .select_related("project")
        .first()
    )
    if run is not None:
        weigh(run)


Pairs = dict[int, list[tuple[bool, bool]]]
"""{step: (success by the verifier, success by who judged) of each output}"""


@dataclass(frozen=True)
class Judgement:
    """How people, or the LLM judge, rate a run's outputs compared with its verifier. `gap` is
    `workers.lib.alarms.judged_gap` over the `recent` outputs; None if there are too few.
    """

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
        """The share of recent outputs that pass, according to the verifier (0) or to people or the
        judge (1).
        """
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
    """Outputs that people have settled, and the ids of their rollouts."""
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
    """Outputs that the judge has read, except those that people have settled."""
    pairs: Pairs = defaultdict(list)
    rows = run.judged_outputs.filter(verdict__error="").exclude(rollout__in=settled)
    for step, success, mode in rows.values_list(
        "rollout__step", "rollout__success", "verdict__mode"
    ):
        pairs[step].append((success, not mode))
    return pairs


def judgements_of(run: TrainingRun) -> list[Judgement]:
    """Separately for people and for the LLM judge."""
    least = run_alarms.limits_of(run, "judge_gap").over
    people, settled = by_people(run)
    return [Judgement(PEOPLE, people, least), Judgement(JUDGE, by_judge(run, settled), least)]


def weigh(run: TrainingRun) -> None:
    """Store the ratings of people and judge as metrics, and evaluate the alarm `judge_gap` on the
    larger of the two gaps.
    """
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
        f"By {'people' if one.who == PEOPLE else 'the LLM judge'}, on {len(one.recent)} outputs, it"
        f" is {one.gap:.3g}."
    )


def recent(pairs: Pairs, least: int) -> list[tuple[bool, bool]]:
    """The pairs of the last steps that together have at least `least`: ratings of the first steps
    say nothing about the current policy.
    """
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
            (
                sum(one for one, _ in judged) / len(judged),
                sum(two for _, two in judged) / len(judged),
                len(judged),
            ),
            strict=True,
        )
    ]
    Metric.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["run", "name", "step"],
        update_fields=["value", "at"],
    )


# The LLM judge


def due() -> list[UUID]:
    """Runs whose outputs the judge should read: those that request it, until a day after their
    end.
    """
    asked = TrainingRun.objects.filter(
        spec__config__judge_outputs__gt=0,
        project__rubrics__is_on=True,
        project__in=Project.objects.running(),
    )
    rows = asked.filter(Q(state__in=ACTIVE_STATES) | Q(finished_at__gte=timezone.now() - PATIENCE))
    return [run.pk for run in rows.distinct() if undrawn(run) or unjudged(run).exists()]


def undrawn(run: TrainingRun) -> list[int]:
    """Steps at which the policy was sampled but nothing was drawn for the judge. In an active run,
    the last step is complete only once a later step has reported.
    """
    drawn = set(run.judged_outputs.values_list("rollout__step", flat=True).distinct())
    last = run.metrics.aggregate(last=Max("step"))["last"] or 0
    return [
        step
        for step in outputs.steps_of(run)
        if step not in drawn and (not run.is_active or step < last)
    ]


def unjudged(run: TrainingRun) -> QuerySet[JudgedOutput]:
    """Outputs that the judge still has to read. If it gave no verdict on its last try, it is not
    asked again.
    """
    failed = ~Q(verdict__error="") & ~Q(verdict__error__startswith=judging.LAST_TRY)
    return run.judged_outputs.filter(Q(verdict=None) | failed)


def draw(run: TrainingRun) -> None:
    """Draw outputs of the same tasks at each step, in an order that does not depend on their
    content. Only outputs with a score are drawn, since only those can be compared with it.
    """
    for step in undrawn(run):
        rows = run.rollouts.filter(phase__in=outputs.PHASES, step=step, masked=False)
        order = sorted(
            rows.values_list("task", "index", "phase", "pk"),
            key=lambda one: place_of(run, *one[:2]),
        )
        chosen = [
            JudgedOutput(run=run, rollout_id=pk)
            for *_, pk in order[: run.spec["config"]["judge_outputs"]]
        ]
        JudgedOutput.objects.bulk_create(chosen, ignore_conflicts=True)


def place_of(run: TrainingRun, task: UUID, index: int) -> str:
    return hashlib.sha256(f"{run.pk} {task} {index}".encode()).hexdigest()


def ask_judge(run: TrainingRun, sleep: Callable[[float], None] = time.sleep) -> judging.Report:
    """Draw outputs, have the judge read them as far as today's budget goes, and store the result.
    An output that it has already read for the same task is not paid for again.
    """
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
    """The conversation as the policy had it, without the verifier's score or the expected
    answer.
    """
    episode = environment.open(row.task.as_spec())
    said = row.messages or [{"role": "assistant", "content": row.output}]
    conversation = {
        "messages": [*episode.messages, *said],
        "tools": episode.offered,
        "interventions": [],
    }
    return judging.Subject(digest_of(["training output", conversation])[:32], conversation)


def judge_says(run: TrainingRun) -> dict[int, tuple[bool, str]]:
    """{rollout: (whether it passes according to the LLM judge, its reason)} for those that it has
    read.
    """
    rows = run.judged_outputs.filter(verdict__error="").values_list(
        "rollout", "verdict__mode", "verdict__reason"
    )
    return {pk: (not mode, reason) for pk, mode, reason in rows}
