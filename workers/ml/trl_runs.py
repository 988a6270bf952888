"""The common part of the programs that TRL trains (SFT, DPO, KTO, reward models): the order of
rows, loading, reports, checkpoints and stops. Heavy: imports TRL.

The rows of a step and its dropout depend only on the seed and the step, so that a resumed run gives
the same result as an uninterrupted one. With several processes (workers.ml.ranks), each computes a
part of every batch, and all apply the batch's step; TRL sees a single process.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from workers.lib.alarms import Watchman
from workers.lib.control_tokens import control_texts, without_control_texts
from workers.lib.errors import SpecError
from workers.lib.events import Emitter
from workers.lib.prefixes import count_tokens
from workers.lib.program import Stop, StopFlag
from workers.lib.row_facts import use_facts
from workers.lib.specs.training import Training
from workers.lib.watching import Alarmed, judge_end, report
from workers.ml import checkpoint
from workers.ml.models import (
    device,
    load_base,
    load_weights,
    lora,
    set_threads,
    stop_token_ids,
    training_dtype,
)
from workers.ml.ranks import ALONE, Ranks
from workers.ml.reward_head import lora_with_head
from workers.ml.sharding import shard_layers

Row = TypeVar("Row")
OTHER_DRAWS = (
    10**12
)  # offset between the seeds of two processes, which draw dropout for different rows
ALWAYS = {
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "grad_norm": "train/grad_norm",
}


def arguments(spec: Any, start: int, ranks: Ranks = ALONE) -> dict[str, Any]:
    """The arguments of all our TRL trainers: TRL itself truncates, saves and reports nothing."""
    config = spec.config
    found = {"accelerator_config": {"use_configured_state": True}} if ranks.size > 1 else {}
    return found | {
        "output_dir": str(Path(spec.out_dir) / "trl"),
        "max_steps": config.steps - start,
        "seed": spec.seed,
        "per_device_train_batch_size": config.batch_size // ranks.size,
        "per_device_eval_batch_size": config.batch_size,
        "learning_rate": config.learning_rate,
        "max_grad_norm": config.max_grad_norm,
        "max_length": None,  # longer rows have been rejected
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # which would report the mean of earlier losses instead
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "bf16": False,
        "fp16": False,
        "gradient_checkpointing": False,
        "use_cpu": device() == "cpu",
        "dataloader_pin_memory": device() == "cuda",
    }


def checkpointing(config: Training) -> dict[str, Any]:
    """For trainers without shared prompts, which use the library's own gradient checkpointing."""
    return {
        "gradient_checkpointing": config.gradient_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    }


def loaded(
    spec: Any, events: Emitter, stop: StopFlag, ranks: Ranks = ALONE, *, scalar_head: bool = False
) -> tuple[Any, Any, Any, Any]:
    """(model with its adapter, tokenizer, optimizer, scheduler) at the start of the run, or at its
    checkpoint; with `scalar_head` a reward model.
    """
    from transformers import set_seed

    config, resume = spec.config, spec.resume_from
    start = checkpoint.step_of(resume)
    events.progress(start, config.steps, "loading the model")
    stop.raises = True  # before the first update, a stop may end the run at any moment
    stop.check()  # a stop may have come while TRL was imported
    set_threads(spec.engine.threads)
    set_seed(spec.seed)
    model, tokenizer = load_base(
        spec.model.base,
        training_dtype(spec.engine.dtype),
        scalar_head=scalar_head,
        in_4bit=config.load_in_4bit,
    )
    if scalar_head:
        model = lora_with_head(model, config, start=spec.model.adapter, resume=resume)
    else:
        model = lora(model, config, resume or spec.model.adapter)
    # Before creating the optimizer, so that the moments in a checkpoint end up on the same device
    # as the weights.
    model = shard_layers(model, ranks) if config.shard else model.to(device())
    return model, tokenizer, *checkpoint.optimizer_of(model, config, resume)


def learnable(
    rows: Sequence[Row],
    said: Callable[[Row], Iterable[str | dict]],
    tokenizer: Any,
    events: Emitter,
    **more: Any,
) -> list[Row]:
    """The rows whose answers contain no control token as text (workers.lib.control_tokens)."""
    texts = control_texts(tokenizer, stop_token_ids(tokenizer))
    return without_control_texts(rows, said, texts, partial(events.log, "warning"), **more)


def row_order(rows: int, count: int, seed: int) -> list[int]:
    """The first `count` rows that a run learns from: one shuffle of all rows after another."""
    order: list[int] = []
    for epoch in range(-(-count // rows)):
        order += random.Random(seed * 1000 + epoch).sample(range(rows), rows)
    return order[:count]


class InParts:
    """Mixin for a TRL trainer: each process computes the loss of its part of a batch; the mean of
    losses and gradients is the batch's. Values that TRL gathers (metrics, and the KL in KTO's loss)
    cover all parts.
    """

    ranks: Ranks = ALONE
    counted: Counter[str] | None = None  # of the step's tokens, until it is reported
    shares = False  # whether what a micro-batch's rows begin with is computed once

    def _move_model_to_device(self, model: Any, device: Any) -> None:
        """The model is already on its device, and a sharded model must not be moved."""

    def training_step(self, *given: Any, **named: Any) -> torch.Tensor:
        step = super().training_step  # type: ignore[misc]
        if self.counted is not None:
            self.counted.update(count_tokens(real_rows(given[1]), size=0 if self.shares else 1))
        if self.ranks.size == 1:
            return step(*given, **named)
        accelerator = self.accelerator  # type: ignore[attr-defined]
        accelerator.gather = accelerator.gather_for_metrics = self.ranks.joined
        losses = self.ranks.gather(lambda: float(step(*given, **named)))
        if accelerator.sync_gradients:
            self.ranks.average_gradients(self.model.parameters())  # type: ignore[attr-defined]
        return torch.tensor(sum(losses) / len(losses), device=device())


def real_rows(inputs: Mapping[str, torch.Tensor]) -> list[list[int]]:
    """The ids of a batch's rows without the padding."""
    pairs = zip(inputs["input_ids"], inputs["attention_mask"].bool(), strict=True)
    return [ids[real].tolist() for ids, real in pairs]


def refuse_long_rows(lengths: list[int], limit: int) -> None:
    """Raises SpecError: truncating a row would remove its completion, so that it would be left out
    or only partially learned.
    """
    long = [length for length in lengths if length > limit]
    if long:
        raise SpecError(
            f"{len(long)} of {len(lengths)} rows are longer than config.max_length ({limit} tokens"
            f" with their prompt; the longest has {max(long)}). Raise max_length, or leave these"
            " rows out of the data set."
        )


def set_reference(model: Any, adapter: str | None) -> None:
    """Make the reference the initial model of the run. TRL copies the adapter that it is given,
    which in a resumed run is the checkpoint's; without an initial adapter the reference is the bare
    base, which TRL uses if there is no copy.
    """
    from peft import set_peft_model_state_dict

    if adapter:
        set_peft_model_state_dict(model, load_weights(adapter), adapter_name="ref")
    else:
        model.delete_adapter("ref")


def reporting(
    events: Emitter,
    stop: StopFlag,
    spec: Any,
    model: Any,
    optimizer: Any,
    *,
    found: Mapping[str, float] | None = None,
    named: Mapping[str, str] | None = None,
    counted: Counter[str] | None = None,
    data: dict[str, float] | None = None,
    measure: Callable[[int], dict[str, float]] | None = None,
    ranks: Ranks = ALONE,
) -> Any:
    """A trainer callback that reports each step, saves checkpoints, stops on request and applies
    the alarms.

    `found` holds metrics of the last batch; `named` maps names in TRL's log to the names that are
    reported; `counted` holds the tokens that this process has counted in the step; `data` holds
    metrics of all rows, reported with the first step; `measure` returns metrics of data that does
    not train, and is called every `eval_every` steps and at the end. Until the optimizer's step, an
    interrupted step loses nothing: a stop ends it at once, and an update that is not finite is not
    applied. With several processes, none may leave at any moment, so they only stop at points where
    they exchange something, which they do often.
    """
    from transformers import TrainerCallback

    config, out, seed = spec.config, Path(spec.out_dir), spec.seed
    steps, every, start = config.steps, config.save_every, checkpoint.step_of(spec.resume_from)
    alone = ranks.size == 1
    names = ALWAYS | dict(named or {})
    data = (data or {}) | use_facts(spec.rows, steps * config.batch_size)
    watchman = Watchman(
        config.alarms,
        spec.program(),
        checkpoint.seen_by("alarms", spec.resume_from),
    )

    class Reporter(TrainerCallback):
        done, saved = start, start if spec.resume_from else None

        def keep(self) -> None:
            """Save a checkpoint of the last complete step."""
            if self.saved == self.done:
                return
            if ranks.is_main:
                folder = checkpoint.save(
                    out / f"checkpoint-{self.done}",
                    step=self.done,
                    model=model,
                    optimizer=optimizer,
                    alarms=watchman.state(),
                )
                events.checkpoint(self.done, str(folder))
            self.saved = self.done

        def validate(self) -> None:
            if measure is None or not config.eval_every:
                return
            ranks.check(stop.check)
            stop.raises = alone
            values = ranks.gather(lambda: measure(self.done))[
                0
            ]  # all processes decide on the same numbers
            stop.raises = False
            if values:
                events.metric(self.done, values)
                report(events, watchman.look(self.done, values))

        def measured(self, metrics: dict[str, float]) -> None:
            report(events, watchman.look(self.done, metrics))

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.done = start + state.global_step
            stop.raises = stop.raises and alone
            if config.eval_every and self.done % config.eval_every == 0:
                self.validate()
            if self.done == start:
                events.progress(start, steps, "training")
            torch.manual_seed(seed * 100_003 + self.done + ranks.number * OTHER_DRAWS)
            ranks.check(stop.check)
            stop.raises = alone

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            stop.raises = False
            grads = [p.grad for p in checkpoint.trained(model) if p.grad is not None]
            if not all(bool(grad.isfinite().all()) for grad in grads):
                optimizer.zero_grad(set_to_none=True)
                step, values = self.done + 1, {"train/grad_norm": float("nan")}
                events.metric(step, values)
                report(events, watchman.look(step, values))

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.done = start + state.global_step
            if self.done % every == 0 and self.done < steps:
                self.keep()

        def on_log(
            self, args: Any, state: Any, control: Any, logs: dict | None = None, **_: Any
        ) -> None:
            if not logs or "loss" not in logs:
                return
            values = {name: float(logs[key]) for key, name in names.items() if key in logs} | dict(
                found or {}
            )
            if self.done == 1:
                values |= data
            if counted is not None:
                values |= ranks.totals(lambda: dict(counted))
                counted.clear()
            values = ranks.from_main(lambda: values)
            events.metric(self.done, values)
            events.progress(self.done, steps, f"loss {float(logs['loss']):.3f}")
            report(events, watchman.look(self.done, values))
            ranks.check(stop.check)
            if self.done == steps:
                self.validate()
                judge_end(events, watchman, self.done)

    return Reporter()


def train(trainer: Any, model: Any, spec: Any, ranks: Ranks = ALONE) -> Path:
    """Run the remaining steps; return the adapter's folder. After a stop, or an alarm that ends the
    run, a checkpoint is saved and the error re-raised.
    """
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)  # standard output is reserved for events
    reporter = next(one for one in trainer.callback_handler.callbacks if hasattr(one, "keep"))
    if checkpoint.step_of(spec.resume_from) < spec.config.steps:
        try:
            trainer.train()
        except (Stop, Alarmed):
            reporter.keep()
            raise
    return checkpoint.save_result(
        model,
        Path(spec.out_dir),
        spec.model.adapter,
        spec.config.steps,
        ranks.is_main,
        measured=reporter.measured,
    )
