"""How alike failures are, and by what: pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from apps.failures.similar.scoring import Sketch, ranked, words

WORDS = st.lists(
    st.sampled_from(["refund", "order", "ticket", "invoice", "late", "missing", "wrong"]),
    max_size=4,
)
SKETCHES = st.builds(
    lambda id, tools, said, asked: Sketch.of(
        id,
        tools=tools,
        evidence={"rule": "r", "text": " ".join(said), "quote": None},
        request=" ".join(asked),
    ),
    st.integers(1, 10**9),
    WORDS,
    WORDS,
    WORDS,
)


def sketch(
    id: int, tool: str, text: str, request: str = "Please do it", rule: str = "failed_call"
) -> Sketch:
    return Sketch.of(id, tools=[tool], evidence={"rule": rule, "text": text}, request=request)


def test_the_rarest_in_common_counts_most_and_is_said_first() -> None:
    one = sketch(1, "refund", "payment_id is missing in the call", "Cancel order 1234 for Mia")
    same_error = sketch(2, "refund", "payment_id is missing in the call", "Where is my parcel")
    same_tool = sketch(3, "refund", "the call timed out")
    others = [sketch(n, "search", "the call found nothing") for n in range(4, 20)]
    found = ranked(one, [*others, same_tool, same_error], 3)
    assert [alike.id for alike in found[:2]] == [2, 3] and found[0].score > found[1].score > found[
        2
    ].score
    assert found[0].tools == ("refund",) and set(found[0].words[:2]) == {"payment_id", "missing"}
    assert found[2].tools == () and found[2].words == ()  # what most say, in any language


def test_what_differs_by_chance_is_no_word() -> None:
    assert words("Order ZFA04Y of mia_li_3668 at 10:30, wrong one's") == {
        "order",
        "of",
        "at",
        "wrong",
        "one's",
    }


def test_a_rule_in_common_counts_and_is_not_said_as_a_word() -> None:
    looped, other = sketch(2, "b", "", rule="looped"), sketch(3, "c", "")
    found = ranked(sketch(1, "a", "", request="", rule="looped"), [other, looped], 2)
    assert [alike.id for alike in found] == [2, 3] and found[0].words == found[0].tools == ()


def test_no_evidence_is_like_nothing() -> None:
    bare = Sketch.of(1, tools=[], evidence=None, request="")
    assert ranked(bare, [bare], 1)[0].score == 0 and ranked(bare, [], 3) == []


@given(SKETCHES, st.lists(SKETCHES, max_size=6))
def test_scores_fall_and_a_twin_is_first(one: Sketch, others: list[Sketch]) -> None:
    scores = [alike.score for alike in ranked(one, [*others, one], len(others) + 1)]
    assert scores == sorted(scores, reverse=True) and all(0 <= score <= 1 for score in scores)
    if one.tools and one.request and one.trouble:
        assert scores[0] == 1
