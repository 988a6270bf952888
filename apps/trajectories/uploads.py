"""Files that people import: kept in the data folder, previewed, imported by a worker, resumed when it dies."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from apps.core import jobs
from apps.core.kinds import Progress
from apps.core.models import JobState, Project
from apps.trajectories.actions.store import ingest
from apps.trajectories.decoding import RowError
from apps.trajectories.importers import ImportError_, read
from apps.trajectories.importers.batches import MAX_ERRORS, Stored, Summary, batches
from apps.trajectories.models import Upload
from apps.trajectories.schema import parse_row, plain

MAX_UNPACKED = 1024 * 1024 * 1024
PREVIEW_BYTES = 16 * 1024 * 1024
PREVIEW_ROWS = 3
KEPT_S = 2 * 24 * 3600


def folder() -> Path:
    return Path(settings.FLYWHEEL_DATA_DIR) / "uploads"


def keep(chunks: Iterable[bytes]) -> Path:
    """The file in the data folder; files that were looked at and left are removed."""
    home = folder()
    home.mkdir(parents=True, exist_ok=True)
    awaited = set(Upload.objects.active().values_list("path", flat=True))
    for old in home.iterdir():
        if time.time() - old.stat().st_mtime > KEPT_S and str(old) not in awaited:
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
                errors.append({"position": position, "path": error.path, "error": error.problem})
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


def submit(*, project: Project, by: Any, path: Path, token: dict[str, Any]) -> Upload:
    """Queues the import of a file that waits in the data folder."""
    made = Upload(
        project=project,
        name=token["name"],
        format=token["format"],
        path=str(path),
        size=path.stat().st_size,
        total=token["total"],
    )
    return jobs.submit(made, by=by)


def resubmit(*, upload: Upload, by: Any) -> bool:
    """False where it did not fail. Rows that are stored already count as duplicates."""
    failed = Upload.objects.filter(state=JobState.FAILED)
    return jobs.restart(upload, among=failed, by=by, action="resubmitted", cursor={}, done=0)


def steps(upload: Upload) -> Iterator[Progress]:
    """Stores the file batch by batch. Raises ImportError_ where it is gone, or where none of its rows could be stored."""
    summary = Summary(**upload.cursor)

    def store(rows: list[dict]) -> Stored:
        return ingest(project=upload.project, rows=rows)

    try:
        with Path(upload.path).open("rb") as file:
            reading = read(file, upload.name, upload.format, MAX_UNPACKED)
            for _ in batches(reading, store, summary, skip=summary.done):
                yield _progress(summary)
    except FileNotFoundError as error:
        raise ImportError_(f"{upload.name} is no longer here. Upload it again.") from error
    except ImportError_ as error:
        summary.reject(upload.name, "", "", str(error))
        yield _progress(summary)
    if summary.rejected and not summary.accepted + summary.duplicates + summary.updated:
        raise ImportError_("Nothing was imported: no row of the file could be stored. Correct the file.")
    return asdict(summary)


def _progress(summary: Summary) -> Progress:
    return Progress(done=summary.done, cursor=asdict(summary))


def ended(upload: Upload) -> None:
    if upload.state == JobState.SUCCEEDED:
        transaction.on_commit(lambda: Path(upload.path).unlink(missing_ok=True))


def remove_files(rows: QuerySet[Upload]) -> None:
    """For `deletion.BEFORE`."""
    for path in rows.values_list("path", flat=True):
        if path and Path(path).parent == folder():
            Path(path).unlink(missing_ok=True)
