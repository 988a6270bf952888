"""TRL's GRPOTrainer, set up to compute what ours computes: for the benchmark and for the test of
equality.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workers.lib.token_rows import TokenRow


def trl_trainer(
    model: Any,
    tokenizer: Any,
    out: Path,
    config: dict,
    prompts: list[list[dict]],
    reward: Any = None,
) -> Any:
    """A GRPOTrainer on `model` (already with its adapter) with the settings of our config; nothing
    is saved.
    """
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rows = config["prompts_per_step"] * config["generations"]
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        reward_funcs=reward or (lambda completions, **_: [0.0] * len(completions)),
        args=GRPOConfig(
            output_dir=str(out),
            per_device_train_batch_size=rows,
            num_generations=config["generations"],
            max_completion_length=config["max_new_tokens"],
            temperature=config["temperature"],
            beta=config["beta"],
            epsilon=config["clip_low"],
            epsilon_high=config["clip_high"],
            loss_type=config["loss_type"],
            scale_rewards=config["scale_rewards"],
            learning_rate=config["learning_rate"],
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=not torch.cuda.is_available(),
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            max_steps=1,
        ),
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def trl_inputs(
    rows: list[TokenRow], advantages: Tensor, reference: Tensor | None
) -> dict[str, Tensor]:
    """The batch as TRL's loss wants it: prompts padded on the left, completions on the right."""
    from workers.ml.tree import pad

    prompt_ids, prompt_mask = pad([row.prompt for row in rows], 0, left=True)
    ids, mask = pad([row.completion for row in rows], 0)
    inputs = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask.long(),
        "completion_ids": ids,
        "completion_mask": mask.long(),
        "advantages": advantages,
        "num_items_in_batch": mask.sum(),
    }
    return inputs if reference is None else inputs | {"ref_per_token_logps": reference}


def gradients(model: Any) -> dict[str, Tensor]:
    """{parameter: gradient} of what trains; names without the prefixes of wrappers."""
    return {
        name.split("model.", 1)[-1]: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is not None
    }


def largest_relative_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """max over parameters of |a − b| / |b| (norms); both must be of the same parameters."""
    assert ours.keys() == theirs.keys() and ours
    return max(
        float((ours[name] - theirs[name]).norm() / theirs[name].norm().clamp(min=1e-12))
        for name in ours
    )


def randomise_adapter(model: Any, seed: int = 0) -> None:
    """LoRA starts with B = 0, where half of the gradients vanish: random values make the comparison
    say more. A is set as well, so that two models which drew theirs one after the other are the
    same."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
