"""Near-duplicates: spelling never hides one, a changed slot is another task, and what the index
promises it keeps.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.evals.holdout.splits import choose_holdout
from apps.evals.near_duplicates.calls import Document, document, words_of
from apps.evals.near_duplicates.compare import (
    THRESHOLD,
    components,
    pairs,
    similarity,
)
from apps.evals.near_duplicates.minhash import bands_of, minhashes
from apps.evals.near_duplicates.search import Held, HeldOut, Row
from apps.evals.near_duplicates.text import content, words
from apps.evals.near_duplicates.training import texts_of
from workers.lib.environments.requests import make_requests
from workers.lib.messages import to_text

ASKED = "Put a meeting with Maria in my calendar, Monday at 3 PM."
EXPECTED = {
    "tool": "calendar.create_event",
    "args": {"attendee": "Maria", "day": "Monday", "time": "15:00"},
}
VOCABULARY = ("book", "tom", "on", "monday", "at", "3", "pm", "file", "café", "会議", "42", "x")
texts = st.text(max_size=120) | st.lists(st.sampled_from(VOCABULARY)).map(" ".join)


def doc(text: str, expected: dict | None = None) -> Document:
    return document([{"role": "user", "content": text}], expected)


@pytest.mark.parametrize(
    "text",
    [
        "PUT A MEETING WITH MARIA IN MY CALENDAR MONDAY AT 3 PM",
        "Monday at 3pm, put a meeting with Maria in my calendar please",
        (
            "Hey, could you kindly put a meeting with Maria in my calendar for Monday at 15:00?"
            " Thanks a lot!"
        ),
        "In my calendar, Monday 3 p.m.: a meeting with Maria. Please.",
        "P\u200but a mee\u00adting with M\u0430ri\u0430 in my c\u0430lendar, Monday at 3 PM",
        "Put a ｍｅｅｔｉｎｇ with María in my calendar; Monday @ 3:00 PM…",
        (
            "I would like you to put one meeting with Maria into the calendar on Monday, at 3:00 PM"
            " - no rush"
        ),
    ],
)
def test_a_paraphrase_is_caught_with_and_without_calls(text: str) -> None:
    for expected in (EXPECTED, None):
        assert similarity(doc(ASKED, EXPECTED), doc(text, expected)) >= THRESHOLD
        assert pairs([("a", doc(text, expected))], [("b", doc(ASKED, EXPECTED))])


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("Put a meeting with Paul in my calendar, Monday at 3 PM.", {"attendee": "Paul"}),
        ("Put a meeting with Maria in my calendar, Tuesday at 3 PM.", {"day": "Tuesday"}),
        ("Put a meeting with Maria in my calendar, Monday at 4 PM.", {"time": "16:00"}),
    ],
)
def test_another_value_in_a_slot_is_another_task(text: str, change: dict) -> None:
    expected = {"tool": "calendar.create_event", "args": EXPECTED["args"] | change}
    assert similarity(doc(ASKED, EXPECTED), doc(text, expected)) < THRESHOLD
    long = (
        " Follow the house rules about rooms, travel, notes, guests, coffee, projectors and"
        " parking." * 3
    )
    assert similarity(doc(ASKED + long, EXPECTED), doc(text + long, expected)) < THRESHOLD


def test_the_same_request_is_caught_whatever_answer_stands_beside_it() -> None:
    other = {"tool": "email.send", "args": {"to": "Omar"}}
    assert similarity(doc(ASKED, EXPECTED), doc(ASKED.upper(), other)) == 1
    assert similarity(doc(ASKED, EXPECTED), doc(ASKED, {"answer": "no"})) == 1


def test_a_negation_and_other_answers_make_another_task() -> None:
    assert (
        similarity(doc("Delete the mailbox of Tom"), doc("Do not delete the mailbox of Tom")) < 0.8
    )
    assert similarity(
        doc("When was Ada born?", {"answer": "1815"}),
        doc("Where was Ada born?", {"answer": "London"}),
    ) in (0, 1)
    wordy = "Where was the mathematician Ada Lovelace born"
    assert (
        similarity(doc(wordy, {"answer": "London"}), doc(wordy + " and raised", {"answer": "Kent"}))
        < THRESHOLD
    )


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("seed", range(6))
def test_the_demo_splits_have_no_pair_with_other_calls(seed: int) -> None:
    requests = make_requests(seed, 200)
    held = choose_holdout([request["group"] for request in requests], 64, seed)
    sides = [
        [
            (at, doc(one["request"], one["expected"]))
            for at, one in enumerate(requests)
            if (one["group"] in held) is side
        ]
        for side in (False, True)
    ]
    found = pairs(*sides)
    assert all(requests[a]["expected"] == requests[b]["expected"] for a, b, _ in found)
    assert len(found) <= 8  # the same wish in nearly the same words, from two templates


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("due May 3rd, 2024", "due 2024-05-03"),
        ("due 3 May 2024", "due on May 3 2024"),
        ("pay 1,000.50", "pay 1000.5"),
        ("at 3 p.m.", "at 15:00"),
        ("#123E4567-E89B-12D3-A456-426614174000", "123e4567e89b12d3a456426614174000"),
        ("closing tickets", "closed ticket"),
        ("don’t", "do not"),
    ],
)
def test_spellings_of_one_value_are_one(one: str, other: str) -> None:
    assert content(one) == content(other)


@pytest.mark.proof
@settings(deadline=None)
@given(texts)
def test_what_is_normalised_equal_is_always_caught(text: str) -> None:
    loud = f"  {text.replace(' ', '  ')}!\u200b"
    a, b = doc(text), doc(loud)
    if words(text):
        assert similarity(a, b) == 1
        assert a.features.tolist() == b.features.tolist()
        assert pairs([(1, a)], [(2, b)]) == [(1, 2, 1.0)]


@given(texts, texts, st.none() | st.just(EXPECTED), st.none() | st.just({"calls": []}))
def test_similarity_is_symmetric_and_a_share(
    one: str, other: str, first: dict | None, second: dict | None
) -> None:
    a, b = doc(one, first), doc(other, second)
    assert similarity(a, b) == similarity(b, a)
    assert 0 <= similarity(a, b) <= 1


@pytest.mark.proof
@given(st.lists(texts, max_size=25), st.lists(texts, max_size=25))
@settings(max_examples=40, deadline=None)
def test_bulk_tells_what_one_by_one_comparison_tells(left: list[str], right: list[str]) -> None:
    a, b = (
        [(i, doc(text)) for i, text in enumerate(left)],
        [(i, doc(text)) for i, text in enumerate(right)],
    )
    told = pairs(a, b, threshold=0.8, most=None)  # at 0.8 the index misses one in twenty millions
    wanted = {(i, j) for i, x in a for j, y in b if len(x.features) and similarity(x, y) >= 0.8}
    assert {(i, j) for i, j, _ in told} == wanted
    assert len(told) == len(wanted)
    within = pairs(a, threshold=0.8, most=None)
    assert {frozenset(pair[:2]) for pair in within} == {
        frozenset((i, j))
        for i, x in a
        for j, y in a
        if i < j and len(x.features) and similarity(x, y) >= 0.8
    }


def _alike(count: int, size: int, shared: int) -> list[tuple[Document, Document]]:
    """Pairs of sets of `size` random features with `shared` in common."""
    rng = np.random.default_rng(7)
    made = []
    for _ in range(count):
        drawn = rng.integers(0, 2**63, 2 * size - shared, dtype=np.uint64)
        sides = np.sort(drawn[:size]), np.sort(drawn[size - shared :])
        made.append((Document(sides[0], frozenset()), Document(sides[1], frozenset())))
    return made


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(("size", "shared"), [(17, 14), (20, 17), (40, 33)])
def test_the_index_misses_no_more_than_stated(size: int, shared: int) -> None:
    """Expected misses of 3,000 pairs at 0.70: 0.45; seven or more come once in a million."""
    alike = _alike(3000, size, shared)
    assert shared / (2 * size - shared) >= 0.69
    left, right = (bands_of(minhashes([pair[side].features for pair in alike])) for side in (0, 1))
    assert (~(left == right).any(axis=1)).sum() < 7


def test_the_estimate_is_unbiased_and_as_exact_as_stated() -> None:
    alike = _alike(2000, 20, 16)
    left, right = (minhashes([pair[side].features for pair in alike]) for side in (0, 1))
    estimates = (left == right).mean(axis=1)
    truth = 16 / 24
    assert np.mean(estimates) == pytest.approx(truth, abs=0.004)
    assert np.std(estimates) == pytest.approx((truth * (1 - truth) / 128) ** 0.5, rel=0.1)


def test_what_has_no_words_is_like_nothing() -> None:
    assert similarity(doc(""), doc("")) == 0
    assert pairs([(1, doc("")), (2, doc(""))]) == []
    assert similarity(doc("🙂 👍"), doc("🙂  👍")) == 1


def test_the_system_message_is_left_out_and_calls_are_read() -> None:
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "close", "arguments": '{"id": 5, "why": "broken"}'},
    }
    turns = [
        {"role": "user", "content": "Close it"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    assert content(words_of(turns[1])) == ["clos", "5", "broken"]
    assert (
        similarity(document(turns), document([{"role": "system", "content": "Be kind"}, *turns]))
        == 1
    )


def test_equal_tasks_in_great_number_are_told_once_each_and_at_most_so_often() -> None:
    same = [(i, doc(ASKED)) for i in range(300)]
    told = pairs(same, same[:100], most=3)
    assert len(told) == 900
    assert len(pairs(same, most=None)) == 300 * 299 // 2


def test_components_join_what_hangs_together() -> None:
    assert components("abcde", [("a", "b", 1.0), ("c", "b", 0.8)]) == {
        "a": "a",
        "b": "a",
        "c": "a",
        "d": "d",
        "e": "e",
    }


HELD = doc("Close ticket 4711 of Maria", {"tool": "tickets.close", "args": {"id": 4711}})
USER = {"role": "user", "content": "Please close the ticket 4711 of Maria."}
SAID = {"role": "assistant", "content": '{"tool": "tickets.close", "args": {"id": 4711}}'}
BEFORE = [
    {"role": "user", "content": "What is new today in the office?"},
    {"role": "assistant", "content": "Nothing much."},
]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "system", "content": "Be brief."}, USER, SAID]},
        {"messages": [*BEFORE, USER, SAID]},
        {"messages": [USER, SAID, *BEFORE]},
        {"messages": [USER]},
        {"prompt": [USER], "chosen": [SAID], "rejected": [{"role": "assistant", "content": "No."}]},
        {
            "prompt": USER["content"],
            "chosen": SAID["content"],
            "rejected": '{"tool": "x", "args": {}}',
        },
        {"chosen": [USER, SAID], "rejected": [USER, {"role": "assistant", "content": "No."}]},
        {"input": {"messages": [USER]}, "preferred_output": [SAID], "non_preferred_output": [SAID]},
        {"prompt": USER["content"], "completion": SAID["content"]},
        {"input": USER["content"], "output": "done"},
        {"examples": [*BEFORE, USER, SAID]},
        {"text": USER["content"]},
        {
            "messages": [USER],
            "expected": {"tool": "tickets.close", "args": {"id": 4711}},
            "demonstration": "",
        },
        {"messages": [USER, SAID, BEFORE[0]], "expected": {"answer": "Nothing"}},
        {"question": USER["content"]},
    ],
)
def test_a_held_out_request_is_found_in_every_kind_of_training_row(row: dict) -> None:
    units = list(texts_of(row))
    found = [document(unit.messages, unit.expected, unit.demonstration) for unit in units]
    assert pairs(list(enumerate(found)), [("held", HELD)])
    assert any("4711" in unit.text for unit in units)


def test_a_row_of_the_same_template_is_no_leak_and_an_empty_row_is_refused() -> None:
    other = [
        {"role": "user", "content": "Close ticket 4712 of Maria"},
        {"role": "assistant", "content": SAID["content"].replace("1}", "2}")},
    ]
    found = [document(unit.messages, unit.expected) for unit in texts_of({"messages": other})]
    assert not pairs(list(enumerate(found)), [("held", HELD)])
    with pytest.raises(ValueError, match="without text"):
        list(texts_of({"messages": []}))


@given(
    st.dictionaries(
        st.sampled_from(
            ["messages", "prompt", "chosen", "rejected", "text", "input", "output", "examples"]
        ),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=9),
            lambda x: (
                st.lists(x, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["role", "content", "tool_calls", "messages", "function"]),
                    x,
                    max_size=3,
                )
            ),
            max_leaves=8,
        ),
    )
)
def test_no_row_makes_it_fail_otherwise(row: dict) -> None:
    try:
        for unit in texts_of(row):
            minhashes([document(unit.messages, unit.expected, unit.demonstration).features])
    except ValueError as error:
        assert "without text" in str(error)


@pytest.mark.parametrize("seed", [0, 7])
def test_rows_of_sft_are_refused_where_their_tasks_are(seed: int) -> None:
    """The rows show the answer as their completion: without it “Tell Ana” and “Tell Omar” would be
    nearly the same task.
    """
    tasks = [
        {
            "id": str(at),
            "messages": [{"role": "user", "content": made["request"]}],
            "expected": made["expected"],
        }
        for at, made in enumerate(make_requests(seed, 160))
    ]
    shown = [
        {"role": "user", "content": "Close ticket 7."},
        {"role": "assistant", "content": to_text("close", {"id": 7})},
    ]
    answers = [to_text(task["expected"]["tool"], task["expected"]["args"]) for task in tasks]
    held = HeldOut(
        [Held(*pair) for pair in [(task["messages"], task["expected"]) for task in tasks[:80]]]
    )
    rest = list(zip(tasks, answers, strict=True))[80:]
    as_tasks = held.search(
        (task["id"], Row.of(task | {"demonstration": answer})) for task, answer in rest
    )
    rows = (
        ({"messages": shown + task["messages"], "completion": answer}, task["id"])
        for task, answer in rest
    )
    as_rows = held.search((name, Row.of(row)) for row, name in rows)
    assert {match.key for match in as_rows} == {match.key for match in as_tasks}
