"""Which traces of a request can give no run by themselves: the sender is told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from msgspec import Struct

from apps.trajectories.otlp.conventions import says_kind
from apps.trajectories.otlp.shape import holds_call
from apps.trajectories.otlp.spans import Span


class Silence(Struct):
    """Of a request's traces those without a model, agent or tool call; of a request that has such
    calls only traces that are whole, whose root is among the spans.
    """

    traces: int = 0
    silent: int = 0

    @property
    def is_whole(self) -> bool:
        return bool(self.traces) and self.silent == self.traces


def silence_of(spans: Iterable[Span]) -> Silence:
    traces: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        traces[span.trace_id].append(span)
    silent = [own for own in traces.values() if not is_heard(own)]
    if len(silent) < len(traces):
        silent = [own for own in silent if any(not span.parent_id for span in own)]
    return Silence(len(traces), len(silent))


def is_heard(spans: list[Span]) -> bool:
    """Whether a trace holds a step: one of a known convention, or a model call by its shape."""
    return any(map(says_kind, spans)) or holds_call(spans)
