"""The version of this program. It is written in pyproject.toml alone; an installed package has it
in its metadata.
"""

from __future__ import annotations

import tomllib
from importlib.metadata import version

from flywheel.places import CODE, is_installed


def _version() -> str:
    if is_installed():
        return version("flywheel")
    return tomllib.loads((CODE / "pyproject.toml").read_text())["project"]["version"]


VERSION = _version()
