"""Which tools change something and which only look something up, and how that is known. Pure.

In this order: what the tool's definition declares (MCP's annotations), what a built-in environment
knows of its own tools, what runs show, and last what the verbs of its name suggest. What none of
them says is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from apps.failures.rules.reading import Call, Run, kind_of
from workers.lib.messages import call_key, functions_of

MOST_CALLS = 400  # per run, when looking for what its calls changed


class Effect(StrEnum):
    CHANGE = "changes something"
    LOOKUP = "only looks up"
    UNKNOWN = "unknown"


class How(StrEnum):
    DECLARED = "its definition says so"
    ENVIRONMENT = "the environment says so"
    OBSERVED = "seen in runs: the same look-up gave another answer after it"
    NAME = "judged by its name"
    NOT = "nothing says so"


@dataclass(frozen=True)
class ToolEffects:
    """`known` are tools of which something better than their name is known."""

    known: Mapping[str, tuple[Effect, How]] = field(default_factory=dict)

    def of(self, tool: str) -> tuple[Effect, How]:
        if tool in self.known:
            return self.known[tool]
        kind = kind_of(tool)
        if kind in ("write", "handover"):
            return Effect.CHANGE, How.NAME
        return (Effect.LOOKUP, How.NAME) if kind == "read" else (Effect.UNKNOWN, How.NOT)

    def is_lookup(self, tool: str) -> bool:
        return self.of(tool)[0] == Effect.LOOKUP

    def unknown(self, tools: Iterable[str]) -> list[str]:
        return sorted({tool for tool in tools if self.of(tool)[0] == Effect.UNKNOWN})


def effects_of(
    tools: list[dict],
    runs: Iterable[Run] = (),
    environment: tuple[Collection[str], Collection[str]] = ((), ()),
) -> ToolEffects:
    """`environment`: the tools of a built-in one, and those of them that are look-ups."""
    declared = {
        name: (effect, How.DECLARED)
        for name, function in functions_of(tools)
        if (effect := _declared(function))
    }
    own, lookups = environment
    told = {
        name: (Effect.LOOKUP if name in lookups else Effect.CHANGE, How.ENVIRONMENT) for name in own
    }
    known = told | declared
    observed = {
        name: (Effect.CHANGE, How.OBSERVED) for run in runs for name in _seen_to_change(run, known)
    }
    return ToolEffects(observed | known)


def _declared(function: dict) -> Effect | None:
    hints = function.get("annotations")
    hints = hints if isinstance(hints, dict) else {}
    if hints.get("readOnlyHint") is True:
        return Effect.LOOKUP
    says_change = (
        hints.get("readOnlyHint") is False
        or hints.get("destructiveHint") is True
        or function.get("x-dangerous") is True
    )
    return Effect.CHANGE if says_change else None


def _seen_to_change(run: Run, known: Mapping[str, tuple[Effect, How]]) -> Iterator[str]:
    """Tools after which the same look-up gave another answer, where no other tool was called in
    between that may have done it.
    """
    last: dict[object, tuple[int, Call]] = {}
    calls = run.calls[:MOST_CALLS]
    for at, call in enumerate(calls):
        if not call.worked or call.args is None:
            continue
        key = call_key(call.tool, call.args)
        before, last[key] = last.get(key), (at, call)
        if before is None or before[1].reply == call.reply:
            continue
        between = {
            other.tool
            for other in calls[before[0] + 1 : at]
            if other.worked
            and other.tool != call.tool
            and known.get(other.tool, (None,))[0] != Effect.LOOKUP
            and kind_of(other.tool) != "read"
        }
        if len(between) == 1:
            yield between.pop()
