"""What training data and outputs say of runs and tasks that were deleted. Digests, sizes, rewards
and metrics stay: a model cannot be made to forget, so its lineage says what it learned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from apps.core.bus import on
from apps.core.mentions import Mentioned
from apps.evals.erasing import SAYS_NOTHING, TasksErased
from apps.evals.models import Task
from apps.failures.models import JudgeVerdict
from apps.training.lineage import learners_of
from apps.training.models import Example, JudgedOutput, Rollout
from apps.trajectories.copies import Copies, Learners


@on(Copies)
def examples_of(question: Copies) -> Mapping[str, int]:
    runs = question.runs.values("pk")
    shown = Example.objects.filter(dataset__project=question.project, trajectory__in=runs)
    if question.erase:
        return {"training examples": shown.delete()[0]}
    tasks = Task.objects.filter(project=question.project, trajectory__in=runs).values("pk")
    of_tasks = Example.objects.filter(task__in=tasks).exclude(trajectory__in=runs)
    outputs = Rollout.objects.filter(task__in=tasks)
    return {
        "training examples": shown.count() + of_tasks.count(),
        "training outputs": outputs.count(),
    }


@on(TasksErased)
def forget_tasks(event: TasksErased) -> None:
    Example.objects.filter(task__in=event.tasks).delete()
    outputs = Rollout.objects.filter(task__in=event.tasks)
    judged = JudgedOutput.objects.filter(rollout__in=outputs.values("pk"))
    JudgeVerdict.objects.filter(pk__in=judged.values("verdict")).update(quote="", reason="")
    outputs.update(**SAYS_NOTHING)


@on(Mentioned[Example])
def forget_examples(question: Mentioned[Example]) -> int:
    return question.rows.delete()[0]


@on(Learners)
def learned_from(question: Learners) -> Iterable[str]:
    """Versions by name, with all that descend from them; a run that made none by its own name."""
    runs = question.runs.order_by().values("pk")
    made = Task.objects.filter(project=question.project, trajectory__in=runs).order_by()
    tasks = set(made.values_list("pk", flat=True))
    if tasks:
        tasks |= set(Task.objects.filter(variant_of__in=tasks).values_list("pk", flat=True))
    shown = Example.objects.filter(dataset__project=question.project, trajectory__in=runs)
    datasets: list[UUID] = list(shown.order_by().values_list("dataset", flat=True).distinct())
    return {
        name
        for learner in learners_of(list(tasks), datasets)
        for name in (
            [str(learner.version), *map(str, learner.heirs)]
            if learner.version
            else [f"{learner.kind} “{learner.job.name}” ({learner.job.state})"]
        )
    }
