from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.reviews.sampling import Candidate, allot, choose


def candidate(
    number: int, success: bool = True, bucket: str = "", model: str = "base", **more: object
) -> Candidate:
    given: dict = {
        "task": f"task {number}",
        "output": f"answer {number}",
        "reward": 1.0 if success else -1.0,
    } | more
    return Candidate(id=f"{number:04}", success=success, bucket=bucket, model=model, **given)


MANY = [candidate(i) for i in range(900)] + [
    candidate(i, False, "wrong_tool", "tuned") for i in range(900, 995)
]
RARE = [candidate(i, False, "unsafe") for i in range(995, 1000)]


def test_rare_strata_get_their_minimum_and_the_rest_is_in_proportion() -> None:
    found = choose(MANY + RARE, 60, minimum=3)
    chosen = {(item.score, item.bucket): item.chosen for item in found.strata}
    assert len(found.ids) == len(set(found.ids)) == 60
    assert chosen["penalised", "unsafe"] == 3
    assert 45 < chosen["passed", ""] < 54 and 7 <= chosen["penalised", "wrong_tool"] <= 10
    assert not any(item.thin for item in found.strata) and found.notes == []


def test_the_choice_depends_on_the_seed_and_not_on_the_order() -> None:
    found = choose(MANY, 60, seed=7)
    assert choose(MANY[::-1], 60, seed=7) == found
    assert choose(MANY, 60, seed=8).ids != found.ids


def test_the_same_output_to_the_same_task_is_judged_once() -> None:
    again = [
        candidate(i, task="one", output=" the same \n" if i % 2 else "the same") for i in range(200)
    ]
    found = choose(again + MANY, 60)
    assert len({item for item in found.ids if item < "0200"}) <= 60 and found.duplicates == 199
    assert len(choose(again, 50).ids) == 1


def test_it_says_what_is_thin_and_missing() -> None:
    found = choose(
        [candidate(i) for i in range(40)] + [candidate(50, bucket="rude")], 60, minimum=2
    )
    assert found.notes == [
        "There are only 41 distinct outputs; 60 were requested.",
        "passed · rude · base: 1 of at least 2.",
        "There is nothing that the verifier fails: κ cannot be known from these samples.",
    ]
    assert [item.bucket for item in found.strata if item.thin] == ["rude"]


def test_more_strata_than_places_is_said() -> None:
    found = choose([candidate(i, bucket=f"mode {i % 80}") for i in range(400)], 50, minimum=1)
    assert len(found.ids) == 50 and any(
        "30 strata got fewer samples" in note for note in found.notes
    )


@pytest.mark.parametrize(("size", "minimum"), [(49, 2), (101, 2), (60, -1)])
def test_a_review_has_50_to_100_samples(size: int, minimum: int) -> None:
    with pytest.raises(ValueError, match="50 to 100"):
        choose(MANY, size, minimum=minimum)


def test_what_nobody_has_judged_goes_first() -> None:
    before = [candidate(i, judged=True) for i in range(500)] + [
        candidate(i, False, judged=True) for i in range(900, 920)
    ]
    fresh = [candidate(i) for i in range(500, 540)]
    found = choose(before + fresh, 60)
    assert {one.id for one in fresh} <= set(found.ids) and len(found.ids) == 60
    assert found.again == 20 and found.notes[0].startswith(
        "20 of 60 were judged in an earlier review"
    )
    assert (
        sum(one >= "0900" for one in found.ids) >= 2
    )  # a stratum keeps its minimum, though it is all judged
    assert choose(before + MANY[500:800], 60).again == 2


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=12),
    st.integers(50, 100),
)
def test_nothing_is_drawn_again_while_there_is_anything_fresh(
    stocks: list[tuple[int, int]], size: int
) -> None:
    strata = {("passed", f"{i:02}", ""): fresh + judged for i, (fresh, judged) in enumerate(stocks)}
    new = {("passed", f"{i:02}", ""): fresh for i, (fresh, _) in enumerate(stocks)}
    quota = allot(strata, size, 0, new)
    assert sum(quota.values()) == min(size, sum(strata.values()))
    if any(quota[name] > new[name] for name in strata):
        assert all(quota[name] >= new[name] for name in strata)


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=20), st.integers(50, 100), st.integers(0, 4)
)
def test_quotas_are_whole_and_possible(available: list[int], size: int, minimum: int) -> None:
    strata = {("passed", f"{i:02}", ""): count for i, count in enumerate(available)}
    quota = allot(strata, size, minimum)
    assert sum(quota.values()) == min(size, sum(available))
    assert all(0 <= quota[name] <= count for name, count in strata.items())
    if minimum * len(available) <= size:
        assert all(quota[name] >= min(minimum, count) for name, count in strata.items())
