"""Asks the judge's server a batch of questions within the day's budget: runs to judge, signals,
measurements, anything else.

Each question goes through three steps. `_claim` reserves its highest cost under a lock of the
project, so that two workers cannot spend the same dollar. It is asked in a thread, outside of any
transaction. `settle` stores the answer and corrects the cost. Threads only ask; everything else
happens in the caller's thread, one question after the other.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, fields, replace
from datetime import date
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol

from django.db import IntegrityError, transaction

from apps.core.runner import sentence as sentence_of
from apps.failures.judge import rubrics
from apps.failures.judge.asking import Answered
from apps.failures.judge.client import Server
from apps.failures.models import Rubric
from flywheel.outages import is_transient
from workers.lib.spending import NOTHING

log = logging.getLogger(__name__)
TOO_MANY_ERRORS = 3  # errors in a row after which the server counts as down
OFF = "The judge is off."
OUT_OF_TIME = "The time for one batch is used up; the rest will be asked next time."
SWITCHED_OFF = "The judge was switched off, or its rubric changed."
Sleep = Callable[[float], None]


class Standing(Enum):
    """Whether something may be asked now, and if not, why."""

    OURS = "ours"
    ANSWERED = "answered"
    LATER = "later"
    NO_MONEY = "no money"
    LIMIT = "limit"
    NO_PRICE = "no price"
    OFF = "off"


class Entry(Protocol):
    """One question, and the row that keeps its cost and its answer."""

    def max_cost(self, server: Server) -> float:
        """An upper estimate in USD, before it is asked."""

    def ask(self, server: Server, sleep: Sleep) -> Answered:
        """In a thread of its own, so without the database. Raises nothing that a server can
        cause.
        """

    def standing(self) -> Standing:
        """Inside the transaction that reserves: OURS, ANSWERED, LATER or OFF."""
        return Standing.OURS

    def reserve(self, usd: float) -> None:
        """Adds the highest cost to the row, in the same transaction."""

    def settle(self, answered: Answered, correction: float) -> None:
        """Stores the answer; `correction` in USD is what it cost minus what was reserved."""

    def reuse(self) -> None:
        """The row had an answer: nothing is asked or paid."""


@dataclass
class Report:
    """What came of a batch. `stopped` says why not all of it was asked; empty if it was."""

    asked: int = 0
    kept: int = 0
    errors: int = 0
    later: int = 0
    spent_usd: float = 0.0
    stopped: str = ""

    def add(self, other: Report) -> None:
        for field in fields(self):
            if field.name != "stopped":
                total = getattr(self, field.name) + getattr(other, field.name)
                setattr(self, field.name, total)
        self.stopped = other.stopped


def ask_all(
    rubric: Rubric,
    entries: Iterable[Entry],
    report: Report,
    *,
    sleep: Sleep = time.sleep,
    for_s: float = math.inf,
    most_usd: float = math.inf,
    is_trial: bool = False,
    patience: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Asks, at most `rubric.concurrency` at a time, until the day's budget, `most_usd` or the time
    is used up, or the server refuses the key or is down. One question that breaks is an error of
    that question.

    A trial may use a rubric that is not on, even one that is not saved. `patience`: other
    `timeout_s` and `tries` of its server.
    """
    ends = time.monotonic() + for_s
    with ThreadPoolExecutor(rubric.concurrency, "judge") as threads:
        batch = _Batch(rubric, threads, report, sleep, most_usd, is_trial, patience)
        try:
            for entry in entries:
                batch.ask(entry)
                if time.monotonic() > ends and not report.stopped:
                    report.stopped = OUT_OF_TIME
                if report.stopped:
                    break
        finally:
            batch.settle_all()


@dataclass(frozen=True)
class _Asked:
    """A question being asked, and the cost reserved for it."""

    entry: Entry
    server: Server
    max_cost: float
    day: date


class _Batch:
    """Not thread-safe itself: its threads only ask questions and do nothing else."""

    def __init__(
        self,
        rubric: Rubric,
        threads: ThreadPoolExecutor,
        report: Report,
        sleep: Sleep,
        most_usd: float,
        is_trial: bool,
        patience: Mapping[str, Any],
    ) -> None:
        self._rubric, self._threads, self._report, self._sleep = rubric, threads, report, sleep
        self._patience = patience
        self._is_trial, self._left_usd = is_trial, most_usd
        self._under_way: dict[Future[Answered], _Asked] = {}
        self._errors_in_a_row = 0
        # questions at a time: doubled by each answer up to the rubric's limit, back to 1 after an
        # error, to go easy on a server that is down
        self._room = 1
        self._cost_factor = (
            1.0  # factor on the estimated cost: some servers count more tokens than estimated
        )

    def ask(self, entry: Entry) -> None:
        """Reserve the cost of a question and ask it, once a slot is free.

        If the rest of the budget is reserved by other questions of the batch, wait for those first:
        they may cost less than reserved.
        """
        while len(self._under_way) >= self._room:
            self._settle_first()
        if self._report.stopped:
            return
        server, broken, estimated = rubrics.server_of(self._rubric, **self._patience), None, 0.0
        try:
            estimated = entry.max_cost(server)
        except Exception as error:
            broken = error
        day = rubrics.today()
        standing, max_cost = self._claim(entry, server, estimated, day)
        while standing in (Standing.NO_MONEY, Standing.LIMIT) and self._under_way:
            self._settle_first()
            standing, max_cost = self._claim(entry, server, estimated, day)
        if standing is Standing.OURS and broken:
            self._settle_broken(_Asked(entry, server, 0.0, day), broken)
        elif standing is Standing.OURS:
            self._left_usd -= max_cost
            asked = self._threads.submit(entry.ask, server, self._sleep)
            self._under_way[asked] = _Asked(entry, server, max_cost, day)
        elif standing is Standing.ANSWERED:
            self._report.kept += 1
            entry.reuse()
        elif standing is Standing.LATER:
            self._report.later += 1
        elif not self._report.stopped:
            self._report.stopped = self._why(standing, max_cost)

    def _claim(
        self, entry: Entry, server: Server, estimated: float, day: date
    ) -> tuple[Standing, float]:
        """Whether the question may be asked, and the cost that is reserved for it if so."""
        max_cost = estimated * self._cost_factor
        try:
            with transaction.atomic():
                return self._reserve(entry, server, max_cost, day), max_cost
        except IntegrityError:  # what it is about was removed a moment ago
            log.info("Not asked, since it is gone: %s", entry)
            return Standing.LATER, max_cost

    def _reserve(self, entry: Entry, server: Server, max_cost: float, day: date) -> Standing:
        project, rubric = self._rubric.project, self._rubric
        rubrics.locked(project)
        if not self._is_trial and not Rubric.objects.filter(pk=rubric.pk, is_on=True).exists():
            return Standing.OFF
        if (standing := entry.standing()) is not Standing.OURS:
            return standing
        if max_cost > self._left_usd:
            return Standing.LIMIT
        account = rubrics.account_of(project, day)
        if max_cost > 0 and account.usd + max_cost > rubric.usd_per_day:
            return Standing.NO_MONEY
        if not server.is_priced and account.asked >= rubrics.UNPRICED_A_DAY:
            return Standing.NO_PRICE
        entry.reserve(max_cost)
        rubrics.book(account, max_cost, asked=1)
        return Standing.OURS

    def settle_all(self) -> None:
        while self._under_way:
            self._settle_first()

    def _settle_first(self) -> None:
        """Wait for at least one answer and store those that have arrived."""
        for done in wait(self._under_way, return_when=FIRST_COMPLETED).done:
            asked = self._under_way.pop(done)
            self._report.asked += 1
            if error := done.exception():
                self._settle_broken(asked, error)
            else:
                self._settle(asked, done.result())

    def _settle_broken(self, asked: _Asked, error: BaseException) -> None:
        """What was reserved may have been paid, so it counts."""
        log.error("Asking the judge broke: %s", asked.entry, exc_info=error)
        sentence = f"The question broke: {type(error).__name__}: {error}"
        asked.entry.settle(Answered(None, sentence, [], NOTHING), 0.0)
        self._report.spent_usd += asked.max_cost
        self._count_error()

    def _settle(self, asked: _Asked, answered: Answered) -> None:
        cost = asked.server.cost(answered.usage)
        try:
            self._store(asked, answered, cost - asked.max_cost)
        except Exception as error:
            if is_transient(error):
                raise
            log.exception("The judge's answer was not stored: %s", asked.entry)
            sentence = f"The answer could not be stored: {sentence_of(error)}"
            answered = replace(answered, answer=None, error=sentence)
            self._store(asked, answered, cost - asked.max_cost)
        self._left_usd += asked.max_cost - cost
        if asked.max_cost:
            self._cost_factor *= max(1.0, cost / asked.max_cost)
        self._report.spent_usd += cost
        if answered.answer is None:
            self._count_error()
        else:
            self._errors_in_a_row = 0
            self._room = min(2 * self._room, self._rubric.concurrency)
        if answered.final and not self._report.stopped:
            self._report.stopped = answered.error or "The judge's server rejects every request."

    @transaction.atomic
    def _store(self, asked: _Asked, answered: Answered, correction: float) -> None:
        asked.entry.settle(answered, correction)
        rubrics.book(rubrics.account_of(self._rubric.project, asked.day), correction)

    def _count_error(self) -> None:
        self._report.errors += 1
        self._errors_in_a_row += 1
        self._room = 1
        if self._errors_in_a_row >= TOO_MANY_ERRORS and not self._report.stopped:
            self._report.stopped = (
                f"{TOO_MANY_ERRORS} questions in a row got no answer; the rest will be retried"
                " later."
            )

    def _why(self, standing: Standing, max_cost: float) -> str:
        if standing is Standing.OFF:
            return SWITCHED_OFF
        if standing is Standing.NO_PRICE:
            return rubrics.no_price(self._rubric)
        if standing is Standing.LIMIT:
            return f"The limit does not allow another question (up to ${max_cost:.4f})."
        return (
            f"Today's budget of ${self._rubric.usd_per_day:g} is used up. The judge continues"
            " tomorrow (UTC)."
        )
