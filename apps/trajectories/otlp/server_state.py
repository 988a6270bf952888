"""Which earlier answer a call goes on with where the server keeps the history, and by what a later
call can name this one: however an SDK says it, in an attribute of its own, among the parameters of
the request, or in the raw request and response. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from msgspec import Struct

from apps.trajectories.values import label, structured

PREVIOUS = ("previousresponseid", "previousinteractionid")
CONVERSATION = "conversation"  # OpenAI's, whose ids begin with `conv_`
ANSWER = "responseid"
# As they stand in JSON: most attributes are long and say none of it.
SAYS = tuple(
    f'"{name}"'
    for name in (
        "previous_response_id",
        "previousResponseId",
        "previous_interaction_id",
        "previousInteractionId",
        "conversation",
        "responseId",
        "response_id",
    )
)
RESPONSES = frozenset(("output", "choices", "candidates", "content", "object"))
HEADS = frozenset(("response_metadata", "responseMetadata"))  # LangChain's
MAX_DEPTH = 8
MANY_NAMES, LONGEST_NAME = 10_000, 40


class ServerState(Struct):
    """The ids of the earlier answer, of the conversation on the server, and of this answer."""

    previous: str = ""
    conversation: str = ""
    answer: str = ""


def state_of(attributes: dict[str, Any], answers: Iterable[str]) -> ServerState:
    """`answers`: the attributes with raw responses."""
    state = ServerState()
    for key, value in attributes.items():
        if part := _part_of_attribute(key):
            _keep(state, part, value)
        if isinstance(value, dict) or (isinstance(value, str) and _says_some(value)):
            _read(state, structured(value))
    for name in answers:
        if not state.answer and (response := attributes.get(name)):
            state.answer = next(_ids_of(structured(response), MAX_DEPTH), "")
    return state


def _says_some(value: str) -> bool:
    """Lists hold messages: only an object is looked at."""
    if value.lstrip()[:1] != "{":
        return False
    begins = '"previous' in value or '"conversation"' in value or '"response' in value
    return begins and any(name in value for name in SAYS)


def _read(state: ServerState, value: Any, levels: int = MAX_DEPTH) -> None:
    """Notes what an object and those inside it say. Lists hold messages: they are not looked at."""
    if not isinstance(value, dict) or not levels:
        return
    for name, item in value.items():
        if part := _part(name):
            _keep(state, part, item)
        if isinstance(item, dict):
            _read(state, item, levels - 1)


@lru_cache(MANY_NAMES)
def _part_of_attribute(key: str) -> str:
    return _part(key.rsplit(".", 1)[-1])


def _part(name: str) -> str:
    """What a name says, if it is one of those that are kept."""
    plain = name.replace("_", "").lower() if len(name) <= LONGEST_NAME else ""
    return PREVIOUS[0] if plain in PREVIOUS else plain if plain in (ANSWER, CONVERSATION) else ""


def _keep(state: ServerState, part: str, value: Any) -> None:
    if part == PREVIOUS[0]:
        state.previous = state.previous or label(value)
    elif part == ANSWER:
        state.answer = state.answer or label(value)
    else:
        named = label(value.get("id") if isinstance(value, dict) else value)
        if named.startswith("conv_"):
            state.conversation = state.conversation or named


def _ids_of(value: Any, levels: int) -> Iterator[str]:
    """The id of a response, also where a framework keeps it among an answer's metadata."""
    if isinstance(value, list) and value and levels:
        yield from _ids_of(value[0], levels - 1)
    if not isinstance(value, dict) or not levels:
        return
    if RESPONSES & value.keys() and "role" not in value and (found := label(value.get("id"))):
        yield found
    for name, item in value.items():
        if name in HEADS and isinstance(item, dict) and (found := label(item.get("id"))):
            yield found
        elif isinstance(item, dict | list):
            yield from _ids_of(item, levels - 1)
