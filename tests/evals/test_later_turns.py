"""What a task's user says after it begins: what reveals the wish, in the user's own words, and
nothing that answers what the failed agent said.
"""

from __future__ import annotations

from typing import Any

import pytest

from apps.evals.later_turns import AGREES, Later, later_turns, sentences, turns_of, with_says
from apps.failures.rules.expected import ExpectedCall
from apps.failures.rules.reading import read
from tests.factories import tool_message

BOOK = ExpectedCall("seats_book", {"flight": "HAT136", "cabin": "economy", "pay": "gift_card_99"})
TOOLS = ("seats_book", "seats_find", "seats_cancel")
OPENING = {"role": "user", "content": "I want to fly to Oslo."}
OFFER = {"role": "assistant", "content": "HAT069 in economy leaves on June 3rd. Do you agree?"}


def later(*turns: str, changes: tuple[ExpectedCall, ...] = (BOOK,)) -> Later:
    """Of a run in which the agent offers something wrong (message 1), and then says “And?”."""
    messages: list[dict[str, Any]] = [OPENING, OFFER]
    for text in turns:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "And?"}]
    tools = [{"type": "function", "function": {"name": name}} for name in TOOLS]
    return later_turns(read({"messages": messages, "tools": tools}), 1, changes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Yes.", []),
        ("Yes, book HAT069 with my gift card.", []),  # a value that only the failed run offered
        ("Yes, let's go with economy then.", []),  # the offer has that word, too
        ("I would like to pay by gift card.", ["I would like to pay by gift card."]),
        ("Yes. Also, use my gift card.", ["Use my gift card."]),
        ("My number is AB-4711.", ["My number is AB-4711."]),  # nobody else has mentioned it
        ("Please cancel the other one.", []),  # another tool's verb
        ("June 3rd is fine for me.", []),
        ("Wait, I am called Ada Byron.", ["I am called Ada Byron."]),
        ("Sim, pode ser.", []),
        ("はい、お願いします。予約番号は AB-4711 です。", ["予約番号は AB-4711 です。"]),
    ],
)
def test_a_sentence_is_said_if_it_reveals_the_wish_and_answers_no_wrong_offer(
    text: str, says: list[str]
) -> None:
    found = later(text)
    assert (found.says, found.left_out) == (says, [] if says else [2])


def test_what_the_user_has_said_already_is_not_said_again() -> None:
    once = "I would like to pay by gift card."
    assert later(once, "As I said, by gift card!").says == [once]


def test_a_verb_of_the_expected_call_reveals_a_wish() -> None:
    cancel = ExpectedCall("seats_cancel", {})
    assert later("I am thinking of cancelling it.", changes=(cancel,)).says
    assert not later("I am thinking of cancelling it.").says


def test_what_is_only_said_in_answer_to_the_failed_run_is_named() -> None:
    [warning] = later("Yes, HAT069 in business.", "Take HAT069, by gift card.").warnings
    assert "“card”, “gift”" in warning and "#4" in warning and "#2" not in warning
    assert not later("Take HAT069, by gift card.", "I said by gift card.").warnings


def test_all_is_said_at_once_and_then_only_the_standing_answer() -> None:
    assert turns_of(["I have 3 bags."], most=3) == [f"I have 3 bags. {AGREES}", AGREES, AGREES]
    assert turns_of([], "Sim, se foi isso que pedi.") == ["Sim, se foi isso que pedi."] * 2
    assert len(turns_of([], most=1_000)) == 50


def test_a_person_may_have_the_user_say_something_else() -> None:
    metadata = {"cut": 1} | later("Yes.", "Yes.", "No.").as_metadata()
    changed = with_says(metadata, ["By card."], "Only what I asked for.")
    assert changed["user_says"] == ["By card."] and changed["cut"] == 1
    assert changed["user_turns"] == [
        "By card. Only what I asked for.",
        *["Only what I asked for."] * 2,
    ]


def test_calls_and_replies_of_the_failed_run_count_as_brought_up_by_it() -> None:
    call = {"tool": "seats_find", "args": {"seat": "22C"}}
    messages = [
        OPENING,
        tool_message(call, "c1"),
        {"role": "tool", "tool_call_id": "c1", "content": '{"free": "22C"}'},
        {"role": "assistant", "content": "There is one."},
        {"role": "user", "content": "Fine, 22C by gift card."},
    ]
    assert not later_turns(read({"messages": messages, "tools": []}), 1, [BOOK]).says


def test_a_text_is_split_where_sentences_end_in_any_script() -> None:
    assert [item.text for item in sentences("One. Two!\nThree。四。")] == [
        "One.",
        "Two!",
        "Three。",
        "四。",
    ]
