"""A backup that somebody made up writes nothing outside of where its files belong: in a bucket any
name can be had.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from apps.core.backups.manifest import MANIFEST, BackupError, Entry, Manifest, read_manifest, sealed


class Made:
    """A place that has any file."""

    def __init__(self, manifest: bytes) -> None:
        self.manifest = manifest

    def names(self) -> list[str]:
        return [MANIFEST]

    def read(self, name: str) -> Iterator[bytes]:
        yield self.manifest


def manifest_with(name: str) -> bytes:
    return sealed(
        Manifest(
            version="0.1.0",
            made_at=datetime.now(UTC),
            postgres=18,
            schema={},
            tables={},
            files=[Entry(name, 0, "")],
        )
    )


@pytest.mark.parametrize("name", ["files/media/../../../x", "/etc/x", "../x", "files/media/.."])
def test_a_name_that_leads_out_is_refused(name: str) -> None:
    place: Any = Made(manifest_with(name))
    with pytest.raises(BackupError, match="damaged"):
        read_manifest(place, "s3://bucket")


@pytest.mark.parametrize("name", ["files/media/ab/c..d", "files/media/a\\b"])
def test_other_names_are_not(name: str) -> None:
    place: Any = Made(manifest_with(name))
    assert read_manifest(place, "s3://bucket").files[0].name == name
