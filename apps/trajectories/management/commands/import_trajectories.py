"""`manage.py import_trajectories FILE… --project SLUG`: trajectories from the field's files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from apps.core.models import Project
from apps.trajectories.actions import store
from apps.trajectories.actions.mappings import (
    find_mapping,
    fitting_mappings,
    names_that_fit,
    save_mapping,
)
from apps.trajectories.importers import FORMATS, MAPPED, ImportError_, OpenFile, batches, read
from apps.trajectories.importers.batches import Summary
from apps.trajectories.importers.encodings import ENCODINGS
from apps.trajectories.importers.mapping import Mapping, MappingError, as_json, load
from apps.trajectories.importers.sources import open_source, size_of

GUESSED = (
    "A guessed mapping is not used to store data. Check the mapping above, save it with"
    " --save-mapping NAME, then import with --mapping NAME."
)


class Command(BaseCommand):
    help = (
        "Imports trajectories from files, standard input (-) or URLs such as"
        " s3://bucket/runs.jsonl.gz (with s3fs installed)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "files",
            nargs="+",
            metavar="FILE",
            help="A path, - for standard input, or a URL; gzip or not",
        )
        parser.add_argument("--format", choices=("auto", MAPPED, *FORMATS), default="auto")
        parser.add_argument(
            "--mapping",
            metavar="NAME|FILE.json",
            help="A mapping of columns to fields: the name of a saved mapping, or a file",
        )
        parser.add_argument(
            "--save-mapping",
            metavar="NAME",
            help="Save the mapping given with --mapping, or the guess, in the project",
        )
        parser.add_argument(
            "--encoding",
            choices=tuple(ENCODINGS),
            help="Of files that are not UTF-8; --dry-run shows a guess",
        )
        parser.add_argument("--project", required=True, metavar="SLUG")
        parser.add_argument(
            "--dry-run", action="store_true", help="Validate all rows without storing them"
        )
        parser.add_argument(
            "--restore",
            action="store_true",
            help="Also store runs that were deleted from the project",
        )

    def handle(
        self, *, files: list[str], format: str, project: str, dry_run: bool, **options: Any
    ) -> None:
        target = _project(project)
        mapping = _mapping(target, options["mapping"]) if options["mapping"] else None
        if mapping and options["save_mapping"]:
            _save(target, options["save_mapping"], mapping)
        ingest = partial(store.ingest, project=target, restore=options["restore"])
        store_rows = batches.check if dry_run else lambda rows: ingest(rows=rows)

        @contextmanager
        def opened(name: str) -> Iterator[OpenFile]:
            with open_source(name) as file:
                reading = read(
                    file,
                    "standard input" if name == "-" else name,
                    format,
                    mapping=mapping,
                    encoding=options["encoding"] or "",
                )
                self._check_encoding(reading, dry_run)
                if reading.mapping:
                    self._show_mapping(reading, target, options["save_mapping"])
                    if reading.problem or (reading.guessed and not dry_run):
                        found = (
                            names_that_fit(fitting_mappings(target, reading))
                            if reading.guessed
                            else ""
                        )
                        raise ImportError_((reading.problem or GUESSED) + found)
                yield reading

        with _Bar(files) as bar:
            summary = batches.run(files, opened, store_rows, bar.show)
        self._report(summary, target, dry_run)

    def _check_encoding(self, reading: OpenFile, dry_run: bool) -> None:
        """Raises ImportError_ where nobody has chosen it, and it cannot be known."""
        source = reading.source
        if not source.is_encoding_guessed:
            return
        for one in source.examples:
            self.stdout.write(f"{reading.name}: {one['name']}: {one['example']}")
        if not dry_run:
            raise ImportError_(f"{source.encoding_problem} Import with --encoding NAME.")

    def _show_mapping(self, reading: OpenFile, project: Project, save_as: str | None) -> None:
        """A guess as JSON, ready to be corrected and given back with --mapping."""
        if not reading.guessed or reading.mapping is None:
            return
        self.stdout.write(f"{reading.name}: guessed mapping")
        self.stdout.write(json.dumps(as_json(reading.mapping), indent=2, ensure_ascii=False))
        if save_as and not reading.problem:
            _save(project, save_as, reading.mapping)

    def _report(self, summary: Summary, project: Project, dry_run: bool) -> None:
        for item in summary.warnings:
            path = f"{item['path']}: " if item["path"] else ""
            self.stderr.write(
                f"{item['file']} {item['position']}: warning: {path}{item['warning']}"
            )
        if summary.warned > len(summary.warnings):
            self.stderr.write(f"{summary.warned:,} warnings in all.")
        for item in summary.errors:
            self.stderr.write(
                " ".join(part for part in (item["file"], item["position"]) if part)
                + f": {_what(item)}"
            )
        if (more := summary.rejected - len(summary.errors)) > 0:
            self.stderr.write(f"… and {more:,} more.")
        for name, format in summary.formats.items():
            self.stdout.write(f"{name}: {format}")
        if dry_run:
            self.stdout.write(
                f"Checked, nothing stored: {summary.accepted:,} good, {summary.rejected:,} bad."
            )
        else:
            self.stdout.write(
                f"{project}: {summary.accepted:,} new, {summary.duplicates:,} duplicates,"
                f" {summary.updated:,} updated, {summary.rejected:,} rejected."
            )
        if summary.rejected:
            raise CommandError(
                f"{summary.rejected:,} rejected; the others are {'good' if dry_run else 'stored'}."
            )


def _what(item: dict) -> str:
    return f"{item['path']}: {item['error']}" if item["path"] else item["error"]


def _mapping(project: Project, given: str) -> Mapping:
    """From a file of JSON, or the project's of that name."""
    try:
        if given.endswith(".json"):
            return load(json.loads(Path(given).read_bytes()))
        return find_mapping(project, given)
    except (OSError, ValueError) as error:  # MappingError is a ValueError
        raise CommandError(f"--mapping {given}: {error}", returncode=2) from error


def _save(project: Project, name: str, mapping: Mapping) -> None:
    try:
        save_mapping(project=project, name=name, mapping=mapping, by=None)
    except MappingError as error:
        raise CommandError(str(error), returncode=2) from error


def _project(slug: str) -> Project:
    try:
        return Project.objects.get(slug=slug)
    except Project.DoesNotExist as error:
        known = ", ".join(Project.objects.values_list("slug", flat=True)[:20]) or "none yet"
        raise CommandError(
            f"There is no project “{slug}”. There are: {known}.", returncode=2
        ) from error


class _Bar:
    """A progress bar of bytes on the terminal; nothing where standard error is none."""

    def __init__(self, files: list[str]) -> None:
        sizes = [size_of(name) for name in files]
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._task = self._progress.add_task(
            "", total=None if None in sizes else sum(size or 0 for size in sizes)
        )
        self._taken: dict[str, int] = {}

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, summary: Summary, reading: OpenFile) -> None:
        self._taken[reading.name] = reading.source.bytes_read
        self._progress.update(
            self._task,
            completed=sum(self._taken.values()),
            description=f"{summary.done:,} rows, {summary.rejected:,} bad",
        )
