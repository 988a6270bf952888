"""What the user of a task says once it has begun. Pure.

The turns recorded after that step answer what the failed agent said there: they agree to its offer,
choose from what it listed, object. A right agent says something else, so these turns are not
replayed. Only what they reveal of the wish is kept: sentences with a fact that the task needs or
that nobody else had mentioned, and with nothing that the failed agent brought up after the step.
For the rest there is a standing answer, which agrees to what was asked for and to nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from apps.evals.near_duplicates.calls import leaves_of, words_of
from apps.evals.near_duplicates.markup import plain
from apps.evals.near_duplicates.text import FILLERS, content, is_slot, names_in
from apps.failures.rules.expected import ExpectedCall
from apps.failures.rules.reading import Run, name_parts

AGREES = "Yes, go ahead, if that is what I asked for. I have told you everything."
SAYS, TURNS, LEFT_OUT = "user_says", "user_turns", "left_out"  # in a task's metadata
FEWEST_TURNS, MOST_TURNS = 2, 50
MOST_SAID = 20
SHORTEST, SHORTEST_STEM = 2, 3  # characters of a value, and of a word that another begins with
LOST = (
    "The user names {values} only where it answers the failed run ({where}), which is not replayed."
    " If the task needs it, add it to what the user says."
)
_SENTENCE = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])|\n+")
_OPENING = re.compile(
    r"\s*[^\s,，、:]+(?:\s[^\s,，、:]+)?\s*[,，、:]\s*"
)  # “Yes, ”, “Alright then, ”


@dataclass(frozen=True)
class Later:
    """`says` are the sentences that are kept, in the user's own words; `left_out` the turns
    (message indices) of which nothing is; `warnings` what may be missing without them.
    """

    says: list[str]
    left_out: list[int]
    warnings: list[str]
    count: int = 0  # recorded turns

    def as_metadata(self) -> dict[str, Any]:
        return {
            SAYS: self.says,
            TURNS: turns_of(self.says, most=self.count),
            LEFT_OUT: self.left_out,
        }


def later_turns(run: Run, cut: int, changes: Sequence[ExpectedCall]) -> Later:
    """The user's turns after a step, sorted; `changes` are those that should result."""
    facts = _Facts(run, cut, changes)
    says: list[str] = []
    left_out: list[int] = []
    lost: dict[str, int] = {}
    for at, text in run.users:
        if at <= cut:
            continue
        kept = [item.text for item in sentences(text) if facts.take(item, at)]
        says += kept
        if not kept:
            left_out.append(at)
        lost |= dict.fromkeys(facts.needed_in(text), at)
    missing = {word: at for word, at in lost.items() if word not in facts.said}
    count = sum(at > cut for at, _ in run.users)
    return Later(says[:MOST_SAID], left_out, _warnings(missing), count)


def turns_of(says: Sequence[str], agrees: str = "", *, most: int = FEWEST_TURNS) -> list[str]:
    """The user's next turns: all that is to be said, with the standing answer, and then that again
    and again.
    """
    standing = agrees or AGREES
    count = min(max(most, FEWEST_TURNS), MOST_TURNS)
    return [" ".join((*says, standing)), *[standing] * (count - 1)]


@dataclass(frozen=True)
class Sentence:
    """An opening of one or two words (“Yes, ”) is cut off; `answers`: whether a turn began so."""

    text: str
    answers: bool = False


def sentences(text: str) -> list[Sentence]:
    parts = [part.strip() for part in _SENTENCE.split(text) if part.strip()]
    return [_opened(part, is_first=at == 0) for at, part in enumerate(parts)]


def _opened(text: str, *, is_first: bool) -> Sentence:
    opening = _OPENING.match(text)
    if opening is None or _has_digit(opening[0]) or opening.end() == len(text):
        return Sentence(text)
    rest = text[opening.end() :]
    return Sentence(rest[0].upper() + rest[1:], answers=is_first)


class _Facts:
    """What the user has said and what the failed agent has brought up so far."""

    def __init__(self, run: Run, cut: int, changes: Sequence[ExpectedCall]) -> None:
        self.run, self.cut = run, cut
        self.values = _values_of(changes)
        tools = run.offer.names | {item.tool for item in (*run.calls, *changes)}
        self.verbs = _own_verbs(changes, tools)
        before = [words_of(message) for message in run.messages[:cut]]
        self.known = _words(before)
        self.said = _words(text for at, text in run.users if at < cut)

    def needed_in(self, text: str) -> set[str]:
        """The values and verbs of the changes that a text has."""
        found = _words([text])
        values = {word for word in found & self.values if len(word) >= SHORTEST}
        return values | {verb for verb in self.verbs if any(_begins(verb, word) for word in found)}

    def take(self, sentence: Sentence, at: int) -> bool:
        """Whether the user says this whatever the agent answers; if so, it counts as said. What
        answers the agent has to have more than a word of the changes: an offer has these, too.
        """
        found = _words([sentence.text])
        offered = _words(self._agents_words(at))
        values = {word for word in found if is_slot(word) and len(word) >= SHORTEST}
        if values & offered - self.values - self.said:
            return False
        own = {word for word in values if _has_digit(word)}
        own = (own | names_in(plain(sentence.text), is_strict=True)) - self.known - offered
        needed = self.needed_in(sentence.text)
        if sentence.answers:
            needed = {word for word in needed if _has_digit(word)}
        new = (needed | own) - self.said
        if new:
            self.said |= found | new
        return bool(new)

    def _agents_words(self, until: int) -> list[str]:
        """What the agent said and called, and what its tools returned, since the step."""
        users = {at for at, _ in self.run.users}
        return [
            words_of(message)
            for at, message in enumerate(self.run.messages[:until])
            if at >= self.cut and at not in users
        ]


def _has_digit(word: str) -> bool:
    return any(map(str.isdigit, word))


def _words(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in content(plain(text))}


def _values_of(changes: Iterable[ExpectedCall]) -> set[str]:
    leaves = (leaf for item in changes for _, leaf in leaves_of(item.args))
    texts = (str(leaf).replace("_", " ") for leaf in leaves if not isinstance(leaf, bool))
    found = {word for text in texts for word in (text.casefold(), *content(text))}
    return {word for word in found if len(word) > 2 or is_slot(word)} - FILLERS


def _own_verbs(changes: Iterable[ExpectedCall], tools: Collection[str]) -> set[str]:
    """The words in the names of the expected tools that no other tool's name has."""
    others = {tool: _stems(tool) for tool in tools}
    return {
        stem
        for item in changes
        for stem in _stems(item.tool)
        if not any(stem in stems for tool, stems in others.items() if tool != item.tool)
    }


def _stems(tool: str) -> set[str]:
    return {stem for part in name_parts(tool) if len(part) > 2 for stem in content(part)}


def _begins(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return one == other or (len(short) >= SHORTEST_STEM and long.startswith(short))


def _warnings(missing: dict[str, int]) -> list[str]:
    if not missing:
        return []
    values = ", ".join(f"“{word}”" for word in sorted(missing))
    where = ", ".join(f"#{at}" for at in sorted(set(missing.values())))
    return [LOST.format(values=values, where=where)]


def with_says(metadata: dict[str, Any], says: Sequence[str], agrees: str = "") -> dict[str, Any]:
    """The metadata of a task whose user says something else."""
    count = len(metadata.get(TURNS) or ())
    return metadata | {SAYS: list(says), TURNS: turns_of(says, agrees, most=count)}


def standing_of(metadata: dict[str, Any]) -> str:
    """The standing answer of a task's user; empty without one."""
    turns = metadata.get(TURNS) or [""]
    return turns[-1]
