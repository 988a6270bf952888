"""By which ways the last alert of this machine reached nobody: a file of the data folder, since
neither the database nor the broker may answer when alerts are sent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from django.conf import settings
from django.utils import timezone


def _path() -> Path:
    return Path(settings.FLYWHEEL_DATA_DIR) / "undelivered.json"


def ways() -> dict[str, tuple[datetime, str]]:
    """{way: (since when, why)}"""
    with suppress(OSError, ValueError, TypeError):
        found = json.loads(_path().read_text())
        return {way: (datetime.fromisoformat(since), why) for way, (since, why) in found.items()}
    return {}


def note(tried: Mapping[str, str]) -> None:
    """`tried`: {way: why it failed, "" where it did not}. What cannot be kept is in the log."""
    known = ways()
    now = timezone.now()
    kept = {way: one for way, one in known.items() if way not in tried}
    failed = {way: (known.get(way, (now, ""))[0], why) for way, why in tried.items() if why}
    if known == (kept := kept | failed):
        return
    path = _path()
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        rows = {way: (since.isoformat(), why) for way, (since, why) in kept.items()}
        beside.write_text(json.dumps(rows))
        beside.replace(path)
