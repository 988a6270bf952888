"""Where files come from: a path, standard input, or any URL that fsspec knows (s3://… needs the
package s3fs).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from apps.trajectories.importers.records import ImportError_


@contextmanager
def open_source(name: str) -> Iterator[BinaryIO]:
    """The bytes of `name` ("-" is standard input). Raises ImportError_ if it cannot be opened."""
    if name == "-":
        yield sys.stdin.buffer
        return
    file = _remote(name) if "://" in name else _local(Path(name))
    with file:
        yield file


def size_of(name: str) -> int | None:
    """Bytes of a local file; None if that is not known beforehand."""
    try:
        return None if name == "-" or "://" in name else Path(name).stat().st_size
    except OSError:
        return None


def _local(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except (OSError, ValueError) as error:
        raise ImportError_(
            f"{path} cannot be opened: {getattr(error, 'strerror', None) or error}."
        ) from error


def _remote(url: str) -> BinaryIO:
    import fsspec  # only here: it is not needed to serve pages

    try:
        return fsspec.open(url, "rb").open()
    except ImportError as error:
        raise ImportError_(f"{url} needs a package that is not installed: {error}") from error
    except Exception as error:  # each file system raises errors of its own
        raise ImportError_(f"{url} cannot be opened: {error or type(error).__name__}") from error
