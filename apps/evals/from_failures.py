"""A task from a failure, which a person confirms. Many at once are `proposals`."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from apps.core.models import Project
from apps.evals import actions, drafts
from apps.evals.formats.verifiers_package import RECORDED
from apps.evals.models import EvalSet, EvalSetState, Split, Task, TaskKind
from apps.evals.proposals.same import record_occurrences, same_task, settle_proposals
from apps.evals.source_runs import RunStep, recorded_results, task_at
from apps.evals.suggestions import Suggestion, demonstration_of, later_of
from apps.failures.actions.decisions import decide
from apps.failures.models import Failure, FailureState

DRAFT = "production-failures"


@transaction.atomic
def open_draft(*, project: Project, by: Any) -> EvalSet:
    """Where a failure's task goes if no draft is open: the next version of the project's set of
    failures, or its first.

    Raises EvalSetError.
    """
    newest = project.eval_sets.filter(slug=DRAFT).order_by("-version").first()
    if newest is None:
        return actions.create_eval_set(
            project=project, slug=DRAFT, by=by, description="Tasks made in triage"
        )
    return (
        newest if newest.state == EvalSetState.DRAFT else drafts.new_version(eval_set=newest, by=by)
    )


def sets_with(step: RunStep) -> list[Task]:
    """The tasks with the request of this step, the newest set first and one per set name; held-out
    ones are not listed.
    """
    tasks = Task.objects.filter(project=step.source.row.project_id, canonical_hash=step.digest)
    rows = tasks.exclude(split=Split.HOLDOUT).select_related("eval_set")
    of_set: dict[str, Task] = {}
    for task in rows.order_by("-eval_set__created_at")[:50]:
        of_set.setdefault(task.eval_set.slug, task)
    return list(of_set.values())


@transaction.atomic
def make_task(
    *,
    failure: Failure,
    step: RunStep,
    answer: Suggestion,
    eval_set: EvalSet,
    split: Split,
    group: str,
    by: Any,
    demonstration: str = "",
    replayable: bool = False,
    state: list[dict] | None = None,
    viewer: Any = None,
) -> actions.TasksMade:
    """Stores the task of a failure, confirmed by a person, who thereby confirms the failure if it
    is open. A task that is close to the other side of a hold-out is not stored; of a request that
    is a task already, in any set, only the failure is counted there (`same_as`).

    Raises EvalSetError for a frozen set, Refused for a failure that this person may not decide on.
    """
    task = task_of(failure, step, answer, eval_set, replayable=replayable)
    task.split, task.group, task.confirmed_by = split, group or task.canonical_hash, by
    task.demonstration = demonstration or task.demonstration
    if state:
        task.metadata["state"] = state
    if other := same_task(task):
        record_occurrences(eval_set.project, {other.canonical_hash: [failure.trajectory_id]})
        return actions.TasksMade(0, 1, [], same_as=other)
    what = f"failure {failure.trajectory}"
    made = actions.store_tasks(eval_set=eval_set, tasks=[task], by=by, what=what, viewer=viewer)
    if made.made:
        record_occurrences(eval_set.project, {step.digest: [failure.trajectory_id]})
        settle_proposals(task, by=by)
    if made.made and failure.state == FailureState.OPEN:
        decide(failure=failure, by=by)
    return made


def task_of(
    failure: Failure,
    step: RunStep,
    answer: Suggestion,
    eval_set: EvalSet,
    taken: set[str] | None = None,
    *,
    replayable: bool = True,
) -> Task:
    """Unsaved."""
    return task_at(
        step,
        eval_set.project,
        key=free_key(eval_set, step.source.row.external_id, taken),
        expected=answer.expected,
        eval_set=eval_set,
        demonstration=demonstration_of(answer.expected),
        metadata=metadata_of(failure, step, answer, replayable=replayable),
    )


def metadata_of(
    failure: Failure, step: RunStep, answer: Suggestion | None, *, replayable: bool = True
) -> dict[str, Any]:
    """What a task of a failure keeps of its run: the tools' answers for a replay, and, if it is an
    episode, what the user says next.
    """
    metadata: dict[str, Any] = {"cut": step.cut, "mode": failure.mode.slug}
    if answer:
        metadata["source"] = answer.source
    if replayable:
        metadata[RECORDED] = recorded_results(step.source.run, answer.success if answer else None)
    if answer and answer.kind == TaskKind.EPISODE:
        metadata["environment"] = step.source.environment
        metadata |= later_of(step, answer.expected).as_metadata()
    return metadata


def free_key(eval_set: EvalSet, wanted: str, taken: set[str] | None = None) -> str:
    """The given key, or the key with the next free number. `taken` are the keys in use, if already
    known.
    """
    if taken is None:
        taken = set(
            eval_set.tasks.filter(key__startswith=wanted[:110]).values_list("key", flat=True)
        )
    key, number = wanted[:120], 2
    while key in taken:
        key, number = f"{wanted[:110]}-{number}", number + 1
    return key
