"""May the candidate replace the baseline? Pure: no Django, no torch.

Both were evaluated on the same tasks in the same environment; what the agent brings, such as its prompt, may differ. Every
check is on the tasks' paired differences (candidate − baseline). The gate promotes what is shown to be better and not worse,
rejects what is shown to be worse, and says *inconclusive* where the data do not tell. How often it may be wrong is fixed
over all comparisons (`error_control`).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import islice, takewhile

import numpy as np

from apps.core.diffing import changed_lines
from apps.evals.bounds import fixed_order
from apps.promotion.gate import checks
from apps.promotion.gate.error_control import level_of
from apps.promotion.gate.guards import Guards, guards
from apps.promotion.gate.latency import latency
from apps.promotion.gate.pairs import Pairs
from apps.promotion.gate.policy import Policy
from apps.promotion.gate.types import Check, Evaluation, NotComparable, Report, Timing, Verdict

MEASURED = ("reward", "latency_ms", "input_tokens", "output_tokens")
LARGEST = 1e15  # of a measurement: sums and ratios of them are still finite

__all__ = ["Check", "Evaluation", "NotComparable", "Policy", "Report", "Timing", "compare", "prefix"]


def compare(
    baseline: Evaluation, candidate: Evaluation, policy: Policy | None = None, comparison: int = 1,
    measured: Guards | None = None,
) -> Report:  # fmt: skip
    """`comparison` counts, from 1, the comparisons with this baseline on these tasks. `measured` has both models' regression
    and general tasks. Raises NotComparable."""
    rules, measured = policy or Policy(), measured or {}
    for pair in [(baseline, candidate), *filter(None, measured.values())]:
        _require_same(*pair)
    pairs, level = Pairs(baseline, candidate), level_of(comparison, rules.alpha)
    planned = len(baseline.planned) or len(pairs.tasks)
    success = checks.success(pairs, level, rules.sequential)
    found = [
        success,
        checks.reward(pairs),
        checks.safety(pairs, rules),
        checks.regressions(pairs, rules),
        checks.tokens(pairs, rules),
        *latency(baseline, candidate, rules),
        checks.masked(pairs, rules),
        *guards(measured, rules),
    ]
    if len(pairs.tasks) < planned:
        found = [_until_complete(check) for check in found]
    verdict, summary = _verdict(success, found, rules)
    changes = list(changed_lines(_agent_lines(baseline.agent), _agent_lines(candidate.agent)))
    return Report(
        verdict,
        summary,
        found,
        pairs.regressed(),
        pairs.improved(),
        comparison,
        level,
        len(pairs.tasks),
        planned,
        changes,
    )


def prefix(baseline: Evaluation, candidate: Evaluation, most: int | None = None) -> tuple[Evaluation, Evaluation]:
    """Both without the tasks that are not complete yet: the longest prefix of `fixed_order`, of at most `most` tasks.

    Which tasks are compared must not depend on what came out, nor on how long it took: the bounds hold for a prefix of an
    order that was fixed before.
    """
    planned = fixed_order(baseline.planned)
    samples = [Counter(row.task for row in side.rows) for side in (baseline, candidate)]
    done = takewhile(lambda task: all(side[task] >= baseline.samples_per_task for side in samples), planned)
    kept = set(islice(done, most))
    a, b = (
        replace(
            side,
            rows=[row for row in side.rows if row.task in kept],
            keys={task: key for task, key in side.keys.items() if task in kept},
        )
        for side in (baseline, candidate)
    )
    return a, b


def _until_complete(check: Check) -> Check:
    """Success and safety have bounds that hold at any time; of these checks the interval holds once, for all tasks."""
    if check.name not in ("regressions", "tokens") or check.state != "worse":
        return check
    return replace(check, state="inconclusive", decides=f"{check.title}: judged when all tasks are evaluated.")


def _agent_lines(agent: dict) -> list[str]:
    """What the agent brings, for people: a prompt line by line, all else as JSON."""
    lines = []
    for name, value in sorted(agent.items()):
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
        lines += [f"{name}: {text}"] if "\n" not in text else [f"{name}:", *(f"  {line}" for line in text.split("\n"))]
    return lines


def _require_same(a: Evaluation, b: Evaluation) -> None:
    for name, what in (
        ("eval_set_digest", "eval set"),
        ("task_hash", "environment beyond the agent's prompt and sampling"),
        ("verifier_hash", "verifier"),
        ("samples_per_task", "number of samples per task"),
    ):
        if getattr(a, name) != getattr(b, name):
            raise NotComparable(f"The two evaluations differ in their {what}. Evaluate both the same way first.")
    for side in (a, b):
        for name in MEASURED:
            given = [(row.task, value) for row in side.rows if (value := getattr(row, name)) is not None]
            wrong = np.flatnonzero(~(np.abs(np.array([value for _, value in given], dtype=float)) <= LARGEST))
            if wrong.size:
                task, value = given[wrong[0]]
                raise NotComparable(
                    f"A sample of task {side.keys.get(task, task)} has the {name} {value}: no measurement."
                )
    if set(a.planned) != set(b.planned) or {row.task for row in a.rows} != {row.task for row in b.rows}:
        raise NotComparable("The two evaluations do not cover the same tasks. Evaluate both on the whole split.")


def _verdict(success: Check, found: list[Check], rules: Policy) -> tuple[Verdict, str]:
    worse = [check.title.lower() for check in found if check.required and check.state == "worse"]
    if worse:
        return "reject", f"Rejected: worse in {', '.join(worse)}."
    if success.n < rules.min_tasks:
        return "inconclusive", f"Inconclusive: {success.n} tasks are too few; at least {rules.min_tasks} are needed."
    undecided = [check for check in found if check.required and check.state == "inconclusive"]
    if success.state != "better" and success not in undecided:
        undecided.insert(0, success)
    if undecided:
        names = ", ".join(check.title.lower() for check in undecided)
        advice = " ".join(check.decides for check in undecided if check.decides)
        return "inconclusive", f"Inconclusive: the data do not decide {names}. {advice}".strip()
    return "promote", f"Better: {success.sentence} Nothing required is worse."
