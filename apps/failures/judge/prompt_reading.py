"""Looks at a project's recent runs: has the judge read what their system prompts state, once, and
tries the checks of rules on them.

A prompt is due as soon as several runs state something that was not read before. System prompts
are untrusted, so what is stored of them is bounded in length and number.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property

from django.db import transaction
from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Subquery
from django.utils import timezone

from apps.core.locks import ProjectLock, acquire_in
from apps.core.models import Project
from apps.failures.actions.diagnose import as_input
from apps.failures.judge import batch, rubrics
from apps.failures.judge.asking import Answered, Chat
from apps.failures.judge.client import Server
from apps.failures.judge.prompt_rules import MAX_OUTPUT, Found, Reader, added, chat_about
from apps.failures.judge.retries import MOST_TRIES, RETRY_AFTER, tries_of
from apps.failures.models import Classifier, PolicyExample, PolicyRule, Rubric, SystemPrompt
from apps.failures.prompts import State, applies
from apps.failures.replies import forms_of
from apps.failures.rules.policy import CheckError, Tools, tools_of, violations
from apps.failures.rules.reading import Run, read
from apps.failures.rules.reply_forms import NO_FORMS, Forms
from apps.failures.rules.statements import COMMON, RECENT, digest_of, next_unread, parts_of, similar
from apps.trajectories.models import Trajectory, with_content
from workers.lib.json_schema import Budget
from workers.lib.storable import storable

TASK = "failures.look_at_prompts_of"
TRIAL_CPU_S = 5.0  # processor time for the trial of a rule
MOST_PROMPTS = 200
OPENING, LONGEST_TEXT = 300, 500
BATCH_S = 120.0
PAUSE, LONGEST_PAUSE = timedelta(days=1), timedelta(days=32)


@dataclass(frozen=True)
class Seen:
    """A recent run, as the rules see it."""

    row: Trajectory
    run: Run
    parts: tuple[str, ...]


@dataclass
class Report(batch.Report):
    """`proposed`: rules that were not known before."""

    proposed: int = 0


def recent_runs(project: Project, forms: Forms = NO_FORMS) -> list[Seen]:
    """The newest first; with the forms of replies that people decided on, if given."""
    rows = with_content(list(project.trajectories.order_by("-pk")[:RECENT]))
    runs = [read(as_input(row) | {"forms": forms}) for row in rows]
    return [Seen(row, run, parts_of(run.system)) for row, run in zip(rows, runs, strict=True)]


def known_tools(recent: Collection[Seen]) -> Tools:
    called = (call.tool for seen in recent for call in seen.run.calls if call.tool)
    return tools_of((seen.row.tools for seen in recent), called)


def with_newest(projects: QuerySet[Project]) -> QuerySet[Project]:
    """Those that have runs, with the `newest` of them."""
    runs = Trajectory.objects.filter(project=OuterRef("pk")).order_by("-pk")
    return projects.annotate(newest=Subquery(runs.values("pk")[:1])).filter(newest__isnull=False)


def due() -> list[Project]:
    """Active projects with runs, or rules, that were not looked at yet."""
    looked = Classifier.objects.filter(project=OuterRef("pk"), prompts_of=OuterRef("newest"))
    rules = PolicyRule.objects.current().filter(project=OuterRef("pk"), tried=None)
    untried = rules.exclude(state=State.DISMISSED)
    return list(with_newest(Project.objects.running()).filter(~Exists(looked) | Exists(untried)))


def look(project: Project, *, now: bool = False, sleep: batch.Sleep = time.sleep) -> Report:
    """Has the judge read what recent prompts state and nobody has read, and tries the checks on
    recent runs. `now`: a prompt of a single run is enough, and no pause is kept.
    """
    recent, report = recent_runs(project, forms_of(project)), Report()
    if rubric := rubrics.current(project):
        due_now = _due(project, rubric, recent, report, now)
        longer = {"max_output": MAX_OUTPUT}
        batch.ask_all(rubric, due_now, report, sleep=sleep, for_s=BATCH_S, patience=longer)
    try_checks(project, recent)
    is_complete = not (report.stopped or report.errors or (rubric and _waiting(project, recent)))
    if recent and is_complete:
        Classifier.objects.filter(project=project).update(prompts_of=recent[0].row.pk)
    return report


def _waiting(project: Project, recent: Sequence[Seen]) -> bool:
    """Whether a recent prompt waits for its next try."""
    rows = project.system_prompts.filter(digest__in={digest_of(seen.parts) for seen in recent})
    return rows.filter(read_at=None, tries__lt=MOST_TRIES).exists()


def try_checks(project: Project, recent: Sequence[Seen]) -> None:
    """Notes which of the recent runs break each rule, and the checks that cannot be made."""
    for rule in project.policy_rules.current().exclude(state=State.DISMISSED):
        runs = [seen for seen in recent if applies(rule, frozenset(seen.parts))]
        _store_trial(rule, *_tried(rule, runs))


def _tried(rule: PolicyRule, runs: Sequence[Seen]) -> tuple[int, list[PolicyExample], str]:
    """(runs to which it applies, those that break it, why it cannot be told)"""
    examples, problems, budget = [], [], Budget(TRIAL_CPU_S)
    for seen in runs if rule.check_spec else ():
        try:
            broken = violations(rule.check_spec, seen.run, budget)
        except CheckError as error:
            problems.append(str(error))
            continue
        for item in broken[:1]:
            example = PolicyExample(
                rule=rule,
                trajectory=seen.row,
                message_index=item.call.index,
                text=_beginning(item.text, LONGEST_TEXT),
            )
            examples.append(example)
    count = len(problems)
    problem = f"Not checked in {count} of {len(runs)} runs. {problems[0]}" if problems else ""
    return len(runs), examples, problem


@transaction.atomic
def _store_trial(rule: PolicyRule, tried: int, examples: list[PolicyExample], problem: str) -> None:
    """Of a rule that is gone, or of runs that are, nothing is stored."""
    if not PolicyRule.objects.select_for_update().filter(pk=rule.pk).exists():
        return
    there = Trajectory.objects.filter(pk__in=[one.trajectory_id for one in examples])
    kept = set(there.select_for_update(no_key=True).order_by("pk").values_list("pk", flat=True))
    PolicyExample.objects.filter(rule=rule).delete()
    PolicyExample.objects.bulk_create([one for one in examples if one.trajectory_id in kept])
    given = {"problem": problem} if rule.check_spec else {}
    PolicyRule.objects.filter(pk=rule.pk).update(tried=tried, tried_at=timezone.now(), **given)


# Reading by the judge


@dataclass
class _Known:
    """What was read before: parts of prompts, and the statements that gave rules."""

    prompts: list[SystemPrompt]
    parts: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, project: Project, again: bool) -> _Known:
        """`again`: also what could not be read is asked about once more."""
        rows = project.system_prompts.annotate(found=Count("rules", filter=Q(rules__version=1)))
        known = cls(list(rows))
        now = timezone.now()
        for prompt in known.prompts:
            is_new = prompt.at > now - RETRY_AFTER
            waits = is_new or prompt.tries >= MOST_TRIES
            if (
                prompt.read_at
                or (is_new and prompt.state == SystemPrompt.State.ASKING)
                or (waits and not again)
            ):
                known.parts.update(prompt.parts)
        return known

    def pause(self, parts: Sequence[str]) -> timedelta:
        """How long a prompt waits: the more of the newest readings of similar prompts found
        nothing new, the longer.
        """
        alike = [item for item in self.prompts if item.read_at and similar(parts, item.parts)]
        alike.sort(key=lambda item: item.read_at, reverse=True)
        empty = next((at for at, item in enumerate(alike) if item.found), len(alike))
        if not empty or not alike:
            return timedelta()
        since = timezone.now() - alike[0].read_at
        return min(PAUSE * 2 ** (empty - 1), LONGEST_PAUSE) - since


def _due(
    project: Project, rubric: Rubric, recent: Sequence[Seen], report: Report, now: bool
) -> Iterator[_Entry]:
    """The prompts to read; which is next is told by what was read, or is being read, by then."""
    tools, waits = known_tools(recent), set[str]()
    prompts, least = [seen.parts for seen in recent], 1 if now else COMMON
    while True:
        known = _Known.of(project, now)
        at = next_unread(prompts, known.parts | waits, least)
        if at is None:
            return
        seen = recent[at]
        waits.update(seen.parts)
        if now or known.pause(seen.parts) <= timedelta():
            yield _Entry(project, rubric, seen, tools, report)


@dataclass
class _Entry(batch.Entry):
    """The question about a system prompt."""

    project: Project
    rubric: Rubric
    seen: Seen
    tools: Tools
    report: Report
    prompt: SystemPrompt | None = None

    def __str__(self) -> str:
        return f"the system prompt of {self.seen.row.pk}"

    @cached_property
    def chat(self) -> Chat:
        system = self.seen.run.system
        return Chat(chat_about(system, self.seen.row.tools), Reader(system, self.tools))

    def max_cost(self, server: Server) -> float:
        return self.chat.max_cost(server)

    def ask(self, server: Server, sleep: batch.Sleep) -> Answered:
        return self.chat.ask(server, sleep)

    def standing(self) -> batch.Standing:
        digest, since = digest_of(self.seen.parts), timezone.now() - RETRY_AFTER
        same = self.project.system_prompts.filter(
            digest=digest, error=SystemPrompt.WAITING, at__gt=since
        )
        return batch.Standing.LATER if same.exists() else batch.Standing.OURS

    def reserve(self, usd: float) -> None:
        seen, system = self.seen, self.seen.run.system
        prompt, _ = SystemPrompt.objects.get_or_create(
            project=self.project,
            digest=digest_of(seen.parts),
            defaults={
                "parts": list(dict.fromkeys(seen.parts)),
                "opening": _beginning(system, OPENING),
                "length": len(system),
                "first_seen": seen.row.started_at,
            },
        )
        prompt.trajectory, prompt.error, prompt.at = seen.row, SystemPrompt.WAITING, timezone.now()
        prompt.tries += 1
        prompt.reserve_cost(usd)
        prompt.save()
        _make_room(self.project)
        self.prompt = prompt

    @transaction.atomic
    def settle(self, answered: Answered, correction: float) -> None:
        """Stores the cost, and the rules that are new as proposals."""
        acquire_in(self.project.pk, ProjectLock.POLICY)
        rows = SystemPrompt.objects.select_for_update()
        ours = rows.filter(pk=self.prompt and self.prompt.pk).first()
        if ours is None:
            return
        ours.settle_cost(correction)
        ours.tries -= 1 - tries_of(answered)
        ours.error = answered.error if answered.answer is None else ""
        if found := answered.answer:
            ours.dropped, ours.read_at = found.dropped, timezone.now()
            ours.read_by = self.rubric.model
            self.report.proposed += self._propose(found, ours)
        ours.save()

    def _propose(self, found: Found, prompt: SystemPrompt) -> int:
        known = self.project.policy_rules.exclude(parts=[]).values_list("parts", flat=True)
        rules = [
            PolicyRule(
                project=self.project,
                prompt=prompt,
                sentence=_beginning(rule.sentence, len(rule.sentence)),
                quote=_beginning(rule.quote, len(rule.quote)),
                parts=list(rule.parts),
                check_spec=rule.check,
                problem=_beginning(rule.problem, LONGEST_TEXT),
            )
            for rule in added(found, set(map(frozenset, known)))
        ]
        return len(PolicyRule.objects.bulk_create(rules))


def _make_room(project: Project) -> None:
    """Deletes the oldest prompts without current rules if there are too many."""
    rows = project.system_prompts.order_by("at", "pk")
    if (extra := rows.count() - MOST_PROMPTS) > 0:
        needed = PolicyRule.objects.current().filter(prompt=OuterRef("pk"))
        oldest = rows.filter(~Exists(needed)).values_list("pk", flat=True)[:extra]
        SystemPrompt.objects.filter(pk__in=list(oldest)).delete()


def _beginning(text: str, limit: int) -> str:
    """The beginning of a text, without characters that PostgreSQL cannot store."""
    clean = storable(text[:limit])
    return clean if len(text) <= limit else f"{clean[: limit - 1]}…"
