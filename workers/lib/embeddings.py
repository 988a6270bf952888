"""Embeddings of texts from any OpenAI-compatible server (“Create embeddings”). Light: no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from workers.lib.chat_client import ChatClient, ChatError

AT_ONCE = 64  # texts per request; OpenAI accepts 2,048 with at most 300,000 tokens in total
CHARACTERS_AT_ONCE = 100_000
MAX_BYTES = 64 * 1024 * 1024  # per answer


class EmbeddingClient(ChatClient):
    """Close it, or use it with `with`."""

    path, wanted, max_bytes = "/embeddings", "a list of embeddings", MAX_BYTES

    def is_answer(self, answer: Any) -> bool:
        return all(
            isinstance(item["embedding"], list) and type(item["index"]) is int
            for item in answer["data"]
        )

    def vectors(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        """[texts of a batch, dimensions] float32, batch by batch, in the order of the texts. Raises
        ChatError.
        """
        width = 0
        for batch in batches(texts):
            found = self._checked(self.ask({"input": batch})["data"], len(batch))
            if width not in (0, found.shape[1]):
                raise self._wrong(
                    f"embeddings of different lengths ({width} and {found.shape[1]} numbers)"
                )
            width = found.shape[1]
            yield found

    def _checked(self, items: list[dict], count: int) -> np.ndarray:
        """Sorted by `index`, since a server need not list them in order."""
        if len(items) != count:
            raise self._wrong(f"{len(items):,} embeddings for {count:,} texts")
        rows = {item["index"]: item["embedding"] for item in items}
        if set(rows) != set(range(count)):
            raise self._wrong(
                "embeddings whose numbers (“index”) do not say which text they are of"
            )
        lengths = sorted({len(row) for row in rows.values()})
        if len(lengths) > 1:
            raise self._wrong(
                f"embeddings of different lengths ({lengths[0]} and {lengths[-1]} numbers)"
            )
        if any(type(value) not in (int, float) for row in rows.values() for value in row):
            raise self._wrong("embeddings that are not lists of numbers")
        try:
            found = np.array([rows[at] for at in range(count)], dtype=np.float64)
        except OverflowError:
            found = np.full((count, 1), np.nan)
        if not np.isfinite(found).all() or np.abs(found).max(initial=0) > np.finfo(np.float32).max:
            raise self._wrong("an embedding with numbers that are not finite")
        if not found.any(axis=1).all():
            raise self._wrong("an embedding without a direction: nothing but zeros")
        return found.astype(np.float32)

    def _wrong(self, what: str) -> ChatError:
        return ChatError(f"{self.where} sent {what}.", paid=True)


def batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """In order, AT_ONCE texts and CHARACTERS_AT_ONCE characters at most; a longer text goes
    alone.
    """
    batch: list[str] = []
    for text in texts:
        if batch and (
            len(batch) == AT_ONCE or sum(map(len, batch)) + len(text) > CHARACTERS_AT_ONCE
        ):
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch
