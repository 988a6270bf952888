"""Tables that the database sorts: the column is in the URL, as `sort=name`, or `sort=-name` for
descending.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import F, QuerySet
from django.utils.html import format_html
from django.utils.safestring import SafeString


def choices(columns: Mapping[str, str]) -> list[str]:
    """What the parameter may be."""
    return [f"{sign}{name}" for name in columns for sign in ("", "-")]


@dataclass(frozen=True)
class Sorting:
    """`columns`: the expression of each column that can be sorted by; a “-” before it: descending
    first. `chosen` is a column, or “”; a URL has one for each table, by `parameter`."""

    columns: Mapping[str, str]
    chosen: str
    descending: bool
    parameter: str = "sort"

    @classmethod
    def of(
        cls, given: Mapping[str, str], columns: Mapping[str, str], parameter: str = "sort"
    ) -> Sorting:
        """An unknown column sorts nothing."""
        asked = given.get(parameter, "")
        name = asked.removeprefix("-")
        return cls(columns, name if name in columns else "", asked.startswith("-"), parameter)

    def apply(self, rows: QuerySet) -> QuerySet:
        """Rows without a value are last, either way; without a column the order stays."""
        if not self.chosen:
            return rows
        column = F(self.columns[self.chosen].removeprefix("-"))
        order = column.desc(nulls_last=True) if self.descending else column.asc(nulls_last=True)
        return rows.order_by(order, "-pk" if self.descending else "pk")

    def following(self, name: str) -> str:
        """What the head of a column leads to: the direction that is usual for it, then the other,
        then neither.
        """
        usual = self.columns[name].startswith("-")
        if name != self.chosen:
            return f"-{name}" if usual else name
        return "" if self.descending != usual else f"-{name}" if not usual else name

    def state(self, name: str) -> str:
        """The value of aria-sort; “” if it is not sorted by this column."""
        return "" if name != self.chosen else "descending" if self.descending else "ascending"


def header(sorting: Sorting, name: str, title: str, query: Any, css: str = "") -> SafeString:
    """The head of a column: a link that sorts by it, if possible. `query` is that of the page,
    which keeps everything except the page number."""
    if name not in sorting.columns:
        return (
            format_html('<th class="{}">{}</th>', css, title)
            if css
            else format_html("<th>{}</th>", title)
        )
    query = query.copy()
    for gone in ("page", "cursor", sorting.parameter):
        query.pop(gone, None)
    if following := sorting.following(name):
        query[sorting.parameter] = following
    state = sorting.state(name)
    arrow = {"descending": "↓", "ascending": "↑", "": ""}[state]
    return format_html(
        '<th class="{} sorts"{}><a href="?{}" title="Sort by {}">{}<span'
        ' aria-hidden="true">{}</span></a></th>',
        css,
        format_html(' aria-sort="{}"', state) if state else "",
        query.urlencode(),
        title.lower(),
        title,
        arrow,
    )
