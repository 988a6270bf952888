"""What methods share that learn from rows of the database."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, field

from workers.lib.specs.engines import InProcess, Model
from workers.lib.specs.environment import Environment
from workers.lib.specs.job import Job
from workers.lib.specs.training import AtOnce, Drawn, Training
from workers.lib.typed import AnswerTokens, Count, Form, Text


class RowsConfig(Training, kw_only=True):
    """Settings of methods that learn from rows. Every `eval_every` steps (0: never), the loss on
    held-back rows and, with `eval_samples` of each, the success on validation tasks are measured;
    `validation_share` of the examples are held back, in whole groups.
    """

    batch_size: AtOnce
    max_length: AnswerTokens = (
        2048  # tokens per row; for a pair, those of the longer answer with its prompt
    )
    eval_every: Count = 0
    eval_samples: Drawn = 1
    validation_share: Annotated[float, Meta(ge=0, le=0.5)] = 0.0
    shard: bool = False  # whether the processes divide the layers of the base among them (FSDP)
    not_sharded: ClassVar[str] = ""  # why a method cannot train with a sharded base

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.processes > self.batch_size:
            raise ValueError(f"processes: must be at most batch_size, which is {self.batch_size}")
        if self.shard and self.not_sharded:
            raise ValueError(f"shard: must be false, since {self.not_sharded}")
        if self.shard and (self.load_in_4bit or self.use_dora):
            other = "load_in_4bit" if self.load_in_4bit else "use_dora"
            raise ValueError(f"shard: must be false with {other}, which needs whole weights")
        if self.shard and (self.processes == 1 or self.batch_size % self.processes):
            raise ValueError(
                "shard: needs several processes, a number that divides batch_size, which is"
                f" {self.batch_size}"
            )


class EvenConfig(RowsConfig, kw_only=True):
    """Settings of methods that average over rows: the mean of the processes' means is the mean of
    all rows if each has the same number.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size % self.processes:
            raise ValueError(f"processes: must divide batch_size, which is {self.batch_size}")


class PreferenceConfig(EvenConfig, kw_only=True):
    """Settings of methods that learn from preferences, relative to the initial model."""

    no_dropout: ClassVar[str] = "the model and its start are compared without dropout"
    beta: Annotated[float, Meta(gt=0, le=100)] = (
        0.1  # how strongly the model is kept close to the initial one
    )


class Pair(Form, kw_only=True):
    """Two answers to one conversation, of which `chosen` is better."""

    messages: list[dict]
    chosen: Text
    rejected: Text
    tools: list[dict] = []


class FromRows(Job, kw_only=True):
    """A run that TRL trains, on `rows` from the database."""

    out_dir: Text
    model: Model
    engine: InProcess = field(default_factory=InProcess)
    environment: Environment | None = None
    validation_tasks: list[dict] = []
