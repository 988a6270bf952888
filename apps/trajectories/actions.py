"""Writes of floor 3: storing what agents send. A row is stored once, an update keeps what it replaces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.core.actions import audit
from apps.core.models import ApiKey, Project
from apps.trajectories import schema
from apps.trajectories.models import Trajectory, TrajectoryRevision
from apps.trajectories.schema import Feedback, Row, RowError

UPDATED_FIELDS = (
    "content_digest",
    "agent_name",
    "agent_version",
    "model",
    "workload",
    "session_id",
    "user_id",
    "started_at",
    "ended_at",
    "messages",
    "tools",
    "outcome_status",
    "outcome_reward",
    "outcome_label",
    "outcome_reason",
    "interventions",
    "input_tokens",
    "output_tokens",
    "cost_usd",
    "latency_ms",
    "tags",
    "metadata",
    "tool_names",
    "preview",
)


@dataclass
class Ingested:
    """What became of a batch; `rejected` is [{index, path, error}]."""

    accepted: int = 0
    duplicates: int = 0
    updated: int = 0
    rejected: list[dict] = field(default_factory=list)

    def as_dict(self) -> dict:
        return {
            "accepted": self.accepted,
            "duplicates": self.duplicates,
            "updated": self.updated,
            "rejected": self.rejected,
        }


def columns(row: Row) -> dict[str, Any]:
    """A row as the columns of a trajectory."""
    messages = schema.plain(row.messages)
    return {
        "content_digest": schema.content_digest(row),
        "agent_name": row.agent.name,
        "agent_version": row.agent.version,
        "model": row.model,
        "workload": row.workload,
        "session_id": row.session_id,
        "user_id": row.user_id,
        "started_at": aware(row.started_at) or timezone.now(),
        "ended_at": aware(row.ended_at),
        "messages": messages,
        "tools": row.tools,
        "outcome_status": row.outcome.status,
        "outcome_reward": row.outcome.reward,
        "outcome_label": row.outcome.label,
        "outcome_reason": row.outcome.reason,
        "interventions": schema.plain(row.interventions),
        "input_tokens": row.usage.input_tokens,
        "output_tokens": row.usage.output_tokens,
        "cost_usd": row.usage.cost_usd,
        "latency_ms": row.latency_ms,
        "tags": row.tags,
        "metadata": row.metadata,
        "tool_names": schema.tool_names(messages),
        "preview": schema.preview(messages),
    }


def aware(value: Any) -> Any:
    """A time without a zone is UTC."""
    return timezone.make_aware(value, timezone.get_fixed_timezone(0)) if value and timezone.is_naive(value) else value


def ingest(*, project: Project, rows: Iterable[Any | RowError]) -> Ingested:
    """Stores the good rows and says what is wrong with the others. Durable when it returns."""
    done = Ingested()
    good: dict[str, Row] = {}
    for index, raw in enumerate(rows):
        try:
            if isinstance(raw, RowError):
                raise raw
            row = schema.parse(raw)
        except RowError as error:
            done.rejected.append({"index": index, "path": error.path, "error": error.error})
            continue
        if row.id in good and schema.content_digest(good[row.id]) == schema.content_digest(row):
            done.duplicates += 1
        good[row.id] = row
    _store(project, good, done)
    return done


@transaction.atomic
def _store(project: Project, good: dict[str, Row], done: Ingested) -> None:
    made = Trajectory.objects.bulk_create(
        [Trajectory(project=project, external_id=name, **columns(row)) for name, row in sorted(good.items())],
        ignore_conflicts=True,
        batch_size=500,
    )
    stored = {
        trajectory.external_id: trajectory
        for trajectory in Trajectory.objects.select_for_update().filter(project=project, external_id__in=good)
    }
    ours = {trajectory.external_id: trajectory.pk for trajectory in made}
    for name, trajectory in stored.items():
        if trajectory.pk == ours[name]:
            done.accepted += 1
        elif trajectory.content_digest == schema.content_digest(good[name]) or _said_before(trajectory, good[name]):
            done.duplicates += 1
        else:
            replace(trajectory, columns(good[name]), cause="resent")
            done.updated += 1


def _said_before(trajectory: Trajectory, row: Row) -> bool:
    """A late copy of something that feedback has changed since is no news."""
    return trajectory.revisions.filter(content_digest=schema.content_digest(row)).exists()


def replace(trajectory: Trajectory, changes: dict[str, Any], *, cause: str) -> None:
    """Changes a trajectory and keeps what it said before."""
    TrajectoryRevision.objects.create(
        trajectory=trajectory,
        content_digest=trajectory.content_digest,
        cause=cause,
        content={name: _jsonable(getattr(trajectory, name)) for name in changes},
    )
    for name, value in changes.items():
        setattr(trajectory, name, value)
    trajectory.save(update_fields=list(changes))


def _jsonable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | list | dict | bool | None) else str(value)


@transaction.atomic
def give_feedback(*, trajectory: Trajectory, feedback: Feedback) -> Trajectory:
    """Later news: an outcome, a score, a comment, a correction (kept as an intervention of kind edit), a takeover."""
    trajectory = Trajectory.objects.select_for_update().get(pk=trajectory.pk)
    changes: dict[str, Any] = {}
    if feedback.outcome is not None:
        changes |= {
            "outcome_status": feedback.outcome.status,
            "outcome_reward": feedback.outcome.reward,
            "outcome_label": feedback.outcome.label,
            "outcome_reason": feedback.outcome.reason,
        }
    if feedback.score is not None:
        changes["outcome_reward"] = feedback.score
    added = _interventions(feedback)
    if added:
        changes["interventions"] = trajectory.interventions + added
    if changes:
        replace(trajectory, changes, cause="feedback")
    return trajectory


def _interventions(feedback: Feedback) -> list[dict]:
    base = {"by": feedback.by, "note": feedback.comment}
    if feedback.message_index is not None:
        base["message_index"] = feedback.message_index
    added = []
    if feedback.takeover:
        added.append({"kind": "takeover", **base})
    if feedback.corrected is not None:
        added.append({"kind": "edit", **base, "after": feedback.corrected})
    if feedback.comment and not added:
        # A comment alone: the score says whether it praises or complains.
        bad = feedback.score is not None and feedback.score <= 0
        added.append({"kind": "reject" if bad else "approve", **base})
    return added


@transaction.atomic
def delete(*, trajectory: Trajectory, key: ApiKey | None = None, by: Any = None) -> None:
    audit(
        "trajectory.deleted",
        project=trajectory.project,
        by=by,
        target=trajectory,
        actor_label=f"key {key.prefix}…" if key else "",
        external_id=trajectory.external_id,
    )
    trajectory.delete()
