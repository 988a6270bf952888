"""Where the product's files are: in a checkout beside the code, in an installed package inside it
(pyproject.toml, `force-include`).
"""

from __future__ import annotations

import os
from pathlib import Path

CODE = Path(__file__).resolve().parent.parent  # where apps, flywheel and workers are imported from
CARRIED = Path(__file__).resolve().parent / "carried"


def is_installed() -> bool:
    return CARRIED.exists()


COMMAND = "flywheel" if is_installed() else "manage.py"


def carried(name: str) -> Path:
    """A folder that is no Python package: templates, static, docs/nemo-gym."""
    return (CARRIED if is_installed() else CODE) / name


def data_dir() -> Path:
    """Where nothing else is said, `var`: of the checkout or, for an installed package, of the
    folder in which the command was given.
    """
    given = os.environ.get("FLYWHEEL_DATA_DIR")
    return Path(given or (Path.cwd() if is_installed() else CODE) / "var").resolve()


def keep_data_dir() -> None:
    """The processes that this one starts work in other folders."""
    if is_installed():
        os.environ["FLYWHEEL_DATA_DIR"] = str(data_dir())
