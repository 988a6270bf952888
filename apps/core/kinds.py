"""What each kind of job does. Apps register their kinds in a module `jobs`, which is loaded when
Django is ready.

So models know nothing of what their jobs do, and `runner` runs any job without knowing its app.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from msgspec import Struct

from apps.core.models import Job
from workers.lib.specs.job import Job as Spec

J = TypeVar("J", bound=Job)


class Incomplete(Exception):
    """Raised by `complete`: the job fails with this sentence, and `result` is what it keeps."""

    def __init__(self, sentence: str, result: dict) -> None:
        super().__init__(sentence)
        self.result = result


class Needs(Struct, frozen=True):
    """What a machine must have: megabytes for a model (of one GPU, or of memory where there is
    none), and things by name (`placing.Has`).
    """

    memory_mb: int = 0
    things: frozenset[str] = frozenset()


def _nothing(*_: Any) -> None:
    return None


def _no_words(*_: Any) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class ChildProcess(Generic[J]):
    """A job that runs as `python -m workers.<program> spec.json` and reports by events
    (docs/jobs.md).
    """

    queue: str
    child_spec: Callable[[J], Spec]  # checks what may have changed; also says which program runs
    complete: Callable[
        [J, dict], dict
    ]  # in the transaction that ends a good run; returns what `result` keeps
    store_events: Callable[[J, list[dict]], None] = (
        _nothing  # in a transaction, each event once per attempt
    )
    ended: Callable[[J], None] = _nothing  # in the transaction that ends the job, however it ends
    beside: Callable[[J], AbstractContextManager] = (
        nullcontext  # what this process does while the child runs
    )
    python: Callable[[], str] = lambda: sys.executable
    # files and folders in the job's folder from which a later attempt continues, on whatever
    # machine; nobody writes to a folder once it is there
    keeps: Callable[[J], list[str]] | None = None
    needs: Callable[[J], Needs] | None = None  # what its machine must have
    time_limit_s: float | None = None  # of one attempt; then it is asked to stop
    flush_every_s: float = 1.0  # how often what comes is stored
    if_lost: str = ""  # a sentence for the person whose job died too often
    memory_advice: Callable[[J], str] = (
        _no_words  # if memory ran out: what to reduce, as a sentence
    )
    # makes the next attempt need less memory, and says how; "" if that is not allowed
    reduce: Callable[[J], str] = _no_words


@dataclass(frozen=True)
class Progress:
    """What a step has done so far. `cursor` says where the next one starts, also in another
    process. `outside` is called once that is committed, outside of any transaction, as for what
    takes long; the steps get what it returns from their `yield`.
    """

    done: int
    total: int | None = None
    label: str = ""
    cursor: dict = field(default_factory=dict)
    outside: Callable[[], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class InProcess(Generic[J]):
    """A job that a Celery worker does itself, step by step.

    `steps(job)` is a generator that begins at `job.cursor`. What it does up to a `yield` is one
    transaction, together with the progress that it yields; what it does after the last one is
    stored with the end of the job. Its `return` value is the job's result. It is begun again from
    the stored cursor after a break of the database and in another worker, so it keeps nothing
    between steps that the cursor does not say.
    """

    queue: str
    steps: Callable[[J], Generator[Progress, Any, dict]]
    needs: Callable[[J], Needs] | None = None
    ended: Callable[[J], None] = _nothing
    if_lost: str = ""


Kind = ChildProcess | InProcess
_kinds: dict[type[Job], Kind] = {}


def register(model: type[Job], kind: Kind) -> None:
    assert model not in _kinds, f"{model.__name__} has a kind already"
    _kinds[model] = kind


def kind_of(job: Job) -> Any:
    return _kinds[type(job)]


def job_models() -> list[type[Job]]:
    return list(_kinds)
