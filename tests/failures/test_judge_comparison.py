"""Variants of the judge compared on the same runs."""

from __future__ import annotations

import pytest

from apps.failures.judge.answer import Verdict
from apps.failures.judge.comparison import Answer, better, compare, distance

FINE, BAD = Verdict(), Verdict("bad_planning", 3)


def answers(*verdicts: Verdict | None, failed: str, usd: float = 0.0) -> list[Answer]:
    """For each letter of `failed`, f or -, whether people say that the run failed."""
    named = {"f": ("bad_planning", 3), "-": ("", None)}
    return [
        Answer(verdict, letter == "f", *named[letter], [1, 3], usd)
        for verdict, letter in zip(verdicts, failed, strict=True)
    ]


def test_shares_are_about_the_runs_that_they_are_about() -> None:
    given = answers(BAD, FINE, BAD, None, Verdict("other", 1), failed="ff--f", usd=0.5)
    (found,) = compare([("one", given)])
    hits = {name: (share["hits"], share["n"]) for name, share in found["shares"].items()}
    assert hits == {
        "agreement": (2, 5),
        "recall": (2, 3),
        "false_alarms": (1, 2),
        "same_mode": (1, 3),
        "step": (1, 3),
        "near": (2, 3),
    }
    assert (found["errors"], found["usd"], found["differences"]) == (1, 0.5, {})


def test_a_variant_is_better_only_by_an_interval_that_holds_for_all() -> None:
    failed = "f" * 12
    wrong, right = answers(*[FINE] * 12, failed=failed), answers(*[BAD] * 12, failed=failed)
    little = answers(BAD, BAD, *[FINE] * 10, failed=failed)
    two = compare([("a", wrong), ("b", right)])
    assert better(two, "recall") == "b" and better(two, "false_alarms") == ""
    three = compare([("a", wrong), ("b", right), ("c", little)])
    assert better(three, "recall") == "b"
    assert three[1]["differences"]["recall"][1] < two[1]["differences"]["recall"][1]
    assert three[2]["differences"]["recall"][0] == pytest.approx(1 / 6)
    assert better(compare([("a", wrong), ("c", little)]), "recall") == ""


def test_costs_are_compared_run_by_run() -> None:
    cheap, dear = (answers(*[BAD] * 3, failed="fff", usd=usd) for usd in (0.1, 0.3))
    assert compare([("a", cheap), ("b", dear)])[1]["usd_difference"] == pytest.approx((0.2,) * 3)


def test_distances_are_steps_of_the_agent() -> None:
    assert distance([1, 3, 5], 1, 5) == 2 and distance([1, 3], 3, 3) == 0
    assert distance([1], 1, None) == distance([1], None, 1) == float("inf")
