"""Rollouts of a training run on servers: the trainer's weights are sent to them as adapters,
and the sampled tokens come back.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from workers.lib.adapter_serving import (
    CompletionAsker,
    Proof,
    Rotation,
    ServersLost,
    adapter_name,
    asked_at,
    mean_distance,
    prefix_of,
    text_logprobs,
)
from workers.lib.chat_client import ChatServer
from workers.lib.engines import Sampling
from workers.lib.errors import JobError
from workers.lib.program import Stop
from workers.lib.specs.grpo import Grpo
from workers.lib.specs.rollouts import RolloutServer
from workers.lib.token_policy import Sampled, TokenPolicy, completion_body
from workers.lib.token_rows import TokenRow
from workers.ml import checkpoint
from workers.ml.models import using
from workers.ml.transformers_engine import TransformersEngine, nucleus
from workers.ml.tree import decoder_of, logprobs_of, prefill

LEAST_SHIFT = (
    0.01  # nats between the two kinds of log-probability, enough to tell which one a server reports
)
# Tokens of the fixed text, and of the sample that shows how log-probabilities are reported.
TEXT_TOKENS, MODE_TOKENS = 256, 16
# How a server is started that reports the log-probabilities of what it samples from.
AS_SAMPLED = {
    "vllm": "with --logprobs-mode processed_logprobs",
    "sglang": "without SGLANG_RETURN_ORIGINAL_LOGPROB",
}
TRIES = 4  # per request, before the server counts as lost for the step


class Remote:
    """One server of the run. Raises JobError if it may not be called."""

    def __init__(self, server: RolloutServer, prefix: str, steps_ahead: int) -> None:
        self.server, self.rotation, self.proof = (
            server,
            Rotation(server, prefix, steps_ahead),
            Proof(),
        )

    def asked_for(self, adapter: str = "") -> ChatServer:
        return asked_at(self.server, adapter, TRIES)

    def prove(
        self, adapter: str, ids: Sequence[int], ours: list[float], body: dict
    ) -> tuple[dict[str, float], Sampled]:
        """Check the server's weights. Raises ServersLost if they differ from the trainer's,
        JobError if the server does not answer.
        """
        with CompletionAsker(self.asked_for(adapter)) as client:
            theirs, sampled = text_logprobs(client, ids, body)
            return self.proof.check(theirs, ours, client.where), sampled


class ServerRollouts:
    """`publish` the weights before sampling with `policy`. Raises ServersLost if no server can be
    sampled from.
    """

    def __init__(self, spec: Grpo, engine: TransformersEngine, warn: Callable[[str], None]) -> None:
        assert spec.rollouts is not None
        self.given, self.engine, self.warn = spec.rollouts, engine, warn
        self.text = engine.prompt_ids(spec.tasks[0]["messages"])[:TEXT_TOKENS]
        self.job, self.attempt = spec.job_id or "run", spec.attempt
        ahead = self.given.steps_ahead
        self.remotes = [Remote(server, prefix_of(self.job), ahead) for server in self.given.servers]
        self.version: int | None = None
        self.live: list[tuple[Remote, ChatServer]] = []

    def open(self, sampling: Sampling) -> None:
        """Unload adapters of an earlier attempt, and compare the base models. Raises JobError."""
        with using(self.engine.model, None):
            ours = self._text_logprobs()
            for remote in self.remotes:
                remote.rotation.clear()
                body = completion_body(self.text, sampling, self.engine.stop_ids, 0, MODE_TOKENS)
                _, sampled = remote.prove("", self.text, ours, body)
                self._check_mode(remote, sampled, sampling)

    def publish(self, step: int) -> dict[str, float]:
        """Have the weights after `step` steps loaded and verified. Returns {rollout/adapter_gap,
        rollout/adapter_move, time/adapter_s}.
        """
        if self.version == step:
            return {}
        began = time.perf_counter()
        name = adapter_name(self.job, self.attempt, step)
        folder = checkpoint.save_adapter(self.engine.model, Path(self.given.folder) / name)
        ours, body = (
            self._text_logprobs(),
            completion_body(self.text, Sampling(), self.engine.stop_ids, 0, 1),
        )
        self.live, found, reasons = [], dict[str, float](), list[str]()
        for remote in self.remotes:
            seen_there = (
                f"{remote.server.folder.rstrip('/')}/{name}"
                if remote.server.folder
                else str(folder)
            )
            try:
                remote.rotation.load(name, seen_there)
                measured, _ = remote.prove(name, self.text, ours, body)
            except ServersLost:
                raise
            except JobError as error:
                self._lost(remote.asked_for(name), str(error))
                reasons.append(str(error))
                continue
            self.live.append((remote, remote.asked_for(name)))
            found |= {key: max(value, found.get(key, value)) for key, value in measured.items()}
        if not self.live:
            raise ServersLost(" ".join(reasons))
        self.version = step
        self._remove_older()
        return found | {
            "rollout/servers": len(self.live),
            "time/adapter_s": time.perf_counter() - began,
        }

    def policy(self, sampling: Sampling) -> TokenPolicy:
        at_once = min(remote.server.concurrency for remote, _ in self.live)
        return TokenPolicy(
            [server for _, server in self.live], self.engine, sampling, at_once, self._lost
        )

    def close(self) -> None:
        """Unload the run's adapters and remove their files. Servers that no longer answer are
        skipped.
        """
        for remote in self.remotes:
            try:
                remote.rotation.close()
            except JobError as error:
                self.warn(str(error))
        for folder in self._folders():
            shutil.rmtree(folder, ignore_errors=True)

    def _lost(self, server: ChatServer, why: str) -> None:
        self.warn(f"The rollout server {server.base_url} is left out until the next step. {why}")

    def _remove_older(self) -> None:
        """Remove the files of unloaded adapters. Loaded ones are kept, since a server may read them
        again.
        """
        kept = {name for remote in self.remotes for name in remote.rotation.loaded}
        for folder in self._folders():
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _folders(self) -> list[Path]:
        return list(Path(self.given.folder).glob(prefix_of(self.job) + "*"))

    def _text_logprobs(self) -> list[float]:
        """Log-probabilities of the fixed text, [len − 1]."""
        row = TokenRow()
        row.given(self.text[:1])
        row.sampled(self.text[1:], [0.0] * len(self.text[1:]))
        return logprobs_of(self.engine.model, [row])[0].tolist()

    def _check_mode(self, remote: Remote, sampled: Sampled, sampling: Sampling) -> None:
        """Samples with a temperature or truncation (top_p) need the log-probabilities of that
        distribution. Raises ServersLost if the server reports others.
        """
        if sampling.temperature == 1 and sampling.top_p == 1:
            return
        processed, raw = self._sampled_logprobs(sampled.ids, sampling)
        known = [
            place for place, value in enumerate(processed) if value > -math.inf
        ]  # rounding may put a sampled token outside
        told, ours, plain = (
            [values[place] for place in known] for values in (sampled.logprobs, processed, raw)
        )
        if mean_distance(ours, plain) > LEAST_SHIFT and mean_distance(told, plain) < mean_distance(
            told, ours
        ):
            raise ServersLost(
                f"The rollout server {remote.server.base_url} returns log-probabilities of the"
                f" distribution before temperature ({sampling.temperature:g}) and top_p"
                f" ({sampling.top_p:g}). Start it {AS_SAMPLED[remote.server.kind]}, or train with"
                " both 1."
            )

    def _sampled_logprobs(
        self, ids: list[int], sampling: Sampling
    ) -> tuple[list[float], list[float]]:
        """Log-probabilities of the tokens sampled after the fixed text: in the distribution sampled
        from (-inf if impossible), and in the model's own.
        """
        decoder, head = decoder_of(self.engine.model)
        with torch.no_grad():
            before = prefill(decoder, [self.text + ids[:place] for place in range(len(ids))])
            logits = head(before.last_hidden).float()
        tempered = (logits / (sampling.temperature or 1.0)).softmax(-1)
        kept = nucleus(tempered, sampling.top_p) if sampling.top_p < 1 else tempered
        chosen = torch.tensor(ids, device=logits.device)[:, None]
        processed = (kept / kept.sum(-1, keepdim=True)).gather(-1, chosen).log()
        return processed[:, 0].tolist(), logits.log_softmax(-1).gather(-1, chosen)[:, 0].tolist()


class Ahead:
    """Samples the next batch in a thread while the update runs. `active` from its start until its
    result is taken.
    """

    def __init__(self) -> None:
        self.thread, self.closing, self.active = ThreadPoolExecutor(1, "rollouts"), False, False
        self.future: Future[Any] | None = None

    def start(self, make: Callable[[], Any]) -> None:
        self.active = True
        self.future = self.thread.submit(make)

    def wait(self) -> None:
        """Wait until sampling has ended. Raises the error that ended it."""
        if self.future:
            self.future.result()

    def take(self) -> Any:
        """The result; None if nothing was started."""
        future, self.future = self.future, None
        try:
            return future.result() if future else None
        finally:
            self.active = False

    def check(self) -> None:
        if self.closing:
            raise Stop

    def close(self) -> None:
        """Stop sampling, if it is active."""
        self.closing = True
        self.thread.shutdown(cancel_futures=True)
