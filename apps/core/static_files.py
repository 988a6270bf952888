"""The static files of the package as web processes of this machine serve them: compressed, and
under names with a digest of their content. Each machine makes them itself (`prepare`, and
`flywheel.processes web`).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command

from apps.core.whole_folders import alone


def collect() -> None:
    """Only where a file has changed: to pack all of them anew took longer than the rest of this."""
    stamp, found = Path(settings.STATIC_ROOT) / ".collected", _static_files()
    with alone(Path(settings.STATIC_ROOT)):
        if stamp.exists() and stamp.read_text() == found:
            return
        call_command("collectstatic", interactive=False, verbosity=0)
        stamp.write_text(found)


def _static_files() -> str:
    """A digest of the names, sizes and times of all static files, and of how they are stored."""
    digest = hashlib.sha256(repr(settings.STORAGES["staticfiles"]).encode())
    for finder in get_finders():
        for name, storage in finder.list([]):
            about = Path(storage.path(name)).stat()
            digest.update(f"{name}\0{about.st_size}\0{about.st_mtime_ns}\n".encode())
    return digest.hexdigest()
