"""Which tasks a step draws: epochs, by learnability, failures again; the same after a resume."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.lib.task_draw import TaskDraw, signal

IDS = [f"task-{at}" for at in range(10)]


def draw(**fields: Any) -> TaskDraw:
    return TaskDraw(IDS, **{"seed": 1, "size": 4, "generations": 4} | fields)


def test_signal_is_the_chance_of_a_mixed_group() -> None:
    """Counted over all outcomes of four samples."""
    for rate in (0.0, 0.2, 0.5, 1.0):
        mixed = 0.0
        for outcome in product([0, 1], repeat=4):
            if 0 < sum(outcome) < 4:
                mixed += rate ** sum(outcome) * (1 - rate) ** (4 - sum(outcome))
        assert signal(rate, 4) == pytest.approx(mixed)


def test_tasks_in_between_are_drawn_more_and_none_never() -> None:
    rates = dict.fromkeys(IDS[:4], 1.0) | dict.fromkeys(IDS[4:8], 0.0) | {IDS[8]: 0.5, IDS[9]: 0.4}
    one = draw(curriculum=True, rates=rates)
    counts = Counter(place for step in range(400) for place in one.draw(step))
    assert min(counts[8], counts[9]) > 350 > 200 > max(counts[at] for at in range(8))
    assert min(counts[at] for at in range(8)) > 20
    assert all(len(set(one.draw(step))) == 4 for step in range(50))


def test_a_curriculum_follows_what_the_run_sees() -> None:
    one = draw(curriculum=True, rates=dict.fromkeys(IDS, 0.5))
    for step in range(6):
        one.record(step, [(IDS[0], 4, 4), (IDS[1], 2, 4), (IDS[2], 0, 0)])
    assert one.rates[IDS[0]] > 0.98 and one.rates[IDS[1]] == one.rates[IDS[2]] == 0.5
    counts = Counter(place for step in range(100) for place in one.draw(step))
    assert counts[0] < counts[1] / 2


def test_fresh_failures_come_again_and_each_epoch_still_goes_through_all_tasks() -> None:
    one, drawn = draw(replay_share=0.25), []
    for step in range(20):
        places = one.draw(step)
        assert len(places) == 4
        failed = IDS[places[0]] if step < 5 else ""
        drawn.append(places)
        one.record(step, [(IDS[place], 0 if IDS[place] == failed else 4, 4) for place in places])
        if 0 < step <= 5:
            assert drawn[step - 1][0] in places
    assert one.failed == {}
    # 80 draws less the replays, of which there are five at most: what comes anyway is not drawn
    # besides.
    assert (
        75 <= one.at < 80
        and min(Counter(place for places in drawn for place in places).values()) >= 7
    )


def test_a_step_drawn_during_the_one_before_has_other_tasks() -> None:
    """As with rollouts one step ahead: the first batch was drawn twice."""
    one = draw(replay_share=0.25, rates={})
    drawn = [one.draw(0)]
    for step in range(4):
        drawn.append(one.draw(step + 1))
        one.record(step, [(IDS[place], 4, 4) for place in drawn[step]])
        resumed = draw(replay_share=0.25, rates={})
        resumed.restore(one.state())
        assert resumed.draw(step + 1) == drawn[step + 1]
    assert Counter(place for places in drawn for place in places) == dict.fromkeys(range(10), 2)


def test_an_old_failure_is_not_fresh() -> None:
    one = draw(replay_share=1.0, rates={})
    one.record(0, [(IDS[7], 0, 4)])
    assert 7 in one.draw(10)[-1:] and one._failed(11, ()) == []


@given(
    st.integers(0, 2**31),
    st.integers(1, 12),
    st.booleans(),
    st.floats(0, 1),
    st.lists(st.integers(0, 4), min_size=8, max_size=8),
    st.integers(0, 7),
)
def test_a_resumed_draw_goes_on_as_the_unbroken_one(
    seed: int, size: int, curriculum: bool, share: float, passed: list[int], stopped: int
) -> None:
    def fresh() -> TaskDraw:
        return draw(seed=seed, size=size, curriculum=curriculum, replay_share=share)

    whole, rest = fresh(), fresh()
    for step, good in enumerate(passed):
        if step == stopped:
            whole.draw(step)  # a step that is broken off changes nothing
            rest.restore(whole.state())
        places = whole.draw(step)
        assert len(places) == min(size, 10)
        if step >= stopped:
            assert rest.draw(step) == places
            assert rest.again(step, 1, 3, places) == whole.again(step, 1, 3, places)
            rest.record(step, [(IDS[place], good, 4) for place in places])
        assert not set(whole.again(step, 1, 3, places)) & set(places)
        whole.record(step, [(IDS[place], good, 4) for place in places])


@given(
    st.integers(0, 2**31),
    st.integers(1, 9),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.0, 0.3, 1.0]),
    st.booleans(),
    st.lists(st.sampled_from([0, 4]), min_size=40, max_size=40),
)
def test_no_step_draws_a_task_twice_whatever_the_sizes(
    seed: int, tasks: int, size: int, share: float, curriculum: bool, passed: list[int]
) -> None:
    """Over several epochs, of which each still goes through all tasks; a step across two of them
    too.
    """
    ids = IDS[:tasks]
    one = TaskDraw(
        ids, seed=seed, size=size, generations=4, replay_share=share, curriculum=curriculum
    )
    drawn = []
    for step, good in enumerate(passed):
        places = one.draw(step)
        assert len(places) == len(set(places)) == min(size, tasks)
        drawn += places
        one.record(step, [(ids[place], good, 4) for place in places])
    if not curriculum and not one.replays:
        whole = [drawn[at : at + tasks] for at in range(0, len(drawn) - tasks + 1, tasks)]
        assert all(sorted(epoch) == list(range(tasks)) for epoch in whole)


@pytest.mark.parametrize(("tasks", "size"), [(8, 4), (6, 3), (5, 1)])
def test_epochs_that_end_with_a_step_are_plain_shuffles(tasks: int, size: int) -> None:
    one = TaskDraw(IDS[:tasks], seed=3, size=size, generations=4)
    for epoch in range(4):
        plain = random.Random(3 * 1000 + epoch).sample(range(tasks), tasks)
        steps = range(epoch * tasks // size, (epoch + 1) * tasks // size)
        assert [place for step in steps for place in one.draw(step)] == plain
