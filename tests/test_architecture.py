"""The house: an app imports only floors below it, and the web process loads no ML library."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOORS = (
    "core", "registry", "trajectories", "failures", "environments", "evals", "reviews", "training", "promotion",
    "automation", "dashboard",
)  # fmt: skip
LIGHT = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "workers" / "lib").rglob("*.py")
    if "inside" not in path.parts
)
HEAVY = ("torch", "transformers", "peft", "trl", "vllm", "accelerate", "datasets")


def imports(path: Path) -> Iterator[str]:
    """Every imported module, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively; say the whole name, so that its floor is seen"
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize("floor", FLOORS)
def test_an_app_imports_only_floors_below(floor: str) -> None:
    allowed = FLOORS[: FLOORS.index(floor) + 1]
    for path in (ROOT / "apps" / floor).rglob("*.py"):
        if "migrations" in path.parts:
            continue
        for module in imports(path):
            parts = module.split(".")
            if parts[0] == "apps" and len(parts) > 1:
                assert parts[1] in allowed, f"{path} imports {module}, a floor above it"


def test_every_app_has_a_floor() -> None:
    found = {path.name for path in (ROOT / "apps").iterdir() if (path / "apps.py").exists()}
    assert found == set(FLOORS)


def test_apps_import_only_the_library_of_workers() -> None:
    for path in (ROOT / "apps").rglob("*.py"):
        for module in imports(path):
            parts = module.split(".")
            if parts[0] == "workers":
                assert parts[1:2] == ["lib"], f"{path} imports {module}"


def test_the_library_of_workers_imports_neither_its_programs_nor_what_needs_torch() -> None:
    for path in (ROOT / "workers" / "lib").rglob("*.py"):
        for module in imports(path):
            parts = module.split(".")
            if parts[0] == "workers":
                assert parts[1:2] == ["lib"], f"{path} imports {module}"


def test_workers_know_nothing_of_django() -> None:
    for path in (ROOT / "workers").rglob("*.py"):
        for module in imports(path):
            assert module.split(".")[0] not in ("django", "apps", "flywheel"), f"{path} imports {module}"


def test_the_library_of_workers_loads_no_ml_library() -> None:
    program = (
        "import sys\n"
        "from importlib import import_module\n"
        f"for name in {LIGHT!r}: import_module(name)\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_web_process_loads_no_ml_library() -> None:
    program = (
        "import sys, django\n"
        "from django.conf import settings\n"
        "django.setup()\n"
        "import flywheel.urls\n"
        "from apps.core import tasks\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={
            "DJANGO_SETTINGS_MODULE": "flywheel.settings",
            "PATH": "/usr/bin:/bin",
            "FLYWHEEL_DATA_DIR": os.environ["FLYWHEEL_DATA_DIR"],
        },
    )
    assert done.returncode == 0, done.stderr
