"""How likely an open case is a real failure, by what it rests on: the deciding reason, how sure
that is, and what the judge says. It is the share of the decided cases on the same basis that people
confirmed, in whatever mode. Few decisions are drawn towards those on the same reason, and these
towards what the layer promises, so cases are ranked before anybody has decided.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from django.db.models import Count, Exists, OuterRef

from apps.core.models import Project
from apps.failures.classify import CERTAIN, HINT, LIKELY
from apps.failures.judge.precedence import CHECK, ESTIMATE, REPLAY, RULE
from apps.failures.measures import Share, decided
from apps.failures.models import Failure, FailureQuerySet, FailureState, JudgeVerdict

FAILED, FINE, UNASKED = "failed", "fine", ""
PROMISED = {CERTAIN: 0.97, LIKELY: 0.9, HINT: 0.5}  # by rules, which are measured on many families
UNMEASURED = 0.5  # a judge or an estimate, until people have decided
COUNTED = 5_000  # newest open cases
PRIOR_CASES = 5  # decisions that count as much as what is known without them
SAID = {
    FAILED: "the judge agrees",
    FINE: "the judge sees no failure",
    UNASKED: "the judge was not asked",
}
NAMES = {RULE: "The judge alone", ESTIMATE: "The estimate", CHECK: "A person's check"}


class Basis(NamedTuple):
    """What a case rests on."""

    rule: str
    confidence: str
    judge: str

    @classmethod
    def of(
        cls,
        rule: str | None,
        confidence: str | None,
        next_rule: str | None,
        next_confidence: str | None,
        judge_mode: str,
        is_judged: bool,
    ) -> Self | None:
        """From the first two reasons: the judge's is the first if it chose the mode, even where
        another layer found the case. None where a person marked it by hand.
        """
        if rule == RULE and next_rule not in (None, REPLAY):
            rule, confidence = next_rule, next_confidence
        said = FAILED if judge_mode else FINE if is_judged else UNASKED
        return cls(rule, confidence or "", said) if rule else None

    def __str__(self) -> str:
        if self.rule == RULE:
            return NAMES[RULE]
        name = NAMES.get(self.rule, f"{self.rule} ({self.confidence})")
        return f"{name}; {SAID[self.judge]}"


COLUMNS = (
    "evidence__0__rule",
    "evidence__0__confidence",
    "evidence__1__rule",
    "evidence__1__confidence",
    "judge_mode",
    "is_judged",
)


def with_basis(rows: FailureQuerySet) -> FailureQuerySet:
    """So that COLUMNS are those of a basis."""
    verdicts = JudgeVerdict.objects.filter(trajectory=OuterRef("trajectory"), error="")
    return rows.annotate(is_judged=Exists(verdicts))


def basis_of(failure: Failure) -> Basis | None:
    row = with_basis(Failure.objects.filter(pk=failure.pk)).values_list(*COLUMNS).first()
    return Basis.of(*row) if row else None


@dataclass(frozen=True)
class Confirmed:
    """Of the cases on one basis: how many of the decided ones people confirmed, and how many are
    open.
    """

    basis: Basis
    share: Share
    open: int


class Likelihood:
    """Of a project's cases, from people's decisions."""

    def __init__(self, decisions: Counter[tuple[Basis, bool]]) -> None:
        self._of_basis, self._of_reason = Counter[Any](), Counter[Any]()
        for (basis, is_confirmed), n in decisions.items():
            self._of_basis[basis, is_confirmed] += n
            self._of_reason[basis[:2], is_confirmed] += n

    @classmethod
    def in_project(cls, project: Project) -> Self:
        rows = with_basis(decided(project)).values_list(*COLUMNS, "state")
        decisions: Counter[tuple[Basis, bool]] = Counter()
        for *columns, state, n in rows.annotate(n=Count("pk")):
            if basis := Basis.of(*columns):
                decisions[basis, state == FailureState.CONFIRMED] += n
        return cls(decisions)

    @property
    def bases(self) -> set[Basis]:
        return {basis for basis, _ in self._of_basis}

    def share(self, basis: Basis) -> Share:
        hits = self._of_basis[basis, True]
        return Share(hits, hits + self._of_basis[basis, False])

    def of(self, basis: Basis | None) -> float:
        """From 0 to 1: a rank rather than a probability while there are few decisions."""
        if basis is None:
            return 1.0
        promised = PROMISED.get(basis.confidence, UNMEASURED)
        prior = UNMEASURED if basis.rule in NAMES else promised
        for counts, key in ((self._of_reason, basis[:2]), (self._of_basis, basis)):
            hits, n = counts[key, True], counts[key, True] + counts[key, False]
            prior = (hits + PRIOR_CASES * prior) / (n + PRIOR_CASES)
        return prior


def confirmed(project: Project) -> list[Confirmed]:
    """Each basis that decided or open cases have, the likeliest first."""
    likelihood = Likelihood.in_project(project)
    rows = with_basis(Failure.objects.filter(project=project).waiting().order_by("-trajectory_id"))
    newest = rows.values_list(*COLUMNS)[:COUNTED]
    open_cases = Counter(filter(None, (Basis.of(*columns) for columns in newest)))
    found = [
        Confirmed(basis, likelihood.share(basis), open_cases[basis])
        for basis in likelihood.bases | set(open_cases)
    ]
    return sorted(found, key=lambda row: (-likelihood.of(row.basis), row.basis))
