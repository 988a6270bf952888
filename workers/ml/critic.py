"""The critic of PPO: an adapter of its own on the policy's base, with a head that estimates, before
each token that the policy writes, the reward still to come. Heavy: imports torch.

Policy and critic share the frozen base and no trained weight, so the loss of one cannot disturb the
other. The head starts at 0, so the first advantages are those of the rewards alone.

Sources: GAE 1506.02438, PPO 1707.06347 (the clipped value loss is that of its implementation),
Ziegler et al. 1909.08593 (KL penalty per token, adaptive coefficient). The formulas are in
docs/training-methods.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from workers.lib.errors import JobError
from workers.lib.lora_files import check_files
from workers.lib.specs.grpo import GrpoConfig
from workers.ml.checkpoint import CRITIC, damaged
from workers.ml.losses import Tokens
from workers.ml.models import device, lora_config, using
from workers.ml.policy_gradient import Batch, micro_batches, shared_logprobs
from workers.ml.ranks import ALONE, Ranks
from workers.ml.tree import decoder_of, logprobs_of

NAME = "critic"
HEAD = "value_head"


class Critic:
    """Created after all other adapters of the model. `start`: the policy's adapter, from which the
    critic's starts, too; `resume`: the checkpoint that it continues from.
    """

    def __init__(
        self, model: Any, config: GrpoConfig, start: str | None, resume: str | None
    ) -> None:
        self.model, self.config = model, config
        if start:
            check_files(start)
            model.load_adapter(start, NAME, is_trainable=True)
        else:
            model.add_adapter(NAME, lora_config(config))
        model.eval()
        self.head = torch.nn.Linear(decoder_of(model)[1].weight.shape[1], 1).to(device())
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        model.add_module(HEAD, self.head)
        self.weights = {
            name: parameter
            for name, parameter in model.named_parameters()
            if f".{NAME}." in name or name.startswith(f"{HEAD}.")
        }
        for parameter in self.weights.values():
            parameter.requires_grad_(True)
        if resume:
            self._load(Path(resume))

    @torch.no_grad()
    def _load(self, folder: Path) -> None:
        if not (folder / CRITIC).exists():
            raise JobError(
                f"The checkpoint {folder} has no critic, so PPO cannot continue from it. Start a"
                " new run from its model, or fork the run from its start."
            )
        try:
            found = load_file(folder / CRITIC)
            for name, parameter in self.weights.items():
                parameter.copy_(found[name])
        except (OSError, SafetensorError, KeyError, RuntimeError) as error:
            raise JobError(damaged(str(folder), error)) from error

    def score(self, hidden: Tensor, ids: Tensor) -> Tokens:
        """The values of the states [n, hidden] before the tokens `ids`, as `workers.ml.tree` passes
        them on.
        """
        values = self.head(hidden.to(self.head.weight.dtype))[:, 0]
        unknown = torch.zeros_like(values).detach()
        return Tokens(values, unknown, unknown.bool())

    def estimate(
        self,
        batch: Batch,
        penalty: Tensor | None,
        check: Callable[[], None] = lambda: None,
        ranks: Ranks = ALONE,
    ) -> tuple[Batch, dict[str, float]]:
        """The batch with values, returns and, in place of its tokens' rewards, advantages.
        `penalty` [R, U] is subtracted from the rewards.
        """
        with using(self.model, NAME):
            values = shared_logprobs(
                ranks, batch, partial(logprobs_of, self.model, check=check, score=self.score)
            )
        rewards = batch.advantage if penalty is None else batch.advantage - penalty
        advantages = gae(
            rewards, values, batch.used, batch.episode, self.config.gamma, self.config.gae_lambda
        )
        returns, used = advantages + values, batch.used
        spread = float(returns[used].var(correction=0))
        metrics = {
            "train/value_mean": float(values[used].mean()),
            "train/advantage_std": float(advantages[used].std(correction=0)),
        }
        if spread > 0:
            left = float((returns - values)[used].var(correction=0))
            metrics["train/explained_variance"] = 1 - left / spread
        if self.config.whiten_advantages:
            advantages = whitened(advantages, used)
        return replace(batch, advantage=advantages, values=values, returns=returns), metrics

    def add_gradients(
        self,
        batch: Batch,
        check: Callable[[], None] = lambda: None,
        ranks: Ranks = ALONE,
    ) -> dict[str, float]:
        """Add the gradients of the value loss over this process's rows to the critic's; those of
        all processes are summed with the policy's.
        """
        metrics, tokens = Counter[str](), batch.used.sum().clamp(min=1)
        assert batch.values is not None and batch.returns is not None
        values, returns = batch.values, batch.returns
        mine = ranks.mine([row.ids for row in batch.rows])

        def share() -> dict[str, float]:
            with using(self.model, NAME):
                for some in micro_batches(self.model, batch, self.config, mine, self.score):
                    check()
                    here = (some.rows, slice(some.real.shape[1]))
                    each, clipped = value_loss(
                        some.tokens.logprobs, values[here], returns[here], self.config.clip_value
                    )
                    loss = (each * batch.used[here]).sum() / tokens
                    loss.backward()
                    metrics["train/value_loss"] += float(loss.detach())
                    metrics["train/value_clip"] += float(
                        (clipped & batch.used[here]).sum() / tokens
                    )
            return dict(metrics)

        return ranks.totals(share)


def gae(
    rewards: Tensor, values: Tensor, used: Tensor, episode: Tensor, gamma: float, lambda_: float
) -> Tensor:
    """Advantages [R, U] of the tokens in use: Σ (γλ)^k δ_{t+k} over the rest of the episode, with
    δ_t = r_t + γ V_{t+1} − V_t. The next state is that before the policy's next token, whatever
    was observed in between; after the last one, nothing is earned. All [R, U]; episode [R], whose
    rows follow each other.
    """
    earned, known = rewards[used].tolist(), values[used].tolist()
    owner = episode[:, None].expand_as(used)[used].tolist()
    found, advantage = [0.0] * len(earned), 0.0
    for at in reversed(range(len(earned))):
        goes_on = at + 1 < len(earned) and owner[at + 1] == owner[at]
        following, advantage = (known[at + 1], advantage) if goes_on else (0.0, 0.0)
        advantage = earned[at] + gamma * following - known[at] + gamma * lambda_ * advantage
        found[at] = advantage
    return torch.zeros_like(values).masked_scatter(used, values.new_tensor(found))


def whitened(values: Tensor, used: Tensor) -> Tensor:
    """With mean 0 and variance 1 over the tokens in use; unchanged if there is only one."""
    seen = values[used]
    if len(seen) < 2:
        return values
    return ((values - seen.mean()) * (seen.var() + 1e-8).rsqrt()) * used


def value_loss(values: Tensor, old: Tensor, returns: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """(½ max((V − R)², (V_clipped − R)²) of each token, where clipping decided), with V_clipped
    within `clip` of the old value; 0 does not clip.
    """
    loss = (values - returns).square()
    if not clip:
        return loss / 2, torch.zeros_like(loss).bool()
    clipped = (old + (values - old).clamp(-clip, clip) - returns).square()
    return torch.maximum(loss, clipped) / 2, clipped > loss


def adapted(coefficient: float, kl: float, target: float, horizon: float, episodes: int) -> float:
    """The KL coefficient after a step whose episodes were `kl` nats from the start on average
    (1909.08593, section 2.2).
    """
    error = max(-0.2, min(0.2, kl / target - 1))
    return coefficient * (1 + error * episodes / horizon)
