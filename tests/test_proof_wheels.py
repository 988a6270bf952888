"""On every machine that docs/installing.md names, all that the product installs is a wheel. Asks
the package registry, by uv.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLATFORMS = {
    "x86_64-manylinux_2_28": "Linux x86-64",
    "aarch64-manylinux_2_28": "Linux aarch64",
    "aarch64-apple-darwin": "macOS arm64",
}
VERSIONS = ["3.11", "3.12", "3.13", "3.14"]
WITHOUT_WHEEL = {"langdetect"}  # published as source only, pure Python
MACOS = {"MACOSX_DEPLOYMENT_TARGET": "14.0"}
pytestmark = pytest.mark.proof


def pinned(lock: str) -> list[str]:
    text = (ROOT / f"requirements/{lock}.txt").read_text().replace("\\\n", "")
    lines = [re.sub(r"\s+--hash=\S+", "", line) for line in text.splitlines()]
    names = [line for line in lines if re.match(r"\w", line)]
    return [line for line in names if re.split(r"[=\[ ;]", line)[0] not in WITHOUT_WHEEL]


@pytest.mark.parametrize(("platform", "version"), product(PLATFORMS, VERSIONS))
def test_every_package_is_a_wheel(platform: str, version: str, tmp_path: Path) -> None:
    uv = shutil.which("uv") or shutil.which("uv", path=str(ROOT / ".venv-verifiers" / "bin"))
    if not uv:
        pytest.skip("no uv: run `make verifiers`")
    wanted = tmp_path / "wanted.in"
    wanted.write_text("\n".join([*pinned("flywheel"), *pinned("models"), *pinned("torch")]))
    options = ["--quiet", "--no-deps", "--only-binary", ":all:"]
    target = ["--python-platform", platform, "--python-version", version]
    done = subprocess.run(
        [uv, "pip", "compile", *options, *target, wanted],
        env=os.environ | MACOS,
        capture_output=True,
        text=True,
    )
    if "Failed to fetch" in done.stderr or "error sending request" in done.stderr:
        pytest.skip("the package registry cannot be reached")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("==") > 130


def test_the_documentation_names_these_machines() -> None:
    text = (ROOT / "docs/installing.md").read_text()
    assert all(name in text for name in (*PLATFORMS.values(), *VERSIONS))
