"""A teacher on a vLLM server: gives the log-probabilities of given tokens, and checks that it uses
the student's tokenizer. Light: no torch.

`prompt_logprobs` returns the log-probability of every prompt token, before temperature, which is
what on-policy distillation at temperature 1 needs. Each row is one request: vLLM computes its whole
prompt, without a prefix cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import structs

from workers.lib.adapter_serving import ServersLost, prompt_logprobs_in
from workers.lib.chat_client import ChatError
from workers.lib.clients import chat_server
from workers.lib.engines import Sampling
from workers.lib.errors import JobError, SpecError
from workers.lib.journal import Journal, KeptAccount
from workers.lib.loop_thread import LoopThread
from workers.lib.specs.engines import Server
from workers.lib.spending import NOTHING, Meter, Spent, Usage, usage_of
from workers.lib.token_policy import CompletionClient, completion_body, sampled_in
from workers.lib.token_rows import TokenRow
from workers.lib.weights_proof import TEXT

T = TypeVar("T")
LEDGER = "teacher.jsonl"  # usage of the teacher, over all attempts
NAME = "teacher’s server"
NEEDED = "a teacher on a server needs vLLM"
ASKS = "On-policy distillation needs"
COMPARED, AT_A_TIME = 1_000, 100  # entries of the vocabulary that are compared, and per request
SHOWN = 40  # characters of a text shown in an error


class Tokenizer(Protocol):
    """The student's tokenizer, with transformers' interface."""

    added_tokens_decoder: dict[int, Any]

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any: ...
    def __len__(self) -> int: ...
    def decode(self, ids: Sequence[int]) -> str: ...


def account_of(server: Server, folder: Path) -> tuple[Journal, KeptAccount]:
    """The account with the limits of a job's teacher and the usage of earlier attempts; close the
    journal at the end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal(folder / LEDGER)
    return journal, KeptAccount(journal, most_tokens=server.most_tokens, most_usd=server.most_usd)


def spent(account: KeptAccount) -> dict[str, float]:
    """Usage as metrics of the run."""
    return {"teacher/tokens": float(account.used.tokens), "teacher/usd": account.used_usd}


class TeacherServer:
    """Close it at the end. `folder`: where usage is recorded. Raises SpecError, or JobError if the
    server may not be called at all.
    """

    def __init__(self, server: Server, folder: Path) -> None:
        asked = chat_server(
            structs.replace(server, dialect="native"), "teacher_server", name=NAME, droppable=()
        )
        self.client = CompletionClient(asked, concurrency=server.concurrency)
        self.journal, self.account = account_of(server, folder)
        self.meter = Meter(server.price, account=self.account)
        self.loop = LoopThread("teacher")

    def close(self) -> None:
        self.loop.close(self.client.aclose)
        self.journal.close()

    def logprobs(self, rows: Sequence[TokenRow], check: Callable[[], None]) -> list[list[float]]:
        """The log-probabilities of each row's learned tokens. `check` is called meanwhile, and may
        raise. Raises ServersLost if the server does not answer, or its answer cannot be trusted.
        """
        distinct = {tuple(row.ids): row for row in rows}
        found = dict(
            zip(
                distinct,
                self._run(self._all([self._scored(ids) for ids in distinct]), check),
                strict=True,
            )
        )
        return [learnt_of(row, found[tuple(row.ids)]) for row in rows]

    def require_same_tokens(
        self, tokenizer: Tokenizer, texts: Sequence[str], check: Callable[[], None]
    ) -> None:
        """Raises SpecError if the server tokenizes one of the `texts`, or an entry of the student's
        vocabulary, differently, and JobError if it does not say how. All special tokens are
        compared, and COMPARED of the other entries.
        """
        given = [*texts, TEXT, *vocabulary_texts(tokenizer)]
        theirs = self._run(self._all([self._tokens(text) for text in given]), check)
        for text, ids in zip(given, theirs, strict=True):
            if why := differs(tokenizer, text, ids):
                raise SpecError(
                    f"The teacher {self.client.server.model} reads other tokens than the student:"
                    f" {why}. Choose a teacher of the student’s family, or learn from its samples"
                    " (method best_of_n with this teacher), which compares text."
                )
        # Fails before anything is sampled if the server gives no log-probabilities.
        self._run(self._scored(theirs[0]), check)

    def _run(self, work: Coroutine[Any, Any, T], check: Callable[[], None]) -> T:
        try:
            return self.loop.run(work, check)
        except (ServersLost, SpecError):
            raise
        except JobError as error:
            raise ServersLost(f"{error} Fix the teacher’s server, then resume this run.") from error

    async def _all(self, work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run all; the first failure cancels the others."""
        tasks = [asyncio.ensure_future(one) for one in work]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _scored(self, ids: Sequence[int]) -> list[float]:
        """The log-probability of each token except the first."""
        answer = await self._ask({"prompt": list(ids), "prompt_logprobs": 0}, len(ids))
        sampled_in(answer, ids, self.client.server.model, self.client.where, ASKS)
        return prompt_logprobs_in(answer, ids, self.client.where, NEEDED)

    async def _tokens(self, text: str) -> list[int]:
        answer = await self._ask({"prompt": text}, len(text.encode()))
        found = answer["choices"][0].get("prompt_token_ids")
        if not isinstance(found, list) or not all(type(one) is int for one in found):
            raise JobError(
                f"{self.client.where} returned no token ids of its prompt; {NEEDED} 0.10.2 or"
                " later."
            )
        sampled_in(answer, found, self.client.server.model, self.client.where, ASKS)
        return found

    async def _ask(self, asked: dict[str, Any], most: int) -> dict:
        """One token is sampled too, since vLLM always samples at least one."""
        body = completion_body([], Sampling(), [], 0, 1) | asked
        booked = Usage(most, 1)
        try:
            await self.meter.book(booked)
        except Spent as error:
            raise ServersLost(
                f"{error} To go on, fork the run with a higher limit for its teacher."
            ) from error
        used = booked
        try:
            answer, _ = await self.client.ask(body)
            used = usage_of(answer.get("usage"), asked=most, text="")
        except ChatError as error:
            used = booked if error.paid else NOTHING
            if error.limit == "context":
                raise ServersLost(
                    f"{error} The teacher must be able to read a whole episode and one token more:"
                    " raise its context length, or lower max_new_tokens."
                ) from error
            raise
        finally:
            self.meter.settle(booked, used)
        return answer


def learnt_of(row: TokenRow, values: Sequence[float]) -> list[float]:
    """The values of a row's learned tokens; `values` has one for each token except the first."""
    return [value for value, learnt in zip(values, row.learnt[1:], strict=True) if learnt]


def vocabulary_texts(tokenizer: Tokenizer) -> Iterator[str]:
    """Special tokens and vocabulary entries, several per text. Incomplete characters are left out,
    since they are not text.
    """
    size = len(tokenizer)
    chosen = sorted({*tokenizer.added_tokens_decoder, *range(0, size, max(1, size // COMPARED))})
    words = [word for at in chosen if "\ufffd" not in (word := tokenizer.decode([at]))]
    for start in range(0, len(words), AT_A_TIME):
        yield "\n".join(words[start : start + AT_A_TIME])


def differs(tokenizer: Tokenizer, text: str, theirs: Sequence[int]) -> str:
    """The end of a sentence that says where two tokenizations of a text differ; "" if they are
    equal.
    """
    ours = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if ours == list(theirs):
        return ""
    at = next(
        (at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    before = tokenizer.decode(ours[max(0, at - 4) : at + 4])[:SHOWN]
    return (
        f"near {before!r} it has {list(theirs[at : at + 3])} where the student has"
        f" {ours[at : at + 3]}"
    )
