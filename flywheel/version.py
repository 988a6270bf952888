"""The version of this program. It is written in pyproject.toml alone; an installed package has it
in its metadata.
"""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def _version() -> str:
    if CHECKOUT.exists():
        project = tomllib.loads(CHECKOUT.read_text())["project"]
        if project["name"] == "flywheel":
            return project["version"]
    return version("flywheel")


VERSION = _version()
