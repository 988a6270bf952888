"""A causal LM over the prefix tree of an update's token rows (workers.lib.prefixes): each distinct
token is computed once.

Agents' prompts are many times longer than their answers, most of a prompt is the same in every
task, and episodes of one task share their first turns. The tree is computed part by part. A part is
one sequence without padding, in which a token attends to earlier tokens of its own rows: within the
part, and in the parts above, whose keys and values are kept.

It is exact: every token has the same position and sees the same tokens as in its row alone.
Gradients flow through all parts. What a part passes to those below it (keys, values,
log-probabilities) is detached from its history, accumulates the gradients of everything below, and
goes backward once. So only the activations of one path from the root exist at a time, and a loss
over a row whose learned tokens lie in several parts is the loss over the whole row.

It replaces the attention function of any transformers model that allows this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from workers.lib.errors import JobError
from workers.lib.prefixes import Part, Tree
from workers.lib.prefixes import Tokens as PartTokens
from workers.ml.attention import NAME, Pass, Segment, tree_attention
from workers.ml.four_bit import products_in_float32
from workers.ml.lean import keep_less
from workers.ml.losses import Tokens, token_logprobs

PART = {
    "cpu": 256,
    "cuda": 16384,
}  # tokens computed with gradients at a time; more are not faster on a CPU
NARROW = (torch.bfloat16, torch.float16)
# Maximum difference of a log-probability between two orders of summation.
TOLERANCES = {torch.float32: 1e-3, torch.float64: 1e-6}


# Of hidden states [n, hidden] and the tokens [n] that they predict.
Score = Callable[[Tensor, Tensor], Tokens]


class Row(Protocol):
    """Tokens, and which of them are learned, as in workers.lib.token_rows. The first cannot be
    learned, since nothing predicts it.
    """

    ids: Sequence[int]
    learnt: Sequence[bool]


@dataclass
class Scored:
    """The model's output for the learned tokens of some rows. `rows` [r] are the rows' numbers; in
    `tokens` and `real`, all [r, u], the first entries of each row are its learned tokens, in order.
    0 where not real.
    """

    rows: Tensor
    tokens: Tokens
    real: Tensor


def decoder_of(model: Any) -> tuple[Any, Any]:
    """(the decoder that returns hidden states, the output projection) of a causal LM, with or
    without an adapter.
    """
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    return causal.get_decoder(), causal.get_output_embeddings()


def scored_parts(
    model: Any,
    rows: Sequence[Row],
    temperature: float = 1.0,
    *,
    recompute: bool = False,
    together: bool = False,
    score: Score | None = None,
) -> Iterator[Scored]:
    """Yield all rows that have learned tokens, each once, some at a time. `score` replaces the
    log-probabilities by another function of the hidden states. `recompute` (gradient
    checkpointing): a part's activations are not kept while those below it are computed, but
    recomputed for its backward pass.

    With gradients, call backward on the loss of what was yielded before asking for more; the loss
    must be a sum over rows. After the last one, the weights have all their gradients. `together`:
    for a loss over all rows whose backward pass comes at the end, which keeps the activations of
    the whole tree.
    """
    if score is None:
        score = partial(token_logprobs, decoder_of(model)[1], temperature=temperature)
    targets = _Targets(rows)
    tree = Tree([row.ids[: last + 1] for row, last in zip(rows, targets.last, strict=True)])
    targets.place(tree)
    for part in tree.parts(part_size(model)):
        yield from _walk(model, part, targets, score, [], [], recompute, together)


def logprobs_of(
    model: Any,
    rows: Sequence[Row],
    temperature: float = 1.0,
    check: Callable[[], None] = lambda: None,
    score: Score | None = None,
) -> Tensor:
    """Log-probabilities [R, U] of the rows' learned tokens, in order, or what `score` computes in
    their place; 0 after the end of each row. Without gradients. `check` is called after each part,
    and may raise.
    """
    width = max(sum(row.learnt[1:]) for row in rows)
    found = torch.zeros(len(rows), width, device=next(model.parameters()).device)
    with torch.no_grad():
        for some in scored_parts(model, rows, temperature, score=score):
            found[some.rows, : some.real.shape[1]] = some.tokens.logprobs.to(found.dtype)
            check()
    return found


def part_size(model: Any) -> int:
    return PART.get(next(model.parameters()).device.type, PART["cpu"])


class _Targets:
    """The distinct learned tokens, and the state that predicts each. Rows that continue in the same
    way share their targets.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        # A row is computed up to the token before its last learned one; without a learned token not
        # at all.
        self.learnt = [np.flatnonzero(np.asarray(row.learnt, bool)[1:]) for row in rows]
        self.last = [int(learnt[-1]) if len(learnt) else -1 for learnt in self.learnt]

    def place(self, tree: Tree) -> None:
        pairs = [
            np.stack([path[learnt], np.asarray(row.ids, int)[learnt + 1]], axis=1)
            for row, path, learnt in zip(self.rows, tree.paths, self.learnt, strict=True)
        ]
        distinct, inverse = np.unique(np.concatenate(pairs), axis=0, return_inverse=True)
        self.states, self.ids = distinct[:, 0], distinct[:, 1]  # sorted by the number of the state
        self.of_row = np.split(inverse.reshape(-1), np.cumsum([len(pair) for pair in pairs])[:-1])
        self.slots = np.zeros(
            len(distinct), int
        )  # position of each target among those computed so far
        self.ending: dict[int, list[int]] = defaultdict(list)  # {number of the last state: rows}
        for number, (path, learnt) in enumerate(zip(tree.paths, self.learnt, strict=True)):
            if len(learnt):
                self.ending[int(path[-1])].append(number)

    def of(self, part: Part) -> np.ndarray:
        return np.flatnonzero(np.isin(self.states, part.numbers))

    def rows_ending(self, part: Part) -> list[int]:
        return [row for number in part.numbers for row in self.ending.get(int(number), [])]


def _walk(
    model: Any,
    part: Part,
    targets: _Targets,
    score: Score,
    above: list[Segment],
    scored: list[Tokens],
    recompute: bool = False,
    together: bool = False,
) -> Iterator[Scored]:
    """Yield the rows that end in this part, then those of the parts below."""
    decoder, _ = decoder_of(model)
    hidden, segment = (forward_again if recompute and part.below else forward_part)(
        decoder, part, above
    )
    mine = targets.of(part)
    states = torch.from_numpy(np.searchsorted(part.numbers, targets.states[mine])).to(hidden.device)
    ids = torch.from_numpy(targets.ids[mine]).to(hidden.device)
    found = score(hidden[states], ids)
    targets.slots[mine] = sum(len(tokens.logprobs) for tokens in scored) + np.arange(len(mine))
    below = [segment] if part.below else []
    with (
        nullcontext((below, found.logprobs)) if together else cut(below, found.logprobs) as (
            kept,
            logprobs,
        )
    ):
        scored = [*scored, found._replace(logprobs=logprobs)]
        if rows := targets.rows_ending(part):
            yield _gather(rows, targets, scored)
        for one in part.below:
            yield from _walk(
                model, one, targets, score, [*above, *kept], scored, recompute, together
            )


def _gather(rows: list[int], targets: _Targets, scored: list[Tokens]) -> Scored:
    device = scored[0].logprobs.device
    slots, real = pad([targets.slots[targets.of_row[row]].tolist() for row in rows], 0)
    slots, real = slots.to(device), real.to(device)
    logprobs, entropies, likeliest = (torch.cat(each)[slots] for each in zip(*scored, strict=True))
    tokens = Tokens(
        logprobs.masked_fill(~real, 0), entropies.masked_fill(~real, 0), likeliest & real
    )
    return Scored(torch.tensor(rows, device=device), tokens, real)


def forward_part(
    decoder: Any, part: Part | PartTokens, above: list[Segment]
) -> tuple[Tensor, Segment]:
    """Hidden states [n, hidden] of the part's tokens, and the segment that the parts below attend
    to.
    """
    device = next(decoder.parameters()).device
    segment = Segment(numbers=part.numbers, ends=part.ends)

    def store(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        segment.keys.append(keys.contiguous())
        segment.values.append(values.contiguous())
        return segment.keys[-1], segment.values[-1]

    hidden = decoder(
        input_ids=torch.tensor([part.ids], device=device),
        position_ids=torch.from_numpy(part.positions)[None].to(device),
        use_cache=False,
        branch=Pass(above, store, tree_attention(segment, above), int(part.positions.max()) + 1),
    ).last_hidden_state
    return hidden[0], segment


def forward_again(decoder: Any, part: Part, above: list[Segment]) -> tuple[Tensor, Segment]:
    """`forward_part` without keeping activations: the backward pass recomputes them."""
    if not torch.is_grad_enabled():
        return forward_part(decoder, part, above)

    def run() -> tuple[Tensor, ...]:
        hidden, segment = forward_part(decoder, part, above)
        return hidden, *segment.keys, *segment.values

    hidden, *kept = checkpoint(run, use_reentrant=False)
    half = len(kept) // 2
    return hidden, Segment(kept[:half], kept[half:], part.numbers, part.ends)


def computed(
    decoder: Any, parts: list[Part], above: list[Segment]
) -> Iterator[tuple[Part, Tensor, Segment]]:
    """Yield each part, including those below, with its hidden states and its segment. Use it
    without gradients.
    """
    for part in parts:
        hidden, segment = forward_part(decoder, part, above)
        yield part, hidden, segment
        yield from computed(decoder, part.below, [*above, segment])


@contextmanager
def cut(segments: list[Segment], *tensors: Tensor) -> Iterator[tuple[Any, ...]]:
    """Yield the tensors detached from their history; when the block ends, the gradients that they
    have accumulated are propagated into it.

    So everything computed from them may go backward in parts, while what they were computed from
    goes backward once.
    """
    whole = [
        *(tensor for segment in segments for tensor in (*segment.keys, *segment.values)),
        *tensors,
    ]
    if not torch.is_grad_enabled():
        yield segments, *tensors
        return
    leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in whole]
    left = iter(leaves)
    yield (
        [
            Segment([next(left) for _ in s.keys], [next(left) for _ in s.values], s.numbers, s.ends)
            for s in segments
        ],
        *left,
    )
    reached = [
        (tensor, leaf.grad)
        for tensor, leaf in zip(whole, leaves, strict=True)
        if leaf.grad is not None
    ]
    if reached:
        torch.autograd.backward(*zip(*reached, strict=True))


# Generation


@dataclass(eq=False)
class Store:
    """Keys and values of tokens of one batch, one tensor per layer [kv_heads, 1, n, head_dim]."""

    keys: list[Tensor]
    values: list[Tensor]

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))


@dataclass(eq=False)
class Cached:
    """The beginning of a sequence, computed earlier: the positions of its tokens in the store,
    [n].
    """

    store: Store
    path: np.ndarray


@dataclass
class Prefilled:
    """Computed prompts: keys and values of their distinct tokens by number, one tensor per layer
    [kv_heads, 1, n, head_dim]. `paths`: the numbers of each prompt's tokens; `own`: those after the
    first `shared`, which all prompts have in common; and each prompt's last hidden state.
    """

    keys: list[Tensor]
    values: list[Tensor]
    paths: list[np.ndarray]
    shared: int
    own: Tensor  # [C, width], padded with 0 on the left
    real: Tensor  # [C, width]
    lengths: Tensor  # [C]
    last_hidden: Tensor  # [C, hidden]

    @property
    def prefix(self) -> list[Segment]:
        """The common beginning of all prompts."""
        if not self.shared:
            return []
        return [
            Segment(
                [k[:, :, : self.shared] for k in self.keys],
                [v[:, :, : self.shared] for v in self.values],
            )
        ]


def prefill(
    decoder: Any, prompts: Sequence[Sequence[int]], cached: Sequence[Cached | None] = ()
) -> Prefilled:
    """Compute prompts without gradients. Where a prompt is cached, only its last token is computed,
    since its state is needed.
    """
    tree, device = Tree(prompts), next(decoder.parameters()).device
    tokens, segments, known = tree.tokens(), *_known(tree, cached)
    missing, hidden = np.flatnonzero(~known), []
    for at in range(0, len(missing), part_size(decoder)):
        states, segment = forward_part(
            decoder, tokens.some(missing[at : at + part_size(decoder)]), segments
        )
        hidden.append(states)
        segments = [*segments, segment]
    order = np.argsort(np.concatenate([segment.numbers for segment in segments]))
    own, real = pad([path[tree.shared :].tolist() for path in tree.paths], 0, left=True)
    last = np.searchsorted(missing, [path[-1] for path in tree.paths])
    return Prefilled(
        keys=_joined([segment.keys for segment in segments], order),
        values=_joined([segment.values for segment in segments], order),
        paths=tree.paths,
        shared=tree.shared,
        own=own.to(device),
        real=real.to(device),
        lengths=torch.tensor([len(path) for path in tree.paths], device=device),
        last_hidden=torch.cat(hidden)[torch.from_numpy(last).to(device)],
    )


def _known(tree: Tree, cached: Sequence[Cached | None]) -> tuple[list[Segment], np.ndarray]:
    """(a segment for each store with the tree's tokens that are in it; which tokens these are,
    [len(tree)]).
    """
    ends, known, found = (
        tree.tokens().ends,
        np.zeros(len(tree), bool),
        dict[Store, dict[int, int]](),
    )
    wanted = {int(path[-1]) for path in tree.paths}
    for path, one in zip(tree.paths, cached, strict=False):
        if one is None:
            continue
        places = found.setdefault(one.store, {})
        for number, place in zip(path[: len(one.path)].tolist(), one.path.tolist(), strict=True):
            if not known[number] and number not in wanted:
                known[number], places[number] = True, place
    segments = []
    for store, places in found.items():
        if places:
            numbers = np.array(sorted(places))
            where = torch.tensor(
                [places[number] for number in numbers.tolist()], device=store.keys[0].device
            )
            keys, values = (
                [one[:, :, where] for one in some] for some in (store.keys, store.values)
            )
            segments.append(Segment(keys, values, numbers, ends[numbers]))
    return segments, known


def _joined(segments: list[list[Tensor]], order: np.ndarray) -> list[Tensor]:
    """One tensor per layer, in that order, replacing those of the segments. For one layer at a time
    both exist.
    """
    found, sorted_already = [], bool((order[1:] > order[:-1]).all())
    for layer in range(len(segments[0])):
        joined = torch.cat([segment[layer] for segment in segments], dim=2)
        found.append(
            joined if sorted_already else joined[:, :, torch.from_numpy(order).to(joined.device)]
        )
        for segment in segments:
            segment[layer] = found[-1][:, :, :0]
    return found


def pad(
    sequences: Sequence[Sequence[int]], fill: int, *, left: bool = False
) -> tuple[Tensor, Tensor]:
    """(ids [b, n], real [b, n]) of sequences of different lengths."""
    width = max(map(len, sequences))
    ids = torch.full((len(sequences), width), fill, dtype=torch.long)
    real = torch.zeros(len(sequences), width, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        where = slice(width - len(sequence), width) if left else slice(0, len(sequence))
        ids[row, where] = torch.tensor(sequence, dtype=torch.long)
        real[row, where] = True
    return ids, real


# Models


def use_tree(model: Any) -> None:
    """Replace the model's attention function. Raises JobError for a model that would then compute
    something else.
    """
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    if causal.config._attn_implementation == NAME:
        return
    training = model.training
    model.eval()
    try:
        with in_float32(causal), products_in_float32(causal):
            largest, allowed = _largest_difference(causal), TOLERANCES[causal.dtype]
    except torch.OutOfMemoryError:
        raise  # does not mean that the model is unsupported
    except Exception as error:  # an unsupported model may raise anything
        raise JobError(_unsuited(causal)) from error
    finally:
        model.train(training)
    if not largest < allowed:
        raise JobError(_unsuited(causal))


@contextmanager
def in_float32(model: Any) -> Iterator[None]:
    """Convert 16-bit weights to float32, and back to the same bits afterwards; meanwhile they take
    twice the memory.

    In 16 bits, two correct ways to compute the same log-probability may differ more (by 1 in
    bfloat16 on SmolLM2, between the library's own attention functions) than a correct and a wrong
    computation of the model.
    """
    narrow = [
        (tensor, tensor.dtype)
        for tensor in (*model.parameters(), *model.buffers())
        if tensor.dtype in NARROW
    ]
    try:
        for tensor, _ in narrow:
            tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, dtype in narrow:
            tensor.data = tensor.data.to(dtype)


def _unsuited(causal: Any) -> str:
    return (
        f"{type(causal).__name__} cannot be run with shared prompts: its attention or its output is"
        " of another kind. Serve the model with vLLM or another server and use the openai engine."
    )


@torch.no_grad()
def _largest_difference(causal: Any) -> float:
    """The largest difference between log-probabilities before and after the replacement, over a few
    short sequences with shared beginnings.

    Otherwise, models with ALiBi, capped or scaled logits, attention sinks or recurrent states would
    silently be computed wrong.
    """
    decoder, head = decoder_of(causal)
    tokens = [(7 * i + 3) % head.weight.shape[0] for i in range(24)]
    prompts = [tokens[:8], tokens[:5] + tokens[8:10]]
    rows = [
        prompts[0] + tokens[10:14],
        prompts[0] + tokens[14:16],
        prompts[1] + tokens[16:17],
        prompts[1] + tokens[17:],
    ]
    tree, device = Tree(rows), head.weight.device
    expected = torch.zeros(len(tree), head.weight.shape[0], device=device)
    for row, path in zip(rows, tree.paths, strict=True):
        logits = causal(input_ids=torch.tensor([row], device=device), use_cache=False).logits[0]
        expected[torch.from_numpy(path).to(device)] = logits.float().log_softmax(-1)
    causal.set_attn_implementation(NAME)
    keep_less(causal)
    gaps = [
        head(hidden).float().log_softmax(-1) - expected[torch.from_numpy(part.numbers).to(device)]
        for part, hidden, _ in computed(decoder, tree.parts(10), [])
    ]
    return float(torch.cat(gaps).abs().max())
