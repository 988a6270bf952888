"""How traces of one run that come apart find each other. Pure."""

from __future__ import annotations

from collections import defaultdict
from hashlib import blake2b

from msgspec import Struct

from apps.trajectories.otlp.runs import TALKS, Group, source_of
from apps.trajectories.otlp.threads import Call

MAX_BEGINNINGS = (
    64  # of a long history: how many of its latest parts another trace may have ended with
)
MAX_LINK = 400  # characters


class Links(Struct):
    """By what a trace may be found by those that go on with it, and by what it finds those that it
    goes on with.
    """

    has: set[str] = set()
    wants: set[str] = set()


def _short(link: str) -> str:
    """A key of an index has a few KB of room; an id may be longer."""
    if len(link) <= MAX_LINK:
        return link
    return link[:MAX_LINK] + blake2b(link.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _marked(states: set[str], side: str) -> set[str]:
    return {f"{side}:{state}" for state in states}


def links_of(group: Group) -> dict[str, Links]:
    """Of each trace of the run; none where an agent span holds it together: then it is one trace.

    Each trace has its own, so that one that comes last and belongs between two others finds both.
    """
    if not group.loose or not group.calls:
        return {}
    source = "/".join(source_of(group))
    calls: defaultdict[str, list[Call]] = defaultdict(list)
    for call in group.calls:
        calls[call.span.trace_id].append(call)
    talks = {_short(f"{name}:{source}:{found}") for name in TALKS if (found := group.id_of(name))}
    links: dict[str, Links] = {}
    for trace_id, own in calls.items():
        end = own[-1].after.hex()
        leaves = {_short(f"{state}:{source}") for state in own[-1].leaves}
        needs = {_short(f"{state}:{source}") for state in own[0].needs}
        service = source_of(group)[1]
        answers = {
            _short(f"answer:{service}:{call.reading.response_id}")
            for call in own
            if call.reading.response_id
        }
        beginnings = [before.hex() for before in own[0].before[1:][-MAX_BEGINNINGS:]]
        links[trace_id] = Links(
            talks
            | answers
            | {f"end:{end}"}
            | {f"begins:{before}" for before in beginnings}
            | _marked(leaves, "left")
            | _marked(needs, "needed"),
            talks
            | answers
            | {f"begins:{end}"}
            | {f"end:{before}" for before in beginnings}
            | _marked(needs, "left")
            | _marked(leaves, "needed"),
        )
    return links
