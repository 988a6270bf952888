"""From a trajectory to its failure mode, the blamed step and the evidence. Pure: no Django, no
torch.

PRECEDENCE is the whole policy: the first line with a finding determines the mode and the blamed
step; findings of all lines are evidence. Harm comes first, then broken contracts that were not
recovered, then deviations from known correct calls, then how the run ended and what people did.
Each line is right in at least 95% of its hits on families of traffic that it was not written on
(`bench.families`), whatever the language. What needs understanding is left to the judge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from apps.failures.rules import checks, policy
from apps.failures.rules.findings import Diagnosis, Evidence, Finding
from apps.failures.rules.reading import Run, read

__all__ = ["Diagnosis", "Evidence", "classify"]

# Increment it when a rule's result changes: earlier runs are then classified again.
RULES_VERSION = 14
A_RULE = 3  # findings kept per rule
SCANNED = 200  # broken contracts searched for one that was not recovered
CERTAIN, LIKELY, HINT = "certain", "likely", "hint"  # an estimate is a hint
ALL = frozenset(("success", "failure", "unknown"))
NOT_SUCCESS = ALL - {"success"}
FAILURE = frozenset(("failure",))


@dataclass(frozen=True)
class Line:
    """One rule with its precedence: how certain it is, and for which outcomes it applies.

    `standing`: only what was not recovered later counts. `only` is a mode: the rule's other
    findings have a separate line further down.
    """

    rule: Callable[[Run], checks.Findings]
    confidence: str
    outcomes: frozenset[str] = NOT_SUCCESS
    standing: bool = False
    only: str = ""


PRECEDENCE = (
    # Harm: also in a run that is marked as a success.
    Line(checks.dangerous_without_approval, CERTAIN, ALL),
    Line(checks.expected_calls, CERTAIN, NOT_SUCCESS, only="unsafe_action"),
    # Broken contracts that were never recovered: also in a success.
    Line(checks.arguments_do_not_parse, CERTAIN, ALL, standing=True),
    Line(checks.tool_is_not_there, CERTAIN, ALL, standing=True),
    # Against the expected calls: the first deviation. Before the schema, since a call of the wrong
    # tool with wrong arguments is first of all the wrong tool.
    Line(checks.expected_calls, CERTAIN, NOT_SUCCESS),
    Line(checks.arguments_break_the_schema, CERTAIN, ALL, standing=True),
    Line(policy.confirmed_rule_broken, CERTAIN),
    # How the run went, and how it ended: what would have changed the end is the cause.
    Line(checks.looped, LIKELY),
    Line(checks.error_never_recovered, LIKELY),
    Line(checks.turn_limit, CERTAIN),
    Line(checks.ended_on_a_call, LIKELY),
    Line(checks.answered_with_nothing, LIKELY),
    # What is certain to be wrong, but not why.
    Line(checks.rejected_by_a_person, CERTAIN),
    Line(checks.handed_over, LIKELY),
    Line(checks.rated_badly, LIKELY),
    Line(checks.expected_words, LIKELY, FAILURE),
    Line(checks.failed_without_a_finish, CERTAIN, FAILURE),
)


def classify(trajectory: dict) -> Diagnosis | None:
    """The diagnosis of a run {messages, tools, outcome_status, outcome_reason, interventions,
    metadata, rules?, forms?}, or None.
    """
    return classify_run(read(trajectory))


def classify_run(run: Run) -> Diagnosis | None:
    """A success is only blamed for harm, and for breaking a tool's contract without recovering."""
    cached: dict[Callable, list[Finding]] = {}
    ordered: list[tuple[Line, Finding]] = []
    for line in PRECEDENCE:
        if run.status in line.outcomes:
            ordered += [(line, finding) for finding in _of(line, run, cached)]
    if not ordered:
        return None
    return Diagnosis(ordered[0][1].mode, ordered[0][1].blamed, _evidence(ordered))


def _of(line: Line, run: Run, cached: dict[Callable, list[Finding]]) -> list[Finding]:
    """The findings of a line's rule; `cached` keeps them, for a rule with two lines."""
    if line.rule not in cached:
        findings = checks.first(line.rule(run), SCANNED if line.standing else A_RULE)
        cached[line.rule] = (
            checks.without_recovered(run, findings)[:A_RULE] if line.standing else findings
        )
    findings = cached[line.rule]
    return (
        [finding for finding in findings if finding.mode == line.only]
        if line.only and findings
        else findings
    )


def _confidence(line: Line, finding: Finding) -> str:
    return finding.confidence or line.confidence


def _evidence(findings: list[tuple[Line, Finding]]) -> list[Evidence]:
    """Each finding once; the fallback only if there is nothing else."""
    evidence: dict[tuple, Evidence] = {}
    for line, finding in findings:
        if line.rule is checks.failed_without_a_finish and evidence:
            continue
        name, index = line.rule.__name__, finding.blamed if finding.shown is None else finding.shown
        item = Evidence(
            name, index, finding.text, finding.quote, finding.mode, _confidence(line, finding)
        )
        evidence.setdefault((name, index, finding.text), item)
    return list(evidence.values())
