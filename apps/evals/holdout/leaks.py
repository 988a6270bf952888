"""What of a project's hold-outs also exists outside them: in tasks, and in every training text
(`near_duplicates.search`).

The database itself refuses the same prompt and the same group on both sides (`groups`). A text that
contains a held-out request in another form, its calls, or nearly the same task is refused here,
whenever tasks are added, split or frozen (`crossings`), or anything trains.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.expressions import RawSQL

from apps.core.models import Project
from apps.environments.models import Environment
from apps.environments.packages import tasks_in
from apps.evals.holdout import groups
from apps.evals.models import Split, Task
from apps.evals.near_duplicates import compare
from apps.evals.near_duplicates.calls import words_of
from apps.evals.near_duplicates.search import Held, HeldOut, Match, Row, Why
from workers.lib.environments.packages.files import PackageProblem
from workers.lib.environments.packages.texts import texts_of, without_tasks
from workers.lib.messages import is_prompt
from workers.lib.prompts import applied

READ_AT_ONCE = 500
# hold-outs whose index stays in this process's memory; one of 10,000 tasks takes about 150 MB
INDEXES = 4
SHOWN = 300  # characters of a request that a sentence quotes
REASONS: dict[str, str] = {
    groups.SAME: "are the same request",
    groups.GROUP: "belong to the same group",
    groups.JUDGED: "are the same task (decided by a person)",
    Why.SAYS: "are the same task (one contains the request of the other)",
    Why.CALLS: "are the same task (the same calls are expected)",
    Why.ALIKE: "are near-duplicates",
}


@dataclass(frozen=True)
class Leak:
    """Something on one side of a hold-out that says the same as something on the other.
    `similarity` is 0 for two of the same group.

    Whichever is held out is shown only where that is counted as a view.
    """

    key: str
    ours: str
    theirs: str
    theirs_set: str
    similarity: float
    theirs_hash: str = ""  # the other's canonical hash, by which views are counted
    why: str = Why.ALIKE
    ours_hash: str = ""  # set if ours may be the held-out one

    def __str__(self) -> str:
        """Without the held-out request: sentences are stored and shown where views are not
        counted.
        """
        one = self.ours if self.theirs_is_held else self.theirs
        other = (
            self.theirs_set
            if self.theirs_is_held
            else f"the hold-out ({self.key}; the other is in {self.theirs_set})"
        )
        named = f"{self.key}: " if self.theirs_is_held and self.key else ""
        return (
            f"“{named}{one[:SHOWN]}” and a task of {other} {self.reason}; a hold-out must not share"
            " tasks with training data. Remove one of them, or put both on the same side."
        )

    @property
    def reason(self) -> str:
        """The reason, as the end of a sentence about the two."""
        return REASONS[self.why] + (f" ({self.similarity:.0%})" if self.why == Why.ALIKE else "")

    @property
    def is_exact(self) -> bool:
        return self.why in (groups.SAME, groups.GROUP, groups.JUDGED)

    @property
    def theirs_is_held(self) -> bool:
        return self.theirs_set.endswith(Split.HOLDOUT.label)

    @property
    def held_hash(self) -> str:
        return self.theirs_hash if self.theirs_is_held else self.ours_hash


def request_of(task: Task) -> str:
    """The request of a task, as a person reads it."""
    return "\n".join(words_of(message) for message in task.messages if not is_prompt(message))


def between(
    ours: Task, theirs: Task, why: str, similarity: float = 1.0, *, ours_is_held: bool = False
) -> Leak:
    return Leak(
        ours.key,
        request_of(ours),
        request_of(theirs),
        _location(theirs),
        similarity,
        theirs.canonical_hash,
        why,
        ours.canonical_hash if ours_is_held else "",
    )


def _location(task: Task) -> str:
    return f"{task.eval_set}, {task.get_split_display()}"


def _as_held(task: Task) -> Held:
    return Held(task.messages, task.expected, task.demonstration)


def row_of(task: Task) -> dict:
    """A task as a training row, with all its texts."""
    return task.as_spec() | {"demonstration": task.demonstration}


def _row(task: Task) -> Row:
    return Row.of(row_of(task))


# Tasks against the other side of the project's hold-outs


def crossings(project: Project, tasks: Sequence[Task]) -> Iterator[Leak]:
    """What these tasks have in common with the other side of the project's hold-outs, and of the
    hold-out that they form themselves; exact matches first. What exactly matches is not searched
    further.
    """
    matched = set()
    for leak in exact(project, tasks):
        matched.add(leak.key)
        yield leak
    yield from near(project, [task for task in tasks if task.key not in matched])


def exact(project: Project, tasks: Sequence[Task]) -> Iterator[Leak]:
    """The same request (similarity 1), the same group (0), or the same task as judged by a
    person.
    """
    for task, other, why in groups.conflicts(project, tasks):
        yield between(task, other, why, float(why != groups.GROUP), ours_is_held=True)


def near(project: Project, tasks: Sequence[Task]) -> Iterator[Leak]:
    held = [task for task in tasks if task.split == Split.HOLDOUT]
    rest = [task for task in tasks if task.split != Split.HOLDOUT]
    yield from of_held(project, held)
    yield from of_tasks(rest)
    if held and rest:
        yield from _across(held, rest)


# Rows against the hold-outs of a project


def of_rows(
    project: Project, rows: Iterable[tuple[str, dict]], *, among: QuerySet[Task] | None = None
) -> Iterator[Leak]:
    """The (name, training row) items, in any format, that contain something of a held-out task of
    the project: at most one leak per row.

    `among`: the tasks whose hold-outs count; by default all of the project. Raises ValueError for a
    row without text.
    """
    yield from _of_read(project, ((name, Row.of(row)) for name, row in rows), among)


def _of_read(
    project: Project, rows: Iterable[tuple[str, Row]], among: QuerySet[Task] | None = None
) -> Iterator[Leak]:
    tasks = Task.objects.all() if among is None else among
    index, keys = _index_of(tasks.filter(project=project, guarded=1))
    if not keys:
        return
    read: dict[int, tuple[str, Row]] = {}

    def numbered() -> Iterator[tuple[int, Row]]:
        for number, (name, row) in enumerate(rows):
            read[number] = name, row
            yield number, row

    for match in index.search(numbered()):
        name, row = read[match.key]
        other = Task.objects.select_related("eval_set").get(pk=keys[match.held])
        yield Leak(
            name,
            row.units[0].text if row.units else "",
            request_of(other),
            _location(other),
            match.similarity,
            other.canonical_hash,
            match.why,
        )


def of_tasks(tasks: Sequence[Task], *, among: QuerySet[Task] | None = None) -> Iterator[Leak]:
    """The tasks that contain something of the project's hold-outs; a leak has the key of the
    task.
    """
    if tasks:
        yield from of_rows(
            tasks[0].project, ((task.key, row_of(task)) for task in tasks), among=among
        )


def forbidden(project: Project, rows: Sequence[dict]) -> set[int]:
    """The training rows that contain something of a held-out task of the project, and those without
    text to compare.
    """
    read = dict(_with_text((str(number), row) for number, row in enumerate(rows)))
    without = {number for number in range(len(rows)) if str(number) not in read}
    return without | {int(leak.key) for leak in _of_read(project, read.items())}


def _with_text(rows: Iterable[tuple[str, dict]]) -> Iterator[tuple[str, Row]]:
    for name, row in rows:
        try:
            read = Row.of(row)
        except ValueError:
            continue
        yield name, read


def _index_of(tasks: QuerySet[Task]) -> tuple[HeldOut, list[UUID]]:
    """The index of held-out tasks, and their ids by position; cached until one of their rows
    changes.
    """
    versions = RawSQL(
        "evals_task.xmin::text || evals_task.ctid::text", ()
    )  # identifies the version of the row in PostgreSQL
    rows = list(tasks.order_by("pk").values_list("pk", versions))
    found = hashlib.blake2b(repr(rows).encode(), digest_size=16).hexdigest()
    return _Index.of(found, tuple(pk for pk, _ in rows))


class _Index:
    @staticmethod
    @lru_cache(maxsize=INDEXES)
    def of(version: str, keys: tuple[UUID, ...]) -> tuple[HeldOut, list[UUID]]:
        tasks = Task.objects.in_bulk(keys)
        there = [pk for pk in keys if pk in tasks]
        return HeldOut([_as_held(tasks[pk]) for pk in there]), there


# Held-out tasks against everything else


def of_held(
    project: Project, held: Sequence[Task], *, among: QuerySet[Task] | None = None
) -> Iterator[Leak]:
    """For each of these held-out tasks, the first task outside the hold-outs that contains
    something of it.

    Reads all of those: about 0.5 ms per task.
    """
    tasks = Task.objects.all() if among is None else among
    rest = tasks.filter(project=project, guarded=0).select_related("eval_set")
    if not held:
        return
    for task, other, match in _matches(held, rest.iterator(chunk_size=READ_AT_ONCE)):
        yield between(task, other, match.why, match.similarity, ours_is_held=True)


def _across(held: Sequence[Task], rest: Sequence[Task]) -> Iterator[Leak]:
    """What two sides of one set have in common; a leak has the key of the task outside."""
    for task, other, match in _matches(held, rest):
        yield between(other, task, match.why, match.similarity)


def _matches(held: Sequence[Task], rest: Iterable[Task]) -> Iterator[tuple[Task, Task, Match]]:
    """(held-out task, the first of the rest that contains something of it, how)."""
    index = HeldOut([_as_held(task) for task in held])
    matched: set[int] = set()
    read: dict[int, Task] = {}
    for match in index.search(_remembered(rest, read)):
        if match.held not in matched:
            matched.add(match.held)
            yield held[match.held], read[match.key], match


def _remembered(tasks: Iterable[Task], read: dict[int, Task]) -> Iterator[tuple[int, Row]]:
    """(number, row) of tasks; the last few hundred are kept in `read`, since a leak may refer to
    them.
    """
    for number, task in enumerate(tasks):
        read[number] = task
        read.pop(number - 4 * READ_AT_ONCE, None)
        yield number, _row(task)


def within(tasks: Sequence[Task]) -> list[tuple[Task, Task, float]]:
    """Pairs of tasks of one set of which one contains something of the other: they belong on one
    side.
    """
    index = HeldOut([_as_held(task) for task in tasks])
    contained = [
        (tasks[match.key], tasks[match.held], match.similarity)
        for match in index.every((number, _row(task)) for number, task in enumerate(tasks))
        if match.key != match.held
    ]
    return contained + [
        (tasks[left], tasks[right], score)
        for left, right, score in compare.pairs(enumerate(index.documents), most=None)
    ]


# What surrounds every task


def of_harness(environment: Environment, prompt: dict | None = None) -> Iterator[Leak]:
    """What an environment adds to every prompt that contains something of the project's hold-outs:
    system prompt, examples, tools, configuration; and the texts of its package, which its tools and
    start states are made of. `prompt`: a prompt version's, instead of the harness's own.
    """
    row = applied(environment.harness, prompt or {}) | {"config": environment.config}
    yield from _of_read(environment.project, _with_text([(f"harness of {environment}", row)]))
    if any(of_rows(environment.project, _package_rows(environment))):
        yield from of_rows(environment.project, _package_rows(environment, _own_tasks(environment)))


def _package_rows(
    environment: Environment, tasks: Sequence[dict] = ()
) -> Iterator[tuple[str, dict]]:
    """The texts of each file of a package as a row, without those of its own tasks: these train
    only as tasks of a set, where they are compared themselves.
    """
    texts = texts_of(environment.package.files) if environment.package else {}
    for path, some in (without_tasks(texts, tasks) if tasks else texts).items():
        messages = [{"role": "tool", "content": text} for text in some if text.strip()]
        if messages:
            yield f"{path} of {environment}", {"messages": messages}


def _own_tasks(environment: Environment) -> list[dict]:
    try:
        return tasks_in(environment)
    except PackageProblem:
        return []  # it has none that could be in a set
