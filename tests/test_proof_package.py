"""The wheel that is built of this checkout runs without it: it holds templates, static files and
migrations, and keeps its data where the command is given.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flywheel import embedded
from flywheel.commit import commit, described
from flywheel.version import VERSION
from tests.flywheel.machine import Machine

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.proof
LOG_IN = """
from django.conf import settings
from django.test import Client
answer = Client(HTTP_HOST="localhost").get("/login/")
assert answer.status_code == 200, answer.status_code
print(settings.FLYWHEEL_DATA_DIR, "app." in answer.content.decode())
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an installation of the wheel, besides which our own packages are found."""
    folder = tmp_path_factory.mktemp("package")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, ROOT]
    done = subprocess.run(build, capture_output=True, text=True)
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("the package registry cannot be reached")
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder / "site")
    return folder / "site"


def test_it_holds_what_is_no_code(installed: Path) -> None:
    for name in ("templates", "static"):
        here = {path.relative_to(ROOT / name) for path in (ROOT / name).rglob("*.*")}
        there = installed / "flywheel" / "carried" / name
        assert here == {path.relative_to(there) for path in there.rglob("*.*")}
    migrations = {path.relative_to(ROOT) for path in ROOT.glob("apps/*/migrations/*.py")}
    assert migrations == {
        path.relative_to(installed) for path in installed.glob("apps/*/migrations/*.py")
    }
    entry = next(installed.glob("flywheel-*.dist-info/entry_points.txt"))
    assert "flywheel = flywheel.command:main" in entry.read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "empty"
    folder.mkdir()
    yield folder
    Machine(folder / "var").kill_everything()
    shutil.rmtree(embedded.Layout.of(folder / "var").home)


def test_it_is_an_installation_in_an_empty_folder(installed: Path, folder: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if "FLYWHEEL" not in name}
    env = kept | {"PYTHONPATH": str(installed), "FLYWHEEL_EMBEDDED_FSYNC": "off"}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-P", "-m", "flywheel.command", *arguments]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert run("--version") == f"Flywheel {described(VERSION)}\n" and commit()
    assert "First start" in run("prepare")
    assert run("shell", "-v", "0", "-c", LOG_IN).split() == [str(folder / "var"), "True"]
    assert embedded.Layout.of(folder / "var").postgres.exists()
