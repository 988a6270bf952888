"""The disks of this machine that an installation writes to or reads from, each once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from flywheel.embedded import Layout, wants_postgres


@dataclass(frozen=True)
class Disk:
    """`place`: the first of the installation's places that is on it."""

    place: str
    folder: str
    used: int
    free: int

    @property
    def share(self) -> float:
        """As df says it: blocks that are reserved do not count."""
        return self.used / ((self.used + self.free) or 1)


def places() -> Iterator[tuple[str, Path]]:
    """Where an installation keeps something on this machine, its data folder first."""
    yield "data", Path(settings.FLYWHEEL_DATA_DIR)
    if wants_postgres():
        yield "postgres", Layout.of(Path(settings.FLYWHEEL_DATA_DIR)).postgres
    yield "endpoint", Path(settings.FLYWHEEL_ENDPOINT_SPOOL)
    artifacts = settings.STORAGES["artifacts"].get("OPTIONS", {}).get("location")
    if artifacts:
        yield "artifacts", Path(artifacts)
    for folder in settings.FLYWHEEL_MODEL_FOLDERS:
        yield "models", Path(folder)
    yield "environments", Path(settings.FLYWHEEL_ENVIRONMENTS_DIR)
    if settings.FLYWHEEL_BACKUP_TARGET.startswith("/"):
        yield "backups", Path(settings.FLYWHEEL_BACKUP_TARGET)


def disks() -> list[Disk]:
    """A folder that is not there yet is on no disk."""
    found: dict[int, Disk] = {}
    for place, folder in places():
        with suppress(OSError):
            device = folder.stat().st_dev
            if device not in found:
                usage = shutil.disk_usage(folder)
                found[device] = Disk(place, str(folder), usage.used, usage.free)
    return list(found.values())
