"""Targets reached by a webhook: the request, its acknowledgement, and its withdrawal."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models.functions import Now
from django.urls import reverse
from django.utils import timezone

from apps.promotion.deployment.models import Deployment, Target
from apps.webhooks.actions import send_to
from apps.webhooks.models import Delivery, DeliveryState, Event

ACKNOWLEDGES = timedelta(seconds=120)  # including its retries


def request(job: Deployment, target: Target) -> Delivery:
    """Sends it, once per deployment and target."""
    sent = dict(job.spec.get("deliveries", {}))
    if found := Delivery.objects.filter(pk=sent.get(str(target.pk))).first():
        return found
    delivery = send_to(
        hook=target.webhook,
        event=Event.DEPLOYMENT_REQUESTED,
        subject=f"{job.channel}: {job.version}",
        data=data_of(job),
    )
    job.spec["deliveries"] = sent | {str(target.pk): str(delivery.pk)}
    Deployment.objects.filter(pk=job.pk).update(spec=job.spec)
    return delivery


def data_of(job: Deployment) -> dict[str, Any]:
    return {
        "deployment": str(job.pk),
        "kind": job.kind,
        "channel": job.channel.name,
        "version": str(job.version),
        "digest": job.version.digest,
        "replaces": str(job.from_version) if job.from_version else None,
        "model_kind": job.version.kind,
        "base": job.version.base,
        "api": reverse("promotion_api:deployment", args=[job.channel.name, job.pk]),
        "page": reverse("promotion:deployment", args=[job.project.slug, job.channel.name, job.pk]),
    }


def answer_of(delivery: Delivery) -> str | None:
    """ "" if it was acknowledged, a sentence if not, None if it is still open."""
    row = Delivery.objects.select_related("webhook").filter(pk=delivery.pk).first()
    if row is None:
        return "Its webhook was deleted."
    if row.state == DeliveryState.DELIVERED:
        return ""
    last = row.attempts.first()
    said = (
        f" Its last answer: {last.error or f'HTTP {last.status}'}."
        if last and not last.is_open
        else ""
    )
    if row.webhook.disabled_at or row.state == DeliveryState.FAILED:
        return f"It did not acknowledge.{said}"
    if timezone.now() > row.created_at + ACKNOWLEDGES:
        return f"It did not acknowledge within {ACKNOWLEDGES.seconds} s.{said}"
    return None


def withdraw(job: Deployment) -> None:
    """Tells those who were asked to serve the previous version again. An open request is not
    retried.
    """
    for target, pk in job.spec.get("deliveries", {}).items():
        asked = Delivery.objects.filter(pk=pk)
        asked.filter(state=DeliveryState.WAITING).update(
            state=DeliveryState.FAILED, finished_at=Now()
        )
        found = Target.objects.filter(pk=target).select_related("webhook").first()
        if found and found.webhook and not found.webhook.disabled_at:
            send_to(
                hook=found.webhook,
                event=Event.DEPLOYMENT_WITHDRAWN,
                subject=f"{job.channel}: {job.version} was undone",
                data=data_of(job),
            )
