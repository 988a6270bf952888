"""The true failure rate of all traffic, how well each layer tells, the outcome model, and checks by
people, as operations.
"""

from __future__ import annotations

from typing import Annotated, Any

from django.http import Http404
from msgspec import Meta, Struct

from apps.core.models import Project, Role
from apps.core.openapi import sent
from apps.core.operations import Moment, Page, Reference, Rest, choice_of, operation
from apps.failures import agent_versions
from apps.failures.agent_versions import AgentText, VersionText
from apps.failures.models import OutcomeCheck, OutcomeModel
from apps.failures.outcomes import alarms, checks, train_job
from apps.failures.outcomes.rate import Estimate
from apps.trajectories.actions.store import find
from apps.trajectories.models import Trajectory
from workers.lib.typed import Share


class IntervalOut(Struct):
    """A share with its 95% interval, from `n` checks."""

    value: float
    low: float
    high: float
    n: int


class LayerOut(Struct):
    """How well a layer tells, by checks of random runs: of all failures it flagged `recall`, of
    what it flagged `precision` failed, of the runs that went well it flagged `false_alarms`. Each
    is null if no checked run tells it.
    """

    layer: Annotated[str, Meta(description="rules, estimate or judge")]
    has_run: bool
    recall: IntervalOut | None
    precision: IntervalOut | None
    false_alarms: IntervalOut | None


class VersionOut(Struct):
    agent: str
    version: str
    runs: int
    checks_answered: int
    verdicts: int
    failure_rate: IntervalOut | None


class ModelOut(Struct):
    number: int
    decisions: int
    measured: Annotated[dict[str, Any], Meta(description="Out of fold")]
    is_better: Annotated[bool, Meta(description="Than what was in use, which it replaced")]
    note: Annotated[str, Meta(description="Why it is not better, or was switched off")]
    made_at: Moment
    off_at: Moment | None


class EstimatesOut(Struct):
    """The `model` in use, and what random checks since say of it."""

    model: int
    false_alarms: IntervalOut | None
    evidence_above_limit: Annotated[
        float,
        Meta(description="That false alarms have risen above 10%; it is switched off at 500"),
    ]
    calibrated: Annotated[bool, Meta(description="Whether scores are probabilities, or ranks")]


class OutcomesOut(Struct):
    runs: int
    checks_answered: int
    checks_waiting: int
    check_share: Annotated[float, Meta(description="Of the unflagged runs, drawn for a check")]
    verdicts: Annotated[
        int,
        Meta(description="Of the judge's random share with a verdict: they narrow the intervals"),
    ]
    judge: Annotated[str, Meta(description="The model that gave them; empty if there are none")]
    failure_rate: Annotated[
        IntervalOut | None, Meta(description="The true one; null without a check")
    ]
    rests_on: str
    layers: list[LayerOut]
    versions: Annotated[
        list[VersionOut], Meta(description="The newest agent versions, the newest first")
    ]
    model: Annotated[
        ModelOut | None, Meta(description="The newest outcome model; null before the first")
    ]
    estimates: Annotated[
        EstimatesOut | None,
        Meta(description="Null while no model is better than none: then it flags nothing"),
    ]


class NextOut(Struct):
    trajectory: Annotated[str | None, Meta(description="Its external id; null if no run is left")]
    random: Annotated[bool, Meta(description="Drawn at random, or chosen because it teaches most")]
    waiting: Annotated[int, Meta(description="Drawn runs without an answer")]


@operation("outcomes_read", rest=Rest("GET", "outcomes/", "outcomes"), gives=OutcomesOut)
def read(*, project: Project, agent: AgentText = "", version: VersionText = "") -> OutcomesOut:
    """The true failure rate, and how well each layer tells, estimated from random checks of all
    runs or those of an agent or one of its versions; and the outcome model.
    """
    chosen = agent_versions.chosen(project, agent, version)
    known, model = checks.traffic(project, of=chosen), project.outcome_models.first()
    return OutcomesOut(
        runs=known.runs,
        checks_answered=known.answered,
        checks_waiting=known.waiting,
        check_share=checks.share_of(project),
        verdicts=known.verdicts,
        judge=known.judge,
        failure_rate=interval(known.rate),
        rests_on=known.rests_on,
        layers=layers_of(known),
        versions=[
            VersionOut(*one.of, one.runs, one.answered, one.verdicts, interval(one.rate))
            for one in checks.by_version(project)
            if chosen.includes(one.of)
        ],
        model=model and ModelOut(*(getattr(model, name) for name in ModelOut.__struct_fields__)),
        estimates=_estimates(project),
    )


def layers_of(known: checks.Traffic) -> list[LayerOut]:
    return [
        LayerOut(
            layer.name,
            layer.has_run,
            *map(interval, (layer.recall, layer.precision, layer.false_alarms)),
        )
        for layer in known.layers
    ]


def _estimates(project: Project) -> EstimatesOut | None:
    if (in_use := OutcomeModel.in_use(project)) is None:
        return None
    seen = alarms.observed(project, in_use)
    return EstimatesOut(
        in_use.number,
        interval(seen and seen.share),
        seen.evidence if seen else 0.0,
        in_use.measured.get("calibrated", False),
    )


def interval(found: Estimate | None) -> IntervalOut | None:
    return found and IntervalOut(found.value, found.low, found.high, found.n)


@operation(
    "outcomes_train",
    rest=Rest("POST", "outcomes/", "outcomes", 202),
    page=Page(
        "checks/train/",
        "outcomes_train",
        then="failures:measures",
        follows=True,
    ),
    gives=OutcomesOut,
)
def train(*, project: Project, by: Any) -> OutcomesOut:
    """Trains the outcome model on the decisions so far."""
    train_job.start(project=project, by=by)
    return read(project=project)


# Checks


@operation("outcome_checks_next", rest=Rest("GET", "outcomes/checks/", "checks"), gives=NextOut)
def next_check(*, project: Project) -> NextOut:
    """The next run to check."""
    found = checks.next_check(project)
    row = project.trajectories.filter(pk=found.trajectory).first() if found else None
    waiting = checks.waiting(project).count()
    return NextOut(row and row.external_id, bool(found and found.random), waiting)


def find_run(project: Project, name: str) -> Trajectory:
    if (row := find(project, name)) is None:
        raise Http404("This project has no run with this id.")
    return row


RunNamed = Annotated[
    Trajectory, Reference(find_run), Meta(title="Run", description="Its external id")
]


@operation(
    "outcome_checks_answer",
    rest=Rest("POST", "outcomes/checks/", "checks"),
    gives=NextOut,
    role=Role.REVIEWER,
    examples=(sent("failed", {"trajectory": "run-17", "answer": "failed"}),),
)
def answer(
    *,
    project: Project,
    by: Any,
    trajectory: RunNamed,
    answer: choice_of(OutcomeCheck.Answer),  # type: ignore[valid-type]
) -> NextOut:
    """Records the answer for a run and returns the next run to check.

    Raises Refused.
    """
    checks.answer(trajectory=trajectory, answer=answer, by=by)
    return next_check(project=project)


@operation(
    "outcome_checks_share",
    rest=Rest("PUT", "outcomes/checks/share/", "checks_share"),
    gives=OutcomesOut,
)
def set_share(
    *,
    project: Project,
    by: Any,
    share: Annotated[Share, Meta(title="Random share", description="0.02 is every fiftieth")],
) -> OutcomesOut:
    """Sets the share of the unflagged runs that are drawn for a check; those that the rules flag
    are drawn five times as often. If it is raised, more of the stored runs are drawn, too.
    """
    checks.set_share(project=project, share=share, by=by)
    return read(project=project)
