"""Counts of a step, and the lines that measurements are read by."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.lib.memory import gigabytes
from workers.lib.training_cost import (
    Lengths,
    Line,
    Rates,
    Row,
    kept_tokens,
    work_of_compared,
    work_of_groups,
    work_of_padded,
    work_of_rows,
    work_of_samples,
)

PROMPT = list(range(100))
GROUPS: dict[str, Any] = {"prompts_per_step": 2, "generations": 4, "kl_every": 0}
SHORT = Lengths(written=10, longest=12, after=10)


def work(
    config: dict[str, Any], rows: list[Row], lengths: Lengths = SHORT, informative: float = 1.0
) -> Any:
    return work_of_groups(
        GROUPS | config, rows, 256, lengths, informative=informative, side_by_side=64
    )


@pytest.mark.parametrize(
    ("points", "base", "each"),
    [
        ([(10, 3.0), (20, 4.0)], 2.0, 0.1),
        ([(20, 4.0), (10, 3.0)], 2.0, 0.1),
        ([(10, 3.0)], 0.0, 0.3),
        ([(10, 3.0), (20, 2.0)], 0.0, 0.1),  # noise: the larger one was faster
        ([(10, 1.0), (20, 4.0)], 0.0, 0.2),  # below 0 at size 0
        ([(0, 0.0)], 0.0, 0.0),
    ],
)
def test_a_line_goes_through_two_sizes(points: list, base: float, each: float) -> None:
    line = Line.through(points)
    assert (line.base, line.each) == (pytest.approx(base), pytest.approx(each))


def test_what_rows_begin_with_alike_is_kept_and_counted_once() -> None:
    rows = [[*PROMPT, 1000 + at, *range(at * 100 + 2000, at * 100 + 2099)] for at in range(4)]
    assert kept_tokens(rows, 10_000) == 500  # all in one part
    assert kept_tokens(rows, 256) < 500
    assert kept_tokens(rows, 256, recompute=True) <= kept_tokens(rows, 256)
    assert kept_tokens([], 256) == 0


def test_grpo_counts_prompts_once_and_answers_each() -> None:
    one = work({}, [Row(PROMPT), Row([*PROMPT, 7])])
    assert (one.tokens, one.distinct) == (4 * 100 + 4 * 101 + 80, 101 + 80)
    assert (one.learnt, one.written, one.answers, one.prompts) == (80, 80, 8, 101)
    assert (
        one.forward == 0
        and work({"beta": 0.1}, [Row(PROMPT)]).forward
        > work({"kl_every": 5}, [Row(PROMPT)]).forward
        > 0
    )


def test_a_critic_is_computed_trained_and_kept_in_memory() -> None:
    grpo, ppo = (work({"advantages": kind}, [Row(PROMPT)]) for kind in ("episode", "gae"))
    assert (ppo.updates, ppo.forward) == (2 * grpo.updates, ppo.distinct + ppo.learnt)
    penalised = work({"advantages": "gae", "beta": 0.1}, [Row(PROMPT)])
    assert penalised.forward == 3 * ppo.forward  # the start and the policy before the update
    flat = Line(0, 0)
    rates = Rates(0, 0, 5e6, 1000, 256, 0, 0, flat, flat, flat, 0, flat, flat, flat, 0)
    assert ppo.peak(rates) - grpo.peak(rates) == 1000 * (4 + 4 + 8)


def test_groups_that_teach_nothing_are_sampled_but_not_trained() -> None:
    whole, half = work({}, [Row(PROMPT)]), work({}, [Row(PROMPT)], informative=0.5)
    assert half.tokens == whole.tokens / 2 and half.written == whole.written
    redrawn = work({"dynamic_sampling": 2}, [Row(PROMPT)], informative=0.5)
    assert redrawn.written == pytest.approx(1.75 * whole.written)


def test_micro_batches_keep_less_where_parts_are_large() -> None:
    def kept(**config: Any) -> float:
        return work_of_groups(
            GROUPS | config, [Row(PROMPT)], 10_000, SHORT, informative=1, side_by_side=64
        ).kept

    assert kept(micro_batch=1) == 110 < kept(micro_batch=4) == 140 < kept()


def test_what_is_sampled_once_is_spread_over_the_steps() -> None:
    config = {"steps": 10, "batch_size": 4, "samples": 8, "keep": "best"}
    rows = [Row([*PROMPT, at]) for at in range(4)]
    one = work_of_samples(config, rows, 256, SHORT, tasks=32, side_by_side=64, passed=1.0)
    assert 10 * one.written == pytest.approx(32 * 8 * 10) and 10 * one.answers == pytest.approx(
        32 * 8
    )
    assert (one.tokens, one.distinct, one.learnt) == (4 * 111, 100 + 4 * 11, 40)
    more = work_of_samples(
        config | {"steps": 20}, rows, 256, SHORT, tasks=32, side_by_side=64, passed=1.0
    )
    for name in ("written", "batches", "prompts", "answers"):
        assert getattr(one, name) == pytest.approx(2 * getattr(more, name)), name
    assert one.longest == more.longest == 12


def test_a_teacher_reads_each_row_as_often_as_it_is_large() -> None:
    rows = [Row(PROMPT)]
    small, large = (
        work_of_groups(GROUPS, rows, 256, SHORT, informative=1, side_by_side=64, teacher=size)
        for size in (0.5, 2)
    )
    assert large.forward == pytest.approx(4 * small.forward) and small.forward > 0


def test_sft_and_preferences_count_their_rows() -> None:
    rows = [Row([*PROMPT, at], [[1, 2, 3]], 3) for at in range(8)]
    sft = work_of_rows({"batch_size": 8}, rows, 256)
    assert (sft.tokens, sft.distinct, sft.learnt) == (8 * 104, 100 + 8 * 4, 24)
    assert work_of_rows({"batch_size": 8, "micro_batch": 2}, rows, 256).distinct == 4 * 108
    pairs = [Row(PROMPT, [[1], [2, 3]], 3)]
    assert work_of_padded({"batch_size": 4}, pairs, 256).plain == 4 * 2 * 102
    dpo, parts = (
        work_of_compared({"batch_size": 4, "micro_batch": micro}, pairs) for micro in (0, 1)
    )
    assert (dpo.tokens, dpo.distinct, dpo.kept, dpo.forward) == (4 * 203, 103, 103, 103 + 12)
    assert (parts.distinct, parts.kept) == (4 * 103, 103)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=30), min_size=1, max_size=12),
    st.integers(1, 40),
)
def test_never_more_is_kept_than_there_is(rows: list[list[int]], part: int) -> None:
    kept = kept_tokens(rows, part)
    assert 1 <= kept_tokens(rows, part, recompute=True) <= kept <= sum(map(len, rows))
    assert kept >= min(part, 1)


@pytest.mark.parametrize(
    ("count", "says"), [(0, "1 MB"), (640e6, "640 MB"), (5.14e9, "5.1 GB"), (1.2e12, "1200.0 GB")]
)
def test_bytes_in_words(count: float, says: str) -> None:
    assert gigabytes(count) == says
