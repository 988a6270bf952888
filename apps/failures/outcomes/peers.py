"""Runs of the same request, and whether they ended in the same changes: where two differ, at least one failed. Pure.

Runs are of the same request where they carry the same task, or where their users say nearly the same (Jaccard index of the words,
estimated by one-permutation MinHash, Li, Owen and Zhang 2012) and do not name different things (order numbers, user names).
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from apps.failures.outcomes.signals import Signal
from apps.failures.rules.reading import Run, is_identifier, kind_of
from apps.failures.rules.words import content_words

BINS = 64
SAME_WORDS = 0.3  # Jaccard index from which on two texts are the same request
FEWEST_WORDS, SAME_FEW_WORDS = 12, 0.9  # of fewer words nearly all must be the same
TURNS = 6  # of the user
MOST_NAMES, MOST_NAMES_SEEN = 8, 200
SHORT_TEXT = 3  # spaces: longer arguments are prose, which differs without meaning another change
MOST_CHANGES = 100
MOST_PEERS = 20  # the newest
_WORD = re.compile(r"[#\w][\w\-@.]{2,80}\w")


@dataclass(frozen=True)
class Sketch:
    """What of a run is compared. `words`: BINS numbers, 0 for an empty bin; `names`: hashes of what users name; `changes` is equal for the
    same changes and 0 where nothing was changed."""

    task: str
    words: bytes
    names: bytes
    changes: int

    @classmethod
    def of(cls, run: Run, task: str) -> Sketch:
        said = [text for _, text in run.users[:TURNS]]
        words = frozenset[str]().union(*map(content_words, said))
        return cls(task[:120], _min_hashes(words), _names(said), _changes(run))


def _min_hashes(words: frozenset[str]) -> bytes:
    """The smallest hash in each bin, as BINS numbers of 32 bits."""
    least = [0] * BINS
    for word in words:
        digest = zlib.crc32(word.encode("utf-8", "replace"))
        at, value = digest % BINS, digest // BINS + 1
        if not least[at] or value < least[at]:
            least[at] = value
    return np.array(least, dtype="<u4").tobytes()


def _names(said: Sequence[str]) -> bytes:
    """Hashes of the order numbers, user names and the like in a text: the smallest ones."""
    words = [word for text in said for word in _WORD.findall(text[:4000])[:MOST_NAMES_SEEN]]
    named = {word.strip("#.").casefold() for word in words if any(map(str.isdigit, word)) and is_identifier(word)}
    digests = sorted(zlib.crc32(name.encode("utf-8", "replace")) for name in named)
    return np.array(digests[:MOST_NAMES], dtype="<u4").tobytes()


def _changes(run: Run) -> int:
    """A number of 63 bits that stands for the changes that worked, whatever their order, and for a hand-over."""
    made = set()
    for call in run.calls[:MOST_CHANGES]:
        kind = kind_of(call.tool)
        if not call.worked or kind not in ("write", "handover"):
            continue
        made.add((call.tool, b"" if kind == "handover" else msgspec.json.encode(_plain(call.args), order="sorted")))
    if not made:
        return 0
    text = b"\n".join(tool.encode("utf-8", "replace") + b" " + args for tool, args in sorted(made))
    return (zlib.crc32(text) << 31 | zlib.adler32(text) & 0x7FFFFFFF) or 1


def _plain(value: object, depth: int = 0) -> object:
    """Arguments without prose, in one way of writing."""
    if isinstance(value, dict) and depth < 8:
        items = {str(key): _plain(item, depth + 1) for key, item in value.items() if not _is_prose(item)}
        return {key.encode("utf-8", "replace").decode(): item for key, item in items.items()}
    if isinstance(value, list) and depth < 8:
        return sorted((_plain(item, depth + 1) for item in value), key=repr)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return " ".join(str(value).split()).casefold().encode("utf-8", "replace").decode()


def _is_prose(value: object) -> bool:
    return isinstance(value, str) and value.count(" ") > SHORT_TEXT


@dataclass(frozen=True)
class Comparison:
    """Of a run with others of its request: how many there are, how many ended in the same changes, and whether its own are those of
    fewer runs than another's."""

    others: int
    same: int
    minority: bool

    def dense(self) -> dict[str, float]:
        """As features of the model."""
        if not self.others:
            return {}
        same = self.same / self.others
        return {"peers_differ": 1 - same, "peers_agree": same, "in_the_minority": float(self.minority)}

    def signs(self) -> list[Signal]:
        differ = self.others - self.same
        if not differ:
            return []
        text = f"{differ} of {self.others} other run{'s' if self.others > 1 else ''} of the same request ended with different changes."
        signs = [Signal("peers_differ", None, text)]
        if self.minority:
            signs.append(
                Signal("in_the_minority", None, "Another set of changes is more common among the runs of this request.")
            )
        return signs


NOBODY = Comparison(0, 0, False)


def _marks(words: np.ndarray) -> np.ndarray:
    """One number for a value in its bin."""
    return words.astype(np.int64) * BINS + np.arange(BINS)


class Peers:
    """Sketched runs, among which those of the same request are looked up; `keys` name them, the newest first."""

    def __init__(self, keys: Sequence[object], sketches: Sequence[Sketch]) -> None:
        self.keys, self._sketches = list(keys), list(sketches)
        self._words = np.array([np.frombuffer(item.words, dtype="<u4") for item in sketches]).reshape(-1, BINS)
        marks = _marks(self._words)
        rows, bins = np.nonzero(self._words)
        order = np.argsort(marks[rows, bins], kind="stable")
        self._marks, self._rows = marks[rows, bins][order], rows[order]
        self._tasks: dict[str, list[int]] = {}
        for at, item in enumerate(sketches):
            if item.task:
                self._tasks.setdefault(item.task, []).append(at)

    def of(self, key: object, sketch: Sketch) -> list[int]:
        """Where the other runs of the same request stand; at most MOST_PEERS."""
        if sketch.task:
            found = self._tasks.get(sketch.task, [])
        else:
            found = [at for at in self._alike(sketch) if not self._sketches[at].task]
        return [at for at in found if self.keys[at] != key][:MOST_PEERS]

    def _alike(self, sketch: Sketch) -> list[int]:
        own = np.frombuffer(sketch.words, dtype="<u4")
        filled = own > 0
        words = int(filled.sum())
        if not words or not self._sketches:
            return []
        least = SAME_WORDS if words >= FEWEST_WORDS else SAME_FEW_WORDS
        marks = _marks(own)[filled]
        starts, ends = np.searchsorted(self._marks, marks), np.searchsorted(self._marks, marks, side="right")
        hits = [self._rows[start:end] for start, end in zip(starts, ends, strict=True) if start < end]
        if not hits:
            return []
        both = np.bincount(np.concatenate(hits), minlength=len(self._sketches))
        near = np.flatnonzero(both >= least * words)
        either = ((self._words[near] > 0) | filled).sum(axis=1)
        return [int(at) for at in near[both[near] >= least * either] if self._may_be(sketch, int(at))]

    def _may_be(self, sketch: Sketch, at: int) -> bool:
        """Whether users name nothing, or the same thing."""
        other = self._sketches[at]
        one, two = (set(np.frombuffer(item.names, dtype="<u4").tolist()) for item in (sketch, other))
        return not one or not two or not one.isdisjoint(two)

    def compare(self, key: object, sketch: Sketch) -> Comparison:
        """Nothing is said of requests for which no run changed anything."""
        changes = [self._sketches[at].changes for at in self.of(key, sketch)]
        if not changes or not (sketch.changes or any(changes)):
            return NOBODY
        counts = Counter([sketch.changes, *changes])
        same = counts[sketch.changes] - 1
        return Comparison(len(changes), same, same + 1 < max(counts.values()))
