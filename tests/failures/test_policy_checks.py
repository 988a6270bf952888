"""Statements of prompts in any language, and checks of rules: which calls break them, what they
refuse, how they read.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from apps.failures.classify import classify
from apps.failures.rules import policy
from apps.failures.rules.policy import CheckError, Rule, check_of, in_words, tools_of, violations
from apps.failures.rules.reading import read
from apps.failures.rules.statements import located, next_unread, parts_of
from tests.factories import tool_message

PENDING = {"properties": {"status": {"const": "pending"}}, "required": ["status"]}
LOOKUP = {"tools": ["get_order"], "same": {"id": "order"}}
CANCEL = {"tools": ["cancel_order"]}
TOOLS = tools_of(
    [
        [
            {"function": {"name": name, "parameters": {"properties": properties}}}
            for name, properties in (
                ("cancel_order", {"order": {}, "amount": {}}),
                ("get_order", {"id": {}}),
            )
        ]
    ],
    ["notify"],
)


def call(tool: str, args: Any, reply: str | None = "ok", ident: str = "") -> list[dict]:
    made = tool_message({"tool": tool, "args": args}, ident or f"c{tool}{json.dumps(args)}")
    given = made["tool_calls"][0]["id"]
    return [made] + (
        [{"role": "tool", "tool_call_id": given, "content": reply}] if reply is not None else []
    )


def said(role: str, words: str) -> list[dict]:
    return [{"role": role, "content": words}]


def order(status: str, ident: str = "W1") -> list[dict]:
    return call("get_order", {"id": ident}, json.dumps({"status": status}), f"g{status}{ident}")


def run(*turns: list[dict]) -> dict[str, Any]:
    return {"messages": [item for turn in turns for item in turn], "outcome_status": "unknown"}


ASK = said("user", "Storniere W1.")
CANCELLED = call("cancel_order", {"order": "W1", "amount": 900})
NEVER, AFTER, UNLESS, THEN, FIRST, ALONE = (
    {"when": CANCEL, "must": "never"},
    {"when": CANCEL, "must": "only_after", "other": LOOKUP | {"reply": PENDING}},
    {"when": CANCEL, "must": "never_after", "other": LOOKUP | {"reply": {"not": PENDING}}},
    {"when": CANCEL, "must": "be_followed_by", "other": {"tools": ["notify"]}},
    {"when": {"tools": ["*"]}, "must": "ask_first"},
    {"when": {"tools": ["*"]}, "must": "be_alone"},
)
LARGE = {"properties": {"amount": {"exclusiveMinimum": 500}}, "required": ["amount"]}
TOGETHER = tool_message({"tool": "cancel_order", "args": {}}, "x")
TOGETHER["tool_calls"] += tool_message({"tool": "notify", "args": {}}, "y")["tool_calls"]


@pytest.mark.parametrize(
    ("check", "turns", "index"),
    [
        (NEVER, [ASK, CANCELLED], 1),
        (NEVER, [ASK, call("cancel_order", {"order": "W1"}, "Error: not found")], None),
        (NEVER, [ASK, order("pending")], None),
        (NEVER | {"when": CANCEL | {"arguments": LARGE}}, [ASK, CANCELLED], 1),
        (
            NEVER | {"when": CANCEL | {"arguments": LARGE}},
            [ASK, call("cancel_order", {"amount": 5})],
            None,
        ),
        (AFTER, [ASK, CANCELLED], 1),
        (AFTER, [ASK, order("pending"), CANCELLED], None),
        (AFTER, [ASK, order("shipped"), CANCELLED], 3),
        (AFTER, [ASK, order("pending"), order("shipped"), CANCELLED], 5),  # the last reply counts
        (AFTER, [ASK, order("pending", "W2"), CANCELLED], 3),
        (AFTER, [ASK, call("get_order", {"id": "W1"}, "In Arbeit"), CANCELLED], None),  # no JSON
        (AFTER, [ASK, order("shipped"), call("cancel_order", {"amount": 1})], None),  # which order?
        (UNLESS, [ASK, CANCELLED], None),
        (UNLESS, [ASK, order("pending"), CANCELLED], None),
        (UNLESS, [ASK, order("shipped"), CANCELLED], 3),
        (
            {"when": CANCEL, "must": "never_after", "other": {"tools": ["notify"]}},
            [ASK, call("notify", {}), CANCELLED],
            3,
        ),
        (
            {"when": CANCEL, "must": "only_after", "other": {"tools": ["*"], "shows": ["order"]}},
            [ASK, call("list_orders", {}, "W2, W3"), CANCELLED],
            3,
        ),
        (
            {"when": CANCEL, "must": "only_after", "other": {"tools": ["*"], "shows": ["order"]}},
            [ASK, call("list_orders", {}, "W1, W3"), CANCELLED],
            None,
        ),
        (THEN, [ASK, CANCELLED], 1),
        (THEN, [ASK, CANCELLED, call("notify", {})], None),
        (FIRST, [ASK, CANCELLED], 1),
        (FIRST, [ASK, said("assistant", "Wirklich?"), said("user", "Ja."), CANCELLED], None),
        (FIRST, [CANCELLED], None),  # nobody there to ask
        (ALONE, [ASK, [TOGETHER]], 1),
        (ALONE, [ASK, [tool_message({"tool": "notify", "args": {}}) | {"content": "Moment."}]], 1),
        (ALONE, [ASK, CANCELLED, call("notify", {})], None),
    ],
)
def test_the_call_that_breaks_a_check_is_found_by_structure(
    check: dict, turns: list, index: int | None
) -> None:
    broken = violations(check, read(run(*turns)))
    assert [item.call.index for item in broken][:1] == ([] if index is None else [index])


def test_a_confirmed_rule_is_a_certain_finding_with_its_step() -> None:
    given = run(ASK, order("shipped"), CANCELLED)
    found = classify(given | {"rules": [Rule(7, "Nur offene Bestellungen stornieren.", AFTER)]})
    assert found and (found.mode, found.blamed_message) == ("policy_violation", 3)
    (first, *_) = found.evidence
    assert (first.rule, first.confidence) == ("confirmed_rule_broken", "certain")
    assert "shipped" in first.text and "Nur offene Bestellungen" in first.text
    assert '"W1"' in first.quote
    assert classify(given | {"rules": [Rule(7, "x", None)]}) is None
    done = given | {"rules": [Rule(7, "x", AFTER)], "outcome_status": "success"}
    assert classify(done) is None


def test_a_check_that_cannot_be_made_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "MOST_COMPARED", 1)
    given = run(ASK, order("shipped"), CANCELLED)
    with pytest.raises(CheckError, match="too many calls"):
        violations(AFTER, read(given))
    assert classify(given | {"rules": [Rule(7, "x", AFTER)]}) is None


@pytest.mark.parametrize(
    ("given", "where", "words"),
    [
        ([], "check", "object"),
        ({"when": CANCEL, "must": "maybe"}, "check.must", "one of"),
        ({"when": {"tools": []}, "must": "never"}, "check.when.tools", "empty"),
        ({"when": CANCEL | {"x": 1}, "must": "never"}, "check.when.x", "x"),
        ({"when": CANCEL, "must": "only_after"}, "check.other", "needs another call"),
        (NEVER | {"other": LOOKUP}, "check.other", "needs no other call"),
        ({"when": {"tools": ["drop"]}, "must": "never"}, "check.when.tools", "no recent run"),
        (
            NEVER | {"when": CANCEL | {"arguments": {"properties": {"price": {}}}}},
            "check.when.arguments",
            "no argument “price”",
        ),
        (AFTER | {"other": LOOKUP | {"same": {"no": "order"}}}, "check.other.same", "“no”"),
        (AFTER | {"other": LOOKUP | {"shows": ["no"]}}, "check.other.same", "“no”"),
        (NEVER | {"when": CANCEL | {"arguments": {"type": "x"}}}, "check.when.arguments", "Schema"),
        (
            NEVER | {"when": CANCEL | {"arguments": {"pattern": "(a+)+$"}}},
            "check.when.arguments",
            "not allowed",
        ),
        (
            NEVER | {"when": CANCEL | {"arguments": {"enum": ["x" * 3000]}}},
            "check.when.arguments",
            "characters",
        ),
    ],
)
def test_a_check_is_refused_with_what_is_wrong_and_where(
    given: Any, where: str, words: str
) -> None:
    with pytest.raises(CheckError) as refused:
        check_of(given, TOOLS)
    assert refused.value.field.startswith(where) and words.lower() in str(refused.value).lower()


@pytest.mark.parametrize("keyword", policy.ENDLESS)
def test_an_argument_may_be_called_like_a_keyword_that_may_never_end(keyword: str) -> None:
    text = {"type": "string"}
    named: dict[str, Any] = {"properties": {keyword: text}, "required": [keyword]}
    for schema in (named, {"allOf": [named]}, {"not": {"properties": {"a": named}}}):
        check = {"when": {"tools": ["grep"], "arguments": schema}, "must": "never"}
        assert check_of(check).when.arguments == schema
    for schema in (
        {keyword: "(a+)+$"},
        {"properties": {keyword: {keyword: "(a+)+$"}}},
        {"properties": {"properties": {keyword: "x"}}},
        {"anyOf": [{"items": {keyword: "x"}}]},
        {"$defs": {"a": {keyword: "x"}}},
    ):
        with pytest.raises(CheckError, match="not allowed"):
            check_of({"when": {"tools": ["grep"], "arguments": schema}, "must": "never"})


def test_a_check_reads_as_a_sentence() -> None:
    assert in_words(AFTER) == (
        "cancel_order may only be called after get_order of id the same as order, whose last reply"
        " has status “pending”."
    )
    assert in_words(NEVER | {"when": CANCEL | {"arguments": LARGE}}) == (
        "cancel_order with amount more than 500 must never be called."
    )
    assert '{"not":' in in_words(UNLESS)
    assert all(check_of(check, TOOLS) for check in (NEVER, AFTER, UNLESS, THEN, FIRST, ALONE))


DE = (
    "# Regeln\nHeute ist der 15.05.2024.\n"
    "- Bestellungen darfst du nur stornieren, wenn sie offen sind. Sei freundlich."
)
JA = "今日は2024年5月15日です。注文は未発送の場合のみキャンセルできます。丁寧に話してください。"


@pytest.mark.parametrize(
    ("system", "quote", "edited"),
    [
        (DE, "nur  stornieren,\nwenn sie offen", DE.replace("Sei freundlich", "Sei nett")),
        (JA, "「注文は未発送の場合のみキャンセルできます」", JA.replace("丁寧に", "短く")),
        (JA, "今日は2024年5月15日です。", JA.replace("5月15日", "6月1日")),
    ],
)
def test_a_statement_is_the_same_where_the_rest_of_the_prompt_changes(
    system: str, quote: str, edited: str
) -> None:
    parts = located(system, quote)
    assert parts and set(parts) <= set(parts_of(edited)) and edited != system
    assert located(system, "davon steht hier nichts") == () == located(system, "")


def test_a_statement_that_says_something_else_is_another() -> None:
    parts = located(DE, "wenn sie offen sind")
    assert not set(parts) <= set(parts_of(DE.replace("offen", "bezahlt")))
    within = [parts_of(f"Cancel within {hours} hours.") for hours in (24, 48)]
    assert within[0] != within[1]


def prompt(*lines: str) -> tuple[str, ...]:
    return parts_of("\n".join(lines))


BASE = ("Du bist ein Shop.", "Regel eins.", "Regel zwei.", "Regel drei.")


def test_of_a_template_only_what_stays_the_same_is_read() -> None:
    users = [prompt(*BASE, f"Kunde: {name}") for name in "ABCDEFGHIJ" * 4]
    assert next_unread(users, set()) == 0
    assert next_unread(users, set(users[0])) is None  # four runs of each customer, of forty
    assert next_unread(users[:2], set()) is None and next_unread(users[:2], set(), 1) == 0


def test_an_edit_is_read_once_several_runs_have_it() -> None:
    old, new = prompt(*BASE), prompt(*BASE, "Regel vier.")
    assert next_unread([new, new, *[old] * 50], set(old)) is None
    assert next_unread([new, new, new, *[old] * 50], set(old)) == 0
    assert next_unread([new, new, new, *[old] * 50], {*old, *new}) is None
