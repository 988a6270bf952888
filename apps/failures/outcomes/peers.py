"""Compares runs of the same request by the changes they ended with: if two differ, at least one of
them failed. Pure.

Two runs have the same request if they carry the same task id, or if their users say nearly the same
thing (Jaccard index of the words, estimated by one-permutation MinHash, Li, Owen and Zhang 2012)
and do not name different things (order numbers, user names).
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
SAME_WORDS = 0.3  # lowest Jaccard index at which two texts count as the same request
FEWEST_WORDS, SAME_FEW_WORDS = 12, 0.9  # short texts must match almost completely
TURNS = 6  # first user turns that are compared
MOST_NAMES, MOST_NAMES_SEEN = 8, 200
SHORT_TEXT = (
    3  # spaces; longer arguments are prose, which may differ although the change is the same
)
MOST_CHANGES = 100
MOST_PEERS = 20  # the newest ones
_WORD = re.compile(r"[#\w][\w\-@.]{2,80}\w")


@dataclass(frozen=True)
class Sketch:
    """The parts of a run that are compared. `words`: BINS numbers, 0 for an empty bin; `names`:
    hashes of the names that users mention; `changes`: equal for equal changes, 0 if nothing was
    changed.
    """

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
    """Hashes of order numbers, user names and similar identifiers in the texts; at most MOST_NAMES,
    the smallest hashes.
    """
    words = [word for text in said for word in _WORD.findall(text[:4000])[:MOST_NAMES_SEEN]]
    named = {
        word.strip("#.").casefold()
        for word in words
        if any(map(str.isdigit, word)) and is_identifier(word)
    }
    digests = sorted(zlib.crc32(name.encode("utf-8", "replace")) for name in named)
    return np.array(digests[:MOST_NAMES], dtype="<u4").tobytes()


def _changes(run: Run) -> int:
    """A 63-bit fingerprint of the successful changes and hand-overs, in any order; 0 if there were
    none.
    """
    made = set()
    for call in run.calls[:MOST_CHANGES]:
        kind = kind_of(call.tool)
        if not call.worked or kind not in ("write", "handover"):
            continue
        made.add(
            (
                call.tool,
                (
                    b""
                    if kind == "handover"
                    else msgspec.json.encode(_plain(call.args), order="sorted")
                ),
            )
        )
    if not made:
        return 0
    text = b"\n".join(tool.encode("utf-8", "replace") + b" " + args for tool, args in sorted(made))
    return (zlib.crc32(text) << 31 | zlib.adler32(text) & 0x7FFFFFFF) or 1


def _plain(value: object, depth: int = 0) -> object:
    """Arguments without prose, normalized so that equal values compare equal."""
    if isinstance(value, dict) and depth < 8:
        items = {
            str(key): _plain(item, depth + 1) for key, item in value.items() if not _is_prose(item)
        }
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
    """One run compared with others of the same request: the number of others, the number that ended
    in the same changes, and whether some other outcome is more common than this run's.
    """

    others: int
    same: int
    minority: bool

    def dense(self) -> dict[str, float]:
        """As features for the model."""
        if not self.others:
            return {}
        same = self.same / self.others
        return {
            "peers_differ": 1 - same,
            "peers_agree": same,
            "in_the_minority": float(self.minority),
        }

    def signs(self) -> list[Signal]:
        differ = self.others - self.same
        if not differ:
            return []
        text = (
            f"{differ} of {self.others} other run{'s' if self.others > 1 else ''} of the same"
            " request ended with different changes."
        )
        signs = [Signal("peers_differ", None, text)]
        if self.minority:
            signs.append(
                Signal(
                    "in_the_minority",
                    None,
                    "Another set of changes is more common among the runs of this request.",
                )
            )
        return signs


NOBODY = Comparison(0, 0, False)


def _marks(words: np.ndarray) -> np.ndarray:
    """Combine each value with its bin into one number, so that equal numbers mean equal values in
    the same bin.
    """
    return words.astype(np.int64) * BINS + np.arange(BINS)


def _names_of(sketch: Sketch) -> set[int]:
    return set(np.frombuffer(sketch.names, dtype="<u4").tolist())


class Peers:
    """Sketches of runs, searchable for runs of the same request. `keys` identify the runs, newest
    first.
    """

    def __init__(self, keys: Sequence[object], sketches: Sequence[Sketch]) -> None:
        self.keys, self._sketches = list(keys), list(sketches)
        self._names: dict[int, set[int]] = {}
        self._found: dict[tuple[object, Sketch], list[int]] = {}
        self._words = np.array(
            [np.frombuffer(item.words, dtype="<u4") for item in sketches]
        ).reshape(-1, BINS)
        marks = _marks(self._words)
        rows, bins = np.nonzero(self._words)
        order = np.argsort(marks[rows, bins], kind="stable")
        self._marks, self._rows = marks[rows, bins][order], rows[order]
        self._tasks: dict[str, list[int]] = {}
        for at, item in enumerate(sketches):
            if item.task:
                self._tasks.setdefault(item.task, []).append(at)

    def of(self, key: object, sketch: Sketch) -> list[int]:
        """The positions of the other runs of the same request; at most MOST_PEERS."""
        if (key, sketch) not in self._found:
            self._found[key, sketch] = self._look_up(key, sketch)
        return self._found[key, sketch]

    def _look_up(self, key: object, sketch: Sketch) -> list[int]:
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
        starts, ends = (
            np.searchsorted(self._marks, marks),
            np.searchsorted(self._marks, marks, side="right"),
        )
        hits = [
            self._rows[start:end] for start, end in zip(starts, ends, strict=True) if start < end
        ]
        if not hits:
            return []
        both = np.bincount(np.concatenate(hits), minlength=len(self._sketches))
        near = np.flatnonzero(both >= least * words)
        either = ((self._words[near] > 0) | filled).sum(axis=1)
        close = near[both[near] >= least * either].tolist()
        names = _names_of(sketch)
        return [at for at in close if self._may_be(names, at)]

    def _may_be(self, names: set[int], at: int) -> bool:
        """Whether the two could be the same request: they name something in common, or one of them
        names nothing.
        """
        if at not in self._names:
            self._names[at] = _names_of(self._sketches[at])
        other = self._names[at]
        return not names or not other or not names.isdisjoint(other)

    def compare(self, key: object, sketch: Sketch) -> Comparison:
        """Compare a run with its peers; NOBODY if there are none, or if no run of the request
        changed anything.
        """
        changes = [self._sketches[at].changes for at in self.of(key, sketch)]
        if not changes or not (sketch.changes or any(changes)):
            return NOBODY
        counts = Counter([sketch.changes, *changes])
        same = counts[sketch.changes] - 1
        return Comparison(len(changes), same, same + 1 < max(counts.values()))
