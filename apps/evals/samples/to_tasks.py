"""Failed samples as new tasks of a draft: cut at the blamed step if the expected answer there is
known, otherwise the whole task again.

Only training and validation tasks may become tasks, and they keep their split and groups: nothing
of a hold-out gets into training, and a validation task stays one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from apps.evals import actions
from apps.evals.canonical import canonical_hash
from apps.evals.effects import effects_of
from apps.evals.formats.verifiers_package import RECORDED
from apps.evals.from_failures import free_key
from apps.evals.models import EvalRun, EvalSet, Sample, Split, Task
from apps.evals.samples.diagnosis import as_run, diagnose_run
from apps.evals.samples.transcript import answered, conversation
from apps.evals.source_runs import prompt_at, recorded_results, steps_of
from apps.evals.suggestions import TRUTH, changes_in, demonstration_of, of_changes
from apps.failures.rules.expected import known_answers
from apps.failures.rules.reading import read
from workers.lib.environments import builtin_tools
from workers.lib.messages import functions_of

SOURCES = (Split.TRAIN, Split.VALIDATION)
MOST = 1_000  # tasks at once


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
    of_task: dict[Any, Sample] = {}
    for sample in samples:
        if sample.success or sample.masked:
            continue
        chosen = of_task.get(sample.task_id)
        if chosen is None or (sample.mode and not chosen.mode):
            of_task[sample.task_id] = sample
        if len(of_task) > MOST:
            break
    return list(of_task.values())[:MOST]


def task_of(sample: Sample, eval_set: EvalSet, *, whole: bool, taken: set[str]) -> Task:
    """Unsaved: at the blamed step, if the correct calls from there on are known; otherwise (or with
    `whole`) the evaluated task again.
    """
    source = sample.task
    metadata = {
        name: value
        for name, value in source.metadata.items()
        if name in (RECORDED, "tags", "state")
    }
    metadata |= {"mode": sample.mode, "source": f"evaluation {sample.run_id}, sample {sample.pk}"}
    key = free_key(eval_set, source.key, taken)
    taken.add(key)
    task = Task(
        project=eval_set.project,
        eval_set=eval_set,
        key=key,
        split=source.split,
        group=source.group,
        groups=source.groups,
        messages=source.messages,
        tools=source.tools,
        expected=source.expected,
        demonstration=source.demonstration,
        origin=source.origin,
        variant_of=source.variant_of,
        confirmed_by=source.confirmed_by,
        trajectory=source.trajectory,
        metadata=metadata,
    )
    if not whole:
        _begin_at_blamed_step(task, sample)
    task.canonical_hash = canonical_hash(task.messages)
    return task


def _begin_at_blamed_step(task: Task, sample: Sample) -> None:
    """Changes a sample's task unless the mistake is in the agent's first step, or what was correct
    there is unknown.
    """
    messages, run = conversation(sample), read(as_run(sample))
    diagnosis = None if sample.masked else diagnose_run(sample, run)
    cut = diagnosis.blamed_message if diagnosis else None
    first = len(messages) - len(answered(sample))
    if cut is None or cut <= first or cut not in steps_of(messages):
        return
    known = known_answers(run)
    environment = sample.run.environment
    tools, own = builtin_tools(environment.builtin)
    names = {name for name, _ in functions_of(tools)}
    effects = effects_of(task.tools or environment.harness.get("tools") or [], [run], (names, own))
    changes = changes_in(known.truth.wanted, effects) if known.truth else None
    if changes and (answer := of_changes(run, effects, known, changes, cut, TRUTH)):
        task.messages, task.expected = prompt_at(messages, cut), answer.expected
        task.demonstration = demonstration_of(answer.expected)
        task.metadata |= {"cut": cut, RECORDED: recorded_results(run)}


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
