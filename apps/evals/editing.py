"""Edits of tasks, one or many at once. A frozen set never changes: edits go into its next
version.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q

from apps.core.actions import audit
from apps.evals import actions, drafts
from apps.evals.canonical import canonical_hash, digest_of
from apps.evals.models import EvalSet, EvalSetState, Origin, Split, Task
from apps.evals.variants import batches

TAGS = "tags"  # stored in the metadata, so that they travel with the task
MAX_TAGS, MAX_TAG = 20, 40
MAX_AT_ONCE = 5_000
MOVE, TAG, UNTAG, CONFIRM, REMOVE = "move", "tag", "untag", "confirm", "remove"
WHAT = (MOVE, TAG, UNTAG, CONFIRM, REMOVE)


class Changed(actions.EvalSetError):
    """Somebody else changed the task after it was read."""


def tags_of(metadata: dict[str, Any]) -> list[str]:
    """Tags of a file: a list, or comma-separated text."""
    found = metadata.get(TAGS, [])
    parts = found.split(",") if isinstance(found, str) else found if isinstance(found, list) else []
    return list(
        dict.fromkeys(
            tag for part in parts if isinstance(part, str) and (tag := part.strip()[:MAX_TAG])
        )
    )[:MAX_TAGS]


def fingerprint(task: Task) -> str:
    """A fingerprint of the fields that a person sees and may change."""
    return digest_of(actions.content_of(task))


@transaction.atomic
def draft_of(*, eval_set: EvalSet, by: Any) -> EvalSet:
    """The set itself if it is a draft, otherwise the draft with its name, which is created if
    needed.
    """
    if not eval_set.is_frozen:
        return eval_set
    alike = EvalSet.objects.filter(
        project=eval_set.project, slug=eval_set.slug, state=EvalSetState.DRAFT
    )
    return alike.first() or drafts.new_version(eval_set=eval_set, by=by)


@transaction.atomic
def edit_task(
    *,
    task: Task,
    seen: str,
    by: Any,
    messages: list[dict] | None = None,
    expected: dict | None = None,
    demonstration: str | None = None,
    tags: Sequence[str] | None = None,
) -> Task:
    """The edited task, in a draft. `seen` is the fingerprint of what was read. Raises Changed,
    EvalSetError.

    The checks are those of a new task: the edited request must not be in, or similar to something
    in, a hold-out on the other side.
    """
    draft = actions.locked_draft(draft_of(eval_set=task.eval_set, by=by))
    found = draft.tasks.select_for_update(of=("self",)).filter(key=task.key).first()
    if found is None:
        raise actions.EvalSetError(f"{draft} no longer has this task.")
    if fingerprint(found) != seen:
        raise Changed(
            f"This task was changed in {draft} since you opened it. Nothing was saved: open it"
            " again."
        )
    before = actions.content_of(found)
    if messages is not None and messages != found.messages:
        old, found.messages, found.canonical_hash = (
            found.canonical_hash,
            messages,
            canonical_hash(messages),
        )
        found.group = found.canonical_hash if found.group == old else found.group
        same = draft.tasks.filter(canonical_hash=found.canonical_hash).exclude(pk=found.pk)
        if same.exists():
            error = actions.EvalSetError(f"{draft} has another task with this request.")
            error.held = set(
                same.filter(split=Split.HOLDOUT).values_list("canonical_hash", flat=True)
            )
            raise error
    if expected is not None and expected != found.expected:
        found.expected, found.confirmed_by = expected, by
    found.demonstration = found.demonstration if demonstration is None else demonstration
    if tags is not None:
        _tag(found, tags)
    changed = sorted(
        name for name, value in actions.content_of(found).items() if value != before[name]
    )
    if changed:
        actions.require_unevaluated(found)
        actions.require_requests([found])
        actions.refuse_crossings([found])
        _save(found)
        audit(
            "task.edited",
            project=draft.project,
            by=by,
            target=found,
            set=str(draft),
            set_id=str(draft.pk),
            key=found.key if found.split != Split.HOLDOUT else "held out",
            changed=changed,
        )
    return found


def _tag(task: Task, tags: Sequence[str]) -> None:
    rest = {name: value for name, value in task.metadata.items() if name != TAGS}
    named = tags_of({TAGS: list(tags)})
    task.metadata = rest | ({TAGS: named} if named else {})


def _save(task: Task) -> None:
    try:
        with transaction.atomic():
            task.save()
    except IntegrityError as error:
        raise actions.refusal_of(error) from error


@transaction.atomic
def change_tasks(
    *, eval_set: EvalSet, tasks: Collection[Any], what: str, value: str = "", by: Any
) -> int:
    """Moves, tags, untags, confirms or removes tasks of a draft, all or none; returns how many
    changed. `tasks`: their ids.

    Raises EvalSetError: a task that is held out elsewhere, or shares a group with or resembles one
    on the other side, is not moved.
    """
    draft = actions.locked_draft(eval_set)
    if what not in WHAT:
        raise actions.EvalSetError(f"Choose one of {', '.join(WHAT)}.")
    if len(tasks) > MAX_AT_ONCE:
        raise actions.EvalSetError(f"At most {MAX_AT_ONCE:,} tasks are changed at once.")
    found = list(draft.tasks.select_related("project", "eval_set").filter(pk__in=tasks))
    count = {MOVE: _move, TAG: _add_tag, UNTAG: _remove_tag, CONFIRM: _confirm, REMOVE: _remove}[
        what
    ](found, value, by)
    audit(
        "eval_set.tasks_changed",
        project=draft.project,
        by=by,
        target=draft,
        name=str(draft),
        what=what,
        value=value[:80],
        tasks=count,
    )
    return count


def _move(tasks: list[Task], value: str, by: Any) -> int:
    if value not in Split.values:
        raise actions.EvalSetError(f"Choose one of the splits {', '.join(Split.values)}.")
    moved = [task for task in tasks if task.split != value]
    if value == Split.HOLDOUT and (made := sum(task.origin == Origin.SYNTHETIC for task in moved)):
        raise actions.EvalSetError(
            f"{made:,} of these tasks are synthetic, and those are never held out."
        )
    for task in moved:
        task.split = value
    if moved:
        drafts.update_splits(moved)
        actions.refuse_crossings(moved)
    return len(moved)


def _named(value: str) -> str:
    tag = value.strip()
    if not 0 < len(tag) <= MAX_TAG or "," in tag:
        raise actions.EvalSetError(f"A tag has 1 to {MAX_TAG} characters and no comma.")
    return tag


def _retag(tasks: list[Task], tags: dict[Any, list[str]]) -> int:
    changed = [task for task in tasks if tags[task.pk] != tags_of(task.metadata)]
    for task in changed:
        if len(tags[task.pk]) > MAX_TAGS:
            raise actions.EvalSetError(f"A task has at most {MAX_TAGS} tags.")
        _tag(task, tags[task.pk])
    Task.objects.bulk_update(changed, ["metadata"], batch_size=500)
    return len(changed)


def _add_tag(tasks: list[Task], value: str, by: Any) -> int:
    tag = _named(value)
    return _retag(
        tasks, {task.pk: list(dict.fromkeys([*tags_of(task.metadata), tag])) for task in tasks}
    )


def _remove_tag(tasks: list[Task], value: str, by: Any) -> int:
    tag = _named(value)
    return _retag(
        tasks, {task.pk: [one for one in tags_of(task.metadata) if one != tag] for task in tasks}
    )


def _confirm(tasks: list[Task], value: str, by: Any) -> int:
    open_ = [
        task for task in tasks if task.confirmed_by_id is None and task.origin != Origin.SYNTHETIC
    ]
    for task in open_:
        batches.confirm(task=task, by=by)
    return len(open_)


def _remove(tasks: list[Task], value: str, by: Any) -> int:
    for task in tasks:
        actions.remove_task(task=task, by=by)
    return len(tasks)


def tagged(tag: str) -> Q:
    return Q(**{f"metadata__{TAGS}__contains": [tag]})


def tags_in(eval_set: EvalSet) -> list[str]:
    """The tags of a set's tasks outside its hold-out, by name."""
    said = (
        eval_set.tasks.exclude(split=Split.HOLDOUT)
        .filter(**{"metadata__has_key": TAGS})
        .values_list("metadata", flat=True)
    )
    return sorted({tag for metadata in said for tag in tags_of(metadata)})
