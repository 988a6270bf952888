"""A run as numbers, in any script and without any person's word, and what a score says of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.failures.outcomes.features import (
    BUCKETS,
    Facts,
    Usual,
    bucket_of,
    features,
    sizes,
    words_of,
)
from apps.failures.outcomes.model import Weights, estimate, in_words
from apps.failures.rules.reading import Run, read
from tests.factories import tool_message


def run_of(*texts: str, tool: str = "") -> Run:
    messages = [
        {"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)
    ]
    if tool:
        called = tool_message({"tool": tool, "args": {}})
        reply = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"]}
        messages += 2 * [called, reply | {"content": '{"error": "no such thing"}'}]
    return read({"messages": messages, "outcome_status": "unknown"})


@pytest.mark.parametrize(
    ("text", "alike", "other"),
    [
        ("Please refund my ticket", "REFUND the ticket, please!", "What is the weather?"),
        ("Où est mon remboursement ?", "mon remboursement, où est-il", "Quel temps fait-il ?"),
        ("Где мой возврат?", "мой возврат где", "Какая сегодня погода?"),
        ("मेरा पैसा वापस करो", "मेरा पैसा कहाँ है", "आज मौसम कैसा रहेगा"),
        ("أين أموالي؟", "أموالي أين هي؟", "كيف الطقس اليوم؟"),
        ("请退款给我", "我要退款给我的卡", "今天天气怎么样"),
        ("返金してください", "チケットの返金を希望します", "天気はどうですか"),
        ("ขอเงินคืนค่าตั๋ว", "ฉันต้องการเงินคืน", "วันนี้อากาศเป็นอย่างไร"),
        ("환불해 주세요", "표를 환불해 주세요", "오늘 날씨 어때요"),
    ],
)
def test_words_of_any_script_are_told_apart(text: str, alike: str, other: str) -> None:
    words = set(words_of(text))
    assert len(words & set(words_of(alike))) > 2 * len(words & set(words_of(other)))


def test_sizes_are_ranked_among_the_projects_own() -> None:
    usual = Usual.of([{"messages": float(n)} for n in range(100)] + [{"cost": 1.0}])
    assert usual.rank("messages", -1) == -1 and usual.rank("messages", 1000) == 1
    assert abs(usual.rank("messages", 50)) < 0.1
    assert usual.rank("cost", 99.0) == 0  # one run is no usual
    assert Usual.of([{"messages": 4.0}] * 50).rank("messages", 9.0) == 0
    known = sizes(run_of("a", "b"), Facts(latency=3.0))
    assert known["latency"] == 3.0 and "cost" not in known


def test_what_speaks_most_for_a_failure_is_the_first_reason() -> None:
    run = features(
        run_of("Refund my ticket", "Never.", tool="tickets.close"),
        Facts(judged=0.8),
        Usual({"messages": [1.0, 2.0, 3.0]}),
    )
    rule = run.found[0].rule
    dense = {f"rule_{rule}": 0.9, "judge": 2.0, "size_messages": 0.4}
    made = estimate(run, Weights(dense, -1.0, {bucket_of("user refund"): 0.5}))
    texts = [reason["text"] for reason in made.reasons]
    assert texts[:2] == ["The judge says that it failed.", run.found[0].text]
    assert texts[2].startswith("More messages than in 100%") and texts[3].endswith("“refund”.")
    against = estimate(run, Weights({name: -value for name, value in dense.items()}, -1.0))
    assert made.is_flagged and not against.is_flagged and not against.reasons


def test_a_score_is_a_probability_only_where_that_was_measured() -> None:
    ranks = {"quantiles": [at / 100 for at in range(101)]}
    assert in_words(0.8, ranks) == "Estimate: more like a failure than 79% of the decided runs."
    assert "probability of failure: 80%" in in_words(0.8, ranks | {"calibrated": True})


JUNK = st.text(max_size=200) | st.sampled_from(
    ["I cannot 9 " * 300, "\ud800", "'" * 3000, "ก" * 99]
)


@given(st.lists(JUNK, max_size=6), JUNK)
def test_hostile_text_breaks_nothing(texts: list[str], tool: str) -> None:
    found = features(run_of(*texts, tool=tool), Facts(cost=1.0), Usual({}))
    weights = Weights({}, 0.0, dict.fromkeys(found.hashed, 1.0))
    made = estimate(found, weights)
    assert 0 < made.score < 1 and len(made.reasons) <= 5
    assert all(0 <= bucket < BUCKETS for bucket in found.hashed)


def test_weights_survive_the_database() -> None:
    weights = Weights({"a": 0.5}, -1.0, {7: 0.25}, 0.9, 0.1, 0.4, requests=[3])
    assert Weights.from_json(json.loads(json.dumps(weights.as_json()))) == weights
