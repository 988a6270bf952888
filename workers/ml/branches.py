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

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from workers.lib.errors import JobError
from workers.ml.attention import NAME, Pass, Segment
from workers.ml.gated import keep_less


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


PART = {"cpu": 256, "cuda": 16384}  # tokens computed with gradients at a time; more are not faster on a CPU
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
    keep_less(causal)
    hidden, _, real = completion_hidden(decoder, forward_prompts(decoder, prompts, 0), groups)
    found = head(hidden[real]).float().log_softmax(-1)
    return float((found - torch.cat(expected)).abs().max())


def _causal(n: int, device: torch.device) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool, device=device).tril()[None]


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
        mask = (_causal(ids.shape[1], ids.device) & real[:, None]) | itself

    def store(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        segment.keys.append(keys.contiguous())
        segment.values.append(values.contiguous())
        return segment.keys[-1], segment.values[-1]

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
    """Levels 0 and 1."""
    shared = common_prefix(prompts)
    return forward_rests(decoder, prompts, shared, forward_prefix(decoder, prompts[0][:shared]), fill)


def forward_prefix(decoder: Any, tokens: list[int]) -> list[Segment]:
    """Level 0, of one segment or, where nothing is shared, of none."""
    if not tokens:
        return []
    ids = torch.tensor([tokens], device=next(decoder.parameters()).device)
    return [forward_level(decoder, ids, None, torch.zeros(1, dtype=torch.long, device=ids.device), [])[1]]


def forward_rests(decoder: Any, prompts: list[list[int]], shared: int, above: list[Segment], fill: int) -> Prompted:
    """Level 1. Rests are padded on the left, so that every conversation's last token is in the last column."""
    device = next(decoder.parameters()).device
    ids, real = pad([prompt[shared:] for prompt in prompts], fill, left=True)
    starts = torch.full((len(prompts),), shared, device=device)
    hidden, rest = forward_level(decoder, ids.to(device), real.to(device), starts, above)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    return Prompted([*above, rest], lengths, hidden[:, -1], fill)


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


def completion_parts(
    decoder: Any, prompts: list[list[int]], completions: list[list[list[int]]], fill: int
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """`completion_hidden` a part of the rows at a time, PART tokens or one row: (rows, hidden, ids, real).

    With gradients, send each part's loss backward before asking for the next: then the activations of one part exist at
    a time. The prompts' own follow by themselves, once for all that attends to them.
    """
    shared, each = common_prefix(prompts), len(completions[0])
    longest = [max(map(len, group)) for group in completions]
    sizes = [len(prompt) - shared + each * most for prompt, most in zip(prompts, longest, strict=True)]
    with cut(forward_prefix(decoder, prompts[0][:shared])) as (above,):
        for some in parts(sizes, decoder):
            prompted = forward_rests(decoder, prompts[some], shared, above, fill)
            with cut(prompted.segments[-1:], prompted.last_hidden) as (rest, last):
                prompted = replace(prompted, segments=[*above, *rest], last_hidden=last)
                alone = len(prompts[some]) == 1
                for at in parts(list(map(len, completions[some.start])), decoder) if alone else [slice(0, each)]:
                    part = [group[at] for group in completions[some]]
                    first = some.start * each + at.start
                    rows = slice(first, first + sum(map(len, part)))
                    yield rows, *completion_hidden(decoder, prompted, part)


def parts(sizes: list[int], decoder: Any) -> Iterator[slice]:
    """Neighbours that are computed together: PART tokens, padded to the longest, or one."""
    device = next(decoder.parameters()).device.type
    most, start, widest = PART.get(device, PART["cpu"]), 0, 0
    for end, size in enumerate(sizes):
        widest = max(widest, size)
        if end > start and (end + 1 - start) * widest > most:
            yield slice(start, end)
            start, widest = end, size
    yield slice(start, len(sizes))


@contextmanager
def cut(segments: list[Segment], *tensors: Tensor) -> Iterator[tuple[Any, ...]]:
    """The same without their past, into which the gradients that have reached them go when the block ends.

    So what is computed from them may go backward in parts, and what they were computed from goes backward once.
    """
    whole = [*(tensor for segment in segments for tensor in (*segment.keys, *segment.values)), *tensors]
    if not torch.is_grad_enabled():
        yield segments, *tensors
        return
    leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in whole]
    left = iter(leaves)
    yield (
        [Segment([next(left) for _ in s.keys], [next(left) for _ in s.values], s.real) for s in segments],
        *left,
    )
    reached = [(tensor, leaf.grad) for tensor, leaf in zip(whole, leaves, strict=True) if leaf.grad is not None]
    if reached:
        torch.autograd.backward(*zip(*reached, strict=True))
