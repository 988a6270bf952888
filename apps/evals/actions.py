"""Actions of eval sets: create them, add and remove tasks. Their life cycle is in `drafts`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db import IntegrityError, transaction

from apps.core import locks
from apps.core.actions import audit
from apps.core.errors import Rejected
from apps.core.locks import ProjectLock
from apps.core.models import ApiKey, Project
from apps.evals.canonical import canonical_hash
from apps.evals.formats.rows import EMPTY_REQUEST, has_request
from apps.evals.holdout import groups, leaks
from apps.evals.holdout.view_log import record_membership
from apps.evals.models import EvalSet, Origin, Split, Task
from apps.failures.actions.clusters import in_evals
from apps.trajectories.models import Outcome, Trajectory
from workers.lib.messages import calls_in, is_example, text_of

DIVIDED = (Split.HOLDOUT, Split.VALIDATION, Split.TRAIN)
FROZEN = "{} is frozen. Create a new version to change its tasks."


CONTENT = ("key", "split", "group", "messages", "expected", "demonstration", "tools", "metadata")


class EvalSetError(Rejected):
    """An operation that is not allowed on a set; the message is a sentence for the page.

    `held`: canonical hashes of the held-out tasks about which the sentence reveals something.
    """

    held: Collection[str] = ()


class HoldoutLeak(EvalSetError):
    """The same prompt, nearly the same one, or the same group would be both inside and outside a
    hold-out: `pair`, if known.
    """

    def __init__(
        self, sentence: str, pair: leaks.Leak | None = None, held: Collection[str] = ()
    ) -> None:
        super().__init__(sentence)
        self.pair = pair
        self.held = held or ([pair.held_hash] if pair else [])


@transaction.atomic
def create_eval_set(*, project: Project, slug: str, by: Any, description: str = "") -> EvalSet:
    """Version 1 of a new set. Raises EvalSetError if the name is taken, also if that happens
    concurrently.
    """
    try:
        with transaction.atomic():
            eval_set = EvalSet.objects.create(
                project=project, slug=slug, description=description, created_by=by
            )
    except IntegrityError as error:
        raise EvalSetError(
            f"An eval set named “{slug}” already exists. Create a new version of it, or choose"
            " another name."
        ) from error
    audit("eval_set.created", project=project, by=by, target=eval_set, name=str(eval_set))
    return eval_set


def expected_call(trajectory: Trajectory) -> dict | None:
    """The correct call as {"tool", "args"}: a person's correction, or else the call of a successful
    run.
    """
    for intervention in reversed(trajectory.interventions):
        if intervention.get("kind") == "edit" and (call := as_call(intervention.get("after"))):
            return call
    if trajectory.outcome_status != Outcome.SUCCESS:
        return None
    for message in trajectory.messages:
        if (
            message.get("role") == "assistant"
            and not is_example(message)
            and (call := as_call(message))
        ):
            return call
    return None


def corrected_text(trajectory: Trajectory) -> str:
    """What a person wrote in place of the agent's first turn, where a task of the whole run ends;
    "" if nobody did. A correction of no particular turn is one of the first if there is no other.
    """
    turns = enumerate(trajectory.messages)
    steps = [
        at
        for at, message in turns
        if message.get("role") == "assistant" and not is_example(message)
    ]
    first = [*steps[:1], *([None] if len(steps) == 1 else [])]
    for item in reversed(trajectory.interventions):
        after = item.get("after")
        text = text_of(after) if isinstance(after, dict) else after
        if (
            item.get("kind") == "edit"
            and item.get("message_index") in first
            and isinstance(text, str)
        ):
            return text.strip()
    return ""


def as_call(value: Any) -> dict | None:
    """The first call in a value as {"tool", "args"}, in any of the usual forms; None if it contains
    none.
    """
    calls = calls_in(value)
    return calls[0].plain if calls and not calls[0].problem else None


def build_task(eval_set: EvalSet, trajectory: Trajectory, split: Split) -> Task:
    """The unsaved task of a trajectory. Raises EvalSetError if its expected answer is unknown."""
    run_groups, expected = groups.groups_of(trajectory), expected_call(trajectory)
    demonstration = json.dumps(expected, ensure_ascii=False)
    if expected is None and (text := corrected_text(trajectory)):
        expected, demonstration = {"answer": text}, text
    if not has_request(run_groups.request):
        raise EvalSetError(f"Trajectory {trajectory} has no request before the agent's first turn.")
    if expected is None:
        raise EvalSetError(
            f"No expected answer for trajectory {trajectory}. "
            "Send a correction (feedback of kind “edit”), or create the task manually."
        )
    return Task(
        project=eval_set.project,
        eval_set=eval_set,
        key=trajectory.external_id[:120],
        split=split,
        group=str(
            trajectory.metadata.get("group") or trajectory.session_id or run_groups.request_hash
        ),
        groups=run_groups.keys,
        canonical_hash=run_groups.request_hash,
        messages=run_groups.request,
        tools=trajectory.tools,
        expected=expected,
        demonstration=demonstration,
        trajectory=trajectory,
        origin=Origin.SUCCESS if trajectory.outcome_status == Outcome.SUCCESS else Origin.FAILURE,
    )


@dataclass(frozen=True)
class TasksMade:
    """`crossings`: what was left out, and what of it is on the other side of a hold-out. `same_as`:
    the task that a single one is the same as.
    """

    made: int
    duplicates: int
    crossings: list[leaks.Leak]
    without_expected: int = 0
    same_as: Task | None = None

    @property
    def conflicts(self) -> list[leaks.Leak]:
        return [leak for leak in self.crossings if leak.is_exact]

    @property
    def leaks(self) -> list[leaks.Leak]:
        return [leak for leak in self.crossings if not leak.is_exact]

    @property
    def left_out(self) -> int:
        return len(self.crossings)


@transaction.atomic
def tasks_from_trajectories(
    *,
    eval_set: EvalSet,
    trajectories: Iterable[Trajectory],
    by: Any,
    split: Split = Split.TRAIN,
    viewer: ApiKey | None = None,
) -> TasksMade:
    """Adds a task for each trajectory whose expected answer is known; a prompt that is already in
    the set is skipped.

    Skipped, too, is a task that is in a hold-out of the project, or nearly is, or shares one of its
    groups: production asks the same again, the same users come back, and that must not reach
    training. Raises EvalSetError for a frozen set.
    """
    tasks, without = [], 0
    for trajectory in trajectories:
        try:
            tasks.append(build_task(eval_set, trajectory, split))
        except EvalSetError:
            without += 1
    made = store_tasks(eval_set=eval_set, tasks=tasks, by=by, what="production", viewer=viewer)
    return replace(made, without_expected=without)


@transaction.atomic
def store_tasks(
    *, eval_set: EvalSet, tasks: Iterable[Task], by: Any, what: str, viewer: ApiKey | None = None
) -> TasksMade:
    """Adds unsaved tasks to a draft; `what` says where they come from. Every way of adding tasks
    ends here. Whoever is told that something was left out (`by`, or the key `viewer`) learns what
    is held out, which counts as a view.

    Left out and counted: a prompt or key that the set already has, and tasks that are, nearly are,
    or share a group with something on the other side of a hold-out of the project
    (`leaks.crossings`). Raises EvalSetError for a frozen set.
    """
    eval_set, offered = locked_draft(eval_set), list(tasks)
    new, known = _without_known(eval_set, offered)
    crossings = list(leaks.crossings(eval_set.project, new))
    held = known | {leak.theirs_hash for leak in crossings}
    record_membership(eval_set.project, held, by=viewer or by, detail=f"left out of {eval_set}")
    crossing = {leak.key for leak in crossings}
    good = [task for task in new if task.key not in crossing]
    made = TasksMade(len(good), len(offered) - len(new), crossings)
    _insert(good)
    in_evals(trajectories=[task.trajectory_id for task in good if task.trajectory_id], by=by)
    audit(
        "eval_set.tasks_added",
        project=eval_set.project,
        by=by,
        target=eval_set,
        name=str(eval_set),
        what=what,
        made=made.made,
        duplicates=made.duplicates,
        guarded=len(made.conflicts),
        leaks=len(made.leaks),
    )
    return made


def _without_known(eval_set: EvalSet, offered: Sequence[Task]) -> tuple[list[Task], set[str]]:
    """Those whose request and key the set does not have, each once. And the canonical hashes of the
    set's held-out tasks that the others have in common with it: telling somebody reveals that they
    are held out.
    """
    rows = list(eval_set.tasks.values_list("canonical_hash", "key", "split"))
    hashes, keys = {row[0] for row in rows}, {row[1] for row in rows}
    new, wanted = [], {name for task in offered for name in (task.canonical_hash, task.key)}
    for task in offered:
        if task.canonical_hash not in hashes and task.key not in keys:
            hashes.add(task.canonical_hash)
            keys.add(task.key)
            new.append(task)
    return new, {
        canonical
        for canonical, key, split in rows
        if split == Split.HOLDOUT and not wanted.isdisjoint((canonical, key))
    }


def locked_draft(eval_set: EvalSet) -> EvalSet:
    """The set, locked, with the project: adding to a hold-out and adding outside it wait for each
    other.
    """
    locks.acquire_in(eval_set.project_id, ProjectLock.TASKS)
    locked = (
        EvalSet.objects.select_for_update(of=("self",))
        .select_related("project")
        .get(pk=eval_set.pk)
    )
    _require_draft(locked)
    return locked


def store_task(task: Task, by: Any) -> Task:
    """Inserts one task into its locked set. Raises EvalSetError, for a leak HoldoutLeak with the
    two tasks next to each other.
    """
    eval_set = task.eval_set
    new, known = _without_known(eval_set, [task])
    if not new:
        error = EvalSetError(f"{eval_set} already has a task with this key or request.")
        error.held = known
        raise error
    refuse_crossings(new)
    _insert(new)
    audit(
        "task.created",
        project=eval_set.project,
        by=by,
        target=task,
        set=str(eval_set),
        set_id=str(eval_set.pk),
        split=task.split,
    )
    return task


@transaction.atomic
def add_task(
    *,
    eval_set: EvalSet,
    key: str,
    request: str,
    expected: dict,
    split: Split,
    by: Any,
    group: str = "",
) -> Task:
    """Adds a task written by hand (`written_task`). Raises EvalSetError."""
    eval_set = locked_draft(eval_set)
    task = written_task(
        eval_set, key=key, request=request, expected=expected, split=split, by=by, group=group
    )
    return store_task(task, by)


def written_task(
    eval_set: EvalSet,
    *,
    key: str,
    request: str,
    expected: dict,
    split: Split,
    by: Any,
    group: str = "",
) -> Task:
    """An unsaved task: one user message and the expected call, which counts as confirmed by its
    author.
    """
    messages = [{"role": "user", "content": request}]
    digest = canonical_hash(messages)
    return Task(
        project=eval_set.project,
        eval_set=eval_set,
        key=key,
        split=split,
        group=group or digest,
        canonical_hash=digest,
        messages=messages,
        expected=expected,
        demonstration=(
            json.dumps(expected, ensure_ascii=False)
            if {"tool", "calls"} & expected.keys()
            else answer_text(expected)
        ),
        origin=Origin.MANUAL,
        confirmed_by=by,
    )


def answer_text(expected: dict) -> str:
    """The expected answer as text: the first of several, JSON for other values, "" if there is
    none.
    """
    answer = expected.get("answer", "")
    answer = answer[0] if isinstance(answer, list) and answer else answer
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


@transaction.atomic
def remove_task(*, task: Task, by: Any) -> None:
    locked_draft(task.eval_set)  # a concurrent freeze reads the set's tasks under the same lock
    require_unevaluated(task)
    key = task.key if task.split != Split.HOLDOUT else "held out"
    audit("task.removed", project=task.project, by=by, target=task, set=str(task.eval_set), key=key)
    task.delete()


def content_of(task: Task, but: str = "") -> dict[str, Any]:
    """What a set's digest is computed from, without the field `but`."""
    return {name: getattr(task, name) for name in CONTENT if name != but}


def require_unevaluated(task: Task) -> None:
    """Raises EvalSetError for a task of a set that was frozen before, with samples of it."""
    if task.samples.exists():
        raise EvalSetError(
            "This task was evaluated before the set became a draft again, so it stays as it is."
            " Split and freeze the set; tasks can be changed in its next version."
        )


def _require_draft(eval_set: EvalSet) -> None:
    if eval_set.is_frozen:
        raise EvalSetError(FROZEN.format(eval_set))


def refuse_crossings(tasks: Sequence[Task]) -> None:
    """Raises HoldoutLeak if one of these tasks is the same as, similar to, or in a group with a
    task on the other side of a hold-out.
    """
    for leak in leaks.crossings(tasks[0].project, tasks):
        raise HoldoutLeak(str(leak), leak)


def require_requests(tasks: list[Task]) -> None:
    """Raises EvalSetError."""
    if empty := [task.key for task in tasks if not has_request(task.messages)]:
        raise EvalSetError(f"The request of task {empty[0]} is {EMPTY_REQUEST}")


def _insert(tasks: list[Task]) -> None:
    require_requests(tasks)
    try:
        with transaction.atomic():
            Task.objects.bulk_create(tasks)
    except IntegrityError as error:
        raise refusal_of(error) from error


def refusal_of(error: IntegrityError) -> EvalSetError:
    """What the database refuses although the search found nothing: what the tasks are to each
    other.
    """
    if "never_trains" not in str(error):
        return EvalSetError("Two tasks in the set have the same key or request.")
    return HoldoutLeak(
        "A task is both in a hold-out and outside it. A hold-out must not share tasks with training"
        " data."
    )
