"""The specs of the programs that run as child processes. The apps write them, the programs read
them (docs/jobs.md).

Tasks and verifiers stay JSON here: environments and `verifiers.build` check them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from msgspec import Meta, Struct, field, structs

from workers.lib.alarms import AlarmSettings
from workers.lib.engine_specs import (  # noqa: F401 - all forms of specs can be imported from here
    AgentEndpoint,
    Engine,
    Form,
    InProcess,
    Model,
    ModelServer,
    Server,
)
from workers.lib.typed import (
    AnswerTokens,
    AtLeastOne,
    Count,
    NotNegative,
    Number,
    Positive,
    Share,
    Temperature,
    Text,
    TopP,
    convert,
)


class Task(Struct):
    """The fields of a task that every environment needs. A task may have more."""

    id: str
    messages: list[dict]
    expected: dict


class Harness(Struct, kw_only=True):
    """What the agent brings (prompt, examples, sampling) and its limits. `max_turns` None: the
    environment's default.

    `tools` are those that run; for tools of the same name, the agent is shown the definitions in
    `shown_tools` instead.
    """

    system_prompt: str | None = None
    examples: list[dict] = []
    tools: list[dict] | None = None
    show_tools: bool = True
    shown_tools: list[dict] = []
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    max_new_tokens: AnswerTokens = 64
    max_turns: AtLeastOne | None = None
    max_seconds: NotNegative = 300.0
    max_tokens: Count = 0


REMOTE = ("remote", "mcp", "openenv")  # kinds of environments whose tools another server runs


class Environment(Struct, kw_only=True):
    """The common part of all kinds of environments; each validates its own `config`."""

    kind: Text
    name: str = ""
    config: dict = {}
    harness: Harness
    verifier: dict
    clients: dict = {}
    allow_private: bool = False


Tasks = Annotated[list[dict], Meta(min_length=1)]

# Also the limits of the form for a new run, since an estimate and a step hold lists of this length.
Steps = Annotated[int, Meta(ge=1, le=100_000)]
AtOnce = Annotated[int, Meta(ge=1, le=1024)]  # rows or prompts per step
Drawn = Annotated[int, Meta(ge=1, le=128)]  # answers per task
Compared = Annotated[int, Meta(ge=2, le=128)]  # answers per group
Rounds = Annotated[int, Meta(ge=0, le=100)]
LearningRate = Annotated[float, Meta(gt=0, le=1)]
# Positive, since greedy answers to one prompt are all the same, and below 0.01 logits divided by it
# are infinite.
DrawingTemperature = Annotated[float, Meta(ge=0.01, le=10)]


class Job(Form, kw_only=True):
    """The fields that the runner adds to every spec, and those that all specs share."""

    kind: str = ""
    job_id: str = ""
    attempt: Count = 0
    seed: Count = 0
    out_dir: str = ""
    resume_from: str | None = None


class Evaluate(Job, kw_only=True):
    """`tasks` is the list, or the name of a file with one task per line
    (workers.lib.task_files).
    """

    model: Model
    engine: Engine
    environment: Environment
    tasks: Tasks | Text
    samples_per_task: AtLeastOne


class Side(Form, kw_only=True):
    """One version in a playground; its prompt is part of the environment."""

    model: Model
    engine: Engine
    environment: Environment


class Playground(Job, kw_only=True):
    """A task's `unscored` says why its answers have no score."""

    sides: Annotated[list[Side], Meta(min_length=1, max_length=4)]
    tasks: Tasks
    samples_per_task: AtLeastOne = 1


class Timed(Form, kw_only=True):
    """One version whose latency is measured; events refer to it by `id`."""

    id: Text
    model: Model
    engine: Engine
    environment: Environment


class MeasureLatency(Job, kw_only=True):
    """`adapters` are merged into their base, or hot: applied next to it; the same for all
    versions.
    """

    versions: Annotated[list[Timed], Meta(min_length=2)]
    tasks: Tasks
    rounds: AtLeastOne = 4
    warm_up: Count = 2  # answers per version that do not count
    # half the width of each ratio's interval, relative to the ratio, at which measuring ends
    precision: Positive = 0.1
    adapters: Literal["merged", "hot"] = "merged"


class Lora(Form, kw_only=True):
    """`lora_alpha` defaults to twice the rank. `target_modules`: names of layers, or every linear
    layer. `use_rslora` scales by alpha ÷ √rank (2312.03732), `use_dora` learns direction and
    magnitude separately (2402.09353). `load_in_4bit`: QLoRA, with the frozen base in 4 bits
    (2305.14314); only for methods that do not sample from the model.
    """

    lora_rank: Annotated[int, Meta(ge=1, le=512)] = 16
    lora_alpha: AtLeastOne | None = None
    lora_dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    target_modules: (
        Literal["all-linear"] | Annotated[list[Text], Meta(min_length=1, max_length=40)]
    ) = "all-linear"
    use_rslora: bool = False
    use_dora: bool = False
    load_in_4bit: bool = False


class Needs(NamedTuple):
    """When a setting is read: only with some values of another one."""

    other: str
    reads: Callable[[Any], bool]
    why: str


class Training(Lora, kw_only=True):
    """Learning rate: linear warm-up over `warmup_steps`, then linear decay to `final_lr_share` of
    it.

    A setting that the method, or the run's other settings, would not read is refused: those in
    `needs`, and what `not_in_4bit` and `no_dropout` say.
    """

    not_in_4bit: ClassVar[str] = ""  # why a method cannot train on a quantized base
    no_dropout: ClassVar[str] = ""  # why a method trains without dropout
    needs: ClassVar[dict[str, Needs]] = {}
    steps: Steps
    learning_rate: LearningRate
    warmup_steps: Count = 0
    final_lr_share: Share = 0.1
    max_grad_norm: Positive = 1.0
    save_every: AtLeastOne = 10  # steps between checkpoints
    gradient_checkpointing: bool = (
        False  # activations are recomputed in the backward pass: less memory, slower
    )
    # Processes that share each step, one per GPU; the result is the same.
    processes: Annotated[int, Meta(ge=1, le=64)] = 1
    retry_smaller: bool = (
        True  # retry once if memory runs out, with smaller batches at a time but the same update
    )
    alarms: AlarmSettings = field(
        default_factory=AlarmSettings
    )  # changes to the defaults in docs/alarms.md
    # Outputs sampled at each checkpoint for the project's LLM judge.
    judge_outputs: Annotated[int, Meta(ge=0, le=1000)] = 0

    def __post_init__(self) -> None:
        if self.warmup_steps > self.steps:
            raise ValueError(f"warmup_steps: must be at most steps, which is {self.steps}")
        if self.load_in_4bit and self.not_in_4bit:
            raise ValueError(
                f"load_in_4bit: must be false, since {self.not_in_4bit}; SFT, DPO and KTO can train"
                " in 4 bits"
            )
        if self.lora_dropout and self.no_dropout:
            raise ValueError(f"lora_dropout: must be 0, since {self.no_dropout}")
        for name, (other, reads, why) in self.needs.items():
            value, default = getattr(self, name), self.default_of(name)
            if value not in (None, default) and not reads(getattr(self, other)):
                raise ValueError(
                    f"{name}: must be {default} with {other} {getattr(self, other)}, which does not"
                    f" use it; {why}"
                )

    def default_of(self, name: str) -> Any:
        return next(each.default for each in structs.fields(self) if each.name == name)


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


class SftConfig(RowsConfig, kw_only=True):
    micro_batch: Count = 0  # rows per forward and backward pass; 0: all


class PreferenceConfig(EvenConfig, kw_only=True):
    """Settings of methods that learn from preferences, relative to the initial model."""

    no_dropout: ClassVar[str] = "the model and its start are compared without dropout"
    beta: Annotated[float, Meta(gt=0, le=100)] = (
        0.1  # how strongly the model is kept close to the initial one
    )


class RewardModelConfig(EvenConfig, kw_only=True):
    """`center_rewards` is the coefficient of (r₁ + r₂)², which keeps the rewards around 0
    (2312.09244). `show_tools`: whether the model also reads the tools' definitions.
    """

    validation_share: Annotated[float, Meta(gt=0, le=0.5)] = 0.2
    center_rewards: Annotated[float, Meta(ge=0, le=10)] = 0.0
    show_tools: bool = False
    not_in_4bit: ClassVar[str] = "a reward model is judged by its scores, which 4 bits would change"
    no_dropout: ClassVar[str] = "a reward model is trained without dropout"


class DpoConfig(PreferenceConfig, kw_only=True):
    """`loss_type` as named by TRL: sigmoid is DPO's own, ipo does not diverge on easy pairs, robust
    assumes that a share `label_smoothing` of the pairs is the wrong way round, hinge is SLiC's,
    apo_zero also raises the probability of chosen answers.
    """

    needs: ClassVar[dict[str, Needs]] = {
        "label_smoothing": Needs(
            "loss_type",
            lambda loss: loss == "robust",
            "robust assumes that a share of the pairs is the wrong way round",
        )
    }
    loss_type: Literal["sigmoid", "ipo", "hinge", "robust", "apo_zero"] = "sigmoid"
    label_smoothing: Annotated[float, Meta(ge=0, lt=0.5)] = 0.0
    micro_batch: Count = (
        0  # pairs per forward and backward pass, a divisor of a process's pairs; 0: all
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        own = self.batch_size // self.processes
        if self.micro_batch and own % self.micro_batch:
            which = (
                f"batch_size, which is {own}"
                if self.processes == 1
                else f"batch_size ÷ processes, which is {own}"
            )
            raise ValueError(f"micro_batch: must divide {which}")


class KtoConfig(PreferenceConfig, kw_only=True):
    """Weights of the losses of good and of bad answers; by default, both sides have the same total
    weight.
    """

    batch_size: Annotated[
        int, Meta(ge=2, le=1024)
    ]  # the KL is estimated from mismatched answers of a batch
    desirable_weight: Positive | None = None
    undesirable_weight: Positive | None = None


IT_SAMPLES = "it samples from the model that it trains"
AS_SAMPLED = "the model learns as it samples, without dropout"


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
    not_in_4bit: ClassVar[str] = IT_SAMPLES
    no_dropout: ClassVar[str] = AS_SAMPLED


SIDE_BY_SIDE = 64
CLIP = {"gspo": (3e-4, 4e-4), "rloo": (0.2, 0.2)}  # losses with their own default range
WIDEST_GSPO = 0.1
BOUNDS_OF_CORRECTION = {"tis": (0.0, 2.0), "mis": (0.5, 2.0), "icepop": (0.5, 5.0)}


class GrpoConfig(Training, kw_only=True):
    """Names and defaults follow TRL and the papers that `workers.grpo` cites
    (docs/training-methods.md).

    None is replaced by a default: the loss's clip range, the correction's bounds.
    """

    prompts_per_step: AtOnce = 4
    generations: Compared = 8  # completions per prompt
    loss_type: Literal["dapo", "grpo", "dr_grpo", "gspo", "rloo"] = "dapo"
    # What a reward is compared with: the mean of its group, or of the others in it.
    baseline: Literal["mean", "leave_one_out"] = "mean"
    scale_rewards: Literal["group", "none"] = "group"
    advantages: Literal["episode", "turn"] = (
        "episode"  # turn: advantages of the return from each turn on (workers.lib.advantages)
    )
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
    updates_per_batch: Annotated[int, Meta(ge=1, le=100)] = 1
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
    not_in_4bit: ClassVar[str] = IT_SAMPLES
    no_dropout: ClassVar[str] = AS_SAMPLED
    needs: ClassVar[dict[str, Needs]] = {
        "overlong_penalty": Needs("overlong_buffer", bool, "set overlong_buffer"),
    } | dict.fromkeys(
        ("correction_level", "correction_min", "correction_max"),
        Needs("correction", lambda correction: correction != "off", "choose a correction"),
    )

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
        if self.advantages == "turn" and self.loss_type in ("gspo", "rloo"):
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


class SftRow(Form, kw_only=True):
    """The conversation and tools as an agent sees them, and the answer it should give; or, as
    `turns`, all messages that follow in an episode, of which the agent's answers are learned.
    """

    messages: list[dict]
    completion: str = ""
    tools: list[dict] = []
    turns: list[dict] = []

    def __post_init__(self) -> None:
        if bool(self.completion) == any(turn.get("role") == "assistant" for turn in self.turns):
            raise ValueError("needs either a completion or turns with an answer")


class Pair(Form, kw_only=True):
    """Two answers to one conversation, of which `chosen` is better."""

    messages: list[dict]
    chosen: Text
    rejected: Text
    tools: list[dict] = []


class Labelled(Form, kw_only=True):
    """An answer to a conversation, and whether it is good."""

    messages: list[dict]
    completion: Text
    good: bool
    tools: list[dict] = []


class FromRows(Job, kw_only=True):
    """A run that TRL trains, on `rows` from the database."""

    out_dir: Text
    model: Model
    engine: InProcess = field(default_factory=InProcess)
    environment: Environment | None = None
    validation_tasks: list[dict] = []


class Kto(FromRows, kw_only=True):
    rows: Annotated[list[Labelled], Meta(min_length=2)]
    validation_rows: list[Labelled] = []
    config: KtoConfig


class Dpo(FromRows, kw_only=True):
    rows: Annotated[list[Pair], Meta(min_length=1)]
    validation_rows: list[Pair] = []
    config: DpoConfig


class RewardModel(FromRows, kw_only=True):
    rows: Annotated[list[Pair], Meta(min_length=1)]
    validation_rows: Annotated[list[Pair], Meta(min_length=1)]
    config: RewardModelConfig


class Sft(FromRows, kw_only=True):
    rows: Annotated[list[SftRow], Meta(min_length=1)]
    validation_rows: list[SftRow] = []
    config: SftConfig


class ServerAddress(Form, kw_only=True):
    """A server's address, without a model. `api_key_env` as in ModelServer."""

    base_url: Text
    api_key_env: str | None = None
    allow_private: bool = False


class RolloutServer(ServerAddress, kw_only=True):
    """A vLLM server that loads adapters at run time. `model`: its name for the base. `folder`:
    `Rollouts.folder` as seen from the server, "" if the path is the same; `lora_slots`: its
    --max-loras, 0 if unknown.
    """

    model: Text
    folder: str = ""
    lora_slots: Count = 0
    timeout_s: Positive = 300.0  # per answer
    concurrency: AtLeastOne = 64


class Rollouts(Form, kw_only=True):
    """Servers that GRPO samples on. `folder`: where each step's adapter is written for them.
    `steps_ahead` 1: the next batch is sampled during the update, with the weights from before it.
    """

    servers: Annotated[list[RolloutServer], Meta(min_length=1, max_length=16)]
    folder: Text
    steps_ahead: Annotated[int, Meta(ge=0, le=1)] = 0


class Grpo(Job, kw_only=True):
    """Without `rollouts` it samples in its own process."""

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


class MeasureTraining(Job, kw_only=True):
    """Measures how fast a model samples and trains: on some of a run's tasks, with its adapter's
    shape, where it would sample.
    """

    model: Model
    engine: InProcess
    environment: Environment
    tasks: Tasks
    lora: Lora
    max_new_tokens: AnswerTokens = 64
    rollouts: Rollouts | None = None
    seconds: Positive = 25.0  # without loading; each kind of work gets a share


class OnPolicy(Job, kw_only=True):
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


class BestOfN(FromRows, kw_only=True):
    """Samples before it learns: with the model being trained, with `teacher`, or on
    `teacher_server`. `validation_rows` as in Sft.
    """

    teacher: Model | None = None
    teacher_server: Server | None = None
    environment: Environment
    tasks: Tasks
    validation_rows: list[SftRow] = []
    config: BestOfNConfig


class StoredSample(Form, kw_only=True):
    """A stored answer; its output is used if its turns were not stored."""

    id: str
    task: dict
    messages: list[dict]
    output: str = ""
    stop_reason: str = ""


class Rescore(Job, kw_only=True):
    environment: Environment
    samples: Annotated[list[StoredSample], Meta(min_length=1)]


class SentAnswer(Form, kw_only=True):
    """What an external agent said about `tasks[task]`: its turns, and its error at the end, if any.
    Usage is as the agent measured it.
    """

    task: Count
    index: Count
    turns: list[dict]
    error: str = ""
    latency_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class ScoreAnswers(Job, kw_only=True):
    environment: dict
    tasks: Tasks
    answers: Annotated[list[SentAnswer], Meta(min_length=1)]


# Forms that any JSON parser treats as the same. Others are only tested if the verifier promises to
# tolerate them.
ALWAYS_PROMISED = frozenset({"key_order", "json_space", "number", "parallel_order"})
MANY_MEDIUM = 5


class ProbeOptions(Form, kw_only=True, frozen=True):
    """How hard to attack, and what the verifier promises (docs/probes.md)."""

    # a wrong answer must stay below the right one by this share of max(1, |right one's reward|)
    margin: NotNegative = 0.02
    # A medium finding: rewarded by this share of the range more than the output's merit explains.
    slack: NotNegative = 0.1
    steep: NotNegative = 0.5  # the same for a high finding
    stochastic: bool = (
        False  # whether the same output may get another reward each time, as from a judge
    )
    repeats: AtLeastOne = 8  # new scores that must confirm a finding if rewards vary
    rubrics: tuple[str, ...] = ()  # the verifier's texts that a policy may have seen
    many_medium: AtLeastOne = MANY_MEDIUM  # this many medium findings lock like a high one
    tolerance: NotNegative = 1e-6  # how much less a right answer in another form may get
    noise: NotNegative = 1e-9  # how much two scores of the same input may differ
    promises: frozenset[str] = (
        ALWAYS_PROMISED  # names of `perturbations.PROBES` that must not lose reward
    )
    dangerous: frozenset[str] = (
        frozenset()
    )  # harmful tools, in addition to those marked x-dangerous
    success_at: Number | None = (
        None  # a reward that counts as success, for verifiers that do not report success
    )
    multi_turn: bool = False  # whether an agent may have several turns
    max_tasks: AtLeastOne = 40
    max_scores: AtLeastOne = (
        20_000  # for the first pass; a judge that costs money needs a lower limit
    )
    search_scores: Count = 1200  # scores that the search may use; 0: no search
    search_cpu_s: NotNegative = 60.0  # CPU seconds of this process that the search may use
    seed: Count = 0  # of the search


class Probe(Job, kw_only=True):
    environment: Environment
    tasks: Tasks
    samples: list[dict] = []
    options: ProbeOptions = field(default_factory=ProbeOptions)
    server: ModelServer | None = None  # of a model that is instructed to cheat, for the search
    cheat_tokens: Count = 20_000  # that it may use


class HeldText(Form, kw_only=True):
    """The request of a held-out task."""

    id: Text
    text: Text


class TrainedTexts(Form, kw_only=True):
    """The texts of a task that could train: its requests, its demonstration."""

    id: Text
    texts: Annotated[list[Text], Meta(min_length=1)]


class CompareMeaning(Job, kw_only=True):
    """`known` names pairs [held, other] that are left out because a person has decided on them."""

    model: Model
    engine: Engine
    held: Annotated[list[HeldText], Meta(min_length=1)]
    others: Annotated[list[TrainedTexts], Meta(min_length=1)]
    known: list[tuple[str, str]] = []
    most: AtLeastOne = 50


class Seed(Form, kw_only=True):
    """A task to vary: its conversation, the correct calls, and the tools."""

    key: str
    messages: list[dict]
    calls: list[dict]
    tools: list[dict]


class WriteVariants(Job, kw_only=True):
    server: ModelServer
    seeds: Annotated[list[Seed], Meta(min_length=1)]
    kinds: Annotated[list[Literal["paraphrase", "arguments", "edge"]], Meta(min_length=1)]
    each: AtLeastOne
    most_tokens: AtLeastOne


class ReflectingServer(ModelServer, kw_only=True):
    """The server whose model writes prompts; `price` as in Server."""

    price: tuple[NotNegative, NotNegative] = (0.0, 0.0)


class SearchConfig(Form, kw_only=True):
    """`most_calls` limits samples of the agent; the limits on tokens and money are for requests to
    servers, both by the agent and for proposals (0: none). `score`: how a candidate is scored, by
    the share of samples that succeed or by their mean reward.
    """

    samples_per_task: AtLeastOne = 1
    minibatch: AtLeastOne = 3  # training tasks that a proposal is based on, and first tried on
    most_proposals: AtLeastOne = 20
    most_calls: AtLeastOne
    most_tokens: Count = 0
    most_usd: NotNegative = 0.0
    score: Literal["success", "reward"] = "success"
    reflection_tokens: AtLeastOne = 4096  # per answer of the reflecting model
    most_characters: AtLeastOne = 20_000  # of a proposal; longer ones are not tried


class UsedBefore(Form, kw_only=True):
    """The usage of earlier attempts of this job."""

    calls: Count = 0
    input_tokens: Count = 0
    output_tokens: Count = 0
    usd: NotNegative = 0.0


class SearchPrompts(Job, kw_only=True):
    """`prompt`: the system prompt that the search starts with. `evidence`: {task: what is known
    about the failure that it was made from}. `python`: the interpreter with GEPA installed.
    """

    out_dir: Text
    model: Model
    engine: Engine
    environment: Environment
    server: ReflectingServer
    prompt: str
    tasks: Tasks
    validation_tasks: Tasks
    evidence: dict[str, str] = {}
    config: SearchConfig
    used: UsedBefore = field(default_factory=UsedBefore)
    python: Text


class CheckServer(Job, kw_only=True):
    """`model`: the only one to ask; by default the first one that answers, of the `registered` ones
    and then of those that the server lists. `dialect`: the API used to ask it.
    """

    server: ServerAddress
    server_kind: Literal["vllm", "sglang", "openai", "transformers"]
    model: str = ""
    registered: list[str] = []
    dialect: Literal["native", "text", "responses"] = "native"


class Fingerprint(Job, kw_only=True):
    """The log-probabilities that a model gives `text` and, if it is an adapter, those of its
    base.
    """

    model: Model
    text: Text
    dtype: str = "float32"


class MergeAdapter(Job, kw_only=True):
    """The model has an adapter; `text` is used to check the merged model."""

    model: Model
    text: Text


class RayJob(Job, kw_only=True):
    """A run's folder as a job on a Ray cluster. `package` and `secrets` are files: the zipped
    folder, and {submission, env}, which only the process's owner can read. `alarms` and `method` as
    in the run's settings.
    """

    server: ServerAddress
    package: Text
    secrets: Text
    name: str
    method: str
    total: Count
    gpus: Annotated[float, Meta(ge=0)] = 0.0
    alarms: AlarmSettings = field(default_factory=AlarmSettings)


class ServedModel(Form, kw_only=True):
    """A model folder and how it is served (`workers.lib.vllm`). `context` 0: the model's own;
    `lora_slots` 0: no adapters.
    """

    base: Text
    name: Text
    dtype: str = "auto"
    context: Count = 0
    lora_slots: Count = 0
    max_lora_rank: AtLeastOne = 16
    options: dict[str, Any] = {}


class Serve(Job, kw_only=True):
    """`command`: the vllm executable; "" for this installation's own transformers engine. `ports`:
    [first, last], of which the first free one is used; empty: any.
    """

    command: str
    model: ServedModel
    host: Text = "127.0.0.1"
    ports: list[Count] = []
    environment: dict[str, str] = {}
    start_s: Positive = 1800.0  # time limit for the first answer
    silent_s: Positive = (
        180.0  # time without an answer to /models, after which a server that was up counts as hung
    )


class Api(Form, kw_only=True):
    url: Text
    key: Text


class AgentName(Form, kw_only=True):
    name: str
    version: str = ""


class Request(Form, kw_only=True):
    """A request of the demo's user, what they want, and the group of its variants."""

    request: str
    expected: dict
    group: str
    template: str = ""


class DemoAgent(Job, kw_only=True):
    """With `endpoint`, the agent calls it (`model_name` is the channel), and the endpoint logs each
    answer itself.
    """

    model: Model
    engine: Engine
    environment: Environment
    requests: Annotated[list[Request], Meta(min_length=1)]
    api: Api
    endpoint: Api | None = None
    agent: AgentName
    model_name: str
    id_prefix: str


SPECS: dict[str, type[Job]] = {
    "evaluate": Evaluate,
    "measure_latency": MeasureLatency,
    "measure_training": MeasureTraining,
    "playground": Playground,
    "sft": Sft,
    "grpo": Grpo,
    "dpo": Dpo,
    "kto": Kto,
    "reward_model": RewardModel,
    "best_of_n": BestOfN,
    "on_policy": OnPolicy,
    "rescore": Rescore,
    "score_answers": ScoreAnswers,
    "probe": Probe,
    "write_variants": WriteVariants,
    "search_prompts": SearchPrompts,
    "check_server": CheckServer,
    "fingerprint": Fingerprint,
    "merge_adapter": MergeAdapter,
    "ray_job": RayJob,
    "serve": Serve,
    "compare_meaning": CompareMeaning,
    "demo_agent": DemoAgent,
}
CONFIGS: dict[str, type[Training]] = {
    "sft": SftConfig,
    "rejection": SftConfig,
    "distill": SftConfig,
    "dpo": DpoConfig,
    "kto": KtoConfig,
    "reward_model": RewardModelConfig,
    "best_of_n": BestOfNConfig,
    "on_policy": OnPolicyConfig,
    "grpo": GrpoConfig,
}


def checked(spec: Any, kind: str) -> Any:
    """The typed spec of a program. Raises SpecError for the first missing, unknown or invalid
    field.
    """
    found = convert(spec, SPECS[kind])
    for name in ("tasks", "validation_tasks"):
        given = getattr(found, name, [])
        if not isinstance(
            given, str
        ):  # otherwise the name of a file, which is checked when it is read
            check_tasks(given, name)
    return found


def check_tasks(tasks: Iterable[Any], name: str = "tasks") -> None:
    """Raises SpecError."""
    for at, task in enumerate(tasks):
        convert(task, Task, f"{name}[{at}]")
