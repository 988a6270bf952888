"""Loads adapters on servers that support this at run time: the one that a job needs, evicting the
least recently used one if necessary.
"""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from apps.core.kinds import job_models
from apps.core.models import Job
from apps.registry.artifacts import local_path
from apps.registry.copies import bring, elsewhere
from apps.registry.engines import adapter_name, server_of
from apps.registry.models import AdapterSlots, ModelVersion, Server
from apps.registry.servers import address_of
from workers.lib.adapter_serving import ROLLOUT_PREFIX
from workers.lib.serving import ADAPTER_PREFIX, Adapters

log = logging.getLogger(__name__)


def load_for(job: Job, version: ModelVersion, engine: dict[str, Any] | None) -> None:
    """Load the adapter for a job's engine. Raises ModelError, ArtifactError, JobError.

    One job at a time per address: a row stays locked meanwhile, so that nobody unloads what another
    job has just found loaded.
    """
    if not engine or not engine.get("adapter"):
        return
    server, version = server_of(engine), version.model
    far = elsewhere(server)
    path = bring(far, version) if far else ""
    AdapterSlots.objects.get_or_create(base_url=server.base_url)
    with transaction.atomic():
        row = AdapterSlots.objects.select_for_update().get(base_url=server.base_url)
        name, there = adapter_name(version), Adapters(address_of(server), server.kind)
        loaded, uses = there.names(), without_ended(row.adapters)
        if name not in loaded:
            for other in to_unload(loaded, uses | sampled_from(loaded), slots_of(server)):
                log.info("Unloading %s from %s: the least recently used", other, server)
                if there.unload(other):
                    loaded.remove(other)
            there.load(name, path or path_of(server, version))
        uses = {known: use for known, use in uses.items() if known in loaded}
        mine = [job._meta.label, str(job.pk)]
        others = [given for given in uses.get(name, {}).get("jobs", []) if given != mine]
        row.adapters = uses | {name: {"used": timezone.now().isoformat(), "jobs": [*others, mine]}}
        row.save()


def path_of(server: Server, version: ModelVersion) -> str:
    """The adapter's path on a server that shares our disk (`copies` handles the others). Raises
    ArtifactError if the adapter is incomplete.
    """
    local_path(version.artifact)
    return f"{artifacts_at(server)}/{version.artifact_id}"


def artifacts_at(server: Server) -> str:
    """The path of our artifact folder on a server that shares our disk."""
    if not server.is_managed:
        return server.adapters_at.rstrip("/")
    run = server.runs.active().first()
    return f"{(run and run.data_path) or settings.FLYWHEEL_DATA_DIR}/artifacts"


def slots_of(server: Server) -> int | None:
    """How many adapters the server should hold; None if unknown."""
    if server.is_managed:
        return server.serving["lora_slots"]
    return server.capabilities.get("lora_slots", {}).get("most")


def to_unload(loaded: list[str], uses: dict[str, dict], slots: int | None) -> list[str]:
    """The adapters to unload before one more is loaded: our own that no running job uses, least
    recently used first. If all are in use, none: the server then swaps them, or refuses.
    """
    over = len(loaded) + 1 - slots if slots else 0
    idle = [
        name
        for name in loaded
        if name.startswith(ADAPTER_PREFIX) and not uses.get(name, {}).get("jobs")
    ]
    return sorted(idle, key=lambda name: uses.get(name, {}).get("used", ""))[: max(0, over)]


def sampled_from(loaded: list[str]) -> dict[str, dict]:
    """Uses of the adapters that training runs sample from (`workers.lib.adapter_serving`). Those of
    runs that have ended may be unloaded.
    """
    runs = {
        name: name.removeprefix(ROLLOUT_PREFIX)[:36]
        for name in loaded
        if name.startswith(ROLLOUT_PREFIX)
    }
    return {
        name: {"used": "", "jobs": [["run", pk]] if is_active(pk) else []}
        for name, pk in runs.items()
    }


def is_active(pk: str) -> bool:
    try:
        return any(model.objects.active().filter(pk=UUID(pk)).exists() for model in job_models())
    except ValueError:
        return False


def without_ended(adapters: dict[str, dict]) -> dict[str, dict]:
    """The uses, without jobs that have ended."""
    models = {model._meta.label: model for model in job_models()}
    active: set[tuple[str, str]] = set()
    for label, model in models.items():
        ids = [UUID(pk) for use in adapters.values() for named, pk in use["jobs"] if named == label]
        found = (
            model.objects.active().filter(pk__in=ids).values_list("pk", flat=True) if ids else ()
        )
        active |= {(label, str(pk)) for pk in found}
    return {
        name: use | {"jobs": [given for given in use["jobs"] if tuple(given) in active]}
        for name, use in adapters.items()
    }
