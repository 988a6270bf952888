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
PRODUCT = ("apps", "clients", "flywheel", "workers")
WORKS = ["3.11", "3.12", "3.13", "3.14"]


def stub(place: Path, name: str, version: str) -> Path:
    """A program that answers the Makefile's check as that version would."""
    place.mkdir(exist_ok=True)
    check = (
        f"import sys; sys.version_info = ({version.replace('.', ', ')}, 0);"
        " sys.modules.update(ensurepip=sys, venv=sys)"
    )
    path = place / name
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{check}; $2"\n')
    path.chmod(0o755)
    return path


def taken(place: Path, system: str) -> str:
    """The Python that `make setup` takes where `place` is the PATH."""
    for tool in ("sh", "make", "cat", "cksum", "cut", "grep", "nvidia-smi"):
        if found := shutil.which(tool):
            (place / tool).symlink_to(found)
    done = subprocess.run(
        ["make", "-n", "setup", f"SYSTEM={system}", f"VENV={place / 'venv'}"],
        cwd=ROOT,
        env={"PATH": str(place), "HOME": str(place)},
        capture_output=True,
        text=True,
    )
    chosen = re.search(r"test -n \"(.*)\"", done.stdout)
    assert chosen, done.stdout + done.stderr
    return chosen[1]


@pytest.mark.parametrize("version", ["3.10", *WORKS, "3.15"])
def test_makefile_takes_the_python_that_is_there(version: str, tmp_path: Path) -> None:
    for name in (f"python{version}", "python3"):
        stub(tmp_path, name, version)
    assert bool(taken(tmp_path, system="")) == (version in WORKS)


@pytest.mark.parametrize(("system", "goes_first"), [("3.12", True), ("3.10", False)])
def test_makefile_prefers_the_python_of_the_distribution(
    system: str, goes_first: bool, tmp_path: Path
) -> None:
    of_system = stub(tmp_path / "system", f"python{system}", system)
    stub(tmp_path, "python3.11", "3.11")
    chosen = taken(tmp_path, system=f"{of_system.parent}/")
    assert chosen == (str(of_system) if goes_first else "python3.11")


def test_pyproject_and_the_pages_say_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.15"
    for page in ("README.md", "docs/start/first-trajectory.md"):
        assert re.search(r"Python 3\.11\s+to\s+3\.14", (ROOT / page).read_text()), page


def test_no_group_is_possessive() -> None:
    """Python before 3.11.5 matches `(…)?+` wrongly (cpython#106052); `(?>(…)?)` is the same."""
    wrong = re.compile(r"\)(?:[*+?]|\{\d*,?\d*\})\+")
    places = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    assert len(places) > 100
    assert not [str(path) for path in places if wrong.search(path.read_text())]
