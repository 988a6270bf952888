"""The rows of a report: each probe's totals, the measures, and what could not be tried."""

from __future__ import annotations

from collections import Counter, defaultdict
from copy import deepcopy
from typing import Any

from workers.lib.probes import catalogue, perturbations
from workers.lib.probes.cases import Case
from workers.lib.probes.catalogue import Attack
from workers.lib.probes.context import Context
from workers.lib.probes.judging import Standard, finding
from workers.lib.probes.measure import rewards_of, spread
from workers.lib.probes.perturbations import Perturbation
from workers.lib.probes.scoring import Repeats
from workers.lib.probes.search import Ground
from workers.lib.probes.types import KEEP, Finding, Options, Outcome, ProbeResult, Wish


def rows(
    context: Context, outcomes: list[Outcome], right: Counter[str], findings: list[Finding]
) -> list[ProbeResult]:
    by_probe: dict[str, list[Outcome]] = defaultdict(list)
    for item in outcomes:
        by_probe[item.probe].append(item)
    failed = Counter(item.probe for item in findings)
    probes: list[Perturbation | Attack] = [*perturbations.PROBES, *catalogue.PROBES]
    return [
        _row(probe, by_probe[probe.name], right[probe.name], failed[probe.name], context)
        for probe in probes
    ]


def _row(
    probe: Perturbation | Attack, items: list[Outcome], right: int, failed: int, context: Context
) -> ProbeResult:
    rewards = rewards_of(items)
    why = _why_not(probe, items, right, context)
    got = spread(rewards)
    return ProbeResult(
        name=probe.name,
        kind="perturbation" if isinstance(probe, Perturbation) else "attack",
        about=probe.about,
        status="failed" if failed else "not_applicable" if why else "passed",
        n=len(items),
        mean_reward=got.mean,
        min_reward=got.low,
        max_reward=got.high,
        masked=sum(item.masked for item in items),
        right=right,
        findings=failed,
        why="" if failed else why,
    )


def _why_not(
    probe: Perturbation | Attack, items: list[Outcome], right: int, context: Context
) -> str:
    """Why a probe has no result; "" if it has one. What was not attacked has not passed."""
    if items and all(item.masked for item in items):
        return f"every output was masked: {items[0].reason}"
    if items:
        return ""
    if isinstance(probe, Perturbation) and not is_promised(probe, context.options):
        return "the verifier does not promise this tolerance"
    if right:
        return f"all {right} outputs happen to be right"
    if (
        context.cases
        and all(case.silent for case in context.cases)
        and not getattr(probe, "silent_too", True)
    ):
        return "in every task it is right to call nothing, whatever is said"
    return probe.why


def kept(findings: list[Finding], most: int) -> list[Finding]:
    """The worst findings of each probe, high severity before medium."""
    ordered = sorted(findings, key=lambda item: (item.severity != "high", -(item.reward or 0.0)))
    seen: Counter[str] = Counter()
    kept = []
    for item in ordered:
        seen[item.probe] += 1
        if seen[item.probe] <= most:
            kept.append(item)
    return kept


def notes_of(context: Context, standards: dict[str, Standard], scored: int, made: int) -> list[str]:
    notes = []
    if scored < made:
        notes.append(f"{scored} of {made} outputs were scored: the limit on scores.")
    without = sum(not case.has_gold for case in context.cases)
    if without:
        notes.append(
            f"{without} of {len(context.cases)} tasks know no right output: there only success"
            " counts as too much."
        )
    lost = sum(case.has_gold and standards[case.id].reward is None for case in context.cases)
    if lost:
        notes.append(
            f"In {lost} tasks the right output does not succeed: there only success counts as too"
            " much."
        )
    return notes


def is_promised(probe: Perturbation, options: Options) -> bool:
    return not probe.promise or probe.promise in options.promises


# Measures


def unsteady(repeats: Repeats, span: float, rules: Options) -> list[Finding]:
    """The same input must get the same reward; a model's rewards only approximately."""
    if rules.stochastic and not repeats.unsteady(span):
        return []
    return [
        finding(
            _renamed(first, "determinism"),
            Standard(None, False),
            "high",
            f"The same input got {_reward_text(first)}, then {_reward_text(second)}.",
        )
        for first, second in repeats.pairs
    ]


def _reward_text(item: Outcome) -> str:
    if item.masked or item.raised:
        return f"no reward ({item.reason})"
    return (
        f"{item.reward:g}{' and success' if item.success else ''}"
        if item.reward is not None
        else "no reward"
    )


def _renamed(item: Outcome, probe: str) -> Outcome:
    return Outcome(
        probe,
        item.task,
        item.wish,
        item.reward,
        item.success,
        item.masked,
        item.reason,
        item.raised,
        0.0,
    )


def constant(outcomes: list[Outcome]) -> list[Finding]:
    """A verifier that gives all outputs the same reward, right or wrong, carries no information."""
    wrong = rewards_of([item for item in outcomes if item.wish.limit != KEEP])
    right = rewards_of([item for item in outcomes if item.wish.limit == KEEP])
    if not wrong or not right or max(wrong + right) > min(wrong + right):
        return []
    reason = f"All {len(wrong) + len(right)} outputs, right and wrong ones, get {wrong[0]:g}."
    return [finding(_renamed(outcomes[0], "discrimination"), Standard(None, False), "high", reason)]


def pairs_of(context: Context) -> list[Finding]:
    """For verifiers that compare: the preference must not depend on the order of the two
    outputs.
    """
    if context.options.compare is None:
        return []
    return [item for case in context.cases if (item := _pair(case, context))]


def _pair(case: Case, context: Context) -> Finding | None:
    right, wrong = context.gold(case), [{"role": "assistant", "content": "I don't know."}]
    if right is None or context.options.compare is None:
        return None
    forth = context.options.compare(deepcopy(case.task), deepcopy(right), deepcopy(wrong))
    back = context.options.compare(deepcopy(case.task), deepcopy(wrong), deepcopy(right))
    wish = Wish("the right output and “I don't know.”, in both orders", right)
    item = Outcome("pair_order", case.id, wish, forth, False, False, "", False, 0.0)
    if forth > 0.5 > back:
        return None
    if (forth > 0.5) == (back > 0.5):
        return finding(
            item,
            Standard(None, False),
            "high",
            f"The preferred one changes with the order ({forth:g}, {back:g}).",
        )
    return finding(
        item,
        Standard(None, False),
        "high",
        f"The wrong one is preferred, or neither ({forth:g}, {back:g}).",
    )


def measures(
    context: Context, measured: dict[str, list[Finding]], repeated: int
) -> list[ProbeResult]:
    about = {
        "determinism": "the same input twice, in another order",
        "pair_order": "two candidates in both orders",
        "discrimination": "not the same reward for all",
    }
    known = any(context.gold(case) for case in context.cases)
    pairs = (
        sum(context.gold(case) is not None for case in context.cases)
        if context.options.compare
        else 0
    )
    why = {
        "determinism": "" if repeated else "nothing was scored",
        "pair_order": "" if pairs else "the verifier does not compare two outputs",
        "discrimination": "" if known else "no task knows what is right",
    }
    n = {"determinism": repeated, "pair_order": 2 * pairs, "discrimination": 0}
    return [_measure(name, about[name], why[name], n[name], len(measured[name])) for name in about]


def _measure(name: str, about: str, why: str, n: int, failed: int) -> ProbeResult:
    status: Any = "failed" if failed else "not_applicable" if why else "passed"
    return ProbeResult(
        name, "measure", about, status, n=n, findings=failed, why="" if failed else why
    )


def search_row(ground: Ground, findings: list[Finding], scored: int) -> ProbeResult:
    """`scored`: how many outputs the search tried. None means that it could not begin, which is not
    a pass.
    """
    about = "mutation and recombination of outputs, climbing the reward"
    none = (
        "no scores were allowed for it"
        if not ground.rules.search_scores
        else "no task tells what is surely wrong"
    )
    why = "" if scored else none
    found = sum(item.probe == "search" for item in findings)
    status: Any = "failed" if found else "not_applicable" if why else "passed"
    return ProbeResult("search", "search", about, status, n=scored, findings=found, why=why)
