"""Keys and values of prompts that were answered, for prompts that begin in the same way."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch

from workers.ml.tree import Cached, Prefilled, Store

KEPT = 24  # prompts


class KeptPrompts:
    """Keys and values of the most recent prompts, `most_tokens` in total, so that a common
    beginning is not computed again.
    """

    def __init__(self, most_tokens: int) -> None:
        self.most_tokens = most_tokens
        self.entries: deque[tuple[object, np.ndarray, Cached]] = deque()

    def clear(self) -> None:
        self.entries.clear()

    def drop(self, adapter: object) -> None:
        self.entries = deque(entry for entry in self.entries if entry[0] is not adapter)

    def keep(self, adapter: object, prompts: list[list[int]], prompted: Prefilled) -> None:
        """Keep the longest prompt of a batch: the others share their beginning with it, if with
        any.
        """
        place = max(range(len(prompts)), key=lambda place: len(prompts[place]))
        known = self.find(adapter, prompts[place])
        if len(prompts[place]) > self.most_tokens or (
            known and len(known.path) == len(prompts[place])
        ):
            return
        path = torch.from_numpy(prompted.paths[place]).to(prompted.last_hidden.device)
        keys, values = (
            [one[:, :, path] for one in some] for some in (prompted.keys, prompted.values)
        )
        ids = np.array(prompts[place])
        self.entries.append((adapter, ids, Cached(Store(keys, values), np.arange(len(ids)))))
        while (
            len(self.entries) > KEPT
            or sum(len(ids) for _, ids, _ in self.entries) > self.most_tokens
        ):
            self.entries.popleft()

    def find(self, adapter: object, ids: list[int]) -> Cached | None:
        """The longest stored beginning of these tokens."""
        wanted, best, most = np.array(ids), None, 0
        for of, known, cached in self.entries:
            if of is adapter and (same := _shared(wanted, known)) > most:
                best, most = cached, same
        return None if best is None else Cached(best.store, best.path[:most])


def _shared(one: np.ndarray, other: np.ndarray) -> int:
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if len(differ) else size
