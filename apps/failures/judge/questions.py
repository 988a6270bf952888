"""Questions to the judge's server that are neither verdicts nor signals: asked by `batch`, within
the same daily budget, and kept, so that the same question is not paid for twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from django.db import transaction
from django.utils import timezone

from apps.core.models import Project
from apps.failures.judge import batch
from apps.failures.judge.asking import Answered
from apps.failures.judge.batch import Standing
from apps.failures.judge.client import Server
from apps.failures.models import JudgeQuestion
from apps.trajectories.models import Trajectory

LOST_AFTER = timedelta(minutes=15)
WAITING = "Not answered yet."


class Askable(Protocol):
    """`asking.Chat`, `strategies.Question`, or the like."""

    def max_cost(self, server: Server) -> float: ...

    def ask(self, server: Server, sleep: batch.Sleep) -> Answered: ...


@dataclass
class Stored(batch.Entry):
    """A question that is asked once for each `key`, a digest of what is asked (at most 64
    characters). `as_json` makes what is kept of the answer; afterwards it is in `answer`, also if
    it had been asked before. `answered` is None then.
    """

    project: Project
    purpose: str
    key: str
    question: Askable
    trajectory: Trajectory | None = None
    as_json: Callable[[Any], Any] = field(default=lambda answer: answer)
    answer: Any = None
    answered: Answered | None = None
    row: JudgeQuestion | None = None

    def __str__(self) -> str:
        return f"{self.purpose} {self.key[:8]}"

    def max_cost(self, server: Server) -> float:
        return self.question.max_cost(server)

    def ask(self, server: Server, sleep: batch.Sleep) -> Answered:
        return self.question.ask(server, sleep)

    def standing(self) -> Standing:
        self.row = self.project.judge_questions.filter(key=self.key).first()
        if self.row is None:
            return Standing.OURS
        if self.row.answer is not None:
            return Standing.ANSWERED
        is_under_way = self.row.error == WAITING and self.row.at > timezone.now() - LOST_AFTER
        return Standing.LATER if is_under_way else Standing.OURS

    def reserve(self, usd: float) -> None:
        row = self.row or JudgeQuestion(project=self.project, key=self.key)
        row.purpose, row.trajectory = self.purpose, self.trajectory
        row.error, row.at = WAITING, timezone.now()
        row.reserve_cost(usd)
        row.save()
        self.row = row

    def reuse(self) -> None:
        assert self.row is not None
        self.answer = self.row.answer

    @transaction.atomic
    def settle(self, answered: Answered, correction: float) -> None:
        self.answered = answered
        self.answer = None if answered.answer is None else self.as_json(answered.answer)
        row = JudgeQuestion.objects.select_for_update().filter(pk=self.row and self.row.pk).first()
        if row is None:
            return
        row.settle_cost(correction)
        row.input_tokens += answered.usage.input_tokens
        row.output_tokens += answered.usage.output_tokens
        row.answer, row.error = self.answer, answered.error
        row.save()
        self.row = row
