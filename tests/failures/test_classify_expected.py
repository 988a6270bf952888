"""Holding the calls made against the calls that would have been right."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.failures.rules.expected import (
    ExpectedCall,
    GroundTruth,
    deviations,
    difference,
    ground_truth_of,
)
from apps.failures.rules.reading import Call, kind_of, name_parts, read

VALUE = st.integers(0, 3) | st.sampled_from(["Ann", "Tom", "Rio"]) | st.booleans()
ARGS = st.dictionaries(st.sampled_from("abc"), VALUE, max_size=3)
ONE = st.tuples(st.sampled_from(["create_task", "delete_task", "send_mail"]), ARGS)


def call(
    tool: str,
    args: dict | None = None,
    index: int = 1,
    reply: str | None = "ok",
    error: bool = False,
) -> Call:
    return Call(index, None, tool, args or {}, "", reply, index + 1, error)


def truth(made: list[Call], *wanted: tuple[str, dict | None], whole: bool = True) -> GroundTruth:
    return GroundTruth([ExpectedCall(tool, args) for tool, args in wanted], made, whole)


def kinds(given_truth: GroundTruth) -> list[tuple[str, int | None]]:
    return [(item.kind, item.made.index if item.made else None) for item in deviations(given_truth)]


CASES = [
    ([], [], []),
    ([call("cancel", {"id": 1})], [("cancel", {"id": 1.0})], []),
    ([call("cancel", {"who": " ANN "})], [("cancel", {"who": "Ann"})], []),
    ([call("cancel", {"id": True})], [("cancel", {"id": 1})], [("wrong_argument", 1)]),
    ([call("cancel")], [("book", {})], [("wrong_tool", 1)]),
    ([call("cancel")], [("cancel", None)], []),
    ([], [("cancel", {})], [("missing", None)]),
    ([call("cancel")], [], [("extra", 1)]),
    # the second try is right: the first, which had no effect, is no fault
    (
        [call("cancel", {"id": 2}, 1, error=True), call("cancel", {"id": 1}, 3)],
        [("cancel", {"id": 1})],
        [],
    ),
    # both tries are wrong: the first is to blame
    (
        [call("cancel", {"id": 2}, 1, error=True), call("cancel", {"id": 3}, 3)],
        [("cancel", {"id": 1})],
        [("wrong_argument", 1)],
    ),
    # a call that worked is the match, not the same one that failed before it
    (
        [call("cancel", {"id": 1}, 1, error=True), call("cancel", {"id": 1}, 3)],
        [("cancel", {"id": 1})],
        [],
    ),
    # the wish goes to the call that is nearest to it
    (
        [call("cancel", {"a": 1, "b": 9}, 1), call("cancel", {"a": 7, "b": 8}, 3)],
        [("cancel", {"a": 1, "b": 2})],
        [("wrong_argument", 1), ("extra", 3)],
    ),
    # look-ups on the way are not compared
    (
        [call("get_user", {}, 1), call("cancel", {"id": 1}, 3)],
        [("get_order", {}), ("cancel", {"id": 1})],
        [],
    ),
    # ... but where looking up was the task, they are, without helpers
    (
        [call("get_user", {"id": 2}, 1), call("think", {}, 3)],
        [("get_user", {"id": 1})],
        [("wrong_argument", 1)],
    ),
    # ... and an answer of calls alone counts whole
    ([call("get_user", {}, 1, reply=None)], [("cancel", {})], [("wrong_tool", 1)]),
]


@pytest.mark.parametrize(("made", "wanted", "found"), CASES)
def test_deviations(made: list[Call], wanted: list[tuple], found: list[tuple]) -> None:
    assert kinds(truth(made, *wanted)) == found


def test_a_person_who_mends_one_step_says_nothing_of_the_others() -> None:
    made = [call("cancel", {"id": 2}, 1), call("send_mail", {}, 3)]
    assert kinds(truth(made, ("cancel", {"id": 1}), whole=False)) == [("wrong_argument", 1)]


def test_the_first_deviation_of_a_run_without_end_is_found() -> None:
    made = [call("cancel", {"id": at}, 2 * at) for at in range(5000)]
    assert kinds(truth(made, *(("cancel", {"id": at}) for at in range(300))))[0] == ("extra", 600)


@given(st.lists(ONE, max_size=8), st.randoms(use_true_random=False))
def test_the_right_calls_in_any_order_do_not_deviate(
    wanted: list[tuple[str, dict]], chance: random.Random
) -> None:
    shuffled = chance.sample(wanted, len(wanted))
    made = [call(tool, args, at) for at, (tool, args) in enumerate(shuffled)]
    assert kinds(truth(made, *wanted)) == []


@given(st.lists(ONE, min_size=1, max_size=8), st.data())
def test_one_fault_is_one_deviation(wanted: list[tuple[str, dict]], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(wanted) - 1))
    made = [call(tool, args, place) for place, (tool, args) in enumerate(wanted)]
    left_out = [one for place, one in enumerate(made) if place != at]
    assert kinds(truth(left_out, *wanted)) == [("missing", None)]
    changed = [
        call(one.tool, one.args | {"z": "other"}, place) if place == at else one
        for place, one in enumerate(made)
    ]
    assert kinds(truth(changed, *wanted)) == [("wrong_argument", at)]
    replaced = [
        call("publish_note", one.args, place) if place == at else one
        for place, one in enumerate(made)
    ]
    assert kinds(truth(replaced, *wanted)) == [("wrong_tool", at)]
    assert kinds(truth([*made, call("publish_note", {}, 99)], *wanted)) == [("extra", 99)]


@given(st.lists(st.tuples(ONE, st.booleans()), max_size=8), st.lists(ONE, max_size=8))
def test_every_call_and_wish_is_accounted_for(made: list[tuple], wanted: list[tuple]) -> None:
    done = [call(tool, args, at, error=error) for at, ((tool, args), error) in enumerate(made)]
    found = deviations(truth(done, *wanted))
    unmet = sum(item.wanted is not None for item in found)
    used = sum(item.made is not None for item in found)
    assert used + len(wanted) - unmet <= len(done) and unmet <= len(wanted)
    assert len(done) - (used + len(wanted) - unmet) <= sum(
        error for _, error in made
    )  # the rest had no effect


def test_forms_of_known_calls() -> None:
    forms = [
        {"tool": "a", "args": {"x": 1}},
        [{"tool": "a", "args": {"x": 1}}],
        [{"name": "a", "kwargs": {"x": 1}}],
        [{"name": "a", "arguments": '{"x": 1}'}],
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "function": {"name": "a", "arguments": '{"x": 1}'}}],
        },
    ]
    for form in forms:
        found = ground_truth_of(read({"messages": [], "metadata": {"expected": form}}))
        assert found is not None and found.wanted == [ExpectedCall("a", {"x": 1})], form
        edited = ground_truth_of(
            read({"messages": [], "interventions": [{"kind": "edit", "after": form}]})
        )
        assert edited is not None and edited.wanted == found.wanted and not edited.whole
    for other in ("text", 4, [4], {"args": {}}, [{"tool": "a"}, "b"], None):
        assert ground_truth_of(read({"messages": [], "metadata": {"expected": other}})) is None, (
            other
        )


def test_a_difference_in_words() -> None:
    assert (
        difference({"a": 1, "b": 2, "c": "X"}, {"a": 1, "b": 3, "c": "x", "d": 4})
        == "b is 2, should be 3; d is missing."
    )
    assert difference({"e": 1}, {}) == "e was not expected."
    assert difference({"e": 1}, {"e": True}) == "e is 1, should be true."


@pytest.mark.parametrize(
    ("tool", "kind"),
    [
        ("get_user_details", "read"),
        ("crm.listOrders", "read"),
        ("book_reservation", "write"),
        ("tickets.close", "write"),
        ("DeleteFile", "write"),
        ("transfer_to_human_agents", "other"),
        ("transfer_funds", "write"),
        ("math.factorial", "other"),
        ("think", "read"),
        ("", "other"),
        ("getHTTPStatus", "read"),
    ],
)
def test_what_a_tool_does_by_its_name(tool: str, kind: str) -> None:
    assert kind_of(tool) == kind


def test_the_words_of_a_tools_name() -> None:
    assert name_parts("getHTTPStatus_v2") == ("get", "http", "status", "v", "2")
