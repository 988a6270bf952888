"""What an export records of a run's steps, as `metadata.steps`: the form that spans of a trace get
(`otlp.assemble`), with times, tokens and errors that no message says.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct, field

from apps.trajectories.importers.shapes import without_empty
from apps.trajectories.interruptions import interruption

MAX_STEPS = 2_000


class Recorded(Struct):
    """`start` and `end` as `shapes.moment` gives them; `used` is a call's usage."""

    key: str
    parent: str
    name: str
    kind: str
    start: str | None
    end: str | None
    error: str = ""
    model: str = ""
    provider: str = ""
    used: dict[str, Any] = field(default_factory=dict)


def steps_of(recorded: list[Recorded], messages: list[dict]) -> dict[str, Any]:
    """The metadata of a run with these steps; nothing where none has a time. The model calls name
    their messages if there are as many of them.
    """
    known = [one for one in recorded if one.start and one.key]
    if not known:
        return {}
    origin = min(_at(one.start) for one in known if one.start)
    answers = [place for place, one in enumerate(messages) if one.get("role") == "assistant"]
    calls = sum(one.kind == "model" for one in known)
    places = iter(answers if calls == len(answers) else ())
    steps = []
    for one in sorted(known, key=lambda one: one.start or ""):
        place = next(places, None) if one.kind == "model" else None
        steps.append(_step(one, origin) | ({} if place is None else {"message_index": place}))
    omitted = max(len(steps) - MAX_STEPS, 0)
    return {"steps": steps[:MAX_STEPS]} | ({"steps_omitted": omitted} if omitted else {})


def _step(one: Recorded, origin: datetime) -> dict[str, Any]:
    start = _at(one.start or "")
    end = max(_at(one.end), start) if one.end else start
    step = {
        "span_id": one.key[:40],
        "parent_id": one.parent[:40],
        "name": one.name[:200],
        "kind": one.kind,
        "start_ms": round((start - origin).total_seconds() * 1000, 3),
        "duration_ms": round((end - start).total_seconds() * 1000, 3) if one.end else None,
    }
    if one.kind == "model":
        step |= without_empty({"model": one.model, "provider": one.provider}) | one.used
    if one.error:
        stopped = interruption("", one.error)
        step |= {"interrupted": stopped} if stopped else {"error": one.error}
    return step


def _at(moment: str) -> datetime:
    return datetime.fromisoformat(moment)
