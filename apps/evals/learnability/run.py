"""What a finished evaluation says about learning from its tasks: reads its samples, picks its
tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from django.db.models import Avg, Count, Q, StdDev

from apps.core.models import JobState
from apps.evals.learnability.signal import Learnability, Pick, TaskView, learnability, pick
from apps.evals.models import EvalRun, Split
from apps.evals.stats import SampleRow

NO_ANSWER = "none of its samples were scored"


class CannotPick(Exception):
    """An evaluation by which no training task can be picked; the message is a sentence for the
    page.
    """


@dataclass(frozen=True)
class RunLearnability:
    """One evaluation, read once. `group_size`: samples of a task in one GRPO step (G, at least
    2).
    """

    run: EvalRun
    group_size: int = 8

    @cached_property
    def names(self) -> dict[str, tuple[str, str]]:
        """{task id: (key, group)} of the split that was evaluated."""
        rows = self.run.eval_set.tasks.filter(split=self.run.split).values_list(
            "pk", "key", "group"
        )
        return {str(pk): (key, group) for pk, key, group in rows}

    @cached_property
    def found(self) -> Learnability:
        groups = {task: group for task, (_, group) in self.names.items()}
        return learnability(samples_of(self.run), group_size=self.group_size, groups=groups)

    def why_not(self) -> str:
        """Why no task of this evaluation can be picked for training; empty if tasks can be
        picked.
        """
        if self.run.split == Split.HOLDOUT:
            return (
                "These tasks are held out and can never be picked for training. This page is for"
                " information only."
            )
        if self.run.split != Split.TRAIN:
            return (
                f"Its tasks belong to the {self.run.get_split_display().lower()} split, which is"
                " not used for training."
            )
        if self.run.state != JobState.SUCCEEDED:
            return "Tasks can be picked only from a finished evaluation."
        return ""

    def pick(self, per_group: int | None = None) -> Pick:
        """The tasks that teach; every other task of the split has a reason.

        Raises CannotPick if nothing of this evaluation may train.
        """
        if why := self.why_not():
            raise CannotPick(why)
        tasks = tasks_of(self.run, self.names)
        made = pick(tasks, per_group=per_group)
        unscored = self.names.keys() - {item.task for item in tasks}
        left_out = made.left_out | dict.fromkeys(unscored, NO_ANSWER)
        return Pick(made.chosen, left_out)


def tasks_of(run: EvalRun, names: dict[str, tuple[str, str]]) -> list[TaskView]:
    """The tasks with an unmasked sample, aggregated in the database, because a form reads many
    evaluations. `names` as in RunLearnability.

    Spreads are rounded: sums in another order differ in their last digits, and the pick's order
    must not.
    """
    rows = run.samples.filter(masked=False).order_by().values_list("task_id")
    sums = rows.annotate(
        n=Count("pk"),
        passed=Count("pk", filter=Q(success=True)),
        mean=Avg("reward"),
        spread=StdDev("reward"),
    )
    return [
        TaskView(str(task), n, passed, mean, round(spread, 12), names[str(task)][1])
        for task, n, passed, mean, spread in sums
    ]


def samples_of(run: EvalRun) -> list[SampleRow]:
    """Only what learnability needs: outputs and messages stay in the database."""
    rows = run.samples.order_by().values_list("task_id", "reward", "success", "masked")
    return [
        SampleRow(str(task), reward, success=good, masked=masked)
        for task, reward, good, masked in rows
    ]
