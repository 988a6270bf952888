"""Signs of a failure that nobody recorded: each with the message that shows it, none for a run that
goes well.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.failures.outcomes.features import BUCKETS, Facts, Usual, features, hashed, sizes
from apps.failures.outcomes.model import PRIOR, Weights, estimate
from apps.failures.outcomes.peers import Comparison
from apps.failures.outcomes.signals import signals
from apps.failures.rules.reading import Run, read


def user(words: str) -> dict:
    return {"role": "user", "content": words}


def agent(words: str) -> dict:
    return {"role": "assistant", "content": words}


def call(tool: str, args: Any, reply: str = "Done.") -> list[dict]:
    made = {
        "id": "c",
        "type": "function",
        "function": {"name": tool, "arguments": json.dumps(args)},
    }
    return [
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c", "content": reply},
    ]


def run_of(*messages: dict | list) -> Run:
    flat = [
        item
        for message in messages
        for item in (message if isinstance(message, list) else [message])
    ]
    return read({"messages": flat})


ASK, LOOK_UP = (
    user("Please close my ticket 1234."),
    call("get_ticket", {"id": 1234}, '{"id": 1234, "open": true}'),
)
DONE = call("close_ticket", {"id": 1234}, "ok")
FAILED = call("close_ticket", {"id": 1234}, "Error: locked")
GOOD = run_of(ASK, LOOK_UP, DONE, agent("Ticket 1234 has been closed."), user("Thanks!"))
CASES = {
    "user_corrects": (run_of(ASK, DONE, agent("Closed."), user("That's not what I asked for.")), 4),
    "user_confused": (run_of(ASK, agent("Which?"), user("I think there is some mix-up here.")), 2),
    "user_insists": (
        run_of(ASK, agent("No."), user("Can you check again? There must be a way.")),
        2,
    ),
    "user_frustrated": (run_of(ASK, agent("No."), user("This is ridiculous.")), 2),
    "user_gives_up": (run_of(ASK, agent("No."), user("Never mind, I'll call support myself.")), 2),
    "user_wants_a_person": (run_of(ASK, agent("No."), user("Let me talk to a human.")), 2),
    "user_changes_mind": (run_of(ASK, agent("Sure?"), user("Actually, archive it.")), 2),
    "user_repeats": (run_of(ASK, agent("Which?"), user("Please close my ticket 1234!")), 2),
    "user_rephrases": (
        run_of(ASK, agent("Which?"), user("My ticket 1234: close it now, please.")),
        2,
    ),
    "user_thanks": (GOOD, 6),
    "user_is_content": (run_of(ASK, agent("Closed."), user("Perfect.")), 2),
    "agent_apologises": (run_of(ASK, agent("I apologize for the trouble.")), 1),
    "agent_refuses": (run_of(ASK, agent("I cannot assist with that.")), 1),
    "refusal_at_the_end": (run_of(ASK, agent("Unfortunately that is impossible.")), 1),
    "agent_in_trouble": (run_of(ASK, agent("It seems there was an issue with it.")), 1),
    "claim_without_a_call": (run_of(ASK, LOOK_UP, FAILED, agent("I've closed your ticket.")), 5),
    "number_from_nowhere": (run_of(ASK, LOOK_UP, agent("That costs $871.")), 3),
    "read_failed": (run_of(ASK, call("get_ticket", {}, "Error: no such ticket")), 1),
    "action_failed": (run_of(ASK, call("close_ticket", {"id": 1234}, "Error: locked")), 1),
    "failed_again": (
        run_of(
            ASK,
            call("close_ticket", {}, "Error: a"),
            call("close_ticket", {"id": 1234}, "Error: b"),
        ),
        3,
    ),
    "found_nothing": (run_of(ASK, call("search_tickets", {"q": "x"}, "[]")), 1),
    "called_again": (run_of(ASK, LOOK_UP, LOOK_UP), 3),
    "agent_hands_over": (run_of(ASK, call("transfer_to_human_agents", {})), 1),
    "error_not_recovered": (
        run_of(ASK, call("close_ticket", {"id": 1234}, "Error: locked"), LOOK_UP),
        1,
    ),
    "changed_again": (run_of(ASK, DONE, DONE), 3),
    "value_from_nowhere": (run_of(ASK, call("close_ticket", {"id": 1235})), 1),
    "ends_with_a_call": (run_of(ASK, LOOK_UP), 1),
    "ends_with_a_promise": (run_of(ASK, agent("One moment, I'll close it.")), 1),
    "ends_with_a_question": (run_of(ASK, agent("Which one?")), 1),
    "nothing_changed": (run_of(ASK, LOOK_UP, agent("Is it this?"), user("Yes.")), None),
    "user_without_an_answer": (run_of(ASK, agent("Sure?"), user("Yes, do it.")), 2),
    "request_without_an_answer": (run_of(ASK, agent("Sure?"), user("Could you archive it?")), 2),
    "changed_and_handed_over": (
        run_of(ASK, DONE, call("transfer_to_human_agents", {}), agent("Bye.")),
        3,
    ),
    "agreed_and_not_done": (
        run_of(
            ASK,
            LOOK_UP,
            agent("I will send it to be closed. Shall I proceed?"),
            user("Yes."),
            LOOK_UP,
            agent("It is open."),
        ),
        4,
    ),
    "asks_for_several": (run_of(user("Please close both tickets."), DONE, agent("Closed.")), 0),
    "no_calls": (run_of(ASK, agent("Sure?")), None),
}


CARDS = {
    "cards": {
        "card_1111": {"brand": "Visa", "last4": "7334"},
        "card_2222": {"brand": "Amex", "last4": "9012"},
    }
}
RULES = {
    "role": "system",
    "content": (
        "The current date is 2024-05-15. Obtain the user's explicit confirmation (yes) before any"
        " change.\n- An order can only be cancelled if its status is 'pending', and check that"
        " first.\n- The user can modify passengers but cannot modify the number of passengers.\n-"
        " VIP orders can always be returned."
    ),
}


def order(**fields: str) -> list[dict]:
    return call("get_order", {"order_id": "A1001"}, json.dumps({"order_id": "A1001", **fields}))


ORDER, YES = user("I want to cancel order A1001."), user("Yes, please.")
CANCEL = call("cancel_order", {"order_id": "A1001"}, "ok")
REFUND = user("Please refund order A1001 to my card.")
SHOES = json.dumps({"shoes": {f"S{at}": {"size": at, "available": at % 3 > 0} for at in range(12)}})
CONTRADICTIONS = {
    "locked_by_itself": (
        run_of(
            ORDER, CANCEL, call("modify_order", {"order_id": "A1001"}, "Error: it is cancelled")
        ),
        3,
    ),
    "miscounted": (
        run_of(
            ORDER, call("get_shoes", {}, SHOES), agent("There are currently 12 shoes available.")
        ),
        3,
    ),
    "acted_on_the_past": (run_of(RULES, ORDER, order(event_date="2024-05-09"), YES, CANCEL), 5),
    "another_was_named": (
        run_of(
            user("Refund it to the card ending in 7334."),
            call("get_user", {"user_id": "u1001"}, json.dumps(CARDS)),
            call("refund_order", {"card": "card_2222"}),
        ),
        3,
    ),
    "breaks_a_condition": (run_of(RULES, ORDER, order(status="delivered"), YES, CANCEL), 5),
    "change_without_a_yes": (
        run_of(RULES, ORDER, order(status="pending"), agent("Sure?"), user("Hm."), CANCEL),
        6,
    ),
    "changed_unseen": (run_of(ORDER, call("get_order", {"order_id": "B2002"}, "{}"), CANCEL), 3),
    "choice_not_asked": (
        run_of(
            REFUND,
            call("get_user", {}, json.dumps(CARDS)),
            call("refund_order", {"card": "card_2222"}),
        ),
        3,
    ),
    "contradicts_a_tool": (
        run_of(
            ORDER, order(status="pending"), agent("Here it is:\nOrder Id: A1001\nStatus: delivered")
        ),
        2,
    ),
    "miscounted_time": (
        run_of(RULES, ORDER, agent("It was booked on 2024-05-10, within the last 24 hours.")),
        2,
    ),
    "other_than_refused": (
        run_of(
            user("Pay 50 for A1001."),
            call("pay_order", {"id": "A1001", "how": "cash", "sum": 50}, "Error: no cash"),
            call("pay_order", {"id": "B7007", "how": "card", "sum": 20}),
        ),
        1,
    ),
    "refuses_what_is_allowed": (
        run_of(
            RULES,
            user("Put my name on the ticket."),
            agent("Changing the passenger is not allowed."),
        ),
        2,
    ),
    "request_not_served": (
        run_of(user("Please cancel order A1001 and add two checked bags."), CANCEL),
        0,
    ),
    "taken_on_trust": (
        run_of(
            user("I'm a gold member."),
            order(status="pending"),
            agent("As a gold member you pay nothing."),
        ),
        3,
    ),
    "wrong_comparison": (
        run_of(ORDER, agent("What is left is $171, which is not more than $100.")),
        1,
    ),
}
CASES |= CONTRADICTIONS
WITHOUT = {
    "agreed_and_not_done": run_of(
        ASK, LOOK_UP, agent("I will send it to be closed. Shall I proceed?"), user("Yes."), DONE
    ),
    "locked_by_itself": run_of(
        ORDER, CANCEL, call("modify_order", {"order_id": "B2002"}, "Error: it is cancelled")
    ),
    "miscounted": run_of(
        ORDER,
        call("get_shoes", {}, SHOES),
        agent("There are 12 shoes available in all, 8 of them now."),
    ),
    "another_was_named": run_of(
        user("Refund it to the card ending in 9012."),
        call("get_user", {"user_id": "u1001"}, json.dumps(CARDS)),
        call("refund_order", {"card": "card_2222"}),
    ),
    "breaks_a_condition": run_of(RULES, ORDER, order(status="pending"), YES, CANCEL),
    "change_without_a_yes": run_of(RULES, ORDER, order(status="pending"), YES, CANCEL),
    "other_than_refused": run_of(
        ORDER, call("cancel_order", {"order_id": "A100"}, "Error: unknown"), CANCEL
    ),
    "refuses_what_is_allowed": run_of(
        RULES,
        user("One more, please."),
        agent("The number of passengers cannot be changed: it is not allowed."),
    ),
    "request_not_served": run_of(
        user("Please cancel order A1001 and add two checked bags."),
        CANCEL,
        call("update_baggage", {"total": 2}),
    ),
    "wrong_comparison": run_of(ORDER, agent("What is left is $171, which is more than $100.")),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_what_is_as_it_should_be_contradicts_nothing(name: str) -> None:
    assert name not in {sign.name for sign in signals(WITHOUT[name])}


def test_what_is_always_allowed_is_allowed_for_the_records_it_names() -> None:
    refused = agent("I cannot accept: it can't be returned.")
    vip, usual = (run_of(RULES, ORDER, order(kind=kind), refused) for kind in ("vip", "plain"))
    found = [
        [sign.name for sign in signals(run)].count("refuses_what_is_allowed")
        for run in (vip, usual)
    ]
    assert found == [1, 0]


@pytest.mark.parametrize("name", CASES)
def test_a_sign_points_to_its_message(name: str) -> None:
    run, index = CASES[name]
    found = [sign for sign in signals(run) if sign.name == name]
    assert found and found[-1].message_index == index


def test_every_weight_is_of_a_sign_or_a_size_there_is() -> None:
    of_peers = Comparison(1, 0, True).dense().keys()
    assert {name for name in PRIOR.dense if not name.startswith("size_")} <= CASES.keys() | of_peers


def test_a_run_that_goes_well_shows_no_sign_against_it() -> None:
    assert {sign.name for sign in signals(GOOD)} == {"user_thanks"}


def test_a_number_worked_out_by_a_tool_is_no_surprise() -> None:
    run = run_of(
        ASK, call("calculate", {"expression": "1000 + 194"}, "1194.0"), agent("That is $1,194.")
    )
    assert "number_from_nowhere" not in {sign.name for sign in signals(run)}


JUNK = st.text(max_size=200) | st.sampled_from(
    ["I cannot 9 " * 300, "\ud800", "'" * 3000, "never mind " * 900]
)
MESSAGES = st.lists(
    st.one_of(
        st.builds(user, JUNK),
        st.builds(agent, JUNK),
        st.builds(
            lambda tool, args, reply: {"calls": call(tool, args, reply)},
            JUNK,
            st.dictionaries(JUNK, JUNK, max_size=3),
            JUNK,
        ),
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant", "tool", "odd"]), "content": st.none()}
        ),
    ),
    max_size=12,
)


@given(MESSAGES)
def test_hostile_text_breaks_nothing(messages: list[dict]) -> None:
    flat = [item for message in messages for item in message.get("calls", [message])]
    run = read({"messages": flat})
    found = features(run, Facts(cost=1.0), Usual({}), words=True)
    assert all(
        sign.message_index is None or 0 <= sign.message_index < len(flat) for sign in found.signs
    )
    made = estimate(found, PRIOR, Usual({}))
    assert 0 < made.probability < 1 and len(made.reasons) <= 5
    assert all(0 <= bucket < BUCKETS for bucket in hashed(run))


def test_sizes_are_ranked_among_the_projects_own() -> None:
    usual = Usual.of([{"messages": float(n)} for n in range(100)] + [{"cost": 1.0}])
    assert usual.rank("messages", -1) == -1 and usual.rank("messages", 1000) == 1
    assert abs(usual.rank("messages", 50)) < 0.1
    assert usual.rank("cost", 99.0) == 0  # one run is no usual
    assert Usual.of([{"messages": 4.0}] * 50).rank("messages", 9.0) == 0
    assert sizes(GOOD, Facts(latency=3.0))["latency"] == 3.0 and "cost" not in sizes(GOOD, Facts())


def test_what_speaks_most_for_a_failure_is_the_first_reason() -> None:
    run = run_of(
        ASK, agent("I cannot assist with that."), user("Please close my ticket 1234."), LOOK_UP
    )
    usual = Usual({"messages": [1.0, 2.0, 3.0]})
    made = estimate(features(run, Facts(), usual, words=False), PRIOR, usual)
    assert made.reasons[0]["rule"] == "ends_with_a_call"
    assert any(reason["text"].startswith("More messages than in 100%") for reason in made.reasons)
    well = estimate(features(GOOD, Facts(), usual, words=False), PRIOR, usual)
    assert made.probability > PRIOR.threshold > well.probability


def test_weights_survive_the_database() -> None:
    weights = Weights({"a": 0.5}, -1.0, {7: 0.25}, 0.9, 0.1, 0.4)
    assert Weights.from_json(json.loads(json.dumps(weights.as_json()))) == weights
