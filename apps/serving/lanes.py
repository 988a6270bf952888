"""Which lane of a channel a request belongs to during a trial: decided per session, by hashing,
without a database. Pure.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Raw

from apps.serving.asked import CHAT, PROMPT_ROLES, Asked
from apps.serving.routes import CANARY, OUTSIDE, SHADOW, Lane, Route

LIVES_S = 1800.0  # an inactive session is forgotten after this time
MOST = 100_000  # sessions kept in memory
STATEFUL = (
    "previous_response_id",
    "conversation",
    "background",
)  # fields of the Responses API that refer to something stored on one server


def unit_of(asked: Asked, headers: Mapping[str, str]) -> str:
    """The unit that a trial counts as one session, as a digest (32 hex digits): the session id, or
    else the caller's trace, or else what stays the same in every turn of a conversation: the user
    id, the system prompt and the user's first message.
    """
    trace = headers.get("traceparent", "").split("-")
    if asked.session:
        said = ["session", asked.session]
    elif len(trace) > 2 and len(trace[1]) == 32 and trace[1].strip("0"):
        said = ["trace", trace[1]]
    else:
        said = ["opening", asked.user, *_opening(asked)]
    return blake2b("\0".join(said).encode("utf-8", "replace"), digest_size=16).hexdigest()


def _opening(asked: Asked) -> list[str]:
    """Unparsed, since only digests are compared."""
    given = [_decoded(asked.fields["instructions"])] if "instructions" in asked.fields else []
    items = asked.fields.get("messages" if asked.path == CHAT else "input", Raw(b'""'))
    try:
        for item in msgspec.json.decode(items, type=list[Raw]):
            given.append(_decoded(item))
            role = msgspec.json.decode(item, type=dict[str, Raw]).get("role", Raw(b""))
            if bytes(role).strip(b'"').decode("latin-1") not in PROMPT_ROLES:
                break
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        given.append(_decoded(items))
    return given


def _decoded(raw: Any) -> str:
    return bytes(raw).decode("latin-1")


def drawn(salt: str, unit: str) -> float:
    """A number in [0, 1) that is the same in every process, so that raising a share only adds
    sessions.
    """
    return int.from_bytes(blake2b(f"{salt}\0{unit}".encode(), digest_size=8).digest()[:7]) / 2**56


def lane_of_unit(route: Route, unit: str) -> Lane:
    """The candidate's lane for its share of the units, otherwise that of the live version."""
    current, *others = route.lanes
    return next((lane for lane in others if drawn(route.salt, unit) < lane.share), current)


def may_be_shadowed(asked: Asked) -> bool:
    """False for requests that refer to something stored on the current version's server."""
    return not any(
        _decoded(asked.fields.get(name, Raw(b"null"))) not in ("null", "false") for name in STATEFUL
    )


class Sessions:
    """Keeps an active session on the lane it started on, even if the share changes or a canary
    takes no new sessions. Per process: all processes compute the same hash, and read with the
    table what sessions of the others began on, a few seconds late.

    A canary takes new sessions while there is room for one of the candidate's (`Intake`). Whether
    there is depends on those before alone, so a session's own lane never decides it.
    """

    def __init__(self, most: int = MOST, lives_s: float = LIVES_S) -> None:
        self.most, self.lives_s = most, lives_s
        self.known: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()
        self.begun: defaultdict[str, deque[float]] = defaultdict(
            deque
        )  # when the candidate's began, by trial

    def lane_of(self, route: Route, unit: str, now: float) -> Lane:
        """`now`: seconds of any monotonic clock."""
        candidate = route.lanes[-1]
        name = candidate.trial, unit
        kind, at = self.known.pop(name, ("", 0.0))
        if not kind or now - at > self.lives_s:
            kind = self._drawn(route, unit, now)
        self.known[name] = kind, now
        if len(self.known) > self.most:
            self.known.popitem(last=False)
        if kind == OUTSIDE and route.intake:
            return route.intake.outside
        return next((lane for lane in route.lanes if lane.kind == kind), route.lanes[0])

    def _drawn(self, route: Route, unit: str, now: float) -> str:
        if assigned := route.assigned.get(unit):
            return assigned[0]
        if not route.intake:
            return lane_of_unit(route, unit).kind
        trial = route.lanes[-1].trial
        begun = self.begun[trial]
        while begun and begun[0] <= route.intake.since:
            begun.popleft()
        if len(begun) >= route.intake.room:
            return OUTSIDE
        kind = lane_of_unit(route, unit).kind
        if kind == CANARY:
            begun.append(now)
        return kind


def is_shadow(lane: Lane) -> bool:
    return lane.kind == SHADOW
