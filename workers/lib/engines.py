"""Interface of engines that generate in this process: prompts in, answers out, in batches. Light:
no torch.
"""

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
    """A conversation up to the policy's last answer: the messages that were answered, and the ids
    of everything given and sampled, including the answer. `computed` is the engine's cached result
    (see Output), `asked` the number of ids that belong to the prompt.
    """

    messages: list[dict]
    tools: list[dict]
    ids: list[int]
    computed: Any = None
    asked: int = 0


@dataclass(frozen=True)
class Prompt:
    """A conversation to be answered once per seed. An answer depends only on the prompt, the
    sampling settings and its seed, not on what else is generated with it. With `so_far`, the prompt
    continues those ids if the chat template allows it. `goes_on`: a later prompt may continue an
    answer.
    """

    messages: list[dict]
    seeds: list[int]
    tools: list[dict] = field(default_factory=list)
    so_far: SoFar | None = None
    goes_on: bool = False


@dataclass(frozen=True)
class Output:
    """One answer. `logprobs` has one value per token, in the distribution with temperature
    (without, if greedy). `token_ids` include the token that ended the answer. `latency_ms` is from
    the request to the complete answer, in a batch including waiting. `computed` lets the engine
    skip work for a prompt that continues this one; it stays in memory as long as it is referenced,
    and is only valid for the current weights.
    """

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
"""Called while answers are written: the index of the prompt, the place of the seed, the text so
far.
"""


class Engine(Protocol):
    def generate(
        self, prompts: list[Prompt], sampling: Sampling, show: Show | None = None
    ) -> Iterator[tuple[int, list[Output]]]:
        """Yield (index of the prompt, an output for each of its seeds) as they finish."""

    def decode(self, ids: list[int]) -> str:
        """The text of an answer's tokens, as in `Output.text`."""

    def prompt_ids(
        self, messages: list[dict], tools: list[dict] | None = None, so_far: SoFar | None = None
    ) -> list[int]: ...
