"""The life cycle of an eval set: a draft is split and frozen; a next version starts as a draft."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any

from django.db import IntegrityError, connection, transaction
from django.utils import timezone
from msgspec import Meta

from apps.core import locks
from apps.core.actions import audit
from apps.core.locks import ProjectLock
from apps.core.models import ACTIVE_STATES, Job, Project, Role
from apps.core.openapi import sent
from apps.core.operations import Page, Rest, Written, operation
from apps.core.routes import SHOWS_SIDES
from apps.evals.actions import (
    DIVIDED,
    FROZEN,
    EvalSetError,
    HoldoutLeak,
    content_of,
    locked_draft,
    refusal_of,
)
from apps.evals.canonical import group_key, set_digest
from apps.evals.holdout import groups, leaks
from apps.evals.holdout.splits import choose_holdout
from apps.evals.models import WAITING, EvalSet, EvalSetState, Origin, Split, Task
from apps.evals.near_duplicates import compare
from apps.evals.pages.attempt import side_by_side
from apps.evals.schema import SET, as_json
from workers.lib.typed import Seed

MOST_TASKS = 10_000_000
HoldoutSize = Annotated[int, Meta(title="Hold-out size", ge=1, le=MOST_TASKS)]
ValidationSize = Annotated[
    int,
    Meta(
        title="Validation size",
        ge=0,
        le=MOST_TASKS,
        description="Minimum size; groups stay whole, the rest is training data",
    ),
]
WithoutHoldout = Annotated[
    bool,
    Meta(
        description=(
            "A set without held-out tasks is only frozen by choice: they cannot be held out later,"
            " once the set is in use"
        )
    ),
]
SET_WRITTEN = Written(SET, lambda request, eval_set: as_json(eval_set))
NO_HOLDOUT = (
    "{} has no held-out tasks: no model could be tested on it fairly, and its tasks could not be"
    " held out later. Split it first, or choose to freeze it without a hold-out (`without_holdout`"
    " in the API)."
)


def _sizes_in_words(target: EvalSet, returned: dict[str, int]) -> str:
    sizes = ", ".join(f"{returned[part]:,} {part.label.lower()}" for part in DIVIDED)
    return f"Split by group: {sizes}."


@operation(
    "eval_sets_new_version",
    rest=Rest("POST", "eval-sets/<uuid:pk>/new-version/", "set_version", 201),
    page=Page("<uuid:pk>/version/", "new_version"),
    gives=SET_WRITTEN,
    role=Role.ENGINEER,
    says={"eval_set.new_version": "created {name@} as a new version of {source}"},
)
@transaction.atomic
def new_version(*, eval_set: EvalSet, by: Any) -> EvalSet:
    """Creates a draft with the same tasks and the next version number. 409 if the set already has a
    draft.

    Raises EvalSetError.
    """
    versions = EvalSet.objects.filter(project=eval_set.project, slug=eval_set.slug)
    list(
        versions.select_for_update().order_by("pk")
    )  # pressing twice, or two people at once, creates one draft
    draft = versions.filter(state=EvalSetState.DRAFT).first()
    if draft:
        raise EvalSetError(f"{draft} is already a draft. Edit or freeze it first.")
    latest = versions.order_by("-version").first()
    copy = EvalSet.objects.create(
        project=eval_set.project,
        slug=eval_set.slug,
        version=latest.version + 1,
        description=eval_set.description,
        created_by=by,
    )
    tasks = list(eval_set.tasks.all())
    for task in tasks:
        task.pk, task.eval_set, task._state.adding = Task._meta.pk.get_default(), copy, True
    Task.objects.bulk_create(tasks)
    audit(
        "eval_set.new_version",
        project=copy.project,
        by=by,
        target=copy,
        name=str(copy),
        source=str(eval_set),
    )
    return copy


@operation(
    "eval_sets_split",
    rest=Rest("POST", "eval-sets/<uuid:pk>/split/", "set_split"),
    page=Page("<uuid:pk>/split/", "split", done=_sizes_in_words, refused=side_by_side),
    gives=SET_WRITTEN,
    role=Role.ENGINEER,
    examples=(sent("60 held out", {"holdout_size": 60, "validation_size": 20, "seed": 1}),),
    says={"eval_set.split": "split {name@} (seed {seed})"},
    shows=SHOWS_SIDES,
)
@transaction.atomic
def split_by_group(
    *,
    eval_set: EvalSet,
    by: Any,
    holdout_size: HoldoutSize,
    validation_size: ValidationSize = 0,
    seed: Seed = 0,
) -> dict[str, int]:
    """Splits a draft into hold-out, validation and train, keeping groups together. `counts` has the
    number of tasks in each split. Groups that are held out elsewhere stay held out.

    Returns the size of each. Near-duplicates stay together: if one is drawn, the groups of the
    others are, too. Raises EvalSetError.
    """
    eval_set = locked_draft(eval_set)
    tasks = list(eval_set.tasks.filter(split__in=DIVIDED))
    kept = groups.held_elsewhere(eval_set, tasks)
    used = groups.used_elsewhere(eval_set, tasks)
    used |= {task.group for task in tasks if task.origin == Origin.SYNTHETIC}
    alike = _alike(eval_set.project, tasks, kept, used)
    free = [task.group for task in tasks if task.group not in kept and task.group not in used]
    missing = max(0, holdout_size - sum(task.group in kept for task in tasks))
    try:
        chosen = _with_alike(
            kept | (choose_holdout(free, missing, seed) if missing else set()), alike
        )
        rest = [task.group for task in tasks if task.group not in chosen]
        validating = choose_holdout(rest, validation_size, seed + 1) if validation_size else set()
    except ValueError as error:
        raise EvalSetError(f"{error}{_never_drawn(tasks, used)}{_reopenable(eval_set)}") from error
    of_group = dict.fromkeys(validating, Split.VALIDATION) | dict.fromkeys(chosen, Split.HOLDOUT)
    for task in tasks:
        task.split = of_group.get(task.group, Split.TRAIN)
    update_splits(tasks)
    sizes = {str(split): sum(task.split == split for task in tasks) for split in DIVIDED}
    audit(
        "eval_set.split",
        project=eval_set.project,
        by=by,
        target=eval_set,
        name=str(eval_set),
        seed=seed,
        **sizes,
    )
    return sizes


def _never_drawn(tasks: list[Task], used: set[str]) -> str:
    """Why a set has fewer tasks to hold out than it seems; empty if it has all of them."""
    count = sum(task.group in used for task in tasks)
    if not count:
        return ""
    return (
        f" {count:,} more cannot be held out: their groups or near-duplicates are outside the"
        " hold-out of another set, or they are synthetic."
    )


def _reopenable(eval_set: EvalSet) -> str:
    """Of a next version that cannot be split: which earlier version to make a draft again."""
    versions = EvalSet.objects.filter(
        project=eval_set.project_id, slug=eval_set.slug, state=EvalSetState.FROZEN
    )
    for earlier in versions.exclude(tasks__split=Split.HOLDOUT).order_by("-version"):
        if not uses_of(earlier):
            return (
                f" {earlier} is frozen without a hold-out and nothing was trained on it: delete"
                f" {eval_set}, choose “Make it a draft again” on the page of {earlier} (“reopen” in"
                " the API), and split that."
            )
    return ""


def _alike(project: Project, tasks: list[Task], kept: set[str], used: set[str]) -> dict[str, str]:
    """For each group the name of the component it is connected with, by near-duplicates or by a
    task that belongs to both.

    Adds to `kept` the groups connected with a hold-out of the project, and to `used` those
    connected with the rest: these are not drawn. Raises HoldoutLeak if something is connected with
    both.
    """
    names = {task.group for task in tasks}
    linked = [(one.group, other.group, score) for one, other, score in leaks.within(tasks)]
    linked += [(one.group, other.group, 1.0) for one, other in groups.judged_same(project, tasks)]
    of_key: dict[str, set[str]] = defaultdict(set)
    for name in names:
        of_key[group_key(name)].add(name)
    linked += [
        (task.group, name, 1.0)
        for task in tasks
        for key in task.groups
        for name in of_key[key] - {task.group}
    ]
    alike = compare.components(names, linked)
    group_of = {task.key: task.group for task in tasks}
    elsewhere = Task.objects.exclude(eval_set__in={task.eval_set_id for task in tasks})
    held = list(leaks.of_tasks(tasks, among=elsewhere))
    kept |= _with_alike({group_of[leak.key] for leak in held} | kept, alike) & alike.keys()
    near = leaks.of_held(project, tasks, among=elsewhere)
    used |= _with_alike({group_of[leak.key] for leak in near} | used, alike) & alike.keys()
    for leak in held:
        if group_of[leak.key] in used:
            raise HoldoutLeak(
                f"{leak} It is also similar to a task outside the hold-out: remove one of them.",
                leak,
            )
    return alike


def _with_alike(groups: set[str], alike: dict[str, str]) -> set[str]:
    roots = {alike[group] for group in groups if group in alike}
    return groups | {group for group, root in alike.items() if root in roots}


def update_splits(tasks: list[Task]) -> None:
    """Moves all tasks before the database checks them: in between, a group may be on both sides."""
    names = "holdout_prompt_never_trains, holdout_group_never_trains, holdout_groups_never_trains"
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET CONSTRAINTS {names} DEFERRED")
            Task.objects.bulk_update(tasks, ["split"], batch_size=500)
            cursor.execute(f"SET CONSTRAINTS {names} IMMEDIATE")
    except IntegrityError as error:
        for leak in leaks.exact(tasks[0].project, tasks):
            raise HoldoutLeak(str(leak), leak) from error
        raise refusal_of(error) from error


@operation(
    "eval_sets_freeze",
    rest=Rest("POST", "eval-sets/<uuid:pk>/freeze/", "set_freeze"),
    page=Page("<uuid:pk>/freeze/", "freeze", refused=side_by_side),
    gives=SET_WRITTEN,
    role=Role.ENGINEER,
    examples=(sent("With a hold-out", {}),),
    says={"eval_set.frozen": "froze {name@}"},
    shows=SHOWS_SIDES,
)
@transaction.atomic
def freeze(*, eval_set: EvalSet, by: Any, without_holdout: WithoutHoldout = False) -> EvalSet:
    """Freezes a draft: its tasks become immutable, identified by `digest`. A 409 response explains
    what prevents freezing, such as a set without held-out tasks unless `without_holdout` is true.

    Freezes the set: from now on it is immutable and identified by its digest. Raises
    EvalSetError for an empty or frozen set, and, unless `without_holdout`, for one that holds
    nothing out: a person has to choose that."""
    locked = locked_draft(eval_set)
    tasks = list(locked.tasks.all())
    if not tasks:
        raise EvalSetError(f"{locked} has no tasks yet. Add some before freezing it.")
    if not without_holdout and not any(task.split == Split.HOLDOUT for task in tasks):
        raise EvalSetError(NO_HOLDOUT.format(locked))
    if waiting := locked.tasks.filter(**WAITING).count():
        raise EvalSetError(
            f"{waiting} synthetic variants need review. Use or discard the batch before freezing."
        )
    # a person may have judged them to be the same task since
    for leak in leaks.exact(locked.project, tasks):
        raise HoldoutLeak(str(leak), leak)
    if found := list(leaks.near(locked.project, tasks)):
        more = f"There are {len(found) - 1} more such pairs. " if len(found) > 1 else ""
        raise HoldoutLeak(f"{found[0]} {more}Remove one of each pair before freezing.", found[0])
    locked.state, locked.digest = (
        EvalSetState.FROZEN,
        set_digest(content_of(task) for task in tasks),
    )
    locked.frozen_at, locked.frozen_by = timezone.now(), by
    locked.save(update_fields=["state", "digest", "frozen_at", "frozen_by"])
    audit(
        "eval_set.frozen",
        project=locked.project,
        by=by,
        target=locked,
        name=str(locked),
        digest=locked.digest,
    )
    return locked


@operation(
    "eval_sets_reopen",
    rest=Rest("POST", "eval-sets/<uuid:pk>/reopen/", "set_reopen"),
    page=Page("<uuid:pk>/reopen/", "reopen"),
    gives=SET_WRITTEN,
    role=Role.ENGINEER,
    says={"eval_set.reopened": "made the frozen set {name@} a draft again"},
)
@transaction.atomic
def reopen(*, eval_set: EvalSet, by: Any) -> EvalSet:
    """Makes a frozen set without held-out tasks a draft again, so that it can be split. A 409
    response names what prevents it: a hold-out, training data made from the set, or jobs that have
    not ended. Evaluations of it stay, and so do the tasks they evaluated.

    Raises EvalSetError if it has a hold-out, if anything was trained on it,
    or while a job uses it."""
    locks.acquire_in(eval_set.project_id, ProjectLock.TASKS)
    locked = EvalSet.objects.select_for_update(of=("self",)).get(pk=eval_set.pk)
    if not locked.is_frozen:
        raise EvalSetError(f"{locked} is not frozen.")
    if locked.tasks.holdout().exists():
        raise EvalSetError(f"{locked} has a hold-out, so it stays frozen. {FROZEN.format(locked)}")
    if uses := uses_of(locked):
        raise EvalSetError(
            f"{locked} is in use ({', '.join(uses)}), so it stays frozen: create a set with other"
            " tasks."
        )
    versions = EvalSet.objects.filter(project=locked.project_id, slug=locked.slug)
    if draft := versions.filter(state=EvalSetState.DRAFT).first():
        raise EvalSetError(f"{draft} is already a draft. Delete it first.")
    digest = locked.digest
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('flywheel.reopen', %s, true)", [str(locked.pk)])
    locked.state, locked.digest, locked.frozen_at, locked.frozen_by = (
        EvalSetState.DRAFT,
        "",
        None,
        None,
    )
    locked.save(update_fields=["state", "digest", "frozen_at", "frozen_by"])
    audit(
        "eval_set.reopened",
        project=locked.project,
        by=by,
        target=locked,
        name=str(locked),
        digest=digest,
    )
    return locked


def uses_of(eval_set: EvalSet) -> list[str]:
    """What keeps a set frozen: what was trained on it, and jobs of it that have not ended, in this
    app and those above: “1 dataset”. Other models than this app's count as training unless they
    have `trains = False`.
    """
    found = []
    for relation in EvalSet._meta.related_objects:
        model = relation.related_model
        rows = model._default_manager.filter(**{relation.field.name: eval_set})
        if not getattr(model, "trains", model._meta.app_label != Task._meta.app_label):
            if not issubclass(model, Job):
                continue
            rows = rows.filter(state__in=ACTIVE_STATES)
        if n := rows.count():
            name = model._meta.verbose_name if n == 1 else model._meta.verbose_name_plural
            found.append(f"{n:,} {name}")
    return found
