"""Asks the judge a project's signals about runs, within the judge's daily budget, and keeps the
answers as scores.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import islice
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.core.models import Project
from apps.failures.actions.diagnose import as_input
from apps.failures.judge import batch, rubrics
from apps.failures.judge.asking import Answered, Chat
from apps.failures.judge.batch import Report, Standing
from apps.failures.judge.client import Server
from apps.failures.models import Signal, SignalAnswer
from apps.failures.outcomes.estimates import number_of
from apps.failures.signals.question import Question
from apps.trajectories.actions.scores import receive
from apps.trajectories.ids import floor_of
from apps.trajectories.models import Trajectory, with_content
from apps.trajectories.scores import Sent

TRIED = 20  # runs, before a signal may be switched on
TRIED_AMONG = 1_000  # newest runs
DRAWN_AMONG = 5_000
MOST_TRIES = 3
RETRY_AFTER = timedelta(minutes=15)
CHUNK, BATCH_S = 20, 120.0
WAITING = "Not answered yet."
NO_JUDGE = "The judge is off: signals are asked of its server, within its daily budget."


def question_of(signal: Signal) -> Question:
    return Question(signal.question, signal.kind, signal.words)


def to_try(signal: Signal) -> list[UUID]:
    """Some of the newest runs, drawn anew for each version."""
    newest = signal.project.trajectories.order_by("-pk").values_list("pk", flat=True)
    use = b"try signal %d %d" % (signal.pk, signal.version)
    return sorted(newest[:TRIED_AMONG], key=lambda pk: number_of(signal.project_id, pk, use))[
        :TRIED
    ]


def drawn(signal: Signal) -> list[UUID]:
    """The share of the runs that have begun since it was switched on, the newest first, but those
    that have an answer of this version.
    """
    if signal.on_since is None:
        return []
    rows = signal.project.trajectories.filter(pk__gte=floor_of(signal.on_since))
    newest = rows.order_by("-pk").values_list("pk", flat=True)[:DRAWN_AMONG]
    use = b"signal %d" % signal.pk
    chosen = [pk for pk in newest if number_of(signal.project_id, pk, use) < signal.share]
    return _due(signal, chosen)


def _due(signal: Signal, runs: list[UUID], retry_before: datetime | None = None) -> list[UUID]:
    """Those to ask about now: without an answer, and not under way. After an error a run is asked
    about again RETRY_AFTER later, MOST_TRIES times; for a person, if its last try was before
    `retry_before`. Runs that were not asked about yet come first.
    """
    now, rows = timezone.now(), signal.answers.filter(version=signal.version)
    waits = Q(at__gt=now - RETRY_AFTER) | Q(tries__gte=MOST_TRIES)
    if retry_before:
        under_way = Q(error=WAITING, at__gt=now - RETRY_AFTER)
        waits = under_way | Q(at__gt=retry_before)
    rows = rows.filter(trajectory_id__in=runs)
    asked = dict(rows.values_list("trajectory_id", "at"))
    settled = set(rows.filter(Q(error="") | waits).values_list("trajectory_id", flat=True))
    due = [pk for pk in runs if pk not in settled]
    return sorted(due, key=lambda pk: (pk in asked, asked.get(pk, now)))


def ask_due(project: Project, sleep: batch.Sleep = time.sleep) -> Report:
    """Asks the signals that are on about their drawn runs, for BATCH_S or until the budget is used
    up.
    """
    report, ends = Report(), time.monotonic() + BATCH_S
    for signal in project.signals.filter(on_since__isnull=False):
        if not report.stopped and (turns := drawn(signal)):
            _ask(signal, turns, signal.share, report, sleep, for_s=ends - time.monotonic())
    return report


def try_out(signal: Signal, sleep: batch.Sleep = time.sleep) -> Report:
    """Asks about the runs that show people whether the question works; again about those that got
    no answer, since a person asks for it.
    """
    report, now = Report(), timezone.now()
    _ask(signal, _due(signal, to_try(signal), now), None, report, sleep, retry_before=now)
    return report


def _ask(
    signal: Signal,
    runs: Iterable[UUID],
    share: float | None,
    report: Report,
    sleep: batch.Sleep,
    *,
    for_s: float = math.inf,
    retry_before: datetime | None = None,
) -> None:
    rubric = rubrics.current(signal.project)
    if rubric is None:
        report.stopped = NO_JUDGE
        return
    entries = (_Entry(signal, row, share, retry_before) for row in _rows(runs))
    batch.ask_all(rubric, entries, report, sleep=sleep, for_s=for_s)


def _rows(runs: Iterable[UUID]) -> Iterator[Trajectory]:
    left = iter(runs)
    while chunk := list(islice(left, CHUNK)):
        found = Trajectory.objects.in_bulk(chunk)
        yield from with_content([found[pk] for pk in chunk if pk in found])


@dataclass
class _Entry(batch.Entry):
    """A signal's question about a run."""

    signal: Signal
    row: Trajectory
    share: float | None
    retry_before: datetime | None = None
    answer: SignalAnswer | None = None

    def __str__(self) -> str:
        return f"{self.signal} about {self.row.pk}"

    @cached_property
    def chat(self) -> Chat:
        question, run = question_of(self.signal), as_input(self.row)
        return Chat(question.chat(run), partial(question.read, run=run))

    def max_cost(self, server: Server) -> float:
        return self.chat.max_cost(server)

    def ask(self, server: Server, sleep: batch.Sleep) -> Answered:
        return self.chat.ask(server, sleep)

    def standing(self) -> Standing:
        asked = Signal.objects.filter(pk=self.signal.pk, version=self.signal.version)
        if not asked.exists() or not _due(self.signal, [self.row.pk], self.retry_before):
            return Standing.LATER
        return Standing.OURS

    def reserve(self, usd: float) -> None:
        answer, _ = SignalAnswer.objects.get_or_create(
            signal=self.signal, version=self.signal.version, trajectory=self.row
        )
        answer.probability = self.share or answer.probability
        answer.error, answer.at = WAITING, timezone.now()
        answer.tries += 1
        answer.reserve_cost(usd)
        answer.save()
        self.answer = answer

    @transaction.atomic
    def settle(self, answered: Answered, correction: float) -> None:
        """An answer about a run that is gone is dropped. One to a question that was changed since
        becomes no score.
        """
        rows = SignalAnswer.objects.select_for_update()
        ours = rows.filter(pk=self.answer and self.answer.pk).first()
        if ours is None:
            return
        ours.settle_cost(correction)
        ours.tries -= answered.is_servers  # that is not the run's fault
        ours.error = answered.error if answered.answer is None else ""
        if said := answered.answer:
            ours.quote, ours.reason = said.quote, said.reason
            ours.value = "" if said.value is None else shown(said.value)
            asked = Signal.objects.select_for_update().filter(pk=ours.signal_id)
            signal = asked.filter(version=ours.version).first()
            if signal and said.value is not None:
                _score(signal, ours, self.row, said.value)
        ours.save()


def _score(
    signal: Signal, answer: SignalAnswer, row: Trajectory, value: bool | float | str
) -> None:
    sent = Sent(
        run=row.external_id,
        name=signal.name,
        value=value,
        kind=signal.kind,  # type: ignore[arg-type]
        comment=answer.reason,
        source="judge",
        by=f"signal {signal.name}",
    )
    receive(project=signal.project, sent=[sent])


def shown(value: bool | float | str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:g}"
