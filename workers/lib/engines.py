"""Engines that generate in this process: prompts in, answers out, many at a time. Light: no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Sampling:
    """How to sample. Temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 64


@dataclass(frozen=True)
class SoFar:
    """A conversation up to the policy's last answer: the messages that were answered, and the ids of all that was given and
    sampled, the answer included. `computed` is what the engine gave to have it again (Output), `asked` how many of the ids are the
    prompt's."""

    messages: list[dict]
    tools: list[dict]
    ids: list[int]
    computed: Any = None
    asked: int = 0


@dataclass(frozen=True)
class Prompt:
    """A conversation to be answered once for each seed. An answer follows from prompt, sampling and its seed alone,
    whatever else is generated with it. With `so_far` its tokens go on from those ids, where the chat template allows it.
    `goes_on`: a later prompt may go on from an answer."""

    messages: list[dict]
    seeds: list[int]
    tools: list[dict] = field(default_factory=list)
    so_far: SoFar | None = None
    goes_on: bool = False


@dataclass(frozen=True)
class Output:
    """One answer. `logprobs` are those of the tempered distribution (of the plain one where greedy), one a token.
    `token_ids` hold the token that ended the answer. `latency_ms` is from the request until the answer was whole: in a
    batch, waiting for it included. `computed` lives as long as somebody keeps it, and holds with these weights only: what the engine
    need not compute again for a prompt that goes on from this one."""

    text: str
    token_ids: list[int]
    logprobs: list[float]
    prompt_tokens: int
    output_tokens: int
    latency_ms: float
    truncated: bool
    prompt_token_ids: list[int] = field(default_factory=list)
    computed: Any = field(default=None, repr=False, compare=False)


Show = Callable[[int, int, str], None]
"""Called while answers are written: the index of the prompt, the place of the seed, the text so far."""


class Engine(Protocol):
    def generate(
        self, prompts: list[Prompt], sampling: Sampling, show: Show | None = None
    ) -> Iterator[tuple[int, list[Output]]]:
        """(index of the prompt, an output for each of its seeds), as they are finished."""
