"""A Struct that several threads meet first at the same time."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import threading
from apps.trajectories import schema

sys.setswitchinterval(1e-6)
together = threading.Barrier(8)
row = {"id": "a", "messages": [{"role": "user", "content": "x"}], "outcome": {"success": True}}

def parse():
    together.wait()
    schema.parse_row(dict(row))

threads = [threading.Thread(target=parse) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.proof
def test_threads_that_meet_a_form_together_do_not_crash_the_process() -> None:
    started = [subprocess.Popen([sys.executable, "-c", PROGRAM]) for _ in range(6)]
    assert [process.wait() for process in started] == [0] * 6
