"""How a policy is reached: one small interface, whether it runs in this process or behind a server. Light."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from workers.lib.spec import SpecError

Conversation = list[dict]


@dataclass(frozen=True)
class Sampling:
    """How to sample. Temperature 0 is greedy. The same seed, conversation and index give the same output."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 64
    seed: int = 0


@dataclass(frozen=True)
class Output:
    """One answer. `logprobs` are those of the tempered distribution (of the plain one where greedy), one a token;
    both lists are empty where the server does not give them. `token_ids` hold the token that ended the answer.
    `latency_ms` is from the request until the answer was whole: in a batch, waiting for it included."""

    text: str
    token_ids: list[int]
    logprobs: list[float]
    prompt_tokens: int
    output_tokens: int
    latency_ms: float
    truncated: bool


class Engine(Protocol):
    def generate(
        self, conversations: list[Conversation], sampling: Sampling, n: int = 1
    ) -> Iterator[tuple[int, list[Output]]]:
        """(index of the conversation, its n outputs), as they are finished."""


def open_engine(engine: dict, model: dict) -> Engine:
    """From the `engine` and `model` parts of a spec. Raises SpecError, or JobError for a model that does not load."""
    kind = engine.get("kind", "transformers")
    if kind == "transformers":
        from workers.ml.transformers_engine import TransformersEngine

        return TransformersEngine.load(engine, model)
    if kind == "openai":
        from workers.lib.engines.openai_engine import OpenAIEngine

        return OpenAIEngine(engine)
    raise SpecError(f"There is no engine “{kind}”. Use transformers or openai.")
