"""The batch that an update learns from, and the gradients of its loss over the prefix tree of its
rows (workers.ml.tree).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress, islice
from typing import Any

import torch
from torch import Tensor

from workers.lib.rollouts import Finished
from workers.lib.sampler_gap import gap_metrics
from workers.lib.specs.grpo import GrpoConfig
from workers.lib.token_rows import TokenRow, rows_of
from workers.ml.correction import correction_metrics, ratios, sampler_logprobs, weights
from workers.ml.groups import Group, token_rewards
from workers.ml.policy_loss import OF_SEQUENCE, Completions, policy_loss
from workers.ml.ranks import ALONE, Ranks
from workers.ml.tree import Score, Scored, logprobs_of, pad, scored_parts


@dataclass
class Batch:
    """The data of an update: R rows with at most U learned tokens each."""

    rows: list[TokenRow]
    advantage: Tensor  # [R], or [R, U] if each turn has its own
    used: Tensor  # [R, U]: tokens of samples that are not masked
    # [R]: number of the row's episode, i.e. the completion that losses are averaged over
    episode: Tensor
    informative: Tensor | None = None  # [R]: rows of groups whose rewards differ; None means all
    # PPO, [R, U]: the critic's values before the update, and what they should have been
    values: Tensor | None = None
    returns: Tensor | None = None

    @property
    def split(self) -> bool:
        """Whether some episode consists of several rows."""
        return len(self.episode.unique()) < len(self.episode)

    def only(self, numbers: Tensor) -> Batch:
        """Some rows, as a batch of their own."""
        tensors = {
            name: value[numbers] for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, rows=[self.rows[number] for number in numbers.tolist()], **tensors)

    def advantage_of(self, rows: Any, width: int) -> Tensor:
        """[r], or [r, width]."""
        return self.advantage[rows] if self.advantage.dim() == 1 else self.advantage[rows, :width]


def batch_from(
    groups: Sequence[tuple[Group, Tensor]], config: GrpoConfig, device: torch.device
) -> Batch:
    """The rows of (group, advantages [G] or [G, T]). An episode whose turns cannot be joined has
    several rows. With PPO, `advantage` is at first the reward of each token.
    """
    gae = config.advantages == "gae"
    rows, per_token, masked, informative, episode = [], [], [], [], []
    for group, advantages in groups:
        for done, given in zip(group.episodes, advantages, strict=True):
            left = iter(token_rewards(done) if gae else token_advantages(done, given))
            for row in rows_of(done):
                rows.append(row)
                per_token.append(list(islice(left, sum(row.learnt))))
                masked.append(done.score.masked or (config.mask_truncated and done.truncated))
                informative.append(gae or bool(advantages.any()))
                episode.append(done)
    real = pad([[1] * len(tokens) for tokens in per_token] or [[]], 0)[1][: len(rows)]
    width = 1 if config.advantages == "episode" else real.shape[1]
    advantage = torch.tensor([(tokens + [0.0] * width)[:width] for tokens in per_token]).reshape(
        len(rows), width
    )
    number = {id(done): at for at, done in enumerate({id(done): done for done in episode}.values())}
    return Batch(
        rows=rows,
        advantage=(advantage[:, 0] if config.advantages == "episode" else advantage).to(device),
        used=(real & ~torch.tensor(masked, dtype=torch.bool)[:, None]).to(device),
        episode=torch.tensor([number[id(done)] for done in episode], dtype=torch.long).to(device),
        informative=torch.tensor(informative, dtype=torch.bool).to(device),
    )


def token_advantages(done: Finished, given: Tensor) -> list[float]:
    """The advantage of each token that the policy generated, in order, from the episode's advantage
    or each turn's [T].
    """
    of_turns = given.tolist() if given.dim() else [float(given)] * len(done.replies)
    return [
        advantage
        for reply, advantage in zip(done.replies, of_turns, strict=False)
        for _ in reply.token_ids
    ]


def minibatches(batch: Batch, count: int, seed: int) -> Sequence[Tensor]:
    """The rows of each part of a shuffled batch. The rows of an episode stay together; parts
    without a token in use are left out.
    """
    everything = torch.arange(len(batch.rows), device=batch.used.device)
    if count == 1:
        return [everything]
    episodes = batch.episode.unique().cpu()
    order = torch.randperm(len(episodes), generator=torch.Generator().manual_seed(seed))
    parts = [
        everything[torch.isin(batch.episode, some.to(batch.episode.device))]
        for some in episodes[order].tensor_split(count)
    ]
    return [rows for rows in parts if batch.used[rows].any()]


def micro_batches(
    model: Any,
    batch: Batch,
    config: GrpoConfig,
    numbers: Sequence[int],
    score: Score | None = None,
) -> Iterator[Scored]:
    """The parts of one tree over these rows of the batch, or of one tree for each `micro_batch` of
    them.
    """
    size = config.micro_batch or max(1, len(numbers))
    for start in range(0, len(numbers), size):
        some_numbers = torch.tensor(numbers[start : start + size], device=batch.used.device)
        rows = [batch.rows[number] for number in numbers[start : start + size]]
        for some in scored_parts(
            model, rows, config.temperature, recompute=config.gradient_checkpointing, score=score
        ):
            yield Scored(some_numbers[some.rows], some.tokens, some.real)


def shared_logprobs(
    ranks: Ranks, batch: Batch, compute: Callable[[list[TokenRow]], Tensor]
) -> Tensor:
    """The result of `compute` for all rows, [R, U]; each process computes some of them."""
    if ranks.size == 1:
        return compute(batch.rows)
    found, mine = (
        torch.zeros(batch.used.shape, device=batch.used.device),
        ranks.mine([row.ids for row in batch.rows]),
    )

    def work() -> None:
        if mine:
            some = compute([batch.rows[number] for number in mine])
            found[torch.tensor(mine, device=found.device), : some.shape[1]] = some.to(found.dtype)

    ranks.gather(work)
    ranks.add(found)
    return found


def add_gradients(
    model: Any,
    batch: Batch,
    old: Tensor | None,
    reference: Tensor | None,
    config: GrpoConfig,
    check: Callable[[], None] = lambda: None,
    ranks: Ranks = ALONE,
) -> tuple[Tensor, dict[str, float]]:
    """Add the gradients of the batch's loss to the model's. Returns (log-probabilities [R, U] of
    its tokens, metrics).

    `old` None: the batch is on policy, so the ratio is exactly 1. `check` is called before each
    part, and may raise. With several `ranks`, each computes its share of the rows, and all get the
    sum.
    """
    logprobs, metrics = torch.zeros(batch.used.shape, device=batch.used.device), Counter[str]()
    mine = ranks.mine([row.ids for row in batch.rows])
    tokens, corrects = batch.used.sum().clamp(min=1), config.correction not in ("off", "auto")
    sampled, completions = (
        sampler_logprobs(batch.rows, logprobs),
        Completions.of(batch.used, batch.episode),
    )

    def loss_of(new: Tensor, rows: Any, width: int) -> Tensor:
        """The loss of some rows, from log-probabilities [r, width]. The losses of all rows add up
        to the batch's.
        """
        here = (rows, slice(width))
        before, used = (new.detach() if old is None else old[here]), batch.used[here]
        far, episode = None if reference is None else reference[here], batch.episode[rows]
        ratio = (
            ratios(before, sampled[here], used, config.correction_level, episode)
            if corrects
            else None
        )
        loss, measured = policy_loss(
            new,
            before,
            far,
            batch.advantage_of(rows, width),
            used,
            config,
            completions.only(rows),
            informative=batch.informative,
            weight=None if ratio is None else weights(ratio, config.correction, config),
        )
        metrics.update(measured | {"train/loss": float(loss.detach())})
        return loss

    slope = None
    if batch.split and (
        config.loss_type in OF_SEQUENCE or (corrects and config.correction_level == "sequence")
    ):
        # A ratio over a whole episode needs all its rows at once, so the loss's derivative by the
        # log-probabilities is computed first.
        whole = shared_logprobs(
            ranks, batch, lambda rows: logprobs_of(model, rows, config.temperature, check)
        )
        whole.requires_grad_()
        (slope,) = torch.autograd.grad(loss_of(whole, slice(None), whole.shape[1]), whole)
        if not ranks.is_main:
            metrics.clear()  # they are of the whole batch and must count once

    def share() -> dict[str, float]:
        for some in micro_batches(model, batch, config, mine):
            check()
            here = (some.rows, slice(some.real.shape[1]))
            logprobs[here] = some.tokens.logprobs.detach()
            if slope is None:
                loss_of(some.tokens.logprobs, some.rows, some.real.shape[1]).backward()
            else:
                (some.tokens.logprobs * slope[here]).sum().backward()
            metrics["train/entropy"] += float(
                (some.tokens.entropies * batch.used[here]).sum() / tokens
            )
        return dict(metrics)

    found = ranks.totals(share)
    ranks.add(logprobs)
    ranks.add_gradients(model.parameters())
    if old is None:
        found |= correction_metrics(
            logprobs, sampled, batch.used, config.correction, config, batch.episode
        )
    return logprobs, found


def sampler_gap(
    logprobs: Tensor, rows: Sequence[TokenRow], *, same: bool = True
) -> dict[str, float]:
    """How far the trainer's log-probabilities [R, U] are from the sampler's; 0 up to rounding when
    on policy.

    If trainer and sampler are not the `same`, because the sampler was truncated on purpose or is
    older, only the differences are reported: the other metrics would claim that the two compute
    different models.
    """
    sampled = [list(compress(row.logprobs, row.learnt)) for row in rows]
    gaps = gap_metrics(
        [list(zip(*pair, strict=False)) for pair in zip(logprobs.tolist(), sampled, strict=True)]
    )
    return {name: value for name, value in gaps.items() if same or "logp_diff" in name}
