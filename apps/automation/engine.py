"""Advances a run from step to step. All state is in the database, so any process may do the next
part, and any may die.

A step runs while its row is locked, in one transaction with the jobs it starts and what it stores.
So a step whose worker dies has done either everything or nothing.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, InterfaceError, OperationalError, transaction
from django.db.models import Q, Sum
from django.urls import reverse
from django.utils import timezone

from apps.automation.models import OPEN_STATES, Flow, FlowRun, FlowStep, RunState, StepState
from apps.automation.specs import FlowError, FlowSpec, Step, condition_of, holds
from apps.automation.steps import (
    PASSING,
    REFUSALS,
    WORK,
    AsksPeople,
    JobFailed,
    NotYet,
    Turn,
    own_jobs_of,
    used,
)
from apps.core import jobs
from apps.core.actions import audit
from apps.core.models import Membership, Role, Stage
from apps.notifications.actions import notify
from apps.notifications.catalogue import Topic
from apps.teamwork.assigning import assignees
from apps.webhooks.actions import announce
from apps.webhooks.models import Event

log = logging.getLogger(__name__)
FIRST_RETRY, ASK_AGAIN = timedelta(minutes=1), timedelta(minutes=1)
MOST_AT_ONCE = 50  # steps per call; flows have fewer
LONGEST_ERROR, MOST_FAILURES = 2000, 20
MAY = Role.ENGINEER.upward


def locked(flow: Flow) -> Flow:
    """The locked flow: begin, continue, change and delete run one at a time. Raises FlowError if it
    is deleted.
    """
    found = Flow.objects.select_for_update().filter(pk=flow.pk).first()
    if found is None:
        raise FlowError(f"“{flow}” has been deleted.")
    return found


def _locked_run(run: FlowRun) -> FlowRun:
    rows = FlowRun.objects.select_for_update(of=("self",)).select_related(
        "version__flow", "project"
    )
    return rows.get(pk=run.pk)


def begin(*, flow: Flow, cause: dict[str, Any], by: Any = None) -> FlowRun:
    """Queues a run of the flow's newest version. Raises FlowError if one is open already."""
    with transaction.atomic():
        flow = locked(flow)
        if flow.project.stage != Stage.ACTIVE:
            raise FlowError(
                f"{flow.project} is archived or being deleted, so its flows do not run."
            )
        if open_run := FlowRun.objects.open().filter(version__flow=flow).first():
            raise FlowError(
                f"“{flow}” is {open_run.get_state_display().lower()} already, since"
                f" {open_run.created_at:%F %H:%M} UTC."
            )
        version = flow.version
        run = FlowRun.objects.create(
            project=flow.project, version=version, cause=cause, created_by=by
        )
        FlowStep.objects.bulk_create(
            FlowStep(run=run, position=at, key=step.key, kind=step.kind)
            for at, step in enumerate(version.form.steps)
        )
        Flow.objects.filter(pk=flow.pk).update(looked_at=timezone.now())
        audit(
            "flow.started",
            project=flow.project,
            by=by,
            target=run,
            name=str(flow),
            version=version.number,
            cause=cause["by"],
        )
    return run


def advance(run: FlowRun) -> bool:
    """Do everything that can be done now. Returns whether anything changed. Does nothing if another
    process is working on the run.
    """
    changed = False
    for _ in range(MOST_AT_ONCE):
        if not _once(run):
            break
        changed = True
    return changed


@transaction.atomic
def _once(given: FlowRun) -> bool:
    rows = FlowRun.objects.select_for_update(skip_locked=True, of=("self",)).select_related(
        "version__flow", "version__created_by", "project"
    )
    run = rows.filter(pk=given.pk, state__in=OPEN_STATES).first()
    if run is None:
        return False
    try:
        spec, steps = run.version.form, list(run.steps.all())
    except FlowError as error:
        return _end(
            run, RunState.FAILED, f"This version of the flow can no longer be read: {error}"
        )
    step = next(
        (one for one in steps if one.state not in (StepState.DONE, StepState.SKIPPED)), None
    )
    if run.cancel_requested_at:
        return _cancel(run, step)
    if step is None:
        return _end(run, RunState.SUCCEEDED)
    if step.state == StepState.FAILED:
        return _end(run, RunState.FAILED, f"{step.key}: {step.said}")
    now = timezone.now()
    if step.state == StepState.PENDING and (later := _not_now(spec, step, now)):
        return _hold(run, *later)
    if step.state == StepState.WAITING and step.not_before and step.not_before > now:
        return False
    if step.state == StepState.PENDING and run.state != RunState.RUNNING and not _take_turn(run):
        return _note(run, "Another flow of this project is running.")
    if why := _too_much(run, spec, now):
        return _stop(run, spec, step, why)
    return _work(run, spec, step, {one.key: one for one in steps})


def _take_turn(run: FlowRun) -> bool:
    """Start the run if it is the project's turn. Only one run per project is running; the oldest
    queued one that is not held goes next.
    """
    now = timezone.now()
    others = FlowRun.objects.filter(
        project=run.project, state=RunState.QUEUED, created_at__lt=run.created_at
    )
    if others.exclude(not_before__gt=now).exists():
        return False
    try:
        with transaction.atomic():
            FlowRun.objects.filter(pk=run.pk).update(
                state=RunState.RUNNING, note="", not_before=None, started_at=run.started_at or now
            )
    except IntegrityError:
        return False
    run.state = RunState.RUNNING
    return True


def _not_now(spec: FlowSpec, step: FlowStep, now: datetime) -> tuple[str, datetime] | None:
    """(why a step cannot begin yet, when it can); None if it can begin now."""
    if step.not_before and step.not_before > now:
        local = step.not_before.astimezone(spec.zone)
        return (
            f"{step.key} will be retried at {local:%H:%M} ({spec.timezone}). {step.said}",
            step.not_before,
        )
    if quiet := spec.quiet_at(now):
        return f"Quiet hours until {quiet.end} ({spec.timezone}).", spec.after_quiet(now)
    return None


def _hold(run: FlowRun, why: str, until: datetime) -> bool:
    """Put the run back into the queue between two steps, so that the project's next flow may run
    meanwhile.
    """
    held = FlowRun.objects.filter(pk=run.pk)
    held.update(state=RunState.QUEUED, note=why[:300], not_before=until)
    return False


def _too_much(run: FlowRun, spec: FlowSpec, now: datetime) -> str:
    """Which limit is used up; empty if none is."""
    limit = spec.budget
    of_run = FlowStep.objects.filter(run=run)
    midnight = spec.midnight(now)
    of_flow = FlowStep.objects.filter(run__version__flow=run.version.flow_id)
    for spent, hours, usd, span in (
        (lambda: _spent(of_run), limit.hours_a_run, limit.usd_a_run, "a run"),
        (lambda: _spent_since(of_flow, midnight, now), limit.hours_a_day, limit.usd_a_day, "a day"),
    ):
        if hours is None and usd is None:
            continue
        seconds, dollars = spent()
        if hours is not None and seconds >= hours * 3600:
            return f"The limit of {hours:g} hours {span} is used up."
        if usd is not None and dollars >= usd:
            return f"The limit of {usd:g} USD {span} is used up."
    return ""


def _spent_since(rows: Any, midnight: datetime, now: datetime) -> tuple[float, float]:
    """For a step that was active at midnight: the compute time that can have been used since, and
    its whole cost.
    """
    seconds, usd = _spent(rows.filter(started_at__gte=midnight))
    ended, going = Q(finished_at__gte=midnight), Q(finished_at=None, run__state__in=OPEN_STATES)
    for step in rows.filter(ended | going, started_at__lt=midnight).select_related("run"):
        computed, dollars = _spent(rows.filter(pk=step.pk))
        seconds += min(computed, ((step.finished_at or now) - midnight).total_seconds())
        usd += dollars
    return seconds, usd


def _spent(rows: Any) -> tuple[float, float]:
    """(seconds, USD) of these steps, including active ones."""
    ended = rows.aggregate(seconds=Sum("seconds", default=0.0), usd=Sum("usd", default=0.0))
    going = [
        used(step)
        for step in rows.filter(state__in=(StepState.RUNNING, StepState.WAITING)).select_related(
            "run"
        )
    ]
    return ended["seconds"] + sum(one[0] for one in going), ended["usd"] + sum(
        one[1] for one in going
    )


def _work(run: FlowRun, spec: FlowSpec, step: FlowStep, steps: dict[str, FlowStep]) -> bool:
    asked = step.asked(spec)
    if why := _skipped(asked, steps):
        return _close(step, StepState.SKIPPED, why)
    by = run.version.created_by
    if (
        by is None
        or not Membership.objects.filter(
            project=run.project, user=by, user__is_active=True, role__in=MAY
        ).exists()
    ):
        why = (
            f"{by or 'Who saved this flow'} no longer has permission to run flows here. Someone"
            " with permission must save the flow again."
        )
        return _stop(run, spec, step, why)
    if step.started_at is None:
        step.started_at = timezone.now()
        step.save(update_fields=["started_at"])
    made = {key: one.outputs for key, one in steps.items() if one.state == StepState.DONE}
    before = transaction.savepoint()
    try:
        outputs = WORK[type(asked)](Turn(run, step, made, by), asked)
    except NotYet as later:
        transaction.savepoint_commit(before)
        return _waits(run, step, later)
    except REFUSALS as error:
        transaction.savepoint_rollback(before)
        may_pass = isinstance(error, (JobFailed, *PASSING))
        return _fail(run, spec, step, _sentence(error), final=not may_pass)
    except (OperationalError, InterfaceError):
        # the database is unreachable: nothing of this attempt is stored, and the next one starts
        # from the same state
        raise
    except Exception as error:
        transaction.savepoint_rollback(before)
        log.exception("Flow run %s, step %s", run.pk, step.key)
        why = (  # the error's text might quote a task
            f"Internal error ({type(error).__name__}); see the worker's log."
        )
        return _fail(run, spec, step, why)
    transaction.savepoint_commit(before)
    step.outputs = outputs
    FlowRun.objects.filter(pk=run.pk).update(note="")
    return _close(step, StepState.DONE, "")


def _sentence(error: Exception) -> str:
    """The error as a sentence. Everybody in the project reads it, so it must not reveal a held-out
    task: whoever runs the step by hand sees more, and that is counted as a view.
    """
    if getattr(error, "held", ()):
        return (
            "A task, or a near-duplicate of it, is held out elsewhere. Run this step on the eval"
            " set's page to see which one."
        )
    return str(error) or "Rejected."


def _skipped(asked: Step, steps: dict[str, FlowStep]) -> str:
    """Why a step is skipped; empty if it is not."""
    names = [name for _, name, _ in asked.named()]
    condition = condition_of(asked) if asked.condition else None
    for name in [*names, *([condition[0]] if condition else [])]:
        if steps[name].state == StepState.SKIPPED:
            return f"{name} was skipped."
    if condition and not holds(condition, {key: step.outputs for key, step in steps.items()}):
        value = steps[condition[0]].outputs.get(condition[1])
        return f"{condition[0]}.{condition[1]} is {value}, not {condition[2]} {condition[3]}."
    refused = next(
        (one for one in steps.values() if one.kind == "ask" and one.outputs.get("answer") == "no"),
        None,
    )
    if refused and not condition:
        return f"{refused.outputs['by']} declined {refused.key}."
    return ""


def _waits(run: FlowRun, step: FlowStep, later: NotYet) -> bool:
    """Stores the step's message. When a step starts waiting for a person, other flows may continue,
    and people are notified.
    """
    people = isinstance(later, AsksPeople)
    state, of_run = (
        (StepState.WAITING, RunState.WAITING) if people else (StepState.RUNNING, RunState.RUNNING)
    )
    said = str(later)[:LONGEST_ERROR]
    new = step.state != state
    step.state, step.said = state, said
    step.not_before = timezone.now() + ASK_AGAIN if people else None
    step.save(update_fields=["state", "said", "jobs", "not_before"])
    if run.state != of_run or run.note != said[:300]:
        FlowRun.objects.filter(pk=run.pk).update(state=of_run, note=said[:300])
    if people and new:
        _announce(run, Event.FLOW_WAITING, said)
        _notify(run, step, said)
    return False


def _notify(run: FlowRun, step: FlowStep, said: str) -> None:
    """The people who can continue it: engineers answer, reviewers review. Those it is assigned to,
    if any.
    """
    assigned = list(assignees(run))
    notify(
        topic=Topic.FLOW_WAITING,
        project=run.project,
        to=assigned or None,
        subject=f"{run.version.flow} is waiting: {said}",
        page=run.get_absolute_url(),
        key=f"flow_step:{step.pk}:{step.attempt}:{timezone.now():%F %T}",
        role=Role.REVIEWER if step.kind == "review" else Role.ENGINEER,
    )


def _close(step: FlowStep, state: StepState, said: str) -> bool:
    seconds, usd = used(step)
    step.state, step.finished_at = state, timezone.now()
    step.said = "" if state == StepState.DONE else said or step.said
    step.seconds, step.usd = step.seconds + seconds, step.usd + usd
    step.save()
    return True


def _stop(run: FlowRun, spec: FlowSpec, step: FlowStep, why: str) -> bool:
    """Fail permanently, and cancel active jobs."""
    for job in own_jobs_of(step):
        jobs.cancel(job, by=run.version.created_by)
    return _fail(run, spec, step, why, final=True)


def _fail(run: FlowRun, spec: FlowSpec, step: FlowStep, why: str, *, final: bool = False) -> bool:
    """Retry with growing delays while attempts are left, unless it is `final`: another attempt
    would fail as this one. What its jobs have used is kept.
    """
    log.info("Flow run %s, step %s: %s", run.pk, step.key, why)
    step.refresh_from_db(fields=["jobs"])  # what this attempt had started is rolled back
    seconds, usd = used(step)
    step.seconds, step.usd, step.attempt = step.seconds + seconds, step.usd + usd, step.attempt + 1
    step.said, step.jobs = why[:LONGEST_ERROR], step.jobs if final else {}
    failure = {"at": timezone.now().isoformat(timespec="seconds"), "said": step.said}
    step.failures = [*step.failures, failure][-MOST_FAILURES:]
    if final or step.attempt > spec.retries:
        step.state, step.finished_at = StepState.FAILED, timezone.now()
    else:
        step.state, step.not_before = (
            StepState.PENDING,
            timezone.now() + FIRST_RETRY * 2 ** (step.attempt - 1),
        )
    step.save()
    return True


def _note(run: FlowRun, why: str) -> bool:
    if run.note != why[:300]:
        FlowRun.objects.filter(pk=run.pk).update(note=why[:300])
    return False


def _cancel(run: FlowRun, step: FlowStep | None) -> bool:
    """Cancel active jobs, and end the run once they have ended."""
    going = [job for job in own_jobs_of(step) if job.is_active] if step else []
    for job in going:
        if job.cancel_requested_at is None:
            jobs.cancel(job, by=None)
    if going:
        return _note(run, f"Stopping: {going[0].name}.")
    if step and step.state in (StepState.RUNNING, StepState.WAITING):
        _close(step, StepState.FAILED, "Cancelled.")
    return _end(run, RunState.CANCELLED)


def _end(run: FlowRun, state: RunState, error: str = "") -> bool:
    if run.end(state, error):
        audit(
            f"flow.{state}",
            project=run.project,
            by=run.version.created_by,
            target=run,
            name=str(run.version.flow),
            error=error,
        )
        run.state = state
        _announce(
            run, Event.FLOW_ENDED, ""
        )  # no text: an error may contain more than should leave the project
        if state == RunState.FAILED:
            _notify_of_failure(run, error)
    return False


def _notify_of_failure(run: FlowRun, error: str) -> None:
    """Those it is assigned to, otherwise whoever saved or started it; if none of them is here any
    more, engineers.
    """
    people = list(assignees(run)) or [run.version.created_by, run.created_by]
    still_here = Membership.objects.filter(
        project=run.project,
        user__is_active=True,
        role__in=MAY,
        user__in=[user for user in people if user],
    )
    notify(
        topic=Topic.FLOW_FAILED,
        project=run.project,
        to=people if still_here.exists() else None,
        subject=f"{run.version.flow} failed",
        excerpt=error,
        page=run.get_absolute_url(),
        key=f"flow_failed:{run.pk}:{timezone.now():%F %T}",
    )


def _announce(run: FlowRun, event: Event, said: str) -> None:
    page = reverse("automation:run", args=[run.project.slug, run.pk])
    state = {Event.FLOW_WAITING: "waits for a person"}.get(event, str(run.state))
    announce(
        project=run.project,
        event=event,
        subject=f"{run.version.flow}: {state}",
        data={
            "flow_run": {
                "id": str(run.pk),
                "flow": run.version.flow.name,
                "version": run.version.number,
                "state": "waiting" if event == Event.FLOW_WAITING else state,
                "said": said,
            },
            "page": page,
        },
    )


# Actions of people


def answer(*, run: FlowRun, yes: bool, by: Any) -> None:
    """Raises FlowError if the run is not (or no longer) asking."""
    with transaction.atomic():
        run = _locked_run(run)
        step = run.steps.select_for_update().filter(kind="ask", state=StepState.WAITING).first()
        if step is None or not run.is_open:
            raise FlowError(
                "This run is not waiting for an answer. Someone may have already answered."
            )
        step.outputs = {"answer": "yes" if yes else "no", "by": by.get_username()}
        _close(step, StepState.DONE, "")
        FlowRun.objects.filter(pk=run.pk).update(state=RunState.QUEUED, note="")
        audit(
            "flow.answered",
            project=run.project,
            by=by,
            target=run,
            name=str(run.version.flow),
            step=step.key,
            answer=step.outputs["answer"],
        )


def cancel(*, run: FlowRun, by: Any) -> bool:
    """False if it has already ended."""
    asked = (
        FlowRun.objects.open()
        .filter(pk=run.pk, cancel_requested_at=None)
        .update(cancel_requested_at=timezone.now())
    )
    if asked:
        audit(
            "flow.cancel_requested",
            project=run.project,
            by=by,
            target=run,
            name=str(run.version.flow),
        )
        advance(run)
    return bool(asked)


def retry(*, run: FlowRun, by: Any) -> None:
    """A failed run continues at the failed step. Raises FlowError."""
    with transaction.atomic():
        locked(run.version.flow)
        run = _locked_run(run)
        if run.state not in (RunState.FAILED, RunState.CANCELLED):
            raise FlowError("Only a failed or cancelled run can be resumed.")
        if other := FlowRun.objects.open().filter(version__flow=run.version.flow).first():
            raise FlowError(
                f"A later run of this flow is {other.get_state_display().lower()}. Cancel it first."
            )
        run.steps.filter(state=StepState.FAILED).update(
            state=StepState.PENDING, jobs={}, said="", attempt=0, not_before=None, finished_at=None
        )
        FlowRun.objects.filter(pk=run.pk).update(
            state=RunState.QUEUED, error="", note="", finished_at=None, cancel_requested_at=None
        )
        audit("flow.continued", project=run.project, by=by, target=run, name=str(run.version.flow))
