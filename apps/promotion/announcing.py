"""What webhooks are sent about the gate and channels: names, verdict and numbers, never which
held-out tasks moved.
"""

from __future__ import annotations

from typing import Any

from django.urls import reverse
from django.utils import timezone

from apps.core.actions import audit
from apps.evals.models import EvalRun
from apps.notifications.actions import notify
from apps.notifications.catalogue import Topic
from apps.promotion.deployment.models import Deployment
from apps.promotion.models import Approval, Channel, Freeze, GateReport, Promotion
from apps.webhooks.actions import announce
from apps.webhooks.models import Event

MOVES = {Promotion.Kind.PROMOTE: Event.PROMOTION_MADE, Promotion.Kind.ROLLBACK: Event.ROLLBACK_MADE}


def outcome(
    baseline: EvalRun,
    candidate: EvalRun,
    channel: Channel,
    report: dict[str, Any],
    policy_version: int,
) -> dict[str, Any]:
    """A report without the names of the tasks that moved, because they are held out."""
    return {
        "verdict": report["verdict"],
        "summary": report["summary"],
        "checks": report["checks"],
        "regressed": len(report["regressed"]),
        "improved": len(report["improved"]),
        "outputs_to_review": sum(
            one["state"] == "to review" for one in report.get("new_kinds", [])
        ),
        "tasks": report["tasks"],
        "comparison": report["comparison"],
        "channel": channel.name,
        "policy_version": policy_version,
        "baseline": str(baseline.pk),
        "baseline_model": str(baseline.model_version),
        "candidate": str(candidate.pk),
        "candidate_model": str(candidate.model_version),
    }


def announce_report(row: GateReport) -> None:
    said = outcome(row.baseline, row.candidate, row.channel, row.report, row.policy_version)
    addresses = {
        "api": reverse("promotion_api:gate_report", args=[row.pk]),
        "page": reverse("promotion:report", args=[row.project.slug, row.pk]),
    }
    announce(
        project=row.project,
        event=Event.GATE_REPORT_MADE,
        subject=f"{said['baseline_model']} → {said['candidate_model']}: {row.verdict}",
        data={
            "gate_report": {"id": str(row.pk), **said, "created_at": row.created_at},
            **addresses,
        },
    )
    notify(
        topic=Topic.GATE_REPORT,
        project=row.project,
        by=row.created_by,
        page=addresses["page"],
        key=f"gate_report:{row.pk}",
        subject=f"Gate: {said['baseline_model']} → {said['candidate_model']}: {row.verdict}",
    )


def move_json(move: Promotion) -> dict[str, Any]:
    return {
        "id": move.pk,
        "kind": move.kind,
        "channel": move.channel.name,
        "from_version": move.from_name or None,
        "to_version": move.to_name,
        "reason": move.reason,
        "by": move.by_name or None,
        "gate_report": str(move.gate_report_id) if move.gate_report_id else None,
        "at": move.at,
        "overridden": move.overridden,
        "deployment": str(move.deployment_id) if move.deployment_id else None,
        "proof": [
            {
                "target": row["name"],
                "state": row["state"],
                "level": row["proof"].get("level"),
                "sentence": row["sentence"],
            }
            for row in move.proof
        ],
    }


def channel_page(channel: Channel) -> str:
    return reverse("promotion:channel", args=[channel.project.slug, channel.name])


def announce_move(move: Promotion) -> None:
    """Announces a promotion or a rollback; the first version of a channel is neither."""
    event, channel = MOVES.get(Promotion.Kind(move.kind)), move.channel
    if event is None:
        return
    announce(
        project=channel.project,
        event=event,
        subject=f"{channel}: {move.from_version} → {move.to_version}",
        data={
            "promotion": move_json(move),
            "api": reverse("promotion_api:channel", args=[channel.name]),
            "page": channel_page(channel),
        },
    )
    did = "was rolled back" if event == Event.ROLLBACK_MADE else "now runs a promoted version"
    notify(
        topic=Topic(event.value),
        project=channel.project,
        by=move.by,
        key=f"move:{move.pk}",
        subject=f"{channel.name} {did}: {move.from_version or 'nothing'} → {move.to_version}",
        page=channel_page(channel),
    )


def announce_failed_deployment(job: Deployment) -> None:
    """To people and webhooks, and in the audit log: what failed where, and what continues to
    serve.
    """
    channel = job.channel
    page = reverse("promotion:deployment", args=[job.project.slug, channel.name, job.pk])
    serves = f"{channel.current} still serves" if channel.current else "nothing is live"
    subject = f"{job.version} was not deployed to {channel}: {serves}"
    failed = [
        {"target": row["name"], "sentence": row["sentence"]}
        for row in job.outcomes
        if row["state"] == "failed"
    ]
    audit(
        "deployment.failed",
        project=job.project,
        by=None,
        target=job,
        about=[channel, job.version],
        name=job.name,
        reason=job.error,
        channel=channel.name,
    )
    announce(
        project=job.project,
        event=Event.DEPLOYMENT_FAILED,
        subject=subject,
        data={
            "deployment": str(job.pk),
            "channel": channel.name,
            "version": str(job.version),
            "kind": job.kind,
            "serves": str(channel.current) if channel.current else None,
            "error": job.error,
            "failed": failed,
            "page": page,
            "api": reverse("promotion_api:deployment", args=[channel.name, job.pk]),
        },
    )
    notify(
        topic=Topic.DEPLOYMENT_FAILED,
        project=job.project,
        subject=subject,
        page=page,
        key=f"deployment:{job.pk}",
        excerpt=job.error,
    )


def announce_restored(job: Deployment) -> None:
    audit(
        "deployment.restored",
        project=job.project,
        by=job.created_by,
        target=job,
        about=[job.channel, job.version],
        name=job.name,
        reason=job.reason,
        channel=job.channel.name,
    )


def announce_freeze(row: Freeze) -> None:
    """Announces that a channel was frozen or unfrozen."""
    channel, lifted = row.channel, row.lifted_at is not None
    who = row.lifted_by_name if lifted else row.by_name
    subject = f"{channel} was {'unfrozen' if lifted else 'frozen'} by {who}"
    data = {
        "channel": channel.name,
        "frozen": not lifted,
        "reason": row.reason,
        "until": row.until,
        "by": who,
    }
    announce(
        project=channel.project,
        event=Event.CHANNEL_FROZEN,
        subject=subject,
        data=data | {"page": channel_page(channel)},
    )
    notify(
        topic=Topic.FROZEN,
        project=channel.project,
        subject=subject,
        page=channel_page(channel),
        by=None if lifted else row.by,
        key=f"freeze:{row.pk}:{'lifted' if lifted else 'set'}",
    )


def announce_archived(channel: Channel, *, back: bool, by: Any, who: str) -> None:
    """Announces that a channel was archived or unarchived."""
    subject = f"{channel} was {'unarchived' if back else 'archived'} by {who}"
    page = channel_page(channel)
    announce(
        project=channel.project,
        event=Event.CHANNEL_ARCHIVED,
        subject=subject,
        data={"channel": channel.name, "archived": not back, "by": who, "page": page},
    )
    at = timezone.now().isoformat()
    notify(
        topic=Topic.ARCHIVED,
        project=channel.project,
        subject=subject,
        page=page,
        by=by,
        key=f"archive:{channel.pk}:{at}",
    )


def announce_proposal(row: Approval) -> None:
    """The first of two consents: somebody else has to review it."""
    report = row.gate_report
    subject = (
        f"{row.by_name} wants to promote {report.candidate.model_version} to {report.channel}:"
        " needs a second approval"
    )
    page = reverse("promotion:report", args=[report.project.slug, report.pk])
    announce(
        project=report.project,
        event=Event.PROMOTION_PROPOSED,
        subject=subject,
        data={
            "gate_report": str(report.pk),
            "channel": report.channel.name,
            "version": str(report.candidate.model_version),
            "by": row.by_name,
            "reason": row.reason,
            "page": page,
        },
    )
    notify(
        topic=Topic.PROPOSED,
        project=report.project,
        by=row.by,
        subject=subject,
        page=page,
        key=f"proposal:{row.pk}",
        excerpt=row.reason,
    )
