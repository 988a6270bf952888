"""Which training tasks are like those that people have judged: tools and origins exactly, words
against the usual.
"""

from __future__ import annotations

import random

import pytest

from apps.reviews.drift import Traits, drift_of, traits
from bench.drift import general, same_requests

MOST = 0.1


def task(
    number: int,
    request: str,
    tool: str = "tickets.close",
    origin: str = "By hand",
    bucket: str = "",
) -> Traits:
    said = [{"role": "user", "content": request}]
    return traits(
        key=f"{tool} {number} {request}",
        group=f"{request[:12]} {number}",
        origin=origin,
        bucket=bucket,
        messages=said,
        expected={"tool": tool, "args": {"id": number}} if tool else {"answer": "42"},
    )


JUDGED = [
    task(n, f"Please close ticket {n} for the {who}.")
    for n in range(20)
    for who in ("client", "vendor")
]


@pytest.mark.parametrize(
    ("training", "kinds"),
    [
        (JUDGED, {}),
        ([task(n, f"Please close ticket {n} for the vendor.") for n in range(100, 140)], {}),
        ([task(n, f"Vendor asks: close {n}!") for n in range(100, 140)], {}),
        (
            [
                task(n, f"Please close ticket {n} for the client.", "tickets.delete")
                for n in range(40)
            ],
            {"tool": 40},
        ),
        (
            [task(n, f"Please close ticket {n} for the client.", "") for n in range(40)],
            {"tool": 40},
        ),
        (
            [
                task(n, f"Please close ticket {n} for the client.", origin="Synthetic")
                for n in range(30, 40)
            ],
            {"origin": 10},
        ),
        (
            [
                task(n, f"Please close ticket {n} for the client.", bucket="unsafe")
                for n in range(30, 40)
            ],
            {"bucket": 10},
        ),
        (
            [task(n, f"Sing of autumn leaves over Kyoto, stanza {n}") for n in range(40)],
            {"text": 40},
        ),
        ([], {}),
    ],
    ids=[
        "the same",
        "new values",
        "other wording",
        "tool",
        "no call",
        "origin",
        "bucket",
        "text",
        "none",
    ],
)
def test_what_is_unlike(training: list[Traits], kinds: dict[str, int]) -> None:
    found = drift_of(training, JUDGED)
    assert found.kinds == kinds and found.unlike == sum(kinds.values()) and found.n == len(training)


def answered(expected: dict, n: int = 0) -> Traits:
    said = [{"role": "user", "content": f"Write a short note on ticket {n}."}]
    return traits(
        key=f"{n}{expected}",
        group=str(n),
        origin="o",
        bucket="",
        messages=said,
        expected=expected,
        request=str(n),
    )


@pytest.mark.parametrize("judged", [{"answer": "done"}, {"constraint": {"contains": ["done"]}}])
@pytest.mark.parametrize(
    "training",
    [
        {"tests": [{"call": "f()", "expected": 1}]},
        {"constraint": {"words": {"max": 9}}},
        {"any_call": True},
    ],
)
def test_what_is_scored_by_other_rules_was_not_judged(judged: dict, training: dict) -> None:
    """The same request, but a verifier pays it by a branch that nobody has seen pay."""
    known = [answered(judged, n) for n in range(20)]
    found = drift_of([answered(training, n) for n in range(100, 110)], known)
    assert found.unlike == 10 and set(found.kinds) <= {"form", "tool"}
    assert drift_of([answered(judged, n) for n in range(100, 110)], known).unlike == 0


def test_a_judged_request_with_another_right_answer_was_not_judged() -> None:
    known = [answered({"answer": "done"}, n) for n in range(20)]
    assert drift_of([answered({"answer": "refused"}, n) for n in range(20)], known).kinds == {
        "answer": 20
    }


def test_nothing_is_like_what_nobody_has_judged() -> None:
    assert drift_of(JUDGED, []).share == 1.0


def test_the_sentence_names_kinds_and_examples() -> None:
    strange = [
        task(n, f"Please close ticket {n} for the client.", tool)
        for n, tool in enumerate(("a.b", "c.d", "a.b"))
    ]
    assert (
        str(drift_of([*JUDGED, *strange], JUDGED))
        == "3 of 43 tasks are unlike those judged: 3 by tool (a.b, c.d)"
    )


@pytest.mark.proof
def test_the_order_does_not_matter() -> None:
    rng = random.Random(5)
    judged, trained = same_requests(rng, 5)
    trained = [*trained[:150], *general(5)[:50]]
    first = drift_of(trained, judged)
    for _ in range(3):
        rng.shuffle(trained)
        rng.shuffle(judged)
        again = drift_of(trained, judged)
        assert (again.unlike, again.kinds) == (first.unlike, first.kinds)
    assert first.share > MOST


@pytest.mark.proof
def test_requests_of_one_kind_are_no_drift_and_half_of_another_kind_is() -> None:
    """A slice of bench.drift."""
    for seed in (11, 12):
        judged, trained = same_requests(random.Random(seed), seed)
        assert drift_of(trained, judged).share <= MOST
        assert drift_of([*trained[:100], *general(seed)[:100]], judged).share > MOST
