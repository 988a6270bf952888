"""Writes of floor 4: failure modes and the diagnoses of the rules. What people decide is in `actions_people`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import transaction

from apps.core.actions import audit
from apps.core.models import Project
from apps.failures.actions_people import Refused, assign, decide, mark_failure, reserve, split, undo
from apps.failures.classify import Diagnosis, classify
from apps.failures.judge.policy import RULE, Word, joined, rules_mode
from apps.failures.models import Failure, FailureMode, FailureState, Severity, Source
from apps.trajectories.models import Trajectory, in_chunks

__all__ = [
    "DEFAULT_MODES", "Refused", "as_input", "assign", "classify_project", "decide", "ensure_modes", "mark_failure",
    "reserve", "split", "undo",
]  # fmt: skip

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
    """Diagnoses all trajectories; those that a person has decided on keep their word. Says how many were looked at,
    and in how many a failure was found or stays found by the rules."""
    modes = ensure_modes(project)
    rows = Trajectory.objects.filter(project=project).order_by("pk")
    looked = found = 0
    for chunk in in_chunks(rows):
        looked += len(chunk)
        found += _store(project, modes, chunk)
    audit("failures.classified", project=project, by=by, looked=looked, found=found)
    return {"looked": looked, "found": found}


@transaction.atomic
def _store(project: Project, modes: dict[str, FailureMode], chunk: list[Trajectory]) -> int:
    """What the rules say of a chunk, beside what the judge said. What a person, or the judge alone, decided keeps its mode;
    `rule_mode` is kept of all."""
    diagnoses = {row.pk: classify(as_input(row)) for row in chunk}
    known = Failure.objects.select_for_update().filter(trajectory_id__in=diagnoses).order_by("pk")
    is_open, said = {}, {}
    for pk, source, state, evidence in known.values_list("trajectory_id", "source", "state", "evidence"):
        is_open[pk] = source == Source.RULE and state == FailureState.OPEN
        said[pk] = evidence if is_open[pk] else ()
    words = {pk: word_with(diagnosis, said.get(pk, ())) for pk, diagnosis in diagnoses.items()}
    found = {pk: word for pk, word in words.items() if word.mode in modes}
    rows = {pk: _failure(project, modes[word.mode], pk, word) for pk, word in found.items()}
    # What is new: a person who marks the same run just now comes first. What is open: its row is locked above.
    Failure.objects.bulk_create([row for pk, row in rows.items() if pk not in is_open], ignore_conflicts=True)
    Failure.objects.bulk_create(
        [row for pk, row in rows.items() if is_open.get(pk)],
        update_conflicts=True,
        unique_fields=["trajectory"],
        update_fields=["mode", "blamed_message", "evidence", "rule_mode", "source"],
    )
    healthy = [pk for pk in is_open if is_open[pk] and pk not in found]
    Failure.objects.filter(trajectory_id__in=healthy).exclude(pk__in=_split_off(healthy)).delete()
    _note_rules({pk: rules_mode(found[pk].evidence) if pk in found else "" for pk in is_open})
    return sum(is_open.get(pk, True) for pk in found)


def _split_off(trajectories: list[Any]) -> list[int]:
    """Failures to which a person has given a second mode: their word too."""
    links = Failure.also.through.objects.filter(failure__trajectory_id__in=trajectories)
    return list(links.values_list("failure_id", flat=True))


def _note_rules(said: dict[Any, str]) -> None:
    """`said` is {trajectory: mode or ""}, of failures that are locked."""
    for mode in set(said.values()):
        pks = [pk for pk, other in said.items() if other == mode]
        Failure.objects.filter(trajectory_id__in=pks).exclude(rule_mode=mode).update(rule_mode=mode)


def _failure(project: Project, mode: FailureMode, trajectory: Any, word: Word) -> Failure:
    return Failure(
        project=project,
        trajectory_id=trajectory,
        mode=mode,
        rule_mode=rules_mode(word.evidence),
        source=source_of(word.evidence),
        blamed_message=word.blamed,
        evidence=word.evidence,
    )


def word_with(diagnosis: Diagnosis | None, evidence: Iterable[dict]) -> Word:
    """What the rules say now, together with what the judge said before, which a failure's `evidence` keeps."""
    items = [item.as_dict() for item in diagnosis.evidence] if diagnosis else []
    return joined(Word(diagnosis.mode, diagnosis.blamed_message, items) if diagnosis else Word(), evidence)


def source_of(evidence: list[dict]) -> Source:
    """Who decided: the first of the evidence says it."""
    return Source.JUDGE if evidence and evidence[0].get("rule") == RULE else Source.RULE


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
