"""What operators were sent. The database knows that by itself (`Incident.alerted_at`); this is for
the time in which it does not answer: a file of the data folder, so that whoever watches next on
this machine knows, and the broker, so that watchers of other machines do not send the same.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec
import redis

from apps.core.watching.conditions import named
from apps.core.watching.incidents import Key, Wrong
from flywheel import alive

log = logging.getLogger(__name__)
CLAIM = "flywheel:told:{}:{}"
CLAIMED_S = 7 * 86_400


class Entry(msgspec.Struct, frozen=True):
    """`is_alone`: this machine's watcher sent it and the database does not know yet."""

    condition: str
    about: str
    says: str
    since: datetime
    page: str = ""
    is_alone: bool = True

    @property
    def key(self) -> Key:
        return self.condition, self.about

    def wrong(self) -> Wrong | None:
        one = named(self.condition)
        return one and Wrong(one, self.about, self.says, self.since, self.page)


class Told:
    """Without a `path`, for as long as this process lives."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._entries = {entry.key: entry for entry in self._read()}

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def claim(self, wrongs: Iterable[Wrong]) -> list[Wrong]:
        """Those that nobody has sent yet. Another machine's are remembered as told."""
        new = [wrong for wrong in wrongs if wrong.key not in self]
        ours = [wrong for wrong in new if _claimed(wrong.key)]
        self._add([_entry(wrong, is_alone=False) for wrong in new if wrong not in ours])
        return ours

    def add(self, wrongs: Iterable[Wrong], *, is_alone: bool) -> None:
        self._add([_entry(wrong, is_alone=is_alone) for wrong in wrongs])

    def take_over(self, known: set[str], still: set[Key]) -> list[Wrong]:
        """What was sent from here and is over now, before the database knew of it. `known`: the
        conditions that could be checked.
        """
        over = [
            entry
            for entry in self._entries.values()
            if entry.is_alone and entry.condition in known and entry.key not in still
        ]
        self._entries = {key: one for key, one in self._entries.items() if one not in over}
        self._write()
        _release([entry.key for entry in over])
        return [wrong for entry in over if (wrong := entry.wrong())]

    def replace_stored(self, wrongs: Iterable[Wrong]) -> None:
        """`wrongs`: all that the database knows to be sent, or muted, and not over."""
        stored = {wrong.key: _entry(wrong, is_alone=False) for wrong in wrongs}
        alone = {key: one for key, one in self._entries.items() if one.is_alone}
        _release([key for key in alone if key in stored])
        if self._entries != (entries := alone | stored):
            self._entries = entries
            self._write()

    def _add(self, entries: list[Entry]) -> None:
        if entries:
            self._entries |= {entry.key: entry for entry in entries}
            self._write()

    def _read(self) -> list[Entry]:
        with suppress(OSError, msgspec.MsgspecError):
            if self._path is not None:
                return msgspec.json.decode(self._path.read_bytes(), type=list[Entry])
        return []

    def _write(self) -> None:
        if self._path is None:
            return
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            beside.write_bytes(msgspec.json.encode([*self._entries.values()]))
            beside.replace(self._path)
        except OSError as error:  # a full disk, which may be what is told
            log.warning("What operators were sent cannot be kept: %s", error)


def _entry(wrong: Wrong, *, is_alone: bool) -> Entry:
    return Entry(
        wrong.condition.name, wrong.about, wrong.says, wrong.since, wrong.page, is_alone=is_alone
    )


def _claimed(key: Key) -> bool:
    """Whether no other machine has sent it. A broker that does not answer keeps nobody from it."""
    name, host = CLAIM.format(*key), socket.gethostname()
    try:
        if alive.client().set(name, host, nx=True, ex=CLAIMED_S):
            return True
        return alive.client().get(name) in (None, host.encode())
    except redis.RedisError:
        return True


def _release(keys: list[Key]) -> None:
    with suppress(redis.RedisError):
        if keys:
            alive.client().delete(*(CLAIM.format(*key) for key in keys))
