"""Heads of columns: what they sort by, what they lead to, what a screen reader is told."""

from __future__ import annotations

import pytest
from django.http import QueryDict

from apps.core.sorting import Sorting, header

COLUMNS = {"name": "name", "cost": "-cost_usd"}


@pytest.mark.parametrize(
    ("given", "chosen", "descending"),
    [
        ("", "", False),
        ("name", "name", False),
        ("-name", "name", True),
        ("x", "", False),
        ("--cost", "", True),
    ],
)
def test_only_known_columns_sort(given: str, chosen: str, descending: bool) -> None:
    found = Sorting.of({"sort": given}, COLUMNS)
    assert (found.chosen, found.descending) == (chosen, descending)


def test_a_head_leads_to_its_usual_direction_then_the_other_then_neither() -> None:
    def walk(name: str) -> list[str]:
        found, now = [], ""
        for _ in range(3):
            now = Sorting.of({"sort": now}, COLUMNS).following(name)
            found.append(now)
        return found

    assert walk("name") == ["name", "-name", ""]
    assert walk("cost") == ["-cost", "cost", ""]
    assert Sorting.of({"sort": "name"}, COLUMNS).following("cost") == "-cost"


def test_a_head_keeps_the_filters_and_begins_at_the_first_page() -> None:
    query = QueryDict("q=%22%3E%3Cscript%3E&page=3&cursor=after-1&sort=cost&sets=set")
    head = header(Sorting.of(query, COLUMNS), "cost", "Cost", query, "num")
    link = head.split('href="')[1].split('"')[0]
    assert link == "?q=%22%3E%3Cscript%3E&amp;sets=set" and 'aria-sort="ascending"' in head
    other = header(Sorting.of(query, COLUMNS), "name", "Name", query)
    assert "aria-sort" not in other and "sort=name" in other
    assert header(Sorting.of(query, COLUMNS), "digest", "<b>", query) == "<th>&lt;b&gt;</th>"
