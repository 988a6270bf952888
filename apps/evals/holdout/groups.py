"""The groups that a run belongs to (session, user, template, …), and whether a hold-out of the
project holds one of them out.

A set is split by the `group` of its tasks. A held-out group is held out in the whole project, also
for runs that arrive later: a run belongs to a held-out group if one of its group names equals the
group of a held-out task. A task stores the group names of its run (`Task.groups`), so it is
recognised after the run was deleted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.db.models import Q

from apps.core.models import Project
from apps.evals.canonical import canonical_hash, digest_of, group_key
from apps.evals.formats.rows import GROUP_LENGTH
from apps.evals.models import EvalSet, MeaningVerdict, Split, Task, TaskQuerySet
from apps.evals.near_duplicates.text import is_slot, words
from apps.evals.stand_ins import stand_ins
from apps.trajectories.models import Trajectory
from workers.lib.messages import is_example, is_prompt, text_of

AT_ONCE = 1_000  # tasks per query
SAME, GROUP, JUDGED = "same", "group", "judged"  # why two tasks belong on one side


@dataclass(frozen=True)
class RunGroups:
    """What a run is grouped by. `request` are the messages before the agent's first turn.

    `offered` are (name, group) by which tasks may be split, the most common first; `keys` are those
    of every group by which a set may have held this run out: those offered, its ids and its
    metadata.
    """

    request: list[dict]
    request_hash: str
    offered: list[tuple[str, str]]
    keys: list[str]


def request_of(trajectory: Trajectory) -> list[dict]:
    """The messages before the agent's first turn, without the harness's instructions and
    examples.
    """
    request: list[dict] = []
    for message in trajectory.messages:
        if is_example(message):
            continue
        if message.get("role") == "assistant":
            break
        if not is_prompt(message):
            request.append({"role": message["role"], "content": message.get("content") or ""})
    return request


def groups_of(trajectory: Trajectory) -> RunGroups:
    """A group named by the log precedes all others."""
    request = request_of(trajectory)
    request_hash = canonical_hash(request)
    groups = [
        ("named in the log", str(trajectory.metadata.get("group") or "")),
        ("session", trajectory.session_id),
        ("request", request_hash),
        ("template", template_of(request)),
        ("user", f"user:{trajectory.user_id}" if trajectory.user_id else ""),
        ("trajectory", f"trajectory:{trajectory.external_id}"),
        ("day", f"day:{trajectory.started_at:%Y-%m-%d}"),
    ]
    offered = [(name, group[:GROUP_LENGTH]) for name, group in groups if group]
    ids = {"session_id": trajectory.session_id, "user_id": trajectory.user_id}
    names = {group for _, group in offered} | names_in(ids) | names_in(trajectory.metadata)
    names.add(trajectory.external_id[:GROUP_LENGTH])
    return RunGroups(request, request_hash, offered, sorted({group_key(name) for name in names}))


def template_of(messages: list[dict]) -> str:
    """Equal for requests that differ only in numbers, dates and identifiers."""
    request = " ".join(text_of(message) for message in messages if message.get("role") == "user")
    shape = [
        "#" if is_slot(word) or any(char.isdigit() for char in word) else word
        for word in words(request)
    ]
    return f"template:{digest_of(shape)[:40]}"


def of_metadata(metadata: dict[str, Any]) -> dict[str, str]:
    """{field: group} from metadata; empty values are ignored."""
    return {
        name: f"{name}:{value}"[:GROUP_LENGTH]
        for name, value in metadata.items()
        if value not in (None, "", [], {})
    }


SESSION = (
    "session_id",
    "session",
    "conversation_id",
    "thread_id",
    "chat_id",
)  # fields with the same meaning
USER = ("user_id", "user")


def names_in(metadata: dict[str, Any]) -> set[str]:
    """Every group named by fields of a run or row: field and value; for a session or user under
    each name of the field, and without one.
    """
    names: set[str] = set()
    for field, value in metadata.items():
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, bool) or not isinstance(item, str | int | float) or item == "":
                continue
            text = (
                str(int(item))
                if isinstance(item, float) and item.is_integer()
                else str(item).strip()
            )
            alias = next(
                (aliases for aliases in (SESSION, USER) if field.lower() in aliases), (field,)
            )
            names |= {f"{name}:{text}" for name in (field, *alias)}
            names |= {text} if len(alias) > 1 or field.lower() == "group" else set()
    return {name[:GROUP_LENGTH] for name in names}


def held_out_runs(project: Project, runs: Sequence[Trajectory]) -> dict[Any, str]:
    """{run id: the held-out group that it belongs to}. The runs must have their content."""
    return runs_of_groups(Task.every.holdout().filter(project=project), runs)


def runs_of_groups(tasks: TaskQuerySet, runs: Sequence[Trajectory]) -> dict[Any, str]:
    """{run id: the group of these tasks that it belongs to}. The runs must have their content."""
    names = {run.pk: _with_stand_ins(groups_of(run).keys) for run in runs}
    keys = {name for some in names.values() for name in some}
    taken = dict(tasks.filter(group_key__in=keys).order_by().values_list("group_key", "group"))
    by_run = dict(tasks.filter(trajectory__in=names).values_list("trajectory", "group"))
    return by_run | {
        pk: next(taken[name] for name in some if name in taken)
        for pk, some in names.items()
        if not taken.keys().isdisjoint(some)
    }


def held_elsewhere(eval_set: EvalSet, tasks: Sequence[Task]) -> set[str]:
    """The groups of these draft tasks that have a task in the hold-out of another set."""
    elsewhere = Task.every.holdout().filter(project=eval_set.project).exclude(eval_set=eval_set)
    names = {name for task in tasks for name in _names(task, False)}
    held = set(elsewhere.filter(group_key__in=names).values_list("group_key", flat=True))
    return {task.group for task in tasks if held.intersection(_names(task, False))}


def used_elsewhere(eval_set: EvalSet, tasks: Sequence[Task]) -> set[str]:
    """The groups of these draft tasks that have a task outside a hold-out in another set."""
    elsewhere = Task.every.filter(project=eval_set.project, guarded=0).exclude(eval_set=eval_set)
    wanted = {name for task in tasks for name in _names(task, True)}
    rows = elsewhere.filter(groups__overlap=list(wanted)).values_list("groups", flat=True)
    used = {name for names in rows for name in names}
    return {task.group for task in tasks if used.intersection(_names(task, True))}


def conflicts(project: Project, tasks: Iterable[Task]) -> Iterator[tuple[Task, Task, str]]:
    """(task, other, why) for each task that shares its request or a group with the other side of a
    hold-out of the project, or that a person has judged to be the same task as one there.

    For held-out tasks, the others are all tasks that are not held out, by any of their groups; for
    the rest, they are the held-out tasks, by any group of the task.
    """
    remaining = iter(tasks)
    while some := list(islice(remaining, AT_ONCE)):
        yield from _conflicts(
            project, [task for task in some if task.split == Split.HOLDOUT], held=True
        )
        yield from _conflicts(
            project, [task for task in some if task.split != Split.HOLDOUT], held=False
        )


@dataclass(frozen=True)
class Refusal:
    """A sentence, and the canonical hashes of the held-out tasks about which it reveals
    something.
    """

    sentence: str
    held: list[str]


def refusal(project: Project, tasks: Iterable[Task]) -> Refusal | None:
    """Why tasks may not train although they are in a train split; None if nothing prevents it.

    Hold-outs may have been frozen since these tasks were stored. Reveals no held-out content.
    """
    shared = [each for each in conflicts(project, tasks) if each[0].split != Split.HOLDOUT]
    if not shared:
        return None
    task, other, why = shared[0]
    reason = {
        SAME: "both are the same request",
        GROUP: f"both are in the group “{other.group_key}”",
        JUDGED: "a person judged them to be the same task",
    }[why]
    more = f" So are {len(shared) - 1:,} more of these tasks." if len(shared) > 1 else ""
    sentence = (
        f"“{task.key}” is held out by {other.eval_set}: {reason}.{more} Tasks of a"
        " held-out group can never be trained on: remove it in a new version of the set, or split"
        " that set by another group."
    )
    return Refusal(sentence, [other.canonical_hash for _, other, _ in shared])


def _conflicts(
    project: Project, tasks: Sequence[Task], *, held: bool
) -> Iterator[tuple[Task, Task, str]]:
    if not tasks:
        return
    names = {name for task in tasks for name in _names(task, held)}
    by_group = Q(groups__overlap=list(names)) if held else Q(group_key__in=list(names))
    others = Task.every.filter(project=project, guarded=0 if held else 1).select_related("eval_set")
    same = _judged_same(project, {task.canonical_hash for task in tasks})
    wanted = {task.canonical_hash for task in tasks}.union(*same.values())
    others = others.filter(Q(canonical_hash__in=wanted) | by_group)
    hashes: dict[str, Task] = {}
    groups: dict[str, Task] = {}
    for other in others.defer("tools", "metadata").iterator(chunk_size=AT_ONCE):
        hashes[other.canonical_hash] = other
        groups |= dict.fromkeys(_names(other, not held), other)
    for task in tasks:
        alike = (task.canonical_hash, *sorted(same.get(task.canonical_hash, ())))
        own = _names(task, held)
        others = [hashes[name] for name in alike if name in hashes]
        others += [groups[name] for name in own if name in groups]
        if others:
            yield task, others[0], _why(task, others[0], own, _names(others[0], not held))


def _why(task: Task, other: Task, own: Sequence[str], theirs: Sequence[str]) -> str:
    if task.canonical_hash == other.canonical_hash:
        return SAME
    return JUDGED if set(own).isdisjoint(theirs) else GROUP


def judged_same(project: Project, tasks: Sequence[Task]) -> Iterator[tuple[Task, Task]]:
    """Pairs of these tasks that a person has judged to be the same task (`meaning`): they belong on
    one side of a hold-out.
    """
    by_hash = {task.canonical_hash: task for task in tasks}
    for name, others in _judged_same(project, by_hash.keys()).items():
        yield from ((by_hash[name], by_hash[other]) for other in others if other in by_hash)


def _judged_same(project: Project, hashes: Collection[str]) -> dict[str, set[str]]:
    """{canonical hash: hashes of the same task}, for those of these hashes that a person has
    judged.
    """
    wanted, same = set(hashes), defaultdict(set)
    rows = MeaningVerdict.objects.filter(project=project, verdict=MeaningVerdict.Verdict.SAME)
    rows = rows.filter(Q(one__in=wanted) | Q(two__in=wanted))
    for one, two in rows.values_list("one", "two"):
        same[one].add(two)
        same[two].add(one)
    return {name: same[name] for name in wanted & same.keys()}


def _names(task: Task, held: bool) -> list[str]:
    """The keys that decide: for a held-out task the group that is held out, for any other all its
    groups. With those under which erased tasks are known.
    """
    names = [task.group] if held else [task.group, *task.groups]
    return _with_stand_ins(map(group_key, names))


def _with_stand_ins(keys: Iterable[str]) -> list[str]:
    own = list(keys)
    return [*own, *sorted(stand_ins(own))]
