"""The locks in requirements/ hold what pyproject.toml names, with hashes and in one version."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = {
    "web": [],
    "flywheel": ["ml"],
    "renderers": ["renderers"],
    "presidio": ["presidio"],
    "qlora": ["ml", "qlora"],
    "dev": ["ml", "renderers", "dev"],
}
"""What is installed into our environment: the extras of each lock."""
LOCKS = {path.stem for path in ROOT.glob("requirements/*.txt")} - {"torch"}


def name_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=~; ]", requirement)[0]).lower()


def pins(lock: str) -> dict[str, str]:
    """{name: "name==version --hash…"} of a lock."""
    text = (ROOT / f"requirements/{lock}.txt").read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name_of(line): line for line in lines}


@pytest.mark.parametrize("lock", sorted(LOCKS))
def test_every_pin_has_a_hash_and_torch_is_none(lock: str) -> None:
    locked = pins(lock)
    assert locked and "torch" not in locked
    assert [line for line in locked.values() if "--hash=sha256:" not in line] == []


def test_every_lock_is_of_an_extra_or_a_group() -> None:
    assert EXTRAS.keys() | PROJECT["dependency-groups"].keys() == LOCKS


@pytest.mark.parametrize("lock", EXTRAS)
def test_what_shares_our_environment_has_one_version(lock: str) -> None:
    locked, ours = pins(lock), pins("dev")
    named = [
        *PROJECT["project"]["dependencies"],
        *(
            line
            for extra in EXTRAS[lock]
            for line in PROJECT["project"]["optional-dependencies"][extra]
        ),
    ]
    assert {name_of(line) for line in named} - {"torch"} <= locked.keys()
    both = locked.keys() & ours.keys()
    assert {name for name in both if locked[name].split()[0] != ours[name].split()[0]} == set()


def test_the_whole_installation_is_one_file() -> None:
    assert "-r requirements/flywheel.txt" in (ROOT / "requirements.txt").read_text().splitlines()
    torch = (ROOT / "requirements/torch.txt").read_text().splitlines()[-1]
    assert torch in PROJECT["project"]["optional-dependencies"]["ml"]


LOADED = """
import sys
from importlib.metadata import packages_distributions
from flywheel.forks import import_everything

import_everything()
found = packages_distributions()
top = {name.partition(".")[0] for name in sys.modules}
print(*{distribution for name in top for distribution in found.get(name, ())})
"""


def test_a_machine_without_torch_installs_all_that_its_processes_import() -> None:
    """What pip itself brings is there in every environment."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    imported = {name_of(name) for name in done.stdout.split()} - {"pip", "setuptools", "flywheel"}
    assert len(imported) > 40
    assert imported - pins("web").keys() == set()
