from __future__ import annotations

import pytest

from workers.lib.storable import is_storable, storable, storable_json

WRONG = "a\0b\ud800c"


@pytest.mark.parametrize("text", ["", "plain", "größer 😀", "tab\tline\n"])
def test_what_can_be_stored_stays_as_it_is(text: str) -> None:
    assert is_storable(text) and storable(text) is text


def test_each_character_that_cannot_be_stored_is_replaced() -> None:
    assert not is_storable(WRONG)
    assert storable(WRONG) == "a\ufffdb\ufffdc" and storable(WRONG, "") == "abc"


def test_names_and_texts_of_json_are_mended_at_any_depth() -> None:
    given = {WRONG: [WRONG, 1, None, {"x": WRONG}]}
    assert storable_json(given) == {
        "a\ufffdb\ufffdc": ["a\ufffdb\ufffdc", 1, None, {"x": "a\ufffdb\ufffdc"}]
    }
