"""Near-duplicates between the hold-outs of a project and everything else of it: found by their bands, told side by side.

The database itself refuses the same prompt and the same group on both sides; what is nearly the same prompt is refused
here, by every way that adds tasks, divides them, freezes them, or trains on anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.db.models import QuerySet

from apps.core.models import Project
from apps.environments.models import Environment
from apps.evals.models import Split, Task
from apps.evals.near_duplicates import compare
from apps.evals.near_duplicates.calls import words_of
from apps.evals.near_duplicates.compare import Document
from workers.lib.messages import is_prompt

AT_ONCE = 200  # documents of one query
SHOWN = 300  # characters of a request in a sentence


@dataclass(frozen=True)
class Leak:
    """What stands on one side of a hold-out, and what is nearly the same on the other."""

    key: str
    ours: str
    theirs: str
    theirs_set: str
    similarity: float
    theirs_hash: str = ""  # the other's canonical hash: looks are counted by it

    def __str__(self) -> str:
        """Without the request that is held out: sentences are stored and shown where nobody counts a look."""
        one = self.ours if self.theirs_is_held else self.theirs
        other = (
            self.theirs_set if self.theirs_is_held else f"the hold-out ({self.key}; the other is in {self.theirs_set})"
        )
        near = "nearly the same task" if self.similarity else "of one group"
        return (
            f"“{one[:SHOWN]}” and a task of {other} are {near} ({self.similarity:.0%}); a hold-out must not share tasks with "
            "training data."
        )

    @property
    def theirs_is_held(self) -> bool:
        return self.theirs_set.endswith(Split.HOLDOUT.label)


@dataclass(frozen=True)
class Text:
    """Something to compare: its key, the request as a person reads it, and what is compared."""

    key: Any
    words: str
    document: Document


def of_task(task: Task) -> Text:
    request = "\n".join(words_of(message) for message in task.messages if not is_prompt(message))
    return Text(task.key, request, compare.document(task.messages, task.expected, task.demonstration))


def same(task: Task, other: Task) -> Leak:
    """The two of one request (similarity 1) or of one group (0)."""
    alike = 1.0 if other.canonical_hash == task.canonical_hash else 0.0
    return Leak(task.key, of_task(task).words, of_task(other).words, _place(other), alike, other.canonical_hash)


def _place(task: Task) -> str:
    return f"{task.eval_set}, {task.get_split_display()}"


def of_row(key: Any, row: dict) -> Iterator[Text]:
    """Every request that a training row teaches to answer. Raises ValueError for a row without text."""
    for unit in compare.texts_of(row):
        yield Text(key, unit.text, compare.document(unit.messages, unit.expected, unit.demonstration))


def against(
    project: Project, texts: Iterable[Text], *, guarded: bool, among: QuerySet[Task] | None = None
) -> Iterator[Leak]:
    """For each text the nearest task of the other side, where one is near: of the rest for what is `guarded` (held out),
    of the hold-outs for everything else. `among` are the tasks that count; all of the project without it."""
    given = iter(texts)
    tasks = Task.objects.all() if among is None else among
    other = tasks.filter(project=project, guarded=0 if guarded else 1)
    while chunk := list(islice(given, AT_ONCE)):
        bands = {band for found in compare.signatures(text.document for text in chunk) for band in found.bands}
        yield from _among(chunk, list(other.filter(bands__overlap=list(bands)).select_related("eval_set")))


def _among(texts: Sequence[Text], tasks: Sequence[Task]) -> Iterator[Leak]:
    theirs = [(number, of_task(task).document) for number, task in enumerate(tasks)]
    ours = [(number, text.document) for number, text in enumerate(texts)]
    for left, right, score in compare.pairs(ours, theirs, most=1):
        text, task = texts[left], tasks[right]
        yield Leak(text.key, text.words, of_task(task).words, _place(task), score, task.canonical_hash)


def within(tasks: Sequence[Task]) -> list[tuple[Task, Task, float]]:
    """Near-duplicates among the tasks of one set, the nearest first."""
    documents = [(number, of_task(task).document) for number, task in enumerate(tasks)]
    return [(tasks[left], tasks[right], score) for left, right, score in compare.pairs(documents, most=None)]


def across(tasks: Sequence[Task]) -> Iterator[Leak]:
    """The near-duplicates of one set that stand on both sides of its hold-out."""
    held = [task for task in tasks if task.split == Split.HOLDOUT]
    yield from _among([of_task(task) for task in tasks if task.split != Split.HOLDOUT], held)


def forbidden(project: Project, rows: Sequence[dict]) -> set[int]:
    """Which of some training rows teach a held-out task of the project, or nearly one; and those without text to compare.

    For `exports.GUARDS`.
    """
    texts: list[Text] = []
    without: set[int] = set()
    for index, row in enumerate(rows):
        try:
            texts += of_row(index, row)
        except ValueError:
            without.add(index)
    return without | {leak.key for leak in against(project, texts, guarded=False)}


def of_rows(project: Project, rows: Iterable[tuple[Any, dict]]) -> Iterator[Leak]:
    """What of training rows, in any format, is nearly the same as a held-out task of the project."""
    yield from against(project, (text for key, row in rows for text in of_row(key, row)), guarded=False)


def rows_of(tasks: Iterable[Task]) -> Iterator[tuple[str, dict]]:
    """Tasks as training rows, for `of_rows`: earlier turns of their conversations teach, too."""
    yield from ((task.key, {"messages": task.messages, "expected": task.expected}) for task in tasks)


def few_shot(environment: Environment) -> list[tuple[str, dict]]:
    """The examples that stand in every prompt of an environment, as training rows: they teach, too."""
    examples = environment.harness.get("examples") or []
    return [(f"few-shot of {environment}", {"examples": examples})] if examples else []
