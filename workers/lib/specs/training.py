"""What all training methods share: the adapter's shape and the settings of every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from msgspec import Meta, field, structs

from workers.lib.alarms import AlarmSettings
from workers.lib.typed import AtLeastOne, Count, Form, Positive, Share, Text

# Also the limits of the form for a new run, since an estimate and a step hold lists of this length.
Steps = Annotated[int, Meta(ge=1, le=100_000)]


AtOnce = Annotated[int, Meta(ge=1, le=1024)]  # rows or prompts per step


Drawn = Annotated[int, Meta(ge=1, le=128)]  # answers per task


LearningRate = Annotated[float, Meta(gt=0, le=1)]


# Positive, since greedy answers to one prompt are all the same, and below 0.01 logits divided by it
# are infinite.
DrawingTemperature = Annotated[float, Meta(ge=0.01, le=10)]


SIDE_BY_SIDE = 64


IT_SAMPLES = "it samples from the model that it trains"


AS_SAMPLED = "the model learns as it samples, without dropout"


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
                f"load_in_4bit: must be false, since {self.not_in_4bit}; SFT, DPO, KTO and GRPO can"
                " train in 4 bits"
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
