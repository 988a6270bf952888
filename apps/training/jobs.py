"""The jobs of floor 8: what a training run gives its child process and what it keeps of the answers; prompt searches."""

from __future__ import annotations

import math
from pathlib import Path

from django.db import transaction

from apps.core.kinds import ChildProcess, register
from apps.core.models import JobState
from apps.environments.clients import load_for
from apps.environments.scorer import record_scorer
from apps.evals.holdout import leaks
from apps.evals.jobs import sample_fields
from apps.evals.learnability.run import RunLearnability, tasks_of
from apps.evals.models import EvalRun, Split, Task
from apps.registry.actions import register_adapter
from apps.registry.artifacts import store_folder
from apps.registry.engines import engine_spec, model_spec
from apps.registry.rollout_servers import rollouts_spec
from apps.reviews.actions import require_unlocked
from apps.training import checkpoints, run_alarms
from apps.training.models import PROGRAMS, SHAPES, Checkpoint, Method, Metric, PromptSearch, Rollout, TrainingRun
from apps.training.prompt_search import job as prompt_search
from apps.training.refusals import refuse_leaks
from workers.lib.environments import Environment
from workers.lib.gold import gold_turns


def child_spec(run: TrainingRun) -> dict:
    """Asks the lock again: a review, the policy, the judge or a remote server may have changed since the run was queued.
    Raises TrainingLocked, HoldoutLeak."""
    record_scorer(run, run.environment)
    checkpoint, tasks = checkpoints.latest(run), run.dataset.tasks()
    require_unlocked(environment=run.environment, tasks=tasks, by=run.created_by, scorer=run.spec["scorer"])
    spec = {
        "kind": PROGRAMS.get(run.method, run.method),
        "seed": run.spec["seed"],
        "model": model_spec(run.parent),
        "engine": engine_spec(run.parent, 64),
        "environment": run.environment.job_spec(),
        "config": run.spec["config"],
        "resume_from": checkpoint and checkpoint.path,
    }
    if run.method in SHAPES:
        rows = example_rows(run, tasks)
        refuse_leaks(run, tasks, ((name, as_leak_row(row)) for name, row in rows))
        return spec | {"rows": [row for _, row in rows]}
    if run.method == Method.SFT:
        environment = load_for(run.environment)
        rows = {task.key: row for task in tasks if (row := sft_row(task, environment))}
        refuse_leaks(run, tasks, ((key, whole_conversation(row)) for key, row in rows.items()))
        return spec | {"rows": list(rows.values())}
    validation = list(run.dataset.eval_set.tasks.filter(split=Split.VALIDATION))
    refuse_leaks(run, tasks, ((task.key, leaks.row_of(task)) for task in tasks + validation))
    if run.spec.get("rollouts"):
        spec["rollouts"] = rollouts_spec(run.pk, run.spec["rollouts"])
    return spec | {
        "tasks": [task.as_spec() for task in tasks],
        "validation_tasks": [task.as_spec() for task in validation],
        **({"success_rates": success_rates(run)} if run.spec["config"].get("curriculum") else {}),
    }


def example_rows(run: TrainingRun, tasks: list[Task]) -> list[tuple[str, dict]]:
    """(name, row) of each example: the conversation and the tools as an agent is given them, and what was said of the answers."""
    environment, by_pk = load_for(run.environment), {task.pk: task for task in tasks}
    rows = []
    for example in run.dataset.examples.all():
        data, task = example.data, by_pk.get(example.task_id)
        asked = task.as_spec() if task else {"id": str(example.trajectory_id), "messages": data["messages"], "tools": data["tools"], "expected": {}, "metadata": {}}  # fmt: skip
        episode = environment.open(asked)
        said = {name: data[name] for name in ("chosen", "rejected", "good") if name in data}
        if "answer" in data:
            said["completion"] = data["answer"]
        rows.append(
            (
                f"{example.source} {example.position + 1}",
                {"messages": episode.messages, "tools": episode.offered} | said,
            )
        )
    return rows


def as_leak_row(row: dict) -> dict:
    """A row of a job in the form in which pairs are compared with the hold-outs."""
    return {("prompt" if name == "messages" else name): value for name, value in row.items()}


def whole_conversation(row: dict) -> dict:
    """A row of SFT in the form in which it is compared with the hold-outs: what its later turns say, too."""
    return row | {"messages": row["messages"] + row.get("turns", [])}


def success_rates(run: TrainingRun) -> dict[str, float]:
    """{task: share that passed} by the evaluation that chose the run's tasks, else the newest of its parent on the train split."""
    found = EvalRun.objects.filter(
        project=run.project, eval_set=run.dataset.eval_set, split=Split.TRAIN, state=JobState.SUCCEEDED
    )
    picked = run.spec.get("picked_by")
    chosen = found.filter(pk=picked) if picked else found.filter(model_version=run.parent).order_by("-created_at")
    if (evaluated := chosen.first()) is None:
        return {}
    return {view.task: view.rate for view in tasks_of(evaluated, RunLearnability(evaluated).names)}


def sft_row(task: Task, environment: Environment) -> dict:
    """The conversation and the tools as an agent is given them, and the answer it should give; in an environment of several
    turns, where the task says how, all of an episode that succeeds. {} where nothing shows what is right."""
    episode = environment.open(task.as_spec())
    row = {"messages": episode.messages, "tools": episode.offered}
    if environment.multi_turn and (turns := gold_turns(environment, task.as_spec())):
        return row | {"turns": turns}
    return row | {"completion": task.demonstration} if task.demonstration else {}


def store_events(run: TrainingRun, events: list[dict]) -> None:
    store_metrics(run, events)
    run_alarms.store(run, events)
    for event in events:
        if event["type"] == "checkpoint":
            Checkpoint.objects.update_or_create(
                run=run, step=event["step"], defaults={"path": event["path"], "attempt": run.attempt}
            )
    if any(event["type"] == "checkpoint" for event in events):
        checkpoints.prune(run)
    Rollout.objects.bulk_create(
        [
            Rollout(
                run=run,
                task_id=event["task_id"],
                phase=event["phase"],
                step=event["step"],
                index=event["index"],
                **sample_fields(event),
            )
            for event in events
            if event["type"] == "sample"
        ],
        ignore_conflicts=True,
    )


def store_metrics(run: TrainingRun, events: list[dict]) -> None:
    """A resumed attempt repeats the steps after its checkpoint: the later value stands."""
    latest = {
        (name, event["step"]): float(value)
        for event in events
        if event["type"] == "metric"
        for name, value in event["values"].items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    Metric.objects.bulk_create(
        [Metric(run=run, name=name, step=step, value=value) for (name, step), value in latest.items()],
        update_conflicts=True,
        unique_fields=["run", "name", "step"],
        update_fields=["value", "at"],
    )


def complete(run: TrainingRun, result: dict) -> dict:
    """Stores the adapter and makes its version, in the transaction that ends the run."""
    with transaction.atomic():
        artifact = store_folder(Path(result["adapter"]))
        version = register_adapter(
            project=run.project,
            name=version_name(run),
            parent=run.parent,
            artifact=artifact,
            lineage=lineage(run),
            by=run.created_by,
        )
        TrainingRun.objects.filter(pk=run.pk).update(model_version=version)
    return {"model_version": str(version), "adapter_digest": artifact.digest, "metrics": result.get("metrics") or {}}


def version_name(run: TrainingRun) -> str:
    return f"{run.parent.base_version().name}-{run.method}"


def lineage(run: TrainingRun) -> dict:
    """Everything that made the version, frozen: enough to make it again and to find its production trajectories."""
    return run.spec | {
        "run": str(run.pk),
        "method": run.method,
        "parent": str(run.parent),
        "dataset": str(run.dataset_id),
        "environment": str(run.environment),
        "verifier": str(run.environment.verifier),
    }


register(
    TrainingRun,
    ChildProcess(
        queue="train",
        program=lambda run: PROGRAMS.get(run.method, run.method),
        child_spec=child_spec,
        store_events=store_events,
        complete=complete,
        if_lost="The last checkpoint is kept: the run can be resumed from it.",
    ),
)
register(
    PromptSearch,
    ChildProcess(
        queue="eval",
        program=lambda search: "search_prompts",
        child_spec=prompt_search.child_spec,
        store_events=prompt_search.store_events,
        complete=prompt_search.complete,
        if_lost="What was asked is kept: the search can be resumed without paying for it again.",
    ),
)
