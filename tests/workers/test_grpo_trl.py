"""Our loss and gradients are TRL's, on the same samples: float32, a tiny Llama, tolerance 1e-5 / 1e-4 relative."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bench.trl_reference import (  # noqa: E402
    gradients,
    largest_relative_difference,
    randomise_adapter,
    trl_inputs,
    trl_trainer,
)
from workers.branches import use_branches  # noqa: E402
from workers.grpo import DEFAULTS, logprobs_of, policy_loss  # noqa: E402
from workers.models import load_base, lora  # noqa: E402

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [5, 6, 7, 8, 20, 21], [5, 6, 7, 8, 9, 30, 31, 32]]
COMPLETIONS = [
    [[40, 41, 42], [40, 43], [44, 45, 46, 47, 48], [49]],
    [[50], [51, 52, 53, 54], [55, 56], [57, 58, 59]],
    [[60, 61], [62, 63, 64], [65], [66, 67, 68, 69]],
]
ADVANTAGES = [0.5, -1.2, 1.5, -0.8, 1.0, -1.0, 0.3, -0.3, 0.9, -0.2, -1.1, 0.4]


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_loss_and_gradients_are_those_of_trl(tiny_model: Path, tmp_path: Path, loss_type: str, beta: float) -> None:
    config = DEFAULTS | {
        "loss_type": loss_type, "beta": beta, "prompts_per_step": 3, "generations": 4, "max_new_tokens": 8,
        "learning_rate": 1e-3, "temperature": 1.0,
    }  # fmt: skip
    base, tokenizer = load_base(tiny_model)
    model = lora(base, {"lora_rank": 4}, None).eval()
    randomise_adapter(model)
    twin = copy.deepcopy(model)
    advantage = torch.tensor(ADVANTAGES)
    reference = torch.full((12, 5), -4.0) if beta else None

    use_branches(model)
    logprobs, _, real = logprobs_of(model, PROMPTS, COMPLETIONS, 1.0, 0)
    loss, _ = policy_loss(logprobs, logprobs.detach(), reference, advantage, real, config)
    loss.backward()

    trainer = trl_trainer(twin, tokenizer, tmp_path, config, [[{"role": "user", "content": "x"}]] * 3)
    trainer.model.train()
    theirs = trainer._compute_loss(trainer.model, trl_inputs(PROMPTS, COMPLETIONS, advantage, reference, 0))
    theirs.backward()

    assert float(loss) == pytest.approx(float(theirs), rel=1e-5, abs=1e-6)
    assert largest_relative_difference(gradients(model), gradients(trainer.model)) < 1e-4


def test_it_would_notice_a_difference(tiny_model: Path) -> None:
    """The comparison can fail: another advantage gives other gradients."""
    base, _ = load_base(tiny_model)
    model = lora(base, {"lora_rank": 4}, None).eval()
    randomise_adapter(model)
    use_branches(model)
    found = []
    for scale in (1.0, 1.01):
        model.zero_grad()
        logprobs, _, real = logprobs_of(model, PROMPTS, COMPLETIONS, 1.0, 0)
        advantage = torch.tensor(ADVANTAGES) * torch.linspace(1, scale, 12)
        policy_loss(logprobs, logprobs.detach(), None, advantage, real, DEFAULTS)[0].backward()
        found.append(gradients(model))
    assert largest_relative_difference(found[1], found[0]) > 1e-4
