"""Each process of the suite loads every test file, all in the same order: in a fresh checkout all
would rewrite and compile the same file at the same time, for 12 CPU seconds each. Here each does
its share first, and the others read what it wrote.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def rewrite_share(config: pytest.Config, number: int, count: int) -> None:
    """Of process `number` of `count`. pytest has no other way in than its own functions: where
    another version has none of these, each process does it all.
    """
    with suppress(ImportError):
        from _pytest.assertion.rewrite import (
            PYC_TAIL,
            _read_pyc,
            _rewrite_test,
            _write_pyc,
            assertstate_key,
            get_cache_dir,
            try_makedirs,
        )

        if sys.dont_write_bytecode:
            return
        for path in sorted(HERE.rglob("test_*.py"))[number::count]:
            folder = get_cache_dir(path)
            written = folder / f"{path.stem}{PYC_TAIL}"
            if try_makedirs(folder) and _read_pyc(path, written) is None:
                digest, code = _rewrite_test(path, config)
                _write_pyc(config.stash[assertstate_key], code, digest, written)
