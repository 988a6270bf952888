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
USER_BY = "user_by"  # who drafted it, if not this module
FEWEST_TURNS, MOST_TURNS = 2, 50
MOST_SAID = 20
SHORTEST, SHORTEST_STEM = 2, 3  # characters of a value, and of a word that another begins with
LOST = (
    "The user mentions {values} only where it answers the failed run ({where}), which is not"
    " replayed. If the task needs it, add it to what the user says."
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


def changes_of(expected: dict[str, Any]) -> list[ExpectedCall]:
    """What an episode expects, without the arguments of which any value is right."""
    return [
        ExpectedCall(
            call["tool"],
            {name: arg for name, arg in call["args"].items() if name not in call.get("any", ())},
        )
        for call in expected.get("calls", ())
    ]


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
        tools = run.offer.names | {item.tool for item in (*run.calls, *changes)}
        self.values, self.verbs = _values_of(changes), _own_verbs(changes, tools)
        users = dict(run.users)
        self.known = _words(words_of(message) for message in run.messages[:cut])
        self.said = _words(text for at, text in users.items() if at < cut)
        self.by_user: dict[str, int] = {}  # at which message a word is first the user's
        self.by_agent: dict[str, int] = {}  # and, from the step on, the agent's or a tool's
        for at, message in enumerate(run.messages):
            if at in users or at >= cut:
                first = self.by_user if at in users else self.by_agent
                for word in _words([words_of(message)]):
                    first.setdefault(word, at)

    def brought_up(self, words: Collection[str], until: int | None = None) -> set[str]:
        """Those that the agent said from the step on, before the user did."""
        return {
            word
            for word in words
            if (at := self.by_agent.get(word)) is not None
            and (until is None or at < until)
            and self.by_user.get(word, at) >= at
        }

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
        values = {word for word in found if is_slot(word) and len(word) >= SHORTEST}
        if self.brought_up(values - self.values, at):
            return False
        own = {word for word in values if _has_digit(word)}
        own |= names_in(plain(sentence.text), is_strict=True)
        own -= self.known | self.brought_up(own, at)
        needed = self.needed_in(sentence.text)
        if sentence.answers:
            needed = {word for word in needed if _has_digit(word)}
        new = (needed | own) - self.said
        if new:
            self.said |= found | new
        return bool(new)


def brought_up(
    run: Run, cut: int, changes: Sequence[ExpectedCall], texts: Iterable[str]
) -> set[str]:
    """The numbers, dates and identifiers in these texts that only the failed agent brought up."""
    facts = _Facts(run, cut, changes)
    values = {word for word in _words(texts) if is_slot(word) and len(word) >= SHORTEST}
    return facts.brought_up(values - facts.values)


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


def without_user(metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata of a task that is no episode any more."""
    return {
        name: value
        for name, value in metadata.items()
        if name not in (SAYS, TURNS, LEFT_OUT, USER_BY)
    }


def standing_of(metadata: dict[str, Any]) -> str:
    """The standing answer of a task's user; empty without one."""
    turns = metadata.get(TURNS) or [""]
    return turns[-1]
