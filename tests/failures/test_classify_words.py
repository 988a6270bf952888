"""What replies, users and agents say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.failures.rules import words


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("Error: no such user", True), ("  Traceback (most recent call last):", True), ('{"error": "no"}', True),
        ('{"status": "error", "code": 4}', True), ('{"success": false}', True), ('{"data": 1, "isError": true}', True),
        ('{"error": null, "rows": [1]}', False), ('{"errors": [], "rows": [1]}', False), ('{"error": "", "a": 1}', False),
        ('{"status": "ok", "note": "error"}', False), ("The error log is empty.", False), ("", False), ("Done.", False),
        ('[{"status": "failed"}]', False),  # a list of things that failed is what was asked for
    ],
)  # fmt: skip
def test_errors(reply: str, error: bool) -> None:
    assert words.is_error(reply) is error


@pytest.mark.parametrize(
    ("reply", "empty"),
    [
        ("[]", True), (" {} ", True), ("No results found.", True), ('{"results": []}', True), ('{"items": null, "n": 0}', True),
        ('{"results": [1]}', False), ("0", False), ("The list of no results", False), ("[" + " " * 500 + "]", False),
    ],
)  # fmt: skip
def test_empty_replies(reply: str, empty: bool) -> None:
    assert words.is_empty(reply) is empty


@pytest.mark.parametrize(
    ("answer", "claims"),
    [
        ("Your flight has been cancelled.", True), ("I've updated the order.", True), ("Done!", True), ("It is now open.", True),
        ("You're all set.", True), ("The order has not been cancelled.", False), ("I was unable to cancel it.", False),
        ("Business flights can always be cancelled.", False), ("Would you like it cancelled?", False), ("", False),
    ],
)  # fmt: skip
def test_claims_of_success(answer: str, claims: bool) -> None:
    assert words.claims_success(answer) is claims


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max_turns", True), ("Maximum number of turns exceeded", True), ("length", True), ("exit_context", True), ("timed out", True),
        ("the limit of 30 steps was reached", True), ("recursion limit", True), ("context window exceeded", True),
        ("stop", False), ("tool_calls", False), ("The card's limit is too low.", False), ("wrong length of the name", False),
        ("maximum price of the order", False), ("", False),
    ],
)  # fmt: skip
def test_turn_limits(text: str, limit: bool) -> None:
    assert (words.search(words.TURN_LIMIT, text) is not None) is limit


@pytest.mark.parametrize(
    ("text", "corrects"),
    [
        ("No, I meant the other one.", True), ("That’s not what I asked for", True), ("You misunderstood me.", True),
        ("I already told you my id.", True), ("this is wrong", True), ("No, not that one!", True),
        ("No, that's all, thanks.", False), ("No, I don't need insurance.", False), ("That's right.", False), ("I mean it.", False),
    ],
)  # fmt: skip
def test_corrections(text: str, corrects: bool) -> None:
    assert (words.search(words.CORRECTION, text) is not None) is corrects


@given(st.text(), st.text())
def test_similarity_is_symmetric_and_one_for_the_same(one: str, other: str) -> None:
    first, second = words.content_words(one), words.content_words(other)
    assert words.similarity(first, second) == words.similarity(second, first) <= 1
    assert not first or words.similarity(first, first) == 1


@given(st.text(st.characters()))
def test_no_text_breaks_a_pattern(text: str) -> None:
    for pattern in (
        words.UNKNOWN_TOOL,
        words.CLAIM,
        words.DENIAL,
        words.REFUSAL,
        words.CORRECTION,
        words.TURN_LIMIT,
        words.YES,
    ):
        words.search(pattern, text)
    words.is_error(text), words.is_empty(text)


def test_half_a_character_pair_matches_nothing() -> None:
    assert words.search(words.CORRECTION, "that's wrong \ud800") is None
