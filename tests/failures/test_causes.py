"""Where a failed run went wrong, without anybody saying what would have been right."""

from __future__ import annotations

import json
from typing import Any

import pytest

from apps.failures.actions.modes import BUILT_IN, DEFAULT_MODES, ensure_modes
from apps.failures.classify import classify
from apps.failures.models import FailureMode
from tests.factories import make_project, tool_message

POLICY = (
    "Today is 2024-05-15. Before you change anything you must obtain explicit user confirmation."
)
PLACES = {"name": "Ann", "cards": {"card_11": {"last": "4711"}, "card_22": {"last": "0815"}}}
OVER, AHEAD = {"id": "R77X", "date": "2024-05-09"}, {"id": "R77X", "date": "2024-05-20"}
GUIDE = {
    "format_error",
    "wrong_tool_choice",
    "bad_planning",
    "unsafe_action",
    "retrieval_failure",
    "hallucinated_api",
    "incomplete_execution",
}
# Modes beyond the guide's seven (wrong arguments are its “wrong tool choice”), and the one of the
# seven that each belongs to.
GUIDE_MODES = {
    "wrong_arguments": "wrong_tool_choice",
    "misread_tool_result": "retrieval_failure",
    "ambiguous_request": "bad_planning",
    "policy_violation": "unsafe_action",
}


def run(*turns: dict, first: str = "Move my visit R77X, please.", status: str = "failure") -> dict:
    messages = [{"role": "system", "content": POLICY}, {"role": "user", "content": first}, *turns]
    return {"messages": messages, "tools": [], "outcome_status": status}


def call(tool: str, **args: Any) -> dict:
    return tool_message({"tool": tool, "args": args})


def reply(value: Any) -> dict:
    text = value if isinstance(value, str) else json.dumps(value)
    return {"role": "tool", "tool_call_id": "call_1", "content": text}


def says(text: str) -> dict:
    return {"role": "assistant", "content": text}


def user(text: str) -> dict:
    return {"role": "user", "content": text}


LOOKED_UP = (call("get_visit", visit="R77X"), reply(AHEAD))
MOVE = call("move_visit", visit="R77X", to="monday")
PROFILE = (call("get_profile", user="ann_1"), reply(PLACES))
PAY = call("move_visit", visit="R77X", card="card_22")
PAY_IT = call("pay_visit", visit="R77X", card="card_22")
DONE, NO = reply("Moved."), reply("Error: that day is full")
BYE = says("Done, goodbye.")

CAUSES = [
    pytest.param(
        (*LOOKED_UP, *PROFILE, PAY, DONE, BYE), "choice_not_asked", 6, id="a card nobody chose"
    ),
    pytest.param(
        (*LOOKED_UP, *PROFILE, says("With the card ending in 0815?"), user("Yes."), PAY, DONE, BYE),
        None,
        None,
        id="a card that was described",
    ),
    pytest.param(
        (*LOOKED_UP, *PROFILE, call("get_card", id="card_22"), reply("ok"), PAY, DONE, BYE),
        None,
        None,
        id="a card that was looked up for itself",
    ),
    pytest.param(
        (call("get_visit", visit="R77X"), reply(OVER), MOVE, DONE, BYE),
        "acted_on_the_past",
        4,
        id="a visit that is over",
    ),
    pytest.param((*LOOKED_UP, MOVE, DONE, BYE), None, None, id="a visit to come"),
    pytest.param(
        (
            call("get_visit", visit="R77X"),
            reply({"id": "R77X", "created_date": "2024-01-01"}),
            MOVE,
            DONE,
            BYE,
        ),
        None,
        None,
        id="the day it was made says nothing",
    ),
    pytest.param(
        (
            *LOOKED_UP,
            says("It was booked on May 12, 2024, so it is within the 24-hour window."),
            user("Yes."),
            MOVE,
            DONE,
            BYE,
        ),
        "miscounted_time",
        4,
        id="three days are no 24 hours",
    ),
    pytest.param(
        (
            *LOOKED_UP,
            says("It was booked on May 14, 2024, so it is within the 24-hour window."),
            user("Yes."),
            MOVE,
            DONE,
            BYE,
        ),
        None,
        None,
        id="yesterday may be",
    ),
    pytest.param(
        (
            *LOOKED_UP,
            says("It was booked on May 12, 2024, which is not within the 24-hour window."),
            user("Move it."),
            MOVE,
            DONE,
            BYE,
        ),
        None,
        None,
        id="not within",
    ),
    pytest.param(
        (*LOOKED_UP, says("Here is R77X:\n- **Date:** 2024-06-20\n"), user("Fine."), BYE),
        "contradicts_a_tool",
        4,
        id="another day than the tool's",
    ),
    pytest.param(
        (*LOOKED_UP, says("Here is R77X:\n- **Date:** 2024-05-20\n"), user("Fine."), BYE),
        None,
        None,
        id="the tool's day",
    ),
    pytest.param(
        (
            *LOOKED_UP,
            says("Please confirm for R77X:\n- **Date:** 2024-06-20\n"),
            user("Fine."),
            BYE,
        ),
        None,
        None,
        id="a proposal contradicts nothing",
    ),
    pytest.param(
        (
            user("I am a gold member."),
            *LOOKED_UP,
            says("As a gold member you pay nothing."),
            user("Fine."),
        ),
        "taken_on_trust",
        5,
        id="a status only the user claims",
    ),
    pytest.param(
        (
            user("I am a gold member."),
            call("get_profile", user="a"),
            reply("gold"),
            says("As a gold member you pay nothing."),
            user("Fine."),
        ),
        None,
        None,
        id="a status the tool confirms",
    ),
    pytest.param(
        (*LOOKED_UP, says("I’ve moved your visit."), user("Thanks."), MOVE, DONE, BYE),
        "claimed_without_a_call",
        4,
        id="said and not done",
    ),
    pytest.param(
        (*LOOKED_UP, MOVE, DONE, says("Your visit has been updated."), user("Thanks.")),
        None,
        None,
        id="said and done",
    ),
    pytest.param(
        (*LOOKED_UP, MOVE, NO, call("move_visit", visit="R77X", to="friday", room="2"), DONE, BYE),
        "refused_change",
        4,
        id="something else was done",
    ),
    pytest.param(
        (*LOOKED_UP, MOVE, NO, call("move_visit", visit="R77X", to="monday 9:00"), DONE, BYE),
        None,
        None,
        id="mended in one value",
    ),
    pytest.param((*LOOKED_UP, MOVE, NO, MOVE, DONE, BYE), None, None, id="the same worked later"),
    pytest.param(
        (call("get_visit", visit="R11A"), reply("x"), MOVE, DONE, BYE),
        "changed_unseen",
        4,
        id="changed without a look",
    ),
    pytest.param(
        (*LOOKED_UP, call("move_visit", visit="R77X", seats=47), DONE, BYE),
        "value_from_nowhere",
        4,
        id="a number from nowhere",
    ),
    pytest.param(
        (
            user("Yes, we are 40 and 7."),
            *LOOKED_UP,
            call("move_visit", visit="R77X", seats=47),
            DONE,
            BYE,
        ),
        None,
        None,
        id="a sum of what was said",
    ),
    pytest.param(
        (user("Please also cancel R12Q."), *LOOKED_UP, MOVE, DONE, BYE),
        "never_done",
        7,
        id="asked for and never done",
    ),
    pytest.param(
        (says("I'm unable to do that."), user("Why?"), says("It is so.")),
        "turned_away",
        2,
        id="refused",
    ),
    pytest.param(
        (says("I'm unable to do that."), user("Please try."), *LOOKED_UP, MOVE, DONE, BYE),
        None,
        None,
        id="refused and done after all",
    ),
    pytest.param(
        (
            says("Which user?"),
            user("I don't remember my id."),
            says("Please provide your id."),
            user("Bye."),
        ),
        "turned_away",
        4,
        id="asked again for what the user lacks",
    ),
    pytest.param(
        (*LOOKED_UP, says("Anything else?"), user("Yes, please cancel the other one.")),
        "left_unanswered",
        4,
        id="the last request",
    ),
    pytest.param(
        (user("Yes, and please include two chairs."), *LOOKED_UP, MOVE, DONE, BYE),
        "request_not_served",
        5,
        id="one of two things was done",
    ),
    pytest.param(
        (
            *LOOKED_UP,
            says("Shall I book the other day?"),
            user("Hm."),
            says("Tell me."),
            user("Bye."),
        ),
        "offer_dropped",
        6,
        id="offered and dropped",
    ),
]


@pytest.mark.parametrize(("turns", "rule", "blamed"), CAUSES)
def test_the_cause_and_its_step(turns: tuple, rule: str | None, blamed: int | None) -> None:
    found = classify(run(*turns))
    assert found is not None
    decided = found.evidence[0]
    if rule is None:
        assert decided.rule == "failed_without_a_finish", decided
    else:
        assert (decided.rule, found.blamed_message) == (rule, blamed), found


def test_the_earliest_cause_decides_and_the_others_are_evidence() -> None:
    found = classify(
        run(
            *LOOKED_UP,
            MOVE,
            NO,
            call("move_visit", visit="R77X", to="x", room="2"),
            DONE,
            *PROFILE,
            PAY_IT,
            DONE,
        )
    )
    assert found is not None and found.blamed_message == 4
    assert [item.rule for item in found.evidence][:2] == ["refused_change", "choice_not_asked"]


def test_causes_are_not_looked_for_where_the_right_calls_are_known() -> None:
    known = run(*LOOKED_UP, *PROFILE, PAY, DONE, BYE) | {
        "metadata": {"expected": [{"tool": "send_mail", "args": {}}]}
    }
    found = classify(known)
    assert found is not None and {item.rule for item in found.evidence} == {"expected_calls"}


def test_without_a_cause_the_first_change_is_blamed() -> None:
    found = classify(run(*LOOKED_UP, MOVE, DONE, says("Moved."), user("Thanks."), says("Bye.")))
    assert found is not None and (found.evidence[0].rule, found.blamed_message) == (
        "failed_without_a_finish",
        4,
    )


@pytest.mark.parametrize("status", ["unknown", "success"])
@pytest.mark.parametrize("turns", [case.values[0] for case in CAUSES if case.values[1]])
def test_causes_are_only_looked_for_in_failures(turns: tuple, status: str) -> None:
    assert classify(run(*turns, status=status)) is None


def test_a_difference_is_certain_of_an_answer_or_edited_step_and_likely_in_several_steps() -> None:
    expected = {
        "metadata": {
            "expected": [{"tool": "move_visit", "args": {"visit": "R77X", "to": "friday"}}]
        }
    }
    edited = {
        "interventions": [
            {"kind": "edit", "message_index": 4, "after": expected["metadata"]["expected"]}
        ]
    }
    many = run(*LOOKED_UP, MOVE, DONE, BYE)
    found = [classify(one) for one in (run(MOVE) | expected, many | edited, many | expected)]
    assert [item.evidence[0].confidence for item in found if item] == [
        "certain",
        "certain",
        "likely",
    ]
    assert {item.mode for item in found if item} == {"wrong_arguments"}


def test_a_change_to_something_else_is_one_too_many_and_not_the_wrong_tool() -> None:
    expected = [{"tool": "cancel_visit", "args": {"visit": "Q11A"}}]
    found = classify(run(*LOOKED_UP, MOVE, DONE, BYE) | {"metadata": {"expected": expected}})
    assert found is not None and found.mode == "unsafe_action"


def test_a_no_is_certain_and_silence_is_likely() -> None:
    tools = [
        {
            "type": "function",
            "function": {
                "name": "wipe_disk",
                "x-dangerous": True,
                "parameters": {"type": "object"},
            },
        }
    ]
    asked = (says("Shall I wipe it?"), user("No."), call("wipe_disk"))
    texts = [
        classify(run(*turns) | {"tools": tools}).evidence[0]
        for turns in (asked, (call("wipe_disk"),))
    ]
    assert [item.confidence for item in texts] == ["certain", "likely"]
    assert "after the user had said no" in texts[0].text and "was found" in texts[1].text


@pytest.mark.django_db
def test_a_project_that_has_the_old_modes_gets_the_new_ones() -> None:
    project = make_project()
    FailureMode.objects.create(project=project, slug="policy_violation", name="Ours", position=3)
    modes = ensure_modes(project)
    assert set(modes) == BUILT_IN and modes["policy_violation"].name == "Ours"


def test_every_mode_is_one_of_the_guides_seven_or_maps_to_one() -> None:
    slugs = {slug for slug, *_ in DEFAULT_MODES}
    assert slugs - set(GUIDE_MODES) == GUIDE and set(GUIDE_MODES.values()) <= GUIDE
