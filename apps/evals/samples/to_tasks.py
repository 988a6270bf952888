"""Failed samples as new tasks of a draft: cut at the blamed step if the expected answer there is
known, otherwise the whole task again.

Only training and validation tasks may become tasks, and they keep their split and groups: nothing
of a hold-out gets into training, and a validation task stays one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from apps.evals import actions
from apps.evals.canonical import canonical_hash
from apps.evals.formats.verifiers_package import RECORDED
from apps.evals.from_failures import (
    by_truth,
    demonstration_of,
    free_key,
    prompt_at,
    recorded_results,
    steps_of,
)
from apps.evals.models import EvalRun, EvalSet, Sample, Split, Task
from apps.evals.samples.diagnosis import as_run, diagnose
from apps.evals.samples.transcript import conversation
from apps.failures.rules.reading import read

SOURCES = (Split.TRAIN, Split.VALIDATION)
MOST = 1_000  # tasks at once


@dataclass(frozen=True)
class Start:
    """Where a new task begins: before message `cut` of the conversation; None is the request of the
    evaluated task itself.
    """

    cut: int | None
    expected: dict


def may_make_tasks(run: EvalRun) -> bool:
    return run.split in SOURCES


def why_not(run: EvalRun) -> str:
    """Empty if its failures may become tasks."""
    if may_make_tasks(run):
        return ""
    return (
        f"These tasks are from the {run.get_split_display().lower()} split. Only failures on"
        " training and validation tasks can become tasks: data that measures a model must not"
        " reach its training."
    )


def failed(samples: Iterable[Sample]) -> list[Sample]:
    """One failed sample per task, the first that a rule explains; at most MOST."""
    found: dict[Any, Sample] = {}
    for sample in samples:
        if sample.success or sample.masked:
            continue
        known = found.get(sample.task_id)
        if known is None or (sample.mode and not known.mode):
            found[sample.task_id] = sample
        if len(found) > MOST:
            break
    return list(found.values())[:MOST]


def start_of(sample: Sample, *, whole: bool = False) -> Start:
    """The agent's blamed step, if the correct calls from there on are known; otherwise (or with
    `whole`) the beginning.
    """
    expected, first = (
        sample.task.expected,
        len(conversation(sample)) - len(sample.messages or [None]),
    )
    found = None if whole else diagnose(sample)
    if found is None or found.blamed_message is None or found.blamed_message <= first:
        return Start(None, expected)
    cut = found.blamed_message
    if cut not in steps_of(conversation(sample)):
        return Start(None, expected)
    right = next(by_truth(read(as_run(sample)), cut), None)
    return Start(cut, right.expected) if right else Start(None, expected)


def task_of(sample: Sample, eval_set: EvalSet, *, whole: bool, taken: set[str]) -> Task:
    """Unsaved."""
    source, start = sample.task, start_of(sample, whole=whole)
    prompt = source.messages if start.cut is None else prompt_at(conversation(sample), start.cut)
    metadata = {
        name: value
        for name, value in source.metadata.items()
        if name in (RECORDED, "tags", "state")
    }
    metadata |= {"mode": sample.mode, "source": f"evaluation {sample.run_id}, sample {sample.pk}"}
    if start.cut is not None:
        metadata |= {"cut": start.cut, RECORDED: recorded_results(read(as_run(sample)))}
    key = free_key(eval_set, source.key, taken)
    taken.add(key)
    return Task(
        project=eval_set.project,
        eval_set=eval_set,
        key=key,
        split=source.split,
        group=source.group,
        groups=source.groups,
        canonical_hash=canonical_hash(prompt),
        messages=prompt,
        tools=source.tools,
        expected=start.expected,
        demonstration=(
            source.demonstration if start.cut is None else demonstration_of(start.expected)
        ),
        origin=source.origin,
        variant_of=source.variant_of,
        confirmed_by=source.confirmed_by,
        trajectory=source.trajectory,
        metadata=metadata,
    )


def make_tasks(
    *,
    run: EvalRun,
    samples: Iterable[Sample],
    eval_set: EvalSet,
    by: Any,
    whole: bool = False,
    viewer: Any = None,
) -> actions.TasksMade:
    """Adds a task for each failed task of an evaluation to a draft. Raises EvalSetError for a split
    that may not become tasks, and for a frozen set."""
    if why := why_not(run):
        raise actions.EvalSetError(why)
    taken = set(eval_set.tasks.values_list("key", flat=True))
    tasks = list(_tasks(run, failed(samples), eval_set, whole, taken))
    return actions.store_tasks(
        eval_set=eval_set,
        tasks=tasks,
        by=by,
        what=f"failures of evaluation {run.pk}",
        viewer=viewer,
    )


def _tasks(
    run: EvalRun, samples: list[Sample], eval_set: EvalSet, whole: bool, taken: set[str]
) -> Iterator[Task]:
    sources = Task.objects.select_related("trajectory").in_bulk(
        {sample.task_id for sample in samples}
    )
    for sample in samples:
        sample.run, sample.task = run, sources[sample.task_id]
        if sample.task.split in SOURCES:
            yield task_of(sample, eval_set, whole=whole, taken=taken)
