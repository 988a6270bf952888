"""How often rules and judge agree with people, and how often each agent version fails: the page
“Accuracy” by API. What rests on random checks is in `outcomes`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from apps.core.models import Project
from apps.core.operations import Moment, Rest, operation
from apps.failures import likelihood, measures, reliability
from apps.failures.actions.inbox import Slug
from apps.failures.actions.outcomes import LayerOut, layers_of
from apps.failures.measures import Share
from apps.failures.outcomes import checks


class ShareOut(Struct):
    """`hits` of `n`, with the 95% interval `low` to `high` (Wilson); `rate` is null if n is 0."""

    hits: int
    n: int
    rate: float | None
    low: float
    high: float


class ModeOut(Struct):
    """One failure mode: of the cases that the layer gave this mode, those on which people agree;
    of the cases that people gave it, those that the layer found (at most, as nobody saw the rest).
    Of those it missed people `changed` some to this mode and `marked` others by hand.
    """

    mode: str
    precision: ShareOut
    recall: ShareOut
    changed: int
    marked: int


class ConfusedOut(Struct):
    """How many cases a layer gave one mode and people another; empty: no failure."""

    layer_mode: str
    people_mode: str
    cases: int


class TriagedOut(Struct):
    """A layer against what people decided in triage."""

    layer: Annotated[str, Meta(description="rules or judge")]
    agreement: ShareOut
    modes: list[ModeOut]
    confusion: list[ConfusedOut]


class EvidenceOut(Struct):
    """How often people confirm the cases that rest on this."""

    evidence: str
    confirmed: ShareOut
    open: int


class RuleOut(Struct):
    rule: str
    confidence: str
    right: ShareOut


class FailedOut(Struct):
    """Runs of an agent version with an open or confirmed failure."""

    agent: str
    version: str
    failed: ShareOut
    first: Moment


class AccuracyOut(Struct):
    checks_answered: int
    by_checks: Annotated[list[LayerOut], Meta(description="By random checks, as in outcomes")]
    decided: Annotated[int, Meta(description="Cases that people decided in triage")]
    by_triage: list[TriagedOut]
    evidence: list[EvidenceOut]
    rules: list[RuleOut]
    versions: list[FailedOut]


@operation("accuracy_read", rest=Rest("GET", "accuracy/", "accuracy"), gives=AccuracyOut)
def read(*, project: Project, mode: Slug | None = None) -> AccuracyOut:
    """How often rules and judge agree with people, by random checks and by decisions in triage,
    each with n; and how many runs of each agent version have a failure, of one `mode` if given.
    """
    traffic = checks.traffic(project)
    return AccuracyOut(
        checks_answered=traffic.answered,
        by_checks=layers_of(traffic),
        decided=measures.decided(project).count(),
        by_triage=[_triaged(project, layer) for layer in measures.LAYERS],
        evidence=[
            EvidenceOut(str(row.basis), _share(row.share), row.open)
            for row in likelihood.confirmed(project)
        ],
        rules=[
            RuleOut(row.rule, row.confidence, _share(row.share))
            for row in reliability.by_rule(reliability.decisions(project))
        ],
        versions=[
            FailedOut(*rate.of, _share(rate.failed), rate.first)
            for rate in measures.by_version(project, mode or "")
        ],
    )


def _triaged(project: Project, layer: str) -> TriagedOut:
    pairs = measures.pairs_of(project, layer)
    table = measures.confusion(pairs)
    return TriagedOut(
        layer,
        _share(measures.agreement(pairs)),
        [
            ModeOut(
                score.mode,
                _share(score.precision),
                _share(score.recall),
                score.changed,
                score.marked,
            )
            for score in measures.scores(pairs)
        ],
        [
            ConfusedOut(said, decided, n)
            for said, row in sorted(table.items())
            for decided, n in sorted(row.items())
        ],
    )


def _share(share: Share) -> ShareOut:
    return ShareOut(share.hits, share.n, share.rate, *share.interval)
