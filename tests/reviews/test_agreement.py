"""Measures of agreement against published values and other implementations; the policy by cases."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.reviews.agreement import (
    Judged,
    alpha_interval,
    calibration,
    cohen_kappa,
    decide,
    disagreements,
    edit_effect,
    is_held_out,
    kappa_interval,
    krippendorff_alpha,
    ranks,
    rates,
    spearman,
)
from apps.reviews.policy import DEFAULTS

_ = None
# Krippendorff (2011), “Computing Krippendorff's Alpha-Reliability”, section E: four observers,
# twelve units.
OBSERVERS = (
    (1, 2, 3, 3, 2, 1, 4, 1, 2, _, _, _),
    (1, 2, 3, 3, 2, 2, 4, 1, 2, 5, _, 3),
    (_, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, _),
    (1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, _),
)
UNITS = list(zip(*OBSERVERS, strict=True))


def test_alpha_of_the_published_example() -> None:
    assert krippendorff_alpha(UNITS) == pytest.approx(0.743, abs=5e-4)
    low, high = alpha_interval(UNITS) or (0, 0)
    assert low < 0.743 < high <= 1.0


def test_perfect_agreement_of_few_reviewers_is_not_certain() -> None:
    few, many = alpha_interval([(0, 0), (1, 1)] * 4), alpha_interval([(0, 0), (1, 1)] * 40)
    assert few is not None and many is not None and few[1] == many[1] == 1.0
    assert few[0] < 0.6 < 0.9 < many[0] < 1


def test_alpha_of_two_observers_and_binary_data() -> None:
    """Section A of the same paper: α = 0.095."""
    first, second = (0, 1, 0, 0, 0, 0, 0, 0, 1, 0), (1, 1, 1, 0, 0, 1, 0, 0, 0, 0)
    assert krippendorff_alpha(list(zip(first, second, strict=True))) == pytest.approx(
        0.095, abs=5e-4
    )


@pytest.mark.parametrize("units", [[], [(1, None)], [(1, 1), (1, 1)], [(None, None)]])
def test_alpha_is_not_defined_without_two_values(units: list) -> None:
    assert krippendorff_alpha(units) is None and alpha_interval(units) is None


def table(both: int, person: int, verifier: int, neither: int) -> tuple[list[bool], list[bool]]:
    return (
        [True] * (both + person) + [False] * (verifier + neither),
        [True] * both + [False] * person + [True] * verifier + [False] * neither,
    )


def test_the_bootstrap_of_kappa_agrees_with_the_large_sample_error() -> None:
    person, verifier = table(200, 50, 100, 150)
    error = 0.0401  # Fleiss, Cohen & Everitt 1969, eq. 13
    low, high = kappa_interval(person, verifier)
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.08)
    assert low < 0.4 < high


def test_perfect_agreement_on_few_samples_is_not_certain() -> None:
    few, many = kappa_interval(*table(5, 0, 0, 5)), kappa_interval(*table(50, 0, 0, 50))
    assert few is not None and many is not None and few[1] == many[1] == 1.0
    assert few[0] < 0.6 < 0.9 < many[0] < 1


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=60))
def test_kappa_is_that_of_scikit_learn(pairs: list[tuple[bool, bool]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    if (found := cohen_kappa(first, second)) is None:
        assert len({*first, *second}) == 1
    else:
        assert found == pytest.approx(metrics.cohen_kappa_score(first, second))


@given(
    st.lists(
        st.lists(st.sampled_from([0, 1, 2, None]), min_size=3, max_size=3), min_size=2, max_size=30
    )
)
def test_alpha_is_that_of_the_krippendorff_package(units: list[list[int | None]]) -> None:
    package = pytest.importorskip("krippendorff")
    found = krippendorff_alpha(units)
    if found is not None:
        data = [
            [np.nan if value is None else value for value in row]
            for row in zip(*units, strict=True)
        ]
        assert found == pytest.approx(package.alpha(data, level_of_measurement="nominal"))


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=3, max_size=30))
def test_spearman_is_that_of_scipy(pairs: list[tuple[int, int]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    found = spearman(first, second)
    assert ranks(first) == pytest.approx(stats.rankdata(first))
    if found.value is None:
        assert len(set(first)) == 1 or len(set(second)) == 1
        return
    assert found.value == pytest.approx(stats.spearmanr(first, second).statistic)
    assert found.low is None or found.low <= found.value <= found.high


def test_rates_say_of_what_they_are() -> None:
    found = rates(list(zip(*table(30, 10, 5, 15), strict=True)))
    assert {name: (item.count, item.n) for name, item in found.items()} == {
        "false_positive": (5, 20),
        "false_negative": (10, 40),
        "precision": (30, 35),
        "recall": (30, 40),
        "agreement": (45, 60),
    }
    assert all(item.low < item.value < item.high for item in found.values())
    assert rates([(True, True)])["false_positive"].value is None


def test_calibration_bins_and_error() -> None:
    bins, error = calibration([0.1, 0.1, 0.9, 0.9, 1.0], [False, True, True, True, True], bins=2)
    assert [(item.judged.count, item.judged.n) for item in bins] == [(1, 2), (3, 3)]
    assert error == pytest.approx((2 * 0.4 + 3 * (1 - 2.8 / 3)) / 5)
    scaled, again = calibration([-1.0, 1.0, 5.0], [False, True, True], bins=4, bounds=(-1, 1))
    assert again == 0.0 and scaled[-1].judged.n == 2
    assert calibration([], [])[1] is None


def judged(n: int, person: bool | None, passed: bool, start: int = 0, **more: Any) -> list[Judged]:
    return [Judged(f"{start + i}", passed, float(passed), person, **more) for i in range(n)]


GOOD = judged(30, True, True) + judged(30, False, False, 100)
POLICY = DEFAULTS | {"reviewers_per_sample": 1}


@pytest.mark.parametrize(
    ("policy", "judgements", "reasons"),
    [
        ({}, GOOD, []),
        (
            {},
            GOOD[:20] + GOOD[-20:],
            [
                "40 of at least 50",
                (
                    "0 of 20 samples, 95% interval 0% to 16%); the upper end may be at most 15%."
                    " About 2 more judged failures"
                ),
            ],
        ),
        (
            {},
            judged(60, True, True),
            ["κ of people and verifier is not defined", "none of the judged samples is a failure"],
        ),
        # κ = 0.67, and accuracy 83%, of 60: neither may be as low as the lower ends
        (
            {},
            judged(24, True, True) + judged(10, True, False, 100) + judged(26, False, False, 200),
            ["0.68 (95% interval", "right on 83.3% of 60"],
        ),
        (
            {"min_kappa": 0.4, "min_accuracy": 0.7},
            judged(24, True, True) + judged(10, True, False, 100) + judged(26, False, False, 200),
            [],
        ),
        (
            {},
            GOOD + judged(3, False, True, 300),
            ["9.1% of what people fail (3 of 33 samples, 95% interval 3% to 24%); the upper end"],
        ),
        ({"max_false_positive_rate": 0.02}, GOOD, ["0.0% of what people fail (0 of 30 samples"]),
        # What waits for a ruling counts against the verifier.
        (
            {},
            GOOD + judged(12, None, True, 300, waiting=True),
            [
                "κ of people and verifier is 0.68",
                "right on 83.3% of 72",
                "28.6% of what people fail",
            ],
        ),
        ({}, GOOD + judged(12, None, True, 300), []),
    ],
)
def test_the_policy_says_what_is_missing(
    policy: dict, judgements: list[Judged], reasons: list[str]
) -> None:
    found = decide(POLICY | policy, judgements)
    assert found.passed == (not reasons) and len(found.reasons) == len(reasons), found.reasons
    assert all(part in said for part, said in zip(reasons, found.reasons, strict=True)), (
        found.reasons
    )


def test_reviewers_who_differ_hold_the_lock_however_it_is_ruled() -> None:
    """All rulings go with the verifier, so κ is 1; α counts what the reviewers said."""
    words = [
        (item.passed, item.passed if number % 3 else not item.passed)
        for number, item in enumerate(GOOD)
    ]
    found = decide(DEFAULTS, GOOD, words)
    assert found.agreement.kappa == 1.0 and [reason[:22] for reason in found.reasons] == [
        "α among the reviewers i"[:22]
    ]
    assert decide(DEFAULTS, GOOD, [(item.passed, item.passed) for item in GOOD]).passed
    assert decide(POLICY, GOOD, words).passed  # who asks for one reviewer asks for no α


def test_what_is_needed_is_enough() -> None:
    """The page says how many more; with that many of the same kind the lock opens."""
    few = judged(12, True, True) + judged(12, False, False, 100)
    policy = POLICY | {"min_samples": 10}
    needed = [
        int(found.group(1))
        for reason in decide(policy, few).reasons
        if (found := re.search("About ([0-9]+) more", reason))
    ]
    assert len(needed) == 1 and needed[0] == 10  # failures: 22 of them, none passed
    assert decide(policy, few + judged(10, False, False, 300)).passed
    assert not decide(policy, few + judged(9, False, False, 300)).passed


def test_disagreements_come_worst_first() -> None:
    items = [
        Judged("pass", True, 1.0, True),
        Judged("small", True, 0.7, False),
        Judged("lost", False, -1.0, True),
        Judged("worst", True, 1.0, False),
        Judged("nearly", False, 0.6, True),
        Judged("split", True, 1.0, None, waiting=True),
    ]
    assert [item.item for item in disagreements(items)] == ["worst", "small", "lost", "nearly"]


def test_an_edit_is_measured_apart_on_held_out_labels() -> None:
    labels = {f"sample {i}": i % 2 == 0 for i in range(400)}
    before = dict.fromkeys(labels, True)
    fitted_only = {item: word if not is_held_out(item) else True for item, word in labels.items()}
    effect = edit_effect(labels, before, fitted_only)
    gained, kept = effect.fitted["agreement"], effect.held_out["agreement"]
    assert gained.n + kept.n == 400 and 90 < kept.n < 150
    assert gained.after == 1.0 and gained.low > 0.3
    assert kept.difference == kept.low == kept.high == 0.0
    assert effect.fitted["kappa"].before == 0.0 and effect.fitted["kappa"].low == pytest.approx(1.0)


def test_an_edit_without_common_samples_says_nothing() -> None:
    change = edit_effect({"a": True}, {"b": True}, {"a": True}).fitted["kappa"]
    assert (change.n, change.difference, change.low) == (0, None, None)


def test_what_is_held_out_stays_so() -> None:
    chosen = [is_held_out(f"sample {i}", 0.3) for i in range(5000)]
    assert math.isclose(sum(chosen) / 5000, 0.3, abs_tol=0.03)
    assert all(is_held_out(f"{i}", 0.5) for i in range(200) if is_held_out(f"{i}", 0.3))
