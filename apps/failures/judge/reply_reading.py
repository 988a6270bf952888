"""Looks at the tool replies of a project's recent runs: which forms they have, and has the judge
say, once for each form, whether it tells that a call failed.

Runs that the new counts make the rules see differently are noted, and classified again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from django.db import transaction
from django.db.models import Exists, F, OuterRef, QuerySet
from django.utils import timezone

from apps.core.locks import ProjectLock, acquire_in
from apps.core.models import Project
from apps.failures.classify_job import classify_soon
from apps.failures.judge import batch, retries, rubrics
from apps.failures.judge.asking import Answered, Chat
from apps.failures.judge.client import Server
from apps.failures.judge.prompt_reading import Seen, recent_runs, storable, with_newest
from apps.failures.judge.reply_question import MAX_OUTPUT, MOST_AT_ONCE, Example, Reader, chat_about
from apps.failures.models import Classifier, ReplyForm, Rubric
from apps.failures.replies import COUNTS, State, forms_of
from apps.failures.rules.checks import ended_on_a_call, stuck
from apps.failures.rules.reading import Run
from apps.failures.rules.reply_forms import NOTHING, Counted, Forms, forms_in
from apps.trajectories.models import Trajectory

TASK = "failures.look_at_replies_of"
MOST_FORMS, MOST_NAMES = 400, 10
LONGEST_TOOL = 200
MOST_A_DAY = 400  # forms that the judge reads
BATCH_S = 120.0


@dataclass
class Report(batch.Report):
    """`proposed`: forms that tell of a failed call, according to the judge."""

    proposed: int = 0


def due() -> list[Project]:
    """Active projects with new runs, or forms that the judge is to read."""
    of_project = {"project": OuterRef("pk")}
    looked = Classifier.objects.filter(replies_of=OuterRef("newest"), **of_project)
    has_judge = Exists(Rubric.objects.filter(is_on=True, **of_project))
    asked = has_judge & Exists(waiting(ReplyForm.objects.filter(**of_project)))
    return list(with_newest(Project.objects.running()).filter(~Exists(looked) | asked))


def waiting(forms: QuerySet[ReplyForm]) -> QuerySet[ReplyForm]:
    """Those of the forms that the judge is to read now."""
    rows = _unread(forms).filter(tries__lt=retries.MOST_TRIES)
    return rows.filter(retries.ready("asked_at"))


def _unread(forms: QuerySet[ReplyForm]) -> QuerySet[ReplyForm]:
    return forms.filter(read_at=None, state=State.SEEN).exclude(kind=NOTHING)


def look(project: Project, *, now: bool = False, sleep: batch.Sleep = time.sleep) -> Report:
    """Counts the forms of recent replies, and has the judge read those that it has not read. `now`:
    also those that wait for their next try, or have none left.
    """
    recent, report = recent_runs(project), Report()
    counted = _store(project, recent)
    if rubric := rubrics.current(project):
        entries = _entries(project, rubric, counted, report, now)
        longer = {"max_output": MAX_OUTPUT}
        batch.ask_all(rubric, entries, report, sleep=sleep, for_s=BATCH_S, patience=longer)
    if recent and not (report.stopped or report.errors):
        Classifier.objects.filter(project=project).update(replies_of=recent[0].row.pk)
    return report


@transaction.atomic
def _store(project: Project, recent: Sequence[Seen]) -> list[Counted]:
    acquire_in(project.pk, ProjectLock.REPLIES)
    before, rows = forms_of(project), list(project.reply_forms.all())
    lasting = [row for row in rows if row.state != State.SEEN or row.read_at]
    heard = (each for seen in recent for each in seen.run.heard(seen.row.pk))
    counted = forms_in(heard, [row.form for row in lasting])[:MOST_FORMS]
    known = {row.digest: row for row in rows}
    kept = [_row(project, item, known) for item in counted]
    there = Trajectory.objects.filter(pk__in=[row.trajectory_id for row in kept])
    runs = set(there.select_for_update(no_key=True).order_by("pk").values_list("pk", flat=True))
    for row in kept:
        row.trajectory_id = row.trajectory_id if row.trajectory_id in runs else None
    digests = {row.digest for row in kept}
    gone = [row.pk for row in rows if row.digest not in digests]
    project.reply_forms.filter(pk__in=gone).exclude(state__in=ReplyForm.DECIDED).delete()
    project.reply_forms.filter(pk__in=gone).update(**dict.fromkeys(COUNTS, 0))
    ReplyForm.objects.bulk_create(
        kept,
        update_conflicts=True,
        unique_fields=["project", "digest"],
        update_fields=[*COUNTS, "names", "trajectory", "reply_index", "others"],
    )
    after = forms_of(project)
    classify_soon(
        seen.row.pk for seen in recent if _facts(seen.run, before) != _facts(seen.run, after)
    )
    return counted


def _row(project: Project, item: Counted, known: dict[str, ReplyForm]) -> ReplyForm:
    form, (newest, *others) = item.form, item.examples()
    row = known.get(form.digest) or ReplyForm(
        project=project,
        tool=storable(form.tool, LONGEST_TOOL),
        digest=form.digest,
        kind=form.kind,
        structure=form.structure,
        values=form.values,
    )
    row.pk = None
    for name in COUNTS:
        setattr(row, name, getattr(item, name))
    names = sorted(item.names)[:MOST_NAMES] if not form.tool else []
    row.names = [storable(name, LONGEST_TOOL) for name in names]
    row.trajectory_id = newest.run
    row.reply_index = newest.call.reply_index
    row.others = [[str(each.run), each.call.reply_index] for each in others]
    return row


def _facts(run: Run, forms: Forms) -> list[Any]:
    """What the rules see of a run that depends on the counts."""
    run.forms = forms
    broken = [call for call in run.calls if call.worked and run.breaks_its_contract(call)]
    return [*(run.accepted(call) for call in broken), *ended_on_a_call(run), *stuck(run)]


def _entries(
    project: Project, rubric: Rubric, counted: Sequence[Counted], report: Report, now: bool
) -> Iterator[_Entry]:
    """The questions, each about some forms: first those that answer broken calls."""
    today = timezone.now() - timedelta(days=1)
    read_today = project.reply_forms.filter(read_at__gt=today).count()
    forms = project.reply_forms.all()
    rows = {row.digest: row for row in (_unread(forms) if now else waiting(forms))}
    about = [(rows[item.form.digest], item) for item in counted if item.form.digest in rows]
    about.sort(key=lambda pair: (-pair[1].broken, -pair[1].calls))
    about = about[: max(0, MOST_A_DAY - read_today)]
    for at in range(0, len(about), MOST_AT_ONCE):
        yield _Entry(project, rubric, about[at : at + MOST_AT_ONCE], report)


@dataclass
class _Entry(batch.Entry):
    """The question about some forms."""

    project: Project
    rubric: Rubric
    about: list[tuple[ReplyForm, Counted]]
    report: Report

    def __str__(self) -> str:
        return f"{len(self.about)} forms of replies"

    @cached_property
    def chat(self) -> Chat:
        examples = [
            [
                Example(each.call.tool, each.call.raw, each.call.reply or "")
                for each in item.examples()
            ]
            for _, item in self.about
        ]
        return Chat(chat_about(examples), Reader(examples))

    def max_cost(self, server: Server) -> float:
        return self.chat.max_cost(server)

    def ask(self, server: Server, sleep: batch.Sleep) -> Answered:
        return self.chat.ask(server, sleep)

    def _rows(self) -> Any:
        pks = [row.pk for row, _ in self.about]
        return self.project.reply_forms.filter(pk__in=pks, read_at=None)

    def standing(self) -> batch.Standing:
        since = timezone.now() - retries.RETRY_AFTER
        is_asked = self._rows().filter(asked_at__gt=since, error="").exists()
        return batch.Standing.LATER if is_asked else batch.Standing.OURS

    def reserve(self, usd: float) -> None:
        self._rows().update(asked_at=timezone.now(), error="")

    @transaction.atomic
    def settle(self, answered: Answered, correction: float) -> None:
        if answered.answer is None:
            tries = F("tries") + retries.tries_of(answered)
            self._rows().update(error=answered.error, tries=tries)
            return
        rows, unclear = self._rows(), answered.answer.unclear
        for at, error in unclear.items():
            row = rows.filter(pk=self.about[at][0].pk)
            row.update(error=error, tries=F("tries") + retries.tries_of(answered))
        rows.exclude(pk__in=[self.about[at][0].pk for at in unclear]).update(
            read_at=timezone.now(), read_by=self.rubric.model, error=""
        )
        for at, quote in answered.answer.failing.items():
            row = self.project.reply_forms.filter(pk=self.about[at][0].pk, state=State.SEEN)
            quoted = storable(quote, ReplyForm._meta.get_field("quote").max_length)
            self.report.proposed += row.update(state=State.PROPOSED, quote=quoted)
