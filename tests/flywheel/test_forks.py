"""The process that imports the product once and forks the parts of `up` from it."""

from __future__ import annotations

import fcntl
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from flywheel.embedded import lock
from flywheel.forks import Fork, Forks, ForksError
from tests.flywheel.machine import eventually

SAY = (
    "import os, sys;"
    "is_own = os.getsid(0) == os.getpid();"
    "os.write(1, repr(('django' in sys.modules, is_own, os.environ['PGAPPNAME'])).encode())"
)
STAYS = ["timeit", "-n1", "-r1", "import time; time.sleep(600)"]


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    made = Forks(dict(os.environ))
    yield made
    made.close()


def start(forks: Forks, words: list[str]) -> tuple[Fork, int]:
    """A part and what it writes to."""
    output, written = os.pipe()
    try:
        part = forks.start(words, title="fw-test", output=written, end_with=signal.SIGKILL)
    finally:
        os.close(written)
    return part, output


def ended(output: int) -> bool:
    """Whether a part that writes nothing has closed its output."""
    return bool(select.select([output], [], [], 0)[0])


def test_a_part_has_the_imports_a_session_of_its_own_and_a_name_in_the_database(
    forks: Forks,
) -> None:
    part, output = start(forks, ["timeit", "-n1", "-r1", SAY])
    with os.fdopen(output) as lines:
        assert lines.read().startswith("(True, True, 'flywheel-prepare')")
    assert part.wait(60) == 0


def test_a_part_is_known_until_it_was_polled(forks: Forks) -> None:
    part, output = start(forks, STAYS)
    assert part.poll() is None
    eventually(lambda: Path(f"/proc/{part.pid}/comm").read_text() == "fw-test\n")
    os.kill(part.pid, signal.SIGTERM)
    eventually(lambda: ended(output))
    assert Path(f"/proc/{part.pid}").exists()
    assert part.wait(60) == -signal.SIGTERM
    assert not Path(f"/proc/{part.pid}").exists()


def test_the_parts_end_with_the_process_that_forked_them(forks: Forks) -> None:
    """The last of the file: there are no forks afterwards."""
    part, output = start(forks, STAYS)
    forks.close()
    eventually(lambda: ended(output), 60)
    assert part.poll() is not None and forks.is_gone()
    with pytest.raises(ForksError):
        start(forks, STAYS)


def test_what_is_held_for_the_parts_is_held_until_the_last_has_ended(tmp_path: Path) -> None:
    held = lock(tmp_path / "held", fcntl.LOCK_EX)
    forks = Forks(dict(os.environ), held)
    _, output = start(forks, STAYS)
    os.close(held)
    with pytest.raises(BlockingIOError):
        lock(tmp_path / "held", fcntl.LOCK_EX | fcntl.LOCK_NB)
    forks.close()
    eventually(lambda: ended(output))
    os.close(lock(tmp_path / "held", fcntl.LOCK_EX | fcntl.LOCK_NB))
