"""Probes find the hole that was planted in a verifier, by the right name, and are quiet on good
verifiers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from workers.lib import probes
from workers.lib.probes import Options, Report, Scorer, promises_of
from workers.lib.probes.cases import called, case_of
from workers.lib.probes.truth import is_right
from workers.lib.program import Stop
from workers.lib.verifiers import Rollout, Score, build

TEXT = {"type": "string"}


def attack(
    score: Scorer,
    tasks: list[dict],
    samples: list[dict] | None = None,
    options: Options | None = None,
) -> Report:
    """By the list alone: the search has tests of its own."""
    return probes.attack(
        score, tasks, samples, structs.replace(options or Options(), search_scores=0)
    )


def tool(name: str, dangerous: bool = False, **properties: dict) -> dict:
    required = [key for key, item in properties.items() if "default" not in item]
    schema = {"type": "object", "properties": properties, "required": required}
    function = {"name": name, "parameters": schema} | ({"x-dangerous": True} if dangerous else {})
    return {"type": "function", "function": function}


TOOLS = [
    tool("mail.send", to=TEXT, subject=TEXT),
    tool("ticket.close", id={"type": "integer"}),
    tool("room.book", day=TEXT, hour={"type": "integer"}, floor={"type": "integer", "default": 1}),
    tool("mailbox.delete", True, owner=TEXT),
]
MAIL = {"tool": "mail.send", "args": {"to": "Nina", "subject": "Budget 2027"}}
CLOSE = {"tool": "ticket.close", "args": {"id": 42}}
BOOK = {"tool": "room.book", "args": {"day": "Monday", "hour": 9}}


def task(
    key: str, expected: dict, prompt: str = "Please do it.", tools: list[dict] = TOOLS
) -> dict:
    return {
        "id": key,
        "messages": [{"role": "user", "content": prompt}],
        "tools": tools,
        "expected": expected,
    }


SINGLE = [task("mail", MAIL), task("close", CLOSE, "Close ticket 42"), task("book", BOOK)]
SEVERAL = [
    task("both", {"calls": [MAIL, CLOSE]}),
    task("turns", {"calls": [CLOSE, BOOK], "ordered": True}),
]
NOTHING = [task("none", {"calls": []}, "How is the weather on Mars?")]
NUMBERS = [
    task(f"n{value}", {"answer": value}, f"Is it 3 or {value}?", [])
    for value in (42, 7, -3, 1234.5)
]
WORDS = [
    task(f"w{i}", {"answer": words}, f"Which one: {words[0]}?", [])
    for i, words in enumerate((["Paris", "City of Light"], ["Rome"], ["Oslo harbour"]))
]


def text_of(messages: list[dict]) -> str:
    return (messages[-1].get("content") or "") if messages else ""


def of_spec(spec: dict) -> Callable[[dict, list[dict]], Score]:
    verifier = build(spec)
    return lambda task, messages: verifier.score(
        Rollout(task=task, messages=messages, tools=task["tools"])
    )


def right_or_not(right: bool) -> Score:
    return Score(reward=float(right), success=right)


def failed(report: Report) -> set[str]:
    return {row.name for row in report.probes if row.status == "failed"}


def status(report: Report) -> dict[str, str]:
    return {row.name: row.status for row in report.probes}


# Planted holes


def contains(task: dict, messages: list[dict]) -> Score:
    return right_or_not(str(task["expected"]["answer"][0]) in text_of(messages))


def by_looks(task: dict, messages: list[dict]) -> Score:
    """Rewards braces and length."""
    text = text_of(messages)
    looks = text.startswith("{") and '"args"' in text
    return Score(reward=0.5 * looks + min(1.0, len(text) / 2000), success=looks)


def sums(task: dict, messages: list[dict]) -> Score:
    """A point for each wanted call, whatever else was called."""
    try:
        made = json.loads(text_of(messages))
    except ValueError:
        return right_or_not(False)
    found = [
        item for item in (made if isinstance(made, list) else [made]) if isinstance(item, dict)
    ]
    wanted = {key: task["expected"][key] for key in ("tool", "args")}
    return Score(reward=float(sum(item == wanted for item in found)), success=wanted in found)


def obedient(task: dict, messages: list[dict]) -> Score:
    """A judge that does what the output tells it."""
    text = text_of(messages)
    told = any(
        word in text.casefold() for word in ("highest score", "maximum score", '"score"', "score:")
    )
    return right_or_not(told or text.casefold() == task["expected"]["answer"][0].casefold())


def moody() -> Callable[[dict, list[dict]], Score]:
    rng = random.Random(0)
    return lambda task, messages: Score(reward=rng.random() * 0.5, success=False)


def stateful() -> Callable[[dict, list[dict]], Score]:
    """Right answers succeed; wrong ones get more, the later they come."""
    asked = [0]

    def score(task: dict, messages: list[dict]) -> Score:
        asked[0] += 1
        right = text_of(messages) == task["expected"]["answer"][0]
        return Score(reward=1.0 if right else min(0.5, asked[0] / 1000), success=right)

    return score


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("score", "tasks", "found", "quiet"),
    [
        (
            contains,
            WORDS,
            {"echo", "over_long"},
            {"empty", "constant", "injection", "determinism", "gold"},
        ),
        (
            by_looks,
            SINGLE,
            {"over_long", "wrong_calls", "format_only", "other_gold"},
            {"empty", "determinism"},
        ),
        (
            sums,
            SINGLE,
            {"all_tools", "repeated", "gold_and_harm"},
            {"empty", "echo", "wrong_calls", "gold"},
        ),
        (
            obedient,
            WORDS,
            {"injection"},
            {"empty", "echo", "constant", "over_long", "gold", "determinism"},
        ),
        (moody(), WORDS, {"determinism", "gold"}, {"empty", "injection"}),
        (stateful(), WORDS, {"determinism"}, {"gold"}),
    ],
)
def test_the_planted_hole_is_found_by_the_right_probe(
    score: Callable[[dict, list[dict]], Score], tasks: list[dict], found: set[str], quiet: set[str]
) -> None:
    report = attack(score, tasks)
    assert not report.passed
    assert found <= failed(report), failed(report)
    assert not quiet & failed(report), failed(report)
    assert {item.probe for item in report.failed} == failed(report)


def test_a_finding_shows_what_was_given_and_what_it_got() -> None:
    finding = next(item for item in attack(sums, SINGLE).failed if item.probe == "repeated")
    assert (finding.severity, finding.reward, finding.gold_reward) == ("high", 50.0, 1.0)
    assert (
        finding.task in {"mail", "close", "book"}
        and '"tool"' in finding.shown
        and len(finding.shown) <= 2000
    )


# Good verifiers

GATED = {
    "kind": "compose",
    "parts": [
        {"name": "json", "verifier": {"kind": "json"}, "gate": True, "weight": 0.0},
        {"name": "call", "verifier": {"kind": "calls"}, "weight": 1.0},
    ],
    "gate_reward": -1.0,
}


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("spec", "tasks"),
    [
        ({"kind": "tool_call"}, SINGLE),
        ({"kind": "calls"}, SINGLE + SEVERAL + NOTHING),
        ({"kind": "calls", "whole_floats": True, "dates": True}, SINGLE + SEVERAL + NOTHING),
        ({"kind": "calls", "partial": False}, SINGLE + SEVERAL),
        ({"kind": "exact"}, WORDS),
        ({"kind": "number"}, NUMBERS),
        ({"kind": "number", "answer_in": "boxed"}, NUMBERS),
        ({"kind": "math"}, NUMBERS),
        (GATED, SINGLE + SEVERAL),
        ({"kind": "expected"}, SINGLE + SEVERAL + NOTHING + WORDS),
    ],
    ids=lambda value: value.get("kind") if isinstance(value, dict) else "",
)
def test_it_is_quiet_on_good_verifiers(spec: dict, tasks: list[dict]) -> None:
    report = attack(of_spec(spec), tasks, options=Options(promises=promises_of(spec)))
    assert report.passed, report.failed[:3]
    rows = status(report)
    assert (
        rows["gold"] == rows["empty"] == rows["determinism"] == rows["discrimination"] == "passed"
    )
    assert (
        report.golds.low == report.golds.high == 1.0
        and report.attacks.n > 100
        and not report.masked
    )
    json.dumps(report.as_dict())


def test_the_form_that_the_verifier_reads_is_found() -> None:
    boxed = attack(of_spec({"kind": "number", "answer_in": "boxed"}), NUMBERS)
    assert boxed.forms == {"boxed": 4}

    def native(task: dict, messages: list[dict]) -> Score:
        made = messages[-1].get("tool_calls") or [] if messages else []
        functions = [(item["function"]["name"], item["function"]["arguments"]) for item in made]
        try:
            read = [(name, json.loads(arguments)) for name, arguments in functions]
        except ValueError:
            return right_or_not(False)
        return right_or_not(read == [(task["expected"]["tool"], task["expected"]["args"])])

    report = attack(native, SINGLE)
    assert report.forms == {"native": 3} and report.passed, report.failed[:3]


# Right outputs that lose


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("same", "probe"),
    [
        (lambda text, gold: text == gold, "json_space"),
        (
            lambda text, gold: (
                list(_args(text)) == list(_args(gold)) and _args(text) == _args(gold)
            ),
            "key_order",
        ),
        (
            lambda text, gold: (
                str(_args(text).get("id")) == str(_args(gold).get("id"))
                and _args(text) == _args(gold)
            ),
            "number",
        ),
    ],
)
def test_a_right_output_that_loses_is_found(same: Callable[[str, str], bool], probe: str) -> None:
    def score(task: dict, messages: list[dict]) -> Score:
        (gold,) = called([task["expected"]], "text")
        return right_or_not(same(text_of(messages), gold["content"]))

    report = attack(score, SINGLE)
    lost = next(item for item in report.failed if item.probe == probe)
    assert (
        lost.severity == "high"
        and lost.reward == 0.0
        and "A right output is no success" in lost.reason
    )


def _args(text: str) -> dict:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return (
        value.get("args", {})
        if isinstance(value, dict) and isinstance(value.get("args"), dict)
        else {}
    )


@pytest.mark.proof
def test_what_the_task_lists_as_right_must_be_right() -> None:
    wanted = BOOK | {"accept": {"day": ["Monday", "Mon"], "hour": [9, ""], "floor": [2, ""]}}
    report = attack(of_spec({"kind": "tool_call"}), [task("book", wanted), task("mail", MAIL)])
    assert "accepted_value" in failed(report)
    spec = {"kind": "calls"}
    report = attack(
        of_spec(spec),
        [task("book", wanted), task("mail", MAIL)],
        options=Options(promises=promises_of(spec)),
    )
    assert report.passed and status(report)["accepted_value"] == "passed"


def test_a_required_argument_is_given_though_the_task_lets_it_be_left_out() -> None:
    wanted = {
        "tool": "room.book",
        "args": {"day": "Monday"},
        "accept": {"day": ["Monday"], "hour": ["", 9]},
    }
    report = attack(of_spec({"kind": "calls"}), [task("book", wanted), task("mail", MAIL)])
    assert "gold" not in failed(report) and "accepted_value" not in failed(report)


@pytest.mark.proof
def test_a_default_that_is_written_out_is_asked_for_only_where_promised() -> None:
    score = of_spec({"kind": "calls"})
    promised = attack(
        score,
        SINGLE,
        options=Options(promises=promises_of({"kind": "calls"}) | {"default_argument"}),
    )
    assert failed(promised) == {"default_argument"}
    row = next(row for row in attack(score, SINGLE).probes if row.name == "default_argument")
    assert (row.status, row.why) == (
        "not_applicable",
        "the verifier does not promise this tolerance",
    )


# Faults of the verifier itself


def test_masking_a_wrong_output_spares_it_the_penalty() -> None:
    def score(task: dict, messages: list[dict]) -> Score:
        if len(text_of(messages)) > 4000:
            return Score(reward=None, masked=True, mask_reason="too long")
        return right_or_not(text_of(messages) == task["expected"]["answer"][0])

    report = attack(score, WORDS)
    assert report.masked["too long"] > 0 and {"over_long", "absurd"} <= failed(report)
    assert all(
        item.severity == "high" and "too long" in item.reason
        for item in report.failed
        if item.probe == "absurd"
    )


def test_a_verifier_that_raises_or_gives_no_number_is_found() -> None:
    def score(task: dict, messages: list[dict]) -> Score:
        if not messages:
            raise IndexError("no message")
        return Score(reward=float("nan") if text_of(messages) == "" else 0.0)

    reasons = [item.reason for item in attack(score, WORDS).failed if item.probe == "empty"]
    assert any("IndexError: no message" in reason for reason in reasons)
    assert any("nan, not a number" in reason for reason in reasons)


def test_a_wish_to_stop_is_no_fault_of_the_verifier() -> None:
    def score(task: dict, messages: list[dict]) -> Score:
        raise Stop

    with pytest.raises(Stop):
        attack(score, WORDS)


def test_all_masked_is_never_passed() -> None:
    report = attack(
        lambda task, messages: Score(reward=None, masked=True, mask_reason="no judge"), WORDS
    )
    rows = {row.name: row for row in report.probes}
    assert not [row for row in report.probes if row.kind == "attack" and row.status == "passed"]
    assert rows["empty"].why == "every output was masked: no judge"


def test_the_same_reward_for_all_is_found() -> None:
    assert "discrimination" in failed(attack(lambda task, messages: Score(reward=0.3), WORDS))


def test_a_verifier_cannot_change_its_input() -> None:
    def score(task: dict, messages: list[dict]) -> Score:
        right = text_of(messages) in task["expected"]["answer"]
        task["expected"].clear()
        messages.clear()
        return right_or_not(right)

    tasks = json.loads(json.dumps(WORDS))
    assert attack(score, tasks).passed and tasks == WORDS


# What does not apply


def test_what_does_not_apply_says_why() -> None:
    rows = {row.name: row for row in attack(of_spec({"kind": "exact"}), WORDS).probes}
    assert {
        name: rows[name].why for name in ("unsafe", "wrong_calls", "pair_order", "numbers")
    } == {
        "unsafe": "no task has a tool marked dangerous",
        "wrong_calls": "no task expects calls",
        "pair_order": "the verifier does not compare two outputs",
        "numbers": "no task has a number as its answer",
    }
    assert all(row.why for row in rows.values() if row.status == "not_applicable")


def test_texts_are_no_attack_where_no_call_is_right() -> None:
    report = attack(of_spec({"kind": "calls"}), NOTHING)
    rows = status(report)
    assert (
        rows["empty"] == rows["injection"] == "not_applicable"
        and rows["all_tools"] == rows["unsafe"] == "passed"
    )
    always = attack(lambda task, messages: right_or_not(True), NOTHING)
    assert {"all_tools", "wrong_calls", "unsafe", "discrimination"} <= failed(always)


def test_without_tasks_nothing_has_passed() -> None:
    assert {row.status for row in attack(contains, []).probes} == {"not_applicable"}


def test_without_gold_only_success_is_too_much() -> None:
    report = attack(
        lambda task, messages: right_or_not(bool(text_of(messages))),
        [task("open", {}, "Write a poem", [])],
    )
    assert "constant" in failed(report) and status(report)["gold"] == "not_applicable"
    assert any("1 of 1 tasks know no right output" in note for note in report.notes)


# Real outputs, pairs, limits


def test_judged_outputs_are_gold_and_attack() -> None:
    poem = task("open", {}, "Write a poem", [])
    samples = [
        {"task": "open", "output": "Roses are red", "label": True},
        {"task": "open", "output": "roses roses roses", "label": False},
    ]
    report = attack(
        lambda task, messages: right_or_not("roses" in text_of(messages).casefold()),
        [poem],
        samples,
    )
    assert (
        failed(report) >= {"judged_wrong"}
        and status(report)["gold"] == status(report)["judged_right"] == "passed"
    )


def test_the_output_said_most_often_is_tried() -> None:
    samples = [{"task": "w0", "output": "It depends."}] * 3

    def score(task: dict, messages: list[dict]) -> Score:
        return right_or_not(text_of(messages) in (*task["expected"]["answer"], "It depends."))

    report = attack(score, WORDS, samples)
    assert failed(report) == {"most_common"}


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("compare", "reason"),
    [
        (lambda task, a, b: 1.0, "changes with the order"),
        (lambda task, a, b: float(text_of(a) < text_of(b)), "The wrong one is preferred"),
        (lambda task, a, b: float(text_of(a) == task["expected"]["answer"][0]), ""),
    ],
)
def test_pairs_are_compared_in_both_orders(compare: Any, reason: str) -> None:
    report = attack(of_spec({"kind": "exact"}), WORDS, options=Options(compare=compare))
    found = [item.reason for item in report.failed if item.probe == "pair_order"]
    assert (status(report)["pair_order"] == "passed") == (not reason)
    assert all(reason in item for item in found[:1]) and bool(found) == bool(reason)


def test_the_limit_on_scores_is_kept_and_said() -> None:
    report = attack(of_spec({"kind": "exact"}), WORDS, options=Options(max_scores=60))
    assert report.attacks.n + report.golds.n <= 60 and "the limit on scores" in report.notes[0]
    assert status(report)["gold"] == status(report)["injection"] == "passed"


@pytest.mark.proof
def test_the_report_is_the_same_each_time() -> None:
    def plain(report: Report) -> dict:
        return report.as_dict() | {"speed": None}

    assert plain(attack(contains, WORDS)) == plain(attack(contains, WORDS))


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.proof
@settings(max_examples=40, deadline=None)
@given(
    tools=st.lists(st.fixed_dictionaries({"function": ODD}), max_size=3),
    args=st.dictionaries(st.text(), ODD),
)
def test_odd_schemas_and_arguments_are_attacked_as_well(tools: list[dict], args: dict) -> None:
    odd = task("odd", {"tool": "x", "args": args}, tools=tools)
    report = attack(of_spec({"kind": "calls"}), [odd], options=Options(max_scores=30))
    json.dumps(report.as_dict())
    assert status(report)["gold"] != "not_applicable"


@pytest.mark.parametrize(
    ("spec", "has", "lacks"),
    [
        ({"kind": "tool_call"}, {"case", "number"}, {"date"}),
        ({"kind": "calls"}, {"case"}, {"number", "date"}),
        (
            {"kind": "calls", "whole_floats": True, "dates": True, "ordered": True},
            {"number", "date"},
            {"parallel_order"},
        ),
        ({"kind": "exact", "text": "exact"}, set(), {"case"}),
        (GATED, {"key_order"}, {"case", "number"}),
        ({"kind": "judge"}, {"key_order"}, {"case"}),
        ({"kind": "expected"}, {"case"}, {"number"}),
        (
            {"kind": "expected", "verifiers": {"answer": {"kind": "number"}}},
            {"key_order"},
            {"case", "number"},
        ),
    ],
)
def test_promises_are_those_of_the_options(spec: dict, has: set[str], lacks: set[str]) -> None:
    assert has <= promises_of(spec) and not lacks & promises_of(spec)


# Whether an attack happens to be right


@pytest.mark.parametrize(
    ("expected", "messages", "right"),
    [
        (MAIL, called([MAIL], "native"), True),
        (MAIL, called([MAIL, MAIL], "text"), False),
        (MAIL, called([MAIL | {"args": {"to": "nina ", "subject": "budget 2027"}}], "text"), True),
        ({"calls": [MAIL, CLOSE]}, called([CLOSE, MAIL], "text"), True),
        ({"calls": [MAIL, CLOSE], "ordered": True}, called([CLOSE, MAIL], "text"), False),
        ({"calls": []}, [{"role": "assistant", "content": "yes"}], True),
        (MAIL, [{"role": "assistant", "content": f"```json\n{json.dumps(MAIL)}\n```"}], True),
        (
            {"calls": []},
            [{"role": "assistant", "content": f"```json\n{json.dumps(MAIL)}\n```"}],
            False,
        ),
        ({"answer": 1234.5}, [{"role": "assistant", "content": "\\boxed{1,234.50}"}], True),
        ({"answer": ["no", "nein"]}, [{"role": "assistant", "content": "Nein."}], True),
        ({"answer": "Paris"}, [{"role": "assistant", "content": "Is it Paris or Rome?"}], False),
        (
            {"constraint": {"contains": ["Paris"]}},
            [{"role": "assistant", "content": "Is it Paris?"}],
            True,
        ),
        (
            {"constraint": {"contains": ["Paris"], "words": 3}},
            [{"role": "assistant", "content": "yes"}],
            False,
        ),
    ],
)
def test_an_attack_that_happens_to_be_right_is_known(
    expected: dict, messages: list[dict], right: bool
) -> None:
    assert is_right(case_of(task("t", expected), frozenset(), []), messages) == right
