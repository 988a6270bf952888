"""The part that the specs of all programs share, and how a spec is checked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct

from workers.lib.typed import Count, Form, convert


class Task(Struct):
    """The fields of a task that every environment needs. A task may have more."""

    id: str
    messages: list[dict]
    expected: dict


Tasks = Annotated[list[dict], Meta(min_length=1)]


class Job(Form, kw_only=True, tag_field="kind"):
    """The fields that the runner adds to every spec, and those that all specs share."""

    job_id: str = ""
    attempt: Count = 0
    seed: Count = 0
    out_dir: str = ""
    resume_from: str | None = None

    @classmethod
    def program(cls) -> str:
        """The module of `workers` that reads this spec; its JSON has it as `kind`."""
        return str(cls.__struct_config__.tag)

    @property
    def processes(self) -> int:
        """How many run the program together (`workers.lib.processes`)."""
        return getattr(getattr(self, "config", None), "processes", 1)


J = TypeVar("J", bound=Job)


def checked(spec: Any, form: type[J]) -> J:
    """The typed spec of a program. Raises SpecError for the first missing, unknown or invalid
    field.
    """
    typed = convert(spec, form)
    for name in ("tasks", "validation_tasks"):
        tasks = getattr(typed, name, [])
        if not isinstance(tasks, str):  # the name of a file, which is checked when it is read
            check_tasks(tasks, name)
    return typed


def check_tasks(tasks: Iterable[Any], name: str = "tasks") -> None:
    """Raises SpecError."""
    for at, task in enumerate(tasks):
        convert(task, Task, f"{name}[{at}]")
