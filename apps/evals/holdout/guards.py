"""What a hold-out means for exports and pages of lower layers, which know nothing of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from uuid import UUID

from django.db.models import Q, QuerySet

from apps.core.bus import on
from apps.evals.canonical import content_key
from apps.evals.holdout import leaks
from apps.evals.holdout.groups import held_out_runs, request_of
from apps.evals.holdout.view_log import record_production_view
from apps.evals.models import Task, TaskQuerySet
from apps.evals.near_duplicates.calls import words_of
from apps.evals.near_duplicates.markup import plain
from apps.evals.near_duplicates.text import content
from apps.trajectories.exports import MayNotTrain
from apps.trajectories.models import Trajectory, with_content
from apps.trajectories.shown import RunsShown
from workers.lib.messages import is_prompt, text_of
from workers.lib.remembered import remembered

Turn = tuple[str, tuple[str, ...]]  # role, words
READ_AT_ONCE = 200  # runs
MOST_READ = 1_000  # runs of a file that are read whole; of more, only how they begin is compared
START = 4  # meaningful words of a request that are compared before it is read


@on(MayNotTrain)
def untrainable(question: MayNotTrain) -> set[int]:
    """Runs of a held-out group, and lines that teach a held-out task or nearly one."""
    held = held_out_runs(question.project, question.runs)
    return {index for index, run in enumerate(question.runs) if run.pk in held} | leaks.forbidden(
        question.project, question.lines
    )


@on(RunsShown)
def record_runs_shown(event: RunsShown) -> None:
    """The runs that held-out tasks were made from, and others with the same request, reveal what is
    held out, wherever they are shown.
    """
    project = event.project
    tasks = Task.objects.holdout().filter(project=project)
    if not tasks.exists():
        return
    runs = event.runs()
    rows = runs if isinstance(runs, QuerySet) else project.trajectories.filter(pk__in=runs)
    made_from = tasks.exclude(trajectory=None).filter(trajectory__in=rows.order_by().values("pk"))
    asked = begun_by(tasks, rows)
    if not event.previews and rows[: MOST_READ + 1].count() <= MOST_READ:
        asked |= held_by(tasks, rows)
    either = Q(pk__in=made_from.order_by().values("pk")) | Q(canonical_hash__in=asked)
    record_production_view(project, tasks.filter(either), by=event.to, where=event.where)


def begun_by(tasks: TaskQuerySet, rows: QuerySet[Trajectory]) -> set[str]:
    """The canonical hashes of those of these tasks with whose request one of the runs begins. The
    start of a run's first message, which is in its row, says whether its content has to be read.
    """
    wanted: dict[int, set[str]] = defaultdict(set)
    starts = set()
    for canonical, messages in tasks.order_by().values_list("canonical_hash", "messages"):
        wanted[content_key(messages)].add(canonical)
        starts.add(
            _start(next((text_of(one) for one in messages if one.get("role") == "user"), ""))
        )
    previews = rows.order_by().values_list("pk", "preview").iterator(chunk_size=READ_AT_ONCE)
    likely = [pk for pk, preview in previews if _start(preview) in starts]
    found: set[str] = set()
    for run in _read(likely):
        found |= wanted.get(content_key(request_of(run)), set())
    return found


def held_by(tasks: TaskQuerySet, rows: QuerySet[Trajectory]) -> set[str]:
    """The canonical hashes of those of these tasks whose prompt is part of one of the runs, from
    whichever turn on: a task may have been made from a later step, and a request may follow a
    greeting.
    """
    ends: dict[Turn, list[tuple[list[Turn], str]]] = defaultdict(list)
    for canonical, messages in tasks.order_by().values_list("canonical_hash", "messages"):
        if turns := turns_of(messages):
            ends[turns[-1]].append((turns, canonical))
    found: set[str] = set()
    for run in _read(list(rows.order_by().values_list("pk", flat=True))):
        turns = turns_of(run.messages)
        for place, turn in enumerate(turns, 1):
            found |= {
                canonical
                for prompt, canonical in ends.get(turn, ())
                if turns[max(0, place - len(prompt)) : place] == prompt
            }
    return found


def turns_of(messages: Sequence[dict]) -> list[Turn]:
    """What each turn says, without the harness's instructions; messages of one role in a row are
    one turn.
    """
    said = (message for message in messages if not is_prompt(message))
    return [
        (role, tuple(content("\n".join(plain(words_of(message)) for message in turn))))
        for role, turn in groupby(said, key=lambda message: message.get("role", ""))
    ]


def _read(pks: Sequence[UUID]) -> Iterator[Trajectory]:
    for at in range(0, len(pks), READ_AT_ONCE):
        yield from with_content(list(Trajectory.objects.filter(pk__in=pks[at : at + READ_AT_ONCE])))


@remembered(characters=5_000_000)
def _start(text: str) -> tuple[str, ...]:
    return tuple(content(plain(text))[:START])
