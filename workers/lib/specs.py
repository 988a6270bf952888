"""The specs of the programs that run as child processes. The apps write them, the programs read them (docs/jobs.md).

Tasks and verifiers stay JSON here: environments and `verifiers.build` check them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct, field

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
from workers.lib.typed import AtLeastOne, Count, NotNegative, Number, Positive, Share, Text, convert


class Task(Struct):
    """One task, as far as every environment needs it. It may have more."""

    id: str
    messages: list[dict]
    expected: dict


class Harness(Struct, kw_only=True):
    """What the agent brings (prompt, examples, sampling) and what bounds it. `max_turns` None: as the environment has it.

    `tools` are those that run; of them, the agent is shown the definitions in `shown_tools` that have the same names.
    """

    system_prompt: str | None = None
    examples: list[dict] = []
    tools: list[dict] | None = None
    show_tools: bool = True
    shown_tools: list[dict] = []
    temperature: NotNegative = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    max_new_tokens: AtLeastOne = 64
    max_turns: AtLeastOne | None = None
    max_seconds: NotNegative = 300.0
    max_tokens: Count = 0


REMOTE = ("remote", "mcp", "openenv")  # kinds of environments whose tools another server runs


class Environment(Struct, kw_only=True):
    """What every kind of environment has; each checks its own `config`."""

    kind: Text
    name: str = ""
    config: dict = {}
    harness: Harness
    verifier: dict
    clients: dict = {}
    allow_private: bool = False


Tasks = Annotated[list[dict], Meta(min_length=1)]

# What the form of a new run allows, too: an estimate, and a step, hold lists of that many.
Steps = Annotated[int, Meta(ge=1, le=100_000)]
AtOnce = Annotated[int, Meta(ge=1, le=1024)]  # rows or prompts of a step
Drawn = Annotated[int, Meta(ge=1, le=128)]  # answers to one task
Compared = Annotated[int, Meta(ge=2, le=128)]  # answers of a group
AnswerTokens = Annotated[int, Meta(ge=1, le=2**20)]
Rounds = Annotated[int, Meta(ge=0, le=100)]
LearningRate = Annotated[float, Meta(gt=0, le=1)]


class Job(Form, kw_only=True):
    """What the runner adds to every spec, and what all of them share."""

    kind: str = ""
    job_id: str = ""
    attempt: Count = 0
    seed: Count = 0
    out_dir: str = ""
    resume_from: str | None = None


class Evaluate(Job, kw_only=True):
    """`tasks`, or the file that has one a line (workers.lib.task_files)."""

    model: Model
    engine: Engine
    environment: Environment
    tasks: Tasks | Text
    samples_per_task: AtLeastOne


class Side(Form, kw_only=True):
    """One version of a playground; the environment has its prompt."""

    model: Model
    engine: Engine
    environment: Environment


class Playground(Job, kw_only=True):
    """A task's `unscored` says why its answers have no score."""

    sides: Annotated[list[Side], Meta(min_length=1, max_length=4)]
    tasks: Tasks
    samples_per_task: AtLeastOne = 1


class Timed(Form, kw_only=True):
    """One version whose latency is measured; `id` names it in the events."""

    id: Text
    model: Model
    engine: Engine
    environment: Environment


class MeasureLatency(Job, kw_only=True):
    """`adapters` are merged into their base, or hot: applied beside it, for all versions alike."""

    versions: Annotated[list[Timed], Meta(min_length=2)]
    tasks: Tasks
    rounds: AtLeastOne = 4
    warm_up: Count = 2  # answers of each version that do not count
    precision: Positive = 0.1  # half the width of each ratio's interval that is good enough, as a share of it
    adapters: Literal["merged", "hot"] = "merged"


class Lora(Form, kw_only=True):
    """`lora_alpha` is twice the rank where it is not given. `target_modules`: names of layers, or every linear layer.
    `use_rslora` scales by alpha ÷ √rank (2312.03732), `use_dora` learns direction and length apart (2402.09353). `load_in_4bit`: QLoRA,
    with the frozen base in 4 bits (2305.14314); only where nothing samples from it."""

    lora_rank: Annotated[int, Meta(ge=1, le=512)] = 16
    lora_alpha: AtLeastOne | None = None
    lora_dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    target_modules: Literal["all-linear"] | Annotated[list[Text], Meta(min_length=1, max_length=40)] = "all-linear"
    use_rslora: bool = False
    use_dora: bool = False
    load_in_4bit: bool = False


class Training(Lora, kw_only=True):
    """Learning rate: linear warm-up over `warmup_steps`, then linear decay to `final_lr_share` of it."""

    not_in_4bit: ClassVar[str] = ""  # why a method cannot train on a quantized base
    steps: Steps
    learning_rate: LearningRate
    warmup_steps: Count = 0
    final_lr_share: Share = 0.1
    max_grad_norm: Positive = 1.0
    save_every: AtLeastOne = 10  # steps from one checkpoint to the next
    gradient_checkpointing: bool = False  # activations are computed again in the backward pass: less memory, slower
    processes: Annotated[int, Meta(ge=1, le=64)] = 1  # that share each step, one for each GPU; the step is the same
    retry_smaller: bool = True  # once, where the memory runs out: with less of it at a time, for the same update
    alarms: AlarmSettings = field(default_factory=AlarmSettings)  # what differs from docs/alarms.md
    judge_outputs: Annotated[int, Meta(ge=0, le=1000)] = 0  # sampled at each checkpoint for the project's LLM judge

    def __post_init__(self) -> None:
        if self.warmup_steps > self.steps:
            raise ValueError(f"warmup_steps: must be at most steps, which is {self.steps}")
        if self.load_in_4bit and self.not_in_4bit:
            raise ValueError(
                f"load_in_4bit: must be false, since {self.not_in_4bit}; SFT, DPO and KTO can train in 4 bits"
            )


class RowsConfig(Training, kw_only=True):
    """What learns from rows. Every `eval_every` steps (0: never) the loss on what was held back and, with `eval_samples` of each,
    the success on validation tasks are measured; `validation_share` of the examples are held back, whole groups of them."""

    batch_size: AtOnce
    max_length: AnswerTokens = 2048  # tokens of a row, of a pair those of the longer answer with its prompt
    eval_every: Count = 0
    eval_samples: Drawn = 1
    validation_share: Annotated[float, Meta(ge=0, le=0.5)] = 0.0
    shard: bool = False  # whether the processes divide the layers of the base among them (FSDP)
    not_sharded: ClassVar[str] = ""  # why a method cannot train on a base in parts

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
                f"shard: needs several processes, a number that divides batch_size, which is {self.batch_size}"
            )


class EvenConfig(RowsConfig, kw_only=True):
    """What averages over rows: the mean of all is that of the processes' means if each has as many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size % self.processes:
            raise ValueError(f"processes: must divide batch_size, which is {self.batch_size}")


class SftConfig(RowsConfig, kw_only=True):
    micro_batch: Count = 0  # rows whose gradients are computed together; 0: all
    log_every: AtLeastOne = 1


class PreferenceConfig(EvenConfig, kw_only=True):
    """What learns from preferences, relative to the model that it starts from."""

    beta: Positive = 0.1  # how strongly it is held to the model at the start


class RewardModelConfig(EvenConfig, kw_only=True):
    """`center_rewards` is the coefficient of (r₁ + r₂)², which keeps the rewards around 0 (2312.09244). `show_tools`: whether it reads
    the definitions of the tools, too."""

    validation_share: Annotated[float, Meta(gt=0, le=0.5)] = 0.2
    center_rewards: NotNegative = 0.0
    show_tools: bool = False
    not_in_4bit: ClassVar[str] = "a reward model is judged by its scores, which 4 bits would change"


class DpoConfig(PreferenceConfig, kw_only=True):
    """`loss_type` as TRL names it: sigmoid is DPO's own, ipo does not run away on pairs that are easy, robust expects the share
    `label_smoothing` of the pairs to be the wrong way round, hinge is SLiC's, apo_zero also raises the chosen answers."""

    loss_type: Literal["sigmoid", "ipo", "hinge", "robust", "apo_zero"] = "sigmoid"
    label_smoothing: Annotated[float, Meta(ge=0, lt=0.5)] = 0.0
    micro_batch: Count = 0  # pairs whose gradients are computed together, a divisor of a process's pairs; 0: all

    def __post_init__(self) -> None:
        super().__post_init__()
        own = self.batch_size // self.processes
        if self.micro_batch and own % self.micro_batch:
            which = f"batch_size, which is {own}" if self.processes == 1 else f"batch_size ÷ processes, which is {own}"
            raise ValueError(f"micro_batch: must divide {which}")


class KtoConfig(PreferenceConfig, kw_only=True):
    """Weights of the good and of the bad answers' losses; without them those that make both sides weigh the same."""

    batch_size: Annotated[int, Meta(ge=2, le=1024)]  # the KL is estimated from mismatched answers of a batch
    desirable_weight: Positive | None = None
    undesirable_weight: Positive | None = None


IT_SAMPLES = "it samples from the model that it trains"


class BestOfNConfig(SftConfig, kw_only=True):
    """`samples` of each task by the model at the start, or by a teacher; of those that pass the best one is learned from, or all
    different ones."""

    samples: Drawn = 8
    keep: Literal["best", "all"] = "best"
    temperature: Positive = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    max_new_tokens: AnswerTokens = 64
    teacher_tokens: Count = 0  # that a teacher on a server may use in the whole run; 0: no limit
    teacher_usd: NotNegative = 0.0
    not_in_4bit: ClassVar[str] = IT_SAMPLES
    not_sharded: ClassVar[str] = IT_SAMPLES


class OnPolicyConfig(Training, kw_only=True):
    """The student's samples are drawn at temperature 1, and each is learned from once."""

    prompts_per_step: AtOnce = 4
    generations: Drawn = 4  # completions per prompt
    max_new_tokens: AnswerTokens = 64
    micro_batch: Count = 0  # completions whose gradients are computed together; 0: all
    gradient_checkpointing: bool = False
    eval_every: Count = 0
    eval_samples: Drawn = 1
    save_every: AtLeastOne = 5
    teacher_tokens: Count = 0  # that a teacher on a server may use in the whole run; 0: no limit
    teacher_usd: NotNegative = 0.0
    not_in_4bit: ClassVar[str] = IT_SAMPLES


SIDE_BY_SIDE = 64
CLIP = {"gspo": (3e-4, 4e-4), "rloo": (0.2, 0.2)}  # where a loss has a range of its own
WIDEST_GSPO = 0.1
BOUNDS_OF_CORRECTION = {"tis": (0.0, 2.0), "mis": (0.5, 2.0), "icepop": (0.5, 5.0)}


class GrpoConfig(Training, kw_only=True):
    """Names and defaults after TRL and the papers that `workers.grpo` cites (docs/training-methods.md).

    What is None is filled in: the clip range of the loss, the bounds of the correction.
    """

    prompts_per_step: AtOnce = 4
    generations: Compared = 8  # completions per prompt
    loss_type: Literal["dapo", "grpo", "dr_grpo", "gspo", "rloo"] = "dapo"
    baseline: Literal["mean", "leave_one_out"] = "mean"  # what a reward is compared with: its group, or the rest of it
    scale_rewards: Literal["group", "none"] = "group"
    advantages: Literal["episode", "turn"] = (
        "episode"  # turn: of what was earned from each turn on (workers.lib.advantages)
    )
    clip_low: Share | None = None
    clip_high: NotNegative | None = None
    beta: NotNegative = 0.0
    kl_every: Count = 5  # steps from one measurement of the KL to the next where it is not in the loss; 0: never
    temperature: Positive = 1.0  # greedy answers to one prompt are all the same
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    max_new_tokens: AnswerTokens = 64
    overlong_buffer: Count = 0  # last tokens before max_new_tokens over which the reward falls; 0: it does not
    overlong_penalty: NotNegative = 1.0  # what a completion of max_new_tokens loses
    mask_truncated: bool = False  # whether completions that were cut off are left out of the loss
    dynamic_sampling: Rounds = 0  # rounds in which a step draws other tasks in place of groups without reward spread
    curriculum: bool = False  # whether tasks whose success rate lies in between are drawn more often
    replay_share: Share = 0.0  # of a step's prompts: tasks that failed in one of the last steps
    updates_per_batch: Annotated[int, Meta(ge=1, le=100)] = 1
    correction: Literal["auto", "off", "tis", "mis", "icepop"] = "auto"  # auto: tis wherever sampler and trainer differ
    correction_level: Literal["token", "sequence"] = "token"
    correction_min: NotNegative | None = None
    correction_max: Positive | None = None
    micro_batch: Count = 0  # completions whose gradients are computed together; 0: all
    sample_batch: Count = 0  # answers that are sampled side by side in process; 0: SIDE_BY_SIDE
    eval_every: Count = 0
    eval_samples: Drawn = 1
    sampled_outputs: Count = (
        8  # training tasks, and as many validation tasks, answered at each checkpoint for people to read
    )
    save_every: AtLeastOne = 5
    not_in_4bit: ClassVar[str] = IT_SAMPLES

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.processes > self.prompts_per_step:
            raise ValueError(f"processes: must be at most prompts_per_step, which is {self.prompts_per_step}")
        low, high = CLIP.get(self.loss_type, (0.2, 0.28))
        self.clip_low = low if self.clip_low is None else self.clip_low
        self.clip_high = high if self.clip_high is None else self.clip_high
        for name in ("clip_low", "clip_high"):
            if self.loss_type == "gspo" and getattr(self, name) > WIDEST_GSPO:
                raise ValueError(
                    f"{name}: must be at most {WIDEST_GSPO} with gspo, which clips the ratio of a whole sequence; "
                    f"its own range is {low:g} / {high:g}, GRPO's clips nothing"
                )
        if self.overlong_buffer > self.max_new_tokens:
            raise ValueError(f"overlong_buffer: must be at most max_new_tokens, which is {self.max_new_tokens}")
        least, most = BOUNDS_OF_CORRECTION.get(self.correction, BOUNDS_OF_CORRECTION["tis"])
        self.correction_min = least if self.correction_min is None else self.correction_min
        self.correction_max = most if self.correction_max is None else self.correction_max
        if self.correction_min > self.correction_max:
            raise ValueError(f"correction_min: must be at most correction_max, which is {self.correction_max:g}")
        if self.advantages == "turn" and self.loss_type in ("gspo", "rloo"):
            raise ValueError(f"advantages: must be episode with {self.loss_type}, whose ratio is of a whole episode")
        if self.correction == "icepop" and self.correction_level == "sequence":
            raise ValueError("correction_level: must be token with icepop, which masks tokens; mis masks sequences")


class SftRow(Form, kw_only=True):
    """The conversation and the tools as an agent is given them, and the answer it should give; or, as `turns`, all that follows
    in an episode of several turns, of which the agent's answers are learnt."""

    messages: list[dict]
    completion: str = ""
    tools: list[dict] = []
    turns: list[dict] = []

    def __post_init__(self) -> None:
        if bool(self.completion) == any(turn.get("role") == "assistant" for turn in self.turns):
            raise ValueError("needs either a completion or turns with an answer")


class Pair(Form, kw_only=True):
    """Two answers to one conversation, of which `chosen` is the better one."""

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
    """A run of a program that TRL trains, on `rows` that the database has written."""

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
    """A server that is not asked for a model's answers yet. `api_key_env` as in ModelServer."""

    base_url: Text
    api_key_env: str | None = None
    allow_private: bool = False


class RolloutServer(ServerAddress, kw_only=True):
    """A vLLM that loads adapters at run time. `model`: what it calls the base. `folder`: as it sees `Rollouts.folder`, "" where that
    is the same path; `lora_slots`: its --max-loras, 0 where that is unknown."""

    model: Text
    folder: str = ""
    lora_slots: Count = 0
    timeout_s: Positive = 300.0  # of one answer
    concurrency: AtLeastOne = 64


class Rollouts(Form, kw_only=True):
    """Servers that GRPO samples from. `folder`: where each step's adapter is written for them. `steps_ahead` 1: the next batch is
    sampled while the update runs, with the weights from before it."""

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
    success_rates: dict[str, Share] = {}  # of tasks, by an evaluation before: where a curriculum begins
    config: GrpoConfig
    rollouts: Rollouts | None = None


class MeasureTraining(Job, kw_only=True):
    """How fast a model samples and trains: on some of the tasks of a run, with its adapter's shape, where it would sample."""

    model: Model
    engine: InProcess
    environment: Environment
    tasks: Tasks
    lora: Lora
    max_new_tokens: AnswerTokens = 64
    rollouts: Rollouts | None = None
    seconds: Positive = 25.0  # beside loading; each kind of work gets a share of it


class OnPolicy(Job, kw_only=True):
    """As Grpo, with the model that says how likely each token is: in this process, or with `teacher_server` on a vLLM server, whose
    model `teacher` is then not read."""

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
    """Samples before it learns: with the model that is trained, with `teacher` in its place, or on `teacher_server`.
    `validation_rows` as of Sft."""

    teacher: Model | None = None
    teacher_server: Server | None = None
    environment: Environment
    tasks: Tasks
    validation_rows: list[SftRow] = []
    config: BestOfNConfig


class StoredSample(Form, kw_only=True):
    """An answer that was given before; its output stands for it where its turns were not stored."""

    id: str
    task: dict
    messages: list[dict]
    output: str = ""
    stop_reason: str = ""


class Rescore(Job, kw_only=True):
    environment: Environment
    samples: Annotated[list[StoredSample], Meta(min_length=1)]


class SentAnswer(Form, kw_only=True):
    """What an agent elsewhere said to `tasks[task]`: its turns, and the error that it ended with, if any. What it took is
    as the agent measured it."""

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


# Forms that any reader of JSON takes for the same; the rest only where the verifier says that it tolerates them.
ALWAYS_PROMISED = frozenset({"key_order", "json_space", "number", "parallel_order"})
MANY_MEDIUM = 5


class ProbeOptions(Form, kw_only=True, frozen=True):
    """How hard to attack, and what the verifier promises (docs/probes.md)."""

    margin: NotNegative = (
        0.02  # a wrong answer must stay this share of max(1, |right one's reward|) below the right one
    )
    slack: NotNegative = 0.1  # a medium finding: paid this share of the range above what the output's merit explains
    steep: NotNegative = 0.5  # a high one
    stochastic: bool = False  # whether the same output may get another reward each time, as a judge's
    repeats: AtLeastOne = 8  # fresh scores that must confirm a finding where rewards vary
    rubrics: tuple[str, ...] = ()  # texts of the verifier that a policy may have seen
    many_medium: AtLeastOne = MANY_MEDIUM  # so many medium findings lock as a high one does
    tolerance: NotNegative = 1e-6  # a right answer in another form may get this much less
    noise: NotNegative = 1e-9  # two scores of one input may differ by this much
    promises: frozenset[str] = ALWAYS_PROMISED  # names of `perturbations.PROBES` that must not lose
    dangerous: frozenset[str] = frozenset()  # tools that do harm, besides those marked x-dangerous
    success_at: Number | None = None  # a reward that counts as success, for verifiers that do not say so themselves
    multi_turn: bool = False  # whether an agent may speak several times
    max_tasks: AtLeastOne = 40
    max_scores: AtLeastOne = 20_000  # first passes; a judge that costs money needs less
    search_scores: Count = 1200  # scores that the search may ask for; 0: no search
    search_cpu_s: NotNegative = 60.0  # CPU seconds of this process that it may take
    seed: Count = 0  # of the search


class Probe(Job, kw_only=True):
    environment: Environment
    tasks: Tasks
    samples: list[dict] = []
    options: ProbeOptions = field(default_factory=ProbeOptions)
    server: ModelServer | None = None  # of a model prompted to cheat, for the search
    cheat_tokens: Count = 20_000  # that it may use


class HeldText(Form, kw_only=True):
    """What a held-out task asks."""

    id: Text
    text: Text


class TrainedTexts(Form, kw_only=True):
    """What a task that could train says: its requests, its demonstration."""

    id: Text
    texts: Annotated[list[Text], Meta(min_length=1)]


class CompareMeaning(Job, kw_only=True):
    """`known` names pairs [held, other] that are left out: a person has decided on them."""

    model: Model
    engine: Engine
    held: Annotated[list[HeldText], Meta(min_length=1)]
    others: Annotated[list[TrainedTexts], Meta(min_length=1)]
    known: list[tuple[str, str]] = []
    most: AtLeastOne = 50


class Seed(Form, kw_only=True):
    """A task to vary: its conversation, the calls that are right, and the tools there are."""

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
    """The server whose model writes prompts; `price` as of a Server."""

    price: tuple[NotNegative, NotNegative] = (0.0, 0.0)


class SearchConfig(Form, kw_only=True):
    """`most_calls` counts samples of the agent; the limits on tokens and money are on what servers are asked, by the agent and
    for proposals together (0: none). `score`: what a candidate is scored by, the share of samples that succeed or their reward."""

    samples_per_task: AtLeastOne = 1
    minibatch: AtLeastOne = 3  # training tasks that one proposal is made from, and tried on first
    most_proposals: AtLeastOne = 20
    most_calls: AtLeastOne
    most_tokens: Count = 0
    most_usd: NotNegative = 0.0
    score: Literal["success", "reward"] = "success"
    reflection_tokens: AtLeastOne = 4096  # of one answer of the reflecting model
    most_characters: AtLeastOne = 20_000  # of a proposal that is tried


class UsedBefore(Form, kw_only=True):
    """What earlier attempts of this job have used."""

    calls: Count = 0
    input_tokens: Count = 0
    output_tokens: Count = 0
    usd: NotNegative = 0.0


class SearchPrompts(Job, kw_only=True):
    """`prompt`: the system prompt that the search starts with. `evidence`: {task: what was known of the failure that it was made
    from}. `python`: the interpreter that has GEPA."""

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
    """`model`: whose capabilities are looked for; the first one listed where it is empty. `dialect`: how it is asked."""

    server: ServerAddress
    server_kind: Literal["vllm", "sglang", "openai", "transformers"]
    model: str = ""
    dialect: Literal["native", "text", "responses"] = "native"


class Fingerprint(Job, kw_only=True):
    """The log-probabilities that a model gives `text`, and those of its base where it is an adapter."""

    model: Model
    text: Text
    dtype: str = "float32"


class MergeAdapter(Job, kw_only=True):
    """The model has an adapter; `text` is what the merged model is checked with."""

    model: Model
    text: Text


class RayJob(Job, kw_only=True):
    """A run's folder as a job on a Ray cluster. `package` and `secrets` are files: the zipped folder, and {submission, env}, which only
    the owner of the process reads. `alarms` and `method` as in the run's settings."""

    server: ServerAddress
    package: Text
    secrets: Text
    name: str
    method: str
    total: Count
    gpus: Annotated[float, Meta(ge=0)] = 0.0
    alarms: AlarmSettings = field(default_factory=AlarmSettings)


class ServedModel(Form, kw_only=True):
    """A folder, and how it is served: `workers.lib.vllm`. `context` 0: as the model has; `lora_slots` 0: no adapters."""

    base: Text
    name: Text
    dtype: str = "auto"
    context: Count = 0
    lora_slots: Count = 0
    max_lora_rank: AtLeastOne = 16
    options: dict[str, Any] = {}


class Serve(Job, kw_only=True):
    """`command`: the vllm executable; "" for the engine of this installation, transformers. `ports` [first, last], of which the
    first free one is taken; empty: any."""

    command: str
    model: ServedModel
    host: Text = "127.0.0.1"
    ports: list[Count] = []
    environment: dict[str, str] = {}
    start_s: Positive = 1800.0  # until it must answer
    silent_s: Positive = 180.0  # without an answer to /models, after which a process that is up counts as hung


class Api(Form, kw_only=True):
    url: Text
    key: Text


class AgentName(Form, kw_only=True):
    name: str
    version: str = ""


class Request(Form, kw_only=True):
    """What a user of the demo asks, what they wanted, and which requests are variants of one another."""

    request: str
    expected: dict
    group: str
    template: str = ""


class DemoAgent(Job, kw_only=True):
    """With `endpoint` the agent asks there (`model_name` is the channel), and each answer is logged by the endpoint itself."""

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
    """The typed spec of a program. Raises SpecError for the first field that is missing, unknown or wrong."""
    found = convert(spec, SPECS[kind])
    for name in ("tasks", "validation_tasks"):
        given = getattr(found, name, [])
        if not isinstance(given, str):  # the name of a file, which is checked when it is read
            check_tasks(given, name)
    return found


def check_tasks(tasks: Iterable[Any], name: str = "tasks") -> None:
    """Raises SpecError."""
    for at, task in enumerate(tasks):
        convert(task, Task, f"{name}[{at}]")
