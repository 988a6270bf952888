from __future__ import annotations

from collections import Counter

from workers.lib.remembered import remembered


def test_a_result_is_kept_as_long_as_its_text_is_among_the_last() -> None:
    asked: Counter[str] = Counter()

    @remembered(characters=80)
    def shout(text: str) -> str:
        asked[text] += 1
        return text.upper()

    for text in ("one", "two", "one", "one"):
        assert shout(text) == text.upper()
    assert asked == {"one": 1, "two": 1}
    for number in range(100):
        shout(f"{number:08d}")
        shout("one")
    assert asked["one"] == 1 and asked["two"] == 1
    assert sum(map(len, shout.kept)) <= 80
    shout("two")
    assert asked["two"] == 2


def test_a_text_that_would_displace_all_others_is_not_kept() -> None:
    @remembered(characters=80)
    def shout(text: str) -> str:
        return text.upper()

    shout("one")
    assert shout("x" * 1000) == "X" * 1000
    assert list(shout.kept) == ["one"]
