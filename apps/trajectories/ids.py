"""UUIDs that begin with a time (version 7, RFC 9562): rows sort and are partitioned by when their
run started. Pure.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from uuid import UUID

OLDEST = datetime(2020, 1, 1, tzinfo=UTC)  # what is older shares one partition
FUTURE_TOLERANCE = timedelta(hours=24)


def uuid7(at: datetime) -> UUID:
    """A new id whose order is that of `at`, to the microsecond."""
    microseconds = max(0, round(at.timestamp() * 1_000_000))
    milliseconds, rest = divmod(microseconds, 1000)
    fraction = rest * 4096 // 1000
    value = (
        (milliseconds & 0xFFFF_FFFF_FFFF) << 80
        | 0x7 << 76
        | fraction << 64
        | 0b10 << 62
        | secrets.randbits(62)
    )
    return UUID(int=value)


def floor_of(at: datetime) -> UUID:
    """The least id of a time (to the millisecond): `id >= floor_of(at)` is every row from then
    on.
    """
    return UUID(int=(max(0, int(at.timestamp() * 1000)) & 0xFFFF_FFFF_FFFF) << 80)


def time_of(pk: UUID) -> datetime:
    """When the run of an id started, to the millisecond."""
    return datetime.fromtimestamp((pk.int >> 80) / 1000, UTC)


def sort_time(started_at: datetime, now: datetime) -> datetime:
    """The time under which a row is stored: its start, or now if its clock is in the future."""
    return now if started_at > now + FUTURE_TOLERANCE else started_at


def month_of(at: datetime) -> datetime | None:
    """The first moment of the partition's month; None for everything before `OLDEST`."""
    return (
        None
        if at < OLDEST
        else at.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    )


def next_month(month: datetime) -> datetime:
    return (month + timedelta(days=32)).replace(day=1)
