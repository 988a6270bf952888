"""The spec of `workers.on_policy`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from workers.lib.specs.engines import InProcess, Model, Server
from workers.lib.specs.environment import Environment
from workers.lib.specs.job import Job, Tasks
from workers.lib.specs.training import AS_SAMPLED, AtOnce, Drawn, Training
from workers.lib.typed import AnswerTokens, AtLeastOne, Count, Text


class OnPolicyConfig(Training, kw_only=True):
    """The student's samples are drawn at temperature 1, and each is used once."""

    prompts_per_step: AtOnce = 4
    generations: Drawn = 4  # completions per prompt
    max_new_tokens: AnswerTokens = 64
    micro_batch: Count = 0  # completions per forward and backward pass; 0: all
    gradient_checkpointing: bool = False
    eval_every: Count = 0
    eval_samples: Drawn = 1
    save_every: AtLeastOne = 5
    teacher_tokens: Count = 0  # that a teacher on a server may use in the whole run; 0: no limit
    teacher_usd: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    no_dropout: ClassVar[str] = AS_SAMPLED


class OnPolicy(Job, kw_only=True, tag="on_policy"):
    """Like Grpo, plus the model that gives each token's log-probability: in this process or, with
    `teacher_server`, on a vLLM server; then `teacher` is not loaded.
    """

    out_dir: Text
    model: Model
    teacher: Model
    teacher_server: Server | None = None
    engine: InProcess
    environment: Environment
    tasks: Tasks
    validation_tasks: list[dict] = []
    config: OnPolicyConfig
