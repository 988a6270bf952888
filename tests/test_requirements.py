"""The locks in requirements/ hold what pyproject.toml names, with hashes and in one version."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
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
    "telemetry": ["telemetry"],
    "dev": ["ml", "renderers", "telemetry", "dev"],
}
"""What is installed into our environment: the extras of each lock."""
OURS = [ROOT / "apps", ROOT / "flywheel", ROOT / "workers"]
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
from flywheel.forks import import_everything

import_everything()
print(*filter(None, (getattr(module, "__file__", "") for module in list(sys.modules.values()))))
"""


@pytest.mark.proof
def test_a_machine_without_torch_installs_all_that_its_processes_import() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = [Path(name) for name in done.stdout.split()]
    ours = [path for path in loaded if path.suffix == ".py" and set(path.parents) & {*OURS}]
    assert len(ours) > 500
    installed, wanted = packages_distributions(), set()
    for path in ours:
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wanted |= {dist for name in names for dist in installed.get(name.split(".")[0], ())}
    assert {name_of(name) for name in wanted} - pins("web").keys() == set()
