"""Measures of agreement against published values and other implementations; the policy by cases."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.reviews.agreement import (
    Judged,
    alpha_interval,
    between_reviewers,
    calibration,
    cohen_kappa,
    decide,
    disagreements,
    edit_effect,
    is_held_out,
    kappa_interval,
    kappa_standard_error,
    krippendorff_alpha,
    ranks,
    rates,
    reviewers_alpha,
    spearman,
    weighted_kappa,
)

_ = None
# Krippendorff (2011), “Computing Krippendorff's Alpha-Reliability”, section E: four observers, twelve units.
OBSERVERS = (
    (1, 2, 3, 3, 2, 1, 4, 1, 2, _, _, _),
    (1, 2, 3, 3, 2, 2, 4, 1, 2, 5, _, 3),
    (_, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, _),
    (1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, _),
)
UNITS = list(zip(*OBSERVERS, strict=True))


@pytest.mark.parametrize(("level", "alpha"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_alpha_of_the_published_example(level: Any, alpha: float) -> None:
    assert krippendorff_alpha(UNITS, level) == pytest.approx(alpha, abs=5e-4)
    low, high = alpha_interval(UNITS, level, rounds=200) or (0, 0)
    assert low < alpha < high <= 1.0


def test_alpha_of_two_observers_and_binary_data() -> None:
    """Section A of the same paper: α = 0.095."""
    first, second = (0, 1, 0, 0, 0, 0, 0, 0, 1, 0), (1, 1, 1, 0, 0, 1, 0, 0, 0, 0)
    assert krippendorff_alpha(list(zip(first, second, strict=True))) == pytest.approx(0.095, abs=5e-4)


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
    error = kappa_standard_error(person, verifier)
    low, high = kappa_interval(person, verifier)
    assert error is not None and (high - low) / 2 == pytest.approx(1.96 * error, rel=0.08)
    assert low < 0.4 < high


def test_perfect_agreement_on_few_samples_is_not_certain() -> None:
    few, many = kappa_interval(*table(5, 0, 0, 5)), kappa_interval(*table(50, 0, 0, 50))
    assert few is not None and many is not None and few[1] == many[1] == 1.0
    assert few[0] < 0.6 < 0.9 < many[0] < 1


@pytest.mark.parametrize("weights", ["linear", "quadratic"])
def test_weighted_kappa_is_that_of_scikit_learn(weights: Any) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(3)
    first = random.integers(0, 5, 80)
    second = np.clip(first + random.integers(-1, 3, 80), 0, 4)
    found = weighted_kappa(first.tolist(), second.tolist(), [0, 1, 2, 3, 4], weights)
    assert found == pytest.approx(metrics.cohen_kappa_score(first, second, weights=weights))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_unweighted_is_weighted_kappa_of_two_values(pairs: list[tuple[bool, bool]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    plain, weighted = cohen_kappa(first, second), weighted_kappa(first, second, [False, True])
    assert (plain is None) == (weighted is None)
    assert plain is None or plain == pytest.approx(weighted)


def test_weighted_kappa_names_an_unknown_value() -> None:
    with pytest.raises(ValueError, match="'good' is not among"):
        weighted_kappa(["good"], ["bad"], ["bad", "fair"])


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
        "false_positive": (5, 20), "false_negative": (10, 40), "precision": (30, 35), "recall": (30, 40),
        "agreement": (45, 60),
    }  # fmt: skip
    assert all(item.low < item.value < item.high for item in found.values())
    assert rates([(True, True)])["false_positive"].value is None


def test_calibration_bins_and_error() -> None:
    bins, error = calibration([0.1, 0.1, 0.9, 0.9, 1.0], [False, True, True, True, True], bins=2)
    assert [(item.judged.count, item.judged.n) for item in bins] == [(1, 2), (3, 3)]
    assert error == pytest.approx((2 * 0.4 + 3 * (1 - 2.8 / 3)) / 5)
    scaled, again = calibration([-1.0, 1.0, 5.0], [False, True, True], bins=4, bounds=(-1, 1))
    assert again == 0.0 and scaled[-1].judged.n == 2
    assert calibration([], []) [1] is None  # fmt: skip


def judged(n: int, person: bool, passed: bool, start: int = 0, **more: Any) -> list[Judged]:
    return [Judged(f"{start + i}", passed, float(passed), {"ann": person}, **more) for i in range(n)]


GOOD = judged(30, True, True) + judged(30, False, False, 100)


@pytest.mark.parametrize(
    ("policy", "judgements", "reasons"),
    [
        ({}, GOOD, []),
        ({}, GOOD[:20] + GOOD[-20:], ["40 of at least 50"]),
        ({}, judged(60, True, True), ["κ is not defined", "no judged sample is a failure"]),
        ({}, [*GOOD, Judged("x", True, 1.0, {"ann": True, "bob": False})], ["split on 1 sample;"]),
        ({}, [*GOOD, Judged("x", True, 1.0, {"ann": True, "bob": False}, decided=True)], []),
        # 60 with κ = 0.67, lower end about 0.48
        ({"kappa_on": "lower"}, judged(24, True, True) + judged(10, True, False, 100) + judged(26, False, False, 200), ["lower end"]),
        ({}, judged(24, True, True) + judged(10, True, False, 100) + judged(26, False, False, 200), []),
        ({}, GOOD + judged(3, False, True, 300), ["9.1% of what people fail (3 samples, 95% interval 3% to 24%); the rate"]),
        ({"false_positive_on": "upper"}, GOOD, ["0.0% of what people fail (0 samples"]),
    ],
)  # fmt: skip
def test_the_policy_says_what_is_missing(policy: dict, judgements: list[Judged], reasons: list[str]) -> None:
    found = decide(policy, judgements)
    assert found.passed == (not reasons) and len(found.reasons) == len(reasons), found.reasons
    assert all(part in said for part, said in zip(reasons, found.reasons, strict=True)), found.reasons


@pytest.mark.parametrize("policy", [{"kappa_on": "middle"}, {"false_positive_on": "lower"}])
def test_a_policy_that_says_nothing_is_refused(policy: dict) -> None:
    with pytest.raises(ValueError, match="not '"):
        decide(policy, GOOD)


def test_disagreements_come_worst_first() -> None:
    items = [
        Judged("pass", True, 1.0, {"ann": True}), Judged("small", True, 0.7, {"ann": False}),
        Judged("lost", False, -1.0, {"ann": True}), Judged("worst", True, 1.0, {"ann": False}),
        Judged("nearly", False, 0.6, {"ann": True}), Judged("split", True, 1.0, {"ann": True, "bob": False}),
    ]  # fmt: skip
    assert [item.item for item in disagreements(items)] == ["worst", "small", "lost", "nearly"]


def test_reviewers_are_compared_where_they_meet() -> None:
    items = [Judged(str(i), True, 1.0, {"ann": i % 2 == 0, "bob": i % 2 == 0}) for i in range(10)]
    items += [Judged("only cas", True, 1.0, {"cas": True}), Judged("x", True, 1.0, {"bob": True, "cas": False})]
    found = {(item.first, item.second): item for item in between_reviewers(items)}
    assert set(found) == {("ann", "bob"), ("bob", "cas")}
    assert found["ann", "bob"].kappa == 1.0 and found["bob", "cas"].agreement.value == 0.0
    assert 0.5 < (reviewers_alpha(items) or 0) < 1


def test_an_edit_is_measured_apart_on_held_out_labels() -> None:
    labels = {f"sample {i}": i % 2 == 0 for i in range(400)}
    before = dict.fromkeys(labels, True)
    fitted_only = {item: (word if not is_held_out(item) else True) for item, word in labels.items()}
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
