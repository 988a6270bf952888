"""Actions of deployments: a channel's targets, and starting and stopping the deployment of a
version to them.
"""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from apps.core import jobs
from apps.core.actions import audit
from apps.core.models import ApiKey, JobState
from apps.core.openapi import told
from apps.core.operations import Page, Rest, operation
from apps.promotion import schema
from apps.promotion.conditions import PromotionError
from apps.promotion.deployment import fingerprints
from apps.promotion.deployment.models import Deployment, Placement, Target
from apps.promotion.deployment.places import plan_of
from apps.promotion.deployment.unloading import leave, unload_soon
from apps.promotion.listeners import notify_listeners
from apps.promotion.models import Channel, GateReport
from apps.promotion.moves import locked, name_of, require_files, restored
from apps.promotion.policies import label_of, policy_of, require_keys_allowed
from apps.promotion.trials.ending import end
from apps.promotion.trials.models import Trial, TrialState
from apps.registry.actions import ModelError
from apps.registry.models import ModelVersion, Server
from apps.webhooks.models import Format, Webhook

MOST = 20  # targets per channel
# What stops what: a rollback stops everything, also another rollback; a promotion a trial and a
# restore; a trial a restore.
RANK = {kind: rank for rank, kind in enumerate(("restore", "trial", "promote", "rollback"))}
VERBS = {"promote": "Promote", "rollback": "Roll back to", "restore": "Load", "trial": "Try"}


@transaction.atomic
def add_target(
    *,
    channel: Channel,
    by: Any,
    server: Server | None = None,
    webhook: Webhook | None = None,
    actor_label: str = "",
) -> Target:
    """Deploys the live version there immediately; the channel does not move. Raises
    PromotionError.
    """
    channel = locked(channel)
    _require_idle(channel)
    if channel.targets.current().count() >= MOST:
        raise PromotionError(f"{channel} has {MOST} targets, which is the most. Remove one first.")
    place = server or webhook
    if place is None or (server and webhook) or place.project_id != channel.project_id:
        raise PromotionError("Choose a server or a webhook of this project.")
    if webhook and webhook.format != Format.STANDARD:
        raise PromotionError(
            f"{webhook} sends Slack messages, and a chat cannot acknowledge a deployment."
        )
    if server and channel.current:
        try:
            plan_of(server, channel.current)
        except ModelError as error:
            raise PromotionError(
                f"{channel} runs {channel.current}, which cannot be served there: {error}"
            ) from error
    kind = Target.Kind.SERVER if server else Target.Kind.WEBHOOK
    try:
        with transaction.atomic():
            target = Target.objects.create(
                channel=channel, kind=kind, server=server, webhook=webhook, created_by=by
            )
    except IntegrityError as error:
        raise PromotionError(f"{place} is already a target of {channel}.") from error
    audit(
        "channel.target_added",
        project=channel.project,
        by=by,
        actor_label=actor_label,
        target=channel,
        channel=channel.name,
        name=str(place),
        kind=str(kind),
    )
    if server and channel.current:
        begin(
            channel=channel,
            kind=Deployment.Kind.RESTORE,
            version=channel.current,
            by=by,
            reason=f"{server} was added",
        )
    return target


@transaction.atomic
def remove_target(*, target: Target, by: Any, actor_label: str = "") -> None:
    """Unloads what it holds, and ends a trial whose candidate no target holds any more; an archived
    channel can lose targets, too. Raises PromotionError while a deployment is running."""
    channel = locked(target.channel, archived=True)
    _require_idle(channel)
    if not Target.objects.current().filter(pk=target.pk).update(removed_at=timezone.now()):
        raise PromotionError("This target has already been removed.")
    audit(
        "channel.target_removed",
        project=channel.project,
        by=by,
        actor_label=actor_label,
        target=channel,
        channel=channel.name,
        name=str(target.server or target.webhook),
    )
    leave(Placement.objects.filter(target=target))
    _end_trial_without_servers(channel, target, by, actor_label)
    transaction.on_commit(unload_soon)
    notify_listeners(channel)


def _end_trial_without_servers(
    channel: Channel, removed: Target, by: Any, actor_label: str
) -> None:
    """Otherwise its candidate would answer nobody, and be rolled back for that."""
    if channel.targets.current().filter(server__isnull=False).exists():
        return
    if (
        trial := Trial.objects.active()
        .filter(channel=channel)
        .exclude(deployment=None)
        .select_related("channel")
        .first()
    ):
        why = (
            f"{actor_label or name_of(by)} removed {removed.server}, the last server that was"
            " loaded with its candidate."
        )
        end(trial, TrialState.STOPPED, why, by=by, actor_label=actor_label)


def _require_idle(channel: Channel) -> None:
    if active := channel.deployments.active().first():
        raise PromotionError(
            f"“{active}” is running. Wait for it or stop it before changing the targets."
        )


def has_targets(channel: Channel) -> bool:
    return channel.targets.current().exists()


@transaction.atomic
def begin(
    *,
    channel: Channel,
    kind: Deployment.Kind,
    version: ModelVersion,
    by: Any,
    reason: str = "",
    gate_report: GateReport | None = None,
    overridden: bool = False,
    actor_label: str = "",
) -> Deployment:
    """`channel`: from `locked`. A rollback stops what is running; a promotion stops a restore.
    Raises PromotionError if another deployment is running."""
    for active in channel.deployments.active().select_for_update():
        if RANK[kind] <= RANK[active.kind] and kind != Deployment.Kind.ROLLBACK:
            raise PromotionError(
                f"“{active}” is running since {active.created_at:%H:%M} UTC. Wait for it, or stop"
                f" it on the page of {channel}."
            )
        stop(deployment=active, by=by, reason=f"Stopped for a {kind} to {version}.")
    deployment = Deployment(
        project=channel.project,
        channel=channel,
        kind=kind,
        version=version,
        from_version=channel.current,
        gate_report=gate_report,
        reason=reason,
        name=f"{VERBS[kind]} {version} in {channel}"[:200],
        spec={
            "by": actor_label or name_of(by),
            "actor_label": actor_label,
            "overridden": overridden,
        },
    )
    if kind in (Deployment.Kind.PROMOTE, Deployment.Kind.TRIAL):
        fingerprints.ask_for(version, by=by)
    return jobs.submit(deployment, by=by)


@transaction.atomic
def stop(*, deployment: Deployment, by: Any, reason: str = "Stopped.") -> bool:
    """Stops immediately, whatever its worker is waiting for; what it loaded is unloaded. False if
    it has ended.
    """
    row = Deployment.objects.select_for_update(of=("self",)).get(pk=deployment.pk)
    if row.state == JobState.QUEUED:
        return jobs.cancel(row, by=by)
    stopped = row.is_active and jobs.end(row, JobState.CANCELLED, error=reason)
    if stopped:
        audit(
            "deployment.stopped",
            project=row.project,
            by=by,
            target=row,
            name=row.name,
            reason=reason,
        )
    return stopped


@transaction.atomic
def restore(*, channel: Channel, by: Any, reason: str, actor_label: str = "") -> Deployment | None:
    """Has the live version loaded and verified again on its servers; the channel does not move.
    None for an unarchived channel without servers: there is nothing to verify, so it serves its
    version again immediately. Raises PromotionError.
    """
    channel = locked(channel)
    if channel.current is None:
        raise PromotionError(f"Nothing is live in {channel} yet.")
    if channel.current.archived_at:
        raise PromotionError(
            f"{channel.current} is archived. Unarchive it, or promote another version."
        )
    if not channel.targets.current().filter(server__isnull=False).exists():
        if not channel.needs_restore:
            raise PromotionError(f"{channel} has no servers as targets.")
        require_files(channel.current)
        restored(channel, by, actor_label)
        return None
    return begin(
        channel=channel,
        kind=Deployment.Kind.RESTORE,
        version=channel.current,
        by=by,
        reason=reason,
        actor_label=actor_label,
    )


def _reloaded(moved: Deployment | None) -> tuple[int, Deployment | None]:
    return (202 if moved else 200), moved


@operation(
    "channels_restore",
    rest=Rest("POST", "channels/<slug:name>/restore/", "restore"),
    page=Page(
        "channels/<slug:name>/restore/",
        "restore",
        done=lambda target, returned: (
            f"{target.current} is being restored." if target.needs_restore else ""
        ),
    ),
    gives={200: schema.RELOADED, 202: schema.LOADING},
    outcome=_reloaded,
    examples=(
        told("Served again", {"channel": "production", "version": "support-v4"}),
        told("Begun", schema.DEPLOYMENT_EXAMPLE | {"kind": "restore", "state": "queued"}, "202"),
    ),
    says={"channel.restored": "restored {version@registry.modelversion:version_id} in {channel@}"},
)
def request_restore(*, channel: Channel, by: Any, key: ApiKey | None = None) -> Deployment | None:
    """Reloads and verifies the live version on the channel's servers; the channel does not move. A
    channel that was archived serves its version again after that. Without servers there is nothing
    to verify, and it does so at once (200).

    Raises PromotionError, PermissionDenied.
    """
    require_keys_allowed(channel, policy_of(channel)[0], key)
    reason = f"Requested by {label_of(key)}" if key else "Requested on the page"
    return restore(channel=channel, by=by, reason=reason, actor_label=label_of(key))
