"""Where the SDKs of `bench.sdks` are installed: environments that several configurations share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import venv
from pathlib import Path

from bench.sdk_configurations import ENVIRONMENTS, Configuration

VERSIONS = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"


def ready(name: str, folder: Path) -> Path:
    """The environment's folder, installed when it is first wanted or its packages have changed."""
    home = (folder / name).resolve()
    environment = ENVIRONMENTS[name]
    stamp, wanted = home / "installed.json", json.dumps(environment.packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return home
    home.mkdir(parents=True, exist_ok=True)
    (_install_node if environment.is_node else _install_python)(home, environment.packages)
    stamp.write_text(wanted)
    return home


def _install_node(home: Path, packages: tuple[str, ...]) -> None:
    (home / "package.json").write_text('{"type": "module", "private": true}')
    command = ["npm", "install", "--no-audit", "--no-fund", "--silent", *packages]
    subprocess.run(command, cwd=home, check=True)


def _install_python(home: Path, packages: tuple[str, ...]) -> None:
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
    uv = os.environ.get("UV") or shutil.which("uv")
    pip = [uv, "pip", "install", "-p", python] if uv else [python, "-m", "pip", "install"]
    subprocess.run([*pip, "-q", *packages], check=True)


def versions_of(configuration: Configuration, home: Path) -> tuple[str, str]:
    """Of the SDK, and of what records it ("" where the SDK does so itself)."""
    names = list(filter(None, (configuration.package, configuration.recorder_package)))
    if ENVIRONMENTS[configuration.environment].is_node:
        found = [_node_version(home / "node_modules" / name) for name in names]
    else:
        command = [home / "bin" / "python", "-c", VERSIONS, *names]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = done.stdout.split()
    return found[0], found[1] if len(found) > 1 else ""


def _node_version(folder: Path) -> str:
    return str(json.loads((folder / "package.json").read_text())["version"])


def command_of(configuration: Configuration, home: Path) -> list[str]:
    program = Path(__file__).parent / "sdk_programs" / configuration.program
    if not ENVIRONMENTS[configuration.environment].is_node:
        return [str(home / "bin" / "python"), str(program)]
    for module in program.parent.glob("*.mjs"):  # what they import is looked up where they are
        shutil.copy(module, home)
    return ["node", str(home / program.name)]
