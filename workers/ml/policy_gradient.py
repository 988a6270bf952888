"""What an update learns from, and the gradients of its loss, over the prefix tree of its rows (workers.ml.tree)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from workers.lib.sampler_gap import gap_metrics
from workers.lib.specs import GrpoConfig
from workers.lib.token_rows import TokenRow, rows_of
from workers.ml.correction import correction_metrics, ratios, sampler_logprobs, weights
from workers.ml.groups import Group
from workers.ml.policy_loss import policy_loss
from workers.ml.tree import Scored, pad, scored_parts


@dataclass
class Batch:
    """What an update learns from: R rows, of at most U learnt tokens."""

    rows: list[TokenRow]
    advantage: Tensor  # [R]
    used: Tensor  # [R, U]: tokens of samples that are not masked
    informative: Tensor | None = None  # [R]: those of groups whose rewards differ; None: all


def batch_from(groups: Sequence[tuple[Group, Tensor]], config: GrpoConfig, device: torch.device) -> Batch:
    """The rows of groups and of their episodes' advantages [G]. An episode whose turns are not joined has several."""
    learnt = [
        (row, float(weight), done.score.masked or (config.mask_truncated and done.truncated), bool(weights.any()))
        for group, weights in groups
        for done, weight in zip(group.episodes, weights, strict=True)
        for row in rows_of(done)
    ]
    masked = torch.tensor([masked for _, _, masked, _ in learnt], dtype=torch.bool)
    real = pad([[1] * sum(row.learnt) for row, *_ in learnt] or [[]], 0)[1][: len(learnt)]
    return Batch(
        rows=[row for row, *_ in learnt],
        advantage=torch.tensor([weight for _, weight, *_ in learnt]).to(device),
        used=(real & ~masked[:, None]).to(device),
        informative=torch.tensor([informative for *_, informative in learnt], dtype=torch.bool).to(device),
    )


def micro_batches(model: Any, batch: Batch, config: GrpoConfig) -> Iterator[Scored]:
    """The parts of the batch's tree, or of a tree for each `micro_batch` rows of it."""
    size = config.micro_batch or len(batch.rows)
    for start in range(0, len(batch.rows), size):
        rows = batch.rows[start : start + size]
        for some in scored_parts(model, rows, config.temperature, recompute=config.gradient_checkpointing):
            yield Scored(some.rows + start, some.tokens, some.real)


def add_gradients(
    model: Any,
    batch: Batch,
    old: Tensor | None,
    reference: Tensor | None,
    config: GrpoConfig,
    check: Callable[[], None] = lambda: None,
) -> tuple[Tensor, dict[str, float]]:
    """Adds the gradients of the batch's loss to the model's: (log-probabilities [R, U] of its tokens, metrics).

    `old` None: the batch is on policy, the ratio exactly 1. `check` is called before each part, and may raise.
    """
    logprobs, metrics = torch.zeros(batch.used.shape, device=batch.used.device), Counter[str]()
    tokens, corrects = batch.used.sum().clamp(min=1), config.correction not in ("off", "auto")
    sampled = sampler_logprobs(batch.rows, logprobs)
    for some in micro_batches(model, batch, config):
        check()
        here = (some.rows, slice(some.real.shape[1]))
        logprobs[here] = some.tokens.logprobs.detach()
        before, far = (old if old is not None else logprobs)[here], None if reference is None else reference[here]
        advantage, used = batch.advantage[some.rows], batch.used[here]
        ratio = ratios(before, sampled[here], used, config.correction_level) if corrects else None
        loss, measured = policy_loss(
            some.tokens.logprobs, before, far, advantage, used, config, batch.used,
            informative=batch.informative, weight=None if ratio is None else weights(ratio, config.correction, config),
        )  # fmt: skip
        loss.backward()
        entropy = float((some.tokens.entropies * used).sum() / tokens)
        metrics.update(measured | {"train/loss": float(loss.detach()), "train/entropy": entropy})
    if old is None:
        metrics.update(correction_metrics(logprobs, sampled, batch.used, config.correction, config))
    return logprobs, dict(metrics)


def sampler_gap(logprobs: Tensor, rows: Sequence[TokenRow], *, same: bool = True) -> dict[str, float]:
    """How far the trainer's log-probabilities [R, U] are from the sampler's over the tokens; 0 up to rounding when on policy.

    Not the `same`: of a sampler that was cut off on purpose, or is older, the differences alone; the rest would say that the two
    compute different models.
    """
    sampled = [list(compress(row.logprobs, row.learnt)) for row in rows]
    gaps = gap_metrics([list(zip(*pair, strict=False)) for pair in zip(logprobs.tolist(), sampled, strict=True)])
    return {name: value for name, value in gaps.items() if same or "logp_diff" in name}
