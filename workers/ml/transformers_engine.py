"""Generation in this process, batched, on a CPU or one GPU. Shared prompts are computed once
(workers.ml.tree), and keys and values are kept between an episode's turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from workers.lib.engines import Output, Prompt, Sampling, Show, SoFar
from workers.lib.specs.engines import InProcess, Model
from workers.ml.attention import Look, Pass, Segment, row_attention
from workers.ml.chat_writer import ChatWriter
from workers.ml.kept_prompts import KeptPrompts
from workers.ml.lean import packed_weights
from workers.ml.models import device, load_policy, set_threads
from workers.ml.tree import Cached, Prefilled, Store, decoder_of, prefill, use_tree

KEPT = {
    "cpu": 2**30,
    "cuda": 8 * 2**30,
}  # bytes of keys and values kept between the turns of episodes
SHOWN_EVERY_S = 0.25  # seconds; every look at the tokens waits for the device


@dataclass
class Written:
    """Keys and values of generated tokens: for some `rows` of equal length, [kv_heads, rows,
    length, d] per layer.
    """

    rows: list[int]
    length: int
    keys: list[Tensor]
    values: list[Tensor]


@dataclass
class Decoding:
    """The rows that are still being generated. Buffers are [kv_heads, rows, width, d] per layer,
    filled up to `at`.
    """

    rows: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    real: Tensor
    positions: Tensor
    at: int
    width: int  # number of the prompts' own tokens

    def written(self, which: Tensor) -> Written:
        """The keys and values that some rows have after their prompts."""
        keys, values = (
            [x[:, which, self.width : self.at] for x in some] for some in (self.keys, self.values)
        )
        return Written(self.rows[which].tolist(), self.at - self.width, keys, values)

    def make_room(self, most: int) -> None:
        """Make room for one more token: if the buffers are full, double them, up to `most`."""
        width = self.real.shape[1]
        if self.at < width:
            return
        more = max(1, min(width, most))
        self.keys, self.values = (
            [functional.pad(x, (0, 0, 0, more)) for x in some] for some in (self.keys, self.values)
        )
        self.real = functional.pad(self.real, (0, more), value=True)

    def keep(self, which: Tensor) -> None:
        """Keep only these rows; finished ones then cost nothing more."""
        self.rows, self.real, self.positions = (
            self.rows[which],
            self.real[which],
            self.positions[which],
        )
        self.keys = [keys[:, which] for keys in self.keys]
        self.values = [values[:, which] for values in self.values]


class TransformersEngine:
    """`batch_size` is the number of answers generated side by side. The keys and values of
    `kept_tokens` of earlier prompts are kept for prompts with the same beginning, as servers keep
    them: only while the weights stay as they are. `check` is called before each token, and may
    raise.
    """

    check: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self, model: Any, tokenizer: Any, batch_size: int = 64, *, kept_tokens: int = 0
    ) -> None:
        use_tree(model)
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        self.decoder, self.head = decoder_of(model)
        self.writer = ChatWriter(tokenizer, model)
        self.stop_ids = self.writer.stop_ids
        self.stops = torch.tensor(self.stop_ids, dtype=torch.long)
        self.kept = KeptPrompts(kept_tokens)
        self.stores: WeakSet[Store] = WeakSet()  # stores that episodes still use

    @classmethod
    def load(cls, engine: InProcess, model: Model) -> Self:
        set_threads(engine.threads)
        policy, tokenizer = load_policy(model.base, model.adapter, engine.dtype)
        return cls(policy.to(device()), tokenizer, engine.batch_size)

    def prompt_ids(
        self, messages: list[dict], tools: list[dict] | None = None, so_far: SoFar | None = None
    ) -> list[int]:
        return self.writer.prompt_ids(messages, tools or [], so_far)

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def generate(
        self, prompts: list[Prompt], sampling: Sampling, show: Show | None = None
    ) -> Iterator[tuple[int, list[Output]]]:
        """Generate answers. Prompts of similar length are batched, `batch_size` answers at a
        time.
        """
        tokens = [
            self.prompt_ids(prompt.messages, prompt.tools, prompt.so_far) for prompt in prompts
        ]
        batch: list[int] = []
        for index in sorted(range(len(prompts)), key=lambda index: len(tokens[index])):
            size = sum(len(prompts[i].seeds) for i in [*batch, index])
            if batch and size > self.batch_size:
                yield from self._answers(batch, tokens, prompts, sampling, show)
                batch = []
            batch.append(index)
        if batch:
            yield from self._answers(batch, tokens, prompts, sampling, show)

    def _answers(
        self,
        batch: list[int],
        tokens: list[list[int]],
        prompts: list[Prompt],
        sampling: Sampling,
        show: Show | None,
    ) -> Iterator[tuple[int, list[Output]]]:
        def show_row(index: int, place: int, text: str) -> None:
            if show is not None:
                show(batch[index], place, text)

        seeds, ids = [prompts[i].seeds for i in batch], [tokens[i] for i in batch]
        cached = [
            computed_of(prompts[i].so_far, tokens[i]) or self.kept.find(None, tokens[i])
            for i in batch
        ]
        goes_on = any(prompts[i].goes_on for i in batch)
        with packed_weights(self.model, sum(map(len, seeds)), sampling.max_new_tokens):
            found = self._batch(ids, seeds, sampling, show_row if show else None, cached, goes_on)
        return zip(batch, found, strict=True)

    @torch.inference_mode()
    def _batch(
        self,
        prompts: list[list[int]],
        seeds: list[list[int]],
        sampling: Sampling,
        show: Show | None = None,
        cached: Sequence[Cached | None] = (),
        goes_on: bool = False,
    ) -> list[list[Output]]:
        started = time.perf_counter()
        prompted = prefill(self.decoder, prompts, cached)
        self.kept.keep(None, prompts, prompted)
        noise = noise_of([seed for row in seeds for seed in row], sampling.max_new_tokens).to(
            prompted.last_hidden.device
        )
        stops = self.stops.to(noise.device)
        owner = [
            index for index, row in enumerate(seeds) for _ in row
        ]  # the index of each row's prompt
        owners = torch.tensor(owner).to(noise.device)
        state = self.begin(prompted, owners, sampling.max_new_tokens)
        tokens, logprobs = torch.zeros_like(noise, dtype=torch.long), torch.zeros_like(noise)
        lengths = torch.zeros_like(state.rows)
        ended_ms: list[float] = []  # when each token was finished
        shown_at = started
        written: list[Written] = []
        hidden = prompted.last_hidden[owners]
        for step in range(sampling.max_new_tokens):
            self.check()
            chosen, chosen_logprobs = sample(self.head(hidden), sampling, noise[state.rows, step])
            tokens[state.rows, step], logprobs[state.rows, step] = chosen, chosen_logprobs
            lengths[state.rows] = step + 1
            # The only synchronisation with the device in a step. More of them would leave a GPU
            # idle between its small kernels.
            going = (~torch.isin(chosen, stops)).nonzero().squeeze(1)
            ended_ms.append((time.perf_counter() - started) * 1000)
            whole = not len(going) or step + 1 == sampling.max_new_tokens
            if goes_on and (whole or len(going) < len(chosen)):
                written.append(state.written(torch.isin(chosen, stops) | whole))
            if whole:
                break
            if len(going) < len(chosen):
                state.keep(going)
                chosen = chosen[going]
            hidden = self.step(state, chosen, prompted.prefix)
            if show is not None and time.perf_counter() - shown_at >= SHOWN_EVERY_S:
                shown_at = time.perf_counter()
                self._show(show, seeds, tokens, lengths)
        outputs: list[list[Output]] = [[] for _ in prompts]
        computed = self._computed(prompted, owner, written)
        rows = zip(owner, tokens.tolist(), logprobs.tolist(), lengths.tolist(), strict=True)
        for number, (index, row, scores, length) in enumerate(rows):
            output = self._output(
                prompts[index], row[:length], scores[:length], ended_ms[length - 1]
            )
            outputs[index].append(replace(output, computed=computed.get(number)))
        return outputs

    def _computed(
        self, prompted: Prefilled, owner: list[int], written: list[Written]
    ) -> dict[int, Cached]:
        """The cached keys and values of each row; {} if there is no room for them."""
        size = sum(x.nbytes for some in (prompted, *written) for x in (*some.keys, *some.values))
        room = KEPT.get(prompted.last_hidden.device.type, KEPT["cpu"]) - sum(
            store.size for store in self.stores
        )
        if not written or size > room:
            return {}
        kept = [prompted, *written]
        keys, values = (
            [
                torch.cat([x.reshape(len(x), 1, -1, x.shape[-1]) for x in layer], dim=2)
                for layer in zip(*some, strict=True)
            ]
            for some in ([one.keys for one in kept], [one.values for one in kept])
        )
        store, found = Store(keys, values), {}
        at = prompted.keys[0].shape[2]
        for some in written:
            for row in some.rows:
                path = np.concatenate([prompted.paths[owner[row]], np.arange(at, at + some.length)])
                found[row] = Cached(store, path)
                at += some.length
        self.stores.add(store)
        return found

    def _show(self, show: Show, seeds: list[list[int]], tokens: Tensor, lengths: Tensor) -> None:
        """Pass on the text of each row so far, without an incomplete character at its end."""
        places = [(index, place) for index, row in enumerate(seeds) for place in range(len(row))]
        for (index, place), row, length in zip(
            places, tokens.tolist(), lengths.tolist(), strict=True
        ):
            text = self.decode(row[:length])
            show(index, place, text.removesuffix("\ufffd"))

    def begin(self, prompted: Prefilled, owners: Tensor, new: int) -> Decoding:
        """Each row gets its prompt's own tokens (few) in a separate buffer; the common prefix
        (long) stays shared.
        """
        own, width = prompted.own[owners], prompted.own.shape[1]

        def buffer(source: Tensor) -> Tensor:
            heads, _, _, d = source.shape
            target = source.new_empty(heads, len(owners), width + new, d)
            target[:, :, :width] = source[:, 0, own]
            return target

        real = torch.ones(len(owners), width + new, dtype=torch.bool, device=own.device)
        real[:, :width] = prompted.real[owners]
        return Decoding(
            rows=torch.arange(len(real), device=real.device),
            keys=[buffer(keys) for keys in prompted.keys],
            values=[buffer(values) for values in prompted.values],
            real=real,
            positions=prompted.lengths[owners],
            at=width,
            width=width,
        )

    def step(self, state: Decoding, tokens: Tensor, above: list[Segment]) -> Tensor:
        """Hidden state [rows, hidden] after one more token for each row."""
        at = state.at

        def store(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            state.keys[layer][:, :, at] = keys[:, :, 0]
            state.values[layer][:, :, at] = values[:, :, 0]
            return state.keys[layer][:, :, : at + 1], state.values[layer][:, :, : at + 1]

        looks = [Look(index, None) for index in range(len(above))]
        looks.append(Look(len(above), ~state.real[:, None, : at + 1]))
        longest = at + 1 + sum(segment.keys[0].shape[2] for segment in above)
        hidden = self.decoder(
            input_ids=tokens[:, None],
            position_ids=state.positions[:, None],
            use_cache=False,
            branch=Pass(above, store, row_attention(looks), longest),
        ).last_hidden_state[:, 0]
        state.at += 1
        state.positions = state.positions + 1
        return hidden

    def _output(
        self, prompt: list[int], tokens: list[int], logprobs: list[float], latency_ms: float
    ) -> Output:
        return Output(
            text=self.decode(tokens),
            token_ids=tokens,
            logprobs=logprobs,
            prompt_tokens=len(prompt),
            output_tokens=len(tokens),
            latency_ms=latency_ms,
            truncated=tokens[-1] not in self.stop_ids,
            prompt_token_ids=prompt,
        )


def computed_of(so_far: SoFar | None, ids: list[int]) -> Cached | None:
    """What was computed for the prompt that `ids` continue; None if the chat template has rendered
    the beginning differently.
    """
    if so_far is None or so_far.computed is None or ids[: len(so_far.ids)] != so_far.ids:
        return None
    return so_far.computed


def noise_of(seeds: list[int], steps: int) -> Tensor:
    """Uniform numbers [rows, steps]. A row depends only on its seed, not on the other rows."""
    rows = [
        torch.rand(steps, generator=torch.Generator().manual_seed(seed % 2**63)) for seed in seeds
    ]
    return torch.stack(rows)


def sample(logits: Tensor, sampling: Sampling, noise: Tensor) -> tuple[Tensor, Tensor]:
    """(token [rows], its log-probability [rows]) by inverse transform of `noise` [rows] in [0, 1).
    The log-probability is that in the distribution sampled from: with temperature, truncated at
    top_p and renormalised.
    """
    logits = logits.float()
    if sampling.temperature == 0:
        logprobs = logits.log_softmax(-1)
        chosen = logprobs.argmax(-1)
        return chosen, logprobs.gather(-1, chosen[:, None])[:, 0]
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    # Tensors of rows × vocabulary are the largest of a step, so use as few of them as possible.
    top = logits.amax(-1, keepdim=True)
    cumulative = (logits - top).exp_()  # unnormalised cumulative probabilities
    if sampling.top_p < 1:
        cumulative = nucleus(cumulative, sampling.top_p * cumulative.sum(-1, keepdim=True))
    cumulative.cumsum_(-1)
    total = cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, noise[:, None] * total, right=True).clamp(
        max=logits.shape[-1] - 1
    )
    return chosen[:, 0], (logits.gather(-1, chosen) - top - total.log())[:, 0]


def nucleus(probabilities: Tensor, top_p: float | Tensor) -> Tensor:
    """Zero outside the smallest set of tokens whose mass reaches top_p (Holtzman et al. 2020)."""
    ordered, index = probabilities.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(probabilities).scatter(-1, index, ordered * (before < top_p))
