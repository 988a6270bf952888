from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.failures.clusters.cases import (
    Case,
    arguments_of,
    error_of,
    normalised,
    text_of_error,
)
from apps.failures.clusters.features import Space
from apps.failures.clusters.records import case_of
from apps.failures.models import Failure

SAME = [
    pytest.param("Error: order 4711 not found", "error: order 98 not found", id="numbers"),
    pytest.param("paid $1,250.00 of 3", "paid $7 of 44", id="amounts"),
    pytest.param("mail ann.b@example.com", "Mail x+1@mail.example.org", id="e-mail"),
    pytest.param("on 2026-11-21T10:00:00Z", "on 2025-01-02", id="dates"),
    pytest.param("trace deadbeef01234567", "trace 0x00ff12ab99", id="hex"),
    pytest.param(
        "job 123e4567-e89b-12d3-a456-426614174000",
        "job 00000000-0000-0000-0000-000000000001",
        id="uuid",
    ),
    pytest.param("flight HAT136 is full", "flight ZX9 is full", id="codes"),
    pytest.param(
        "credit_card_4421486 refused", "credit_card_77 refused", id="an id keeps its kind"
    ),
    pytest.param("see https://a.example/x?y=1", "see http://b.example", id="addresses"),
    pytest.param("ids 1, 2, 3", "ids 4", id="a list of values is one"),
]
DIFFERENT = [
    ("payment_id is missing", "user_id is missing"),
    ("credit_card_1 refused", "gift_card_1 refused"),
    ("facade added", "decade bed"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_differs_by_chance_is_the_same(one: str, other: str) -> None:
    assert normalised(one) == normalised(other) != ""


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_tells_failures_apart_stays(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


@given(st.text(max_size=300))
def test_normalising_never_raises_and_leaves_single_spaces(text: str) -> None:
    assert normalised(text) == " ".join(normalised(text).split())


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ('{"error": "no seats"}', "no seats"),
        (
            '{"error": "Für diesen Tag ist nichts frei", "id": "A7", "name": "Mia", "von": "B",'
            ' "bis": "C"}',
            "Für diesen Tag ist nichts frei",
        ),
        ('{"a": "x", "b": "y", "c": "z", "d": "w", "fehler": "予約できません"}', "予約できません"),
        ("Error: no seats", "Error: no seats"),
        ("[" * 2000, "[" * 600),
    ],
)
def test_an_errors_text_is_kept_and_the_values_of_its_call_are_not(reply: str, text: str) -> None:
    assert text_of_error(reply) == text


def test_an_error_has_its_class_in_any_language() -> None:
    one = Case("1", "m", error="HTTP 404: nicht gefunden")
    other = Case("2", "m", error="ValueError 404: 見つかりません")
    assert set(error_of(one).splitlines()) & set(error_of(other).splitlines()) == {"<404>"}


def test_arguments_are_names_and_words_whatever_the_order_or_the_length_of_lists() -> None:
    one = Case("1", "m", arguments={"cabin": "Basic_Economy", "bags": [{"id": "B1"}], "n": 3})
    other = Case(
        "2", "m", arguments={"n": 4, "bags": [{"id": "B2"}, {"id": "B3"}], "cabin": "basic_economy"}
    )
    assert (
        arguments_of(one) == arguments_of(other) == "bags\nbags.id\ncabin\ncabin=basic_economy\nn"
    )


json_like = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.proof
@given(
    st.lists(
        st.tuples(st.text(), st.text(), st.dictionaries(st.text(), json_like, max_size=3)),
        min_size=1,
        max_size=5,
    )
)
def test_vectors_have_length_one_and_weights_survive_json(
    texts: list[tuple[str, str, dict]],
) -> None:
    cases = [
        Case(str(n), "mode", cause=cause, error=error, arguments=args)
        for n, (cause, error, args) in enumerate(texts)
    ]
    space = Space.fit(cases)
    vectors = space.vectors(cases)
    assert vectors.multiply(vectors).sum(axis=1) == pytest.approx([1] * len(cases), abs=1e-4)
    assert (Space.from_json(space.as_json()).idf == space.idf).all()


@pytest.mark.parametrize("text", ["", "no base64!", "eJwDAAAAAAE="])
def test_it_rejects_weights_that_are_not_its_own(text: str) -> None:
    with pytest.raises(ValueError, match="term weights"):
        Space.from_json(text)


def call(tool: str, number: int, arguments: str = "{}") -> dict:
    function = {"name": tool, "arguments": arguments}
    return {
        "role": "assistant",
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }


def reply(text: str, number: int) -> dict:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": text}


MESSAGES = [
    {"role": "user", "content": "Please cancel my order."},
    call("cancel_order", 1, '{"order_id": "A1"}'),
    reply("Error: order is unknown", 1),
    call("get_order", 2),
    reply("fine", 2),
    {"role": "assistant", "content": "It is done."},
    {"role": "user", "content": "It is not done at all!"},
]


TOOL = {
    "type": "function",
    "function": {
        "name": "cancel_order",
        "parameters": {"type": "object", "properties": {"reason": {"type": "string"}}},
    },
}
GIVEN = {"messages": MESSAGES, "tools": [TOOL]}


def record(evidence: list[dict], blamed: int | None = 1, **given: Any) -> Case:
    return case_of(GIVEN | given, id="7", mode="m", blamed_message=blamed, evidence=evidence)


@pytest.mark.parametrize(
    ("blamed", "tool", "error"),
    [
        pytest.param(1, "cancel_order", "Error: order is unknown", id="the blamed step's call"),
        pytest.param(3, "get_order", "", id="one that worked has no error"),
        pytest.param(2, "cancel_order", "Error: order is unknown", id="its reply"),
        pytest.param(5, "", "", id="words"),
        pytest.param(None, "", "", id="no step is blamed"),
    ],
)
def test_the_record_has_the_call_that_is_to_blame(
    blamed: int | None, tool: str, error: str
) -> None:
    case = record([{"rule": "judge", "text": "It lied."}], blamed)
    assert (case.tool, case.error, case.cause) == (tool, error, "It lied.")


def test_of_a_rules_sentence_only_what_it_names_of_the_run_counts() -> None:
    text = "The arguments break the schema: 'reason' is a required property."
    case = record([{"rule": "arguments_break_the_schema", "text": text}])
    assert (case.fact, case.named, case.tool) == (
        "arguments_break_the_schema",
        ("reason",),
        "cancel_order",
    )
    assert not case.cause and case.has_cause


def test_a_fact_about_the_run_has_nothing_to_do_with_its_last_call() -> None:
    case = record([{"rule": "turn_limit", "text": "The limit ended the run."}], blamed=3)
    assert (case.fact, case.tool, case.error) == ("turn_limit", "", "")


@pytest.mark.parametrize(
    ("evidence", "given", "cause", "fact"),
    [
        pytest.param(
            [{"rule": "failed_without_a_finish", "text": "The run is marked as failed."}],
            {},
            "",
            "",
            id="boilerplate",
        ),
        pytest.param(
            [{"rule": "failed_without_a_finish", "text": "Wrong seat."}],
            {"outcome_reason": "Wrong seat.", "outcome_status": "failure"},
            "Wrong seat.",
            "",
            id="the outcome's reason",
        ),
        pytest.param(
            [{"rule": "estimate", "text": "Estimated: 76%."}, {"rule": "estimate", "text": "x"}],
            {},
            "",
            "",
            id="an estimate",
        ),
        pytest.param(
            [{"rule": "looped", "text": ""}, {"rule": "judge", "text": "It lied."}],
            {"outcome_reason": "no"},
            "It lied.",
            "looped",
            id="the judge's words and the rule's fact",
        ),
        pytest.param(
            [
                {"rule": "judge", "text": "It lied."},
                {"rule": "user_corrected", "text": "", "confidence": "hint"},
            ],
            {},
            "It lied.",
            "",
            id="a hint beside the judge",
        ),
        pytest.param([], {}, "", "", id="nothing"),
    ],
)
def test_what_is_known_of_the_cause(
    evidence: list[dict], given: dict, cause: str, fact: str
) -> None:
    case = record(evidence, **given)
    assert (case.cause, case.fact) == (cause, fact)


def test_an_estimates_headline_is_its_strongest_reason() -> None:
    evidence = [{"rule": "estimate", "text": "Estimated probability of failure: 76%."}]
    reason = {"rule": "estimate", "text": "The run ends with a tool call; no answer follows."}
    assert Failure(evidence=[*evidence, reason]).headline == reason["text"]
    assert Failure(evidence=evidence).headline == evidence[0]["text"]
    assert Failure(evidence=[]).headline == ""


def test_a_tool_that_was_expected_and_never_called_is_named() -> None:
    expected = [{"name": "send_receipt", "arguments": {}}]
    text = "The expected call of send_receipt was never made."
    evidence = [{"rule": "expected_calls", "text": text, "message_index": None}]
    case = record(evidence, None, metadata={"expected_calls": expected}, tools=[])
    assert (case.tool, case.named) == ("", ("send_receipt",))
    assert record(evidence, None, metadata={}, tools=[]).named == ()
