"""What the programs that TRL trains (SFT, DPO, KTO, reward models) have in common: the order of the rows, what is loaded, reports,
checkpoints and the stop. Heavy: imports torch.

Which rows a step learns from and what its dropout draws depend on the seed and the step alone, so that a resumed run is the
unbroken one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from workers.lib.alarms import Watchman
from workers.lib.errors import SpecError
from workers.lib.events import Emitter
from workers.lib.program import Stop, StopFlag
from workers.lib.specs import Training
from workers.lib.watching import Alarmed, report
from workers.ml import checkpoint
from workers.ml.four_bit import products_in_float32
from workers.ml.models import device, load_base, lora, set_threads, training_dtype
from workers.ml.reward_head import lora_with_head
from workers.ml.tree import use_tree

ALWAYS = {"loss": "train/loss", "learning_rate": "train/learning_rate", "grad_norm": "train/grad_norm"}


def arguments(spec: Any, start: int) -> dict[str, Any]:
    """The arguments that every TRL trainer of ours is given: nothing is cut off, saved or reported by itself."""
    config = spec.config
    return {
        "output_dir": str(Path(spec.out_dir) / "trl"),
        "max_steps": config.steps - start,
        "seed": spec.seed,
        "per_device_train_batch_size": config.batch_size,
        "per_device_eval_batch_size": config.batch_size,
        "learning_rate": config.learning_rate,
        "max_grad_norm": config.max_grad_norm,
        "max_length": None,  # longer rows were refused
        "logging_steps": 1,
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
    """Of the trainers that do not compute with shared prompts, which have gradient checkpointing of their own."""
    return {
        "gradient_checkpointing": config.gradient_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    }


def loaded(spec: Any, events: Emitter, stop: StopFlag, *, scalar_head: bool = False) -> tuple[Any, Any, Any, Any]:
    """(model with its adapter, tokenizer, optimizer, scheduler), as the run begins or goes on; with `scalar_head` a reward model."""
    from transformers import set_seed

    config, resume = spec.config, spec.resume_from
    start = checkpoint.step_of(resume)
    events.progress(start, config.steps, "loading the model")
    stop.raises = True  # nothing is at stake before the first update
    stop.check()  # it may have come while TRL was imported
    set_threads(spec.engine.threads)
    set_seed(spec.seed)
    model, tokenizer = load_base(
        spec.model.base, training_dtype(spec.engine.dtype), scalar_head=scalar_head, in_4bit=config.load_in_4bit
    )
    if scalar_head:
        model = lora_with_head(model, config, start=spec.model.adapter, resume=resume)
    else:
        model = lora(model, config, resume or spec.model.adapter)
    model = model.to(
        device()
    )  # before the optimizer is made: a checkpoint's moments must come to lie beside the weights
    if config.load_in_4bit:
        with products_in_float32(model):  # as the switch to shared prompts compares two ways of computing
            use_tree(model)
    return model, tokenizer, *checkpoint.optimizer_of(model, config, resume)


def row_order(rows: int, count: int, seed: int) -> list[int]:
    """The first `count` rows that a run learns from: one shuffle of all of them after the other."""
    order: list[int] = []
    for epoch in range(-(-count // rows)):
        order += random.Random(seed * 1000 + epoch).sample(range(rows), rows)
    return order[:count]


def refuse_long_rows(lengths: list[int], limit: int) -> None:
    """Raises SpecError: a row that is cut off would lose its completion, and be left out or taught half."""
    long = [length for length in lengths if length > limit]
    if long:
        raise SpecError(
            f"{len(long)} of {len(lengths)} rows are longer than config.max_length ({limit} tokens with their prompt; "
            f"the longest has {max(long)}). Raise max_length, or leave these rows out of the data set."
        )


def set_reference(model: Any, adapter: str | None) -> None:
    """Makes the reference the model at the start of the run. TRL copies the adapter that it is given, which of a resumed run is the
    checkpoint's; without an adapter at the start it is the bare base, which TRL compares with where there is no copy."""
    from peft import load_peft_weights, set_peft_model_state_dict

    if adapter:
        set_peft_model_state_dict(model, load_peft_weights(adapter, device=device()), adapter_name="ref")
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
    measure: Callable[[int], dict[str, float]] | None = None,
) -> Any:
    """A trainer callback that reports each step, saves checkpoints, stops on request and heeds the alarms. `found` has metrics of
    the last batch; `named` are those of TRL's log that are reported, and under which name; `measure` gives what every `eval_every`
    steps, and at the end, is measured on what does not train. Until the optimizer's step nothing of
    a step is at stake: a stop ends it at once, and an update that is not finite is not applied."""
    from transformers import TrainerCallback

    config, out, seed = spec.config, Path(spec.out_dir), spec.seed
    steps, every, start = config.steps, config.save_every, checkpoint.step_of(spec.resume_from)
    names = ALWAYS | dict(named or {})
    watchman = Watchman(
        config.alarms, spec.kind or type(spec).__name__.lower(), checkpoint.seen_by("alarms", spec.resume_from)
    )

    class Reporter(TrainerCallback):
        done, saved = start, start if spec.resume_from else None

        def keep(self) -> None:
            """A checkpoint of the last whole step."""
            if self.saved == self.done:
                return
            folder = checkpoint.save(
                out / f"checkpoint-{self.done}",
                step=self.done,
                model=model,
                optimizer=optimizer,
                alarms=watchman.state(),
            )
            self.saved = self.done
            events.checkpoint(self.done, str(folder))

        def validate(self) -> None:
            if measure is None or not config.eval_every:
                return
            stop.check()
            stop.raises = True
            values = measure(self.done)
            stop.raises = False
            if values:
                events.metric(self.done, values)
                report(events, watchman.look(self.done, values))

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.done = start + state.global_step
            if config.eval_every and self.done % config.eval_every == 0:
                self.validate()
            torch.manual_seed(seed * 100_003 + start + state.global_step)
            stop.check()
            stop.raises = True

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

        def on_log(self, args: Any, state: Any, control: Any, logs: dict | None = None, **_: Any) -> None:
            if not logs or "loss" not in logs:
                return
            values = {name: float(logs[key]) for key, name in names.items() if key in logs} | dict(found or {})
            events.metric(self.done, values)
            events.progress(self.done, steps, f"loss {float(logs['loss']):.3f}")
            report(events, watchman.look(self.done, values))
            if stop.is_set:
                raise Stop
            if self.done == steps:
                self.validate()

    return Reporter()


def train(trainer: Any, model: Any, spec: Any) -> Path:
    """The steps that are left; returns the adapter's folder. A stop, or an alarm that ends the run, keeps a checkpoint and goes on."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)  # standard output is for events
    if checkpoint.step_of(spec.resume_from) < spec.config.steps:
        reporter = next(one for one in trainer.callback_handler.callbacks if hasattr(one, "keep"))
        try:
            trainer.train()
        except (Stop, Alarmed):
            reporter.keep()
            raise
    return checkpoint.save_adapter(model, Path(spec.out_dir) / "adapter")
