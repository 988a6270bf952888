"""Where a channel's version is served, what each place holds, and every attempt to deploy a version
there.
"""

from __future__ import annotations

from typing import Self

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from apps.core.models import Job, JobQuerySet, one_active
from apps.registry.models import ModelVersion, Server
from apps.webhooks.models import Webhook


class TargetQuerySet(models.QuerySet["Target"]):
    def current(self) -> Self:
        return self.filter(removed_at=None)


class Target(models.Model):
    """A place to which a channel's versions are deployed: a server, or a webhook that acknowledges.
    Pulling needs no target.

    A removed target stays until what it holds has been unloaded.
    """

    class Kind(models.TextChoices):
        SERVER = "server", "Model server"
        WEBHOOK = "webhook", "Webhook"

    channel = models.ForeignKey("promotion.Channel", models.CASCADE, related_name="targets")
    kind = models.CharField(max_length=10, choices=Kind)
    server = models.ForeignKey(Server, models.PROTECT, null=True, related_name="channel_targets")
    webhook = models.ForeignKey(Webhook, models.PROTECT, null=True, related_name="channel_targets")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now)
    removed_at = models.DateTimeField(null=True)

    objects = TargetQuerySet.as_manager()

    class Meta:
        ordering = ("pk",)
        constraints = [
            models.CheckConstraint(
                name="target_is_a_server_or_a_webhook",
                condition=Q(kind="server", server__isnull=False, webhook__isnull=True)
                | Q(kind="webhook", server__isnull=True, webhook__isnull=False),
            ),
            models.UniqueConstraint(
                fields=["channel", "server"],
                condition=Q(removed_at=None),
                name="one_target_per_server",
            ),
            models.UniqueConstraint(
                fields=["channel", "webhook"],
                condition=Q(removed_at=None),
                name="one_target_per_webhook",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.channel}: {self.server or self.webhook}"


class DeploymentQuerySet(JobQuerySet):
    def of(self, channel: models.Model) -> Self:
        return self.filter(channel=channel)


class Deployment(Job):
    """Deploys a version to all targets of a channel, verifies that it is served there, and only
    then moves the channel.

    `spec`: who requested it and what was checked then ({by, actor_label, overridden,
    policy_version}). `outcomes`: for each target [{target, kind, name, state, served_as, sentence,
    proof, seconds}], which stays readable when the target is gone.
    """

    is_evidence = True  # of what was verified on a channel's targets

    class Kind(models.TextChoices):
        PROMOTE = "promote"
        ROLLBACK = "rollback"
        RESTORE = (  # the live version, on targets that do not hold it: the channel does not move
            "restore"
        )
        TRIAL = "trial"  # a candidate in addition to the live version: the channel does not move

    channel = models.ForeignKey("promotion.Channel", models.CASCADE, related_name="deployments")
    kind = models.CharField(max_length=10, choices=Kind)
    version = models.ForeignKey(ModelVersion, models.PROTECT, related_name="deployments")
    from_version = models.ForeignKey(ModelVersion, models.PROTECT, null=True, related_name="+")
    gate_report = models.ForeignKey(
        "promotion.GateReport", models.PROTECT, null=True, related_name="deployments"
    )
    reason = models.TextField(blank=True)
    outcomes = models.JSONField(default=list)

    objects = DeploymentQuerySet.as_manager()

    class Meta(Job.Meta):
        constraints = [
            *Job.Meta.constraints,
            one_active("channel", "one_active_deployment_per_channel"),
        ]


class PlacementQuerySet(models.QuerySet["Placement"]):
    def ready(self) -> Self:
        return self.filter(state=Placement.State.READY)


class Placement(models.Model):
    """A version on a target, and the name under which it is called there. Written before anything
    is loaded, so that after any crash it is known what has to be unloaded; deleted once it is
    unloaded.

    `loaded`: whether a deployment loads it there, and so has to unload it. `proof`: the
    verification result, by `proving.Finding`. `problem`: what the last check of the target found
    wrong; "" for nothing.
    """

    class State(models.TextChoices):
        LOADING = "loading", "Loading"
        READY = "ready", "Ready"
        LEAVING = "leaving", "Unloading"

    target = models.ForeignKey(Target, models.CASCADE, related_name="placements")
    version = models.ForeignKey(ModelVersion, models.PROTECT, related_name="placements")
    deployment = models.ForeignKey(
        Deployment, models.SET_NULL, null=True, related_name="placements"
    )
    served_as = models.CharField(max_length=200, blank=True)
    loaded = models.BooleanField(default=False)
    state = models.CharField(max_length=10, choices=State, default=State.LOADING)
    proof = models.JSONField(default=dict)
    at = models.DateTimeField(default=timezone.now)
    problem = models.CharField(max_length=500, blank=True)
    checked_at = models.DateTimeField(null=True)

    objects = PlacementQuerySet.as_manager()

    class Meta:
        ordering = ("-at", "-pk")
        constraints = [
            models.UniqueConstraint(
                fields=["target", "version"],
                condition=Q(state="ready"),
                name="one_ready_placement_per_version",
            )
        ]

    def __str__(self) -> str:
        return f"{self.version} on {self.target}"


class Fingerprint(models.Model):
    """The log-probabilities that a version gives a fixed text, by which a server's weights are
    recognised.

    `ids` are the text's token ids; `logprobs` the version's, `base_logprobs` its base model's
    (empty if it is a base model), both [len(ids) - 1]. `source` says who computed them.
    """

    class Source(models.TextChoices):
        COMPUTED = "computed", "Computed here from the version's weights"
        SERVED = "served", "Recorded from the server that first served it"

    version = models.OneToOneField(ModelVersion, models.CASCADE, related_name="fingerprint")
    ids = models.JSONField()
    logprobs = models.JSONField()
    base_logprobs = models.JSONField(default=list)
    source = models.CharField(max_length=10, choices=Source)
    at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"fingerprint of {self.version}"


class FingerprintJob(Job):
    """Computes a version's `Fingerprint` from its weights, in a child process."""

    version = models.ForeignKey(ModelVersion, models.CASCADE, related_name="fingerprint_jobs")

    class Meta(Job.Meta):
        constraints = [
            *Job.Meta.constraints,
            one_active("version", "one_active_fingerprint_job_per_version"),
        ]
