"""Which agents' runs a model learned from: decisions about one agent say little about the runs of
another. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FEWEST = 5  # decided runs of an agent before a model is used for it
MOST = 200  # the most frequent kinds of runs, which a model remembers


@dataclass(frozen=True)
class Kind:
    """An agent, identified by its name (where runs carry one) and its tools."""

    name: str = ""
    tools: frozenset[str] = frozenset()

    def is_like(self, other: Kind) -> bool:
        """True for the same name, or if they share at least half the tools of whichever has
        fewer.
        """
        if self.name and self.name == other.name:
            return True
        if not self.tools or not other.tools:
            return self.tools == other.tools and not (self.name and other.name)
        return 2 * len(self.tools & other.tools) >= min(len(self.tools), len(other.tools))


@dataclass(frozen=True)
class Agents:
    """The kinds of runs that were decided on, with the number of each. Empty for a model trained on
    nobody's decisions.
    """

    kinds: tuple[tuple[Kind, int], ...] = ()

    @classmethod
    def of(cls, kinds: Iterable[Kind]) -> Agents:
        return cls(tuple(Counter(kinds).most_common(MOST)))

    def include(self, kind: Kind) -> bool:
        """Whether enough similar runs were decided on. Always true for a model trained on nobody's
        decisions.
        """
        return not self.kinds or sum(n for known, n in self.kinds if known.is_like(kind)) >= FEWEST

    def as_json(self) -> list[list]:
        return [[kind.name, sorted(kind.tools), n] for kind, n in self.kinds]

    @classmethod
    def from_json(cls, given: Sequence[Sequence]) -> Agents:
        return cls(tuple((Kind(name, frozenset(tools)), n) for name, tools, n in given))
