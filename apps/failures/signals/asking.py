"""Asks the judge a project's signals about runs, within the judge's daily budget, and keeps the
answers as scores.

As for verdicts, the highest cost of a question is reserved before it is asked, under a lock of the
project; threads only ask, what is stored is stored here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.core.models import Project
from apps.failures.actions.diagnose import as_input
from apps.failures.judge import asking, rubrics
from apps.failures.judge.asking import Answered
from apps.failures.judge.client import Server
from apps.failures.models import Rubric, Signal, SignalAnswer
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
NO_MONEY = "Today's budget of the judge is used up."
Sleep = Callable[[float], None]


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
    return _unanswered(signal, chosen)


def _unanswered(signal: Signal, runs: list[UUID]) -> list[UUID]:
    waits = Q(at__gt=timezone.now() - RETRY_AFTER) | Q(tries__gte=MOST_TRIES)
    known = signal.answers.filter(Q(error="") | waits, version=signal.version)
    settled = set(known.filter(trajectory_id__in=runs).values_list("trajectory_id", flat=True))
    return [pk for pk in runs if pk not in settled]


@dataclass
class Report:
    asked: int = 0
    errors: int = 0
    stopped: str = ""


def ask_due(project: Project, sleep: Sleep = time.sleep) -> Report:
    """Asks the signals that are on about their drawn runs, for BATCH_S or until the budget is used
    up.
    """
    report, ends = Report(), time.monotonic() + BATCH_S
    for signal in project.signals.filter(on_since__isnull=False):
        turns = drawn(signal)
        while turns and not report.stopped and time.monotonic() < ends:
            now, turns = turns[:CHUNK], turns[CHUNK:]
            _ask(signal, now, signal.share, report, sleep)
    return report


def try_out(signal: Signal, sleep: Sleep = time.sleep) -> Report:
    """Asks about the runs that show people whether the question works."""
    report = Report()
    _ask(signal, _unanswered(signal, to_try(signal)), None, report, sleep)
    return report


def _ask(
    signal: Signal, runs: Iterable[UUID], share: float | None, report: Report, sleep: Sleep
) -> None:
    rubric = rubrics.current(signal.project)
    if rubric is None:
        report.stopped = NO_JUDGE
        return
    rows = with_content(list(Trajectory.objects.filter(pk__in=list(runs)).order_by("-pk")))
    with ThreadPoolExecutor(rubric.concurrency, "signal") as threads:
        asked = dict(_begun(signal, rubric, rows, share, threads, report, sleep))
        for done in as_completed(asked):
            row, answer, server, most = asked[done]
            report.asked += 1
            report.errors += not _settle(signal, row, answer, done.result(), server, most)


Begun = tuple[Future[Answered], tuple[Trajectory, SignalAnswer, Server, float]]


def _begun(
    signal: Signal,
    rubric: Rubric,
    rows: list[Trajectory],
    share: float | None,
    threads: ThreadPoolExecutor,
    report: Report,
    sleep: Sleep,
) -> Iterator[Begun]:
    question, server = question_of(signal), rubrics.server_of(rubric)
    for row in rows:
        run = as_input(row)
        chat = question.chat(run)
        most = server.max_cost(chat)
        answer = _claim(signal, rubric, row, share, most, server.is_priced)
        if isinstance(answer, str):
            report.stopped = answer
            return

        def read(text: str, run: dict = run) -> object:
            return question.read(text, run)

        yield (
            threads.submit(asking.answer_to, server, chat, read, sleep),
            (row, answer, server, most),
        )


@transaction.atomic
def _claim(
    signal: Signal,
    rubric: Rubric,
    row: Trajectory,
    share: float | None,
    most: float,
    is_priced: bool,
) -> SignalAnswer | str:
    """Reserves the highest cost; or says why today's budget does not allow it."""
    rubrics.locked(signal.project)
    spent = rubrics.spent_since(signal.project, rubrics.midnight())
    if most > 0 and spent + most > rubric.usd_per_day:
        return NO_MONEY
    if not is_priced and rubrics.asked_today(signal.project) >= rubrics.UNPRICED_A_DAY:
        return rubrics.no_price(rubric)
    answer, _ = SignalAnswer.objects.get_or_create(
        signal=signal, version=signal.version, trajectory=row
    )
    answer.probability = share or answer.probability
    answer.error, answer.at = WAITING, timezone.now()
    answer.tries += 1
    answer.cost_usd += most
    answer.save()
    return answer


@transaction.atomic
def _settle(
    signal: Signal,
    row: Trajectory,
    answer: SignalAnswer,
    found: Answered,
    server: Server,
    most: float,
) -> bool:
    """Whether there is an answer. What is no longer asked, or of a run that is gone, is dropped."""
    ours = SignalAnswer.objects.select_for_update().filter(pk=answer.pk).first()
    if ours is None:
        return found.answer is not None
    ours.cost_usd = max(0.0, ours.cost_usd + server.cost(found.usage) - most)
    ours.error = found.error if found.answer is None else ""
    if found.answer is not None:
        said = found.answer
        ours.quote, ours.reason = said.quote, said.reason
        ours.value = "" if said.value is None else shown(said.value)
        if said.value is not None:
            _score(signal, ours, row, said.value)
    ours.save()
    return found.answer is not None


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
