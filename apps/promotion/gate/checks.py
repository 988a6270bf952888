"""The gate's checks, each a pure function of the paired samples. See docs/gate.md for their
statistics.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import numpy as np

from apps.evals.bounds import lower_bound, upper_bound
from apps.evals.stats import RATES, SampleRow, mean_interval
from apps.promotion.gate.error_control import effect_seen, tasks_needed
from apps.promotion.gate.pairs import Pairs
from apps.promotion.gate.policy import Policy
from apps.promotion.gate.types import Check, State, points

# The error of each check that can reject (success, safety, regressions, latency, regression tasks,
# general capability): an equal model is rejected in at most 5% of comparisons.
REJECTS = 0.05 / 6
EXCLUDES = 0.05  # the error with which harm beyond the margin is excluded
EFFECT = 0.03  # an improvement that people care about, for “what would decide it”
SUCCESS = RATES["success"]
WORDS = {"better": "is higher", "worse": "is lower", "inconclusive": "may be the same"}


def rewarded(row: SampleRow) -> float:
    return row.reward or 0.0


def _input(row: SampleRow) -> float:
    return math.nan if row.input_tokens is None else float(row.input_tokens)


def _output(row: SampleRow) -> float:
    return math.nan if row.output_tokens is None else float(row.output_tokens)


def _all_tokens(row: SampleRow) -> float:
    return _input(row) + _output(row)


TOKENS = (
    ("Tokens per answer", _all_tokens),
    ("Output tokens per answer", _output),
    ("Input tokens per answer", _input),
)


def success(pairs: Pairs, level: float, comparison: int, sequential: bool) -> Check:
    """Better where the lower bound at this `level` of error, that of the comparison, is above 0,
    even if each masked sample of the candidate had failed and each of the baseline succeeded, and
    so for samples that timed out, which a busy machine may have done; worse where the upper bound
    is below 0 the other way round. Both also hold where the tasks of a group go up and down
    together.
    """
    found = pairs.by_task(SUCCESS)
    if not found:
        return empty("success", "Success", "No sample of either evaluation could be scored.")
    gaps = list(found.values())
    shown = mean_interval(gaps, (-1.0, 1.0))
    bound = partial(_bound, groups=pairs.groups, sequential=sequential)
    lower = min(bound(side, level, "low") for side in (found, pairs.successes((1.0, 0.0))))
    upper = max(bound(side, REJECTS, "high") for side in (found, pairs.successes((0.0, 1.0))))
    state: State = "better" if lower > 0 else "worse" if upper < 0 else "inconclusive"
    before, after = (_mean(side) for side in pairs.sides(SUCCESS))
    sentence = (
        f"Success {WORDS[state]}: {points(shown.mean)} [{points(shown.low)}, {points(shown.high)}]"
        f" over {shown.n} tasks"
    )
    if by_group := clustered(found, pairs.groups):
        sentence += f" of {len(by_group)} groups"
    if level < 0.0249 or sequential:
        sentence += f"; at least {points(lower)} {_confidence(level, comparison)}"
        sentence += ", however often you look" if sequential else ""
    return Check(
        "success",
        "Success",
        state,
        True,
        before,
        after,
        shown.mean,
        shown.low,
        shown.high,
        shown.n,
        f"{sentence}.",
        (
            ""
            if state != "inconclusive"
            else _would_decide(gaps, shown.mean, level, list(by_group.values()))
        ),
    )


def _confidence(level: float, comparison: int) -> str:
    confidence = f"{100 * (1 - level):.4g}%"
    if comparison == 1:
        return f"with {confidence} confidence"
    return f"after correcting for {comparison:,} comparisons ({confidence} confidence)"


def _bound(
    gaps: dict[str, float],
    error: float,
    side: Literal["low", "high"],
    *,
    groups: dict[str, str],
    sequential: bool,
) -> float:
    """A one-sided bound of the mean: Student's t for a fixed number of tasks, the betting bound for
    a sequential policy.

    The wider one of that over tasks and that over groups: by groups the tasks of one are not
    independent.
    """
    units = [gaps]
    if by_group := clustered(gaps, groups):
        units.append(by_group)
    if sequential:
        bound = lower_bound if side == "low" else upper_bound
        sides = [bound(unit, error, -1, 1, always_valid=True) for unit in units]
    else:
        found = [mean_interval(list(unit.values()), level=1 - 2 * error) for unit in units]
        sides = [one.low if side == "low" else one.high for one in found if one.low is not None]  # type: ignore[misc]
    return (
        max(-1.0, min(sides, default=-1.0)) if side == "low" else min(1.0, max(sides, default=1.0))
    )


def clustered(gaps: dict[str, float], groups: dict[str, str]) -> dict[str, float]:
    """{group: the mean of its tasks}; nothing where all tasks are of one group or each of its
    own.
    """
    found: dict[str, list[float]] = {}
    for task, gap in gaps.items():
        found.setdefault(groups.get(task, task), []).append(gap)
    return (
        {name: float(np.mean(of)) for name, of in found.items()}
        if 1 < len(found) < len(gaps)
        else {}
    )


def _would_decide(gaps: list[float], mean: float, level: float, by_group: list[float]) -> str:
    if by_group and _error_of(by_group) > 1.5 * _error_of(gaps):
        return "Tasks in a group rise and fall together: add tasks from other groups."
    deviation = float(np.std(gaps, ddof=1)) if len(gaps) > 1 else 0.5
    if deviation == 0:
        return "No task changed: both models give similar answers here."
    seen = effect_seen(len(gaps), deviation, level)
    effect = mean if mean > EFFECT else EFFECT
    needed = tasks_needed(effect, deviation, level)
    return (
        f"These {len(gaps)} tasks show differences from {seen:.1%}; about {needed:,} tasks would"
        f" show {effect:.1%} in four comparisons of five."
    )


def _error_of(values: list[float]) -> float:
    return float(np.std(values, ddof=1)) / len(values) ** 0.5


def reward(pairs: Pairs) -> Check:
    gaps = list(pairs.by_task(rewarded).values())
    if not gaps:
        return empty("reward", "Mean reward", "No reward was given.")
    gap = mean_interval(gaps)
    if gap.low is None:
        return empty("reward", "Mean reward", "One task gives no interval.")
    state: State = "better" if gap.low > 0 else "worse" if gap.high < 0 else "inconclusive"
    before, after = (_mean(side) for side in pairs.sides(rewarded))
    sentence = (
        f"Mean reward {WORDS[state]}: {gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}] over"
        f" {gap.n} tasks."
    )
    return Check(
        "reward",
        "Mean reward",
        state,
        False,
        before,
        after,
        gap.mean,
        gap.low,
        gap.high,
        gap.n,
        sentence,
    )


def tokens(pairs: Pairs, policy: Policy) -> Check:
    """The ratio of the mean tokens of a task, with the interval of a ratio estimator (Cochran 1977,
    6.3).
    """
    # Who reports none, only those of short answers, or only those written, is not cheaper: what
    # both count throughout counts.
    found = [(title, pairs.sides(value, answers=True)) for title, value in TOKENS]
    means = [(title, sides, *map(_mean, sides)) for title, sides in found]
    usable = [row for row in means if all(mean and math.isfinite(mean) for mean in row[2:])]
    if not usable:
        return empty("tokens", "Tokens per answer", "Tokens per answer: not measured for both.")
    title, sides, before, after = usable[0]
    gaps = np.array(sides[1]) - after / before * np.array(sides[0])
    spread = mean_interval(list(gaps / before)) if len(gaps) > 1 else None
    half = (spread.high - spread.low) / 2 if spread else 0.0
    return _ratio("tokens", title, before, after, half, half, policy.max_token_ratio, len(gaps))


def _ratio(
    name: str, title: str, before: float, after: float, down: float, up: float, limit: float, n: int
) -> Check:
    ratio = after / before
    low, high = max(0.0, ratio - down), ratio + up
    state: State = "inconclusive"
    if low > limit:
        state = "worse"
    elif high <= limit:
        state = "better" if high < 1 else "same"
    sentence = (
        f"{title}: {ratio:.2f} times the baseline's [{low:.2f}, {high:.2f}]; up to {limit:.2f} is"
        " allowed."
    )
    return Check(
        name,
        title,
        state,
        True,
        before,
        after,
        after - before,
        before * (low - 1),
        before * (high - 1),
        n,
        sentence,
    )


def regressions(pairs: Pairs, policy: Policy) -> Check:
    """How many tasks are worse beyond chance: a lower bound, against the allowed share.

    Chance is what dealing each task's samples out again to the two models gives: the tasks that
    then went from mostly passing to mostly failing, at their 99.2% quantile, are taken off. A task
    that shows it alone (Fisher's exact test, Holm's correction) counts in any case.
    """
    regressed = pairs.regressed()
    n = len(pairs.tasks)
    chance = pairs.regressed_by_chance(1 - REJECTS)
    at_least = max(pairs.certainly_regressed(REJECTS), len(regressed) - chance)
    share, limit = (at_least / n if n else 0.0), policy.max_regressed_share
    state: State = "worse" if share > limit else "same"
    sentence = (
        f"{len(regressed)} of {n} tasks went from mostly passing to mostly failing; chance alone"
        f" gives up to {chance}. At least {at_least} regressed beyond it; up to {limit:.0%} of the"
        " tasks are allowed."
    )
    shown = len(regressed) / n if n else 0.0
    return Check(
        "regressions", "Regressed tasks", state, True, None, shown, shown, share, None, n, sentence
    )


def masked(pairs: Pairs, policy: Policy) -> Check:
    before, after = pairs.masked_shares()
    limit = policy.max_masked_share
    state: State = "inconclusive" if max(before, after) > limit else "same"
    sentence = (
        f"{pairs.masked_in_words()} could not be scored; up to {limit:.0%} is allowed. Success and"
        " safety assume the worst case for them."
    )
    if any(late := pairs.timed_out_shares()):
        sentence += (
            f" {late[0]:.1%} and {late[1]:.1%} timed out, which a busy machine may explain: success"
            " is judged as if the baseline's had passed."
        )
    decides = (
        "Check why samples were masked, fix the cause and evaluate again."
        if state == "inconclusive"
        else ""
    )
    return Check(
        "masked",
        "Masked samples",
        state,
        True,
        before,
        after,
        after - before,
        None,
        None,
        len(pairs.tasks),
        sentence,
        decides,
    )


def empty(name: str, title: str, sentence: str) -> Check:
    return Check(name, title, "not judged", False, None, None, None, None, None, 0, sentence)


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None
