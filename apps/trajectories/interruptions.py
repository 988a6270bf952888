"""Exceptions that end a span or a run without being an error: a pause for a person, a reader who
left, a hand-over. Pure.

Frameworks stop a run by raising. The names of the exceptions are the only sign, in every language
and whatever recorded them: an exception event, a status message, or the `error` of an export.
"""

from __future__ import annotations

import re

PAUSED, LEFT, CANCELLED, HANDED_OVER = "paused", "client-left", "cancelled", "handed-over"
MAX_READ = 500  # characters of a text in which the name of an exception is looked for

_ENDING = r"(?:Exception|Error|Signal)?"
_PAUSES = re.compile(
    # LangGraph's GraphInterrupt and NodeInterrupt, Strands' InterruptException, a workflow's
    # suspension
    rf"(?:Graph|Node|Agent|Workflow|Flow|Run|Tool|Task|Step|Human)?(?:Interrupt|Interruption){_ENDING}"
    rf"|(?:Graph|Node|Agent|Workflow|Flow|Run|Step)(?:Paused?|Suspend(?:ed)?|Suspension|Interrupted){_ENDING}"
    # Pydantic AI's ApprovalRequired and CallDeferred, CrewAI's HumanFeedbackPending, LlamaIndex'
    # WaitingForEvent
    rf"|(?:(?:Tool|Call|Action|Human|User)?(?:Approval|Confirmation)|(?:Human|User)(?:Input|Feedback))"
    rf"(?:Required|Needed|Requested|Pending){_ENDING}"
    rf"|(?:Tool)?CallDeferred{_ENDING}|WaitingFor\w+|BreakpointException|GraphBubbleUp"
)
_LEFT = re.compile(
    rf"GeneratorExit|Client(?:Disconnect(?:ed)?|Left|Closed|Abort(?:ed)?){_ENDING}|ResponseAborted{_ENDING}"
)
_CANCELLED = re.compile(
    rf"(?:Task|Operation|Job|Request|Run|Workflow)?Cancell?(?:ed|ation){_ENDING}"
    r"|APIUserAbortError|AbortError|KeyboardInterrupt|InterruptedException"
)
_HANDED_OVER = re.compile("ParentCommand|ContinueAsNew(?:Error)?")
_KINDS = ((PAUSED, _PAUSES), (LEFT, _LEFT), (CANCELLED, _CANCELLED), (HANDED_OVER, _HANDED_OVER))

_LEADING_NAME = re.compile(r"\s*(?:[\w$]+(?:\.|::))*([A-Za-z]\w*)\s*(?:[(:]|$)")
_INTERRUPT_VALUE = re.compile(
    r"[\s(\[]*Interrupt\(value="
)  # the text of LangGraph's, where its type is not recorded
_GO_AND_GRPC = re.compile(
    r"(?:rpc error: code = Canceled\b|context canceled\b|\S*StatusCode\.CANCELLED\b|1 CANCELLED:)"
)
_TIMED_OUT = re.compile(r"timed?[- ]?out|deadline", re.IGNORECASE)


def interruption(kind: str, text: str = "") -> str:
    """What an exception of this type and text was instead of an error; "" for an error.

    A cancellation is none where the text says that a time limit was the cause.
    """
    text = text[:MAX_READ]
    found = _named(re.split(r"[.:$]", kind.strip())[-1]) if kind else ""
    if not found and not _is_class(kind):
        leading = _LEADING_NAME.match(text)
        found = _named(leading[1]) if leading else ""
    if not found and not _is_class(kind) and _INTERRUPT_VALUE.match(text):
        found = PAUSED
    if not found and _GO_AND_GRPC.search(text):
        found = CANCELLED
    return "" if found == CANCELLED and _TIMED_OUT.search(text) else found


def _named(name: str) -> str:
    return next((kind for kind, names in _KINDS if names.fullmatch(name)), "")


def _is_class(kind: str) -> bool:
    """Whether the recorded type names an exception, rather than a code or a kind of status."""
    return kind[:1].isalpha() and re.search(r"[a-z][A-Z]", kind) is not None
