"""Judges runs: picks those that it is asked about, and applies its verdicts to failures.

`batch` asks and keeps to the budget. If a worker dies between the claim of a run and its answer,
the claim is taken over after `LOST_AFTER`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Count, Exists, Min, OuterRef, Q, QuerySet
from django.utils import timezone

from apps.core.lags import lag
from apps.core.models import Project
from apps.failures.actions.diagnose import is_undecided, judged_of
from apps.failures.actions.modes import ensure_modes
from apps.failures.judge import batch, rubrics, share
from apps.failures.judge.answer import Verdict
from apps.failures.judge.asking import Answered
from apps.failures.judge.batch import Standing
from apps.failures.judge.client import Server
from apps.failures.judge.precedence import REPLAY, RULE, Label, choose, rules_mode
from apps.failures.judge.strategies import Question
from apps.failures.models import (
    UNDER_WAY,
    Failure,
    FailureMode,
    FailureState,
    JudgeVerdict,
    PolicyRule,
    Rubric,
    Source,
)
from apps.failures.rules.findings import cut
from apps.trajectories.ids import floor_of
from apps.trajectories.models import Trajectory, with_content
from apps.trajectories.windows import rows_of

log = logging.getLogger(__name__)
TASK = "failures.judge_project"
COUNTED = 200  # waiting runs that are looked at
RETRIES = 3  # for a run that got no verdict
RETRY_AFTER, LOST_AFTER = timedelta(minutes=15), timedelta(minutes=15)
CHUNK, BATCH_S = 20, 120.0
ROUND_LATE = timedelta(minutes=10)  # after the last one, of which there is one every three minutes
FIRST_ID = UUID(int=0)
OF = f"of {RETRIES + 1} tries used:"
LAST_TRY = f"{RETRIES + 1} {OF}"


@dataclass
class Report(batch.Report):
    """`failures`: runs in which the judge saw one."""

    failures: int = 0


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


def judge(
    *,
    project: Project,
    trajectories: Iterable[Trajectory],
    drawn: Mapping[UUID, float] = MappingProxyType({}),
    sleep: Callable[[float], None] = time.sleep,
    for_s: float = math.inf,
    retry_before: datetime | None = None,
) -> Report:
    """`judge_subjects` for production runs. `drawn` are the probabilities of the drawn ones."""
    return judge_subjects(
        project=project,
        subjects=_subjects(project, trajectories, drawn),
        sleep=sleep,
        for_s=for_s,
        retry_before=retry_before,
    )


def _subjects(
    project: Project, trajectories: Iterable[Trajectory], drawn: Mapping[UUID, float]
) -> Iterator[Subject]:
    rows = iter(trajectories)
    while chunk := with_content(list(islice(rows, CHUNK))):
        inputs = judged_of(project, chunk)
        for row in chunk:
            yield Subject(row.content_digest, inputs[row.pk], row, drawn.get(row.pk))


def judge_subjects(
    *,
    project: Project,
    subjects: Iterable[Subject],
    sleep: Callable[[float], None] = time.sleep,
    for_s: float = math.inf,
    retry_before: datetime | None = None,
) -> Report:
    """Ask about the subjects that have no verdict of the active rubric, until the day's budget or
    the time is used up. Those without an answer are asked about again if the last try was before
    `retry_before`, or else RETRY_AFTER later.
    """
    report = Report()
    rubric = rubrics.current(project)
    if rubric is None:
        report.stopped = batch.OFF
        return report
    known, question = ensure_modes(project), rubrics.asked_with(rubric)
    entries = (
        _Entry(rubric, subject, known, question, report, retry_before) for subject in subjects
    )
    batch.ask_all(rubric, entries, report, sleep=sleep, for_s=for_s)
    return report


@dataclass
class _Entry(batch.Entry):
    """A run to judge, and its verdict, whose `at` marks when it was claimed."""

    rubric: Rubric
    subject: Subject
    known: dict[str, FailureMode]
    question_about: Callable[..., Question]
    report: Report
    retry_before: datetime | None = None
    verdict: JudgeVerdict | None = None

    def __str__(self) -> str:
        return str(self.subject)

    @cached_property
    def question(self) -> Question:
        return self.question_about(run=self.subject.run)

    def max_cost(self, server: Server) -> float:
        return self.question.max_cost(server)

    def ask(self, server: Server, sleep: batch.Sleep) -> Answered:
        return self.question.ask(server, sleep)

    def standing(self) -> Standing:
        rows = JudgeVerdict.objects.select_for_update()
        self.verdict = rows.filter(rubric=self.rubric, content_digest=self.subject.digest).first()
        if self.verdict is None or (
            self.verdict.error and _is_due(self.verdict, self.retry_before)
        ):
            return Standing.OURS
        return Standing.LATER if self.verdict.error else Standing.ANSWERED

    def reserve(self, usd: float) -> None:
        row = self.verdict or JudgeVerdict(rubric=self.rubric, content_digest=self.subject.digest)
        row.probability = self.subject.probability or row.probability
        row.trajectory, row.at = self.subject.trajectory, timezone.now()
        row.error = f"{tries(row.error) + 1} {OF} {UNDER_WAY}."
        # The cost of earlier tries moves to today together with this one, so the budget is never
        # undercounted.
        row.reserve_cost(usd)
        row.save()
        self.verdict = row

    @transaction.atomic
    def reuse(self) -> None:
        verdict, subject = self.verdict, self.subject
        if verdict is None or subject.trajectory is None:
            return
        if subject.probability:
            verdict.probability = subject.probability
            verdict.save(update_fields=["probability"])
        _apply(self.rubric.project, self.known, subject.trajectory, verdict)

    @transaction.atomic
    def settle(self, answered: Answered, correction: float) -> None:
        """If another worker has taken over the claim, only the cost is recorded."""
        self.report.failures += bool(answered.answer and answered.answer.failed)
        claimed = self.verdict
        ours = JudgeVerdict.objects.select_for_update().filter(pk=claimed and claimed.pk).first()
        if ours is None or claimed is None:
            return
        ours.settle_cost(correction)
        ours.input_tokens += answered.usage.input_tokens
        ours.output_tokens += answered.usage.output_tokens
        if ours.at == claimed.at and ours.error == claimed.error:
            _write(ours, answered, self.subject)
        ours.save()
        if not ours.error and self.subject.trajectory:
            _apply(self.rubric.project, self.known, self.subject.trajectory, ours)


def tries(error: str) -> int:
    """How often a run without a verdict was asked about; its error begins with “2 of 4 tries
    used:”.
    """
    count, _, rest = error.partition(" ")
    return int(count) if rest.startswith(OF) and count.isdigit() else 0


def _is_due(found: JudgeVerdict, retry_before: datetime | None) -> bool:
    if found.is_asked:
        due = timezone.now() - LOST_AFTER
    else:
        due = retry_before or timezone.now() - RETRY_AFTER
    return not found.error.startswith(LAST_TRY) and found.at <= due


def _write(verdict: JudgeVerdict, answered: Answered, subject: Subject) -> None:
    if answered.answer is None:
        used = tries(verdict.error) - answered.is_servers  # that is not the run's fault
        verdict.error = f"{used} {OF} {answered.error}"[:2000]
        log.info("The judge gave no verdict on %s: %s", subject, answered.error)
        return
    said = answered.answer
    verdict.mode, verdict.blamed_message, verdict.error = said.mode, said.message_index, ""
    verdict.quote, verdict.reason, verdict.confidence = said.quote, said.reason, said.confidence
    verdict.rule = PolicyRule.objects.filter(pk=said.rule).first()  # gone, if it was removed since


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
    if not is_undecided(failure):
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
            _reason(verdict),
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


def _reason(verdict: JudgeVerdict) -> str:
    """With the rule that was broken, if it names one."""
    broken = f"Rule: “{cut(verdict.rule.sentence)}”" if verdict.rule else ""
    return " ".join(filter(None, [verdict.reason, broken]))


def rules_word(failure: Failure) -> Label:
    """The rules' diagnosis of a failure, even if the judge or a replay decided its mode or step."""
    evidence = [item for item in failure.evidence if item.get("rule") != RULE]
    first = next((item for item in evidence if item.get("rule") != REPLAY), {})
    if failure.source == Source.RULE:
        blamed = first.get("blamed", failure.blamed_message)
        return Label(failure.mode.slug, blamed, evidence)
    blamed = first.get("blamed", first.get("message_index"))
    return Label(str(first.get("mode") or failure.rule_mode), blamed, evidence)


def pending(
    project: Project,
    rubric: Rubric,
    limit: int = CHUNK,
    retry_before: datetime | None = None,
) -> list[Trajectory]:
    """Runs to ask about, newest first: those with an undecided failure, or with a bad outcome in
    which the rules found nothing.

    Left out are runs with a verdict of this rubric, and those whose retry is not due yet.
    """
    known = _settled(rubric, retry_before)
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


def waiting(project: Project, rubric: Rubric, limit: int) -> list[Trajectory]:
    """At most so many runs that are to be asked about: drawn ones first, then as `pending`."""
    drawn = islice(share.Draw.of(project).left(_settled(rubric)), limit)
    rows = list(project.trajectories.filter(pk__in=list(drawn)))
    known = {row.pk for row in rows}
    flagged = (row for row in pending(project, rubric, limit) if row.pk not in known)
    return [*rows, *flagged][:limit]


@lag("judged", keep_s=30.0, is_digest=False)
def waiting_since() -> datetime | None:
    """Since when the oldest run waits for a judge that is on: for its turn, for a server that does
    not answer, or for tomorrow's budget. As each round left it; where there has been none for
    ROUND_LATE, since the first run after it.
    """
    late = timezone.now() - ROUND_LATE
    found: list[datetime] = []
    missed: list[tuple[int, datetime, datetime | None]] = []
    on = Rubric.objects.filter(is_on=True, project__in=Project.objects.running())
    columns = ("project_id", "created_at", "round_at", "waits_since")
    for project, created_at, round_at, waits_since in on.values_list(*columns):
        if waits_since:
            found.append(waits_since)
        elif (round_at or created_at) < late:
            missed.append((project, created_at, round_at))
    return min([*found, *_first_after(missed)], default=None)


def _first_after(missed: Sequence[tuple[int, datetime, datetime | None]]) -> Iterator[datetime]:
    """When the first run of each project came that no round has seen."""
    since = (
        (project, floor_of(round_at) if round_at else FIRST_ID) for project, _, round_at in missed
    )
    asked, values = rows_of(since, project="bigint", since="uuid")
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT asked.n, run.received_at FROM {asked} CROSS JOIN LATERAL (SELECT received_at"
            f" FROM {Trajectory._meta.db_table} WHERE project_id = asked.project AND id >="
            " asked.since ORDER BY id LIMIT 1) AS run",
            values,
        )
        for n, received_at in cursor.fetchall():
            yield max(received_at, missed[n - 1][1])


def _note_round(project: Project, rubric: Rubric) -> None:
    """What it left, for `waiting_since`."""
    left = waiting(project, rubric, COUNTED)
    since = min((max(row.received_at, rubric.created_at) for row in left), default=None)
    Rubric.objects.filter(pk=rubric.pk).update(round_at=timezone.now(), waits_since=since)


def _settled(rubric: Rubric, retry_before: datetime | None = None) -> QuerySet[JudgeVerdict]:
    """What need not be asked about now: it has a verdict, is being asked about, or its retry is not
    due yet.
    """
    now = timezone.now()
    asked = Q(at__gt=now - LOST_AFTER, error__contains=UNDER_WAY)
    waits = Q(at__gt=retry_before or now - RETRY_AFTER) | Q(error__startswith=LAST_TRY)
    return rubric.verdicts.filter(Q(error="") | asked | waits)


@dataclass(frozen=True)
class Unanswered:
    """How many runs have no verdict after an error and are asked about again: the first of them at
    `next_at`; and how many are not, since all tries are used.
    """

    again: int
    next_at: datetime | None
    given_up: int


def unanswered(rubric: Rubric) -> Unanswered:
    failed = rubric.verdicts.exclude(error="").exclude(error__contains=UNDER_WAY)
    used_up = failed.filter(error__startswith=LAST_TRY)
    again = failed.exclude(error__startswith=LAST_TRY).aggregate(n=Count("pk"), first=Min("at"))
    next_at = again["first"] and max(timezone.now(), again["first"] + RETRY_AFTER)
    return Unanswered(again["n"], next_at, used_up.count())


def judge_new(project: Project, limit: int = CHUNK, *, now: bool = False) -> Report:
    """Judge the random share of all runs, then the other flagged or failed ones, until the day's
    budget or BATCH_S is used up. Returns an empty report if the judge is off. `now`: those without
    an answer are asked about again, once, without waiting for RETRY_AFTER.
    """
    rubric = rubrics.current(project)
    if rubric is None:
        return judge(project=project, trajectories=[])
    whole, ends = Report(), time.monotonic() + BATCH_S
    retry_before = timezone.now() if now else None
    drawn = share.draw(project, rubric, _settled(rubric, retry_before))
    turns = iter(drawn)
    while not whole.stopped:
        chunk = list(islice(turns, limit))
        named = project.trajectories.in_bulk(chunk)
        rows = [named[pk] for pk in chunk if pk in named] or pending(
            project, rubric, limit, retry_before
        )
        report = judge(
            project=project,
            trajectories=rows,
            drawn=drawn,
            for_s=ends - time.monotonic(),
            retry_before=retry_before,
        )
        whole.add(report)
        if not (report.asked or chunk):
            break
    if whole.stopped:
        log.warning("The judge of %s stopped: %s", project.slug, whole.stopped)
    _note_round(project, rubric)
    return whole
