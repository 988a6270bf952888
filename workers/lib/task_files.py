"""A job's tasks in a file of JSON lines, so that neither writer nor reader holds all of them in
memory. Light: no torch.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from workers.lib.errors import SpecError
from workers.lib.specs.job import check_tasks


def write_tasks(path: Path, tasks: Iterable[dict]) -> str:
    """Write the tasks; return the path, for the spec."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        file.writelines(f"{json.dumps(task)}\n" for task in tasks)
    return str(path)


def read_tasks(given: list[dict] | str) -> Sequence[dict]:
    """The tasks of a spec, given directly or as a file name. Raises SpecError."""
    if isinstance(given, list):
        return given
    try:
        found = TaskFile(given)
    except OSError as error:
        raise SpecError(f"The tasks {given} cannot be read: {error.strerror}.") from error
    if not found:
        raise SpecError("“tasks” is empty.")
    check_tasks(found)
    return found


class TaskFile(Sequence[dict]):
    """One task per line, read on access. Only the lines' offsets are in memory."""

    def __init__(self, path: str) -> None:
        self.file = Path(path).open("rb")  # noqa: SIM115 - for as long as this object lives
        self.starts, start = array("Q"), 0
        for line in self.file:
            self.starts.append(start)
            start += len(line)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        self.file.seek(self.starts[index])
        return json.loads(self.file.readline())
