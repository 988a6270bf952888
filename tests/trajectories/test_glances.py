"""What is only looked at quickly is judged as by the slow look."""

from __future__ import annotations

import json
import random

import pytest

from apps.trajectories import decoding, values
from apps.trajectories.otlp import server_state
from apps.trajectories.otlp.conventions.raw import USAGE_OBJECTS
from workers.lib.token_usage import COUNTS, Usage

PIECES = (
    "[",
    "]",
    ",",
    ":",
    " ",
    "-",
    '"',
    "é",
    "word",
    "0",
    "1234567",
    "123456789012345678",
    "98765432109876543",
    "00ff17a4b2c3d4e5f60718293a4b5c6d",
    "\\u0000",
    "\\u00e9",
    "\\ud83d",
    "\x00",
    "a" * 50,
)


@pytest.mark.parametrize("seed", range(20))
def test_a_glance_finds_what_the_pattern_finds(seed: int) -> None:
    rng = random.Random(seed)
    found = set()
    for _ in range(500):
        body = "".join(rng.choices(PIECES, k=rng.randrange(1, 9))).encode()
        expected = decoding.SUSPICIOUS.search(body) is not None
        assert decoding.is_suspicious(body) == expected, body
        found.add(expected)
    assert found == {True, False}


@pytest.mark.parametrize("before", range(7))
@pytest.mark.parametrize("number", ["9" * 18, "-" + "1" * 19, "123456789012345678.5"])
def test_a_long_number_is_seen_wherever_it_stands(before: int, number: str) -> None:
    body = f'{{"{"a" * before}": {number}}}'.encode()
    assert decoding.is_suspicious(body)
    assert not decoding.is_suspicious(body.replace(number.encode(), b"1" * 17))


def test_a_value_that_no_row_can_keep_is_found_in_a_long_text() -> None:
    whole = json.dumps({"said": "word " * 2_000, "n": 1})
    assert isinstance(values.structured(whole), dict)
    assert values.structured(whole.replace(": 1}", ": 1" + "0" * 30 + "}")) != {}
    assert isinstance(values.structured(whole.replace(": 1}", ": 1" + "0" * 30 + "}")), str)


@pytest.mark.parametrize(
    ("value", "previous"),
    [
        (' {"previous_response_id": "resp_1"}', "resp_1"),
        ('[{"previous_response_id": "resp_1"}]', ""),
        ('the "previous_response_id" of {it}', ""),
    ],
)
def test_only_an_object_says_what_a_call_goes_on_with(value: str, previous: str) -> None:
    assert server_state.state_of({"request": value}, USAGE_OBJECTS).previous == previous


@pytest.mark.parametrize("name", COUNTS)
def test_a_usage_is_known_if_it_counts_anything(name: str) -> None:
    assert Usage(**{name: 0}).is_known
    assert not Usage(service_tier="batch", parts={"input_audio": 1}).is_known
