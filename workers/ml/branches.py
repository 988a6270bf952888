"""Attention over a tree of segments: a prefix that all rows share, a rest of each conversation, a branch each row.

Agents' prompts are many times longer than their answers, and most of a prompt (system prompt, tools) is the same in
every task. So each level is computed once, and the level below attends to the keys and values of those above it:

    level 0  prefix   [1, S]       once for all
    level 1  rest     [C, T]       once for each conversation
    level 2  branch   [R, U]       once for each completion; R = C × G, rows of one conversation side by side

It is exact: a token attends to what comes before it in its own conversation, at the positions it would have there.
Gradients flow through every level, so the same code generates and trains. It takes the place of the attention
function of any model of the transformers library that lets it be replaced (`attn_implementation`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from workers.lib.errors import JobError

NAME = "flywheel_branches"


@dataclass
class Segment:
    """Keys and values of one level for every layer, [b, kv_heads, s, head_dim], and which of the s are real, [b, s].

    b divides the number of rows that attend to it; `real` is None where all are.
    """

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    real: Tensor | None = None


@dataclass
class Pass:
    """One forward pass: which segments stand above the new tokens, and where the new ones go.

    `store(layer, keys, values)` keeps the new keys and values and returns those that the new tokens attend to
    among themselves; `mask` [rows or 1, 1, 1, new, seen] says which (True: may attend), None for all.
    """

    above: list[Segment]
    store: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
    mask: Tensor | None


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    branch: Pass | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """query [R, heads, U, d], key and value [R, kv_heads, U, d] → [R, U, heads, d]. `branch` is passed to the model."""
    assert branch is not None, "this model was switched to branch attention; call it through workers.ml.branches"
    if softcap is not None or s_aux is not None:
        raise NotImplementedError("capped attention scores and attention sinks")
    rows, heads, new, d = query.shape
    kv_heads = key.shape[1]
    own_keys, own_values = branch.store(module.layer_idx, key, value)
    q = query.reshape(rows, kv_heads, heads // kv_heads, new, d) * scaling
    parts = [
        (segment.keys[module.layer_idx], segment.values[module.layer_idx], segment.real) for segment in branch.above
    ]
    scores = [_scores(q, keys, real) for keys, _, real in parts]
    own = _scores(q, own_keys, None)
    if branch.mask is not None:
        own = own.masked_fill(~branch.mask, float("-inf"))
    if sliding_window and sum(part.shape[-1] for part in [*scores, own]) > sliding_window:
        raise JobError(f"The prompts are longer than this model's attention window of {sliding_window} tokens.")
    weights = torch.cat([*scores, own], dim=-1).softmax(dim=-1, dtype=torch.float32).to(q.dtype)
    output = torch.zeros_like(q)
    at = 0
    for values in [*(values for _, values, _ in parts), own_values]:
        output = output + _weighted(weights[..., at : at + values.shape[2]], values)
        at += values.shape[2]
    return output.reshape(rows, heads, new, d).transpose(1, 2), None


def _fold(x: Tensor, b: int) -> Tensor:
    """[R, kv, g, U, n] → [b, kv, R/b × g × U, n]: rows that share keys become one matrix product."""
    rows, kv, g, new, n = x.shape
    if rows == b:
        return x.reshape(b, kv, g * new, n)
    return x.reshape(b, rows // b, kv, g, new, n).transpose(1, 2).reshape(b, kv, rows // b * g * new, n)


def _unfold(x: Tensor, rows: int, g: int, new: int) -> Tensor:
    """The inverse of `_fold`."""
    b, kv, _, n = x.shape
    if rows == b:
        return x.reshape(rows, kv, g, new, n)
    return x.reshape(b, kv, rows // b, g, new, n).transpose(1, 2).reshape(rows, kv, g, new, n)


def _scores(q: Tensor, keys: Tensor, real: Tensor | None) -> Tensor:
    rows, _, g, new, _ = q.shape
    b = keys.shape[0]
    folded = _fold(q, b) @ keys.transpose(-1, -2)
    if real is not None:
        folded = folded.masked_fill(~real[:, None, None, :], float("-inf"))
    return _unfold(folded, rows, g, new)


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    rows, _, g, new, _ = weights.shape
    return _unfold(_fold(weights, values.shape[0]) @ values, rows, g, new)


AttentionInterface.register(NAME, attention)


def decoder_of(model: Any) -> tuple[Any, Any]:
    """(the decoder that gives hidden states, the output projection) of a causal LM, with or without an adapter."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    return causal.get_decoder(), causal.get_output_embeddings()


def use_branches(model: Any) -> None:
    """Switches the model's attention function. Raises JobError for a model that then computes something else."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    if causal.config._attn_implementation == NAME:
        return
    training = model.training
    model.eval()
    try:
        with in_float32(causal):
            largest, allowed = _largest_difference(causal), TOLERANCES[causal.dtype]
    except torch.OutOfMemoryError:
        raise  # says nothing against the model
    except Exception as error:  # whatever a model of another make does with what it is given
        raise JobError(_unsuited(causal)) from error
    finally:
        model.train(training)
    if not largest < allowed:
        raise JobError(_unsuited(causal))


NARROW = (torch.bfloat16, torch.float16)
TOLERANCES = {torch.float32: 1e-3, torch.float64: 1e-6}  # of a log-probability, between two orders of the same sums


@contextmanager
def in_float32(model: Any) -> Iterator[None]:
    """The weights of 16 bits as float32, and back to the same bits; for that long they take twice the memory.

    Rounded to 16 bits, two right ways to the same log-probability differ by more (1 in bfloat16 on SmolLM2, by the
    library's own attention functions) than a model that is computed wrong does from itself.
    """
    narrow = [(tensor, tensor.dtype) for tensor in (*model.parameters(), *model.buffers()) if tensor.dtype in NARROW]
    try:
        for tensor, _ in narrow:
            tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, dtype in narrow:
            tensor.data = tensor.data.to(dtype)


def _unsuited(causal: Any) -> str:
    return (
        f"{type(causal).__name__} cannot be run with shared prompts: its attention or its output is of another kind. "
        "Serve the model with vLLM or another server and use the openai engine."
    )


@torch.no_grad()
def _largest_difference(causal: Any) -> float:
    """Between log-probabilities before and after the switch, over two short prompts with two completions each.

    Models with ALiBi, capped or scaled logits, attention sinks or recurrent states would be computed wrong in silence.
    """
    decoder, head = decoder_of(causal)
    tokens = [(7 * i + 3) % head.weight.shape[0] for i in range(24)]
    prompts = [tokens[:8], tokens[:5] + tokens[8:10]]
    groups = [[tokens[10:14], tokens[14:16]], [tokens[16:17], tokens[17:24]]]
    device, expected = head.weight.device, []
    for prompt, group in zip(prompts, groups, strict=True):
        for completion in group:
            ids = torch.tensor([prompt + completion], device=device)
            logits = causal(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
            expected.append(logits.float().log_softmax(-1))
    causal.set_attn_implementation(NAME)
    hidden, _, real = completion_hidden(decoder, forward_prompts(decoder, prompts, 0), groups)
    found = head(hidden[real]).float().log_softmax(-1)
    return float((found - torch.cat(expected)).abs().max())


def _causal(n: int, device: torch.device) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool, device=device).tril()[None, None, None]


def forward_level(
    decoder: Any, ids: Tensor, real: Tensor | None, starts: Tensor, above: list[Segment]
) -> tuple[Tensor, Segment]:
    """One level: hidden states [b, n, hidden] of `ids` [b, n] and the segment that the level below attends to.

    `starts` [b] is the position of each row's first real token; padding may stand left or right of the real ones.
    """
    segment = Segment(real=real)
    if real is None:
        offsets = torch.arange(ids.shape[1], device=ids.device)[None].expand_as(ids)
        mask = _causal(ids.shape[1], ids.device)
    else:
        offsets = (real.cumsum(-1) - 1).clamp(min=0)
        itself = torch.eye(ids.shape[1], dtype=torch.bool, device=ids.device)
        # A padded token attends to itself alone, so that no row of the softmax is empty.
        mask = (_causal(ids.shape[1], ids.device) & real[:, None, None, None, :]) | itself

    def store(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        segment.keys.append(keys)
        segment.values.append(values)
        return keys, values

    hidden = decoder(
        input_ids=ids, position_ids=starts[:, None] + offsets, use_cache=False, branch=Pass(above, store, mask)
    ).last_hidden_state
    return hidden, segment


def common_prefix(prompts: list[list[int]]) -> int:
    """Length of the token prefix that all prompts share; at least one token is left to each."""
    first, last = min(prompts), max(prompts)
    shortest = min(len(prompt) for prompt in prompts)
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    return min(same, shortest - 1)


def pad(sequences: list[list[int]], fill: int, *, left: bool = False) -> tuple[Tensor, Tensor]:
    """(ids [b, n], real [b, n]) of sequences of different lengths."""
    width = max(map(len, sequences))
    ids = torch.full((len(sequences), width), fill, dtype=torch.long)
    real = torch.zeros(len(sequences), width, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        where = slice(width - len(sequence), width) if left else slice(0, len(sequence))
        ids[row, where] = torch.tensor(sequence, dtype=torch.long)
        real[row, where] = True
    return ids, real


@dataclass
class Prompted:
    """The prompts of a batch, computed: segments, where each conversation ends, and its last hidden state."""

    segments: list[Segment]
    lengths: Tensor  # [C]
    last_hidden: Tensor  # [C, hidden]
    fill: int


def forward_prompts(decoder: Any, prompts: list[list[int]], fill: int) -> Prompted:
    """Levels 0 and 1. Rests are padded on the left, so that every conversation's last token is in the last column."""
    shared = common_prefix(prompts)
    device = next(decoder.parameters()).device
    segments: list[Segment] = []
    if shared:
        prefix = torch.tensor([prompts[0][:shared]], device=device)
        _, segment = forward_level(decoder, prefix, None, torch.zeros(1, dtype=torch.long, device=device), [])
        segments.append(segment)
    ids, real = pad([prompt[shared:] for prompt in prompts], fill, left=True)
    ids, real = ids.to(device), real.to(device)
    starts = torch.full((len(prompts),), shared, device=device)
    hidden, rest = forward_level(decoder, ids, real, starts, segments)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    return Prompted([*segments, rest], lengths, hidden[:, -1], fill)


def completion_hidden(
    decoder: Any, prompted: Prompted, completions: list[list[list[int]]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states that predict each token of each completion: (hidden [R, U, h], token ids [R, U], real [R, U]).

    `completions[c][g]` are the tokens of completion g of conversation c; every conversation has as many.
    The first token is predicted from the prompt's last state, the others from the branch.
    """
    flat = [tokens for group in completions for tokens in group]
    each = len(completions[0])
    device = prompted.last_hidden.device
    ids, real = pad(flat, prompted.fill)
    ids, real = ids.to(device), real.to(device)
    first = prompted.last_hidden.repeat_interleave(each, 0)[:, None]
    if ids.shape[1] == 1:
        return first, ids, real
    starts = prompted.lengths.repeat_interleave(each)
    hidden, _ = forward_level(decoder, ids[:, :-1], real[:, :-1], starts, prompted.segments)
    return torch.cat([first, hidden], dim=1), ids, real
