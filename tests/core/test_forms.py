from __future__ import annotations

import pytest
from django.forms import BooleanField, SlugField

from apps.core.forms import PlainForm, whole


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("17", 17),
        ("007", 7),
        (str(2**63 - 1), 2**63 - 1),
        (None, None),
        ("", None),
        ("-1", None),
        ("1.0", None),
        (" 1", None),
        ("٣", None),
        ("²", None),
        (str(2**63), None),
        ("9" * 5000, None),
        ("0190a5c4-0000-7000-8000-000000000000", None),
    ],
)
def test_a_whole_number_of_a_query_is_one_or_nothing(text: str | None, value: int | None) -> None:
    assert whole(text) == value


def test_its_range_is_kept() -> None:
    assert [whole(text, 2, 4) for text in ("1", "2", "4", "5")] == [None, 2, 4, None]


class Asked(PlainForm):
    name = SlugField(help_text="Short")
    sure = BooleanField()


def test_what_is_wrong_with_a_field_is_said_below_it() -> None:
    form = Asked({"name": "a b"})
    form.add_error(None, "Not today.")
    page = form.as_p()
    said = [
        "Not today.",
        "Name</label>",
        'name="name"',
        "Short",
        "Use only the letters a to z, digits, - and _.",
        "This field is required.",
    ]
    places = [page.index(text) for text in said]
    assert places == sorted(places), page
    assert 'aria-describedby="id_name_helptext' in page and 'id="id_name_helptext"' in page
