"""Whose diagnosis counts, the rules' or the judge's, and that a replay knows the step better. Pure.
People's decisions outrank all of them and are handled elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from apps.failures.judge.answer import Verdict
from apps.failures.rules.findings import UNEXPLAINED

RULE = "judge"
REPLAY = "replay"  # the rule of evidence about the step alone: continuations of the run were played
SURE = "certain"
ESTIMATE, CHECK = (
    "estimate",
    "check",
)  # rules whose evidence is about the outcome, not about an observed fault
NO_RULES = frozenset((RULE, REPLAY, ESTIMATE, CHECK))
WEAK_MODE = "incomplete_execution"  # says how a run ended more than why


@dataclass(frozen=True)
class Label:
    """A diagnosis: an empty mode means no failure; `evidence` are `findings.Evidence` as dicts, the
    deciding one first.
    """

    mode: str = ""
    blamed: int | None = None
    evidence: list[dict[str, Any]] = field(default_factory=list)
    by_judge: bool = False


def choose(rules: Label, verdict: Verdict) -> Label:
    """The judge wins over no finding, hints, “unexplained” and “incomplete execution”; findings
    that rules are surer of stay.

    Its evidence is kept either way, at the end if it does not decide. If it sees no failure, that
    removes nothing that rules found. The step is that of a replay, if there was one.
    """
    items = [item for item in rules.evidence if item.get("rule") != REPLAY]
    return with_replay(_chosen(replace(rules, evidence=items), verdict), rules.evidence)


def _chosen(rules: Label, verdict: Verdict) -> Label:
    if not verdict.failed:
        return rules
    said = as_evidence(verdict)
    if not is_weak(rules):
        return Label(rules.mode, rules.blamed, [*rules.evidence, said])
    return Label(verdict.mode, verdict.message_index, [said, *rules.evidence], by_judge=True)


def joined(rules: Label, evidence: Iterable[dict[str, Any]]) -> Label:
    """A new diagnosis of the rules combined with the judge's earlier verdict, as stored in the
    failure's `evidence`, and with the step that a replay found.
    """
    evidence = list(evidence)
    return with_replay(_with_judge(rules, evidence), evidence)


def with_replay(label: Label, evidence: Iterable[dict[str, Any]]) -> Label:
    """With what `evidence` contains of a replay, which decides the step if it is sure."""
    found = next((item for item in evidence if item.get("rule") == REPLAY), None)
    if found is None or not label.mode:
        return label
    blamed = found["message_index"] if found["confidence"] == SURE else label.blamed
    items = [item for item in label.evidence if item.get("rule") != REPLAY]
    return replace(label, blamed=blamed, evidence=[*items, found])


def _with_judge(rules: Label, evidence: Iterable[dict[str, Any]]) -> Label:
    said = next((item for item in evidence if item.get("rule") == RULE and item.get("mode")), None)
    if said is None:
        return rules
    reason, quote = str(said.get("text") or ""), str(said.get("quote") or "")
    verdict = Verdict(str(said["mode"]), said.get("message_index"), quote, reason, said.get("sure"))
    return _chosen(rules, verdict)


def rules_mode(evidence: Iterable[dict[str, Any]]) -> str:
    """The rules' mode, from the evidence of a diagnosis; empty if they found nothing."""
    return next(
        (str(item.get("mode") or "") for item in evidence if item.get("rule") not in NO_RULES), ""
    )


def is_weak(rules: Label) -> bool:
    """Whether the judge may know better."""
    sure = [item.get("confidence") for item in rules.evidence]
    checked = any(
        item.get("rule") == "expected_calls" for item in rules.evidence
    )  # the judge does not see the correct calls
    if rules.mode in ("", UNEXPLAINED) or "certain" in sure or checked:
        return rules.mode in ("", UNEXPLAINED)
    return rules.mode == WEAK_MODE or not sure or sure[0] == "hint"


def as_evidence(verdict: Verdict) -> dict[str, Any]:
    return {
        "rule": RULE,
        "message_index": verdict.message_index,
        "text": verdict.reason or "The judge gave no reason.",
        "quote": verdict.quote,
        "mode": verdict.mode,
        "confidence": "likely",
        "sure": verdict.confidence,
    }
