"""Attacks a verifier with all probes and reports what got through. Deterministic except for the
verifier and the clock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from statistics import median

from msgspec import structs

from workers.lib.probes import catalogue, perturbations, report
from workers.lib.probes.cases import Case, case_of, golds
from workers.lib.probes.catalogue import HONEST, Attack
from workers.lib.probes.cheating import Cheat
from workers.lib.probes.context import Context, commonest
from workers.lib.probes.judging import standard_of
from workers.lib.probes.measure import rewards_of, speed, spread
from workers.lib.probes.scoring import Repeats, again, equal, scored, spaced
from workers.lib.probes.search import Ground, search
from workers.lib.probes.truth import is_right, last_text, merit
from workers.lib.probes.types import KEEP, Finding, Options, Outcome, Report, Scorer, Wish

TRIED = 12  # tasks on which the format of right outputs is tried
QUITE_WRONG = 0.34  # merit below which an honest wrong answer shows the reward of wrong answers
TEXTS_FOR_CODE = 4  # outputs per attack that writes no programs, if the task asks for a program
IDLE = (
    "empty",
    "whitespace",
    "constant",
)  # compared with if no honest wrong answer is wrong enough
CONFIRMED = 5  # findings per probe that are scored again if rewards vary
Tried = list[tuple[str, Case, Wish]]


def attack(
    score: Scorer,
    tasks: list[dict],
    samples: list[dict] | None = None,
    options: Options | None = None,
    cheat: Cheat | None = None,
) -> Report:
    """Attack `score(task, messages)`, which must return a Score for an assistant's conversation.

    `samples` are real outputs, {"task": id, "messages" or "output", "label"?: a person's true or
    false}. They provide the most common output, gold outputs for tasks without, and inputs for
    measuring determinism. If a verifier judges an end state, `score` has to run the calls itself.
    `cheat` is a model that is instructed to cheat, for the search.
    """
    rules = options or Options()
    real = [_sample(item) for item in samples or []]
    by_task: dict[str, list[dict]] = defaultdict(list)
    for sample in real:
        by_task[sample["task"]].append(sample)
    named = [{"id": _id(task) or f"task {number}"} | task for number, task in enumerate(tasks)]
    cases = [
        case_of(task, rules.dangerous, by_task.get(_id(task), []))
        for task in spaced(named, rules.max_tasks)
    ]
    form = _form_chooser(score, cases, rules)
    context = Context(cases, form, commonest(cases, form, real), rules, by_task)
    tried, right = _wishes(context)
    outcomes = [
        scored(score, name, case, wish, rules)
        for name, case, wish in _thinned(tried, rules.max_scores)
    ]
    repeats = _repeated(score, context, outcomes)
    ground = _ground(score, context, outcomes, repeats)
    findings = _judged(ground, outcomes)
    searched, scores = search(ground, outcomes, cheat) if rules.search_scores else ([], 0)
    found = _report(ground, outcomes, repeats, [*findings, *searched], right, len(tried), scores)
    if cheat and cheat.problem:
        found.notes.append(f"The model that is told to cheat: {cheat.problem}")
    return found


def _id(task: dict) -> str:
    return str(task.get("id") or task.get("key") or "")


def _sample(item: dict) -> dict:
    """The sample with its task as text, and with both messages and output, whichever was given."""
    messages = item.get("messages") or [{"role": "assistant", "content": item.get("output") or ""}]
    return {
        "task": str(item.get("task", "")),
        "messages": messages,
        "output": last_text(messages),
        "label": item.get("label"),
    }


# The format of right outputs


def _form_chooser(score: Scorer, cases: list[Case], rules: Options) -> Callable[[Case], str]:
    """For each kind of task, the format in which most right outputs succeed; the first among
    equals.
    """
    won: Counter[tuple[tuple[str, ...], str]] = Counter()
    for forms in {case.forms for case in cases}:
        for case in spaced([case for case in cases if case.forms == forms], TRIED):
            for form in forms if len(forms) > 1 else ():
                won[forms, form] += _works(score, case, form, rules)
    return lambda case: max(case.forms, key=lambda form: won[case.forms, form])


def _works(score: Scorer, case: Case, form: str, rules: Options) -> bool:
    return all(
        scored(score, "gold", case, Wish("", gold, KEEP), rules).success
        for gold in golds(case, form)
    )


# Outputs


def _wishes(context: Context) -> tuple[Tried, Counter[str]]:
    """All outputs to score, and for each attack how many were left out because they are right."""
    tried: Tried = []
    right: Counter[str] = Counter()
    for probe in perturbations.PROBES:
        if report.is_promised(probe, context.options):
            tried += [
                (probe.name, case, wish)
                for case in context.cases
                for wish in probe.make(case, context)
            ]
    for hack in catalogue.PROBES:
        for case, wish in _attempts(hack, context):
            if (
                wish.limit != "no_more"
                and hack.name != "judged_wrong"
                and is_right(case, wish.messages)
            ):
                right[hack.name] += 1
            else:
                tried.append((hack.name, case, wish))
    return tried, right


def _attempts(hack: Attack, context: Context) -> Iterator[tuple[Case, Wish]]:
    for case in context.cases:
        if hack.silent_too or not case.silent:
            made = list(hack.make(case, context))
            # A text that is not a program can only fail in one way, and each score runs the tests.
            yield from (
                (case, wish)
                for wish in (
                    made if hack.for_code or not case.has_code else spaced(made, TEXTS_FOR_CODE)
                )
            )


def _thinned(tried: Tried, most: int) -> Tried:
    """Keep all right outputs, and an even share of each attack's within what may still be
    scored.
    """
    if len(tried) <= most:
        return tried
    first = [item for item in tried if item[0] == "gold"][:most]
    groups: dict[str, Tried] = defaultdict(list)
    for item in tried:
        if item[0] != "gold":
            groups[item[0]].append(item)
    share = max(1, (most - len(first)) // max(1, len(groups)))
    return first + [item for group in groups.values() for item in spaced(group, share)]


# Judging


def _ground(score: Scorer, context: Context, outcomes: list[Outcome], repeats: Repeats) -> Ground:
    """The rewards that the task's outputs are compared with."""
    rules, cases = context.options, {case.id: case for case in context.cases}
    kept: dict[str, list[Outcome]] = defaultdict(list)
    plain: dict[str, list[float]] = defaultdict(list)
    idle: dict[str, list[float]] = defaultdict(list)
    for item in outcomes:
        if item.wish.limit == KEEP:
            kept[item.task].append(item)
        elif item.probe in HONEST and merit(cases[item.task], item.wish.messages) < QUITE_WRONG:
            plain[item.task] += rewards_of([item])
        elif item.probe in IDLE:
            idle[item.task] += rewards_of([item])
    standards = {
        task: standard_of(kept[task], plain[task] or idle[task], repeats.noise > rules.noise)
        for task in cases
    }
    if rules.stochastic and repeats.noise > rules.noise:
        rules = structs.replace(rules, tolerance=max(rules.tolerance, 2 * repeats.noise))
    masked = any(item.masked for item in outcomes if item.wish.limit == KEEP)
    return Ground(score, context, cases, standards, rules, masked)


def _judged(ground: Ground, outcomes: list[Outcome]) -> list[Finding]:
    """The findings among the listed attacks. If rewards vary, only those that new scores confirm,
    and the worst of each probe.
    """
    found = [(item, finding) for item in outcomes if (finding := ground.judged(item))]
    if not ground.rules.stochastic:
        return [finding for _, finding in found]
    by_probe: dict[str, list[tuple[Outcome, Finding]]] = defaultdict(list)
    for item, finding in sorted(
        found, key=lambda pair: (pair[1].severity != "high", -(pair[0].reward or 0.0))
    ):
        by_probe[item.probe].append((item, finding))
    worst = [item for pairs in by_probe.values() for item, _ in pairs[:CONFIRMED]]
    confirmed = (
        ground.judged(again(ground.score, item, ground.cases[item.task], ground.rules))
        for item in worst
    )
    return [finding for finding in confirmed if finding]


def _repeated(score: Scorer, context: Context, outcomes: list[Outcome]) -> Repeats:
    """A second pass in reverse order: the same input must get the same reward, whenever it is
    scored.
    """
    rules, cases = context.options, {case.id: case for case in context.cases}
    chosen = spaced(outcomes, rules.max_repeats)[::-1]
    pairs = [
        (item, scored(score, item.probe, cases[item.task], item.wish, rules)) for item in chosen
    ]
    return Repeats(
        [(first, second) for first, second in pairs if not equal(first, second, rules.noise)],
        len(chosen),
    )


def _report(
    ground: Ground,
    outcomes: list[Outcome],
    repeats: Repeats,
    found: list[Finding],
    right: Counter[str],
    made: int,
    searched: int,
) -> Report:
    context, rules = ground.context, ground.rules
    spans = [standard.span for standard in ground.standards.values() if standard.span]
    measured = {
        "determinism": report.unsteady(repeats, median(spans) if spans else 0.0, rules),
        "pair_order": report.pairs_of(context),
        "discrimination": report.constant(outcomes),
    }
    findings = found + [item for items in measured.values() for item in items]
    rows = report.rows(context, outcomes, right, findings) + report.measures(
        context, measured, repeats.n
    )
    kept = report.kept(findings, rules.shown_per_probe)
    return Report(
        probes=[*rows, report.search_row(ground, findings, searched)],
        failed=kept,
        masked=dict(Counter(item.reason for item in outcomes if item.masked).most_common(20)),
        repeated=repeats.n,
        unequal=len(repeats.pairs),
        noise=repeats.noise,
        attacks=spread(rewards_of([item for item in outcomes if item.wish.limit != KEEP])),
        golds=spread(rewards_of([item for item in outcomes if item.wish.limit == KEEP])),
        speed=speed([item.micros for item in outcomes]),
        tasks=len(ground.cases),
        forms=dict(Counter(context.form(case) for case in context.cases)),
        notes=report.notes_of(context, ground.standards, len(outcomes), made),
        many_medium=rules.many_medium,
    )
