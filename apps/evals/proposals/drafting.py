"""Has the judge draft the rubrics of proposed tasks, within its daily budget."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from django.db import transaction
from django.db.models import Count, Q, Sum
from django.utils import timezone

from apps.core import outbox
from apps.core.bus import on
from apps.core.models import Project
from apps.evals.models import ProposalState, TaskProposal
from apps.evals.proposals import rubric
from apps.failures.actions.diagnose import as_input
from apps.failures.judge import batch, rubrics
from apps.failures.judge.asking import Answered, answer_to
from apps.failures.judge.client import Server
from apps.failures.judge.prompt import body_of
from apps.failures.models import Rubric
from apps.failures.rules.expected import logged_truth
from apps.failures.rules.reading import read
from apps.trajectories.models import with_content

TASK = "evals.draft_rubrics"
AT_ONCE, BATCH_S = 100, 120.0
MOST_TRIES = 3
RETRY_AFTER = timedelta(minutes=10)
POINTS = "points"  # in the metadata: the quote that each point of the draft is about
NO_JUDGE = "The judge is off, so a person has to write the rubric."


def judge_of(project: Project) -> Rubric | None:
    return rubrics.current(project)


def request(project: Project) -> None:
    """Has a worker draft what waits, once the transaction is stored."""
    transaction.on_commit(lambda: outbox.post(TASK, project.pk, expires_s=600))


def waiting(project: Project) -> Any:
    """The proposals that the judge is to draft now, the oldest first."""
    rows = project.task_proposals.filter(state=ProposalState.PROPOSED, is_drafting=True)
    ready = Q(drafted_at=None) | Q(drafted_at__lt=timezone.now() - RETRY_AFTER)
    return rows.filter(ready).order_by("created_at", "pk")


def due() -> list[int]:
    """The projects with something to draft and a judge that is on."""
    rows = TaskProposal.objects.filter(state=ProposalState.PROPOSED, is_drafting=True)
    rows = rows.filter(project__in=Project.objects.running(), project__rubrics__is_on=True)
    return list(rows.values_list("project_id", flat=True).order_by().distinct())


def draft_due(project: Project, sleep: batch.Sleep = time.sleep) -> batch.Report:
    report, judge = batch.Report(), judge_of(project)
    if judge is None:
        report.stopped = NO_JUDGE
        return report
    rows = list(waiting(project).select_related("trajectory", "failure__mode")[:AT_ONCE])
    with_content([row.trajectory for row in rows])
    batch.ask_all(judge, map(_Draft, rows), report, sleep=sleep, for_s=BATCH_S)
    return report


@dataclass
class _Draft(batch.Entry):
    """One proposal's question to the judge."""

    row: TaskProposal

    def __str__(self) -> str:
        return f"rubric of proposal {self.row.pk}"

    @cached_property
    def run(self) -> dict[str, Any]:
        return as_input(self.row.trajectory) | {"messages": self.row.trajectory.messages}

    @cached_property
    def chat(self) -> list[dict[str, str]]:
        failure = self.row.failure
        truth = logged_truth(read(self.run))
        calls = truth and [{"tool": item.tool, "args": item.args} for item in truth.wanted]
        known = rubric.evidence_of(
            failure.evidence if failure else [], failure.mode.name if failure else "failed", calls
        )
        return rubric.chat(self.run, self.row.cut, known)

    def max_cost(self, server: Server) -> float:
        return server.max_cost(self.chat)

    def ask(self, server: Server, sleep: batch.Sleep) -> Answered:
        bodies = [body_of(message) for message in self.run["messages"]]
        return answer_to(server, self.chat, lambda text: rubric.read(text, bodies), sleep)

    def standing(self) -> batch.Standing:
        rows = TaskProposal.objects.filter(pk=self.row.pk, state=ProposalState.PROPOSED)
        is_ours = rows.filter(is_drafting=True).exists()
        return batch.Standing.OURS if is_ours else batch.Standing.ANSWERED

    def reserve(self, usd: float) -> None:
        ours = TaskProposal.objects.select_for_update().get(pk=self.row.pk)
        ours.cost_usd += usd
        ours.draft_tries += 1
        ours.drafted_at = timezone.now()
        ours.save(update_fields=["cost_usd", "draft_tries", "drafted_at"])

    @transaction.atomic
    def settle(self, answered: Answered, correction: float) -> None:
        """A draft of what a person has written or decided on meanwhile is dropped."""
        ours = TaskProposal.objects.select_for_update().filter(pk=self.row.pk).first()
        if ours is None:
            return
        ours.cost_usd = max(0.0, ours.cost_usd + correction)
        if ours.is_drafting and ours.state == ProposalState.PROPOSED:
            _store(ours, answered)
        ours.save()


def _store(row: TaskProposal, answered: Answered) -> None:
    row.draft_error = "" if answered.answer else answered.error
    if answered.answer:
        points = answered.answer
        row.expected = {"rubric": rubric.rubric_of([point.text for point in points])}
        row.metadata = row.metadata | {POINTS: [point.quote for point in points]}
        row.is_drafting = False
    elif row.draft_tries >= MOST_TRIES:
        row.is_drafting = False


@on(rubrics.AskedElsewhere)
def drafts_asked(question: rubrics.AskedElsewhere) -> tuple[int, float]:
    rows = TaskProposal.objects.filter(
        project=question.project, drafted_at__gte=question.since
    ).aggregate(n=Count("pk"), usd=Sum("cost_usd"))
    return rows["n"], rows["usd"] or 0.0
