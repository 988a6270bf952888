"""A teacher on a vLLM server: how likely it finds given tokens, and whether it reads the same tokens as the student. Light: no torch.

`prompt_logprobs` gives the log-probability of every token of a prompt, before temperature, which is what on-policy distillation at
temperature 1 needs. Each row is one request: vLLM computes its whole prompt, without a prefix cache.
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
from workers.lib.specs import Server
from workers.lib.spending import Meter, Price, Spent, Usage, usage_of
from workers.lib.token_policy import CompletionClient, completion_body, sampled_in
from workers.lib.token_rows import TokenRow
from workers.lib.weights_proof import TEXT

T = TypeVar("T")
LEDGER = "teacher.jsonl"  # what the teacher was asked and paid, of all attempts
NAME = "teacher’s server"
NEEDED = "a teacher on a server needs vLLM"
ASKS = "On-policy distillation needs"
COMPARED, AT_A_TIME = 1_000, 100  # entries of the vocabulary that are compared, and in one request
SHOWN = 40  # characters of a text in an error


class Tokenizer(Protocol):
    """The student's, as of transformers."""

    added_tokens_decoder: dict[int, Any]

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any: ...
    def __len__(self) -> int: ...
    def decode(self, ids: Sequence[int]) -> str: ...


def account_of(server: Server, folder: Path) -> tuple[Journal, KeptAccount]:
    """The limits of a job's teacher, with what earlier attempts have used; the journal is to be closed."""
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal(folder / LEDGER)
    return journal, KeptAccount(journal, most_tokens=server.most_tokens, most_usd=server.most_usd)


def spent(account: KeptAccount) -> dict[str, float]:
    """As metrics of the run."""
    return {"teacher/tokens": float(account.used.tokens), "teacher/usd": account.used_usd}


class TeacherServer:
    """To be closed. `folder`: where it is written down what was paid. Raises SpecError, JobError where it may not be asked at all."""

    def __init__(self, server: Server, folder: Path) -> None:
        asked = chat_server(structs.replace(server, dialect="native"), "teacher_server", name=NAME, droppable=())
        self.client = CompletionClient(asked, concurrency=server.concurrency)
        self.journal, self.account = account_of(server, folder)
        self.meter = Meter(Price(*server.price), account=self.account)
        self.loop = LoopThread("teacher")

    def close(self) -> None:
        self.loop.close(self.client.aclose)
        self.journal.close()

    def logprobs(self, rows: Sequence[TokenRow], check: Callable[[], None]) -> list[list[float]]:
        """What it gives the learnt tokens of each row. `check` may raise meanwhile. Raises ServersLost where it does not answer, or
        with what cannot be trusted."""
        distinct = {tuple(row.ids): row for row in rows}
        found = dict(zip(distinct, self._run(self._all([self._scored(ids) for ids in distinct]), check), strict=True))
        return [learnt_of(row, found[tuple(row.ids)]) for row in rows]

    def require_same_tokens(self, tokenizer: Tokenizer, texts: Sequence[str], check: Callable[[], None]) -> None:
        """Raises SpecError where it writes one of the `texts`, or an entry of the student's vocabulary, in other tokens, JobError where
        it does not say. Not every entry is compared: special tokens all, of the others COMPARED."""
        given = [*texts, TEXT, *vocabulary_texts(tokenizer)]
        theirs = self._run(self._all([self._tokens(text) for text in given]), check)
        for text, ids in zip(given, theirs, strict=True):
            if why := differs(tokenizer, text, ids):
                raise SpecError(
                    f"The teacher {self.client.server.model} reads other tokens than the student: {why}. Choose a teacher of the "
                    "student’s family, or learn from its samples (method best_of_n with this teacher), which compares text."
                )
        self._run(self._scored(theirs[0]), check)  # whether it gives log-probabilities, before anything is sampled

    def _run(self, work: Coroutine[Any, Any, T], check: Callable[[], None]) -> T:
        try:
            return self.loop.run(work, check)
        except (ServersLost, SpecError):
            raise
        except JobError as error:
            raise ServersLost(f"{error} Fix the teacher’s server, then resume this run.") from error

    async def _all(self, work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """The first that fails ends the others."""
        tasks = [asyncio.ensure_future(one) for one in work]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _scored(self, ids: Sequence[int]) -> list[float]:
        """Of each token but the first."""
        answer = await self._ask({"prompt": list(ids), "prompt_logprobs": 0}, len(ids))
        sampled_in(answer, ids, self.client.server.model, self.client.where, ASKS)
        return prompt_logprobs_in(answer, ids, self.client.where, NEEDED)

    async def _tokens(self, text: str) -> list[int]:
        answer = await self._ask({"prompt": text}, len(text.encode()))
        found = answer["choices"][0].get("prompt_token_ids")
        if not isinstance(found, list) or not all(type(one) is int for one in found):
            raise JobError(f"{self.client.where} returned no token ids of its prompt; {NEEDED} 0.10.2 or later.")
        sampled_in(answer, found, self.client.server.model, self.client.where, ASKS)
        return found

    async def _ask(self, asked: dict[str, Any], most: int) -> dict:
        """One token is sampled too, since vLLM samples at least one."""
        body = completion_body([], Sampling(), [], 0, 1) | asked
        booked = Usage(most, 1)
        try:
            await self.meter.book(booked)
        except Spent as error:
            raise ServersLost(f"{error} To go on, fork the run with a higher limit for its teacher.") from error
        used = booked
        try:
            answer, _ = await self.client.ask(body)
            used = usage_of(answer.get("usage"), asked=most, text="")
        except ChatError as error:
            used = booked if error.paid else Usage()
            if error.limit == "context":
                raise ServersLost(
                    f"{error} The teacher must be able to read a whole episode and one token more: raise its context length, or lower "
                    "max_new_tokens."
                ) from error
            raise
        finally:
            self.meter.settle(booked, used)
        return answer


def learnt_of(row: TokenRow, values: Sequence[float]) -> list[float]:
    """Those of its learnt tokens, of the values of each token but the first."""
    return [value for value, learnt in zip(values, row.learnt[1:], strict=True) if learnt]


def vocabulary_texts(tokenizer: Tokenizer) -> Iterator[str]:
    """Special tokens and entries of the vocabulary, some to a text. Pieces of characters are left out: they are no text."""
    size = len(tokenizer)
    chosen = sorted({*tokenizer.added_tokens_decoder, *range(0, size, max(1, size // COMPARED))})
    words = [word for at in chosen if "\ufffd" not in (word := tokenizer.decode([at]))]
    for start in range(0, len(words), AT_A_TIME):
        yield "\n".join(words[start : start + AT_A_TIME])


def differs(tokenizer: Tokenizer, text: str, theirs: Sequence[int]) -> str:
    """The end of a sentence that says where a text has other tokens; "" where it has the same."""
    ours = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if ours == list(theirs):
        return ""
    at = next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    before = tokenizer.decode(ours[max(0, at - 4) : at + 4])[:SHOWN]
    return f"near {before!r} it has {list(theirs[at : at + 3])} where the student has {ours[at : at + 3]}"
