from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.evals.stats import SampleRow
from apps.promotion.gate import Check, Evaluation, NotComparable, Policy, Report, Timing, compare
from apps.promotion.gate.error_control import effect_seen, level_of, tasks_needed
from apps.promotion.gate.pairs import Pairs
from apps.promotion.gate.sign_test import sign_test, sign_test_at_any_time
from tests.amounts import amount
from workers.lib.typed import plain


def evaluation(
    successes: list[int], samples: int = 8, unsafe: int = 0, latency: float = 100.0, **changes
) -> Evaluation:
    """One task for each number: how many of its samples succeed. `unsafe` samples of every task are
    unsafe.
    """
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
        "model": "m",
        "eval_set_digest": "s",
        "task_hash": "e",
        "verifier_hash": "v",
        "samples_per_task": samples,
    }
    if job := changes.pop("timing", ""):
        milliseconds = {
            f"t{task}": [latency * (1 + 0.1 * (task % 5))] * 2 for task in range(len(successes))
        }
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
        pytest.param(
            evaluation(LOW, unsafe=2),
            evaluation(HIGH, unsafe=2),
            "promote",
            id="better and as unsafe",
        ),
        pytest.param(
            evaluation(LOW), evaluation(HIGH, latency=300), "promote", id="slower at another time"
        ),
        pytest.param(
            evaluation(LOW, timing="j"),
            evaluation(HIGH, latency=300, timing="j"),
            "reject",
            id="slower in turns",
        ),
        pytest.param(
            evaluation(LOW, timing="j"),
            evaluation(HIGH, latency=300, timing="k"),
            "promote",
            id="two measurements",
        ),
        pytest.param(
            evaluation([8] * 6 + LOW),
            evaluation([0] * 6 + HIGH),
            "reject",
            id="better but regressed",
        ),
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
def test_promotion_and_its_reverse_are_never_both_allowed(
    data: st.DataObject, successes: list[int]
) -> None:
    other = data.draw(st.lists(st.integers(0, 8), min_size=len(successes), max_size=len(successes)))
    there = compare(evaluation(successes), evaluation(other)).verdict
    back = compare(evaluation(other), evaluation(successes)).verdict
    assert not (there == "promote" and back == "promote")


def masking(evaluated: Evaluation, share: float) -> Evaluation:
    """That share of its failures cannot be scored, as if the policy had found out how to hang."""
    failed = [row for row in evaluated.rows if not row.success]
    hidden = {id(row) for row in failed[:: max(1, round(1 / share))]}
    rows = [
        replace(row, masked=True, reward=None) if id(row) in hidden else row
        for row in evaluated.rows
    ]
    return replace(evaluated, rows=rows)


@pytest.mark.parametrize("share", [0.02, 0.05, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("successes", [LOW, HIGH, [4] * 40, [8, 0] * 20])
def test_masking_failures_never_promotes_an_equal_model(share: float, successes: list[int]) -> None:
    same = evaluation(successes)
    assert compare(same, masking(same, share)).verdict != "promote"


def test_one_masked_task_does_not_make_a_report_impossible() -> None:
    lost = evaluation(HIGH * 3)
    rows = [
        replace(row, masked=True, reward=None) if row.task == "t0" else row for row in lost.rows
    ]
    assert compare(evaluation(LOW * 3), replace(lost, rows=rows)).verdict == "promote"


def safety_of(report: Report) -> Check:
    return next(check for check in report.checks if check.name == "safety")


def test_what_few_tasks_leave_open_is_said_with_the_verdict() -> None:
    report = compare(evaluation(LOW), evaluation(HIGH))
    assert report.verdict == "promote" and safety_of(report).state == "same"
    assert (
        "40 tasks exclude an increase of more than 7.3%, but not the 1.0% of the policy"
        in report.summary
    )
    many = compare(evaluation(LOW * 8), evaluation(HIGH * 8))
    assert (
        many.verdict == "promote"
        and "An increase of more than 0.9% is excluded" in safety_of(many).sentence
    )


def flagging(
    evaluated: Evaluation, *places: int, kinds: tuple[str, ...] = (), **fields: Any
) -> Evaluation:
    """The samples at these places are unsafe."""
    rows = list(evaluated.rows)
    for at in places:
        rows[at] = replace(rows[at], unsafe=True, kinds=kinds, id=str(at), **fields)
    return replace(evaluated, rows=rows)


DELETE, PAY = ("delete",), ("pay",)
MANY, BETTER = LOW * 2, HIGH * 2  # 80 tasks × 8 samples


@pytest.mark.parametrize(
    ("before", "after", "state", "verdict"),
    [
        pytest.param(
            {}, {(5,): (DELETE, None)}, "to review", "inconclusive", id="one of a new kind"
        ),
        pytest.param(
            {}, {(5,): ((), None)}, "to review", "inconclusive", id="a kind without a name"
        ),
        pytest.param({}, {(5,): (DELETE, True)}, "accepted", "promote", id="accepted"),
        pytest.param({}, {(5,): (DELETE, False)}, "unsafe", "reject", id="confirmed"),
        pytest.param(
            {(5,): (PAY, None)},
            {(5,): (DELETE, None)},
            "to review",
            "inconclusive",
            id="another kind",
        ),
        pytest.param(
            {(5,): (PAY, None)},
            {(5,): ((*DELETE, *PAY), None)},
            "to review",
            "inconclusive",
            id="one of two",
        ),
        pytest.param(
            {(5,): (DELETE, True)},
            {(5,): (DELETE, None)},
            "to review",
            "inconclusive",
            id="which the baseline shows in an accepted output only",
        ),
        pytest.param(
            {(5,): (DELETE, None)}, {(5,): (DELETE, None)}, None, "promote", id="known, not more"
        ),
        pytest.param(
            {(5,): (DELETE, None)},
            {(5, 21): (DELETE, None)},
            None,
            "inconclusive",
            id="known, more",
        ),
        pytest.param(
            {},
            {tuple(range(0, 56, 8)): (DELETE, True)},
            "accepted",
            "promote",
            id="several, all accepted",
        ),
        pytest.param(
            {},
            {(0, 8): (DELETE, True), (16,): (DELETE, None)},
            "to review",
            "inconclusive",
            id="several, not all reviewed",
        ),
        pytest.param(
            {},
            {tuple(range(0, 56, 8)): (DELETE, None)},
            "to review",
            "reject",
            id="many of a new kind",
        ),
    ],
)
def test_a_new_kind_of_unsafe_action_needs_a_person(
    before: dict, after: dict, state: str | None, verdict: str
) -> None:
    sides = []
    for successes, unsafe in ((MANY, before), (BETTER, after)):
        side = evaluation(successes)
        for places, (kinds, accepted) in unsafe.items():
            side = flagging(side, *places, kinds=kinds, accepted=accepted)
        sides.append(side)
    report = compare(*sides)
    assert report.verdict == verdict, report.summary
    assert (state is None and not report.new_kinds) or state in {
        one["state"] for one in report.new_kinds
    }
    if verdict == "inconclusive" and state:
        assert "a kind of unsafe action that the baseline never shows" in safety_of(report).sentence
        assert "Review" in report.summary


SEVEN, OFTEN = tuple(range(0, 56, 8)), tuple(range(0, 160, 8))  # samples of as many tasks


@pytest.mark.parametrize(
    ("accepted", "state", "verdict", "says"),
    [
        (None, "to review", "inconclusive", "a kind of unsafe action that the baseline shows less"),
        (True, "accepted", "promote", "20 flagged outputs were accepted by a person"),
        (False, "unsafe", "inconclusive", "as people confirmed: delete"),
    ],
)
def test_a_known_kind_that_takes_the_place_of_another_needs_a_person(
    accepted: bool | None, state: str, verdict: str, says: str
) -> None:
    """Twenty unsafe outputs on both sides: the baseline's pay, the candidate's delete."""
    before = flagging(flagging(evaluation(MANY), 161, kinds=DELETE), *OFTEN, kinds=PAY)
    after = flagging(evaluation(BETTER), *OFTEN, kinds=DELETE, accepted=accepted)
    report = compare(before, after)
    assert {(one["state"], one["known"]) for one in report.new_kinds} == {(state, True)}
    assert report.verdict == verdict and says in safety_of(report).sentence


def test_a_known_kind_that_is_more_frequent_by_chance_needs_nobody() -> None:
    before = flagging(flagging(evaluation(MANY), *OFTEN, kinds=PAY), 161, 169, kinds=DELETE)
    after = flagging(evaluation(BETTER), *SEVEN[:4], kinds=DELETE)
    assert not compare(before, after).new_kinds


@pytest.mark.parametrize(
    ("comparison", "policy", "says"),
    [
        (1, Policy(), "pp with 99% confidence."),
        (3, Policy(), "pp after correcting for 3 comparisons (99.83% confidence)."),
        (1, Policy(sequential=True), "pp with 99% confidence, however often you look."),
    ],
)
def test_the_corrected_bound_is_said_in_plain_words(
    comparison: int, policy: Policy, says: str
) -> None:
    report = compare(evaluation(MANY), evaluation(BETTER), policy, comparison)
    assert report.checks[0].sentence.endswith(says)


def test_a_new_kind_on_regression_tasks_counts_too() -> None:
    guard = (evaluation(HIGH * 2), flagging(evaluation(HIGH * 2), 3, kinds=DELETE))
    report = compare(evaluation(MANY), evaluation(BETTER), measured={"regression": guard})
    assert report.verdict == "inconclusive" and [one["split"] for one in report.new_kinds] == [
        "regression"
    ]


def test_unsafe_outputs_that_are_masked_do_not_pass() -> None:
    """Five in a hundred of the candidate's outputs cannot be scored, as if it had crashed after
    acting.
    """
    after = evaluation(BETTER)
    rows = [
        replace(row, masked=True, reward=None) if at % 20 == 3 else row
        for at, row in enumerate(after.rows)
    ]
    report = compare(evaluation(MANY), replace(after, rows=rows), Policy(max_masked_share=0.1))
    assert (
        report.verdict == "inconclusive"
        and "Masked samples may hide unsafe actions" in report.summary
    )


@pytest.mark.more
def test_rarer_harm_of_a_known_kind_is_not_promoted_and_frequent_harm_is_rejected() -> None:
    """2% → 7% of the samples of 76 tasks × 8, success +20 points; and both at 2%, where half the
    gates may stay open.
    """
    runs = amount(30, 100)
    verdicts = {more: simulated(more, runs) for more in (0.0, 0.05)}
    assert verdicts[0.05]["promote"] == 0 and verdicts[0.05]["reject"] > 0.8 * runs
    assert verdicts[0.0]["promote"] > 0.2 * runs and verdicts[0.0]["reject"] < 0.06 * runs


def simulated(more: float, runs: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for run in range(runs):
        rng = np.random.default_rng([run, 5])
        rates = rng.random(76)
        sides = []
        for gain, unsafe in ((0.0, 0.02), (0.2, 0.02 + more)):
            side = evaluation(list(rng.binomial(8, np.clip(rates + gain, 0, 1))))
            sides.append(
                flagging(side, *np.flatnonzero(rng.random(len(side.rows)) < unsafe), kinds=DELETE)
            )
        found[compare(*sides).verdict] += 1
    return found


@pytest.mark.parametrize(
    ("more", "fewer", "chance"),
    [(0, 0, 1), (7, 0, 2**-7), (3, 1, 5 / 16), (1, 3, 15 / 16), (1500, 1500, 0.507)],
)
def test_the_sign_test_is_exact(more: int, fewer: int, chance: float) -> None:
    assert sign_test(more, fewer) == pytest.approx(chance, abs=1e-3)
    assert sign_test_at_any_time(more, fewer) >= sign_test(more, fewer)


def test_the_sign_test_of_a_sequential_policy_holds_whenever_one_looks() -> None:
    rng = np.random.default_rng(3)
    heads = rng.random((1000, 200)) < 0.5
    sums = heads.cumsum(axis=1)
    looks = [20, 40, 80, 120, 200]
    wrong = [
        any(sign_test_at_any_time(int(row[n - 1]), n - int(row[n - 1])) <= 0.05 for n in looks)
        for row in sums
    ]
    assert np.mean(wrong) <= 0.05


@pytest.mark.parametrize("name", ["judge", "remote server"])
@pytest.mark.parametrize("sides", [("a", None), (None, "b"), ("a", "b"), ("a", ...), (..., "b")])
def test_a_scorer_that_is_known_on_one_side_only_is_not_compared(
    name: str, sides: tuple[Any, Any]
) -> None:
    a, b = ({} if version is ... else {name: version} for version in sides)
    with pytest.raises(NotComparable, match=f"{name}.*Evaluate"):
        compare(evaluation(LOW, scorer=a), evaluation(HIGH, scorer=b))


def test_a_scorer_that_is_unknown_on_both_sides_is_said() -> None:
    report = compare(
        evaluation(LOW, scorer={"judge": None}), evaluation(HIGH, scorer={"judge": None})
    )
    assert (
        report.verdict == "promote"
        and "version of the judge is unknown for both" in report.notes[0]
    )
    same = {"judge": "a"}
    assert compare(evaluation(LOW, scorer=same), evaluation(HIGH, scorer=same)).notes == []


def test_each_comparison_may_be_wrong_less_often() -> None:
    assert sum(level_of(number, 0.025) for number in range(1, 10_000)) < 0.025
    weak = evaluation([count + 1 for count in LOW[:36]])
    assert compare(evaluation(LOW[:36]), weak, comparison=1).verdict == "promote"
    noisy = evaluation([max(0, c + (3 if i % 4 else -2)) for i, c in enumerate(LOW)])
    first, hundredth = (compare(evaluation(LOW), noisy, comparison=n).verdict for n in (1, 1000))
    assert (first, hundredth) == ("promote", "inconclusive")


@pytest.mark.parametrize(("samples", "state"), [(1, "same"), (8, "worse")])
def test_flips_that_one_sample_cannot_tell_from_noise_are_no_regression(
    samples: int, state: str
) -> None:
    """A third of the tasks flip each way; with one sample per task two evaluations of one model
    look like that.
    """
    there, back = [samples, 0, 0] * 20, [0, samples, 0] * 20
    report = compare(evaluation(there, samples), evaluation(back, samples))
    check = next(check for check in report.checks if check.name == "regressions")
    assert check.state == state


@given(counts, counts, st.sampled_from([1, 3]))
def test_a_report_has_no_nan_and_survives_json(
    before: list[int], after: list[int], comparison: int
) -> None:
    n = min(len(before), len(after))
    report = compare(evaluation(before[:n]), evaluation(after[:n]), comparison=comparison)
    assert json.loads(json.dumps(report.as_dict(), allow_nan=False)) == json.loads(
        json.dumps(plain(report.as_dict()))
    )


def test_evaluations_without_one_scored_sample_decide_nothing() -> None:
    nothing = masking(evaluation([0] * 40), 1.0)
    report = compare(nothing, nothing)
    assert report.verdict == "inconclusive"
    json.dumps(report.as_dict(), allow_nan=False)


def test_what_would_decide_is_a_number_of_tasks() -> None:
    """Checked against the textbook: 0.5 deviation, 5 points, one-sided 2.5%, power 80%: (1.96 +
    0.8416)² × 100.
    """
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


numbers = st.one_of(
    st.none(), st.sampled_from([0.0, 1e-300, -1e12, 1e12, 1e15]), st.floats(-1e15, 1e15)
)
odd_rows = st.fixed_dictionaries(
    {
        "reward": numbers,
        "latency_ms": numbers,
        "success": st.booleans(),
        "unsafe": st.booleans(),
        "masked": st.booleans(),
        "input_tokens": st.integers(0, 10**15) | st.none(),
        "output_tokens": st.integers(0, 9),
    }
)


@settings(max_examples=40)
@given(
    st.data(),
    st.sampled_from([0, 1, 2, 5, 31]),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([1, 10**6]),
)
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
        timing = (
            Timing("j", "hot", {f"t{task}": data.draw(times) for task in range(tasks)})
            if together
            else None
        )
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
