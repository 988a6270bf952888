"""Stores the endpoint's spooled answers as trajectories: `manage.py store_answers`, a separate
process, so that no client waits for it.

A segment is deleted when the database has all of it; records that the database refuses are set
aside in `refused/`. This is where production traffic is determined: an answer that no client got
(`Record.served`) does not become a trajectory, and counts only in its trial.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from django.db import connection
from msgspec import msgpack

from apps.core.models import Project, Stage
from apps.promotion.trials.lanes import note_answers
from apps.serving.recording import span_of
from apps.serving.spool import Record, read, segments
from apps.serving.trial_answers import rows_of
from apps.trajectories import traces
from apps.trajectories.redaction import RuleError
from flywheel.outages import is_transient

log = logging.getLogger(__name__)
IDLE_S, AWAY_S = 0.3, 2.0
AT_ONCE = 200


def store_segment(path: Path) -> int:
    """Store a segment; return the number of answers. Raises database errors, and then keeps the
    segment.
    """
    stored, some = 0, list[Record]()
    for record in read(path):
        some.append(record)
        if len(some) == AT_ONCE:
            _store(some, path)
            stored, some = stored + len(some), []
    _store(some, path)
    path.unlink(missing_ok=True)
    return stored + len(some)


def _store(records: list[Record], path: Path) -> None:
    """Store records together, or one by one if any is refused. Those of deleted projects are
    dropped.
    """
    by_project: defaultdict[int, list[Record]] = defaultdict(list)
    for record in records:
        by_project[record.project].append(record)
    for project in Project.objects.filter(pk__in=by_project).exclude(
        stage__in=[Stage.DELETING, Stage.DELETED]
    ):
        some = by_project[project.pk]
        try:
            traces.keep(
                project=project, spans=[span_of(record) for record in some if record.served]
            )
            note_answers(rows_of(project, [record for record in some if record.trial]))
        except Exception as error:
            if is_transient(error) or isinstance(error, RuleError):
                raise
            if len(some) > 1:
                for record in some:
                    _store([record], path)
                continue
            log.exception("An answer of %s is set aside in refused/", some[0].channel)
            _set_aside(some[0], path.parent / "refused")


def _set_aside(record: Record, folder: Path) -> None:
    folder.mkdir(exist_ok=True, mode=0o700)
    (folder / f"{record.span_id}.msgpack").write_bytes(msgpack.encode(record))


def run(folder: Path, keep_on: Callable[[], bool]) -> None:
    """Run while `keep_on()`, and then until nothing is left that can be stored."""
    going = True
    while going:
        going = keep_on()
        found = segments(folder)
        for path in found:
            try:
                store_segment(path)
            except Exception as error:
                said = " ".join(str(error).split())[:300]
                log.warning("%d segments of answers wait in %s: %s", len(found), folder, said)
                connection.close()
                if going:
                    time.sleep(AWAY_S)
                break
        if not found and going:
            time.sleep(IDLE_S)
