"""Writes of scores."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any
from uuid import UUID

from django.db import connection, transaction
from django.utils import timezone
from msgspec import Meta
from msgspec.structs import replace

from apps.core.actions import audit
from apps.core.errors import Rejected
from apps.core.models import Project, Role
from apps.core.operations import Page, operation
from apps.trajectories import late_data, merging, tombstones
from apps.trajectories.actions.redaction import redactor_of, secret_of
from apps.trajectories.models import LateData, Score, Step, Trajectory, TrajectoryKey
from apps.trajectories.redaction import RuleError
from apps.trajectories.schema import MAX_NAME
from apps.trajectories.scores import MAX_COMMENT, MAX_TEXT, Came, Sent, value_of
from apps.trajectories.steps import KINDS

OFFERED_STEPS = 500
LONGEST = {"name": MAX_NAME, "value": MAX_TEXT, "comment": MAX_COMMENT, "by": 200}
UNIQUE = ["project", "external_id", "step", "name", "key"]
CHANGED = ["trajectory_id", "kind", "value", "text", "source", "by", "comment", "created_at"]


@transaction.atomic
def receive(*, project: Project, sent: Sequence[Sent], account: int = 0) -> dict[str, int]:
    """Stores each once: another with the same id, or without one from the same source, replaces it;
    those that a person gave here (`account`), only theirs.
    `waiting`: their runs have not arrived yet. `deleted`: their runs were deleted; those are not
    stored. Raises RowError, and RuleError where a redaction rule cannot be used.
    """
    given, sent = sent, _redacted(project, sent, account)
    keys = [_key(project, *both, account) for both in zip(given, sent, strict=True)]
    values = [value_of(one.value, one.kind) for one in sent]
    names = {one.run for one in sent}
    runs = _runs(project, names)
    if len(runs) < len(names):
        merging.wait_for_arrivals(project)
        runs = _runs(project, names)
    deleted = tombstones.deleted_runs(project, names - runs.keys())
    now = timezone.now()
    rows = {
        (one.run, one.step, one.name, key): Score(
            project=project,
            external_id=one.run,
            step=one.step,
            name=one.name,
            key=key,
            trajectory_id=runs.get(one.run),
            kind=value.kind,
            value=value.value,
            text=value.text,
            source=one.source,
            by=one.by,
            comment=one.comment,
            created_at=now,
        )
        for one, value, key in zip(sent, values, keys, strict=True)
        if one.run not in deleted
    }
    _save(rows.values())
    dropped = sum(one.run in deleted for one in sent)
    late_data.note(project.pk, LateData.Kind.FEEDBACK, dropped)
    return {
        "accepted": len(rows),
        "waiting": sum(row.trajectory_id is None for row in rows.values()),
        "deleted": dropped,
    }


def steps_of(trajectory: Trajectory | None) -> list[tuple[str, str]]:
    """What a person may score: the run, or one of its first steps."""
    rows = Step.objects.filter(
        project_id=trajectory and trajectory.project_id,
        trajectory_id=trajectory and trajectory.pk,
    )
    shown = [
        (row.key, f"{row.number + 1}. {row.name[:60]} ({KINDS.get(row.kind, row.kind).lower()})")
        for row in rows.order_by("number")[:OFFERED_STEPS]
    ]
    return [("", "The whole run"), *shown]


@operation(
    "scores_give",
    page=Page("<uuid:pk>/scores/", "score_give", done="Score saved."),
    role=Role.REVIEWER,
    says={"score.given": "scored {=a trajectory@}: {name} = {said}"},
)
@transaction.atomic
def give(
    *,
    trajectory: Trajectory,
    by: Any,
    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME, title="Name")],
    value: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=MAX_TEXT,
            title="Value",
            description="A number, yes or no, a category, or a text",
        ),
    ],
    step: Annotated[str, Meta(title="Of", extra={"choices": steps_of, "hint": ""})] = "",
    comment: Annotated[str, Meta(max_length=MAX_COMMENT, title="Comment")] = "",
) -> None:
    """A person's score of a run or of one of its steps; another of the same name replaces
    theirs.
    """
    person = by.get_username()
    sent = Sent(
        run=trajectory.external_id,
        name=name.strip(),
        value=_typed(value.strip()),
        step=step,
        comment=comment,
        source="person",
        by=person,
    )
    try:
        (sent,) = _redacted(trajectory.project, [sent], by.pk)
        receive(project=trajectory.project, sent=[sent], account=by.pk)
    except RuleError as error:
        raise Rejected(f"A redaction rule of the project cannot be used: {error}") from error
    audit(
        "score.given",
        project=trajectory.project,
        by=by,
        target=trajectory,
        name=sent.name,
        said=(sent.value if isinstance(sent.value, str) else value.strip())[:120],
    )


def _redacted(project: Project, sent: Sequence[Sent], account: int) -> list[Sent]:
    """Without what the project's rules find in what was said; ids link, and an account's name is
    known here. A rule may be about words that name our fields.
    """
    names = sorted(LONGEST.keys() - ({"by"} if account else ()))
    said = [[getattr(one, name) for name in names] for one in sent]
    found, _ = redactor_of(project).redact(
        {"scores": [[text if isinstance(text, str) else "" for text in one] for one in said]}
    )
    return [
        replace(
            one,
            **{
                name: text[: LONGEST[name]]
                for name, old, text in zip(names, was, new, strict=True)
                if isinstance(old, str)
            },
        )
        for one, was, new in zip(sent, said, found["scores"], strict=True)
    ]


def _key(project: Project, given: Sent, sent: Sent, account: int) -> str:
    """Says who it is from, without saying what redaction may take out of their name."""
    if account:
        return f"account:{account}"
    if sent.id:
        return f"id:{sent.id}"
    if sent.by == given.by:
        return f"{sent.source}:{sent.by}"
    digest = hmac.digest(secret_of(project), given.by.encode(), "sha256").hex()
    return f"{sent.source}:hmac:{digest[:32]}"


def _typed(text: str) -> float | bool | str:
    """What a person means by a text."""
    if text.lower() in ("yes", "no"):
        return text.lower() == "yes"
    try:
        return float(text)
    except ValueError:
        return text


def _runs(project: Project, names: Collection[str]) -> dict[str, UUID]:
    known = TrajectoryKey.objects.filter(project=project, external_id__in=names)
    return dict(known.values_list("external_id", "trajectory_id"))


def _save(rows: Iterable[Score]) -> None:
    """In one order, so that two batches cannot deadlock."""
    Score.objects.bulk_create(
        sorted(rows, key=lambda row: (row.external_id, row.step, row.name, row.key)),
        update_conflicts=True,
        unique_fields=UNIQUE,
        update_fields=CHANGED,
    )


def replace_with_runs(
    project: int, runs: Mapping[UUID, str], came: Iterable[tuple[UUID, Came]]
) -> None:
    """What came with these runs ({id: name}), in place of what came with them before; what waited
    for them is theirs. Part of the digest's transaction.
    """
    Score.objects.filter(trajectory_id__among=runs, source__in=Score.WITH_RUNS).delete()
    _save(
        Score(
            project_id=project,
            external_id=runs[pk],
            trajectory_id=pk,
            step=one.step,
            name=one.name,
            key=one.key,
            source=one.source,
            comment=one.comment,
            **one.value._asdict(),
        )
        for pk, one in came
    )
    if Score.objects.filter(project=project, trajectory_id=None).exists():
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE trajectories_score AS score SET trajectory_id = run.id FROM"
                " unnest(%s::uuid[], %s::text[]) AS run(id, name) WHERE score.project_id = %s AND"
                " score.trajectory_id IS NULL AND score.external_id = run.name",
                [list(runs), list(runs.values()), project],
            )


def move(project: Project, names: Mapping[str, str]) -> None:
    """Moves the scores of runs that turned out to be parts of others to those: {part: whole}."""
    for score in Score.objects.filter(project=project, external_id__in=names).exclude(
        source__in=Score.WITH_RUNS
    ):
        same = Score.objects.filter(
            project=project,
            external_id=names[score.external_id],
            **{name: getattr(score, name) for name in ("step", "name", "key")},
        )
        if same.exists():
            score.delete()
        else:
            score.external_id, score.trajectory_id = names[score.external_id], None
            score.save(update_fields=["external_id", "trajectory_id"])
