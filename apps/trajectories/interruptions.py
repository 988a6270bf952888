"""Exceptions that are not errors: a pause, a reader who left, a cancellation, a handoff. Pure.

Frameworks stop a run by raising. The names of the exceptions are the only sign, in every language
and whatever recorded them: an exception event, a status message, or the `error` of an export. A
name is read word by word (`WorkflowCancelledByUser`, `context_canceled`): a word of a family, and
beside it only words for what an agent runs. `OrderCancelledError` is an error.
"""

from __future__ import annotations

import re
from functools import lru_cache

PAUSED, LEFT, CANCELLED, HANDED_OVER = "paused", "client-left", "cancelled", "handed-over"
MAX_READ = 500  # characters of a text in which the name of an exception is looked for


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


ENDINGS = _set("exception error signal err event")
# What runs and can be stopped; whatever else a name speaks of is the business of a tool.
MACHINE = _set(
    "graph node agent workflow flow run step task tool call job operation request stream context"
    " future coroutine promise activity execution process scope generation completion response turn"
    " chat async thread command child query statement function chain pipeline crew session action"
)
GLUE = _set("http grpc rpc api by from to for is was not the current")
PEOPLE = _set("user client caller human operator admin person")
CANCEL = _set("cancel cancels canceled cancelled canceling cancelling cancellation cancelation")
ABORT = _set("abort aborted aborting")
INTERRUPT = _set("interrupt interruption interrupted")
PAUSE = INTERRUPT | _set(
    "pause paused suspend suspended suspension suspending breakpoint deferred yielded"
)
APPROVAL, ASKED = _set("approval confirmation"), _set("input feedback review decision")
AWAITING = _set("required needed requested pending awaiting awaited waiting wait")
LEAVING = _set("disconnect disconnected disconnection left gone closed close abort aborted")
READERS, SPEAKERS = _set("client reader websocket web socket"), _set("user caller participant")
HANDOVER = _set("handoff handover")
# Names that say it in none of these words.
OTHER_NAMES = {
    "GeneratorExit": LEFT,
    "AsyncRequestNotUsableException": LEFT,  # Spring: the response can no longer be written
    "ResponseAborted": LEFT,
    "ResponseAbortedError": LEFT,
    "RequestAborted": LEFT,  # Django: the client closed the connection
    "GraphBubbleUp": PAUSED,
    "ParentCommand": HANDED_OVER,
    "ContinueAsNew": HANDED_OVER,
    "ContinueAsNewError": HANDED_OVER,
    "ECANCELED": CANCELLED,
    "InterruptedError": "",  # Python: a system call
}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_LEADING_NAME = re.compile(r"\s*(?:[\w$]+(?:\.|::))*([A-Za-z]\w*)\s*(?:[(:]|$)")
# LangGraph's text, where its type is not recorded
_INTERRUPT_VALUE = re.compile(r"[\s(\[]*Interrupt\(value=")
# How gRPC, Connect and Go say that the caller cancelled; 499: the client closed the connection.
_STATUS = re.compile(
    r"^\s*(?:\d{1,2} )?(?-i:CANCELLED)\b\s*(?:[:(]|$)|\bStatusCode\W{1,3}cancell?ed\b"
    r"|\bcode\s?[=:]\s?\W?cancell?ed\b|^\s*\[canceled\]|\bcontext canceled\b",
    re.IGNORECASE,
)
_CLIENT_CLOSED = re.compile(
    r"\b499\b.{0,20}\bclient closed|\bclient (?:has )?(?:closed the request|disconnected)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(
    rf"^\W*(?:the |a |an |this )?(?:{'|'.join(sorted(MACHINE))}) (?:\S{{1,40}} )?"
    r"(?:was|has been|is) cancell?ed(?: by (?:the )?\w{1,20})?\W*$|^\W*cancell?ed\W*$",
    re.IGNORECASE,
)
_TIMED_OUT = re.compile(r"timed?[- ]?out|deadline", re.IGNORECASE)


def says_timeout(text: str) -> bool:
    """Whether an error says that somebody waited too long."""
    return bool(_TIMED_OUT.search(text))


def interruption(kind: str, text: str = "") -> str:
    """What an exception of this type and text was instead of an error; "" for an error.

    A cancellation is none where the text says that a time limit was the cause.
    """
    kind, text = kind.strip()[-MAX_READ:], text[:MAX_READ]
    found = _named(re.split(r"[.:$\\/#]", kind.rstrip("()"))[-1]) if kind else ""
    if not found and not _is_class(kind):
        leading = _LEADING_NAME.match(text)
        found = _named(leading[1]) if leading else ""
        if not found and _INTERRUPT_VALUE.match(text):
            found = PAUSED
    if not found and (_STATUS.search(text) or _SENTENCE.match(text)):
        found = CANCELLED
    if not found and _CLIENT_CLOSED.search(text):
        found = LEFT
    return "" if found == CANCELLED and says_timeout(f"{kind} {text}") else found


@lru_cache(maxsize=2048)
def _named(name: str) -> str:
    if name in OTHER_NAMES:
        return OTHER_NAMES[name]
    words = [
        word.lower()
        for word in _WORD.findall(
            name[:120].replace("HandOff", "Handoff").replace("HandOver", "Handover")
        )
    ]
    while len(words) > 1 and words[0] in ("err", "e"):
        words.pop(0)
    fails = words[-1:] == ["error"]
    while len(words) > 1 and words[-1] in ENDINGS:
        words.pop()
    return _family(frozenset(words), fails)


def _family(words: frozenset[str], fails: bool) -> str:
    """The family of a name; `fails` if the name ends with “error”."""
    rest = words - MACHINE - GLUE
    disconnects = any(word.startswith("disconnect") for word in words)
    reader = words & READERS or (disconnects and words & SPEAKERS)
    if reader and words & LEAVING and rest <= READERS | SPEAKERS | LEAVING:
        return LEFT
    stopped = words & CANCEL or (words & ABORT and ("abort" in words or words & (MACHINE | PEOPLE)))
    if stopped and rest <= CANCEL | ABORT | PEOPLE:
        return CANCELLED
    if words & INTERRUPT and (words == {"interrupted"} or words & {"keyboard", "thread"}):
        return CANCELLED
    if words & PAUSE and rest <= PAUSE | {"human"}:
        return PAUSED
    if words & AWAITING and _waits_for(words, rest):
        return PAUSED
    return (
        HANDED_OVER
        if words & HANDOVER and rest <= HANDOVER | PEOPLE | AWAITING and not fails
        else ""
    )


def _waits_for(words: frozenset[str], rest: frozenset[str]) -> bool:
    """Whether a name says that a person's approval or input, or an event, is waited for."""
    if words & {"waiting", "awaiting"} and rest <= AWAITING | PEOPLE | APPROVAL | ASKED | {"event"}:
        return True
    asked = words & APPROVAL or (words & ASKED and words & {"human", "user"})
    return bool(asked) and rest <= AWAITING | PEOPLE | APPROVAL | ASKED


def _is_class(kind: str) -> bool:
    """Whether the recorded type names an exception, rather than a code or a kind of status."""
    return kind[:1].isalpha() and re.search(r"[a-z][A-Z]", kind) is not None
