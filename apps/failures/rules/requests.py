"""Changes that were requested but not made, and changes made without the confirmation that the
system prompt requires. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from apps.failures.rules import conditions, words
from apps.failures.rules.causes import where_it_turned
from apps.failures.rules.findings import Finding, cut
from apps.failures.rules.reading import Call, Run, kind_of, name_parts

SENTENCES, THING, THING_WORDS, SHORTEST = 40, 60, 6, 3
WITHOUT_A_YES = "was called without a “yes” in the user's last message"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n")
_WORD = re.compile(r"[A-Za-z]+")
_NO_THINGS = words.word_set(
    "the a an my any more one two three four all this that it them these those some both each other"
    " new few same you your our him her change changes request thing things something anything"
    " everything"
)
_ENDS_A_THING = words.word_set(
    "to from for on in with at by and so if as or instead because since into using of but please"
    " then"
)


def request_not_served(run: Run) -> Iterator[Finding]:
    """Something was changed, but no change mentions another thing that the user asked to change."""
    made = [call for call in run.calls if call.worked and kind_of(call.tool) == "write"]
    verbs = {part for call in made for part in name_parts(call.tool)}
    touched = {
        _stem(word)
        for call in made
        for word in _WORD.findall(f"{call.tool} {call.raw}".replace("_", " "))
    }
    for index, text in run.users if made else ():
        for sentence in _SENTENCE_END.split(text[: words.LOOKED_AT])[:SENTENCES]:
            for verb, thing in _requested_changes(sentence):
                named = _things(thing)
                served = verb in verbs or any(
                    _same_thing(word, other) for word in named for other in touched
                )
                if named and not served:
                    said = f"The user asked to {verb} “{cut(thing.strip(), 50)}”, but no call did."
                    yield Finding(
                        "incomplete_execution", where_it_turned(run), index, said, cut(text)
                    )


def _requested_changes(sentence: str) -> Iterator[tuple[str, str]]:
    """(verb, what follows it) of each change that a sentence asks for."""
    if words.search(words.REQUEST, sentence):
        for found in words.CHANGE.finditer(sentence):
            yield found.group().lower(), sentence[found.end() : found.end() + THING]


def _things(phrase: str) -> list[str]:
    """The words in a phrase that name something, up to the first preposition."""
    found = []
    for word in _WORD.findall(phrase)[:THING_WORDS]:
        if word.casefold() in _ENDS_A_THING:
            break
        if len(word) >= SHORTEST and word.casefold() not in _NO_THINGS:
            found.append(_stem(word))
    return found


def _same_thing(word: str, other: str) -> bool:
    """Whether one word begins with the other: bag and baggage."""
    return other.startswith(word) or (len(other) > SHORTEST and word.startswith(other))


def _stem(word: str) -> str:
    word = word.casefold()
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def change_without_a_yes(run: Run) -> Iterator[Finding]:
    """A confirmation is required before changes; the user's last message before one has none."""
    if not run.changes_made or not (asked := conditions.consents_asked(run)):
        return
    source = conditions.source_of(run, asked[0])
    for call, said in changes_without_a_yes(run):
        text = f"{call.tool} {WITHOUT_A_YES}; the {source} requires a confirmation."
        yield Finding("policy_violation", call.index, call.index, text, cut(said))


def changes_without_a_yes(run: Run) -> Iterator[tuple[Call, str]]:
    """(a change, the user's last message before it) if that message has no yes."""
    for call in run.changes_made:
        at = run.user_before(call.index)
        said = "" if at is None else run.words(at)
        if not words.search(words.YES, said):
            yield call, said
