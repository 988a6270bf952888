"""What webhooks are told of the gate and of channels: names, verdict and numbers, never which held-out tasks moved."""

from __future__ import annotations

from typing import Any

from django.urls import reverse

from apps.evals.models import EvalRun
from apps.notifications.actions import notify
from apps.notifications.catalogue import Topic
from apps.promotion.models import Channel, GateReport, Promotion
from apps.webhooks.actions import announce
from apps.webhooks.models import Event

MOVES = {Promotion.Kind.PROMOTE: Event.PROMOTION_MADE, Promotion.Kind.ROLLBACK: Event.ROLLBACK_MADE}


def outcome(
    baseline: EvalRun, candidate: EvalRun, channel: Channel, report: dict[str, Any], policy_version: int
) -> dict[str, Any]:
    """A report without the names of the tasks that moved: they are held out."""
    return {
        "verdict": report["verdict"],
        "summary": report["summary"],
        "checks": report["checks"],
        "regressed": len(report["regressed"]),
        "improved": len(report["improved"]),
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
        project=row.project, event=Event.GATE_REPORT_MADE,
        subject=f"{said['baseline_model']} → {said['candidate_model']}: {row.verdict}",
        data={"gate_report": {"id": str(row.pk), **said, "created_at": row.created_at}, **addresses},
    )  # fmt: skip
    notify(
        topic=Topic.GATE_REPORT, project=row.project, by=row.created_by, page=addresses["page"], key=f"gate_report:{row.pk}",
        subject=f"Gate: {said['baseline_model']} → {said['candidate_model']}: {row.verdict}",
    )  # fmt: skip


def move_json(move: Promotion) -> dict[str, Any]:
    return {
        "id": move.pk,
        "kind": move.kind,
        "channel": move.channel.name,
        "from_version": str(move.from_version) if move.from_version else None,
        "to_version": str(move.to_version),
        "reason": move.reason,
        "by": move.by.get_username() if move.by else None,
        "gate_report": str(move.gate_report_id) if move.gate_report_id else None,
        "at": move.at,
    }


def announce_move(move: Promotion) -> None:
    """Of a promotion or a rollback; what a channel runs first is neither."""
    event, channel = MOVES.get(Promotion.Kind(move.kind)), move.channel
    if event is None:
        return
    announce(
        project=channel.project, event=event, subject=f"{channel}: {move.from_version} → {move.to_version}",
        data={
            "promotion": move_json(move), "api": reverse("promotion_api:channel", args=[channel.name]),
            "page": reverse("promotion:models", args=[channel.project.slug]),
        },
    )  # fmt: skip
    did = "was rolled back" if event == Event.ROLLBACK_MADE else "now runs a promoted version"
    notify(
        topic=Topic(event.value), project=channel.project, by=move.by, key=f"move:{move.pk}",
        subject=f"{channel.name} {did}: {move.from_version or 'nothing'} → {move.to_version}",
        page=reverse("promotion:models", args=[channel.project.slug]),
    )  # fmt: skip
