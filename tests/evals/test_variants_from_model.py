"""What a model wrote becomes a variant, or says why not; whatever it wrote."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.evals.formats.rows import Bad
from apps.evals.variants import from_model
from apps.evals.variants.seeds import ARGUMENTS, EDGE, PARAPHRASE, Seed, faults

CALL = {"name": "book_room", "arguments": {"room": "B-14", "who": "Ann Smith", "seats": 12}}
SEED = Seed(
    "s",
    [
        {"role": "system", "content": "Rooms are like B-14."},
        {"role": "user", "content": "Is B-14 free?"},
        {"role": "assistant", "content": "B-14 is free."},
        {"role": "user", "content": "Book B-14 for Ann Smith, 12 seats."},
    ],
    {
        "tool": "book_room",
        "args": CALL["arguments"],
        "accept": {"who": ["Ann Smith", "A. Smith"], "seats": [12, 13]},
    },
    [],
    [{"tool": "find", "args": {"room": "B-14"}, "content": "B-14: Ann Smith"}],
)


def row(request: Any, calls: Any, kind: Any = PARAPHRASE) -> dict:
    return {
        "responses_create_params": {"input": [{"role": "user", "content": request}]},
        "ground_truth": calls,
        "verifier_metadata": {"key": "s", "kind": kind},
    }


def call(**changes: Any) -> list[dict]:
    return [{"name": "book_room", "arguments": CALL["arguments"] | changes}]


@pytest.mark.parametrize("kind", [PARAPHRASE, EDGE])
def test_other_words_keep_all_else(kind: str) -> None:
    made = from_model.variant(SEED, row("Please reserve B-14, 12 seats, Ann Smith.", [CALL], kind))
    assert made.messages[:-1] == SEED.messages[:-1] and made.messages[-1]["content"].startswith(
        "Please"
    )
    assert (made.expected, made.recorded, made.kind) == (SEED.expected, SEED.recorded, kind)
    assert not faults(SEED, made)


def test_other_arguments_go_everywhere_but_into_the_systems_words() -> None:
    made = from_model.variant(
        SEED, row("Book C-9 for Bo Lee, 12 seats.", call(room="C-9", who="Bo Lee"), ARGUMENTS)
    )
    assert [message["content"] for message in made.messages[:3]] == [
        "Rooms are like B-14.",
        "Is C-9 free?",
        "C-9 is free.",
    ]
    assert made.expected["args"] == {"room": "C-9", "who": "Bo Lee", "seats": 12}
    assert made.expected["accept"] == {
        "seats": [12, 13]
    }  # the other right values were those of the old one
    assert made.recorded == [{"tool": "find", "args": {"room": "C-9"}, "content": "C-9: Bo Lee"}]
    assert not faults(SEED, made)


@pytest.mark.parametrize(
    ("request_", "calls", "kind", "words"),
    [
        ("Book C-9.", call(room="C-9"), PARAPHRASE, "differs from the seed's calls"),
        ("Book it.", [CALL], ARGUMENTS, "changes no argument"),
        ("Book it.", call(seats="12"), ARGUMENTS, "another type"),
        ("Book it.", call(floor=1), ARGUMENTS, "other arguments"),
        (
            "Book it.",
            [{"name": "rob_bank", "arguments": CALL["arguments"]}],
            ARGUMENTS,
            "other tools",
        ),
        ("Book it.", [], ARGUMENTS, "other tools"),
        ("Book it.", [1], ARGUMENTS, "ground_truth"),
        ("Book it.", "x", ARGUMENTS, "ground_truth"),
        ("", [CALL], PARAPHRASE, "empty"),
        ("x" * 20_001, [CALL], PARAPHRASE, "longer"),
        ("Book B-14 for Ann Smith, 12 seats.", [CALL], PARAPHRASE, "is the seed's"),
        ("a\0b", [CALL], PARAPHRASE, "NUL"),
        ("a\ud800b", [CALL], PARAPHRASE, "cannot be stored"),
        ("Book it.", call(seats=float("nan")), ARGUMENTS, "cannot be stored"),
        ("Book it.", [CALL], "distractors", "none that was asked for"),
        ("Book it.", [CALL], None, "kind"),
        (None, [CALL], PARAPHRASE, "content"),
    ],
)
def test_what_is_no_variant_says_why(request_: Any, calls: Any, kind: Any, words: str) -> None:
    with pytest.raises(Bad, match=words):
        from_model.variant(SEED, row(request_, calls, kind))


def test_a_value_that_the_request_does_not_say_is_a_fault() -> None:
    made = from_model.variant(SEED, row("Book B-14 for Ann Smith.", call(seats=99), ARGUMENTS))
    assert any("99" in fault for fault in faults(SEED, made))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
VALUES = (
    st.text(max_size=6)
    | st.integers()
    | st.booleans()
    | st.sampled_from(["İ", "i", "B-14", "\\1", "("])
)


@given(
    old=VALUES,
    new=VALUES,
    request=st.text(max_size=30),
    kind=st.sampled_from([PARAPHRASE, ARGUMENTS, EDGE]),
    more=ANYTHING,
    number=st.integers(0, 2),
)
def test_no_answer_breaks_it(
    old: Any, new: Any, request: str, kind: str, more: Any, number: int
) -> None:
    seed = Seed(
        "s",
        [{"role": "user", "content": f"Do {old} İ i now"}, {"role": "user", "content": "And now?"}],
        {"tool": "t", "args": {"a": old}},
    )
    calls = [{"name": "t", "arguments": {"a": new}}]
    given_row = (row(request, calls, kind), row(more, calls, kind), row(request, more, kind))[
        number
    ]
    for one in (given_row, more):
        try:
            from_model.key_of(one)
            made = from_model.variant(seed, one)
        except Bad:
            continue
        faults(seed, made)
        assert made.expected["args"].keys() == {"a"} and made.messages != seed.messages
