"""Moves a channel: its row locked, one `Promotion` row, the channel, the audit log and the
announcements in one transaction.
"""

from __future__ import annotations

from typing import Any

from apps.core.actions import audit
from apps.core.actor import actor_name
from apps.promotion.announcing import announce_move
from apps.promotion.conditions import PromotionError, require_not_archived
from apps.promotion.deployment.models import Deployment
from apps.promotion.listeners import notify_listeners
from apps.promotion.models import Channel, GateReport, Promotion
from apps.promotion.trials import ending
from apps.registry.artifacts import ArtifactError, require_there
from apps.registry.models import ModelVersion


def locked(channel: Channel, *, archived: bool = False) -> Channel:
    """The row, locked for the rest of the transaction. NO KEY: committing rows that refer to the
    channel (a worker's deployment) does not wait for this lock, so it cannot deadlock with a holder
    of the lock that waits for that deployment.

    `current` is not joined: after a wait PostgreSQL reads the locked row again but not the joined
    one, so a version that was promoted meanwhile would be None.

    Raises PromotionError if the channel was deleted, or is archived and `archived` does not allow
    that.
    """
    rows = Channel.objects.select_for_update(of=("self",), no_key=True)
    row = rows.select_related("project").filter(pk=channel.pk).first()
    if row is None:
        raise PromotionError(f"The channel “{channel}” was deleted.")
    if not archived:
        require_not_archived(row)
    return row


def name_of(user: Any) -> str:
    """The name of the actor, as history stores it."""
    return actor_name(user)


def move(
    channel: Channel,
    version: ModelVersion,
    kind: Promotion.Kind,
    by: Any,
    *,
    reason: str,
    gate_report: GateReport | None = None,
    deployment: Deployment | None = None,
    **detail: Any,
) -> Promotion:
    """`channel`: from `locked`. A version that is archived is unarchived: what is live is in the
    lists.
    """
    _unarchive(version, channel, by, reason, detail.get("actor_label", ""))
    promotion = Promotion.objects.create(
        channel=channel,
        kind=kind,
        from_version=channel.current,
        to_version=version,
        gate_report=gate_report,
        reason=reason,
        by=by,
        from_name=str(channel.current or ""),
        to_name=str(version),
        by_name=detail.get("actor_label") or name_of(by),
        overridden=bool(detail.get("overridden")),
        deployment=deployment,
        proof=deployment.outcomes if deployment else [],
    )
    audit(
        f"channel.{kind}",
        project=channel.project,
        by=by,
        target=channel,
        channel=channel.name,
        source=str(channel.current) if channel.current else None,
        version=str(version),
        version_id=version.pk,
        report_id=str(gate_report.pk) if gate_report else None,
        about=[version, channel.current, gate_report],
        reason=reason,
        **detail,
    )
    channel.current, channel.needs_restore = version, False
    channel.save(update_fields=["current", "needs_restore", "updated_at"])
    announce_move(promotion)
    ending.channel_moved(promotion)
    notify_listeners(channel)
    return promotion


def _unarchive(
    version: ModelVersion, channel: Channel, by: Any, reason: str, actor_label: str
) -> None:
    """Locked first, so that nobody archives it just before the channel moves."""
    rows = ModelVersion.objects.filter(pk=version.pk)
    list(rows.select_for_update(of=("self",), no_key=True).values_list("pk"))
    if not rows.filter(archived_at__isnull=False).update(archived_at=None):
        return
    version.archived_at = None
    audit(
        "object.unarchived",
        project=channel.project,
        by=by,
        actor_label=actor_label,
        target=version,
        about=[channel],
        noun="the model",
        name=str(version),
        channel=channel.name,
        reason=reason,
    )


def require_files(version: ModelVersion) -> None:
    """Raises PromotionError: otherwise whoever pulls it or serves it in process would silently
    continue with the previous version.
    """
    if version.model.artifact is None:
        return
    try:
        require_there(version.model.artifact)
    except ArtifactError as error:
        raise PromotionError(
            f"{version} cannot be served: {error} Restore its files from a backup of the artifact"
            " store, or choose another version."
        ) from error


def restored(channel: Channel, by: Any, actor_label: str = "") -> None:
    """The version of an unarchived channel has been verified again, so it is served again.
    `channel`: from `locked`.
    """
    if not channel.needs_restore or channel.current is None:
        return
    channel.needs_restore = False
    channel.save(update_fields=["needs_restore", "updated_at"])
    audit(
        "channel.restored",
        project=channel.project,
        by=by,
        actor_label=actor_label,
        target=channel,
        about=[channel.current],
        channel=channel.name,
        version=str(channel.current),
        version_id=channel.current_id,
    )
    notify_listeners(channel)
