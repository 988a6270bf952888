"""Answers in mathematics: a slice of the benchmark's pairs, hostile answers, and the helper processes."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.maths import pairs
from workers.lib import maths
from workers.lib.verifiers import Rollout, Score, SpecError, build

PAIRS = list(pairs())


def score(answer: str, output: str, **options: object) -> Score:
    task = {"id": "t", "messages": [], "expected": {"answer": answer}}
    return build({"kind": "math", **options}).score(Rollout.of_text(task, output))


@pytest.mark.parametrize("kind", sorted({pair.kind for pair in PAIRS}))
def test_known_pairs_are_judged_as_they_are(kind: str) -> None:
    chosen = [pair for pair in PAIRS if pair.kind == kind][::4]
    assert {(pair.gold, pair.answer): score(pair.gold, pair.answer).reward for pair in chosen} == {
        (pair.gold, pair.answer): float(pair.truth) for pair in chosen
    }


@pytest.mark.parametrize(
    ("gold", "paid_before"),
    [
        ("1\\frac{4}{5}", "\\frac{4}{5}"),
        ("(1,234)", "1234"),
        ("x=3", "y=3"),
        ("3", "3 or 4"),
        ("\\{1,2\\}", "1, 2, 3"),
        ("2", "x=2=3"),
    ],
)
def test_what_is_nearly_right_is_not_paid(gold: str, paid_before: str) -> None:
    assert score(gold, paid_before).reward == 0.0
    assert score(gold, gold).reward == 1.0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("x" * 600, "wrong answer"), ("x+" * 600 + "x", "1,201 characters; 1,000 are allowed"), ("9" * 100_000, "100,000 characters"),
        ("{" * 400 + "x" + "}" * 400, "not one clear answer"), ("\\frac" * 100, "not one clear answer"), ("(((9!)!)!)!", "too large"), ("9^{9^{9^{9}}}", "too large"),
        ("__import__('os').system('true')", "not one clear answer"), ("().__class__", "not one clear answer"), ("\\sqrt{" * 150, "unbalanced"),
    ],
)  # fmt: skip
def test_an_answer_that_exceeds_a_limit_fails_and_is_not_masked(answer: str, reason: str) -> None:
    found = score("y", answer)
    assert (found.reward, found.masked) == (0.0, False)
    assert reason in found.details[0]


def test_a_comparison_without_end_costs_one_helper_and_the_next_answer_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLYWHEEL_MATHS_CPU_SECONDS", "1")
    own = maths.Helpers(1)
    request = {"gold": "x", "given": "\\sum_{k=1}^{10^{12}} k^{k}", "positive": False}
    with pytest.raises(maths.TooMuch):
        own.ask(request)
    assert own.ask(request | {"given": "x"})["same"]
    own.close()


def test_a_helper_that_others_kill_is_replaced() -> None:
    own = maths.Helpers(1)
    request = {"gold": "x^2-1", "given": "(x-1)(x+1)", "positive": False}
    assert own.ask(request)["same"]
    os.kill(own._idle[0].process.pid, signal.SIGKILL)
    assert own.ask(request)["same"]
    own.close()


def test_threads_share_the_helpers() -> None:
    golds = [f"x^2+{n}" for n in range(12)]
    with ThreadPoolExecutor(6) as threads:
        right = list(threads.map(lambda gold: score(gold, f"{gold[4:]}+x^2").reward, golds))
        wrong = list(threads.map(lambda gold: score(gold, f"{gold[4:]}-x^2").reward, golds))
    assert (right, wrong) == ([1.0] * 12, [0.0] * 12)


def test_plain_numbers_need_no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maths, "helpers", lambda: pytest.fail("a helper was asked"))
    for gold, output, right in (
        ("1234", "1,234", 1),
        ("0.5", "1/2", 1),
        ("-3", "−3.0", 1),
        ("3", "4", 0),
        ("18", "The answer is 18.", 1),
    ):
        assert score(gold, output).reward == right


@pytest.mark.parametrize("values", [["3", "\\frac{1}{"], ["3", "3 ?"], ["3", "x" * 1001]])
def test_a_right_answer_that_cannot_be_read_is_refused_with_its_path(values: list[str]) -> None:
    with pytest.raises(SpecError, match=r"“verifier\.values\[1\]” is not mathematics that can be compared"):
        build({"kind": "math", "values": values})


def test_a_tasks_answer_that_cannot_be_read_masks_the_sample() -> None:
    found = score("\\frac{1}{", "3")
    assert found.masked and "The expected answer '\\\\frac{1}{' cannot be read" in found.mask_reason


def test_only_for_positive_numbers_is_the_root_of_a_square_the_number() -> None:
    assert score("\\sqrt{x^2}", "x", symbols="positive").reward == 1.0
    assert score("\\sqrt{x^2}", "x").reward == 0.0
