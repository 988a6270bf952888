"""How numbers, ages and prompts are shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from apps.core.charts import time_unit
from apps.core.templatetags.flywheel import (
    ago,
    number,
    opening_of,
    points,
    seconds,
    sentence_case,
    share,
    text_of,
)

SYSTEM = {"role": "system", "content": "Be brief."}
EXAMPLE = {"role": "user", "name": "example_user", "content": "Tell Ana."}
USER = {"role": "user", "content": "Close ticket 4."}


@pytest.mark.parametrize(
    ("age", "shown"),
    [
        (2, "now"),
        (20, "20 s ago"),
        (600, "10 min ago"),
        (7200, "2 h ago"),
        (259200, "3 d ago"),
        (-600, "in 10 min"),
    ],
)
def test_ages_are_short(age: int, shown: str) -> None:
    assert ago(timezone.now() - timedelta(seconds=age)) == shown


def test_no_age_is_nothing() -> None:
    assert ago(None) == ""


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.25, "0.250"), (1134.2, "1,134"), (-0.5, "-0.500"), (-2000, "-2,000")],
)
def test_numbers_have_the_digits_that_say_something(value: float | None, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "–"), (0.4, "+0.4"), (-1.0, "-1"), (0, "0"), (0.13333, "+0.133")]
)
def test_components_are_signed(value: float | None, shown: str) -> None:
    assert points(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "–"), (42, "42 s"), (300, "5.0 min"), (7200, "2.0 h")]
)
def test_times_carry_units(value: float | None, shown: str) -> None:
    assert seconds(value) == shown


@pytest.mark.parametrize(
    ("turns", "blamed", "count"),
    [
        ([SYSTEM, EXAMPLE, USER], 3, 2),
        ([SYSTEM, EXAMPLE, USER], "", 2),
        ([SYSTEM, EXAMPLE, USER], 1, 0),  # what is blamed is never folded away
        ([SYSTEM, EXAMPLE], None, 0),  # nothing else to show
        ([USER], None, 0),
        ([], None, 0),
    ],
)
def test_the_prompt_is_what_stands_before_the_request(
    turns: list[dict], blamed: int | str | None, count: int
) -> None:
    assert opening_of(turns, blamed) == count


def test_content_may_come_in_parts() -> None:
    assert (
        text_of({"content": [{"type": "text", "text": "a"}, {"type": "image"}]})
        == 'a\n{"type": "image"}'
    )
    assert text_of({"content": None}) == ""


@pytest.mark.parametrize(("hours", "unit"), [(1, "minute"), (5, "hour"), (72, "day")])
def test_charts_count_by_a_unit_that_fits_the_span(hours: int, unit: str) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    assert time_unit(start, start + timedelta(hours=hours)) == unit
    assert time_unit(None, None) == "minute"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Change Password", "Change password"),
        ("Two-Factor Authentication", "Two-factor authentication"),
        ("IP Address", "IP address"),
        (" Sign Out Other Sessions\n", "Sign out other sessions"),
        ("Activate TOTP", "Activate TOTP"),
        ("", ""),
    ],
)
def test_a_librarys_title_case_reads_as_a_sentence(text: str, shown: str) -> None:
    assert sentence_case(text) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.05, "5%"), (0.07, "7%"), (0.005, "0.5%"), (0.305, "30.5%"), (1.0, "100%")],
)
def test_a_share_is_shown_as_it_was_chosen(value: float, shown: str) -> None:
    assert share(value) == shown
