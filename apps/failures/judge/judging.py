"""Runs the judge: picks the runs it is asked about, enforces its budget, and applies its verdicts
to failures.

A run is judged in three steps: `_claim` reserves its maximum cost (one claim at a time per project,
so that two workers cannot spend the same dollar), the question is asked outside of any transaction,
and `_settle` stores the answer, the actual cost and the failure in one transaction. Several
questions are asked in parallel, each reserved before it is asked. If a worker dies in between, its
claim is taken over after `LOST_AFTER`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from apps.core.models import Project
from apps.failures.actions.diagnose import as_input
from apps.failures.actions.modes import ensure_modes
from apps.failures.judge import rubrics, share
from apps.failures.judge.answer import Verdict
from apps.failures.judge.asking import Judged
from apps.failures.judge.client import Server
from apps.failures.judge.precedence import RULE, Label, choose, rules_mode
from apps.failures.judge.strategies import Question
from apps.failures.models import (
    Failure,
    FailureMode,
    FailureState,
    JudgeVerdict,
    Rubric,
    Source,
)
from apps.trajectories.models import Trajectory, with_content

log = logging.getLogger(__name__)
RETRIES = 3  # for a run that got no verdict
RETRY_AFTER, LOST_AFTER = timedelta(minutes=15), timedelta(minutes=15)
TOO_MANY_ERRORS = 3  # errors in a row after which the server counts as down
CHUNK, BATCH_S = 20, 120.0
UNDER_WAY = "asked, no answer yet"
OF = f"of {RETRIES + 1} tries used:"
LAST_TRY = f"{RETRIES + 1} {OF}"


@dataclass
class Report:
    """The result of judging a batch. `stopped` says why not all runs were judged; empty if they
    were.
    """

    asked: int = 0
    failures: int = 0
    kept: int = 0
    errors: int = 0
    later: int = 0
    spent_usd: float = 0.0
    stopped: str = ""

    def add(self, other: Report) -> None:
        for name in ("asked", "failures", "kept", "errors", "later", "spent_usd"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.stopped = other.stopped


@dataclass(frozen=True)
class Subject:
    """A conversation to be judged, as `prompt.make` takes it. Without a `trajectory` it is not a
    production run, and the verdict does not affect any failure. `digest` (32 characters) identifies
    its content. `probability` is that with which it was drawn; None if it was not.
    """

    digest: str
    run: dict[str, Any]
    trajectory: Trajectory | None = None
    probability: float | None = None

    def __str__(self) -> str:
        return str(self.trajectory.pk if self.trajectory else self.digest)


class Standing(Enum):
    """Whether a run may be asked about now, and if not, why."""

    OURS = "ours"
    ANSWERED = "answered"
    LATER = "later"
    NO_MONEY = "no money"
    NO_PRICE = "no price"
    OFF = "off"


def judge(
    *,
    project: Project,
    trajectories: Iterable[Trajectory],
    drawn: Mapping[UUID, float] = MappingProxyType({}),
    sleep: Callable[[float], None] = time.sleep,
    for_s: float = math.inf,
) -> Report:
    """`judge_subjects` for production runs. `drawn` are the probabilities of the drawn ones."""
    subjects = _subjects(trajectories, drawn)
    return judge_subjects(project=project, subjects=subjects, sleep=sleep, for_s=for_s)


def _subjects(trajectories: Iterable[Trajectory], drawn: Mapping[UUID, float]) -> Iterator[Subject]:
    rows = iter(trajectories)
    while chunk := with_content(list(islice(rows, CHUNK))):
        for row in chunk:
            yield Subject(row.content_digest, as_input(row), row, drawn.get(row.pk))


def judge_subjects(
    *,
    project: Project,
    subjects: Iterable[Subject],
    sleep: Callable[[float], None] = time.sleep,
    for_s: float = math.inf,
) -> Report:
    """Ask about the subjects that have no verdict of the active rubric, until the day's budget or
    the time is used up.

    At most `rubric.concurrency` questions run in parallel. The threads only ask questions;
    reserving money and storing results happens here.
    """
    report = Report()
    rubric = rubrics.current(project)
    if rubric is None:
        report.stopped = "The judge is off."
        return report
    ends = time.monotonic() + for_s
    with ThreadPoolExecutor(rubric.concurrency, "judge") as threads:
        batch = _Batch(project, rubric, threads, report, sleep)
        try:
            for subject in subjects:
                batch.judge(subject)
                if time.monotonic() > ends and not report.stopped:
                    report.stopped = (
                        f"Stopped after {for_s:.0f} s; the rest will be judged next time."
                    )
                if report.stopped:
                    break
        finally:
            batch.settle_all()
    return report


@dataclass(frozen=True)
class _Asked:
    """A question being asked, and the cost reserved for it."""

    subject: Subject
    verdict: JudgeVerdict
    server: Server
    max_cost: float


class _Batch:
    """Judges runs in parallel. Not thread-safe itself: its threads only ask questions and do
    nothing else.
    """

    def __init__(
        self,
        project: Project,
        rubric: Rubric,
        threads: ThreadPoolExecutor,
        report: Report,
        sleep: Callable[[float], None],
    ) -> None:
        self._project, self._rubric, self._threads, self._report, self._sleep = (
            project,
            rubric,
            threads,
            report,
            sleep,
        )
        self._known, self._modes = ensure_modes(project), rubrics.modes_of(project)
        self._under_way: dict[Future[Judged], _Asked] = {}
        self._errors_in_a_row = 0
        # questions at a time: doubled by each verdict up to the rubric's limit, back to 1 after an
        # error, to go easy on a server that is down
        self._room = 1
        self._cost_factor = (
            1.0  # factor on the estimated cost: some servers count more tokens than estimated
        )

    def judge(self, subject: Subject) -> None:
        """Reserve the cost of a run and ask about it, once a slot is free.

        If the rest of the budget is reserved by other questions of the batch, wait for those first:
        they may cost less than reserved.
        """
        while len(self._under_way) >= self._room:
            self._settle_first()
        if self._report.stopped:
            return
        server = rubrics.server_of(self._rubric)
        question = Question.of(self._rubric.strategy, self._rubric.text, self._modes, subject.run)
        estimated = question.max_cost(server)
        is_priced = server.is_priced
        claim = partial(_claim, self._project, self._rubric, subject, is_priced=is_priced)
        standing, verdict = claim(max_cost := estimated * self._cost_factor)
        while standing is Standing.NO_MONEY and self._under_way:
            self._settle_first()
            standing, verdict = claim(max_cost := estimated * self._cost_factor)
        if standing is Standing.OURS:
            asked = self._threads.submit(question.ask, server, self._sleep)
            self._under_way[asked] = _Asked(subject, verdict, server, max_cost)
        elif standing is Standing.ANSWERED:
            self._report.kept += 1
            if subject.trajectory:
                with transaction.atomic():
                    if subject.probability:
                        verdict.probability = subject.probability
                        verdict.save(update_fields=["probability"])
                    _apply(self._project, self._known, subject.trajectory, verdict)
        elif standing is Standing.LATER:
            self._report.later += 1
        else:
            self._report.stopped = _why(standing, self._rubric)

    def settle_all(self) -> None:
        while self._under_way:
            self._settle_first()

    def _settle_first(self) -> None:
        """Wait for at least one answer and store those that have arrived. A question that crashed
        keeps its reservation and is retried later.
        """
        for done in wait(self._under_way, return_when=FIRST_COMPLETED).done:
            asked = self._under_way.pop(done)
            self._report.asked += 1
            if error := done.exception():
                log.error("Asking the judge about %s broke", asked.subject, exc_info=error)
                self._count_error()
                continue
            self._settle(asked, done.result())

    def _settle(self, asked: _Asked, judged: Judged) -> None:
        cost = asked.server.cost(judged.usage)
        _settle(
            self._project, self._known, asked.subject, asked.verdict, judged, cost - asked.max_cost
        )
        if asked.max_cost:
            self._cost_factor *= max(1.0, cost / asked.max_cost)
        self._report.spent_usd += cost
        self._report.failures += bool(judged.verdict and judged.verdict.failed)
        if judged.verdict is None:
            self._count_error()
        else:
            self._errors_in_a_row = 0
            self._room = min(2 * self._room, self._rubric.concurrency)
        if judged.final and not self._report.stopped:
            self._report.stopped = judged.error or "The judge's server rejects every request."

    def _count_error(self) -> None:
        self._report.errors += 1
        self._errors_in_a_row += 1
        self._room = 1
        if self._errors_in_a_row >= TOO_MANY_ERRORS and not self._report.stopped:
            self._report.stopped = (
                f"{TOO_MANY_ERRORS} runs in a row got no verdict; the rest will be retried later."
            )


def _why(standing: Standing, rubric: Rubric) -> str:
    if standing is Standing.OFF:
        return "The judge was switched off, or its rubric changed."
    if standing is Standing.NO_PRICE:
        return rubrics.no_price(rubric)
    return (
        f"Today's budget of ${rubric.usd_per_day:g} is used up. The judge continues tomorrow (UTC)."
    )


@transaction.atomic
def _claim(
    project: Project, rubric: Rubric, subject: Subject, max_cost: float, is_priced: bool = True
) -> tuple[Standing, JudgeVerdict | None]:
    """Reserve the maximum cost and claim the run, if it is due. The verdict's `at` marks when it
    was claimed.
    """
    rubrics.locked(project)
    if not Rubric.objects.filter(pk=rubric.pk, is_on=True).exists():
        return Standing.OFF, None
    found = (
        JudgeVerdict.objects.select_for_update()
        .filter(rubric=rubric, content_digest=subject.digest)
        .first()
    )
    if found and not found.error:
        return Standing.ANSWERED, found
    if found and not _is_due(found):
        return Standing.LATER, None
    if (
        rubrics.spent_since(project, rubrics.midnight()) + max_cost > rubric.usd_per_day
        and max_cost > 0
    ):
        return Standing.NO_MONEY, None
    if not is_priced and rubrics.asked_today(project) >= rubrics.UNPRICED_A_DAY:
        return Standing.NO_PRICE, None
    verdict = found or JudgeVerdict(rubric=rubric, content_digest=subject.digest)
    verdict.probability = subject.probability or verdict.probability
    verdict.trajectory, verdict.at = subject.trajectory, timezone.now()
    verdict.error = f"{tries(verdict.error) + 1} {OF} {UNDER_WAY}."
    # The cost of earlier tries moves to today together with this one, so the budget is never
    # undercounted.
    verdict.cost_usd += max_cost
    verdict.save()
    return Standing.OURS, verdict


def tries(error: str) -> int:
    """How often a run without a verdict was asked about; its error begins with “2 of 4 tries
    used:”.
    """
    count, _, rest = error.partition(" ")
    return int(count) if rest.startswith(OF) and count.isdigit() else 0


def _is_due(found: JudgeVerdict) -> bool:
    wait = LOST_AFTER if UNDER_WAY in found.error else RETRY_AFTER
    return not found.error.startswith(LAST_TRY) and found.at <= timezone.now() - wait


@transaction.atomic
def _settle(
    project: Project,
    known: dict[str, FailureMode],
    subject: Subject,
    verdict: JudgeVerdict,
    judged: Judged,
    correction: float,
) -> None:
    """Store the answer and its effect on the failure. If another worker has taken over the claim,
    only the cost is recorded.
    """
    ours = JudgeVerdict.objects.select_for_update().filter(pk=verdict.pk).first()
    if ours is None:
        return
    ours.cost_usd = max(0.0, ours.cost_usd + correction)
    ours.input_tokens += judged.usage.input_tokens
    ours.output_tokens += judged.usage.output_tokens
    if ours.at == verdict.at and ours.error == verdict.error:
        _write(ours, judged, subject)
    ours.save()
    if not ours.error and subject.trajectory:
        _apply(project, known, subject.trajectory, ours)


def _write(verdict: JudgeVerdict, judged: Judged, subject: Subject) -> None:
    if judged.verdict is None:
        used = tries(verdict.error) - judged.final  # a wrong API key is not the run's fault
        verdict.error = f"{used} {OF} {judged.error}"[:2000]
        log.info("The judge gave no verdict on %s: %s", subject, judged.error)
        return
    said = judged.verdict
    verdict.mode, verdict.blamed_message, verdict.error = said.mode, said.message_index, ""
    verdict.quote, verdict.reason, verdict.confidence = said.quote, said.reason, said.confidence


def _apply(
    project: Project, known: dict[str, FailureMode], row: Trajectory, verdict: JudgeVerdict
) -> None:
    """Apply the judge's verdict where it may count. Call it inside a transaction; applying it twice
    changes nothing.
    """
    same = Trajectory.objects.filter(pk=row.pk, content_digest=verdict.content_digest).exists()
    if not same or (verdict.mode and verdict.mode not in known):
        return  # the run has changed since, or the mode no longer exists
    if verdict.mode:  # keeps a failure that the rules or another worker create at the same moment
        made = Failure(
            project=project, trajectory=row, mode=known[verdict.mode], source=Source.JUDGE
        )
        Failure.objects.bulk_create([made], ignore_conflicts=True)
    failure = Failure.objects.select_for_update(of=("self",)).filter(trajectory=row).first()
    if failure is None:
        return
    failure.judge_mode = verdict.mode
    if failure.state != FailureState.OPEN or failure.source == Source.PERSON:
        failure.save(update_fields=["judge_mode"])
        return
    _diagnose(failure, known, verdict)


def _diagnose(failure: Failure, known: dict[str, FailureMode], verdict: JudgeVerdict) -> None:
    """Combine rules and verdict for a failure nobody has decided on; delete it if only the judge
    saw it and now no longer does.
    """
    rules = rules_word(failure)
    word = choose(
        rules,
        Verdict(
            verdict.mode,
            verdict.blamed_message,
            verdict.quote,
            verdict.reason,
            verdict.confidence,
        ),
    )
    if word.mode not in known:
        failure.delete()
        return
    failure.mode, failure.blamed_message, failure.evidence = (
        known[word.mode],
        word.blamed,
        word.evidence,
    )
    failure.source = Source.JUDGE if word.by_judge else Source.RULE
    failure.rule_mode = rules_mode(rules.evidence) if rules.evidence else rules.mode
    failure.save(
        update_fields=["mode", "blamed_message", "evidence", "source", "rule_mode", "judge_mode"]
    )


def rules_word(failure: Failure) -> Label:
    """The rules' diagnosis of a failure, even if the judge decided its mode."""
    evidence = [item for item in failure.evidence if item.get("rule") != RULE]
    if failure.source == Source.RULE:
        return Label(failure.mode.slug, failure.blamed_message, evidence)
    return Label(
        failure.rule_mode, evidence[0].get("message_index") if evidence else None, evidence
    )


def pending(project: Project, rubric: Rubric, limit: int = CHUNK) -> list[Trajectory]:
    """Runs to ask about, newest first: those with an undecided failure, or with a bad outcome in
    which the rules found nothing.

    Left out are runs with a verdict of this rubric, and those whose retry is not due yet.
    """
    known = _settled(rubric)
    undecided = (
        Failure.objects.filter(project=project, state=FailureState.OPEN)
        .exclude(Exists(known.filter(content_digest=OuterRef("trajectory__content_digest"))))
        .order_by("-trajectory_id")
        .select_related("trajectory")[:limit]
    )
    missed = (
        project.trajectories.failed()
        .filter(~Exists(Failure.objects.filter(trajectory=OuterRef("pk"))))
        .exclude(Exists(known.filter(content_digest=OuterRef("content_digest"))))
        .order_by("-pk")[:limit]
    )
    found = [*(failure.trajectory for failure in undecided), *missed]
    return sorted(found, key=lambda row: row.pk, reverse=True)[:limit]


def _settled(rubric: Rubric) -> QuerySet[JudgeVerdict]:
    """What need not be asked about now: it has a verdict, or its retry is not due yet."""
    waits = Q(at__gt=timezone.now() - RETRY_AFTER) | Q(error__startswith=LAST_TRY)
    return rubric.verdicts.filter(Q(error="") | waits)


def judge_new(project: Project, limit: int = CHUNK) -> Report:
    """Judge the random share of all runs, then the other flagged or failed ones, until the day's
    budget or BATCH_S is used up. Returns an empty report if the judge is off.
    """
    rubric = rubrics.current(project)
    if rubric is None:
        return judge(project=project, trajectories=[])
    whole, ends = Report(), time.monotonic() + BATCH_S
    drawn = share.draw(project, rubric, _settled(rubric))
    turns = iter(drawn)
    while not whole.stopped:
        chunk = list(islice(turns, limit))
        named = project.trajectories.in_bulk(chunk)
        rows = [named[pk] for pk in chunk if pk in named] or pending(project, rubric, limit)
        report = judge(
            project=project, trajectories=rows, drawn=drawn, for_s=ends - time.monotonic()
        )
        whole.add(report)
        if not (report.asked or chunk):
            break
    if whole.stopped:
        log.warning("The judge of %s stopped: %s", project.slug, whole.stopped)
    return whole
