"""What a run belongs to (session, user, template, …), and whether a hold-out of the project holds that out.

A set is divided by the `group` of its tasks; every group that is held out is held out for the whole project and for
runs that arrive later: a run is of a held-out group where one of its names equals the group of a held-out task. A task
keeps the names of its run (`Task.groups`), so that it is recognised when the run itself was deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.db.models import Q

from apps.core.models import Project
from apps.evals.canonical import canonical_hash, digest_of
from apps.evals.formats.rows import GROUP_LENGTH
from apps.evals.models import EvalSet, Split, Task
from apps.evals.near_duplicates.text import is_slot, words
from apps.trajectories.models import Trajectory
from workers.lib.messages import is_example, is_prompt, text_of

AT_ONCE = 1_000  # tasks of one query


def prompt_of(trajectory: Trajectory) -> list[dict]:
    """The messages up to the agent's first turn, without the harness's: instructions and examples."""
    prompt: list[dict] = []
    for message in trajectory.messages:
        if is_example(message):
            continue
        if message.get("role") == "assistant":
            break
        if not is_prompt(message):
            prompt.append({"role": message["role"], "content": message.get("content") or ""})
    return prompt


def groups_of(trajectory: Trajectory) -> list[tuple[str, str]]:
    """(name, group): what a split may keep together, the usual one first. A group that the log names comes before all."""
    prompt = prompt_of(trajectory)
    day = f"{trajectory.started_at:%Y-%m-%d}"
    found = [
        ("named in the log", str(trajectory.metadata.get("group") or "")),
        ("session", trajectory.session_id),
        ("request", canonical_hash(prompt)),
        ("template", template_of(prompt)),
        ("user", f"user:{trajectory.user_id}" if trajectory.user_id else ""),
        ("trajectory", f"trajectory:{trajectory.external_id}"),
        ("day", f"day:{day}"),
    ]
    return [(name, group[:GROUP_LENGTH]) for name, group in found if group]


def template_of(messages: list[dict]) -> str:
    """The same for requests that differ only in numbers, dates and identifiers."""
    said = " ".join(text_of(message) for message in messages if message.get("role") == "user")
    shape = ["#" if is_slot(word) or any(char.isdigit() for char in word) else word for word in words(said)]
    return f"template:{digest_of(shape)[:40]}"


def of_metadata(metadata: dict[str, Any]) -> dict[str, str]:
    """{field: group} of what metadata says; empty values are no group."""
    return {
        name: f"{name}:{value}"[:GROUP_LENGTH] for name, value in metadata.items() if value not in (None, "", [], {})
    }


def names_of(trajectory: Trajectory) -> list[str]:
    """Every group by which a set may have held this run out: those of `groups_of`, bare ids, and its metadata."""
    bare = [trajectory.user_id, trajectory.external_id]
    named = [group for _, group in groups_of(trajectory)] + list(of_metadata(trajectory.metadata).values())
    return sorted({*named, *(name[:GROUP_LENGTH] for name in bare if name)})


def held_out_runs(project: Project, runs: Sequence[Trajectory]) -> dict[Any, str]:
    """{id of a run: the held-out group that it belongs to}. The runs have their content."""
    names = {run.pk: names_of(run) for run in runs}
    held = held_out_among(project, {name for some in names.values() for name in some})
    own = Task.objects.holdout().filter(project=project, trajectory__in=names)
    found = dict(own.values_list("trajectory", "group"))
    return found | {
        pk: next(name for name in some if name in held) for pk, some in names.items() if held.intersection(some)
    }


def held_out_among(project: Project, names: Iterable[str]) -> set[str]:
    """Which of these groups a hold-out of the project, in whichever set, is made of."""
    found = Task.objects.holdout().filter(project=project, group__in=list(names))
    return set(found.order_by().values_list("group", flat=True).distinct())


def held_elsewhere(eval_set: EvalSet, tasks: Sequence[Task]) -> set[str]:
    """The groups of these tasks of a draft that have one in the hold-out of another set."""
    elsewhere = Task.objects.holdout().filter(project=eval_set.project).exclude(eval_set=eval_set)
    names = {name for task in tasks for name in _names(task, False)}
    held = set(elsewhere.filter(group__in=names).values_list("group", flat=True))
    return {task.group for task in tasks if held.intersection(_names(task, False))}


def used_elsewhere(eval_set: EvalSet, tasks: Sequence[Task]) -> set[str]:
    """The groups of these tasks of a draft to which a task outside a hold-out of another set belongs."""
    elsewhere = Task.objects.filter(project=eval_set.project, guarded=0).exclude(eval_set=eval_set)
    wanted = {task.group for task in tasks}
    found = elsewhere.filter(groups__overlap=list(wanted)).values_list("groups", flat=True)
    return {name for names in found for name in names} & wanted


def conflicts(project: Project, tasks: Iterable[Task]) -> Iterator[tuple[Task, Task]]:
    """(task, other) of each task that shares its request or a group with the other side of a hold-out of the project.

    For what is held out, the others are all tasks that are not, by any of their groups; for what is not, the held-out
    ones, by any group of the task.
    """
    given = iter(tasks)
    while some := list(islice(given, AT_ONCE)):
        yield from _conflicts(project, [task for task in some if task.split == Split.HOLDOUT], held=True)
        yield from _conflicts(project, [task for task in some if task.split != Split.HOLDOUT], held=False)


@dataclass(frozen=True)
class Refusal:
    """A sentence, and the canonical hashes of the held-out tasks that it says something about."""

    sentence: str
    held: list[str]


def refusal(project: Project, tasks: Iterable[Task]) -> Refusal | None:
    """Why tasks may not train although they are of a train split; None where nothing is in the way.

    Hold-outs may have been frozen since these tasks were stored. Shows nothing of what is held out.
    """
    found = [(task, other) for task, other in conflicts(project, tasks) if task.split != Split.HOLDOUT]
    if not found:
        return None
    task, other = found[0]
    shared = next((name for name in _names(task, False) if name == other.group), "the same request")
    more = f" So are {len(found) - 1:,} more of these tasks." if len(found) > 1 else ""
    sentence = (
        f"“{task.key}” is held out by {other.eval_set}: both are of the group “{shared}”.{more} What belongs to a held-out "
        "group never trains: remove it in a new version of the set, or divide that set by another group."
    )
    return Refusal(sentence, [other.canonical_hash for _, other in found])


def _conflicts(project: Project, tasks: Sequence[Task], *, held: bool) -> Iterator[tuple[Task, Task]]:
    if not tasks:
        return
    names = {name for task in tasks for name in _names(task, held)}
    by_group = Q(groups__overlap=list(names)) if held else Q(group__in=list(names))
    others = Task.objects.filter(project=project, guarded=0 if held else 1).select_related("eval_set")
    others = others.filter(Q(canonical_hash__in=[task.canonical_hash for task in tasks]) | by_group)
    hashes: dict[str, Task] = {}
    groups: dict[str, Task] = {}
    for other in others.defer("tools", "metadata").iterator(chunk_size=AT_ONCE):
        hashes[other.canonical_hash] = other
        groups |= dict.fromkeys(_names(other, not held), other)
    for task in tasks:
        shared = hashes.get(task.canonical_hash) or next(
            (groups[name] for name in _names(task, held) if name in groups), None
        )
        if shared:
            yield task, shared


def _names(task: Task, held: bool) -> list[str]:
    """What decides: of a held-out task the group that is held out, of another all that it belongs to."""
    return [task.group] if held else [task.group, *task.groups]
