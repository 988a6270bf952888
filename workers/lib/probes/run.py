"""Attacks a verifier with all probes and reports what it let through. Deterministic but for the verifier and the clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from copy import deepcopy
from time import perf_counter
from typing import Any

from workers.lib.probes import attacks, perturbations
from workers.lib.probes.attacks import Attack, Context
from workers.lib.probes.cases import Case, case_of, golds
from workers.lib.probes.judging import Standard, finding, judged, standard_of
from workers.lib.probes.measure import rewards_of, speed, spread
from workers.lib.probes.perturbations import Perturbation
from workers.lib.probes.truth import is_right, last_text
from workers.lib.probes.types import KEEP, Finding, Options, Outcome, ProbeResult, Report, Scorer, Wish
from workers.lib.program import Stop

TRIED = 12  # tasks on which the form of right outputs is tried
Tried = list[tuple[str, Case, Wish]]


def attack(
    score: Scorer, tasks: list[dict], samples: list[dict] | None = None, options: Options | None = None
) -> Report:
    """Attacks `score(task, messages)`, which must give a Score for an assistant's conversation.

    `samples` are real outputs, {"task": id, "messages" or "output", "label"?: a person's true or false}. They give the
    commonest output, gold where a task has none, and inputs to the measure of determinism. Where a verifier looks at
    an end state, `score` has to run the calls itself.
    """
    rules = options or Options()
    real = [_sample(item) for item in samples or []]
    by_task: dict[str, list[dict]] = defaultdict(list)
    for sample in real:
        by_task[sample["task"]].append(sample)
    named = [{"id": _id(task) or f"task {number}"} | task for number, task in enumerate(tasks)]
    cases = [case_of(task, rules.dangerous, by_task.get(_id(task), [])) for task in _spaced(named, rules.max_tasks)]
    form = _form_chooser(score, cases, rules)
    context = Context(cases, form, attacks.commonest(cases, form, real), rules, by_task)
    tried, right = _wishes(context)
    outcomes = [_scored(score, name, case, wish, rules) for name, case, wish in _thinned(tried, rules.max_scores)]
    return _report(score, context, outcomes, right, len(tried))


def _id(task: dict) -> str:
    return str(task.get("id") or task.get("key") or "")


def _sample(item: dict) -> dict:
    """With task as text, messages and output, whichever of the two was given."""
    messages = item.get("messages") or [{"role": "assistant", "content": item.get("output") or ""}]
    return {
        "task": str(item.get("task", "")), "messages": messages, "output": last_text(messages), "label": item.get("label")
    }  # fmt: skip


def _spaced(items: list, most: int) -> list:
    """At most so many, evenly spaced over all."""
    if len(items) <= most:
        return list(items)
    return [items[index * len(items) // most] for index in range(most)]


# The form of right outputs


def _form_chooser(score: Scorer, cases: list[Case], rules: Options) -> Callable[[Case], str]:
    """For each kind of task the form in which most right outputs succeed; the first of equals."""
    won: Counter[tuple[tuple[str, ...], str]] = Counter()
    for forms in {case.forms for case in cases}:
        for case in _spaced([case for case in cases if case.forms == forms], TRIED):
            for form in forms if len(forms) > 1 else ():
                won[forms, form] += _works(score, case, form, rules)
    return lambda case: max(case.forms, key=lambda form: won[case.forms, form])


def _works(score: Scorer, case: Case, form: str, rules: Options) -> bool:
    return all(_scored(score, "gold", case, Wish("", gold, KEEP), rules).success for gold in golds(case, form))


# Outputs


def _wishes(context: Context) -> tuple[Tried, Counter[str]]:
    """All outputs to score, and how many of each attack were left out because they are right."""
    tried: Tried = []
    right: Counter[str] = Counter()
    for probe in perturbations.PROBES:
        if _is_promised(probe, context.options):
            tried += [(probe.name, case, wish) for case in context.cases for wish in probe.make(case, context)]
    for hack in attacks.PROBES:
        for case, wish in _attempts(hack, context):
            if wish.limit != "no_more" and hack.name != "judged_wrong" and is_right(case, wish.messages):
                right[hack.name] += 1
            else:
                tried.append((hack.name, case, wish))
    return tried, right


def _attempts(hack: Attack, context: Context) -> Iterator[tuple[Case, Wish]]:
    for case in context.cases:
        if hack.silent_too or not case.silent:
            yield from ((case, wish) for wish in hack.make(case, context))


def _is_promised(probe: Perturbation, options: Options) -> bool:
    return not probe.promise or probe.promise in options.promises


def _thinned(tried: Tried, most: int) -> Tried:
    """Right outputs all; of each attack an even share of what may still be scored."""
    if len(tried) <= most:
        return tried
    first = [item for item in tried if item[0] == "gold"][:most]
    groups: dict[str, Tried] = defaultdict(list)
    for item in tried:
        if item[0] != "gold":
            groups[item[0]].append(item)
    share = max(1, (most - len(first)) // max(1, len(groups)))
    return first + [item for group in groups.values() for item in _spaced(group, share)]


def _scored(score: Scorer, probe: str, case: Case, wish: Wish, rules: Options) -> Outcome:
    """One output, given as a copy: a verifier that changes its input must not change the next one."""
    task, messages = deepcopy(case.task), deepcopy(wish.messages)
    start = perf_counter()
    try:
        got = score(task, messages)
    except Stop:
        raise
    except Exception as error:  # a verifier may not raise; that is what is reported
        micros = (perf_counter() - start) * 1e6
        return Outcome(probe, case.id, wish, None, False, False, f"{type(error).__name__}: {error}"[:500], True, micros)
    micros = (perf_counter() - start) * 1e6
    enough = rules.success_at is not None and got.reward is not None and got.reward >= rules.success_at
    success = (bool(got.success) or enough) and not got.masked
    return Outcome(probe, case.id, wish, got.reward, success, got.masked, got.mask_reason, False, micros)


# The report


def _report(score: Scorer, context: Context, outcomes: list[Outcome], right: Counter[str], made: int) -> Report:
    rules, cases = context.options, {case.id: case for case in context.cases}
    by_task: dict[str, list[Outcome]] = defaultdict(list)
    for item in outcomes:
        if item.wish.limit == KEEP:
            by_task[item.task].append(item)
    standards = {task: standard_of(by_task[task]) for task in cases}
    golds_masked = any(item.masked for item in outcomes if item.wish.limit == KEEP)
    found = [judged(item, standards[item.task], rules, golds_masked) for item in outcomes]
    repeated, unequal = _repeated(score, context, outcomes)
    measured = {"determinism": unequal, "pair_order": _pairs(context), "discrimination": _constant(outcomes)}
    findings = [item for item in found if item] + [item for items in measured.values() for item in items]
    rows = _rows(context, outcomes, right, findings) + _measures(context, measured, repeated)
    return Report(
        probes=rows,
        failed=_kept(findings, rules.shown_per_probe),
        masked=dict(Counter(item.reason for item in outcomes if item.masked).most_common(20)),
        repeated=repeated,
        unequal=len(unequal),
        attacks=spread(rewards_of([item for item in outcomes if item.wish.limit != KEEP])),
        golds=spread(rewards_of([item for item in outcomes if item.wish.limit == KEEP])),
        speed=speed([item.micros for item in outcomes]),
        tasks=len(cases),
        forms=dict(Counter(context.form(case) for case in context.cases)),
        notes=_notes(context, standards, len(outcomes), made),
    )


def _rows(context: Context, outcomes: list[Outcome], right: Counter[str], findings: list[Finding]) -> list[ProbeResult]:
    by_probe: dict[str, list[Outcome]] = defaultdict(list)
    for item in outcomes:
        by_probe[item.probe].append(item)
    failed = Counter(item.probe for item in findings)
    probes: list[Perturbation | Attack] = [*perturbations.PROBES, *attacks.PROBES]
    return [_row(probe, by_probe[probe.name], right[probe.name], failed[probe.name], context) for probe in probes]


def _row(probe: Perturbation | Attack, items: list[Outcome], right: int, failed: int, context: Context) -> ProbeResult:
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


def _why_not(probe: Perturbation | Attack, items: list[Outcome], right: int, context: Context) -> str:
    """Why a probe says nothing; "" where it does. What was not attacked has not passed."""
    if items and all(item.masked for item in items):
        return f"every output was masked: {items[0].reason}"
    if items:
        return ""
    if isinstance(probe, Perturbation) and not _is_promised(probe, context.options):
        return "the verifier does not promise this tolerance"
    if right:
        return f"all {right} outputs happen to be right"
    if context.cases and all(case.silent for case in context.cases) and not getattr(probe, "silent_too", True):
        return "in every task it is right to call nothing, whatever is said"
    return probe.why


def _kept(findings: list[Finding], most: int) -> list[Finding]:
    """The worst of each probe, high before medium."""
    ordered = sorted(findings, key=lambda item: (item.severity != "high", -(item.reward or 0.0)))
    seen: Counter[str] = Counter()
    kept = []
    for item in ordered:
        seen[item.probe] += 1
        if seen[item.probe] <= most:
            kept.append(item)
    return kept


def _notes(context: Context, standards: dict[str, Standard], scored: int, made: int) -> list[str]:
    notes = []
    if scored < made:
        notes.append(f"{scored} of {made} outputs were scored: the limit on scores.")
    without = sum(not case.has_gold for case in context.cases)
    if without:
        notes.append(
            f"{without} of {len(context.cases)} tasks know no right output: there only success counts as too much."
        )
    lost = sum(case.has_gold and standards[case.id].reward is None for case in context.cases)
    if lost:
        notes.append(f"In {lost} tasks the right output does not succeed: there only success counts as too much.")
    return notes


# Measures


def _repeated(score: Scorer, context: Context, outcomes: list[Outcome]) -> tuple[int, list[Finding]]:
    """A second pass in reverse order: the same input must get the same, whenever it comes."""
    cases = {case.id: case for case in context.cases}
    chosen = _spaced(outcomes, context.options.max_repeats)[::-1]
    found = []
    for item in chosen:
        again = _scored(score, item.probe, cases[item.task], item.wish, context.options)
        if not _equal(item, again, context.options.noise):
            reason = f"The same input got {_said(item)}, then {_said(again)}."
            found.append(finding(_renamed(item, "determinism"), Standard(None, False), "high", reason))
    return len(chosen), found


def _equal(first: Outcome, second: Outcome, noise: float) -> bool:
    if (first.success, first.masked, first.raised) != (second.success, second.masked, second.raised):
        return False
    if first.reward is None or second.reward is None:
        return first.reward is second.reward
    return first.reward == second.reward or abs(first.reward - second.reward) <= noise or _both_nan(first, second)


def _both_nan(first: Outcome, second: Outcome) -> bool:
    return first.reward != first.reward and second.reward != second.reward


def _said(item: Outcome) -> str:
    if item.masked or item.raised:
        return f"no reward ({item.reason})"
    return f"{item.reward:g}{' and success' if item.success else ''}" if item.reward is not None else "no reward"


def _renamed(item: Outcome, probe: str) -> Outcome:
    return Outcome(probe, item.task, item.wish, item.reward, item.success, item.masked, item.reason, item.raised, 0.0)


def _constant(outcomes: list[Outcome]) -> list[Finding]:
    """A verifier that gives all outputs the same, right and wrong ones, says nothing."""
    wrong = rewards_of([item for item in outcomes if item.wish.limit != KEEP])
    right = rewards_of([item for item in outcomes if item.wish.limit == KEEP])
    if not wrong or not right or max(wrong + right) > min(wrong + right):
        return []
    reason = f"All {len(wrong) + len(right)} outputs, right and wrong ones, get {wrong[0]:g}."
    return [finding(_renamed(outcomes[0], "discrimination"), Standard(None, False), "high", reason)]


def _pairs(context: Context) -> list[Finding]:
    """For verifiers that compare: the preference must not turn with the order of the two."""
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
            item, Standard(None, False), "high", f"The preferred one changes with the order ({forth:g}, {back:g})."
        )
    return finding(
        item, Standard(None, False), "high", f"The wrong one is preferred, or neither ({forth:g}, {back:g})."
    )


def _measures(context: Context, measured: dict[str, list[Finding]], repeated: int) -> list[ProbeResult]:
    about = {
        "determinism": "the same input twice, in another order",
        "pair_order": "two candidates in both orders",
        "discrimination": "not the same reward for all",
    }
    known = any(context.gold(case) for case in context.cases)
    pairs = sum(context.gold(case) is not None for case in context.cases) if context.options.compare else 0
    why = {
        "determinism": "" if repeated else "nothing was scored",
        "pair_order": "" if pairs else "the verifier does not compare two outputs",
        "discrimination": "" if known else "no task knows what is right",
    }
    n = {"determinism": repeated, "pair_order": 2 * pairs, "discrimination": 0}
    return [_measure(name, about[name], why[name], n[name], len(measured[name])) for name in about]


def _measure(name: str, about: str, why: str, n: int, failed: int) -> ProbeResult:
    status: Any = "failed" if failed else "not_applicable" if why else "passed"
    return ProbeResult(name, "measure", about, status, n=n, findings=failed, why="" if failed else why)
