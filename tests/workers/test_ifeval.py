"""IFEval's instructions mean what they mean in its reference implementation. `python -m
bench.ifeval` compares thousands of generated cases with lm-eval; here are those that told the two
apart before."""

from __future__ import annotations

from typing import Any

import pytest

from bench.ifeval import KINDS, cases, ours
from workers.lib.verifiers import Rollout, build

TWO, ONE = {"relation": "at least"}, {"relation": "less than"}
EDGES: list[tuple[str, dict, str, bool]] = [
    ("number_words", {"num_words": 3} | TWO, "well-known fact", True),
    ("number_words", {"num_words": 3} | ONE, "it's it", False),
    ("number_words", {"num_words": 2} | ONE, "snake_case", True),
    (
        "number_sentences",
        {"num_sentences": 3} | TWO,
        "He left, e.g. by train, etc. and so on",
        True,
    ),
    (
        "number_sentences",
        {"num_sentences": 2} | TWO,
        "He lives in the U.S. with Dr. Who at St. Ives",
        False,
    ),
    (
        "number_sentences",
        {"num_sentences": 2} | TWO,
        "He works at Acme Inc. The company is old",
        True,
    ),
    ("number_sentences", {"num_sentences": 3} | ONE, "One\n\ntwo\n\nthree", True),
    ("number_paragraphs", {"num_paragraphs": 2}, "one\n\ntwo", False),
    ("number_paragraphs", {"num_paragraphs": 2}, "one *** two", True),
    ("number_paragraphs", {"num_paragraphs": 2}, "***\none\n***\ntwo\n***", True),
    ("number_paragraphs", {"num_paragraphs": 2}, "one\n***\n***\ntwo", False),
    (
        "nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "It"},
        "one\n\n'It's so",
        True,
    ),
    (
        "nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "two"},
        "one\n\n\n\ntwo",
        False,
    ),
    (
        "nth_paragraph_first_word",
        {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "well"},
        "well-known",
        False,
    ),
    ("existence", {"keywords": ["cat"]}, "concatenate", True),
    ("existence", {"keywords": ["a.b"]}, "axb", True),
    ("existence", {"keywords": ["(unclosed"]}, "an (unclosed bracket", True),
    ("frequency", {"keyword": "no", "frequency": 3} | TWO, "nonono", True),
    ("forbidden_words", {"forbidden_words": ["sword"]}, "swords", True),
    ("forbidden_words", {"forbidden_words": ["über"]}, "Über, sagt er", False),
    (
        "letter_frequency",
        {"letter": "A", "let_frequency": 3, "let_relation": "at least"},
        "Aba a",
        True,
    ),
    (
        "response_language",
        {"language": "de"},
        "Das ist ein ganz gewöhnlicher deutscher Satz.",
        True,
    ),
    (
        "response_language",
        {"language": "de"},
        "This is a perfectly ordinary English sentence.",
        False,
    ),
    ("response_language", {"language": "de"}, "123 456", True),
    ("english_capital", {}, "DIES IST EIN GANZ DEUTSCHER SATZ, NICHT WAHR?", False),
    ("english_lowercase", {}, "this is all in small letters, as it should be.", True),
    (
        "capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        "I'M here",
        True,
    ),
    (
        "capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "less than"},
        "well, A-OK",
        True,
    ),
    ("json_format", {}, '{"a": NaN}', True),
    ("json_format", {}, "```json{}", True),
    ("json_format", {}, "```python\n{}\n```", False),
    ("number_bullet_lists", {"num_bullets": 2}, "*no space\n-none here", True),
    ("number_bullet_lists", {"num_bullets": 1}, "* one\n• two", True),
    ("number_bullet_lists", {"num_bullets": 1}, "** bold **", False),
    ("number_highlighted_sections", {"num_highlights": 2}, "**bold**", False),
    ("number_highlighted_sections", {"num_highlights": 2}, "*a* **b**", True),
    ("number_highlighted_sections", {"num_highlights": 1}, "* * and ****", False),
    (
        "multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "see Section 1 and Section2",
        True,
    ),
    ("multiple_sections", {"section_spliter": "Section", "num_sections": 1}, "SECTION 1", False),
    ("title", {}, "<<a>b>>", True),
    ("title", {}, "<< >>", False),
    ("postscript", {"postscript_marker": "P.S."}, "so, p. s. bye", True),
    ("postscript", {"postscript_marker": "P.P.S"}, "p.p.s", True),
    ("number_placeholders", {"num_placeholders": 1}, "[]", True),
    ("number_placeholders", {"num_placeholders": 1}, "[two\nlines]", False),
    ("quotation", {}, '""', True),
    ("quotation", {}, "“so it is”", False),
    ("no_comma", {}, "one、two，three", True),
    ("end_checker", {"end_phrase": "Bye."}, 'so, "bye."', True),
    ("repeat_prompt", {"prompt_to_repeat": " Do it "}, "DO IT. Done", True),
    ("two_responses", {}, "******\none\n******\ntwo\n******", True),
    ("two_responses", {}, "one******two******", True),
    ("two_responses", {}, "one************two", False),
    ("constrained_response", {}, "my answer is yes.", False),
]


@pytest.mark.more(rows=18)
@pytest.mark.parametrize(("kind", "arguments", "text", "held"), EDGES)
def test_the_edges_are_where_the_reference_has_them(
    kind: str, arguments: dict, text: str, held: bool
) -> None:
    assert ours({"type": kind, "kwargs": arguments, "text": text}, loose=False) is held


def test_the_loose_reading_is_of_what_is_not_empty() -> None:
    case = {"type": "no_comma", "kwargs": {}, "text": "a, b\n"}
    assert ours(case, loose=False) is False
    assert ours(case, loose=True) is False
    assert ours(case | {"text": "Sure, here:\nno comma"}, loose=True) is True


def test_every_kind_is_generated_and_judged() -> None:
    made = list(cases(2, seed=5))
    assert len(made) == 2 * sum(map(len, KINDS.values())) == 50
    assert {type(ours(case, loose=True)) for case in made} == {bool}


@pytest.mark.parametrize("keyword", ["(a+)+$", "(a|a)*b", "a{1,500}{1,2}", "[", "C++"])
def test_a_keyword_that_is_a_costly_pattern_ends(keyword: str) -> None:
    constraint: dict[str, Any] = {"type": "existence", "keywords": [keyword]}
    score = build({"kind": "constraints", "constraints": [constraint]}).score(
        Rollout.of_text({}, "a" * 100_000 + "!")
    )
    assert score.reward is not None
