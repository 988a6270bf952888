"""Writes of floor 4: diagnoses by the rules, decisions by people. A person's word is never overwritten."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.core.actions import audit
from apps.core.models import Project
from apps.failures.classify import Diagnosis, classify
from apps.failures.models import Failure, FailureDecision, FailureMode, FailureState, Severity, Source
from apps.trajectories.models import Trajectory, in_chunks

DEFAULT_MODES = (
    ("format_error", "Format error", Severity.MEDIUM, False, "The output is not the form that was asked for."),
    ("wrong_tool_choice", "Wrong tool choice", Severity.MEDIUM, False, "A tool there is, but not the right one."),
    ("wrong_arguments", "Wrong arguments", Severity.MEDIUM, False, "The right tool, called with wrong arguments."),
    ("bad_planning", "Bad planning", Severity.MEDIUM, False, "Steps that do not lead to the goal: loops, detours."),
    ("unsafe_action", "Unsafe action", Severity.HIGH, True, "A dangerous tool, or a change that nobody asked for."),
    (
        "retrieval_failure",
        "Retrieval failure",
        Severity.MEDIUM,
        False,
        "What was needed was not looked up, or not found.",
    ),
    ("hallucinated_api", "Hallucinated API", Severity.MEDIUM, False, "A tool that does not exist was called."),
    ("incomplete_execution", "Incomplete execution", Severity.LOW, False, "The run ended before the task was done."),
)


def ensure_modes(project: Project) -> dict[str, FailureMode]:
    """The project's failure modes by slug; the usual ones are made where they are missing."""
    FailureMode.objects.bulk_create(
        [
            FailureMode(
                project=project,
                slug=slug,
                name=name,
                severity=severity,
                safety_relevant=safety,
                definition=definition,
                position=position,
            )
            for position, (slug, name, severity, safety, definition) in enumerate(DEFAULT_MODES)
        ],
        ignore_conflicts=True,
    )
    return {mode.slug: mode for mode in project.failure_modes.all()}


def classify_project(*, project: Project, by: Any = None) -> dict[str, int]:
    """Diagnoses all trajectories that no person has decided on. Says how many were looked at and failed."""
    modes = ensure_modes(project)
    rows = (
        Trajectory.objects.filter(project=project)
        .exclude(failure__source=Source.PERSON)
        .exclude(failure__state__in=[FailureState.CONFIRMED, FailureState.DISMISSED])
        .order_by("pk")
    )
    looked = found = 0
    for chunk in in_chunks(rows):
        looked += len(chunk)
        found += _store(project, modes, chunk)
    audit("failures.classified", project=project, by=by, looked=looked, found=found)
    return {"looked": looked, "found": found}


@transaction.atomic
def _store(project: Project, modes: dict[str, FailureMode], chunk: list[Trajectory]) -> int:
    diagnoses = {row.pk: classify(as_input(row)) for row in chunk}
    # Decided meanwhile by a person: locked out of this chunk.
    decided = set(
        Failure.objects.select_for_update()
        .filter(trajectory_id__in=diagnoses)
        .exclude(source=Source.RULE, state=FailureState.OPEN)
        .values_list("trajectory_id", flat=True)
    )
    failures = [
        _failure(project, modes[diagnosis.mode], pk, diagnosis)
        for pk, diagnosis in diagnoses.items()
        if diagnosis is not None and pk not in decided
    ]
    healthy = [pk for pk, diagnosis in diagnoses.items() if diagnosis is None and pk not in decided]
    Failure.objects.filter(trajectory_id__in=healthy).delete()
    Failure.objects.bulk_create(
        failures,
        update_conflicts=True,
        unique_fields=["trajectory"],
        update_fields=["mode", "blamed_message", "evidence"],
    )
    return len(failures)


def _failure(project: Project, mode: FailureMode, trajectory: Any, diagnosis: Diagnosis) -> Failure:
    return Failure(
        project=project,
        trajectory_id=trajectory,
        mode=mode,
        source=Source.RULE,
        blamed_message=diagnosis.blamed_message,
        evidence=[item.as_dict() for item in diagnosis.evidence],
    )


def as_input(row: Trajectory) -> dict:
    return {
        "messages": row.messages,
        "tools": row.tools,
        "outcome_status": row.outcome_status,
        "outcome_reason": row.outcome_reason,
        "outcome_label": row.outcome_label,
        "interventions": row.interventions,
        "metadata": row.metadata,
    }


@transaction.atomic
def decide(
    *, failure: Failure, by: Any, mode: FailureMode | None = None, state: FailureState = FailureState.CONFIRMED
) -> Failure:
    """A person's word: confirm (as it is, or as another mode) or dismiss."""
    failure = Failure.objects.select_for_update(of=("self",)).select_related("mode", "project").get(pk=failure.pk)
    before = _snapshot(failure)
    failure.mode, failure.state, failure.source = mode or failure.mode, state, Source.PERSON
    failure.decided_by, failure.decided_at = by, timezone.now()
    failure.save(update_fields=["mode", "state", "source", "decided_by", "decided_at"])
    FailureDecision.objects.create(failure=failure, by=by, before=before, after=_snapshot(failure))
    audit("failure.decided", project=failure.project, by=by, target=failure, before=before, after=_snapshot(failure))
    return failure


@transaction.atomic
def undo(*, project: Project, by: Any) -> Failure | None:
    """Takes back the person's last decision in the project; None where there is none."""
    last = FailureDecision.objects.filter(failure__project=project, by=by).select_related("failure").first()
    if last is None:
        return None
    failure = Failure.objects.select_for_update().get(pk=last.failure_id)
    mode = project.failure_modes.get(slug=last.before["mode"])
    failure.mode, failure.state, failure.source = mode, last.before["state"], last.before["source"]
    failure.save(update_fields=["mode", "state", "source"])
    audit("failure.undone", project=project, by=by, target=failure, restored=last.before)
    last.delete()
    return failure


def _snapshot(failure: Failure) -> dict[str, str]:
    return {"mode": failure.mode.slug, "state": failure.state, "source": failure.source}
