"""Reading trajectories from the field's files. Pure: no Django, and no row is stored here.

`read(file, name)` finds the format and yields raw rows of the form of `schema.Row`, or the RowError
of a bad one. A file that cannot be read at all is an ImportError_. Ids are the file's own or a
digest of the content, so the same file twice is duplicates. Memory: one record (at most 64 MiB) at
a time; formats that join records hold back what may still grow.
"""

from __future__ import annotations

from apps.trajectories.importers.detect import MAPPED, OpenFile, read
from apps.trajectories.importers.formats import FORMATS
from apps.trajectories.importers.records import ImportError_

__all__ = ["FORMATS", "MAPPED", "ImportError_", "OpenFile", "read"]
