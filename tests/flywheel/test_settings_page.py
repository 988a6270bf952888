"""docs/settings.md names every environment variable that is read, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
READ = re.compile(
    r"""(?:environ(?:\.get)?[\[(]|getenv\(|env_\w+\(|os\.environ\.pop\()\s*"([A-Z][A-Z0-9_]+)"""
)
# read by name from a list of names
COMPUTED = {
    *(f"FLYWHEEL_OIDC_{name}" for name in ("ISSUER", "CLIENT_ID", "CLIENT_SECRET")),
    *(f"FLYWHEEL_{name}" for name in ("ADMIN_PASSWORD", "API_KEY")),
}
# those of other programs, and what a process says to its children
OTHERS = {
    "AWS_REGION",
    "ARROW_DEFAULT_MEMORY_POOL",
    "CUDA_VISIBLE_DEVICES",
    "LOCAL_RANK",
    "OMP_NUM_THREADS",
    "PATH",
    "RANK",
    "WORLD_SIZE",
    "FLYWHEEL_EVENTS_FD",
}
CARRIED = "apps/training/engines/"  # programs that run elsewhere, with variables of their own


def test_every_setting_is_documented_and_read() -> None:
    sources = [
        path
        for folder in ("flywheel", "apps", "workers")
        for path in (ROOT / folder).rglob("*.py")
        if not path.is_relative_to(ROOT / CARRIED)
    ]
    read = {name for path in sources for name in READ.findall(path.read_text())} - OTHERS
    rows = [
        line.split("|")[1]
        for line in (ROOT / "docs" / "settings.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    documented = {name for row in rows for name in re.findall(r"`([A-Z0-9_]+)`", row)}
    assert documented == read | COMPUTED
