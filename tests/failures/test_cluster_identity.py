from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.failures.clusters.find import Cluster
from apps.failures.clusters.identity import Known, Matching, match
from apps.failures.clusters.signatures import Signature


def group(*members: int, column: int = 0) -> Cluster:
    return Cluster("name", tuple(map(str, members)), Signature((column,), (1.0,), 0.5), 0.9)


def known(**groups: Cluster) -> dict[str, Known]:
    return {id: Known.of(one) for id, one in groups.items()}


def test_the_first_run_gives_new_ids_that_depend_on_the_members_alone() -> None:
    one, other = match({}, [group(1, 2, 3), group(4, 5)]), match({}, [group(5, 4), group(3, 1, 2)])
    assert set(one.ids) == set(other.ids) == set(one.born) and len(set(one.ids)) == 2


CASES = [
    pytest.param(
        known(a=group(*range(10))), [group(*range(2, 60))], ["a"], id="it grows, and some leave"
    ),
    pytest.param(
        known(a=group(*range(10)), b=group(*range(10, 20))),
        [group(*range(10, 22)), group(*range(9))],
        ["b", "a"],
        id="another order",
    ),
    pytest.param(
        known(a=group(*range(10))),
        [group(1, *range(20, 40), column=3)],
        ["a"],
        id="one of ten is left, and grouped nowhere else",
    ),
    pytest.param(
        known(a=group(*range(10), column=7)),
        [group(*range(50, 60), column=7)],
        ["a"],
        id="other members, the same words",
    ),
    pytest.param(
        known(a=group(*range(10), column=7)),
        [group(*range(50, 60), column=8)],
        [None],
        id="nothing in common",
    ),
]


@pytest.mark.parametrize(("before", "now", "ids"), CASES)
def test_which_group_is_which(
    before: dict[str, Known], now: list[Cluster], ids: list[str | None]
) -> None:
    found = match(before, now)
    assert [id if id in before else None for id in found.ids] == ids
    assert (
        set(found.kept) | set(found.gone) == set(before) and not found.splits and not found.merges
    )


def test_the_largest_part_of_a_split_keeps_the_id() -> None:
    found = match(known(a=group(*range(10))), [group(0, 1, 2), group(*range(3, 10))])
    assert found.ids[1] == "a" and found.ids[0] == found.born[0]
    assert found.splits == {"a": ("a", found.born[0])} and not found.merges


def test_the_largest_part_of_a_merge_gives_the_id() -> None:
    found = match(known(a=group(0, 1, 2), b=group(*range(3, 10))), [group(*range(12))])
    assert found == Matching(("b",), kept=("b",), gone=("a",), merges={"b": ("a", "b")})


def test_it_rejects_a_new_id_that_is_taken() -> None:
    with pytest.raises(ValueError, match="taken"):
        match(known(a=group(1, 2)), [group(5, 6, column=4)], new_id=lambda _: "a")


partitions = st.lists(st.integers(0, 5), min_size=1, max_size=60)


def groups_of(labels: list[int], column: int) -> list[Cluster]:
    wanted = sorted(set(labels))
    return [
        group(*(n for n, label in enumerate(labels) if label == one), column=column + one)
        for one in wanted
    ]


@given(partitions, st.randoms(use_true_random=False))
def test_the_same_groups_keep_all_ids_in_any_order(
    labels: list[int], chance: random.Random
) -> None:
    now = groups_of(labels, 0)
    first = dict(zip(match({}, now).ids, now, strict=True))
    items = chance.sample(sorted(first.items()), len(first))
    again = match(known(**first), [one for _, one in items])
    assert list(again.ids) == [id for id, _ in items] and not (
        again.born or again.gone or again.splits or again.merges
    )


@given(partitions, partitions)
def test_ids_are_unique_and_every_known_one_is_kept_or_gone(
    before: list[int], after: list[int]
) -> None:
    old = {f"k{n}": one for n, one in enumerate(groups_of(before, 0))}
    now = groups_of(after, 100)
    found = match(known(**old), now)
    assert len(set(found.ids)) == len(now) and set(found.ids) == {*found.kept, *found.born}
    assert {*found.kept, *found.gone} == set(old) and not set(found.kept) & set(found.gone)
    assert set(found.splits) <= set(old) and set(found.merges) <= set(found.ids)


@given(st.lists(st.integers(2, 9), min_size=2, max_size=4, unique=True))
def test_whatever_the_parts_the_largest_keeps(sizes: list[int]) -> None:
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    now = [group(*range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    found = match(known(a=group(*range(ends[-1]))), now)
    assert found.ids[sizes.index(max(sizes))] == "a"
