"""Files that people import: kept, previewed, imported by a worker, resumed when it dies."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from apps.core import jobs, kept
from apps.core.bus import on
from apps.core.errors import Rejected
from apps.core.kinds import Progress
from apps.core.models import JobState, KeptFile, Project
from apps.core.operations import Page, operation
from apps.core.projects.deletion import Deleting
from apps.trajectories.actions.mappings import fitting_mappings
from apps.trajectories.actions.redaction import redacted_name
from apps.trajectories.actions.store import ingest
from apps.trajectories.decoding import RowError
from apps.trajectories.importers import MAPPED, ImportError_, OpenFile, chat, read
from apps.trajectories.importers.batches import MAX_ERRORS, Stored, Summary, batches
from apps.trajectories.importers.choices import columns_of, has_blanks, objects, values_of
from apps.trajectories.importers.guess import guess_as, guess_beside
from apps.trajectories.importers.mapping import BY_LAYOUT, Mapping, as_json, load, slashed
from apps.trajectories.models import ImportMapping, TrajectoryKey, Upload, UploadedTrajectory
from apps.trajectories.redaction import RuleError
from apps.trajectories.schema import parse_row, plain

KEPT, FILE = "uploads/", "file"
MAX_UNPACKED = 1024 * 1024 * 1024
PREVIEW_BYTES = 16 * 1024 * 1024
PREVIEW_ROWS = 3
MAX_COLUMNS = 200  # of those without a field that are listed


def keep(chunks: Iterable[bytes]) -> str:
    """Keeps the file for whichever process goes on with it; returns its name. Files that were
    looked at and left are removed.
    """
    kept.remove_leftovers(KEPT, _awaited)
    name = uuid.uuid4().hex
    kept.put_chunks(kept_as(name), {FILE: chunks})
    return name


def _awaited(names: set[str]) -> set[str]:
    return {*Upload.objects.active().filter(file__in=names).values_list("file", flat=True)}


def path_of(name: str) -> Path:
    """The kept file on this machine. Raises ImportError_ if it is gone, OSError."""
    if (path := kept.path_of(kept_as(name), FILE)) is None:
        raise ImportError_("The file is no longer available. Upload it again.")
    return path


def size_of(name: str) -> int:
    return kept.named(kept_as(name), [FILE]).get().size


def kept_as(name: str) -> str:
    return f"{KEPT}{name}"


def is_kept(name: str) -> bool:
    return kept.named(kept_as(name), [FILE]).exists()


def forget(name: str) -> None:
    kept.remove_folder(kept_as(name))


def preview(
    path: Path, name: str, format: str, mapping: Mapping | None = None, encoding: str = ""
) -> dict[str, Any]:
    """What the first `PREVIEW_BYTES` of a file hold. Raises ImportError_.

    {format, unit, rows: the first good ones, good, bad, errors, warnings: of rows that are stored
    all the same, warned: how many in all, whole: was that all, total: rows, 0 where not whole,
    encoding, encodings: those it may have where that cannot be known, [{name, label, example}]}; of
    a mapped file also {mapping, guessed, problem: why it gives no rows, records: how many were
    read, blanks: whether the column of the conversation has empty cells, columns, unread: {field:
    {count, example, position, column, label}}}; of it and of chat rows {unmapped: [{name, count,
    example, kept}], kept: whether columns are kept, suggested: a mapping that would read them}
    """
    found = Preview()
    with path.open("rb") as file:
        reading = read(file, name, format, PREVIEW_BYTES, True, mapping, encoding)
        for position, raw in reading.rows:
            found.add(position, raw)
    return (
        found.as_dict(reading)
        | (mapped(reading) if reading.mapping else {})
        | (beside(reading) if reading.format == "chat" else {})
    )


def beside(reading: OpenFile) -> dict[str, Any]:
    """Of chat rows: the fields that only the metadata keeps, and a mapping that would read them
    (`suggested`).
    """
    left = chat.beside(reading.head)
    found = (
        guess_beside([record for _, record in reading.head if isinstance(record, dict)], chat.KNOWN)
        if left
        else None
    )
    return {"unmapped": left[:MAX_COLUMNS], "kept": True} | (
        {"suggested": as_json(found)} if found else {}
    )


def saved_mappings(
    project: Project, path: Path, name: str, encoding: str = ""
) -> list[ImportMapping]:
    """See `fitting_mappings`. Raises ImportError_."""
    if not project.import_mappings.exists():
        return []
    with path.open("rb") as file:
        reading = read(file, name, MAPPED, PREVIEW_BYTES, stop=True, encoding=encoding)
        return fitting_mappings(project, reading)


def guess_layout(path: Path, name: str, layout: str, encoding: str = "") -> Mapping | None:
    """A guess for a layout that a person chose; None for one that is none. Raises ImportError_."""
    if layout not in BY_LAYOUT:
        return None
    with path.open("rb") as file:
        reading = read(file, name, MAPPED, PREVIEW_BYTES, stop=True, encoding=encoding)
    found = reading.mapping or Mapping()
    guessed = guess_as(objects(reading.head, found), layout)
    guessed.records = found.records
    return guessed


class Preview:
    """What became of the rows that were looked at."""

    def __init__(self) -> None:
        self.rows: list[dict] = []
        self.errors: list[dict] = []
        self.warnings: list[dict] = []
        self.good = self.bad = self.last = self.warned = 0

    def add(self, position: int, raw: Any) -> None:
        try:
            if isinstance(raw, RowError):
                raise raw
            parsed = parse_row(raw)
        except RowError as error:
            self.bad += 1
            self.last = max(self.last, position)
            self.errors.append({"position": position, "path": error.path, "error": error.problem})
            return
        self.good += 1
        self.rows += [plain(parsed.row)] if len(self.rows) < PREVIEW_ROWS else []
        self.warned += len(parsed.warnings)
        room = MAX_ERRORS - len(self.warnings)
        self.warnings += [{"position": position} | warning for warning in parsed.warnings[:room]]

    def as_dict(self, reading: OpenFile) -> dict[str, Any]:
        source = reading.source
        last = self.errors[-1] if self.errors else None
        if (
            source.stopped
            and last
            and last["position"] == self.last
            and "not JSON" in last["error"]
        ):
            self.errors.pop()  # cut off by us
            self.bad -= 1
        shown = [*source.mended, *self.warnings][:MAX_ERRORS]
        return {
            "format": reading.format,
            "unit": reading.unit,
            "rows": self.rows,
            "good": self.good,
            "bad": self.bad,
            "errors": self.errors[:MAX_ERRORS],
            "more": max(0, self.bad - MAX_ERRORS),
            "warnings": shown,
            "warned": self.warned + source.mendings,
            "more_warned": self.warned + source.mendings - len(shown),
            "whole": not source.stopped,
            "total": 0 if source.stopped else self.good + self.bad,
            "encoding": source.encoding,
            "encodings": source.examples,
        }


def mapped(reading: OpenFile) -> dict[str, Any]:
    """What the editor of a mapping shows."""
    mapping, report = reading.mapping, reading.report
    assert mapping is not None
    labels = {field.name: field.label for field in BY_LAYOUT[mapping.layout]}
    return {
        "mapping": as_json(mapping) | {"layout": mapping.layout},
        "guessed": reading.guessed,
        "problem": reading.problem,
        "records": report.records,
        "blanks": has_blanks(objects(reading.head, mapping), mapping),
        "columns": columns_of(reading.head, mapping, reading.source.columns),
        "unread": {
            name: (
                asdict(found)
                | {
                    "column": mapping.fields.get(name, ""),
                    "label": labels.get(name, ""),
                }
            )
            for name, found in report.unread.items()
        },
        "unmapped": [
            {
                "name": name,
                "count": count,
                "example": report.examples.get(name, ""),
                "kept": mapping.keep_rest and name not in report.lost,
            }
            for name, count in report.unmapped.most_common(MAX_COLUMNS)
        ],
        "kept": mapping.keep_rest,
        "dated": next(iter(slashed(objects(reading.head, mapping), mapping)), "")[:40],
        "values": values_of(reading.head, mapping),
    }


def submit(*, project: Project, by: Any, file: str, token: dict[str, Any]) -> Upload:
    """Queues the import of a file that waits (`keep`)."""
    try:
        name = redacted_name(project, token["name"])[-200:]
    except RuleError:  # the import itself says which rule
        name = "upload"
    made = Upload(
        project=project,
        name=name,
        format=token["format"],
        file=file,
        size=size_of(file),
        total=token["total"],
        spec={name: token[name] for name in ("mapping", "encoding") if token.get(name)},
    )
    return jobs.submit(made, by=by)


@operation("uploads_retry", page=Page("import/<uuid:pk>/retry/", "import_retry"))
def resubmit(*, upload: Upload, by: Any) -> None:
    """Queues a failed import again. Rows that are stored already count as duplicates.

    Raises Rejected if it did not fail, or its file is gone.
    """
    if not is_kept(upload.file):
        raise Rejected("The file is no longer available. Upload it again.")
    failed = Upload.objects.filter(state=JobState.FAILED)
    if not jobs.restart(upload, among=failed, by=by, action="resubmitted", cursor={}, done=0):
        raise Rejected("Only failed imports can be retried.")


@operation(
    "uploads_cancel",
    page=Page(
        "import/<uuid:pk>/cancel/",
        "import_cancel",
        done="The import stops after the current batch. Rows stored so far are kept.",
    ),
)
def cancel(*, upload: Upload, by: Any) -> None:
    """Stops an import.

    Raises Rejected if it has finished.
    """
    if not jobs.cancel(upload, by=by):
        raise Rejected("This import has already finished.")


def steps(upload: Upload) -> Iterator[Progress]:
    """Stores the file batch by batch. Raises ImportError_ if it is gone, or if none of its rows
    could be stored.
    """
    summary = Summary(**upload.cursor)

    def store(rows: list[dict]) -> Stored:
        stored = ingest(project=upload.project, rows=rows)
        remember(upload, rows)
        return stored

    path = path_of(upload.file)
    try:
        with path.open("rb") as file:
            given = upload.spec.get("mapping")
            mapping = load(given) if given else None
            encoding = upload.spec.get("encoding", "")
            reading = read(
                file, upload.name, upload.format, MAX_UNPACKED, mapping=mapping, encoding=encoding
            )
            if problem := reading.source.encoding_problem:
                raise ImportError_(problem)
            if reading.problem or reading.guessed:
                raise ImportError_(reading.problem or "No mapping was chosen for this file.")
            for _ in batches(reading, store, summary, skip=summary.done):
                yield _progress(summary)
    except ImportError_ as error:
        summary.reject(upload.name, "", "", str(error))
        yield _progress(summary)
    if summary.rejected and not summary.accepted + summary.duplicates + summary.updated:
        raise ImportError_(
            "Nothing was imported because no row could be stored. Fix the file and try again."
        )
    return asdict(summary)


def remember(upload: Upload, rows: list[dict]) -> None:
    """That these rows were in the file, also those that were stored before."""
    names = [name for row in rows if isinstance(name := row.get("id"), str)]
    keys = TrajectoryKey.objects.filter(
        project=upload.project_id, external_id__in=names
    ).values_list("trajectory_id", flat=True)
    UploadedTrajectory.objects.bulk_create(
        [UploadedTrajectory(upload=upload, trajectory_id=pk) for pk in keys], ignore_conflicts=True
    )


def _progress(summary: Summary) -> Progress:
    return Progress(done=summary.done, cursor=asdict(summary))


def ended(upload: Upload) -> None:
    if upload.state == JobState.SUCCEEDED:
        forget(upload.file)


@on(Deleting[Upload])
def remove_files(event: Deleting[Upload]) -> None:
    folders = [kept_as(name) for name in event.rows.values_list("file", flat=True)]
    kept.remove(KeptFile.objects.filter(folder__in=folders))
