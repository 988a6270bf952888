"""The rules on tau-bench with the true calls taken away, and how often each confidence is right.
Used by `bench.failures`.

Half of the runs, by the SHA-256 of the task's id (so that both trials of a task are on one side),
was looked at while the rules were written; the other half was not. Each table has both.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from apps.failures.classify import Diagnosis, classify

LOOKED_AT, HELD_BACK = "looked at", "held back"
CONFIDENCES = ("certain", "likely", "hint")
ONLY_FAILED = "failed_without_a_finish"

Share = Callable[[int, int], dict[str, Any]]


def half_of(run_id: str) -> str:
    """The half of a run “tau-bench:task:trial:digest”."""
    digest = hashlib.sha256(run_id.split(":")[1].encode()).hexdigest()
    return HELD_BACK if int(digest, 16) % 2 else LOOKED_AT


def without_truth(run: dict, status: str = "") -> dict:
    """A run as production has it: no true calls; `status` in place of the known outcome."""
    return run | {"metadata": {}, "outcome_status": status or run["outcome_status"]}


def report(
    runs: list[dict], by_hand: dict[str, dict], derived: Callable[[dict], int | None], share: Share
) -> dict[str, dict[str, Any]]:
    """{half: figures}. `by_hand` are a person's labels by run; `derived` is the step by the true
    calls, for the others.
    """
    halves = {
        half: [run for run in runs if half_of(run["id"]) == half] for half in (LOOKED_AT, HELD_BACK)
    }
    return {half: _of_half(rows, by_hand, derived, share) for half, rows in halves.items()}


def _of_half(
    runs: list[dict], by_hand: dict[str, dict], derived: Callable, share: Share
) -> dict[str, Any]:
    failed = [run for run in runs if run["outcome_status"] == "failure"]
    fine = [run for run in runs if run["outcome_status"] != "failure"]
    known = {run["id"]: classify(without_truth(run)) for run in failed}
    unknown = [classify(without_truth(run, "unknown")) for run in failed]
    steps = {
        run["id"]: by_hand[run["id"]]["blamed"] if run["id"] in by_hand else derived(run)
        for run in failed
    }
    labelled = [run for run in failed if steps[run["id"]] is not None]
    far = [distance(run, steps[run["id"]], known[run["id"]].blamed_message) for run in labelled]
    last = [distance(run, steps[run["id"]], agents(run)[-1]) for run in labelled]
    hand = [
        (by_hand[run["id"]]["mode"], known[run["id"]]) for run in failed if run["id"] in by_hand
    ]
    with_truth = [
        (by_hand[run["id"]]["mode"], classify(run)) for run in failed if run["id"] in by_hand
    ]
    return {
        "failures": len(failed),
        "only_failed": share(
            sum(item.evidence[0].rule == ONLY_FAILED for item in known.values()), len(failed)
        ),
        "exact": share(sum(item == 0 for item in far), len(far)),
        "within_one": share(sum(item <= 1 for item in far), len(far)),
        "last_step_exact": share(sum(item == 0 for item in last), len(last)),
        "last_step_within_one": share(sum(item <= 1 for item in last), len(last)),
        "same_mode": share(sum(mode == found.mode for mode, found in hand), len(hand)),
        "found_unknown": share(sum(item is not None for item in unknown), len(failed)),
        "blamed_unknown": share(
            sum(classify(without_truth(run, "unknown")) is not None for run in fine), len(fine)
        ),
        "rules": Counter(item.evidence[0].rule for item in known.values()),
        "confidence": confidence(hand, share),
        "confidence_with_truth": confidence(with_truth, share),
    }


def agents(run: dict) -> list[int]:
    """The messages that are steps of the agent."""
    return [
        index for index, message in enumerate(run["messages"]) if message["role"] == "assistant"
    ]


def distance(run: dict, true: int, said: int | None) -> float:
    """Between two steps, counted in steps of the agent."""
    steps = agents(run)
    return abs(steps.index(true) - steps.index(said)) if said in steps else float("inf")


def confidence(pairs: Iterable[tuple[str, Diagnosis]], share: Share) -> dict[str, dict[str, Any]]:
    """For each confidence of the deciding reason: how often the mode is the one a person gave."""
    pairs = list(pairs)
    return {
        name: share(
            sum(
                mode == found.mode for mode, found in pairs if found.evidence[0].confidence == name
            ),
            sum(found.evidence[0].confidence == name for _, found in pairs),
        )
        for name in CONFIDENCES
    }
