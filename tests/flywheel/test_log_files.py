from __future__ import annotations

from pathlib import Path

from flywheel.log_files import LogFile, rotate


def test_a_log_is_rotated_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "web.log"
    log = LogFile(path, most_bytes=10, kept=2)
    for number in range(8):
        log.write(b"line %d\n" % number)
    names = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    assert names == {
        "web.log": b"",
        "web.log.1": b"line 6\nline 7\n",
        "web.log.2": b"line 4\nline 5\n",
    }


def test_a_log_that_is_not_large_stays(tmp_path: Path) -> None:
    path = tmp_path / "postgres.log"
    rotate(path)
    path.write_bytes(b"x")
    rotate(path)
    assert [one.name for one in tmp_path.iterdir()] == ["postgres.log"]
    rotate(path, most_bytes=1)
    assert [one.name for one in tmp_path.iterdir()] == ["postgres.log.1"]
