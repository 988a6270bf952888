from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.flywheel.machine import Machine


@pytest.mark.parametrize("by", ["environment", "command line", "errors"])
def test_a_process_is_of_the_data_folder_that_it_knows_or_writes_to(
    by: str, tmp_path: Path
) -> None:
    """A job is forked from a process that knows no data folder, and writes its errors to one."""
    command = [sys.executable, "-c", "input()", *([str(tmp_path)] * (by == "command line"))]
    env = {"FLYWHEEL_DATA_DIR": str(tmp_path)} if by == "environment" else {}
    with (tmp_path if by == "errors" else tmp_path.parent).joinpath("stderr.log").open("w") as log:
        process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stderr=log)
    assert Machine(tmp_path).processes() == [process.pid]
    assert not Machine(tmp_path / "other").processes()
    process.communicate()
    assert Machine(tmp_path).is_quiet()
