"""What a trajectory said, a part at a time: a run of 33,000 steps is never read whole."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from apps.core.templatetags.flywheel import opening_of
from apps.trajectories import contents
from apps.trajectories.models import Content, Medium, Trajectory, as_sent
from apps.trajectories.pages.transcript import Turn, fit, turns_of
from workers.lib.messages import RESULT_ROLES

TURN_HEIGHT = 84  # px, for the room that a part not yet loaded takes


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A part that is loaded when it comes into view."""

    first: int
    last: int

    @property
    def height(self) -> int:
        return (self.last - self.first + 1) * TURN_HEIGHT


class Reader:
    """Parts of one trajectory. Replies that a part begins with belong to the calls at the end of
    the part before it.
    """

    def __init__(self, row: Trajectory) -> None:
        self.row = row
        self._read: dict[int, dict[str, Any]] = {}

    @cached_property
    def firsts(self) -> list[int]:
        found = Content.objects.filter(trajectory_id=self.row.pk).order_by("first")
        return list(found.values_list("first", flat=True))

    def load(self, *positions: int) -> list[dict[str, Any]]:
        """The parts at these positions, unpacked; what is new in one query."""
        wanted = [self.firsts[position] for position in positions if position < len(self.firsts)]
        if missing := [first for first in wanted if first not in self._read]:
            found = Content.objects.filter(trajectory_id=self.row.pk, first__in=missing)
            self._read |= {
                first: contents.unpack(data) for first, data in found.values_list("first", "data")
            }
        return [self._read.get(first, contents.EMPTY) for first in wanted]

    @cached_property
    def head(self) -> dict[str, Any]:
        """{tools, interventions, metadata, warnings, and the first messages}."""
        return contents.EMPTY | next(iter(self.load(0)), {})

    @cached_property
    def interventions(self) -> list[dict]:
        return self.row.with_feedback(self.head["interventions"])

    def position_of(self, index: int) -> int:
        return max(0, bisect_right(self.firsts, index) - 1)

    def message(self, index: int) -> dict | None:
        position = self.position_of(index)
        messages = (self.load(position) or [contents.EMPTY])[0]["messages"]
        offset = index - (self.firsts[position] if self.firsts else 0)
        if not 0 <= offset < len(messages):
            return None
        return as_sent(self.row.project_id, [messages[offset]])[0]

    def turns(self, position: int, blamed: int | None = None) -> list[Turn]:
        """The turns that begin in a part, with their replies from the next one."""
        parts = self.load(*sorted({0, position, position + 1}))
        if not parts:
            return []
        own, following = self.load(position)[0]["messages"], self.load(position + 1)
        skipped = leading_replies(own) if position else 0
        tail = (
            following[0]["messages"][: leading_replies(following[0]["messages"])]
            if following
            else []
        )
        return self._with_media(
            turns_of(
                own[skipped:] + tail,
                self.head["tools"],
                first=self.firsts[position] + skipped,
                blamed=blamed,
                interventions=self.interventions,
            )
        )

    def turns_from(self, index: int, count: int, blamed: int | None = None) -> list[Turn]:
        """The turns of up to `count` messages from one on."""
        messages: list[dict] = []
        position = self.position_of(index)
        while position < len(self.firsts) and len(messages) < count:
            (part,) = self.load(position)
            messages += part["messages"][max(0, index - self.firsts[position]) :]
            position += 1
        found = turns_of(
            messages[:count],
            self.head["tools"],
            first=index,
            blamed=blamed,
            interventions=self.interventions,
        )
        return fit(self._with_media(found))

    def prompt(self) -> list[Turn]:
        """The turns before the first request: system messages and examples."""
        messages = self.head["messages"]
        return fit(self._with_media(turns_of(messages[: opening_of(messages)])))

    def _with_media(self, turns: list[Turn]) -> list[Turn]:
        """The turns with what is known of the media of the run that they refer to."""
        every = [*turns, *(call.reply for turn in turns for call in turn.calls if call.reply)]
        shown = [medium for turn in every for medium in turn.media if medium.digest]
        if shown:
            rows = Medium.objects.filter(
                project=self.row.project_id,
                uses__trajectory_id=self.row.pk,
                digest__in={medium.digest for medium in shown},
            )
            by_digest = {row.digest: row for row in rows}
            for medium in shown:
                medium.stored = by_digest.get(medium.digest)
        return turns

    def placeholders(self) -> list[Placeholder]:
        """All parts."""
        ends = [*self.firsts[1:], self.row.message_count]
        return [
            Placeholder(first, max(first, end - 1))
            for first, end in zip(self.firsts, ends, strict=False)
        ]

    def opened_at(self, message: int, blamed: int | None = None) -> dict[str, Any]:
        """For `trajectories/_turns.html` and what is around it: the part with a message, the
        agent's prompt apart if it is the first, and the parts that are loaded when they come into
        view."""
        position, places = self.position_of(message), self.placeholders()
        turns = fit(self.turns(position, blamed)) if self.firsts else []
        shown_from = opening_of(self.head["messages"], blamed) if position == 0 else 0
        return {
            "shown_from": shown_from,
            "prompt": [turn for turn in turns if turn.index < shown_from],
            "turns": [turn for turn in turns if turn.index >= shown_from],
            "before": places[:position],
            "later": places[position + 1 :],
            "without_message": self.without_message(),
        }

    def without_message(self) -> list[dict]:
        """Interventions that stand at no message."""
        return [
            item
            for item in self.interventions
            if not isinstance(index := item.get("message_index"), int)
            or index >= self.row.message_count
        ]

    def as_json(self, columns: dict[str, Any]) -> Iterator[bytes]:
        """The trajectory as JSON text, `columns` with its messages read part by part."""
        encode = msgspec.json.encode
        yield b"{\n"
        for number, (name, value) in enumerate(columns.items()):
            yield (b",\n" if number else b"") + encode(name) + b": "
            if name != "messages":
                yield encode(value)
                continue
            for position in range(len(self.firsts)):
                messages = self.load(position)[0]["messages"]
                self._read = {first: part for first, part in self._read.items() if first == 0}
                messages = as_sent(self.row.project_id, messages)
                for offset, message in enumerate(messages):
                    yield (b",\n" if position or offset else b"[\n") + encode(message)
            yield b"\n]"
        yield b"\n}\n"


def leading_replies(messages: list[dict]) -> int:
    return next(
        (n for n, message in enumerate(messages) if message.get("role") not in RESULT_ROLES),
        len(messages),
    )
