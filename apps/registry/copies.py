"""Adapters for managed servers on machines with their own data folder: requested here, fetched
there (`fetching`).
"""

from __future__ import annotations

import time
from datetime import timedelta

from django.db.models.functions import Now
from django.utils import timezone

from apps.core.data_folder import identity
from apps.registry.artifacts import ArtifactError
from apps.registry.models import AdapterCopy, ModelVersion, Server, ServerRun

LOOK_EVERY_S = 0.1
WAITS = timedelta(minutes=15)  # maximum wait for a copy


def elsewhere(server: Server) -> ServerRun | None:
    """The active run of a managed server on a machine with its own data folder; None for all other
    servers.
    """
    run = server.runs.active().first() if server.is_managed else None
    return run if run and run.data_folder not in ("", identity()) else None


def ask(run: ServerRun, version: ModelVersion) -> None:
    """Request the adapter from that machine, which fetches it or verifies its existing copy."""
    AdapterCopy.objects.update_or_create(
        run=run, version=version, defaults={"path": "", "problem": "", "asked_at": Now()}
    )


def path_there(run: ServerRun, version: ModelVersion) -> str:
    """The path of a requested adapter on that machine; "" until it is there. Raises ArtifactError
    if it cannot be fetched.
    """
    copy = (
        AdapterCopy.objects.filter(run=run, version=version).select_related("run__server").first()
    )
    if copy is None:  # another machine has taken over the server
        ask(run, version)
        return ""
    if copy.problem:
        raise ArtifactError(
            f"{version} could not be brought to the machine of {copy.run.server}: {copy.problem}"
        )
    if not copy.path and not copy.run.is_active:
        raise ArtifactError(
            f"{copy.run.server} was stopped before {version} had been fetched there."
        )
    if not copy.path and copy.asked_at < timezone.now() - WAITS:
        minutes = WAITS // timedelta(minutes=1)
        raise ArtifactError(
            f"The worker of {copy.run.server} has not downloaded {version} within {minutes}"
            " minutes."
        )
    return copy.path


def bring(run: ServerRun, version: ModelVersion) -> str:
    """Request the adapter and wait for it. Call it outside of a transaction. Raises
    ArtifactError.
    """
    ask(run, version)
    while not (path := path_there(run, version)):
        time.sleep(LOOK_EVERY_S)
    return path
