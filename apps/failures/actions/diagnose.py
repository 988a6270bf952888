"""Stores the rules' diagnoses. People's decisions are in `decisions`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any
from uuid import UUID

from django.db import transaction

from apps.core.actions import audit
from apps.core.models import Project
from apps.failures import prompts, replies
from apps.failures.actions.modes import ensure_modes
from apps.failures.classify import Diagnosis, classify_run
from apps.failures.judge.precedence import RULE, Label, joined, rules_mode
from apps.failures.models import Failure, FailureMode, FailureState, Source
from apps.failures.outcomes import estimates
from apps.failures.rules.reading import read
from apps.trajectories.models import Trajectory, in_chunks


def classify_project(*, project: Project, by: Any = None) -> dict[str, int]:
    """Diagnoses all trajectories; those that a person has decided on keep the decision. Returns how
    many were read, and in how many the rules find a failure."""
    rows = Trajectory.objects.filter(project=project).order_by("pk")
    looked = found = 0
    for chunk in in_chunks(rows):
        looked += len(chunk)
        found += diagnose_and_draw(project, chunk)
    audit("failures.classified", project=project, by=by, looked=looked, found=found)
    return {"looked": looked, "found": found}


@transaction.atomic
def diagnose_and_draw(project: Project, chunk: list[Trajectory]) -> int:
    """Diagnoses new or changed runs, and draws those that people check. Not for what an answer or a
    new model changes.
    """
    found = diagnose(project, chunk, flags=True)
    estimates.draw(project, [row.pk for row in chunk])
    return found


@transaction.atomic
def diagnose(project: Project, chunk: list[Trajectory], *, flags: bool = False) -> int:
    """Stores the rules' diagnoses of a chunk together with the judge's verdicts; returns in how
    many they find a failure.

    What a person decided stays; `rule_mode` is stored for all. Whether the rules or the judge come
    first makes no difference. Which runs the rules flag changes only with `flags`, that is, for
    answered runs together with all others: it decides what an answer stands for.
    """
    modes = ensure_modes(project)
    inputs = inputs_of(project, chunk)
    given = {row.pk: (row, read(inputs[row.pk])) for row in chunk}
    diagnoses = {pk: classify_run(run) for pk, (_, run) in given.items()}
    guessed = estimates.write(project, given)
    if not flags:
        by_rules = Failure.objects.filter(trajectory_id__among=given).exclude(rule_mode="")
        known = set(by_rules.values_list("trajectory_id", flat=True))
        diagnoses = {
            pk: diagnosis if pk in known else None
            for pk, diagnosis in diagnoses.items()
            if diagnosis or pk not in known
        }
    diagnoses = {pk: diagnosis or guessed.get(pk) for pk, diagnosis in diagnoses.items()}
    made = _make(project, modes, diagnoses)
    # Only now: failures that the judge or a person made at this moment are there, too.
    known = {
        failure.trajectory_id: failure
        for failure in Failure.objects.select_for_update()
        .filter(trajectory_id__among=diagnoses)
        .order_by("pk")
    }
    is_open = {pk: is_undecided(failure) for pk, failure in known.items()}
    words = {
        pk: label_with(diagnoses[pk], failure.evidence if is_open[pk] else ())
        for pk, failure in known.items()
    }
    found = {pk: word for pk, word in words.items() if word.mode in modes}
    rows = {pk: _failure(project, modes[word.mode], pk, word) for pk, word in found.items()}
    Failure.objects.bulk_create(
        [
            row
            for pk, row in rows.items()
            if is_open[pk] and not (pk in made and row.evidence == known[pk].evidence)
        ],
        update_conflicts=True,
        unique_fields=["trajectory"],
        update_fields=["mode", "blamed_message", "evidence", "rule_mode", "source"],
    )
    healthy = [pk for pk in is_open if is_open[pk] and pk not in found]
    Failure.objects.filter(trajectory_id__in=healthy).exclude(pk__in=_split_off(healthy)).delete()
    _note_rules({pk: rules_mode(found[pk].evidence) if pk in found else "" for pk in known})
    return sum(is_open[pk] and diagnoses[pk] is not None for pk in found)


def _make(
    project: Project,
    modes: dict[str, FailureMode],
    diagnoses: dict[UUID, Diagnosis | None],
) -> set[UUID]:
    """Makes the failures of runs that have none; those that somebody makes at this moment stay."""
    has_one = set(
        Failure.objects.filter(trajectory_id__among=diagnoses).values_list(
            "trajectory_id", flat=True
        )
    )
    words = {pk: label_with(it, ()) for pk, it in diagnoses.items() if pk not in has_one}
    rows = [
        _failure(project, modes[word.mode], pk, word)
        for pk, word in words.items()
        if word.mode in modes
    ]
    Failure.objects.bulk_create(rows, ignore_conflicts=True)
    return {row.trajectory_id for row in rows}


def is_undecided(failure: Failure) -> bool:
    """Whether rules and judge still decide on it, not people."""
    return failure.state == FailureState.OPEN and failure.source != Source.PERSON


def _split_off(trajectories: list[Any]) -> list[int]:
    """Failures to which a person has given a second mode, which is a decision too."""
    links = Failure.also.through.objects.filter(failure__trajectory_id__in=trajectories)
    return list(links.values_list("failure_id", flat=True))


def _note_rules(said: dict[Any, str]) -> None:
    """`said` is {trajectory: mode or ""}, for locked failures."""
    for mode in set(said.values()):
        pks = [pk for pk, other in said.items() if other == mode]
        Failure.objects.filter(trajectory_id__in=pks).exclude(rule_mode=mode).update(rule_mode=mode)


def _failure(project: Project, mode: FailureMode, trajectory: Any, word: Label) -> Failure:
    return Failure(
        project=project,
        trajectory_id=trajectory,
        mode=mode,
        rule_mode=rules_mode(word.evidence),
        source=source_of(word.evidence),
        blamed_message=word.blamed,
        evidence=word.evidence,
    )


def label_with(diagnosis: Diagnosis | None, evidence: Iterable[dict]) -> Label:
    """Combines the rules' current diagnosis with the judge's verdict, which a failure's `evidence`
    contains.
    """
    if diagnosis is None:
        return joined(Label(), evidence)
    items = [item.as_dict() for item in diagnosis.evidence]
    if items and items[0]["message_index"] != diagnosis.blamed_message:
        items[0]["blamed"] = diagnosis.blamed_message  # the case's step may be the judge's
    return joined(Label(diagnosis.mode, diagnosis.blamed_message, items), evidence)


def source_of(evidence: list[dict]) -> Source:
    """Who decided, according to the first item of the evidence."""
    return Source.JUDGE if evidence and evidence[0].get("rule") == RULE else Source.RULE


def inputs_of(project: Project, rows: Collection[Trajectory]) -> dict[UUID, dict]:
    """The rules' input for runs: what the judge reads, and the forms of their tools' replies."""
    forms = replies.forms_of(project)
    return {pk: {"forms": forms, **given} for pk, given in judged_of(project, rows).items()}


def judged_of(project: Project, rows: Collection[Trajectory]) -> dict[UUID, dict]:
    """What the judge reads of runs, with the confirmed rules that apply to them."""
    policy = prompts.policy_of(project, rows)
    return {row.pk: as_input(row) | policy.get(row.pk, {}) for row in rows}


def as_input(row: Trajectory) -> dict:
    """Without what is embedded in messages, which no rule and no judge reads."""
    return {
        "messages": row.content["messages"],
        "tools": row.tools,
        "outcome_status": row.outcome_status,
        "outcome_reason": row.outcome_reason,
        "outcome_label": row.outcome_label,
        "interventions": row.interventions,
        "metadata": row.metadata,
    }
