"""A training run's adapters on its rollout servers: each step's weights get a new name, and are
proved to be the ones that serve.

An adapter is never replaced under the same name, because a server would continue with results
cached for the old one. Light: no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.lib.chat_client import TRIES, ChatClient, ChatError, ChatServer
from workers.lib.errors import JobError
from workers.lib.serving import ADAPTER_PREFIX, Adapters, Address
from workers.lib.specs.rollouts import RolloutServer
from workers.lib.token_policy import CompletionClient, Sampled, is_logprob, sampled_in

ROLLOUT_PREFIX = f"{ADAPTER_PREFIX}rollout-"
# mean |Δ log-probability| of a text beyond which the server must have another model than the
# trainer
SAME_MODEL = 0.25
# As a share of that distance: how far an adapter must move the text before the server's own move is
# judged.
NOTICEABLE = 0.5
LEAST_MOVE = (
    1e-6  # nats; smaller moves are rounding, even if one engine computed both in the same way
)
# Nats; smaller moves may be rounding: a trainer that computed the same weights in two ways differed
# by 8e-6.
PROVABLE = 5e-5


class ServersLost(JobError):
    """No rollout server is left to sample from; the message says why."""


def adapter_name(job_id: str, attempt: int, version: int) -> str:
    """The name of a run's weights after `version` steps. It includes the attempt, whose weights are
    different, since servers cache by name.
    """
    return f"{prefix_of(job_id)}{attempt}-{version}"


def prefix_of(job_id: str) -> str:
    return f"{ROLLOUT_PREFIX}{job_id}-"


def most_loaded(steps_ahead: int) -> int:
    """The number of a run's adapters that a server holds at a time: the newest, and those that may
    still be sampled from.
    """
    return 1 + steps_ahead


def check_slots(server: RolloutServer, steps_ahead: int) -> None:
    """Raises JobError."""
    needed = most_loaded(steps_ahead)
    if server.lora_slots and server.lora_slots < needed:
        raise JobError(
            f"The server at {server.base_url} has {server.lora_slots} LoRA"
            f" slot{'s'[: server.lora_slots != 1]}; sampling {steps_ahead} step ahead needs"
            f" {needed}. Start it with --max-loras {needed}, or sample on policy."
        )


class BrokenLogprobs(JobError):
    """Log-probabilities that are not valid, or not those of the text."""

    def __init__(
        self, where: str, why: str = "are not numbers up to 0: its weights may hold NaN"
    ) -> None:
        super().__init__(f"{where} returned log-probabilities of a text that {why}.")


class Rotation:
    """The adapters of one run on one server: the newest is loaded, and those beyond the allowed
    staleness are unloaded.
    """

    def __init__(self, server: RolloutServer, prefix: str, steps_ahead: int) -> None:
        check_slots(server, steps_ahead)
        self.server, self.prefix, self.keep = server, prefix, most_loaded(steps_ahead)
        address = Address(server.base_url, server.api_key_env or "", server.allow_private)
        self.adapters = Adapters(address, server.kind)
        self.loaded: list[str] = []

    def clear(self) -> None:
        """Unload what an earlier attempt of this run has left behind."""
        self.loaded = [name for name in self.adapters.names() if name.startswith(self.prefix)]
        self._unload(0)

    def load(self, name: str, path: str) -> None:
        """Unload adapters that are too old, then load the folder `path` (as the server sees it).
        Raises JobError.
        """
        self._unload(self.keep - 1)
        self.adapters.load(name, path)
        self.loaded.append(name)

    def _unload(self, left: int) -> None:
        while len(self.loaded) > left:
            name = self.loaded.pop(0)
            if not self.adapters.unload(name):
                raise JobError(
                    f"The server at {self.server.base_url} did not unload the adapter {name}."
                )

    def close(self) -> None:
        """Raises JobError."""
        self._unload(0)


def text_logprobs(
    client: ChatClient, ids: Sequence[int], body: dict
) -> tuple[list[float], Sampled]:
    """(log-probabilities that the server's model gives a fixed text, [len(ids) - 1]; what it
    generated after it). Raises JobError.
    """
    answer = client.ask(body | {"prompt": list(ids), "prompt_logprobs": 0})
    return prompt_logprobs_in(answer, ids, client.where), sampled_in(
        answer, ids, client.server.model, client.where
    )


def prompt_logprobs_in(
    answer: dict, ids: Sequence[int], where: str, needed: str = "rollouts need vLLM"
) -> list[float]:
    """The prompt's log-probabilities [len(ids) - 1] in an answer to /completions with
    `prompt_logprobs`. Raises JobError.
    """
    rows = answer["choices"][0].get("prompt_logprobs")
    if not isinstance(rows, list):
        raise JobError(
            f"{where} returned no log-probabilities of a text (`prompt_logprobs`); {needed}."
        )
    if len(rows) != len(ids):
        raise BrokenLogprobs(where, f"were cut short: {len(rows)} came for {len(ids)} tokens")
    try:
        values = [row[str(token)]["logprob"] for row, token in zip(rows[1:], ids[1:], strict=True)]
    except (KeyError, TypeError, IndexError) as error:
        raise BrokenLogprobs(where, "are of other tokens than it was given") from error
    if not all(is_logprob(value) for value in values):
        raise BrokenLogprobs(where)
    return values


def asked_at(server: RolloutServer, adapter: str = "", tries: int = TRIES) -> ChatServer:
    """How the base is asked there, or an adapter by its name."""
    return ChatServer(
        server.base_url.rstrip("/"),
        adapter or server.model,
        key_variable=server.api_key_env or "",
        timeout_s=server.timeout_s,
        tries=tries,
        allow_private=server.allow_private,
        name="rollout server",
        droppable=(),
        protocol="generate" if server.kind == "sglang" else "chat",
        adapter=adapter,
    )


class CompletionAsker(ChatClient):
    """`CompletionClient` for programs without an event loop."""

    path, wanted, max_bytes = (
        CompletionClient.path,
        CompletionClient.wanted,
        CompletionClient.max_bytes,
    )
    alterable, is_answer = CompletionClient.alterable, CompletionClient.is_answer


@dataclass
class Proof:
    """Checks that a server's model moves like the trainer's, by the log-probabilities of one text.

    Server and trainer always differ a little in their arithmetic, so absolute values can only
    reveal a different base model. Whether the newest adapter is used shows in the move since the
    previous one: a server that still uses the old one does not move. Moves too small to be judged
    accumulate until they are large enough.
    """

    server: list[float] = field(default_factory=list)
    trainer: list[float] = field(default_factory=list)

    def check(self, server: list[float], trainer: list[float], where: str) -> dict[str, float]:
        """{adapter_gap, adapter_move}: the mean distance and, if the move is large enough to be
        judged, the share of the trainer's move that the server made (1: all of it). Raises
        ServersLost.
        """
        gap = mean_distance(server, trainer)
        if gap > SAME_MODEL:
            raise ServersLost(
                f"{where} has another model than the trainer: the log-probabilities of a fixed text"
                f" differ by {gap:.3g} on average. Check its base model, its precision and its LoRA"
                " rank."
            )
        found = {"rollout/adapter_gap": gap}
        if not self.server:
            self.server, self.trainer = server, trainer
            return found
        theirs, ours = difference(server, self.server), difference(trainer, self.trainer)
        noise = norm(difference(self.server, self.trainer))
        if norm(ours) > max(NOTICEABLE * noise, PROVABLE * len(ours) ** 0.5):
            move = sum(map(float.__mul__, theirs, ours)) / norm(ours) ** 2
            found["rollout/adapter_move"] = move
            if move < 0.5:
                raise ServersLost(
                    f"{where} serves an old adapter: the newest moves the log-probabilities of a"
                    f" fixed text by {norm(ours) / len(ours) ** 0.5:.2g}, of which the server shows"
                    f" {max(0.0, move):.0%}. Restart it, then resume this run."
                )
            self.server, self.trainer = server, trainer
        return found


def difference(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(one, other, strict=True)]


def norm(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values))


def mean_distance(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(map(abs, difference(one, other))) / max(1, len(one))


def asker_of(server: ChatServer) -> CompletionAsker:
    """Raises ServersLost if the server may not be called."""
    try:
        return CompletionAsker(server)
    except ChatError as error:
        raise ServersLost(str(error)) from error
