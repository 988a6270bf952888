"""What stays of deleted runs: keyed hashes by which a late span, a resend or feedback is recognised
as theirs.

Neither ids nor words are kept. The key is SECRET_KEY: what was hashed with one of
SECRET_KEY_FALLBACKS is still recognised.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from enum import StrEnum
from functools import lru_cache

from django.conf import settings
from django.db import connection
from django.utils import timezone
from django.utils.crypto import salted_hmac

from apps.core.models import Project
from apps.core.pipelined import send
from apps.core.postgres import array
from apps.trajectories.models import Tombstone

TRACE_ID = re.compile(r"[0-9a-f]{32}")


class Kind(StrEnum):
    RUN = "run"  # by the client's id
    TRACE = "trace"
    LINK = "link"  # by which the traces of one conversation find each other
    PERSON = "person"  # only in reports


def bury(project: Project, kind: Kind, names: Iterable[str]) -> None:
    key, is_link = _keys()[0], kind == Kind.LINK
    digests = sorted({rf"\x{_digest(key, kind, name).hex()}" for name in names})
    if digests:
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {Tombstone._meta.db_table} (project_id, digest, is_link, deleted_at)"
                " SELECT %s, digest, %s, %s FROM unnest(%s::bytea[]) AS given(digest) ON CONFLICT"
                " DO NOTHING",
                [project.pk, is_link, timezone.now(), array(digests)],
            )


def forget_links(before: datetime) -> None:
    """Traces of one conversation that come further apart are not joined."""
    Tombstone.objects.filter(is_link=True, deleted_at__lt=before).delete()


def deleted(project: Project, kind: Kind, names: Collection[str]) -> dict[str, datetime]:
    """Those of the names that were deleted, and when."""
    return ask(project, digests_of(kind, names))() if names else {}


def deleted_runs(project: Project, names: Collection[str]) -> dict[str, datetime]:
    """As `deleted`, of runs by the client's id (`digests_of_runs`)."""
    return ask(project, digests_of_runs(names))() if names else {}


def ask(project: Project, digests: dict[str, str]) -> Callable[[], dict[str, datetime]]:
    """As `deleted`, whose answer can be taken once the trip to the database is over."""
    rows = send(
        r"SELECT '\x' || encode(digest, 'hex'), deleted_at FROM trajectories_tombstone WHERE"
        " project_id = $1 AND digest = ANY($2::bytea[])",
        [str(project.pk), array(digests)],
    )
    return lambda: {digests[digest]: datetime.fromisoformat(at) for digest, at in rows.rows()}


def digests_of(kind: Kind, names: Collection[str]) -> dict[str, str]:
    """The names by the digests under which they may lie, as PostgreSQL writes them."""
    return {rf"\x{_digest(key, kind, name).hex()}": name for name in names for key in _keys()}


def digests_of_runs(names: Collection[str]) -> dict[str, str]:
    """As `digests_of`; the run of a trace that was deleted, too, by whatever door it comes."""
    traces = {name: trace for name in names if (trace := trace_of(name))}
    of_trace: dict[str, str] = {}
    for name, trace in traces.items():
        of_trace |= dict.fromkeys(digests_of(Kind.TRACE, [trace]), name)
    return of_trace | digests_of(Kind.RUN, names)


def trace_of(name: str) -> str:
    """Of a run that spans were assembled into: the trace's name, or that and a span's. Others write
    it in capitals, or as a UUID; "" for a name of another kind.
    """
    trace = name.partition(":")[0].replace("-", "").lower()
    return trace if TRACE_ID.fullmatch(trace) else ""


def lift(project: Project, names: Collection[str]) -> int:
    """Lets deleted runs of these names be stored again. Returns how many were deleted."""
    digests = [_digest(key, Kind.RUN, name) for name in names for key in _keys()]
    return Tombstone.objects.filter(project=project, digest__in=digests).delete()[0]


def digest_of_person(name: str) -> str:
    return _digest(_keys()[0], Kind.PERSON, name).hex()


def _digest(key: bytes, kind: Kind, name: str) -> bytes:
    return hmac.digest(key, f"{kind}:{name}".encode("utf-8", "replace"), "sha256")[:16]


def _keys() -> tuple[bytes, ...]:
    return tuple(map(_key, (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)))


@lru_cache
def _key(secret: str) -> bytes:
    return salted_hmac("flywheel.tombstones", "", secret=secret, algorithm="sha256").digest()
