"""Looking for people and places in what arrives (`redaction.presidio`) takes too long for a
request, so it is done in the background.

The receiver applies all other rules, checks the rows, and keeps them apart (`held`). `step` then
asks Presidio and stores them in the usual way. Where Presidio cannot be used they wait: nothing is
lost, and nothing is stored unread.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import msgspec
from django.db import transaction
from django.utils import timezone

from apps.core.locks import ProjectLock, try_holding_in
from apps.core.models import Project
from apps.trajectories import decoding, held, schema, traces
from apps.trajectories.actions import store
from apps.trajectories.actions.redaction import looks_for_names, quick_redactor_of, redactor_of
from apps.trajectories.actions.store import Ingested
from apps.trajectories.decoding import Decoded, RowError
from apps.trajectories.models import HeldBatch
from apps.trajectories.redaction import RuleError
from flywheel.outages import is_transient
from workers.lib.storable import storable

log = logging.getLogger(__name__)
AT_ONCE = 20
RETRY = timedelta(seconds=30)  # after Presidio could not be used
MAX_PROBLEM = 500
Kind = HeldBatch.Kind


def receive(*, project: Project, rows: Iterable[Any | RowError]) -> Ingested:
    """As `store.ingest` for what arrives in a request: in a project that looks for names, the valid
    rows wait here.
    """
    if not looks_for_names(project):
        return store.ingest(project=project, rows=rows, together=True)
    redactor, done, waiting = quick_redactor_of(project), Ingested(), []
    for index, given in enumerate(rows):
        try:
            if isinstance(given, RowError):
                raise given
            row = store.redacted(redactor, given) if redactor else given
            parsed = schema.parse_row(row)
        except RowError as error:
            done.rejected.append({"index": index, "path": error.path, "error": error.problem})
            continue
        done.warnings += [{"index": index} | warning for warning in parsed.warnings]
        # As it came, so that what is mended in it is noted when it is stored.
        waiting.append(
            msgspec.json.encode(row.value) if isinstance(row, Decoded) else json.dumps(row).encode()
        )
    held.hold(project, Kind.ROW, waiting)
    done.held = len(waiting)
    return done


def step() -> int:
    """Stores some of what waits in one project. Returns how many batches; 0 if nothing is due.

    One process at a time takes a project's, in the order of their arrival: of a row that was sent
    twice, the later one stays.
    """
    due = HeldBatch.objects.filter(due_at__lte=timezone.now())
    for project in Project.objects.filter(pk__in=due.values("project")):
        with try_holding_in(project.pk, ProjectLock.NAMES) as is_mine:
            if is_mine and (done := _some(project)):
                return done
    return 0


def _some(project: Project) -> int:
    waiting = HeldBatch.objects.filter(project=project, due_at__isnull=False)
    batches = list(waiting.filter(due_at__lte=timezone.now()).order_by("pk")[:AT_ONCE])
    try:
        redactor_of(project)
    except RuleError as error:
        waiting.update(due_at=timezone.now() + RETRY, problem=str(error)[:MAX_PROBLEM])
        return 0
    for batch in batches:
        try:
            _store(project, batch)
        except Exception as error:
            if is_transient(error):
                raise
            log.exception("Held batch %s of project %s is set aside", batch.pk, project.pk)
            problem = (
                str(error) if isinstance(error, RuleError) else f"{type(error).__name__}: {error}"
            )
            HeldBatch.objects.filter(pk=batch.pk).update(
                due_at=None, problem=storable(problem, "")[:MAX_PROBLEM]
            )
    return len(batches)


def _store(project: Project, batch: HeldBatch) -> None:
    """Looks for names before the transaction, since that is what takes long."""
    data, redactor = held.unsealed(batch), redactor_of(project)
    if batch.kind == Kind.SPANS:
        packed = traces.decode(data)
        packed = traces.redacted(redactor, packed) if redactor else packed
        with transaction.atomic():
            traces.put(project, packed)
            batch.delete()
        return
    row = decoding.decode(data)
    row = store.redacted(redactor, row) if redactor else row
    with transaction.atomic():
        done = store.ingest(project=project, rows=[row], redacted_by=redactor)
        if done.rejected and not done.deleted:
            raise RowError(done.rejected[0]["path"], done.rejected[0]["error"])
        batch.delete()
