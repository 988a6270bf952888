"""The run to be estimated: as described by a form, a file or a flow before it exists, or as it was
submitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from apps.core.models import Project
from apps.environments.clients import load_for
from apps.environments.models import Environment
from apps.evals.models import EvalSet, Split, Task
from apps.registry.models import ModelVersion
from apps.training.judged import Example as Judged
from apps.training.models import SHAPES, Dataset, Example, Method
from apps.training.sft_rows import sft_row
from workers.lib.chat_tokens import Conversation
from workers.lib.specs.methods import CONFIGS
from workers.lib.typed import convert, plain

SAMPLED = 64  # rows whose prompts are tokenized
FOLLOWS = ("chosen", "rejected", "answer")  # fields of an example that contain answers


@dataclass(frozen=True)
class Asked:
    """`config` is complete; `start` is the checkpoint's step for a fork; `runs` is the number of
    seeds.
    """

    project: Project
    method: str
    parent: ModelVersion
    environment: Environment
    eval_set: EvalSet
    config: dict[str, Any]
    tasks: Sequence[Task]
    examples: Sequence[Judged | Example] = ()
    rollouts: dict[str, Any] = field(default_factory=dict)
    start: int = 0
    runs: int = 1
    teacher: ModelVersion | None = None
    teacher_engine: dict[str, Any] | None = None  # set if the teacher runs on a server
    sampled: bool = False  # whether a fork reuses the samples of the original run

    @property
    def samples(self) -> bool:
        return self.method in (Method.GRPO, Method.ON_POLICY, Method.BEST_OF_N)

    @property
    def steps(self) -> int:
        return max(0, self.config["steps"] - self.start)

    @property
    def validation(self) -> int:
        """Samples per validation; 0 if the run does not validate."""
        every = self.config.get("eval_every")
        count = self.eval_set.tasks.filter(split=Split.VALIDATION).count() if every else 0
        return count * self.config.get("eval_samples", 1)

    @property
    def validations(self) -> int:
        every = self.config.get("eval_every")
        return 1 + self.config["steps"] // every - self.start // every if every else 0


def asked_of(
    *,
    project: Project,
    method: str,
    parent: ModelVersion,
    environment: Environment,
    dataset: Dataset,
    config: dict[str, Any],
    rollouts: dict[str, Any] | None = None,
    start: int = 0,
    teacher: ModelVersion | None = None,
    teacher_engine: dict[str, Any] | None = None,
    sampled: bool = False,
) -> Asked:
    return Asked(
        project,
        method,
        parent,
        environment,
        dataset.eval_set,
        whole(method, config),
        dataset.tasks(),
        list(dataset.examples.all()),
        rollouts or {},
        start,
        teacher=teacher,
        teacher_engine=teacher_engine,
        sampled=sampled,
    )


def whole(method: str, config: dict[str, Any]) -> dict[str, Any]:
    """The config with all defaults. Raises FormError."""
    return plain(convert(config, CONFIGS[method]))


def conversations(asked: Asked) -> tuple[list[Conversation], int]:
    """(prompts and learned texts of at most SAMPLED rows, spread evenly over all rows; the number
    of rows). Raises SpecError.
    """
    environment = load_for(asked.environment)
    if asked.method in SHAPES:
        rows, count = spread(asked.examples), len(asked.examples)
        by_pk = {task.pk: task for task in asked.tasks}
        missing = {pk for one in rows if (pk := task_of(one)) and pk not in by_pk}
        by_pk |= Task.objects.filter(project=asked.project).in_bulk(missing)
        return [_of_example(environment, one, by_pk.get(task_of(one))) for one in rows], count
    found, tasks = [], list(asked.tasks)
    if asked.method == Method.SFT and not environment.multi_turn:
        tasks = [task for task in tasks if task.demonstration]
    for task in spread(tasks):
        if asked.method == Method.SFT:
            if row := sft_row(task, environment):
                answers = [row.completion] if row.completion else []
                found.append(Conversation(row.messages, row.tools, answers, row.turns))
        else:
            episode = environment.open(task.as_spec())
            found.append(Conversation(episode.messages, episode.offered))
    return found, len(tasks)


def task_of(one: Judged | Example) -> Any:
    return getattr(one, "task_id", None) or one.task


def _of_example(environment: Any, one: Judged | Example, task: Task | None) -> Conversation:
    data = one.data
    given = (
        task.as_spec()
        if task
        else {
            "id": "",
            "messages": data["messages"],
            "tools": data["tools"],
            "expected": {},
            "metadata": {},
        }
    )
    episode = environment.open(given)
    return Conversation(
        episode.messages, episode.offered, [data[name] for name in FOLLOWS if name in data]
    )


def spread(rows: Sequence[Any]) -> list[Any]:
    count = len(rows)
    return [rows[at * count // min(count, SAMPLED)] for at in range(min(count, SAMPLED))]
