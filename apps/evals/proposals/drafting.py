"""Has the judge draft the rubrics of proposed tasks, and what the users of proposed episodes say,
within its daily budget.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from django.db import transaction
from django.utils import timezone

from apps.core import outbox
from apps.core.models import Project
from apps.evals.canonical import digest_of
from apps.evals.later_turns import USER_BY, brought_up, changes_of, with_says
from apps.evals.models import ProposalState, TaskProposal
from apps.evals.proposals import brief, rubric
from apps.evals.proposals.alike import JUDGED
from apps.evals.proposals.same import Known, Request
from apps.evals.suggestions import JUDGE
from apps.failures.actions.diagnose import as_input
from apps.failures.judge import batch, retries, rubrics
from apps.failures.judge.asking import Answered, Chat
from apps.failures.judge.prompt import body_of
from apps.failures.judge.questions import Stored
from apps.failures.models import Rubric
from apps.failures.rules.expected import logged_truth
from apps.failures.rules.findings import UNEXPLAINED
from apps.failures.rules.reading import read
from apps.trajectories.models import with_content

TASK, PURPOSE, OF_USER = "evals.draft_rubrics", "rubric of a task", "user of a task"
AT_ONCE, BATCH_S = 100, 120.0
MOST_OTHERS = 5  # requests of which the judge is asked whether one is the same
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
    return rows.filter(retries.ready("drafted_at")).order_by("created_at", "pk")


def tried_again_at(proposal: TaskProposal) -> datetime | None:
    """When a draft that failed is asked for again; None if it is not."""
    if not (proposal.is_drafting and proposal.draft_error and proposal.drafted_at):
        return None
    return retries.asked_again_at(proposal.drafted_at)


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
    known = Known(project, [])
    entries = (_Draft.of(row, known.nearest(Request.of(row), MOST_OTHERS)) for row in rows)
    batch.ask_all(judge, entries, report, sleep=sleep, for_s=BATCH_S)
    return report


@dataclass
class _Draft(Stored):
    """One proposal's question to the judge."""

    proposal: TaskProposal | None = None
    others: Sequence[Request] = ()

    @classmethod
    def of(cls, proposal: TaskProposal, others: Sequence[Request] = ()) -> _Draft:
        """`others` are requests that may be the same: the question of a rubric asks that, too."""
        run = as_input(proposal.trajectory) | {"messages": proposal.trajectory.messages}
        if proposal.expected:
            return cls._question(proposal, OF_USER, _user_of(proposal, run), [])
        failure, heard = proposal.failure, read(run)
        truth = logged_truth(heard)
        is_explained = failure is not None and failure.mode.slug != UNEXPLAINED
        known = rubric.evidence_of(
            failure.evidence if failure else [],
            failure.mode.name if failure and is_explained else "",
            truth and [{"tool": item.tool, "args": item.args} for item in truth.wanted],
        )
        bodies = [body_of(message) for message in run["messages"]]
        requests = ["\n".join(turn["content"] for turn in other.users) for other in others]
        unheard = {at for at, _ in heard.users if at >= proposal.cut}
        asked = Chat(
            rubric.chat(run, proposal.cut, known, requests),
            lambda text: rubric.read(text, bodies, len(requests), unheard),
        )
        return cls._question(proposal, PURPOSE, asked, [known, requests], others)

    @classmethod
    def _question(
        cls,
        proposal: TaskProposal,
        purpose: str,
        asked: Chat,
        about: list[Any],
        others: Sequence[Request] = (),
    ) -> _Draft:
        named = [purpose, str(proposal.trajectory_id), proposal.cut, *about, proposal.drafts_asked]
        return cls(
            project=proposal.project,
            purpose=purpose,
            key=digest_of(named),
            question=asked,
            trajectory=proposal.trajectory,
            as_json=msgspec.to_builtins,
            proposal=proposal,
            others=others,
        )

    def reserve(self, usd: float) -> None:
        super().reserve(usd)
        rows = TaskProposal.objects.filter(pk=self.proposal and self.proposal.pk)
        rows.update(drafted_at=timezone.now())

    @transaction.atomic
    def settle(self, answered: Answered, correction: float) -> None:
        super().settle(answered, correction)
        self._store(answered.error, tries=retries.tries_of(answered))

    def reuse(self) -> None:
        super().reuse()
        self._store("")

    @transaction.atomic
    def _store(self, error: str, *, tries: int = 0) -> None:
        """A draft of what a person has written or decided on meanwhile is dropped. A server that
        is down costs no try: it is asked again later.
        """
        rows = TaskProposal.objects.select_for_update().filter(
            pk=self.proposal and self.proposal.pk,
            is_drafting=True,
            state=ProposalState.PROPOSED,
        )
        ours = rows.first()
        if ours is None or (self.purpose == OF_USER) != bool(ours.expected):
            return
        ours.draft_error, ours.draft_tries = error, ours.draft_tries + tries
        if self.answer and self.purpose == OF_USER:
            said = self.answer
            ours.metadata = with_says(ours.metadata, said["says"], said["agrees"])
            ours.metadata |= {USER_BY: JUDGE}
        elif self.answer:
            points, same_as = self.answer["points"], self.answer["same_as"]
            ours.expected = {"rubric": rubric.rubric_of([point["text"] for point in points])}
            ours.metadata = ours.metadata | {POINTS: [point["quote"] for point in points]}
            if same_as is not None:
                ours.looks_like, ours.looks_like_why = self.others[same_as].counts_on, JUDGED
            ours.source = JUDGE
        ours.is_drafting = not self.answer and ours.draft_tries < retries.MOST_TRIES
        ours.save()


def _user_of(proposal: TaskProposal, run: dict[str, Any]) -> Chat:
    heard = read(run)
    changes = changes_of(proposal.expected)
    return Chat(
        brief.chat(run, proposal.cut),
        lambda text: brief.read(
            text,
            [words for _, words in heard.users],
            lambda texts: brought_up(heard, proposal.cut, changes, texts),
        ),
    )
