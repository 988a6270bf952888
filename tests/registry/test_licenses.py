from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apps.registry import licenses

CARD = "---\nlanguage: en\nlicense: {}\n---\n# A model\nlicense: not this\n"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, ""),
        ({"README.md": CARD.format("apache-2.0")}, "apache-2.0"),
        ({"README.md": CARD.format('"mit"')}, "mit"),
        ({"README.md": CARD.format("other\nlicense_name: qwen-research")}, "qwen-research"),
        (
            {"README.md": CARD.format("other"), "LICENSE": "\n  Llama License\nTerms"},
            "Llama License",
        ),
        ({"README.md": "license: mit"}, ""),
        ({"LICENSE.txt": "x" * 200}, "x" * 60),
    ],
)
def test_a_folder_says_its_license(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], found: str
) -> None:
    version: Any = object()
    monkeypatch.setattr(licenses, "find_base", lambda version: tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert licenses.license_of(version) == found


def test_of_a_base_that_this_machine_does_not_have_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version: Any = object()
    monkeypatch.setattr(licenses, "find_base", lambda version: None)
    assert licenses.license_of(version) is None
