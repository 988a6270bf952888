"""The failures of a project, as the inbox lists them."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta, Struct, field, to_builtins

from apps.core.models import Project, Role
from apps.core.operations import Moment, Paged, Rest, Written, choice_of, operation
from apps.core.routes import RUNS, Disclosure
from apps.failures.actions import decisions
from apps.failures.actions.decisions import Refused
from apps.failures.agent_versions import AgentText, VersionText, chosen
from apps.failures.models import Failure, FailureQuerySet, FailureState, Source
from apps.failures.triage_queue import CONFIDENCES, narrowed
from apps.trajectories.shown import runs_shown
from workers.lib.typed import json_schema

Confidence = Literal[CONFIDENCES]  # type: ignore[valid-type]
RELATED = ("mode", "trajectory", "assigned_to", "decided_by")
Slug = Annotated[str, Meta(title="Failure mode", description="Slug of a mode")]


class FailureOut(Struct):
    pk: int = field(name="id")
    run: Annotated[str, Meta(description="The run's external id")] = field(name="trajectory")
    agent: str
    version: str
    model: str
    mode: str
    also: Annotated[list[str], Meta(description="Other modes that people split off")]
    state: choice_of(FailureState)  # type: ignore[valid-type]
    source: Annotated[
        choice_of(Source),  # type: ignore[valid-type]
        Meta(description="Whose word the mode is"),
    ]
    rule_mode: Annotated[str, Meta(description="By the rules; empty: they found nothing")]
    judge_mode: Annotated[str, Meta(description="By the judge; empty: no failure, or not asked")]
    blamed_message: int | None
    evidence: Annotated[
        list[dict[str, Any]],
        Meta(
            description=(
                "rule, message_index, text, quote, mode, confidence; blamed: the rules' step, if it"
                " is not that message"
            )
        ),
    ]
    cluster: UUID | None
    assigned_to: str | None
    decided_by: str | None
    decided_at: Moment | None
    created_at: Moment


def _content(request: Any, row: Failure) -> Any:
    return to_builtins(
        FailureOut(
            pk=row.pk,
            run=row.trajectory.external_id,
            agent=row.agent_name,
            version=row.agent_version,
            model=row.model,
            mode=row.mode.slug,
            also=[mode.slug for mode in row.also.all()],
            state=row.state,
            source=row.source,
            rule_mode=row.rule_mode,
            judge_mode=row.judge_mode,
            blamed_message=row.blamed_message,
            evidence=row.evidence,
            cluster=row.cluster_id,
            assigned_to=row.assigned_to and str(row.assigned_to),
            decided_by=row.decided_by and str(row.decided_by),
            decided_at=row.decided_at,
            created_at=row.created_at,
        )
    )


def _shown(request: Any, rows: list[Failure]) -> None:
    key, runs = request.auth, [row.trajectory_id for row in rows]
    runs_shown(key.project, runs, to=key, where="failures by API")


def _one_shown(request: Any, row: Failure) -> Any:
    _shown(request, [row])
    return _content(request, row)


FAILURE, SHOWS_RUNS = Written(json_schema(FailureOut), _one_shown), Disclosure(RUNS)


@operation(
    "failures_list",
    rest=Rest("GET", "failures/", "failures"),
    gives=Paged(Written(FAILURE.schema, _content, _shown)),
    shows=SHOWS_RUNS,
)
def listed(
    *,
    project: Project,
    by: Any,
    mode: Slug | None = None,
    state: Annotated[
        choice_of(FailureState),  # type: ignore[valid-type]
        Meta(description="Without it, those that are not dismissed"),
    ]
    | None = None,
    agent: AgentText = "",
    version: VersionText = "",
    confidence: Annotated[Confidence, Meta(description="Of the deciding evidence")] | None = None,
    cluster: UUID | None = None,
    safety: Annotated[bool, Meta(description="Only modes that are relevant to safety")] = False,
    mine: Annotated[bool, Meta(description="Only cases assigned to the caller")] = False,
) -> FailureQuerySet:
    """The failures that match all filters."""
    given = {
        "mode": mode,
        "confidence": confidence,
        "cluster": cluster,
        "safety": safety,
        "mine": mine,
    }
    rows = Failure.objects.filter(project=project)
    rows = narrowed(rows, given, chosen(project, agent, version), by)
    rows = rows.filter(state=state) if state else rows.standing()
    return rows.select_related(*RELATED).prefetch_related("also")


@operation(
    "failures_read",
    rest=Rest("GET", "failures/<int:pk>/", "failure"),
    gives=FAILURE,
    shows=SHOWS_RUNS,
)
def one(*, failure: Failure) -> Failure:
    """A failure."""
    return failure


@operation(
    "failures_decide",
    rest=Rest("POST", "failures/<int:pk>/decide/", "failure_decide"),
    gives=FAILURE,
    role=Role.REVIEWER,
    shows=SHOWS_RUNS,
)
def decide(
    *,
    failure: Failure,
    by: Any,
    state: Annotated[Literal["confirmed", "dismissed"], Meta(title="State")],
    mode: Slug | None = None,
) -> Failure:
    """Confirms a failure, as it is or as another `mode`, or dismisses it.

    Raises Refused.
    """
    known = failure.project.failure_modes.filter(slug=mode).first() if mode else None
    if mode and known is None:
        raise Refused("This project has no failure mode with this slug.", "mode")
    return decisions.decide(failure=failure, by=by, mode=known, state=FailureState(state))
