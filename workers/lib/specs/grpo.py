"""The spec of `workers.grpo`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from workers.lib.specs.engines import InProcess, Model
from workers.lib.specs.environment import Environment
from workers.lib.specs.harness import AgentHarness
from workers.lib.specs.job import Job, Tasks
from workers.lib.specs.rollouts import Rollouts
from workers.lib.specs.training import (
    AS_SAMPLED,
    AtOnce,
    DrawingTemperature,
    Drawn,
    LearningRate,
    Needs,
    Training,
)
from workers.lib.typed import (
    AnswerTokens,
    AtLeastOne,
    Count,
    NotNegative,
    Positive,
    Share,
    Text,
    TopP,
)

Rounds = Annotated[int, Meta(ge=0, le=100)]


CLIP = {"gspo": (3e-4, 4e-4), "rloo": (0.2, 0.2)}  # losses with their own default range


WIDEST_GSPO = 0.1


BOUNDS_OF_CORRECTION = {"tis": (0.0, 2.0), "mis": (0.5, 2.0), "icepop": (0.5, 5.0)}


class GrpoConfig(Training, kw_only=True):
    """Names and defaults follow TRL and the papers that `workers.grpo` cites
    (docs/training-methods.md).

    None is replaced by a default: the loss's clip range, the correction's bounds.
    """

    prompts_per_step: AtOnce = 4
    generations: Drawn = 8  # completions per prompt
    loss_type: Literal["dapo", "grpo", "dr_grpo", "gspo", "rloo"] = "dapo"
    # What a reward is compared with: the mean of its group, or of the others in it.
    baseline: Literal["mean", "leave_one_out"] = "mean"
    scale_rewards: Literal["group", "none"] = "group"
    # turn: of the return from each turn on (workers.lib.advantages); gae: PPO, of each token, from
    # the values of a critic (workers.ml.critic)
    advantages: Literal["episode", "turn", "gae"] = "episode"
    gamma: Share = 1.0  # discount per token
    gae_lambda: Share = 0.95
    critic_learning_rate: LearningRate | None = None  # None: the policy's
    clip_value: NotNegative = 0.2  # how far a value may move from the old one; 0: not clipped
    whiten_advantages: bool = True
    kl_target: NotNegative = 0.0  # nats per episode that beta is adapted to; 0: beta is fixed
    kl_horizon: Positive = 10_000.0  # episodes over which it is adapted
    clip_low: Share | None = None
    clip_high: Annotated[float, Meta(ge=0, le=100)] | None = None
    beta: Annotated[float, Meta(ge=0, le=100)] = 0.0
    kl_every: Count = (
        5  # steps between measurements of the KL if it is not part of the loss; 0: never
    )
    temperature: DrawingTemperature = 1.0
    top_p: TopP = 1.0
    max_new_tokens: AnswerTokens = 64
    overlong_buffer: Count = (
        0  # last tokens before max_new_tokens over which the reward decreases; 0: none
    )
    overlong_penalty: Annotated[float, Meta(ge=0, le=1_000_000)] = (
        1.0  # penalty of a completion with max_new_tokens
    )
    mask_truncated: bool = False  # whether truncated completions are left out of the loss
    dynamic_sampling: Rounds = (
        0  # rounds in which a step draws other tasks to replace groups without reward spread
    )
    curriculum: bool = False  # whether tasks with a medium success rate are drawn more often
    replay_share: Share = (
        0.0  # share of a step's prompts: tasks that failed in one of the last steps
    )
    updates_per_batch: Annotated[int, Meta(ge=1, le=100)] = 1  # passes over a step's episodes
    minibatches: AtOnce = 1  # parts of a pass, each with an update of its own
    correction: Literal["auto", "off", "tis", "mis", "icepop"] = (
        "auto"  # auto: tis if sampler and trainer differ
    )
    correction_level: Literal["token", "sequence"] = "token"
    correction_min: NotNegative | None = None
    correction_max: Positive | None = None
    micro_batch: Count = 0  # completions per forward and backward pass; 0: all
    sample_batch: Count = 0  # answers sampled together in process; 0: SIDE_BY_SIDE
    eval_every: Count = 0
    eval_samples: Drawn = 1
    # training tasks, and as many validation tasks, answered at each checkpoint for people to read
    sampled_outputs: Count = 8
    save_every: AtLeastOne = 5
    no_dropout: ClassVar[str] = AS_SAMPLED
    needs: ClassVar[dict[str, Needs]] = {
        "overlong_penalty": Needs("overlong_buffer", bool, "set overlong_buffer"),
        "kl_target": Needs("beta", bool, "set beta"),
        "kl_horizon": Needs("kl_target", bool, "set kl_target"),
        **dict.fromkeys(
            ("correction_level", "correction_min", "correction_max"),
            Needs("correction", lambda correction: correction != "off", "choose a correction"),
        ),
        **dict.fromkeys(
            ("gamma", "gae_lambda", "critic_learning_rate", "clip_value", "whiten_advantages"),
            Needs("advantages", lambda kind: kind == "gae", "choose gae (PPO)"),
        ),
        **dict.fromkeys(
            ("scale_rewards", "baseline", "dynamic_sampling"),
            Needs("advantages", lambda kind: kind != "gae", "a critic compares no groups"),
        ),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.processes > self.prompts_per_step:
            raise ValueError(
                f"processes: must be at most prompts_per_step, which is {self.prompts_per_step}"
            )
        low, high = CLIP.get(self.loss_type, (0.2, 0.28))
        self.clip_low = low if self.clip_low is None else self.clip_low
        self.clip_high = high if self.clip_high is None else self.clip_high
        for name in ("clip_low", "clip_high"):
            if self.loss_type == "gspo" and getattr(self, name) > WIDEST_GSPO:
                raise ValueError(
                    f"{name}: must be at most {WIDEST_GSPO} with gspo, which clips the ratio of a"
                    f" whole sequence; its own range is {low:g} / {high:g}, GRPO's clips nothing"
                )
        if self.overlong_buffer > self.max_new_tokens:
            raise ValueError(
                f"overlong_buffer: must be at most max_new_tokens, which is {self.max_new_tokens}"
            )
        for name in ("correction_min", "correction_max"):
            if getattr(self, name) is None:
                setattr(self, name, self.default_of(name))
        if self.correction_min > self.correction_max:
            raise ValueError(
                f"correction_min: must be at most correction_max, which is {self.correction_max:g}"
            )
        if self.advantages == "gae":
            if self.minibatches > self.prompts_per_step * self.generations:
                raise ValueError("minibatches: must be at most prompts_per_step × generations")
        elif self.generations < 2:
            raise ValueError(
                "generations: must be at least 2, since the answers to a prompt are compared; with"
                " advantages gae (PPO) it may be 1"
            )
        if self.kl_target and self.advantages != "gae":
            raise ValueError("kl_target: must be 0 without advantages gae (PPO)")
        if self.advantages != "episode" and self.loss_type in ("gspo", "rloo"):
            raise ValueError(
                f"advantages: must be episode with {self.loss_type}, whose ratio is of a whole"
                " episode"
            )
        if self.correction_level == "sequence" and self.correction != "off" and self.top_p < 1:
            raise ValueError(
                "correction_level: must be token with top_p below 1: the ratio of a whole answer is"
                " the product of the shares that top_p keeps of each token's probability, so it"
                " vanishes with the length, and almost nothing is learned; or set top_p to 1"
            )
        if self.correction == "icepop" and self.correction_level == "sequence":
            raise ValueError(
                "correction_level: must be token with icepop, which masks tokens; mis masks"
                " sequences"
            )

    def default_of(self, name: str) -> Any:
        if name not in ("correction_min", "correction_max"):
            return super().default_of(name)
        bounds = BOUNDS_OF_CORRECTION.get(self.correction, BOUNDS_OF_CORRECTION["tis"])
        return bounds[name == "correction_max"]


class Grpo(Job, kw_only=True, tag="grpo"):
    """Without `rollouts` it samples in its own process. With a `harness`, an agent that is not ours
    plays the episodes.
    """

    out_dir: Text
    model: Model
    engine: InProcess
    environment: Environment
    tasks: Tasks
    validation_tasks: list[dict] = []
    success_rates: dict[
        str, Share
    ] = {}  # of tasks, from an earlier evaluation: the start of a curriculum
    config: GrpoConfig
    rollouts: Rollouts | None = None
    harness: AgentHarness | None = None
