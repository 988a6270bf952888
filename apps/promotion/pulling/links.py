"""Addresses from which a version's files are downloaded: signed, valid for some minutes, and
once.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.core import signing
from django.db import IntegrityError, transaction
from django.urls import reverse
from django.utils import timezone

from apps.core.actions import audit
from apps.core.bus import on
from apps.core.models import Stage
from apps.registry.fetching import DownloadAddress
from apps.registry.models import Artifact, ModelVersion, UsedLink

SALT = "flywheel.download"
LASTS = timedelta(minutes=10)
# For which a used one is remembered: longer, since the clocks of two web servers may differ, and
# one of them still accepts it.
REMEMBERED = timedelta(days=1)


class LinkRefused(Exception):
    """`status`: 403 for an address that is not ours, 410 for one that was used or has expired."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


def download_url(
    version: ModelVersion, origin: str = "", *, merged: bool = False
) -> dict[str, Any]:
    """{url, expires_at} for the files of a version that has an artifact, or of its merged model;
    whoever has it may download them, once. `origin`: the address of this installation in the
    request, otherwise FLYWHEEL_URL."""
    signer, expires = signing.TimestampSigner(salt=SALT), timezone.now() + LASTS
    token = signer.sign_object({"nonce": uuid4().hex, "version": version.pk, "merged": merged})
    address = reverse("promotion_api:download", args=[token])
    return {
        "url": f"{(origin or settings.FLYWHEEL_URL).rstrip('/')}{address}",
        "expires_at": expires,
    }


@on(DownloadAddress)
def address_for_servers(question: DownloadAddress) -> str:
    return download_url(question.version)["url"]


def named_by(token: str) -> tuple[ModelVersion, Artifact, UUID]:
    """The version and the files that an address refers to, and its nonce for `use`. Raises
    LinkRefused.
    """
    signer = signing.TimestampSigner(salt=SALT)
    try:
        given = signer.unsign_object(token, max_age=LASTS)
    except signing.SignatureExpired as error:
        raise LinkRefused("This download URL has expired. Request a new one.", 410) from error
    except (signing.BadSignature, ValueError, TypeError, RecursionError) as error:
        raise LinkRefused(
            "This is not a valid download URL of this server. Request a new one.", 403
        ) from error
    rows = ModelVersion.objects.select_related("project", "artifact", "merged__artifact")
    version = rows.filter(pk=given["version"]).first()
    artifact = version and files_of(version, merged=bool(given.get("merged")))
    if (
        version is None
        or artifact is None
        or version.project.stage in (Stage.DELETING, Stage.DELETED)
    ):
        raise LinkRefused("The file behind this URL was deleted.", 410)
    nonce = UUID(given["nonce"])
    if UsedLink.objects.filter(pk=nonce).exists():
        raise LinkRefused(USED, 410)
    return version, artifact, nonce


def files_of(version: ModelVersion, *, merged: bool) -> Artifact | None:
    if not merged:
        return version.artifact
    return version.merged.artifact if hasattr(version, "merged") else None


USED = "This download URL has already been used; each works only once. Request a new one."


@transaction.atomic
def use(version: ModelVersion, artifact: Artifact, nonce: UUID) -> None:
    """Of two concurrent uses, one is refused. Raises LinkRefused."""
    now = timezone.now()
    UsedLink.objects.filter(expires_at__lt=now).delete()
    try:
        with transaction.atomic():
            UsedLink.objects.create(
                nonce=nonce, project=version.project, expires_at=now + REMEMBERED
            )
    except IntegrityError as error:
        raise LinkRefused(USED, 410) from error
    audit(
        "model_version.downloaded",
        project=version.project,
        by=None,
        actor_label="a signed address",
        target=version,
        name=str(version),
        digest=artifact.pk,
    )
