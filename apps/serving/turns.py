"""One request on its way through the endpoint, and the bounds that apply to all requests."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass, field

from msgspec import structs

from apps.serving.asked import CHAT, Asked
from apps.serving.counting import add, recorded_of
from apps.serving.recording import estimated_tokens
from apps.serving.routes import Key, Lane, Route
from apps.serving.spool import Record, Writer
from apps.serving.usage import reported_in

# Ids of only zeros mean “no trace” (W3C Trace Context 3.2.2).
TRACE = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass(frozen=True)
class Bounds:
    """Bytes and seconds. `whole_s`: until a non-streamed answer starts, at its end. `canary_s`: how
    long a user waits for a candidate before the current version answers instead. `shadows`:
    concurrent shadow requests, each at most `shadow_s`.
    """

    body: int = 32 * 2**20
    answer: int = 64 * 2**20
    connect_s: float = 5.0
    first_s: float = 120.0
    whole_s: float = 600.0
    idle_s: float = 60.0
    canary_s: float = 60.0
    shadow_s: float = 120.0
    shadows: int = 64


@dataclass
class Turn:
    """One request to one lane, and the record about it. `shadow`: the lane that gets the same
    request afterwards.
    """

    key: Key
    asked: Asked
    route: Route
    lane: Lane
    headers: dict[str, str]
    record: Record
    shadow: Lane | None = None
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    strips: bool = False  # removes usage that the client did not ask for
    noted: bool = False

    def onto(self, lane: Lane, /, **changes: object) -> None:
        """Send the same request to another lane from now on. It belongs to no trial unless
        `changes` of its record say so.
        """
        old = self.record
        given = {
            "trace_id": old.trace_id,
            "parent_id": old.parent_id,
            "span_id": secrets.token_hex(8),
            "project": old.project,
            "key": old.key,
            "channel": old.channel,
            "version": lane.version,
            "version_id": lane.version_id,
            "protocol": old.protocol,
            "stream": old.stream,
            "session": old.session,
            "user": old.user,
            "metadata": old.metadata,
            "started_ns": time.time_ns(),
        }
        self.lane, self.record = lane, Record(**given | changes)  # type: ignore[arg-type]
        self.shadow, self.parts, self.size, self.strips, self.noted = None, [], 0, False, False

    def note(self, ended: str, writer: Writer) -> None:
        """Write the record, once, before the last byte is sent."""
        if self.noted:
            return
        self.noted = True
        self.record.ended, self.record.answer = ended, b"".join(self.parts)
        self.record.ended_ns = time.time_ns()
        writer.put(self.record)
        failed = f"{self.record.status // 100}xx" if self.record.status >= 400 else ended
        add(recorded_of(self.record.channel, ended if ended != "whole" else failed))

    @property
    def tokens(self) -> int:
        """Input and output, estimated if the answer reports none."""
        if (counted := reported_in(self.parts)) is not None or not self.parts:
            return counted or 0
        return estimated_tokens(structs.replace(self.record, answer=b"".join(self.parts)))


def new_turn(
    key: Key,
    asked: Asked,
    route: Route,
    lane: Lane,
    headers: dict[str, str],
    started: float,
    unit: str = "",
) -> Turn:
    """`started`: a time.perf_counter value. `unit`: the session for a trial; "" if there is
    none.
    """
    named = TRACE.fullmatch(headers.get("traceparent", ""))
    record = Record(
        trace_id=named[1] if named else secrets.token_hex(16),
        span_id=secrets.token_hex(8),
        parent_id=named[2] if named else "",
        project=key.project,
        key=key.prefix,
        channel=route.channel,
        version=lane.version,
        version_id=lane.version_id,
        protocol="chat" if asked.path == CHAT else "responses",
        stream=asked.stream,
        session=asked.session,
        user=asked.user,
        metadata=asked.metadata,
        started_ns=time.time_ns() - int((time.perf_counter() - started) * 1e9),
        lane=lane.kind if unit else "",
        trial=lane.trial if unit else "",
        step=lane.step,
        unit=unit,
    )
    return Turn(key, asked, route, lane, headers, record)
