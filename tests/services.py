"""Loaded before Django's settings (`-p tests.services`): the suite has a data folder and services
of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Two runs at the same time need a folder each: the test database has one name.
os.environ["FLYWHEEL_DATA_DIR"] = os.environ.get("FLYWHEEL_TEST_DATA_DIR") or str(
    ROOT / "var" / "test"
)
os.environ["FLYWHEEL_EMBEDDED_FSYNC"] = "off"
# Also of every process that a test starts. Tiny models gain nothing from a second thread, and where
# other processes want the core, it burns what it waits: a training step took 20 times the CPU time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault(
    "DJANGO_ALLOW_ASYNC_UNSAFE", "true"
)  # Playwright's loop runs in the tests' thread
# Bytecode is kept also where the machine's environment says not to: else each process that a test
# starts compiles all that it imports anew, 1.2 CPU s of the product alone.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
