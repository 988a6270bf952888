"""Patterns in the words of replies, users and agents. Pure.

Texts come from strangers, so the patterns over words are RE2's, which no text makes slow; those of Python's `re` look
at the start of a text only and are bounded.
"""

from __future__ import annotations

import re
from typing import Any

import re2


def _words(pattern: str) -> Any:
    """An RE2 pattern that does not care for case."""
    options = re2.Options()
    options.case_sensitive = False
    return re2.compile(pattern, options)


def search(pattern: Any, text: str) -> Any:
    """The first match in the part of a text that is looked at, or None; half a character pair matches nothing."""
    try:
        return pattern.search(text[:LOOKED_AT].replace("’", "'"))
    except UnicodeEncodeError:
        return None


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


LOOKED_AT = 1500  # characters of one message

ERROR_START = ("error", "exception", "traceback", "failed:", "failure:", "fatal:", "invalid ", "err:")
ERROR_JSON = re.compile(
    r'^\{\s*"(?:error|errors|exception)"\s*:\s*(?!\s|null|false|""|\[\]|\{\})'
    r'|^\{[^{}]{0,300}"(?:status|result)"\s*:\s*"(?:error|failed|failure)"'
    r'|^\{[^{}]{0,300}"(?:success|ok)"\s*:\s*false|^\{[^{}]{0,300}"is_?error"\s*:\s*true',
    re.IGNORECASE,
)
UNKNOWN_TOOL = _words(
    r"\b(?:unknown|no such|undefined|unrecogni[sz]ed|nonexistent) (?:tool|function|api)\b"
    r"|\b(?:tool|function|api)\b.{0,80}\b(?:not found|does not exist|doesn't exist|is not defined|not registered|"
    r"is not (?:a valid|an available|available|a known))"
)
EMPTY = frozenset(
    ("", "[]", "{}", "null", "none", "[[]]", "no results", "no results found", "no result", "not found", "no matches",
     "no matches found", "0 results", "no data", "no documents found", "empty")
)  # fmt: skip
EMPTY_JSON = re.compile(
    r'^\{\s*"(?:results?|items|documents|data|hits|matches|rows|records)"\s*:\s*(?:\[\s*\]|null|\{\s*\})', re.IGNORECASE
)
NOTHING_FOUND = _words(
    r"\b(?:no|not|none|nothing|unable|cannot|couldn't|can't|don't|didn't|isn't|aren't|unfortunately|sorry|empty|fail\w*)\b"
)
CLAIM = _words(
    r"\bsuccessfully\b|\b(?:has|have) (?:now |already )?been \w+(?:ed|t|de)\b|\b(?:is|are) now \w+|\ball (?:set|done)\b"
    r"|\bi(?:'ve| have) (?:now |just )?\w+(?:ed|t)\b|^\W*(?:done|completed)\b|\b(?:is|are) (?:done|complete|completed)\b"
)
DENIAL = _words(
    r"\b(?:not|unable|cannot|couldn't|can't|won't|didn't|hasn't|haven't|unfortunately|fail\w*|error\w*|issue|problem|"
    r"sorry|apologi[sz]e|would you like|please (?:provide|confirm))\b"
)
REFUSAL = _words(
    r"\b(?:i(?:'m| am) unable|i cannot|i can't|i'm not able|unable to|cannot (?:be|assist|proceed|help)|"
    r"can't (?:be|assist|proceed|help)|i need (?:both|the|your) \w+|unfortunately)\b"
)
CORRECTION = _words(
    r"\bi (?:meant|didn't (?:ask|say|mean)|did not (?:ask|say|mean))\b"
    r"|\b(?:that's|that is|this is|it's|you're|you are) (?:wrong|incorrect|not (?:right|correct|true|what i|the one i))\b"
    r"|\bnot what i (?:asked|wanted|meant|said)|\bi (?:already|just) (?:said|told|asked|gave)|\bas i (?:already )?said"
    r"|\byou (?:misunderstood|got (?:it|that|this) wrong|made a mistake|(?:changed|booked|cancell?ed|picked) the wrong)"
    r"|^\W*no,? (?:not (?:that|this|the)|you )"
)
YES = _words(r"\b(?:yes|yep|yeah|confirm(?:ed)?|go ahead|proceed|approved?|do it|ok(?:ay)?|sure|agreed?|oui|ja)\b")
NO = _words(r"\b(?:no|don't|do not|not|stop|wait|cancel that|never)\b")
TURN_LIMIT = _words(
    r"\b(?:max\w*|limit\w*|exceed\w*|exhaust\w*|budget|too many|out of|exit)[\s_.:-]{0,3}(?:\w+[\s_.:-]{1,3}){0,3}?"
    r"(?:turn|step|iteration|recursion|token|length|context)s?\b"
    r"|\b(?:turn|step|iteration|recursion|token|length|context|cost)s?[\s_-]{0,3}(?:window[\s_-])?"
    r"(?:limit|budget|exceeded|exhausted)"
    r"|\btimed? ?out\b|\bexit_(?:cost|context|format|total_execution_time)\b|^length$|^max_tokens$|^max_(?:turns|steps)$"
)
CALL_IN_WORDS = re.compile(
    r'<tool_call|<function[=_ ]|\[TOOL_CALLS\]|```(?:json|tool)|\{\s*"(?:tool|name|function|action|arguments|args)"\s*:'
    r"|^\s*\{|^\s*[\w.]{2,60}\([^()]{0,200}="
)
_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
STOP_WORDS = word_set(
    "a an and are as at be can could do for from have help i i'd i'm if in is it me my of on or please so that the "
    "there this to want was we what will with would you your"
)


def is_error(reply: str) -> bool:
    """Whether a tool's reply says that the call did not work."""
    start = reply[:LOOKED_AT].lstrip()
    if start[:1] == "{":
        return ERROR_JSON.search(start) is not None
    return start[:12].casefold().startswith(ERROR_START)


def is_empty(reply: str) -> bool:
    """Whether a retrieval's reply has nothing in it."""
    if len(reply) > 120:
        return False
    bare = reply.strip()
    return bare.rstrip(".").casefold() in EMPTY or EMPTY_JSON.match(bare) is not None


def claims_success(words: str) -> bool:
    """Whether an answer says that the thing is done, and no word in it takes that back."""
    return search(CLAIM, words) is not None and search(DENIAL, words) is None


def content_words(words: str) -> frozenset[str]:
    """The words that carry the meaning, in lower case."""
    return frozenset(_WORD.findall(words[:LOOKED_AT].casefold())) - STOP_WORDS


def similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """Jaccard index of two sets of words, 0 to 1."""
    both = len(one & other)
    return both / (len(one) + len(other) - both) if both else 0.0
