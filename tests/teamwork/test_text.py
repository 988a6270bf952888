"""What a comment's text is taken apart into: nothing is lost, and a link or a mention is only what
it looks like.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.teamwork.text import mentioned, pieces

NAMES = ["ada", "bob.smith", "Zoë", "a"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("@ada look", ["ada"]),
        ("Is it right, @ADA?", ["ada"]),
        ("ask @bob.smith.", ["bob.smith"]),
        ("ask @ada.", ["ada"]),
        ("@ada @ada and @zoë", ["ada", "Zoë"]),
        ("mail ada@example.org", []),
        ("https://example.org/@ada", []),
        ("https://example.org/?who=@ada", []),
        ("@adam", []),
        ("@nobody", []),
        ("(@a)", ["a"]),
        ("@", []),
    ],
)
def test_who_is_mentioned(text: str, found: list[str]) -> None:
    assert mentioned(text, NAMES) == found


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("see https://example.org/a.", ["https://example.org/a"]),
        ("(https://example.org/a_(b))", ["https://example.org/a_(b)"]),
        ("javascript:alert(1) data:text/html,x", []),
        ("https://", []),
        ('HTTPS://EXAMPLE.org"onclick', ["HTTPS://EXAMPLE.org"]),
        ("https://a.example<script>", ["https://a.example"]),
    ],
)
def test_what_is_a_link(text: str, links: list[str]) -> None:
    assert [piece.text for piece in pieces(text, NAMES) if piece.kind == "link"] == links


@given(st.text(alphabet=st.sampled_from("@ab. <>\"'ada:/htps\n()é")) | st.text())
def test_all_pieces_together_are_the_text(text: str) -> None:
    found = list(pieces(text, NAMES))
    assert "".join(piece.text for piece in found) == text
    for piece in found:
        assert piece.text
        if piece.kind == "link":
            assert piece.text.lower().startswith(("http://", "https://")) and not set(
                piece.text
            ) & set("<>\"' ")
        if piece.kind == "mention":
            assert piece.text[1:].casefold() in {name.casefold() for name in NAMES}
