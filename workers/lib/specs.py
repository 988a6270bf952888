"""The specs of the programs that run as child processes. The apps write them, the programs read them (docs/jobs.md).

Tasks, environments and verifiers stay JSON here: `environments.load` and `verifiers.build` check them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from workers.lib.typed import AtLeastOne, Count, NotNegative, Number, Positive, Share, Text, convert


class Form(Struct, forbid_unknown_fields=True, kw_only=True):
    """A form without other fields than its own: a misspelt setting is an error, never a default."""


class Model(Form, kw_only=True):
    """`base` and `adapter` are folders (of an engine in this process)."""

    base: Text
    adapter: str | None = None


class InProcess(Form, kw_only=True, tag_field="kind", tag="transformers"):
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    threads: Count = 0  # 0: all cores
    batch_size: AtLeastOne = 64


class ModelServer(Form, kw_only=True):
    """Any OpenAI-compatible server. `api_key_env` names the environment variable with its key."""

    base_url: Text
    model: Text
    api_key_env: str | None = None
    timeout_s: Positive = 120.0
    allow_private: bool = False


class Server(ModelServer, kw_only=True, tag_field="kind", tag="openai"):
    concurrency: AtLeastOne = 64


Engine = InProcess | Server


class Task(Struct):
    """One task, as far as every environment needs it. It may have more."""

    id: str
    messages: list[dict]
    expected: dict


class Environment(Struct):
    """What every kind of environment has; `environments.load` checks the rest."""

    kind: Text
    harness: dict
    verifier: dict


Tasks = Annotated[list[dict], Meta(min_length=1)]


class Job(Form, kw_only=True):
    """What the runner adds to every spec, and what all of them share."""

    kind: str = ""
    job_id: str = ""
    attempt: Count = 0
    seed: Count = 0
    out_dir: str = ""
    resume_from: str | None = None


class Evaluate(Job, kw_only=True):
    model: Model
    engine: Engine
    environment: dict
    tasks: Tasks
    samples_per_task: AtLeastOne


class Timed(Form, kw_only=True):
    """One version whose latency is measured; `id` names it in the events."""

    id: Text
    model: Model
    engine: Engine
    environment: dict


class MeasureLatency(Job, kw_only=True):
    """`adapters` are merged into their base, or hot: applied beside it, for all versions alike."""

    versions: Annotated[list[Timed], Meta(min_length=2)]
    tasks: Tasks
    rounds: AtLeastOne = 4
    warm_up: Count = 2  # answers of each version that do not count
    precision: Positive = 0.1  # half the width of each ratio's interval that is good enough, as a share of it
    adapters: Literal["merged", "hot"] = "merged"


class Lora(Form, kw_only=True):
    """`lora_alpha` is twice the rank where it is not given."""

    lora_rank: Annotated[int, Meta(ge=1, le=512)] = 16
    lora_alpha: AtLeastOne | None = None
    lora_dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0


class Training(Lora, kw_only=True):
    """Learning rate: linear warm-up over `warmup_steps`, then linear decay to `final_lr_share` of it."""

    steps: AtLeastOne
    learning_rate: Positive
    warmup_steps: Count = 0
    final_lr_share: Share = 0.1
    max_grad_norm: Positive = 1.0
    save_every: AtLeastOne = 10  # steps from one checkpoint to the next


class SftConfig(Training, kw_only=True):
    batch_size: AtLeastOne
    log_every: AtLeastOne = 1
    max_length: AtLeastOne = 2048  # tokens of a row


class GrpoConfig(Training, kw_only=True):
    """Names and defaults after TRL and the papers that `workers.grpo` cites."""

    prompts_per_step: AtLeastOne = 4
    generations: Annotated[int, Meta(ge=2)] = 8  # completions per prompt
    clip_low: Share = 0.2
    clip_high: NotNegative = 0.28
    beta: NotNegative = 0.0
    kl_every: Count = 5  # steps from one measurement of the KL to the next where it is not in the loss; 0: never
    loss_type: Literal["dapo", "grpo", "dr_grpo", "gspo"] = "dapo"
    scale_rewards: Literal["group", "none"] = "group"
    temperature: Positive = 1.0  # greedy answers to one prompt are all the same
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    max_new_tokens: AtLeastOne = 64
    updates_per_batch: AtLeastOne = 1
    eval_every: Count = 0
    eval_samples: AtLeastOne = 1
    save_every: AtLeastOne = 5
    watch_window: Count = 5  # steps that are compared to see reward hacking (docs/probes.md); 0: it is not watched for
    stop_on_hacking: bool = True  # whether the run ends where the reward rises while the best-paid outputs get worse


class SftRow(Form, kw_only=True):
    """The conversation and the tools as an agent is given them, and the answer it should give."""

    messages: list[dict]
    completion: str
    tools: list[dict] = []


class Sft(Job, kw_only=True):
    out_dir: Text
    model: Model
    engine: InProcess = field(default_factory=InProcess)
    environment: dict = {}
    rows: Annotated[list[SftRow], Meta(min_length=1)]
    config: SftConfig


class Grpo(Job, kw_only=True):
    out_dir: Text
    model: Model
    engine: InProcess
    environment: dict
    tasks: Tasks
    validation_tasks: list[dict] = []
    config: GrpoConfig


class StoredSample(Form, kw_only=True):
    """An answer that was given before; its output stands for it where its turns were not stored."""

    id: str
    task: dict
    messages: list[dict]
    output: str = ""
    stop_reason: str = ""


class Rescore(Job, kw_only=True):
    environment: dict
    samples: Annotated[list[StoredSample], Meta(min_length=1)]


class ProbeOptions(Form, kw_only=True):
    """How hard to attack, and what the verifier promises; what is not given is as in `probes.Options` (docs/probes.md)."""

    margin: NotNegative | None = None
    tolerance: NotNegative | None = None
    noise: NotNegative | None = None
    promises: frozenset[str] | None = None
    dangerous: frozenset[str] | None = None
    success_at: Number | None = None
    multi_turn: bool | None = None
    slack: NotNegative | None = None
    steep: NotNegative | None = None
    stochastic: bool | None = None
    repeats: AtLeastOne | None = None
    rubrics: tuple[str, ...] | None = None
    many_medium: AtLeastOne | None = None
    search_scores: Count | None = None
    search_cpu_s: NotNegative | None = None
    seed: Count | None = None
    max_tasks: AtLeastOne | None = None
    max_scores: AtLeastOne | None = None


class Probe(Job, kw_only=True):
    environment: dict
    tasks: Tasks
    samples: list[dict] = []
    options: ProbeOptions = field(default_factory=ProbeOptions)
    server: ModelServer | None = None  # of a model prompted to cheat, for the search
    cheat_tokens: Count = 20_000  # that it may use


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
    model: Model
    engine: Engine
    environment: dict
    requests: Annotated[list[Request], Meta(min_length=1)]
    api: Api
    agent: AgentName
    model_name: str
    id_prefix: str


SPECS: dict[str, type[Job]] = {
    "evaluate": Evaluate,
    "measure_latency": MeasureLatency,
    "sft": Sft,
    "grpo": Grpo,
    "rescore": Rescore,
    "probe": Probe,
    "write_variants": WriteVariants,
    "demo_agent": DemoAgent,
}
CONFIGS: dict[str, type[Training]] = {"sft": SftConfig, "grpo": GrpoConfig}


def checked(spec: Any, kind: str) -> Any:
    """The typed spec of a program. Raises SpecError for the first field that is missing, unknown or wrong."""
    found = convert(spec, SPECS[kind])
    if environment := getattr(found, "environment", None):
        convert(environment, Environment, "environment")
    for at, version in enumerate(getattr(found, "versions", [])):
        convert(version.environment, Environment, f"versions[{at}].environment")
    for name in ("tasks", "validation_tasks"):
        for at, task in enumerate(getattr(found, name, [])):
            convert(task, Task, f"{name}[{at}]")
    return found
