"""Reducing the memory of a run: which settings do so without changing the update, advice for
people, and the automatic retry.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from apps.training.models import TrainingRun
from workers.lib.specs.methods import CONFIGS
from workers.lib.specs.training import SIDE_BY_SIDE

Settings = dict[str, Any]
SMALL = 4  # rows or answers that a retry computes at a time


def settings_of(run: TrainingRun) -> Settings:
    """The settings of the next attempt."""
    return run.spec["config"] | run.reduced


def at_once(name: str, config: Settings) -> int:
    """How many rows or answers a process computes at a time under a setting."""
    if name == "sample_batch":
        every = config["prompts_per_step"] * config["generations"]
        return min(every, config.get(name) or SIDE_BY_SIDE)
    every = (
        own_rows(config)
        if "batch_size" in config
        else config["prompts_per_step"] * config["generations"]
    )
    return min(every, config.get(name) or every)


def own_rows(config: Settings) -> int:
    """The maximum number of rows of a step that one process computes."""
    return -(-config["batch_size"] // config.get("processes", 1))


def reductions(method: str, config: Settings, to: int = SMALL) -> Settings:
    """Settings of the method that need less memory for the same update; {} if everything is already
    as small as possible.
    """
    names = {field.encode_name for field in structs.fields(CONFIGS[method])}
    found: Settings = {}
    for name in ("micro_batch", "sample_batch"):
        if name in names and (now := at_once(name, config)) > 1:
            fewer = to if now > to else max(1, now // 2)
            if name == "micro_batch" and method == "dpo":
                fewer = next(
                    count for count in range(fewer, 0, -1) if own_rows(config) % count == 0
                )
            found[name] = fewer
    if "gradient_checkpointing" in names and not config.get("gradient_checkpointing"):
        found["gradient_checkpointing"] = True
    return found


def in_words(changed: Settings, config: Settings) -> str:
    """A phrase such as “micro_batch to 4 (now 32), gradient_checkpointing to true”."""
    words = [
        f"{name} to true" if value is True else f"{name} to {value} (now {at_once(name, config)})"
        for name, value in changed.items()
    ]
    return ", ".join(words)


def advice(run: TrainingRun) -> str:
    config = settings_of(run)
    if changed := reductions(run.method, config):
        return f"Set {in_words(changed, config)}: the update stays the same."
    return (
        "Everything that does not affect the update has already been reduced. Train a smaller"
        " model, shorter prompts and answers, or a lower lora_rank, or use a machine with more"
        " memory."
    )


def reduce(run: TrainingRun) -> str:
    """Reduce the settings of a run, at most once. Returns a sentence, or "" if nothing was
    changed.
    """
    config = settings_of(run)
    changed = reductions(run.method, config)
    if not config.get("retry_smaller") or run.reduced or not changed:
        return ""
    TrainingRun.objects.filter(pk=run.pk).update(reduced=changed)
    return f"Retrying with less memory and the same update: {in_words(changed, config)}."
