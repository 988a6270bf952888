"""Amounts and dates given as text: by their value, and nothing that can be read in two ways."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

from workers.lib.verifiers import Rollout, build
from workers.lib.verifiers.matching import Rules, same
from workers.lib.verifiers.quantities import amount_of, date_of, same_quantity


@pytest.mark.parametrize(
    ("text", "value", "currency"),
    [
        ("5", "5", ""),
        ("-5", "-5", ""),
        ("−5", "-5", ""),
        ("+5.50", "5.5", ""),
        ("$1,000.50", "1000.5", "USD"),
        ("1000.5", "1000.5", ""),
        ("-$5", "-5", "USD"),
        ("$-5", "-5", "USD"),
        ("($5.00)", "-5", "USD"),
        ("(1,000)", "-1000", ""),
        ("USD 5", "5", "USD"),
        ("5 usd", "5", "USD"),
        ("5 dollars", "5", "USD"),
        ("€5", "5", "EUR"),
        ("1.000,50 €", "1000.5", "EUR"),
        ("£3", "3", "GBP"),
        ("12 zł", "12", "PLN"),
        ("R$ 5", "5", "BRL"),
        ("Rs 500", "500", "INR"),
        ("5 Euro", "5", "EUR"),
        ("500 円", "500", "JPY"),
        ("₺5", "5", "TRY"),
        ("CHF 1'000.50", "1000.5", "CHF"),
        ("1 000 000", "1000000", ""),
        ("12 %", "0.12", ""),
        ("12.5 percent", "0.125", ""),
        (".5", "0.5", ""),
        ("1.000", "1", ""),
    ],
)
def test_an_amount(text: str, value: str, currency: str) -> None:
    found = amount_of(text)
    assert found is not None and (found.value, found.currency) == (Decimal(value), currency)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "five",
        "12,34",
        "1,5",
        "1,00",
        "--5",
        "-$-5",
        "(-5)",
        "(5)",
        "($5",
        "$5 €",
        "5 km",
        "5 ft",
        "try 5",
        "5-",
        "1.2.3",
        "555-1234",
        "$",
        "5 or 6",
        "9" * 61,
        "1/2",
    ],
)
def test_no_amount_or_an_unclear_one(text: str) -> None:
    assert amount_of(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "2024-01-12",
        "2024-1-12",
        "2024/1/12",
        "20240112",
        "January 12, 2024",
        "Jan. 12th, 2024",
        "12 Jan 2024",
        "12th of January 2024",
        "Friday, 12 January 2024",
        "12-Jan-2024",
        "JAN 12 2024",
        "Fri, Jan 12, 2024",
    ],
)
def test_a_date(text: str) -> None:
    assert date_of(text) == date(2024, 1, 12)


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("13/1/2024", date(2024, 1, 13)),
        ("1/13/2024", date(2024, 1, 13)),
        ("5.5.2024", date(2024, 5, 5)),
    ],
)
def test_a_date_in_numbers_that_can_be_read_in_one_way(text: str, day: date) -> None:
    assert date_of(text) == day


@pytest.mark.parametrize(
    "text",
    [
        "1/2/2024",
        "01.02.2024",
        "12/1/24",
        "13/13/2024",
        "31/2/2024",
        "2024-13-01",
        "2024",
        "May",
        "tomorrow",
        "2024-02-30",
    ],
)
def test_no_date_or_an_ambiguous_one(text: str) -> None:
    assert date_of(text) is None


LOOSELY = [
    ("-5", "5", False),
    ("5", "-5", False),
    ("3.5", "35", False),
    ("2024-1-12", "2024-11-2", False),
    ("2024-01-12", "2024/1/12", None),
    ("1/2/2024", "12/2024", None),
    ("2024-01-12", "2024/01/12", True),
    ("01/02/2024", "01-02-2024", True),
    ("1,000", "1000", True),
    ("$1,000.50", "$1000.50", True),
    ("10.0%", "100%", False),
    ("1e-5", "1e5", False),
    ("1E5", "1e-5", False),
    ("1/2", "12", False),
    ("1 1/2 cups", "11/2 cups", False),
    ("3/4 cup", "34 cup", False),
    ("10^-3", "103", False),
    ("2024-1-12 10:00", "2024-11-2 10:00", False),
    ("2024-01-12 10:00", "2024/01/12 10:00", True),
    ("at 2024-1-12T10:00Z", "at 2024-11-2T10:00Z", False),
    ("-5 kg", "5 kg", False),
    ("3.5 km", "35 km", False),
    ("35km", "3.5 km", False),
    ("walk 3.5 km, then 2 m", "walk 35 km then 2 m", False),
    ("it is -5 outside", "it is 5 outside", False),
    ("1,000 kg", "1000 kg", True),
    ("5-inch", "5 inch", True),
    ("Room-5", "room 5", True),
    ("v1.2 final", "v12 final", True),
    ("221-B Baker St.", "221b Baker St", True),
    ("49 30 1234", "49-30-1234", True),
    ("A-1", "a1", True),
    ("3.0 kg", "3.0kg", True),
    ("9" * 5000 + "/1", "9" * 5000 + "1", True),
    ("New York", "new-york", True),
    ("555-1234", "5551234", True),
    ("-", "--", True),
    ("v1.2", "v12", True),
    ("1/2/2024", "12/02/024", None),
    ("1/12/2024", "11/2/2024", False),
]


@pytest.mark.parametrize(("given", "wanted", "right"), LOOSELY)
def test_loose_matching_forgives_no_sign_point_or_other_day(
    given: str, wanted: str, right: bool | None
) -> None:
    if right is not None:
        assert same(given, wanted, {"type": "string"}, Rules()) is right
        task = {"expected": {"answer": wanted}}
        assert (
            build({"kind": "exact", "text": "loose"}).score(Rollout.of_text(task, given)).success
            is right
        )


@pytest.mark.parametrize(
    ("given", "wanted", "right"),
    [
        ("$1,000.50", "1000.5", True),
        ("1000.5", "$1,000.50", True),
        ("€1000.50", "$1,000.50", False),
        ("(1,000.50)", "-1000.5", True),
        ("50%", "0.5", True),
        ("50%", "50", False),
        ("-5", "5", False),
        ("USD 5", "$5", True),
        ("12,34", "1234", False),
        ("5 km", "5", False),
        ("1.000,50 €", "1000.5", True),
    ],
)
def test_amounts_as_answers(given: str, wanted: str, right: bool) -> None:
    for spec in ({"kind": "number"}, {"kind": "exact", "by_value": True}):
        assert (
            build(spec).score(Rollout.of_text({"expected": {"answer": wanted}}, given)).success
            is right
        )


@pytest.mark.parametrize(
    ("given", "wanted", "right"),
    [
        ("January 12, 2024", "2024-01-12", True),
        ("2024-1-12", "2024-01-12", True),
        ("1/12/2024", "2024-01-12", False),
        ("2024-11-2", "2024-1-12", False),
        ("2 May 2024", "2024-05-02", True),
        ("1/2/2024", "1/2/2024", True),
        ("1/2/2024", "2/1/2024", False),
    ],
)
def test_dates_as_answers(given: str, wanted: str, right: bool) -> None:
    assert same_quantity(given, wanted) is right
    spec = {"kind": "exact", "by_value": True}
    assert (
        build(spec).score(Rollout.of_text({"expected": {"answer": wanted}}, given)).success is right
    )
