"""Evaluations of an external agent, in CI: it gets tasks without their expected answers, its
answers are stored as they arrive, and a worker scores them once all are there, the caller has
finished, or nobody has sent one for a while.

The evaluation is an ordinary job that is queued but not due before `answers_until` (docs/evals.md,
From CI).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import Count, Sum
from django.db.models.functions import Now
from msgspec import Meta, Struct

from apps.core import jobs
from apps.core.actions import audit
from apps.core.models import ApiKey, JobState, Project
from apps.core.runner import job_fields
from apps.environments.clients import load_for
from apps.environments.models import Environment
from apps.evals import rollouts
from apps.evals.actions import EvalSetError
from apps.evals.bounds import fixed_order
from apps.evals.holdout.view_log import record_seen
from apps.evals.models import Answer, EvalRun, EvalSet, Split, Task
from apps.evals.submission import prepare_eval, same_active
from apps.registry.models import ModelKind, ModelVersion
from apps.trajectories import decoding, schema
from apps.trajectories.decoding import RowError
from workers.lib.specs.environment import Environment as EnvironmentSpec
from workers.lib.specs.score_answers import ScoreAnswers, SentAnswer
from workers.lib.transcripts import agent_turns, foreign_part, is_empty
from workers.lib.typed import FormError, convert

MiB = 2**20
MOST_BYTES = 1 * MiB  # bytes of one answer
MOST_RUN_BYTES = (
    256 * MiB
)  # bytes of all answers of an evaluation: a worker holds them in memory at once
LARGEST_COUNT = 2**31 - 1
EMPTY = "The answer has no text and no call."  # a failure of the agent, as over HTTP


class AnswerError(EvalSetError):
    """Answers that an evaluation does not accept; the message says why."""


class SentRow(Struct, forbid_unknown_fields=True, kw_only=True):
    """One answer as sent: `output` and `tool_calls`, or `messages` (what the agent added, or the
    whole conversation from the task's first message on), or the `error` that it failed with."""

    task: str
    index: Annotated[int, Meta(ge=0, le=32_767)] = 0
    output: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    messages: list[dict[str, Any]] | None = None
    error: str | None = None
    latency_ms: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    input_tokens: Annotated[int, Meta(ge=0, le=LARGEST_COUNT)] | None = None
    output_tokens: Annotated[int, Meta(ge=0, le=LARGEST_COUNT)] | None = None


# Starting


@transaction.atomic
def open_run(
    *,
    project: Project,
    eval_set: EvalSet,
    split: Split,
    environment: Environment,
    agent: ModelVersion,
    samples_per_task: int,
    seed: int,
    by: Any,
    viewer: ApiKey | None = None,
) -> tuple[EvalRun, bool]:
    """An evaluation that accepts an agent's answers, and whether it is new: asking for the same one
    again while it is running continues it. Raises EvalSetError."""
    if agent.kind != ModelKind.AGENT:
        raise EvalSetError(
            f"{agent} does not send its own answers. Start its evaluation without `agent`."
        )
    # two clients that start at the same time share one evaluation
    EvalSet.objects.select_for_update().get(pk=eval_set.pk)
    given = {"samples_per_task": samples_per_task, "seed": seed}
    if found := same_active(eval_set, split, environment, agent, **given).first():
        return found, False
    run = prepare_eval(
        project=project,
        eval_set=eval_set,
        split=split,
        environment=environment,
        model_version=agent,
        by=by,
        viewer=viewer,
        **given,
    )
    run.label = "waiting for answers"
    jobs.submit(run, by=by, due_in=_patience())
    EvalRun.objects.filter(pk=run.pk).update(answers_until=Now() + _patience())
    run.refresh_from_db()
    return run, True


def _patience() -> timedelta:
    return timedelta(seconds=settings.FLYWHEEL_ANSWERS_WAIT_S)


# Tasks


def task_ids(run: EvalRun) -> list[str]:
    """In a fixed order."""
    return fixed_order(str(pk) for pk in Task.every.planned_for(run).values_list("pk", flat=True))


def indices_of(run: EvalRun, tasks: Iterable[str]) -> dict[str, set[int]]:
    """{task id: indices of its samples that have an answer}."""
    found: dict[str, set[int]] = defaultdict(set)
    for task, index in run.answers.filter(task__in=list(tasks)).values_list("task_id", "index"):
        found[str(task)].add(index)
    return found


def tasks_page(
    run: EvalRun, *, start: int, limit: int, missing: bool, viewer: ApiKey, base: str
) -> tuple[list[dict[str, Any]], int | None]:
    """Tasks without expected answers from position `start` on, with the samples that still need
    answers, and the addresses of these samples' tools below `base`; and where the next page starts.
    With `missing`, only tasks that lack an answer. Of a hold-out, each task counts as a view."""
    ids = task_ids(run)
    counts = (
        dict(run.answers.values_list("task_id").annotate(n=Count("pk")).order_by())
        if missing
        else {}
    )
    chosen: list[str] = []
    at = start
    while at < len(ids) and len(chosen) < limit:
        if counts.get(UUID(ids[at]), 0) < run.samples_per_task:
            chosen.append(ids[at])
        at += 1
    answered = indices_of(run, chosen)
    rows = {str(task.pk): task for task in Task.objects.filter(pk__in=chosen)}
    if run.split == Split.HOLDOUT:
        record_seen(
            run.project,
            Task.objects.filter(pk__in=chosen),
            by=viewer,
            detail=f"served to an agent ({run.pk})",
        )
    tools = load_for(run.environment).tools
    lacking = {
        pk: [index for index in range(run.samples_per_task) if index not in answered[pk]]
        for pk in chosen
    }
    places = [(pk, index) for pk in chosen for index in lacking[pk]]
    links = rollouts.links(run, places if run.takes_answers else (), base)
    found = [
        {
            "id": pk,
            "messages": rows[pk].messages,
            "tools": rows[pk].tools or tools,
            "missing": lacking[pk],
            "rollouts": [
                {"index": index} | links[pk, index] for index in lacking[pk] if (pk, index) in links
            ],
        }
        for pk in chosen
    ]
    return found, at if at < len(ids) else None


# Answers


@dataclass
class Received:
    """The result of a batch. `rejected`: [{index, path, error}], by the row's position in the
    request.
    """

    accepted: int = 0
    duplicates: int = 0
    rejected: list[dict[str, Any]] = field(default_factory=list)


def receive(*, run: EvalRun, agent_version: str, rows: Iterable[memoryview]) -> Received:
    """Stores the answers of a batch independently of each other, and hands the evaluation to a
    worker when all are there.

    An answer that is already stored counts as a duplicate, also after the end; a different one for
    the same sample is rejected. Raises AnswerError if the evaluation does not accept answers (any
    more), or if they belong to another version.
    """
    if not run.is_answered_elsewhere:
        raise AnswerError("This evaluation generates its own answers and does not accept any.")
    if agent_version != run.model_version.agent_version:
        raise AnswerError(
            f"This evaluation is of {run.model_version.name} {run.model_version.agent_version};"
            f" these answers are of “{agent_version[:80]}”. The agent version must not change"
            " during an evaluation: start a new one."
        )
    done = Received()
    sent = list(_read(rows, done))
    prompts = dict(
        Task.objects.filter(
            pk__in={row.task for _, row, _ in sent}, eval_set=run.eval_set_id, split=run.split
        ).values_list("pk", "messages")
    )
    made = list(_made(run, sent, {str(pk): messages for pk, messages in prompts.items()}, done))
    with transaction.atomic():
        locked = EvalRun.objects.select_for_update().get(pk=run.pk)
        new = _new(locked, made, done)
        open_ = is_open(locked)
        if new and not open_:
            raise AnswerError(why_closed(locked))
        Answer.objects.bulk_create(new)
        rollouts.end_answered(locked)
        done.accepted = len(new)
        if open_:
            note_answers(locked)
    done.rejected.sort(key=lambda item: item["index"])
    return done


def is_open(run: EvalRun) -> bool:
    """Whether it accepts answers, by the database's clock."""
    return EvalRun.objects.filter(
        pk=run.pk, state=JobState.QUEUED, answers_until__gt=Now()
    ).exists()


def why_closed(run: EvalRun) -> str:
    if run.state == JobState.CANCELLED:
        return "This evaluation was cancelled and accepts no more answers. Start a new one."
    return (
        "This evaluation accepts no more answers: it has finished or timed out waiting for answers."
        " Start a new one."
    )


def _read(rows: Iterable[memoryview], done: Received) -> Iterable[tuple[int, SentRow, int]]:
    """(position, row, bytes) of each valid row; problems of the others are noted in `done`."""
    for at, part in enumerate(rows):
        try:
            if len(part) > MOST_BYTES:
                raise RowError(
                    "",
                    f"is larger than {MOST_BYTES // MiB} MiB; send only the agent's own messages",
                )
            value = decoding.decode(part)
            row = convert(decoding.clean(getattr(value, "value", value)), SentRow)
            row.task = str(UUID(row.task))
            yield at, row, len(part)
        except FormError as error:
            _reject(done, at, error.path, error.problem)
        except ValueError:
            _reject(done, at, "task", "is not the id of a task")


def _reject(done: Received, at: int, path: str, error: str) -> None:
    done.rejected.append({"index": at, "path": path, "error": error})


def _made(
    run: EvalRun,
    sent: list[tuple[int, SentRow, int]],
    prompts: dict[str, list[dict]],
    done: Received,
) -> Iterable[tuple[int, Answer]]:
    """(position, unsaved answer) of each row that answers a task of the run. Who called tools at
    the sample's address need not say anything.
    """
    used = rollouts.used(run, prompts)
    for at, row, size in sent:
        try:
            if row.task not in prompts:
                raise RowError("task", "is not a task of this evaluation")
            if row.index >= run.samples_per_task:
                raise RowError(
                    "index", f"must be below {run.samples_per_task}, the samples per task"
                )
            turns = turns_of(row, prompts[row.task])
            silent = all(map(is_empty, turns)) and (row.task, row.index) not in used
            error = row.error or (EMPTY if silent else "")
        except RowError as error:
            _reject(done, at, error.path, error.problem)
            continue
        yield (
            at,
            Answer(
                run=run,
                task_id=UUID(row.task),
                index=row.index,
                turns=turns,
                error=error[:2000],
                size=size,
                latency_ms=row.latency_ms,
                input_tokens=row.input_tokens,
                output_tokens=row.output_tokens,
                digest=schema.content_digest(msgspec.to_builtins(row)),
            ),
        )


def turns_of(row: SentRow, prompt: list[dict]) -> list[dict]:
    """The agent's messages. Raises RowError if a row has none, or has them in two forms."""
    direct = row.output is not None or row.tool_calls is not None
    if direct and row.messages is not None:
        raise RowError("messages", "and output or tool_calls were sent; send one of them")
    if row.messages is not None:
        for at, message in enumerate(row.messages):
            if not isinstance(message.get("role"), str):
                raise RowError(f"messages[{at}].role", "is missing: send OpenAI chat messages")
        if foreign := foreign_part(row.messages):
            raise RowError("", f": {foreign}")
        turns = agent_turns(row.messages, prompt)
        if not turns and not row.error:
            raise RowError("messages", "has no assistant message after the task's own messages")
        return turns
    if direct:
        calls = {"tool_calls": row.tool_calls} if row.tool_calls else {}
        return [{"role": "assistant", "content": row.output or ""} | calls]
    if not row.error:
        raise RowError("", "has no answer: send output, tool_calls, messages, or error")
    return []


def _new(run: EvalRun, made: list[tuple[int, Answer]], done: Received) -> list[Answer]:
    """The answers that are not stored yet. The run is locked."""
    rows = run.answers.filter(task__in={answer.task_id for _, answer in made})
    known = {
        (task, index): digest
        for task, index, digest in rows.values_list("task_id", "index", "digest")
    }
    size = (run.answers.aggregate(sum=Sum("size"))["sum"] or 0) if made else 0
    new = []
    for at, answer in made:
        place = (answer.task_id, answer.index)
        if place in known:
            if known[place] == answer.digest:
                done.duplicates += 1
            else:
                _reject(
                    done, at, "index", "already has a different answer; answers cannot be replaced"
                )
            continue
        size += answer.size
        if size > MOST_RUN_BYTES:
            _reject(
                done,
                at,
                "",
                f"exceeds the limit of {MOST_RUN_BYTES // MiB} MiB of answers per evaluation",
            )
            continue
        known[place] = answer.digest
        new.append(answer)
    return new


def check_room(run: EvalRun, size: int) -> None:
    """Raises RowError if an evaluation has no room for another answer of that size."""
    if (run.answers.aggregate(sum=Sum("size"))["sum"] or 0) + size > MOST_RUN_BYTES:
        raise RowError(
            "", f"exceeds the limit of {MOST_RUN_BYTES // MiB} MiB of answers per evaluation"
        )


def note_answers(run: EvalRun, settle_s: float = 0) -> None:
    """After a batch: stores the count and extends the deadline; once all answers are there, asks a
    worker to score them, `settle_s` later if they may still change."""
    count = run.answers.count()
    if count >= run.total and not settle_s:
        _close(run, count)
        return
    until = Now() + (timedelta(seconds=settle_s) if count >= run.total else _patience())
    EvalRun.objects.filter(pk=run.pk).update(
        done=count,
        label=f"waiting for answers: {count:,} of {run.total:,}",
        answers_until=until,
        resend_at=until,
    )


def _close(run: EvalRun, count: int) -> None:
    EvalRun.objects.filter(pk=run.pk).update(
        done=count,
        label=f"{count:,} of {run.total:,} answers to score",
        answers_until=Now(),
        resend_at=Now(),
    )
    run.refresh_from_db()
    transaction.on_commit(lambda: jobs.enqueue(run))


@transaction.atomic
def finish(*, run: EvalRun, by: Any) -> bool:
    """Stops accepting answers and has the existing ones scored. False if it no longer accepted any.
    Raises AnswerError.
    """
    if not run.is_answered_elsewhere:
        raise AnswerError("This evaluation generates its own answers and finishes on its own.")
    locked = EvalRun.objects.select_for_update().get(pk=run.pk)
    open_ = is_open(locked)
    if open_:
        count = locked.answers.count()
        audit(
            "evalrun.finished_early",
            project=run.project,
            by=by,
            target=run,
            name=run.name,
            answers=count,
        )
        _close(locked, count)
    return open_


# Scoring


def stored_answers(run: EvalRun) -> list[Answer]:
    """Raises AnswerError if there is nothing to score."""
    answers = list(run.answers.order_by("pk"))
    if not answers:
        raise AnswerError(
            "Incomplete: no answer was sent before the evaluation was finished or timed out."
        )
    return answers


def answers_spec(run: EvalRun, answers: list[Answer], environment: EnvironmentSpec) -> ScoreAnswers:
    ids = fixed_order({str(answer.task_id) for answer in answers})
    place = {pk: at for at, pk in enumerate(ids)}
    tasks = {str(task.pk): task for task in Task.objects.filter(pk__in=ids)}
    states = {place: ran.state for place, ran in rollouts.take_all(run).items()}
    return ScoreAnswers(
        **job_fields(run),
        environment=environment,
        tasks=[tasks[pk].as_spec() for pk in ids],
        answers=[
            SentAnswer(
                task=place[str(answer.task_id)],
                index=answer.index,
                turns=answer.turns,
                state=states.get((str(answer.task_id), answer.index)),
                error=answer.error,
                latency_ms=answer.latency_ms,
                input_tokens=answer.input_tokens,
                output_tokens=answer.output_tokens,
            )
            for answer in answers
        ],
    )
