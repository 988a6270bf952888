"""Since when what is wrong has been so, in the database; in this process where that does not
answer.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db import DatabaseError, InterfaceError, transaction
from django.db.models import Q
from django.utils import timezone

from apps.core.models import Incident
from apps.core.watching.conditions import Checked, Condition, Lane, NoAnswer, ask, named

Key = tuple[str, str]
KEPT = timedelta(days=30)


@dataclass(frozen=True)
class Wrong:
    """A finding and since when. `row` where the database has it."""

    condition: Condition
    about: str
    says: str
    since: datetime
    page: str = ""
    row: Incident | None = None

    @property
    def key(self) -> Key:
        return self.condition.name, self.about


class Memory:
    """When this process saw each finding first, for as long as it is found."""

    def __init__(self) -> None:
        self.first: dict[Key, datetime] = {}

    def see(self, checked: Iterable[Checked], now: datetime) -> list[Wrong]:
        found: dict[Key, datetime] = {}
        wrongs = []
        for one in checked:
            name = one.condition.name
            if one.unknown:  # neither found nor over
                found |= {key: at for key, at in self.first.items() if key[0] == name}
                continue
            for finding in one.findings:
                key = name, finding.about[:160]
                since = found[key] = min(
                    filter(None, [finding.since, self.first.get(key), now]), default=now
                )
                wrongs.append(Wrong(one.condition, key[1], finding.says, since, finding.page))
        self.first = found
        return wrongs


def open_rows() -> dict[Key, Incident]:
    return {row.key: row for row in Incident.objects.open()}


def with_rows(wrongs: list[Wrong]) -> list[Wrong]:
    """As the database knows them, where it answers."""
    try:
        rows = ask(Lane.DATABASE, open_rows)
    except (NoAnswer, DatabaseError, InterfaceError):
        return wrongs
    return [_known(wrong, rows.get(wrong.key)) for wrong in wrongs]


def _known(wrong: Wrong, row: Incident | None) -> Wrong:
    """The database's `since` is that of all processes."""
    return replace(wrong, row=row, since=row.since) if row else wrong


@transaction.atomic
def store(checked: Iterable[Checked], wrongs: list[Wrong], now: datetime) -> list[Incident]:
    """Begins and ends incidents. Returns those that are over now."""
    rows, found = open_rows(), {wrong.key for wrong in wrongs}
    for wrong in wrongs:
        fields = {"says": wrong.says[:500], "page": wrong.page[:300]}
        if row := rows.get(wrong.key):
            Incident.objects.filter(pk=row.pk).update(since=min(row.since, wrong.since), **fields)
        else:
            Incident.objects.get_or_create(
                condition=wrong.condition.name,
                about=wrong.about,
                ended_at=None,
                defaults=fields | {"since": wrong.since},
            )
    known = {one.condition.name: one.condition for one in checked if not one.unknown}
    over = [
        row
        for key, row in rows.items()
        if key not in found and row.condition in known and _is_ours(known[row.condition], row)
    ]
    return [row for row in over if row.end(now)]


def _is_ours(one: Condition, row: Incident) -> bool:
    """What is wrong with a machine is over when that machine says so."""
    return one.lane != Lane.MACHINE or row.about.partition(":")[0] == socket.gethostname()


def to_alert(now: datetime) -> list[Incident]:
    """Open ones that operators have not been sent, and have lasted long enough. They are claimed:
    another machine's watcher sends none of them.
    """
    return [
        row
        for row in Incident.objects.open().filter(alerted_at=None)
        if (one := named(row.condition))
        and row.since <= now - timedelta(seconds=one.wait_s)
        and not (row.muted_until and row.muted_until > now)
        and row.claim_alert(now)
    ]


def quiet_rows(now: datetime) -> Iterable[Incident]:
    """Open ones that operators know of."""
    return Incident.objects.open().filter(Q(alerted_at__isnull=False) | Q(muted_until__gt=now))


def as_wrong(rows: Iterable[Incident]) -> list[Wrong]:
    return [
        Wrong(one, row.about, row.says, row.since, row.page)
        for row in rows
        if (one := named(row.condition))
    ]


def forget_old() -> int:
    return Incident.objects.filter(ended_at__lt=timezone.now() - KEPT).delete()[0]
