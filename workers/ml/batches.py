"""Continuous batching in one thread: waiting requests are put into batches, and up to `GROUPS`
batches are generated in turns, one token each, so that a short request does not wait for the end of
a long answer. Heavy: imports torch.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from workers.lib.engines import Sampling
from workers.lib.memory import is_out_of_memory, memory_limit
from workers.lib.token_rows import TokenRow
from workers.ml.attention import Segment
from workers.ml.hot_adapters import HotAdapters, Loaded
from workers.ml.kept_prompts import KeptPrompts
from workers.ml.transformers_engine import Decoding, TransformersEngine, noise_of, nucleus, sample
from workers.ml.tree import logprobs_of, prefill

GROUPS = 4
SHORT = 16  # maximum tokens of an answer that may use the reserved room
RESERVED, RESERVED_TOKENS = (
    4,
    2048,
)  # the reserved room: concurrent answers, and tokens of their prompts and answers
MOST_WAITING = 512  # answers; further requests are told to retry later
FIRST_ROOM = 64  # tokens for which an answer's buffers initially have room
MEMORY_SHARE = 0.3  # of the memory that is free at the start, for keys and values


class Busy(Exception):
    """Too many requests are waiting already."""


@dataclass(frozen=True)
class Token:
    """`end`: why the answer ends with this token, "stop" or "length"; "" if it continues.
    `likeliest`: [(id, log-probability)].
    """

    id: int
    logprob: float
    end: str = ""
    likeliest: list[tuple[int, float]] = field(default_factory=list)


@dataclass(eq=False)
class Ask:
    """One requested answer. `sink` receives its tokens, or the error that ended it; it is dropped
    once `cancelled` is set.
    """

    ids: list[int]
    adapter: Loaded | None
    sampling: Sampling
    seed: int
    stop_ids: frozenset[int]
    sink: Callable[[Token | Exception], None]
    likeliest: int = 0
    cancelled: bool = False

    def __post_init__(self) -> None:
        self.noise = noise_of([self.seed], self.sampling.max_new_tokens)[0]

    @property
    def size(self) -> int:
        """The number of tokens that it will probably need at a time."""
        return len(self.ids) + min(self.sampling.max_new_tokens, 4 * FIRST_ROOM)


@dataclass(eq=False)
class Group:
    """Answers with the same adapter that began together, in the order of the rows of `state`."""

    adapter: Loaded | None
    asks: list[Ask]
    state: Decoding
    prefix: list[Segment]
    hidden: Tensor
    written: int = 0
    is_reserved: bool = False


class Batches:
    """`deliver` is called in the engine's thread with everything that a step has generated, [(ask,
    token or error)].
    """

    def __init__(
        self,
        engine: TransformersEngine,
        adapters: HotAdapters,
        deliver: Callable[[list[tuple[Ask, Token | Exception]]], None],
    ) -> None:
        self.engine, self.adapters, self.deliver = engine, adapters, deliver
        self.waiting: deque[Ask] = deque()
        self.calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.groups: list[Group] = []
        self.retired: list[Loaded] = []
        self.most_tokens = _room(engine)
        self.prefixes = KeptPrompts(self.most_tokens // 4)
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.thread.start()

    # Called from other threads

    def submit(self, asks: Sequence[Ask]) -> None:
        """Raises Busy."""
        with self.changed:
            if self.waiting and len(self.waiting) + len(asks) > MOST_WAITING:
                raise Busy
            self.waiting.extend(asks)
            self.changed.notify()

    def call(self, work: Callable[[], Any]) -> Future[Any]:
        """Run a function between two steps, when it may use the model."""
        future: Future[Any] = Future()
        with self.changed:
            self.calls.append((future, work))
            self.changed.notify()
        return future

    def retire(self, adapter: Loaded) -> None:
        """Remove an adapter as soon as no answer needs it."""
        with self.changed:
            self.retired.append(adapter)
            self.changed.notify()

    def scores(self, adapter: Loaded | None, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """The log-probabilities of each text's tokens except the first. Run it through `call`."""
        self.adapters.use(adapter)
        rows = list[TokenRow]()
        for ids in texts:
            row = TokenRow()
            row.given(list(ids[:1]))
            row.sampled(list(ids[1:]), [0.0] * (len(ids) - 1))
            rows.append(row)
        if all(len(ids) < 2 for ids in texts):
            return [[] for _ in texts]
        found = logprobs_of(self.adapters.model, rows)
        return [row[: len(ids) - 1].tolist() for row, ids in zip(found, texts, strict=True)]

    @property
    def running(self) -> int:
        return sum(len(group.asks) for group in self.groups)

    # Run in the engine's thread

    def _run(self) -> None:
        while True:
            with self.changed:
                while not (self.waiting or self.calls or self.groups or self.retired):
                    self.changed.wait()
            while self.calls:
                _answer(*self.calls.popleft())
            self._admit()
            for group in list(self.groups):
                self._guarded(group.asks, lambda group=group: self._step(group))
                if not group.asks:
                    self.groups.remove(group)
            self._remove_retired()

    def _remove_retired(self) -> None:
        with self.changed:
            if self.calls:  # it may need an adapter that is about to be removed
                return
            needed = {id(one.adapter) for one in (*self.waiting, *self.groups)}
            unused = [one for one in self.retired if id(one) not in needed]
            self.retired = [one for one in self.retired if id(one) in needed]
        for adapter in unused:
            self.adapters.remove(adapter)
            self.prefixes.drop(adapter)

    def _guarded(self, asks: list[Ask], work: Callable[[], None]) -> None:
        """An error ends these answers, but not the server."""
        try:
            work()
        except Exception as error:
            if is_out_of_memory(error):
                self.prefixes.clear()
            failed, asks[:] = list(asks), []
            self.deliver([(ask, error) for ask in failed])

    def _admit(self) -> None:
        while True:
            with self.changed:
                asks, is_reserved = self._next()
            if not asks:
                return
            self._guarded(
                asks, lambda asks=asks, of=is_reserved: self.groups.append(self._begin(asks, of))
            )

    def _next(self) -> tuple[list[Ask], bool]:
        """(the next requests, all with one adapter and in order of arrival, as many as fit; whether
        they use the reserved room).

        Without the reserved room, the proof of a version's weights would wait behind all other
        traffic, and its promotion would fail.
        """
        waiting = [ask for ask in self.waiting if not ask.cancelled]
        usual = [group for group in self.groups if not group.is_reserved]
        chosen: list[Ask] = []
        if len(usual) < GROUPS:
            tokens = self.most_tokens - sum(ask.size for group in self.groups for ask in group.asks)
            room = self.engine.batch_size - sum(len(group.asks) for group in usual)
            chosen = _fitting(waiting, room, tokens, always_one=not self.groups)
        is_reserved = not chosen and len(usual) == len(self.groups)
        if is_reserved:
            short = [ask for ask in waiting if ask.sampling.max_new_tokens <= SHORT]
            chosen = _fitting(short, RESERVED, RESERVED_TOKENS)
        taken = set(map(id, chosen))
        self.waiting = deque(ask for ask in waiting if id(ask) not in taken)
        return chosen, is_reserved

    @torch.inference_mode()
    def _begin(self, asks: list[Ask], is_reserved: bool) -> Group:
        adapter = asks[0].adapter
        self.adapters.use(adapter)
        prompts = list({tuple(ask.ids): ask.ids for ask in asks}.values())
        places = {tuple(ids): place for place, ids in enumerate(prompts)}
        cached = [self.prefixes.find(adapter, ids) for ids in prompts]
        prompted = prefill(self.engine.decoder, prompts, cached)
        self.prefixes.keep(adapter, prompts, prompted)
        owners = torch.tensor([places[tuple(ask.ids)] for ask in asks]).to(
            prompted.last_hidden.device
        )
        first = min(FIRST_ROOM, max(ask.sampling.max_new_tokens for ask in asks))
        state = self.engine.begin(prompted, owners, first)
        return Group(
            adapter,
            asks,
            state,
            prompted.prefix,
            prompted.last_hidden[owners],
            is_reserved=is_reserved,
        )

    @torch.inference_mode()
    def _step(self, group: Group) -> None:
        """Generate one more token for each answer, and keep the rows of those that continue."""
        asks, at = group.asks, group.written
        self.adapters.use(group.adapter)
        logits = self.engine.head(group.hidden)
        noise = torch.stack([ask.noise[at] for ask in asks]).to(logits.device)
        chosen = torch.zeros(len(asks), dtype=torch.long, device=logits.device)
        logprobs = torch.zeros(len(asks), device=logits.device)
        for sampling, some in _by_sampling(asks):
            rows = torch.tensor(some, device=logits.device)
            chosen[rows], logprobs[rows] = sample(logits[rows], sampling, noise[rows])
        found, going, group.written = [], list[int](), at + 1
        for row, (ask, token, logprob) in enumerate(
            zip(asks, chosen.tolist(), logprobs.tolist(), strict=True)
        ):
            last = group.written == ask.sampling.max_new_tokens
            end = "stop" if token in ask.stop_ids else "length" if last else ""
            found.append((ask, Token(token, logprob, end, _likeliest(logits[row], ask))))
            if not end and not ask.cancelled:
                going.append(row)
        self.deliver(found)
        if len(going) < len(asks):
            kept = torch.tensor(going, dtype=torch.long, device=logits.device)
            group.state.keep(kept)
            chosen, group.asks[:] = chosen[kept], [asks[row] for row in going]
        if group.asks:
            group.state.make_room(
                max(ask.sampling.max_new_tokens for ask in group.asks) - group.written
            )
            group.hidden = self.engine.step(group.state, chosen, group.prefix)


def _fitting(asks: list[Ask], room: int, tokens: int, *, always_one: bool = False) -> list[Ask]:
    """As many requests as fit, of the first one's adapter."""
    chosen: list[Ask] = []
    for ask in asks:
        if ask.adapter is not asks[0].adapter:
            continue
        tokens -= ask.size
        if len(chosen) >= room or (tokens < 0 and (chosen or not always_one)):
            break
        chosen.append(ask)
    return chosen


def _by_sampling(asks: list[Ask]) -> Iterable[tuple[Sampling, list[int]]]:
    rows: dict[tuple[float, float], list[int]] = {}
    for row, ask in enumerate(asks):
        rows.setdefault((ask.sampling.temperature, ask.sampling.top_p), []).append(row)
    return [(asks[some[0]].sampling, some) for some in rows.values()]


def _likeliest(logits: Tensor, ask: Ask) -> list[tuple[int, float]]:
    """The likeliest tokens of the distribution that is sampled from."""
    if not ask.likeliest:
        return []
    probabilities = (logits.float() / (ask.sampling.temperature or 1.0)).softmax(-1)
    if ask.sampling.temperature and ask.sampling.top_p < 1:
        probabilities = nucleus(probabilities[None], ask.sampling.top_p)[0]
        probabilities = probabilities / probabilities.sum()
    values, ids = probabilities.log().topk(ask.likeliest)
    return [
        (id, value)
        for id, value in zip(ids.tolist(), values.tolist(), strict=True)
        if value > -torch.inf
    ]


def _answer(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)


def _room(engine: TransformersEngine) -> int:
    """The number of tokens whose keys and values fit into memory at a time."""
    config, model = engine.model.config, engine.model
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    each = 2 * config.num_hidden_layers * heads * width * next(model.parameters()).element_size()
    device = next(model.parameters()).device
    free = (
        torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else memory_limit()["available"]
    )
    return max(4096, int(MEMORY_SHARE * free / each))


def any_seed() -> int:
    return random.getrandbits(31)
