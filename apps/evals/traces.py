"""Traced runs that name a sample of an evaluation become its answers, scored like those sent by CI.

They wait as `EvalClaim` rows. Each is settled once: used, or refused with a note; the run stays a
trajectory either way. While the evaluation is open, a run that gets more spans replaces its own
answer.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import transaction
from django.utils.text import slugify

from apps.evals import answers
from apps.evals.models import Answer, EvalRun, Task
from apps.trajectories import schema
from apps.trajectories.decoding import RowError
from apps.trajectories.models import EvalClaim, Outcome, Trajectory, with_content

AT_ONCE = 100  # claims per transaction
LATER_COPY = "This run was already scored as that sample; later changes to it are ignored."


class Refused(Exception):
    """Why a run is not used as the sample that it names, as a sentence."""


def settle() -> int:
    """Settles waiting claims. Returns their number."""
    done = 0
    while some := step():
        done += some
    return done


@transaction.atomic
def step() -> int:
    """Settles some claims; those that another process is settling are skipped."""
    waiting = EvalClaim.objects.filter(state=EvalClaim.State.WAITING).select_for_update(
        skip_locked=True
    )
    by_run: defaultdict[tuple[int, str], list[EvalClaim]] = defaultdict(list)
    claims = list(waiting.order_by("pk")[:AT_ONCE])
    for claim in claims:
        by_run[claim.project_id, claim.run].append(claim)
    for (project, run), some in sorted(by_run.items()):
        _settle(_find_run(project, run), some)
    EvalClaim.objects.bulk_update(claims, ["state", "note"])
    return len(claims)


def _find_run(project_id: int, named: str) -> EvalRun | None:
    """Locked, so that its answers are counted by one at a time."""
    try:
        pk = UUID(named)
    except ValueError:
        return None
    rows = EvalRun.objects.select_related("project", "model_version", "eval_set").select_for_update(
        of=("self",)
    )
    return rows.filter(pk=pk, project_id=project_id).first()


def _settle(run: EvalRun | None, claims: list[EvalClaim]) -> None:
    rows = Trajectory.objects.filter(pk__in=[claim.pk for claim in claims])
    found = {row.pk: row for row in with_content(list(rows))}
    new = 0
    for claim in claims:
        try:
            claim.note = _use(run, claim, found[claim.pk])
            claim.state = EvalClaim.State.USED
            new += not claim.note
        except (Refused, RowError) as problem:
            claim.state, claim.note = EvalClaim.State.REFUSED, str(problem)[:500]
    if run is not None and new:
        answers.note_answers(run, settle_s=settings.FLYWHEEL_TRACES_SETTLE_S)


def _use(run: EvalRun | None, claim: EvalClaim, row: Trajectory) -> str:
    """Stores the run's answer; returns a note if that changed nothing. Raises Refused, RowError."""
    if run is None:
        raise Refused(f"No evaluation of this project has the id “{claim.run[:80]}”.")
    if not run.is_answered_elsewhere:
        raise Refused("That evaluation generates its own answers and does not accept traces.")
    task = _task(run, claim.task)
    if claim.sample >= run.samples_per_task:
        raise Refused(
            f"That evaluation has {run.samples_per_task} samples per task: “sample” must be below"
            " that."
        )
    if is_other_agent(row.agent_name, run.model_version.name):
        raise Refused(
            f"That evaluation is of the agent {run.model_version.name}; this run is from"
            f" “{row.agent_name}”. Start an evaluation of that agent, or use the agent name of the"
            " evaluation."
        )
    if (
        row.agent_version
        and row.agent_version != run.model_version.agent_version[: schema.MAX_NAME]
    ):
        raise Refused(
            f"That evaluation is of {run.model_version.name} {run.model_version.agent_version};"
            f" this run is from “{row.agent_version}”. The agent version must not change during an"
            " evaluation."
        )
    answer = _answer(run, task, claim, row)
    known = run.answers.filter(task=task, index=claim.sample).first()
    if known and known.digest == answer.digest:
        return "" if known.trajectory == row.pk else "This sample already has the same answer."
    if known and known.trajectory != row.pk:
        raise Refused("This sample already has a different answer; the first answer counts.")
    if not answers.is_open(run):
        if known:
            return LATER_COPY
        raise Refused(answers.why_closed(run))
    if known:
        known.delete()
    answers.check_room(run, answer.size)
    answer.save()
    return ""


def is_other_agent(said: str, name: str) -> bool:
    """Whether a run names another agent; case, spaces and punctuation do not matter, and
    OpenTelemetry's default names none.
    """
    if not said or said.startswith("unknown_service"):
        return False
    return slugify(said, allow_unicode=True) != slugify(name[: schema.MAX_NAME], allow_unicode=True)


def _task(run: EvalRun, named: str) -> Task:
    """By its id or its key. Raises Refused."""
    rows = run.eval_set.tasks.filter(split=run.split)
    try:
        found = rows.filter(pk=UUID(named)).first()
    except ValueError:
        found = rows.filter(key=named).first()
    if found is None:
        raise Refused(f"“{named[:80]}” is not the id or key of a task of that evaluation.")
    return found


def _answer(run: EvalRun, task: Task, claim: EvalClaim, row: Trajectory) -> Answer:
    """Unsaved; what the run says of its own outcome does not count where the agent said something.
    Raises Refused for one in which it said nothing and that did not fail."""
    error = ""
    sent = answers.SentRow(task=str(task.pk), index=claim.sample, messages=row.messages)
    try:
        turns = answers.turns_of(sent, task.messages)
    except RowError:
        if row.outcome_status != Outcome.FAILURE:
            raise Refused(
                "This run has no agent message after the task's own messages: is content capture"
                " enabled?"
            ) from None
        turns, error = [], (row.outcome_reason or "the run ended in an error")[:2000]
    size = len(msgspec.json.encode(turns))
    if size > answers.MOST_BYTES:
        raise Refused(f"The agent's messages are larger than {answers.MOST_BYTES // 2**20} MiB.")
    measured = {
        "latency_ms": row.latency_ms,
        "input_tokens": row.input_tokens,
        "output_tokens": row.output_tokens,
    }
    digest = schema.content_digest({"turns": turns, "error": error} | measured)
    return Answer(
        run=run,
        task=task,
        index=claim.sample,
        turns=turns,
        error=error,
        digest=digest,
        size=size,
        trajectory=row.pk,
        **measured,
    )


MOST_SHOWN = 50


def unused(run: EvalRun, *, with_reasons: bool) -> dict[str, Any]:
    """For the API: how many runs named this evaluation and were not used, and the newest of them
    with the reasons, which may quote a held-out task."""
    claims = refused(run)
    rows = [
        {
            "trajectory": claim.trajectory.external_id,
            "task": claim.task,
            "sample": claim.sample,
            "reason": claim.note,
        }
        for claim in (claims[:MOST_SHOWN] if with_reasons else ())
    ]
    return {"count": len(claims), "newest": rows}


def refused(run: EvalRun) -> list[EvalClaim]:
    """The runs that named this evaluation and were not used, the newest first."""
    rows = EvalClaim.objects.filter(
        project=run.project_id, run=str(run.pk), state=EvalClaim.State.REFUSED
    )
    return list(rows.select_related("trajectory").order_by("-pk"))
