"""Patterns in the words of replies, users and agents. Pure.

Texts are untrusted, so patterns over words are RE2's, which no text makes slow; those of Python's
`re` only look at the start of a text and are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from functools import lru_cache
from typing import Any

import re2


def _words(pattern: str) -> Any:
    """A case-insensitive RE2 pattern."""
    options = re2.Options()
    options.case_sensitive = False
    return re2.compile(pattern, options)


def search(pattern: Any, text: str) -> Any:
    """The first match in the searched part of a text, or None; half a surrogate pair matches
    nothing.
    """
    try:
        return pattern.search(text[:LOOKED_AT].replace("’", "'"))
    except UnicodeEncodeError:
        return None


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


LOOKED_AT = 1500  # characters of one message

UNKNOWN_TOOL = _words(
    r"\b(?:unknown|no such|undefined|unrecogni[sz]ed|nonexistent) (?:tool|function|api)\b"
    r"|\b(?:tool|function|api)\b.{0,80}\b(?:not found|does not exist|doesn't exist|is not"
    r" defined|not registered|"
    r"is not (?:a valid|an available|available|a known))"
)
EMPTY = frozenset(
    (
        "",
        "[]",
        "{}",
        "null",
        "none",
        "[[]]",
        "no results",
        "no results found",
        "no result",
        "not found",
        "no matches",
        "no matches found",
        "0 results",
        "no data",
        "no documents found",
        "empty",
    )
)
EMPTY_JSON = re.compile(
    r'^\{\s*"(?:results?|items|documents|data|hits|matches|rows|records)"\s*:\s*(?:\[\s*\]|null|\{\s*\})',
    re.IGNORECASE,
)
NOTHING_FOUND = _words(
    r"\b(?:no|not|none|nothing|unable|cannot|couldn't|can't|don't|didn't|isn't|aren't|unfortunately|sorry|empty|fail\w*)\b"
)
DENIAL = _words(
    r"\b(?:not|unable|cannot|couldn't|can't|won't|didn't|hasn't|haven't|unfortunately|fail\w*|error\w*|issue|problem|"
    r"sorry|apologi[sz]e|would you like|please (?:provide|confirm))\b"
)
# The agent itself cannot, may not, will not. What it cannot see, find, feel or say enough of is no
# refusal.
_CANNOT_ITSELF = (
    r"\b(?:i(?:'m| am)|we(?:'re| are)) (?:\w+ ){0,2}?(?:unable|not"
    r" (?:able|allowed|permitted|authori[sz]ed|in a position))\b"
    r"|\b(?:i|we) (?:\w+ly )?(?:cannot|can't|can not)\b"
    r"|\b(?:i|we)(?:'ll| will)? (?:won't|not|will not) be (?:able|allowed|permitted)\b"
    r"|\b(?:i|we)(?:'ll)? (?:\w+ )?(?:must|have to|need to) (?:\w+ )?(?:decline|refuse)\b"
    r"|\b(?:i|we) (?:\w+ )?(?:decline|refuse) to\b|\b(?:i'm|i am) (?:declining|refusing)\b"
    r"|\b(?:i|we) (?:don't|do not) (?:\w+ )?have (?:the |any"
    r" )?(?:access|permissions?|authori[sz]ation|authority|ability|means)\b"
)
_WILL_NOT = (
    r"\b(?:i|we) (?:will not|won't|would rather not) (?:help|assist|comply|answer|engage"
    r"|participate|continue|proceed|provide|share|disclose|reveal|discuss|write|generate"
    r"|do (?:that|this|it|so))\b"
)
_OUTSIDE_ME = (
    r"\b(?:not|isn't) (?:something|anything) (?:that )?"
    r"(?:i|we)(?:'m| am|'re| are| can| could| will)\b"
    r"|\b(?:outside|beyond)(?: of)? (?:what (?:i|we)|the scope of (?:what (?:i|we)|my|our)"
    r"|(?:my|our) (?:\w+ )?(?:scope|role|abilit\w+|capabilit\w+|remit|authority|permissions))\b"
)
_CANNOT_BE = (  # done by the agent; what a door or a guarantee cannot be is a fact
    r"\b(?:cannot|can't|can not) be (?:\w+ly )?(?:done|made|processed|completed|cancell?ed|refunded"
    r"|returned|exchanged|modified|changed|updated|upgraded|booked|added|removed|approved|granted"
    r"|waived|issued|transferred|extended|accommodated|provided|shared|disclosed|fulfilled)\b"
)
_NO_ACTION = (
    r"(?:wait|thank|believe|imagine|help"
    r" (?:but|\w+ing)|stress|emphasi[sz]e|overstate|exaggerate|praise|complain|wish|"
    r"express|describe|agree|find|see|spot|detect|notice|identify|think|tell|say|remember|recall|hear|feel|recommend)\b"
)


class Unless:
    """A pattern, unless it is followed by another one: RE2 has no lookahead."""

    def __init__(self, pattern: str, followed_by: str) -> None:
        self.pattern = pattern
        self._matches, self._next = _words(pattern), _words(rf"(?:\W*\w+ly)?\W*{followed_by}")

    def search(self, text: str) -> Any:
        matches = self._matches.finditer(text)
        return next((match for match in matches if not self._next.match(text, match.end())), None)


REFUSED = Unless(
    rf"{_CANNOT_ITSELF}|{_WILL_NOT}|{_OUTSIDE_ME}|{_CANNOT_BE}|\bunable to\b"
    r"|\b(?:cannot|can't) (?:assist|proceed)\b"
    r"|\b(?:is|are) not (?:allowed|permitted|possible)\b",
    _NO_ACTION,
)
REFUSAL = Unless(
    rf"{_CANNOT_ITSELF}|{_WILL_NOT}|{_OUTSIDE_ME}|{_CANNOT_BE}|\bunable to\b"
    r"|\b(?:cannot|can't) (?:assist|proceed|help)\b"
    r"|\bi need (?:both|the|your) \w+|\bunfortunately\b",
    _NO_ACTION,
)
OFFER = _words(
    r"\b(?:would you like me to|shall i|i can (?:also )?(?:offer|proceed)|do you want me to)\b"
)
CORRECTION = _words(
    r"\bi (?:meant|didn't (?:ask|say|mean)|did not (?:ask|say|mean))\b"
    r"|\b(?:that's|that is|this is|it's|you're|you are) (?:wrong|incorrect|not"
    r" (?:right|correct|true|what i|the one i))\b"
    r"|\bnot what i (?:asked|wanted|meant|said)|\bi (?:already|just) (?:said|told|asked|gave)|\bas"
    r" i (?:already )?said"
    r"|\byou (?:misunderstood|got (?:it|that|this) wrong|made a"
    r" mistake|(?:changed|booked|cancell?ed|picked) the wrong)"
    r"|^\W*no,? (?:not (?:that|this|the)|you )"
)
YES = _words(
    r"\b(?:yes|yep|yeah|confirm(?:ed)?|go ahead|proceed|approved?|do"
    r" it|ok(?:ay)?|sure|agreed?|oui|ja)\b"
)
NO = _words(r"\b(?:no|don't|do not|not|stop|wait|cancel that|never)\b")
PLAIN_NO = _words(
    r"^\W*(?:no|nope|nein|non|don't|do not|stop|wait|never|cancel that|please don't|please do"
    r" not)\b"
)
FORBIDS = _words(r"\b(?:don't|do not|never|must not|should not|shouldn't|without)\b")
TURN_LIMIT = _words(
    r"\b(?:max\w*|limit\w*|exceed\w*|exhaust\w*|budget|too many|out"
    r" of|exit)[\s_.:-]{0,3}(?:\w+[\s_.:-]{1,3}){0,3}?"
    r"(?:turn|step|iteration|recursion|token|length|context)s?\b"
    r"|\b(?:turn|step|iteration|recursion|token|length|context|cost)s?[\s_-]{0,3}(?:window[\s_-])?"
    r"(?:limit|budget|exceeded|exhausted)"
    r"|\btimed?"
    r" ?out\b|\bexit_(?:cost|context|format|total_execution_time)\b|^length$|^max_tokens$|^max_(?:turns|steps)$"  # noqa: E501
)
CALL_IN_WORDS = re.compile(
    r"<tool_call|<function[=_"
    r' ]|\[TOOL_CALLS\]|```(?:json|tool)|\{\s*"(?:tool|name|function|action|arguments|args)"\s*:'
    r"|^\s*\{|^\s*[\w.]{2,60}\([^()]{0,200}="
)
DO_NOT_HAVE = _words(
    r"\b(?:don't|do not|can't|cannot|couldn't|didn't) (?:\w+"
    r" ){0,2}?(?:have|remember|recall|know|find|see)\b"
    r"|\b(?:not sure|no idea|forgot(?:ten)?|lost|without (?:the|my|an?))\b"
)
DEMAND = _words(
    r"\bi(?:'ll|'d| will| would)? (?:still )?(?:need|require)\b|\bplease"
    r" (?:provide|check|find|locate|look)\b"
    r"|\bonce you (?:have|provide|find)\b|\bwithout (?:the|your)\b"
)
REQUEST = _words(
    r"\?|\b(?:please|go ahead|proceed|could you|can you|would you|i(?:'d| would) like|i"
    r" (?:want|need)|let's|yes)\b"
)
CHANGE = _words(
    r"\b(?:add|remove|include|change|update|upgrade|modify|send|refund|cancel|book|exchange|swap)\b"
)
STATUS = _words(
    r"\b(?:as an?|(?:since |because )?you(?:'re| are) an?) (\w+) "
    r"(?:member|customer|subscriber|user|guest|client|patient|student|employee|admin|administrator|owner)\b"
)
PROPOSED = _words(
    r"\b(?:confirm|proceed|would you"
    r" like|upgrad\w*|chang\w*|updat\w*|new|modif\w*|book\w*|instead|option\w*)\b"
)
CONSENT = _words(
    r"\b(?:must|should|always|need"
    r" to|before|first)\b[^.\n]{0,240}\b(?:explicit|user|customer)\w*[^.\n]{0,40}"
    r"\b(?:confirm\w*|consent|approv\w*|permission)\b"
    r"|\b(?:ask for|get|obtain|wait"
    r" for)\b[^.\n]{0,40}\b(?:confirm\w*|consent|approv\w*|permission)\b"
)
TODAY = re.compile(
    r"\b(?:current|today'?s?)(?: date| time| day| datetime)?(?: and time)?(?: now)?(?:"
    r" is|:|=)?[^\n.]{0,30}?(\d{4}-\d\d-\d\d)",
    re.IGNORECASE,
)
_LABELLED = re.compile(
    r"^[\s*\-•]{0,12}\**([A-Za-z][A-Za-z _]{1,40}?)\**\s{0,3}:\**["
    r" \t]{1,3}\**([^\n*]{1,60}?)\**\s*$",
    re.MULTILINE,
)
_WINDOW = re.compile(
    r"\bwithin (?:the )?(?:last |past |first )?(\d{1,4})[ -](hour|day)", re.IGNORECASE
)
_OUTSIDE = _words(
    r"\b(?:not|isn't|wasn't|outside|exceed\w*|more than|past|beyond|over|no"
    r" longer|only|if|unless)\b"
)
_WISHED = re.compile(
    r"\b(?:please|(?:i(?:'d| would) (?:also )?like|i (?:also )?(?:want|need|wanted|wish)|i'm"
    r" looking) to|"
    r"(?:can|could|would|will) (?:you|we)(?: please| also)?|and(?: also)?|also|help me(?: to)?)\s+"
    r"(cancel|book|upgrade|change|modify|update|add|remove|delete|send|refund|transfer|pay|order|create|schedule)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?<![\w.])\d{1,9}(?:\.\d{1,4})?(?![\w])")
_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_LONG_DAY = re.compile(
    rf"\b({'|'.join(_MONTHS)}) (\d{{1,2}})(?:st|nd|rd|th)?,? (\d{{4}})\b", re.IGNORECASE
)
_ISO_DAY = re.compile(r"\b\d{4}-\d\d-\d\d\b")
_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
STOP_WORDS = word_set(
    "a an and are as at be can could do for from have help i i'd i'm if in is it me my of on or"
    " please so that the there this to want was we what will with would you your"
)


def _groups(*lines: str) -> dict[str, frozenset[str]]:
    return {word: word_set(line) for line in lines for word in line.split()}


SAME_ACTION = _groups(  # words that ask for the same kind of change
    "delete remove drop purge erase wipe clear clean clean-up cleanup tidy rid destroy discard"
    " uninstall",
    "cancel void annul terminate stop end close revoke abort",
    "send mail email forward post publish message notify share reply announce tell",
    "pay charge refund reimburse transfer wire buy purchase order compensate settle",
    "update edit modify change set write put patch upgrade adjust fix replace rename move",
    "book reserve schedule create add make new open reschedule",
    "deploy release ship restart reboot rollout roll launch run execute start",
    "grant approve invite allow permit assign",
    "archive store backup",
)


def same_stem(word: str, verb: str) -> bool:
    """Whether a user's word is a form of a verb: deleting of delete."""
    stem = verb[:-1] if verb.endswith("e") else verb
    return word.startswith(stem) and len(word) - len(stem) <= 5 and len(stem) > 2


def is_empty(reply: str) -> bool:
    """Whether a retrieval's reply is empty."""
    if len(reply) > 120:
        return False
    bare = reply.strip()
    return bare.rstrip(".").casefold() in EMPTY or EMPTY_JSON.match(bare) is not None


def content_words(words: str) -> frozenset[str]:
    """The meaningful words, in lower case."""
    return frozenset(_WORD.findall(words[:LOOKED_AT].casefold())) - STOP_WORDS


def similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """Jaccard index of two sets of words, 0 to 1."""
    both = len(one & other)
    return both / (len(one) + len(other) - both) if both else 0.0


def mentions(said: str, name: str) -> bool:
    """Whether lower-case text contains a name, as written or with spaces for its underscores."""
    name = name.casefold()
    if name in said:
        return len(name) > 3 or re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said) is not None
    return "_" in name and name.replace("_", " ") in said


def day_of(text: str) -> date | None:
    """The day of an ISO date; None for anything else."""
    if len(text) < 10 or text[4] != "-":
        return None
    try:
        return date.fromisoformat(text[:10])
    except ValueError:
        return None


@lru_cache(maxsize=256)
def today_in(system: str) -> date | None:
    """The day that a system prompt gives as the current one."""
    found = TODAY.search(system[:20_000])
    return day_of(found[1]) if found else None


def time_windows(text: str) -> Iterator[tuple[str, int, date]]:
    """(sentence, hours, day) of every sentence that says a day is within so many hours."""
    text = text[:LOOKED_AT]
    if "within" not in text or _WINDOW.search(text) is None:
        return
    for sentence in re.split(r"(?<=[.!?])\s|\n", text):
        window, day = _WINDOW.search(sentence), _spoken_day(sentence)
        if window and day and search(_OUTSIDE, sentence) is None:
            yield sentence, int(window[1]) * (24 if window[2].lower() == "day" else 1), day


def _spoken_day(sentence: str) -> date | None:
    if found := _ISO_DAY.search(sentence):
        return day_of(found[0])
    if found := _LONG_DAY.search(sentence):
        try:
            return date(int(found[3]), _MONTHS.index(found[1].lower()) + 1, int(found[2]))
        except ValueError:
            return None
    return None


def wished(text: str) -> list[str]:
    """The verbs of changes that a user asks for: “I want to cancel”, “please book”, “could you
    add”.
    """
    return [found.lower() for found in _WISHED.findall(text[:LOOKED_AT].replace("’", "'"))]


def numbers_in(text: str) -> frozenset[float]:
    """The numbers in a text, the last 400 of them."""
    return frozenset(float(found) for found in _NUMBER.findall(text)[-400:])


def labelled_values(text: str) -> list[tuple[str, str]]:
    """(label, value) of the lines of an answer that read “Label: value”."""
    text = text[:LOOKED_AT]
    return (
        [(found[1], found[2].strip()) for found in _LABELLED.finditer(text)]
        if ": " in text or ":**" in text
        else []
    )


def differ(said: str, stored: str) -> bool:
    """Whether two texts differ in meaning, ignoring formatting."""
    one, other = (re.sub(r"[\W_]+", " ", text.casefold()).strip() for text in (said, stored))
    return bool(one) and bool(other) and one not in other and other not in one


def speaks_of_a_change(text: str) -> bool:
    """Whether an answer may describe what will be instead of what is."""
    return search(PROPOSED, text) is not None
