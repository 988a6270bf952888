"""Python 3.11 to 3.14 are taken, by every place that says which."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WORKS = ["3.11", "3.12", "3.13", "3.14"]


@pytest.mark.parametrize("version", ["3.10", *WORKS, "3.15"])
def test_makefile_takes_the_python_that_is_there(version: str, tmp_path: Path) -> None:
    """A machine whose only Python is this one: a stub that answers the Makefile's check as that
    version would.
    """
    stub = tmp_path / f"python{version}"
    check = (
        f"import sys; sys.version_info = ({version.replace('.', ', ')}, 0);"
        " sys.modules.update(ensurepip=sys, venv=sys)"
    )
    stub.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{check}; $2"\n')
    stub.chmod(0o755)
    shutil.copy(stub, tmp_path / "python3")
    for tool in ("sh", "make", "cat", "cksum", "cut", "grep", "nvidia-smi"):
        if found := shutil.which(tool):
            (tmp_path / tool).symlink_to(found)
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        ["make", "-n", "setup", f"VENV={tmp_path / 'venv'}"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
    )
    chosen = re.search(r"test -n \"(.*)\"", done.stdout)
    assert chosen and bool(chosen[1]) == (version in WORKS), done.stdout + done.stderr


def test_pyproject_and_the_pages_say_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.15"
    for page in ("README.md", "docs/start/first-trajectory.md"):
        assert re.search(r"Python 3\.11\s+to\s+3\.14", (ROOT / page).read_text()), page
