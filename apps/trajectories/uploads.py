"""Files that people import: kept in the data folder, previewed, imported by a worker, resumed when it dies."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery import current_app
from django.conf import settings
from django.db import transaction
from django.utils import timezone
from kombu.exceptions import OperationalError

from apps.core.actions import audit
from apps.core.models import Project
from apps.trajectories.actions import store
from apps.trajectories.importers import ImportError_, OpenFile, batches, read
from apps.trajectories.importers.batches import MAX_ERRORS, Summary
from apps.trajectories.models import Upload, UploadState
from apps.trajectories.schema import RowError, parse_row, plain

log = logging.getLogger(__name__)
MAX_UNPACKED = 1024 * 1024 * 1024
PREVIEW_BYTES = 16 * 1024 * 1024
PREVIEW_ROWS = 3
KEPT_S = 2 * 24 * 3600
LOST_AFTER = timedelta(minutes=2)
ACTIVE = (UploadState.QUEUED, UploadState.RUNNING)
TASK = "trajectories.import_upload"


def folder() -> Path:
    return Path(settings.FLYWHEEL_DATA_DIR) / "uploads"


def keep(chunks: Iterable[bytes]) -> Path:
    """The file in the data folder; files that were looked at and left are removed."""
    home = folder()
    home.mkdir(parents=True, exist_ok=True)
    for old in home.iterdir():
        if time.time() - old.stat().st_mtime > KEPT_S:
            old.unlink(missing_ok=True)
    path = home / uuid.uuid4().hex
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
    return path


def preview(path: Path, name: str, format: str) -> dict[str, Any]:
    """What the first `PREVIEW_BYTES` of a file hold. Raises ImportError_.

    {format, unit, rows: the first good ones, good, bad, errors, warnings: of rows that are stored all the same, warned:
    how many in all, whole: was that all, total: rows, 0 where not whole}
    """
    rows: list[dict] = []
    errors: list[dict] = []
    warnings: list[dict] = []
    good, bad, last, warned = 0, 0, 0, 0
    with path.open("rb") as file:
        reading = read(file, name, format, PREVIEW_BYTES, stop=True)
        for position, raw in reading.rows:
            try:
                if isinstance(raw, RowError):
                    raise raw
                parsed = parse_row(raw)
                good += 1
                rows += [plain(parsed.row)] if len(rows) < PREVIEW_ROWS else []
                warned += len(parsed.warnings)
                room = MAX_ERRORS - len(warnings)
                warnings += [{"position": position} | warning for warning in parsed.warnings[:room]]
            except RowError as error:
                bad += 1
                last = max(last, position)
                errors.append({"position": position, "path": error.path, "error": error.error})
        if reading.source.stopped and errors and errors[-1]["position"] == last and "not JSON" in errors[-1]["error"]:
            errors.pop()  # cut off by us
            bad -= 1
    whole = not reading.source.stopped
    shown = [*reading.source.mended, *warnings][:MAX_ERRORS]
    return {
        "format": reading.format,
        "unit": reading.unit,
        "rows": rows,
        "good": good,
        "bad": bad,
        "errors": errors[:MAX_ERRORS],
        "more": max(0, bad - MAX_ERRORS),
        "warnings": shown,
        "warned": warned + reading.source.mendings,
        "more_warned": warned + reading.source.mendings - len(shown),
        "whole": whole,
        "total": good + bad if whole else 0,
    }


@transaction.atomic
def submit(*, project: Project, by: Any, path: Path, token: dict[str, Any]) -> Upload:
    """Queues the import of a file that waits in the data folder."""
    made = Upload.objects.create(
        project=project,
        by=by,
        name=token["name"],
        format=token["format"],
        path=str(path),
        size=path.stat().st_size,
        total=token["total"],
    )
    audit("upload.submitted", project=project, by=by, target=made, name=made.name, format=made.format)
    transaction.on_commit(lambda: _send(made.pk))
    return made


@transaction.atomic
def resubmit(*, upload: Upload, by: Any) -> bool:
    """False where it did not fail. Rows that are stored already count as duplicates."""
    changed = Upload.objects.filter(state=UploadState.FAILED, pk=upload.pk).update(**_afresh())
    if changed:
        audit("upload.resubmitted", project=upload.project, by=by, target=upload)
        transaction.on_commit(lambda: _send(upload.pk))
    return bool(changed)


def _afresh() -> dict[str, Any]:
    counts = dict.fromkeys(("done", "accepted", "duplicates", "updated", "rejected"), 0)
    return {"state": UploadState.QUEUED, "errors": [], "ended_at": None, "touched_at": timezone.now()} | counts


def _send(pk: Any) -> None:
    """A broker that is away loses nothing: `resend_lost` sends it again."""
    try:
        current_app.send_task(TASK, args=[str(pk)], queue="default", retry=False)
    except (OperationalError, OSError) as error:
        log.warning("Upload %s waits for the broker: %s", pk, error)


def resend_lost() -> int:
    """Queues the imports again whose message or worker was lost. Returns how many."""
    lost = Upload.objects.filter(state__in=ACTIVE, touched_at__lt=timezone.now() - LOST_AFTER)
    found = list(lost.values_list("pk", flat=True))
    for pk in found:
        if lost.filter(pk=pk).update(**_afresh()):
            _send(pk)
    return len(found)


def run_upload(pk: str) -> None:
    """The body of the task: claims the upload, imports it, stores counts as it goes. A claimed one is left alone."""
    claimed = Upload.objects.filter(pk=pk, state=UploadState.QUEUED)
    if not claimed.update(state=UploadState.RUNNING, touched_at=timezone.now()):
        return
    found = Upload.objects.select_related("project").get(pk=pk)

    @contextmanager
    def opened(name: str) -> Iterator[OpenFile]:
        try:
            file = Path(found.path).open("rb")  # noqa: SIM115
        except OSError as error:
            raise ImportError_(f"{name} is no longer here. Upload it again.") from error
        with file:
            yield read(file, name, found.format, MAX_UNPACKED)

    try:
        summary = batches.run(
            [found.name],
            opened,
            lambda rows: store.ingest(project=found.project, rows=rows),
            lambda summary, reading: Upload.objects.filter(pk=pk).update(**_counts(summary)),
        )
    except Exception as error:
        _end(pk, UploadState.FAILED, errors=[{"position": "", "path": "", "error": f"It broke: {error}"[:1000]}])
        raise
    stored = summary.accepted + summary.duplicates + summary.updated
    state = UploadState.FAILED if summary.rejected and not stored else UploadState.SUCCEEDED
    _end(pk, state, **_counts(summary))
    if state == UploadState.SUCCEEDED:
        Path(found.path).unlink(missing_ok=True)


def _counts(summary: Summary) -> dict[str, Any]:
    names = ("done", "accepted", "duplicates", "updated", "rejected", "errors")
    return {"touched_at": timezone.now()} | {name: getattr(summary, name) for name in names}


def _end(pk: Any, state: UploadState, **values: Any) -> None:
    Upload.objects.filter(pk=pk, state__in=ACTIVE).update(state=state, ended_at=timezone.now(), **values)
