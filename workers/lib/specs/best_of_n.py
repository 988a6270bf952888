"""The spec of `workers.best_of_n`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from workers.lib.specs.engines import Model, Server
from workers.lib.specs.environment import Environment
from workers.lib.specs.job import Tasks
from workers.lib.specs.rows import FromRows
from workers.lib.specs.sft import SftConfig, SftRow
from workers.lib.specs.training import IT_SAMPLES, DrawingTemperature, Drawn
from workers.lib.typed import AnswerTokens, Count, TopP


class BestOfNConfig(SftConfig, kw_only=True):
    """`samples` per task by the initial model, or by a teacher; of those that pass, the best or all
    distinct ones are learned from.
    """

    samples: Drawn = 8
    keep: Literal["best", "all"] = "best"
    temperature: DrawingTemperature = 1.0
    top_p: TopP = 1.0
    max_new_tokens: AnswerTokens = 64
    teacher_tokens: Count = 0  # that a teacher on a server may use in the whole run; 0: no limit
    teacher_usd: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    teacher_answers_as: Annotated[str, Meta(max_length=200)] = (
        ""  # the model name in its answers, where that is another than the one asked for
    )
    not_in_4bit: ClassVar[str] = IT_SAMPLES
    not_sharded: ClassVar[str] = IT_SAMPLES


class BestOfN(FromRows, kw_only=True, tag="best_of_n"):
    """Samples before it learns: with the model being trained, with `teacher`, or on
    `teacher_server`. `validation_rows` as in Sft.
    """

    teacher: Model | None = None
    teacher_server: Server | None = None
    environment: Environment
    tasks: Tasks
    validation_rows: list[SftRow] = []
    config: BestOfNConfig
