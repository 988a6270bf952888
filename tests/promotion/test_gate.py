from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.evals.stats import SampleRow
from apps.promotion.gate import Evaluation, NotComparable, Policy, Timing, compare
from apps.promotion.gate.error_control import effect_seen, level_of, tasks_needed
from apps.promotion.gate.pairs import Pairs
from workers.lib.typed import plain


def evaluation(
    successes: list[int], samples: int = 8, unsafe: int = 0, latency: float = 100.0, **changes
) -> Evaluation:
    """One task for each number: how many of its samples succeed. `unsafe` samples of every task are unsafe."""
    rows = [
        SampleRow(
            task=f"t{task}",
            reward=1.0 if index < count else -1.0,
            success=index < count,
            unsafe=index >= samples - unsafe,
            latency_ms=latency,
            input_tokens=100,
            output_tokens=20,
        )
        for task, count in enumerate(successes)
        for index in range(samples)
    ]
    fields = {
        "model": "m", "eval_set_digest": "s", "task_hash": "e", "verifier_hash": "v", "samples_per_task": samples
    }  # fmt: skip
    if job := changes.pop("timing", ""):
        milliseconds = {f"t{task}": [latency * (1 + 0.1 * (task % 5))] * 2 for task in range(len(successes))}
        changes["timing"] = Timing(job, "adapters merged into the base", milliseconds)
    return Evaluation(**(fields | changes), rows=rows)


LOW, HIGH = [2, 3, 1, 2] * 10, [6, 7, 5, 8] * 10


@pytest.mark.parametrize(
    ("baseline", "candidate", "verdict"),
    [
        pytest.param(evaluation(LOW), evaluation(HIGH), "promote", id="better"),
        pytest.param(evaluation(HIGH), evaluation(LOW), "reject", id="worse"),
        pytest.param(evaluation(LOW), evaluation(LOW), "inconclusive", id="the same"),
        pytest.param(evaluation(LOW[:8]), evaluation(HIGH[:8]), "inconclusive", id="too few tasks"),
        pytest.param(evaluation(LOW), evaluation(HIGH, unsafe=2), "reject", id="better but unsafe"),
        pytest.param(evaluation(LOW, unsafe=2), evaluation(HIGH), "promote", id="better and safer"),
        pytest.param(evaluation(LOW), evaluation(HIGH, latency=300), "promote", id="slower at another time"),
        pytest.param(
            evaluation(LOW, timing="j"), evaluation(HIGH, latency=300, timing="j"), "reject", id="slower in turns"
        ),
        pytest.param(
            evaluation(LOW, timing="j"), evaluation(HIGH, latency=300, timing="k"), "promote", id="two measurements"
        ),
        pytest.param(evaluation([8] * 6 + LOW), evaluation([0] * 6 + HIGH), "reject", id="better but regressed"),
    ],
)
def test_verdicts(baseline: Evaluation, candidate: Evaluation, verdict: str) -> None:
    report = compare(baseline, candidate)
    assert report.verdict == verdict, report.summary


def test_it_names_the_tasks_that_regressed_and_improved() -> None:
    report = compare(evaluation([8, 0, 4] * 12), evaluation([0, 8, 4] * 12))
    assert report.regressed == sorted(f"t{i}" for i in range(0, 36, 3))
    assert report.improved == sorted(f"t{i}" for i in range(1, 36, 3))


@pytest.mark.parametrize("field", ["eval_set_digest", "task_hash", "verifier_hash"])
def test_it_refuses_evaluations_that_differ(field: str) -> None:
    with pytest.raises(NotComparable):
        compare(evaluation(LOW), evaluation(HIGH, **{field: "other"}))


def test_it_refuses_different_tasks() -> None:
    with pytest.raises(NotComparable):
        compare(evaluation(LOW), evaluation([*HIGH, 3]))


counts = st.lists(st.integers(0, 8), min_size=2, max_size=60)


@given(counts)
def test_nothing_is_better_than_itself(successes: list[int]) -> None:
    same = evaluation(successes)
    assert compare(same, same).verdict == "inconclusive"


@given(st.data(), counts)
def test_promotion_and_its_reverse_are_never_both_allowed(data: st.DataObject, successes: list[int]) -> None:
    other = data.draw(st.lists(st.integers(0, 8), min_size=len(successes), max_size=len(successes)))
    there = compare(evaluation(successes), evaluation(other)).verdict
    back = compare(evaluation(other), evaluation(successes)).verdict
    assert not (there == "promote" and back == "promote")


def masking(evaluated: Evaluation, share: float) -> Evaluation:
    """That share of its failures cannot be scored, as if the policy had found out how to hang."""
    failed = [row for row in evaluated.rows if not row.success]
    hidden = {id(row) for row in failed[:: max(1, round(1 / share))]}
    rows = [replace(row, masked=True, reward=None) if id(row) in hidden else row for row in evaluated.rows]
    return replace(evaluated, rows=rows)


@pytest.mark.parametrize("share", [0.02, 0.05, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("successes", [LOW, HIGH, [4] * 40, [8, 0] * 20])
def test_masking_failures_never_promotes_an_equal_model(share: float, successes: list[int]) -> None:
    same = evaluation(successes)
    assert compare(same, masking(same, share)).verdict != "promote"


def test_one_masked_task_does_not_make_a_report_impossible() -> None:
    lost = evaluation(HIGH * 2)
    rows = [replace(row, masked=True, reward=None) if row.task == "t0" else row for row in lost.rows]
    assert compare(evaluation(LOW * 2), replace(lost, rows=rows)).verdict == "promote"


def test_nothing_unsafe_in_few_tasks_is_no_proof() -> None:
    strict = Policy(max_unsafe_increase=0.01)
    report = compare(evaluation(LOW), evaluation(HIGH), strict)
    safety = next(check for check in report.checks if check.name == "safety")
    assert report.verdict == safety.state == "inconclusive" and "Even without a single unsafe action" in safety.decides
    many = compare(evaluation(LOW * 10), evaluation(HIGH * 10), strict)
    assert many.verdict == "promote"


def test_each_comparison_may_be_wrong_less_often() -> None:
    assert sum(level_of(number, 0.025) for number in range(1, 10_000)) < 0.025
    weak = evaluation([count + 1 for count in LOW[:36]])
    assert compare(evaluation(LOW[:36]), weak, comparison=1).verdict == "promote"
    noisy = evaluation([max(0, c + (3 if i % 4 else -2)) for i, c in enumerate(LOW)])
    first, hundredth = (compare(evaluation(LOW), noisy, comparison=n).verdict for n in (1, 1000))
    assert (first, hundredth) == ("promote", "inconclusive")


@pytest.mark.parametrize(("samples", "state"), [(1, "same"), (8, "worse")])
def test_flips_that_one_sample_cannot_tell_from_noise_are_no_regression(samples: int, state: str) -> None:
    """A third of the tasks flip each way; with one sample per task two evaluations of one model look like that."""
    there, back = [samples, 0, 0] * 20, [0, samples, 0] * 20
    report = compare(evaluation(there, samples), evaluation(back, samples))
    check = next(check for check in report.checks if check.name == "regressions")
    assert check.state == state


@given(counts, counts, st.sampled_from([1, 3]))
def test_a_report_has_no_nan_and_survives_json(before: list[int], after: list[int], comparison: int) -> None:
    n = min(len(before), len(after))
    report = compare(evaluation(before[:n]), evaluation(after[:n]), comparison=comparison)
    assert json.loads(json.dumps(report.as_dict(), allow_nan=False)) == json.loads(json.dumps(plain(report.as_dict())))


def test_evaluations_without_one_scored_sample_decide_nothing() -> None:
    nothing = masking(evaluation([0] * 40), 1.0)
    report = compare(nothing, nothing)
    assert report.verdict == "inconclusive"
    json.dumps(report.as_dict(), allow_nan=False)


def test_what_would_decide_is_a_number_of_tasks() -> None:
    """Checked against the textbook: 0.5 deviation, 5 points, one-sided 2.5%, power 80%: (1.96 + 0.8416)² × 100."""
    assert tasks_needed(0.05, 0.5, 0.025) == 785
    assert effect_seen(785, 0.5, 0.025) == pytest.approx(0.05, abs=1e-4)


def test_regressions_by_chance_are_what_dealing_the_samples_out_anew_gives() -> None:
    """The exact quantile lies within the noise of a simulated one."""
    rng = np.random.default_rng(11)
    for size in (1, 4, 8):
        before, after = rng.integers(0, size + 1, (2, 40))
        pairs = Pairs(evaluation(list(before), size), evaluation(list(after), size))
        passed = before + after
        dealt = rng.hypergeometric(passed, 2 * size - passed, size, (20_000, 40))
        found = ((2 * dealt > size) & (2 * (passed - dealt) < size)).sum(1)
        for quantile in (0.5, 0.983):
            low, high = np.quantile(found, [quantile - 0.01, quantile + 0.01], method="higher")
            assert low <= pairs.regressed_by_chance(quantile) <= high


numbers = st.one_of(st.none(), st.sampled_from([0.0, 1e-300, -1e12, 1e12, 1e15]), st.floats(-1e15, 1e15))
odd_rows = st.fixed_dictionaries(
    {
        "reward": numbers, "latency_ms": numbers, "success": st.booleans(), "unsafe": st.booleans(),
        "masked": st.booleans(), "input_tokens": st.integers(0, 10**15) | st.none(), "output_tokens": st.integers(0, 9),
    }
)  # fmt: skip


@settings(max_examples=40)
@given(st.data(), st.sampled_from([0, 1, 2, 5, 31]), st.integers(1, 3), st.booleans(), st.sampled_from([1, 10**6]))
def test_no_input_however_odd_gives_a_nan_or_an_infinity(
    data: st.DataObject, tasks: int, samples: int, together: bool, comparison: int
) -> None:
    """All masked, one task, no task, no spread, extreme numbers: a report is always JSON."""
    kinds = data.draw(st.lists(odd_rows, min_size=1, max_size=4))
    sides = []
    for side in range(2):
        rows = [
            SampleRow(task=f"t{task}", **kinds[(task * (side + 1) + index) % len(kinds)])
            for task in range(tasks)
            for index in range(samples)
        ]
        times = st.lists(st.floats(1e-300, 1e15), min_size=1, max_size=3)
        timing = Timing("j", "hot", {f"t{task}": data.draw(times) for task in range(tasks)}) if together else None
        sides.append(Evaluation("m", "s", "e", "v", samples, rows, timing=timing))
    json.dumps(compare(*sides, comparison=comparison).as_dict(), allow_nan=False)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
@pytest.mark.parametrize("field", ["reward", "latency_ms", "input_tokens"])
def test_a_number_that_is_none_is_refused_by_the_name_of_the_model_and_not_of_a_held_out_task(
    field: str, value: float
) -> None:
    bad = evaluation(LOW)
    bad = replace(bad, rows=[*bad.rows[:9], replace(bad.rows[9], **{field: value}), *bad.rows[10:]])
    with pytest.raises(NotComparable, match=f"A sample of {bad.model} has the {field}") as refused:
        compare(bad, evaluation(HIGH))
    assert "t1" not in str(refused.value)
