"""Tasks from files: previewed first, then stored in one transaction, immediately or by a worker.

A previewed file is kept for whichever process goes on with it. An import is one transaction.
"""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from django.db import transaction

from apps.core import jobs, kept
from apps.core.bus import on
from apps.core.kinds import Progress
from apps.core.models import ApiKey, KeptFile
from apps.core.projects.deletion import Deleting
from apps.evals import actions, formats
from apps.evals.canonical import canonical_hash
from apps.evals.exporting import FLYWHEEL
from apps.evals.formats import FORMATS, RowProblem, TaskRow, read
from apps.evals.formats.rows import GROUP_LENGTH, Read
from apps.evals.from_failures import free_key
from apps.evals.holdout.groups import names_in, of_metadata
from apps.evals.holdout.view_log import record_membership, record_refusal
from apps.evals.models import EvalSet, Origin, Split, Task, TaskImport

KEPT = "task_imports/"
MAX_BYTES, MAX_ROWS = 64 * 1024 * 1024, 100_000
AT_ONCE = 2_000  # rows; larger files are imported by a worker
SHOWN, PROBLEMS = 20, 50
HEAD = 64 * 1024
BY_FILE, BY_REQUEST = "file", "request"  # other groups: "metadata.NAME"


class ImportProblem(Exception):
    """A file that cannot be imported; the message says what to do."""


@dataclass(frozen=True)
class Choice:
    """How rows become tasks. `split` applies to rows without one, or to all with `always`; `group`
    is BY_… or metadata.NAME.
    """

    format: str
    split: str = Split.TRAIN
    always: bool = False
    group: str = BY_FILE


@dataclass
class Preview:
    """The contents of a file, read completely."""

    format: str
    rows: list[TaskRow] = field(default_factory=list)
    good: int = 0
    bad: int = 0
    problems: list[RowProblem] = field(default_factory=list)
    splits: Counter[str] = field(default_factory=Counter)
    columns: set[str] = field(default_factory=set)

    @property
    def more(self) -> int:
        return max(0, self.bad - len(self.problems))


def format_of(path: Path, name: str, format: str) -> str:
    """The chosen format, or the detected one. Raises ImportProblem."""
    if format in FORMATS:
        return format
    with path.open("rb") as file:
        if not file.read(HEAD).strip():
            raise ImportProblem(f"{name} is empty. Choose a file with one task per line.")
        file.seek(0)
        if found := formats.format_of(file, name):
            return found
    raise ImportProblem(
        f"The format of {name} was not recognised ({', '.join(FORMATS)}). JSON Lines need"
        " “messages” and “expected” in each line, CSV a header with “prompt”. Choose the format"
        " yourself to see which lines are invalid."
    )


def preview(path: Path, name: str, format: str = "", answers: Path | None = None) -> Preview:
    """Reads the whole file without storing anything. Raises ImportProblem."""
    seen = Preview(format_of(path, name, format))
    for item in _read(path, seen.format, answers):
        if isinstance(item, RowProblem):
            seen.bad += 1
            if len(seen.problems) < PROBLEMS:
                seen.problems.append(item)
            continue
        seen.good += 1
        seen.splits[item.split] += 1
        seen.columns.update(islice(map(str, item.metadata), 50))
        if len(seen.rows) < SHOWN:
            seen.rows.append(item)
    return seen


def _read(path: Path, format: str, answers: Path | None) -> Iterator[Read]:
    """Rows and problems. Raises ImportProblem for too many rows, or for answers if the format has
    none.
    """
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(path.open("rb"))
        truths = stack.enter_context(answers.open("rb")) if answers else None
        try:
            for count, item in enumerate(read(format, lines, truths), 1):
                if count > MAX_ROWS:
                    raise ImportProblem(f"More than {MAX_ROWS:,} rows. Split the file.")
                yield item
        except ValueError as error:
            raise ImportProblem(str(error)) from error


# From rows to tasks


@dataclass
class Imported:
    """The result of an import. `problems` are the first ones, as sentences."""

    made: int = 0
    duplicates: int = 0
    guarded: int = 0
    bad: int = 0
    problems: list[str] = field(default_factory=list)
    leaks: list[dict] = field(default_factory=list)
    leaking: int = 0


def import_file(
    *,
    eval_set: EvalSet,
    path: Path,
    name: str,
    choice: Choice,
    by: Any,
    answers: Path | None = None,
    viewer: ApiKey | None = None,
) -> Imported:
    """Stores the valid rows of a file. Raises ImportProblem, or EvalSetError for a frozen set or a
    split that leaks.
    """
    done = Imported()
    rows = list(_good(_read(path, choice.format, answers), done))
    return store_rows(
        eval_set=eval_set, rows=rows, name=name, choice=choice, by=by, done=done, viewer=viewer
    )


def _good(items: Iterable[Read], done: Imported) -> Iterator[TaskRow]:
    for item in items:
        if isinstance(item, TaskRow):
            yield item
        else:
            _note_problem(done, str(item))


def _note_problem(done: Imported, problem: str) -> None:
    done.bad += 1
    if len(done.problems) < PROBLEMS:
        done.problems.append(problem)


def store_rows(
    *,
    eval_set: EvalSet,
    rows: Iterable[TaskRow],
    name: str,
    choice: Choice,
    by: Any,
    done: Imported | None = None,
    viewer: ApiKey | None = None,
) -> Imported:
    """Stores rows as tasks of a draft. Raises EvalSetError."""
    done = done or Imported()
    taken = set(eval_set.tasks.values_list("key", flat=True))
    hashes = dict(eval_set.tasks.values_list("canonical_hash", "key"))
    tasks, numbered = [], set()
    for row in rows:
        task = task_of(row, eval_set, name, choice)
        if task.origin == Origin.SYNTHETIC and task.split == Split.HOLDOUT:
            _note_problem(
                done,
                f"Line {row.line}, split: the task is synthetic and can never be held out. Choose"
                " another split.",
            )
            continue
        if task.canonical_hash not in hashes:
            numbered |= {task.key} & taken
            task.key = free_key(eval_set, task.key, taken)
            taken.add(task.key)
        tasks.append(task)
    held = set(
        eval_set.tasks.holdout().filter(key__in=numbered).values_list("canonical_hash", flat=True)
    )
    record_membership(
        eval_set.project, held, by=viewer or by, detail=f"keys that {eval_set} already has"
    )
    made = actions.store_tasks(
        eval_set=eval_set, tasks=tasks, by=by, what=f"file {name}"[:200], viewer=viewer
    )
    done.made, done.duplicates, done.guarded = made.made, made.duplicates, len(made.conflicts)
    done.leaking, done.leaks = len(made.leaks), [asdict(leak) for leak in made.leaks[:SHOWN]]
    return done


def task_of(row: TaskRow, eval_set: EvalSet, name: str, choice: Choice) -> Task:
    """Unsaved. A task that the file marks as synthetic stays synthetic; every other task has the
    origin “file”.
    """
    ours = row.metadata.get(FLYWHEEL)
    synthetic = isinstance(ours, dict) and ours.get("origin") == Origin.SYNTHETIC
    prompt = canonical_hash(row.messages)
    return Task(
        project=eval_set.project,
        eval_set=eval_set,
        key=row.key,
        split=choice.split if choice.always or not row.split else row.split,
        group=_group(row, choice) or prompt,
        groups=_groups(row),
        canonical_hash=prompt,
        messages=row.messages,
        tools=row.tools,
        expected=row.expected,
        demonstration=row.demonstration,
        origin=Origin.SYNTHETIC if synthetic else Origin.IMPORTED,
        metadata=row.metadata | {"imported": {"file": name[-200:], "line": row.line}},
    )


def _group(row: TaskRow, choice: Choice) -> str:
    if choice.group == BY_FILE:
        return row.group
    if choice.group == BY_REQUEST:
        return ""
    return of_metadata(row.metadata).get(choice.group.removeprefix("metadata."), row.group)


def _groups(row: TaskRow) -> list[str]:
    """The other groups of the row: from its metadata, and from what a Flywheel file says about the
    run it came from.
    """
    ours = row.metadata.get(FLYWHEEL)
    kept = ours.get("groups") if isinstance(ours, dict) else None
    kept = (
        [name[:GROUP_LENGTH] for name in kept if isinstance(name, str)]
        if isinstance(kept, list)
        else []
    )
    return sorted({*kept, *names_in(row.metadata)})


# Waiting files, and imports by a worker


def folder_of(identity: str) -> str:
    return f"{KEPT}{uuid.UUID(str(identity)).hex}"


def keep(chunks: Iterable[bytes], answers: Iterable[bytes] | None = None) -> str:
    """Keeps the file (and the answers file) for whichever process goes on with it. Those that
    nobody came back for are removed.
    """
    kept.remove_leftovers(KEPT, _awaited)
    identity, files = str(uuid.uuid4()), {"file": chunks}
    if answers is not None:
        files["answers"] = answers
    kept.put_chunks(folder_of(identity), files)
    return identity


def _awaited(names: set[str]) -> set[str]:
    active = TaskImport.objects.active().filter(pk__in=names)
    return {pk.hex for pk in active.values_list("pk", flat=True)}


def forget(identity: str) -> None:
    kept.remove_folder(folder_of(identity))


def paths_of(identity: str) -> tuple[Path, Path | None]:
    """The file and the answers file on this machine. Raises ImportProblem if they are gone,
    OSError.
    """
    folder = folder_of(identity)
    if (path := kept.path_of(folder, "file")) is None:
        raise ImportProblem("That file is no longer available. Upload it again.")
    return path, kept.path_of(folder, "answers")


def submit(
    *, identity: str, eval_set: EvalSet, name: str, choice: Choice, by: Any, rows: int = 0
) -> TaskImport:
    """Queues the import of a waiting file for a worker."""
    job = TaskImport(
        id=identity,
        project=eval_set.project,
        eval_set=eval_set,
        name=name,
        total=rows,
        spec={"choice": asdict(choice)},
    )
    return jobs.submit(job, by=by)


def steps(job: TaskImport) -> Generator[Progress, None, dict]:
    """The whole file in one step, whose transaction ends the job: it is stored completely and once,
    or not at all.
    """
    yield Progress(done=0, label="reading the file")
    path, answers = paths_of(str(job.pk))
    choice = Choice(**job.spec["choice"])
    try:
        with transaction.atomic():
            done = import_file(
                eval_set=job.eval_set,
                path=path,
                name=job.name,
                choice=choice,
                by=job.created_by,
                answers=answers,
            )
    except actions.EvalSetError as error:
        record_refusal(job.project, error, by=job.created_by)
        yield Progress(
            done=0, label="refused"
        )  # a separate step: the view is recorded even if the job fails
        raise error
    return asdict(done)


def ended(job: TaskImport) -> None:
    forget(str(job.pk))


def chosen(choice: Choice, columns: Iterable[str]) -> Choice:
    """The choice, if the file has its group. Raises ImportProblem."""
    groups = {BY_FILE, BY_REQUEST, *(f"metadata.{name}" for name in columns)}
    if choice.group not in groups:
        raise ImportProblem(
            f"The file has no “{choice.group}”. Group by {', '.join(sorted(groups))}."
        )
    return replace(choice, split=Split(choice.split))


@on(Deleting[TaskImport])
def remove_files(event: Deleting[TaskImport]) -> None:
    folders = [folder_of(pk) for pk in event.rows.values_list("pk", flat=True)]
    kept.remove(KeptFile.objects.filter(folder__in=folders))
