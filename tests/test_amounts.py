from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import keep_some_rows


class Row:
    def __init__(self, number: int, test: str = "test_it", **mark: Any) -> None:
        self.path, self.parent, self.originalname, self.number = "file", "file", test, number
        self.name = f"{test}[{number}]"
        self.mark = SimpleNamespace(kwargs=mark)

    def get_closest_marker(self, name: str) -> Any:
        return self.mark if name == "more" else None


def kept(rows: list[Row]) -> list[tuple[str, int]]:
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    keep_some_rows(SimpleNamespace(hook=hook), rows)  # type: ignore[arg-type]
    return [(row.originalname, row.number) for row in rows]


@pytest.mark.parametrize("rows", range(1, 12))
def test_of_a_table_so_many_rows_from_all_over_it_are_kept(rows: int) -> None:
    numbers = [number for _, number in kept([Row(at, rows=rows) for at in range(10)])]
    assert len(numbers) == min(rows, 10) and numbers[0] == 0
    assert max((b - a for a, b in zip(numbers, [*numbers[1:], 10], strict=True))) <= -(-10 // rows)


def test_each_table_is_counted_by_itself_and_other_tests_stay() -> None:
    tables = [[Row(at, name, rows=1) for at in range(3)] for name in ("a", "b")]
    others = [Row(at, "c") for at in range(2)]
    chosen = Row(7, "d", rows=1)  # named by itself on the command line
    assert kept([*tables[0], *others, *tables[1], chosen]) == [
        ("a", 0),
        ("c", 0),
        ("c", 1),
        ("b", 0),
        ("d", 7),
    ]
