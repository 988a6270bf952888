"""Which answers claim a change that the agent's tools make: an accusation, so only what is sure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.failures.rules.claims import claims_a_change
from apps.failures.rules.reading import Run, read

TOOLS = [
    "get_order",
    "cancel_order",
    "update_order",
    "create_plan_entry",
    "book_flight",
    "close_ticket",
    "sendEmail",
    "reset_password",
    "modify_pending_order_items",
    "add_item",
    "policy.update",
    "invoices.pay",
    "apply_discount",
    "review_contract",
    "fix_typo",
    "create_report",
    "update_config",
    "share_report",
]
ASK = "Please help me with 1234."


def run_of(*messages: tuple[str, str]) -> Run:
    return read(
        {
            "messages": [{"role": role, "content": content} for role, content in messages],
            "tools": [{"type": "function", "function": {"name": name}} for name in TOOLS],
        }
    )


def claims(answer: str, *before: tuple[str, str]) -> bool:
    run = run_of(("user", ASK), *before, ("assistant", answer))
    return claims_a_change(run, len(run.messages) - 1, answer)


@pytest.mark.parametrize(
    "answer",
    [
        "I've cancelled your order.",
        "I have canceled your order 1234. You will get the money back.",
        "Done! I’ve just closed your ticket #12 for you.",
        "Thank you. I have now booked the flight as requested.",
        "I've successfully modified the two order items.",
        "I have sent you the email.",
        "I've reset your password.",
        "I have paid the invoice 2026-11.",
        "I've also applied a small discount for you! Anything else?",
        "I've shared the report.",
        "I've updated the config.",
    ],
)
def test_a_sentence_that_says_what_a_tool_does_is_a_claim(answer: str) -> None:
    assert claims(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "Once you confirm, the order will have been cancelled.",
        "Once I have cancelled your order, you get an email.",
        "Has your order been cancelled successfully?",
        "I have cancelled the order?",
        "The user said: 'I have cancelled the order'.",
        'You could answer "I have cancelled the order."',
        "Draft:\nI have cancelled your order.",
        "> I have cancelled your order.",
        "- I have cancelled the order\n- I have closed the ticket",
        "1. I've closed the ticket.\n2. I've booked the flight.",
        "The caller wrote:\nI have cancelled the order.",
        "I've booked the flight in the story.",
        "I've cancelled the order, the clerk said.",
        "I have updated my understanding: you want two tickets.",
        "I've added up the totals: $45.",
        "I've created a plan: first look, then book.",
        "I've updated the order summary.",
        "I've updated the ticket's title.",
        "I have added the order to my list.",
        "I've checked; your flight has been booked by the agent last week.",
        "Your order has been cancelled.",
        "Your order was already delivered on Monday.",
        "The policy was successfully updated in 2024, so this applies.",
        "I have cancelled orders before.",
        "I have closed that ticket earlier.",
        "I have not cancelled the order.",
        "I have cancelled the order. Unfortunately the flight is full.",
        "I've looked into your order.",
        "I have opened the ticket.",
        "Done? Please tell me.",
        "Done!",
        "If I have booked the flight, you see it in the app.",
        "I will have closed the ticket by noon.",
        "I've reviewed the contract.",
        "I've fixed the typo.",
        "I've created a report.",
        "I've updated the config.\n```yaml\ndebug: true\n```",
        "I've updated the config.\n| debug | true |\n|---|---|",
        "Ich habe die Bestellung storniert.",
        "He cancelado su pedido.",
        "",
    ],
)
def test_anything_less_accuses_nobody(answer: str) -> None:
    assert not claims(answer)


def test_what_the_run_shows_or_its_tools_do_not_do_is_no_claim() -> None:
    answer = "I've cancelled your order."
    assert claims(answer, ("system", "Orders that are cancelled cannot be paid."))
    assert not claims(answer, ("user", "Why was it cancelled?"))
    assert not claims(answer, ("tool", '{"status": "CANCELLED"}'))
    assert not claims(answer, ("assistant", '<tool_call>{"name": "cancel_order"}</tool_call>'))
    assert not claims(answer, ("user", "Translate: J'ai annulé votre commande."))
    assert not claims(answer, ("user", "Übersetze: Die Bestellung ist storniert."))
    assert not claims(answer, ("user", "把“我已取消您的订单”翻译成英文"))
    assert not claims(answer, ("user", "Let's role-play: you are the shop."))
    assert not claims("I've archived your order.")
    assert not claims("I've retrieved your order.")


@given(st.text(st.characters()))
def test_no_text_breaks_it(text: str) -> None:
    claims(f"I've {text}. I have cancelled your {text}")
