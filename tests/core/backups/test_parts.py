"""A file of a backup or a data folder is complete or absent, whoever else writes it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.core.backups.parts import write_file
from apps.registry import bases


def test_two_may_write_the_same_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "folder" / ("n" * 255)

    def slow() -> Iterator[bytes]:
        yield b"first"
        write_file(path, [b"second"])
        assert path.read_bytes() == b"second"
        yield b" whole"

    write_file(path, slow())
    assert path.read_bytes() == b"first whole"
    assert list(path.parent.iterdir()) == [path]


def test_one_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        write_file(tmp_path / "file", broken())
    assert list(tmp_path.iterdir()) == []


def test_a_digest_that_cannot_be_remembered_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*given: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(bases, "write_file", full)
    monkeypatch.setattr(bases, "base_digest", lambda folder: "d1")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    with caplog.at_level(logging.WARNING):
        assert bases._digest(tmp_path, {}) == "d1"
    assert "will be hashed again" in caplog.text and "No space left" in caplog.text
