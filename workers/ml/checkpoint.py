"""Checkpoints: complete or absent, safetensors and JSON only. Heavy: imports torch."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from workers.lib.errors import JobError
from workers.lib.lora_files import WEIGHTS
from workers.lib.specs.training import Training

NOTHING_LEFT = (
    "The gradient was 0 from the first step: there is nothing to learn from these rows, or nothing"
    " left to learn."
)
OPTIMIZER = "optimizer.safetensors"
CRITIC = "critic.safetensors"
STATE = "state.json"


def save_adapter(model: Any, folder: Path) -> Path:
    """Save only the adapter. The folder is complete or absent, and replaces an existing one."""
    return _beside(folder, lambda new: _write_adapter(model, new))


def save_result(
    model: Any,
    out: Path,
    start: str | None,
    steps: int,
    is_main: bool = True,
    unchanged: str = NOTHING_LEFT,
    measured: Callable[[dict[str, float]], None] = lambda metrics: None,
) -> Path:
    """Save the adapter that a run ends with; return its folder. `start`: the adapter that it
    started from. Raises JobError if all weights are those of the start, so that no version is made
    of them; `unchanged` says why, and what to do. `measured` gets the metrics of the weights.
    """
    folder = out / "adapter"
    if not is_main:
        return folder
    save_adapter(model, folder)
    if not steps:
        return folder
    change = largest_change(
        load_file(folder / WEIGHTS), load_file(Path(start) / WEIGHTS) if start else {}
    )
    if not change:
        raise JobError(
            f"No weight has changed in {steps} steps, so there is no new version. {unchanged}"
        )
    size = update_size(model)
    measured(
        {"train/weight_change": change} | ({} if size is None else {"train/update_size": size})
    )
    return folder


def largest_change(new: dict[str, torch.Tensor], old: dict[str, torch.Tensor]) -> float:
    """How far the weights of an adapter are from those that it started from; a new adapter has the
    base's outputs as long as every lora_B is 0.
    """
    return max(
        (
            float((weight.float() - old[name].float() if name in old else weight).abs().max())
            for name, weight in new.items()
            if weight.numel() and (name in old or ".lora_B." in name)
        ),
        default=0.0,
    )


@torch.no_grad()
def update_size(model: Any) -> float | None:
    """The norm of what the adapter adds to the weights, as a multiple of theirs, over all layers
    that have one; None if it cannot be computed, as with quantised or sharded weights.
    """
    added, weights = 0.0, 0.0
    for layer in model.modules():
        base = getattr(getattr(layer, "base_layer", None), "weight", None)
        if base is None or "default" not in getattr(layer, "lora_A", ()):
            continue  # the frozen adapter that KL may be measured from does not count
        if type(base) not in (torch.Tensor, torch.nn.Parameter) or not base.is_floating_point():
            return None
        weights += float(base.float().square().sum())
        down, up = (part["default"].weight.float() for part in (layer.lora_A, layer.lora_B))
        # |BA|² without the large matrix BA: the sum of BᵀB ∘ AAᵀ
        added += layer.scaling["default"] ** 2 * float(((up.T @ up) * (down @ down.T)).sum())
    return (added / weights) ** 0.5 if weights else None


def save(
    folder: Path,
    *,
    step: int,
    model: Any,
    optimizer: torch.optim.Optimizer,
    critic: dict[str, torch.Tensor] | None = None,
    **seen: dict,
) -> Path:
    """Save adapter, optimizer state, the weights of PPO's critic, step, and any other state by name
    (`alarms`: `Watchman.state`; `draw`: `TaskDraw.state`).

    Raises OSError (for example if the disk is full), and JobError if a weight is not finite; both
    leave the last checkpoint unchanged.
    """
    if not all(bool(p.isfinite().all()) for p in trained(model)):
        raise JobError(
            f"The weights of step {step} are not finite, so no checkpoint was made; the one before"
            " is kept."
        )

    def write(new: Path) -> None:
        _write_adapter(model, new)
        tensors, numbers = _flat(optimizer)
        save_file(tensors, new / OPTIMIZER)
        if critic:
            save_file(critic, new / CRITIC)
        (new / STATE).write_text(json.dumps({"step": step, "optimizer": numbers} | seen))

    return _beside(folder, write)


def _write_adapter(model: Any, new: Path) -> None:
    """Write the trained adapter, without the frozen one that KL may be measured from, and without
    the base's embeddings, which PEFT would add if the output layer is trained.
    """
    model.create_or_update_model_card = lambda folder: None  # an empty one, slow to make
    model.save_pretrained(
        new, safe_serialization=True, selected_adapters=["default"], save_embedding_layers=False
    )


def _beside(folder: Path, write: Any) -> Path:
    new = folder.with_name(folder.name + ".incoming")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        write(new)
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder


def _flat(optimizer: torch.optim.Optimizer) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    tensors, numbers = {}, {}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{index}.{name}"] = value.contiguous()
            else:
                numbers[f"{index}.{name}"] = value
    return tensors, numbers


def optimizer_of(
    model: Any, config: Training, resume: str | None, critic: dict[str, torch.Tensor] | None = None
) -> tuple[Any, Any]:
    """(optimizer, scheduler) over the trainable parameters, in the state of the checkpoint. Those
    of PPO's critic are a group with its own learning rate.
    """
    others = list((critic or {}).values())
    known = set(map(id, others))
    groups: list[dict[str, Any]] = [{"params": [p for p in trained(model) if id(p) not in known]}]
    if others:
        groups.append({"params": others, "lr": config.critic_learning_rate or config.learning_rate})
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, weight_decay=0.0)
    load_optimizer(resume, optimizer)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(
        optimizer, schedule(config, step_of(resume))
    )


def step_of(folder: str | None) -> int:
    """The step a checkpoint was made at; 0 for none. Raises JobError."""
    return _state(folder)["step"] if folder else 0


def seen_by(name: str, folder: str | None) -> dict[str, Any]:
    """What `save` was given under this name; {} if nothing. Raises JobError."""
    return _state(folder).get(name, {}) if folder else {}


def _state(folder: str) -> dict[str, Any]:
    try:
        found = json.loads((Path(folder) / STATE).read_text())
        return found | {"step": int(found["step"])}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise JobError(damaged(folder, error)) from error


def damaged(folder: str, error: Exception) -> str:
    return (
        f"The checkpoint {folder} is missing or damaged ({error}). Fork the run from another"
        " checkpoint, or from its start."
    )


def trained(model: Any) -> list[torch.Tensor]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def snapshot(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    """A copy of everything that a step changes."""
    return [p.detach().clone() for p in trained(model)], copy.deepcopy(optimizer.state_dict())


@torch.no_grad()
def restore(model: Any, optimizer: torch.optim.Optimizer, before: Any) -> None:
    weights, state = before
    for parameter, weight in zip(trained(model), weights, strict=True):
        parameter.copy_(weight)
    optimizer.load_state_dict(state)


def load_optimizer(folder: str | None, optimizer: torch.optim.Optimizer) -> None:
    """Load a checkpoint's state into an optimizer over the same parameters in the same order."""
    if not folder:
        return
    state: dict[int, dict[str, Any]] = {}
    try:
        tensors = load_file(Path(folder) / OPTIMIZER)
    except (OSError, SafetensorError) as error:
        raise JobError(damaged(folder, error)) from error
    for key, value in [*tensors.items(), *_state(folder).get("optimizer", {}).items()]:
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(
        {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
    )


def schedule(config: Training, start: int = 0) -> Any:
    """The learning rate's factor at each optimizer step since `start`: linear warm-up, then linear
    decay.
    """
    warmup, steps, floor = config.warmup_steps, config.steps, config.final_lr_share

    def factor(done: int) -> float:
        step = start + done
        if step < warmup:
            return (step + 1) / warmup
        return max(floor, 1 - (1 - floor) * (step - warmup) / max(1, steps - warmup))

    return factor
