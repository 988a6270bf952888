from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "templates"
LONGEST = 256  # a few attributes cannot be broken; 160 is the aim


@pytest.mark.parametrize(
    "path", sorted(ROOT.rglob("*.html")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_no_line_of_a_template_is_too_long_to_read(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > LONGEST] == []
