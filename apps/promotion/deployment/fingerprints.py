"""The log-probabilities that a version's weights give a fixed text: computed once from its files,
or recorded where it is first served.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction

from apps.core import jobs
from apps.core.errors import Rejected
from apps.core.runner import job_fields
from apps.promotion.deployment.models import Fingerprint, FingerprintJob
from apps.registry.engines import model_spec
from apps.registry.models import Engine, ModelKind, ModelVersion
from workers.lib.specs import fingerprint as specs
from workers.lib.weights_proof import TEXT, Measured, Reference

MOST_OTHERS = 50


def fingerprint_of(version: ModelVersion) -> Fingerprint | None:
    return Fingerprint.objects.filter(version=version.model).first()


def reference_of(version: ModelVersion) -> Reference | None:
    found = fingerprint_of(version)
    return _reference(found) if found else None


def _reference(row: Fingerprint) -> Reference:
    return Reference(
        row.ids, row.logprobs, row.base_logprobs, row.source == Fingerprint.Source.COMPUTED
    )


def others_than(version: ModelVersion) -> dict[str, Reference]:
    """{name: reference} of the project's other versions on the same base, newest first."""
    model = version.model
    rows = Fingerprint.objects.filter(
        version__project=model.project_id, version__base=model.base
    ).exclude(version=model)
    return {
        str(row.version): _reference(row)
        for row in rows.select_related("version").order_by("-version_id")[:MOST_OTHERS]
    }


def can_be_computed(version: ModelVersion) -> bool:
    model = version.model
    return model.kind in (ModelKind.BASE, ModelKind.ADAPTER) and model.engine == Engine.TRANSFORMERS


def ask_for(version: ModelVersion, *, by: Any = None) -> FingerprintJob | None:
    """Queues the computation of a version's fingerprint, unless it exists or is running. None if
    its weights are not here.
    """
    model = version.model
    if (
        not can_be_computed(model)
        or Fingerprint.objects.filter(version=model, source=Fingerprint.Source.COMPUTED).exists()
    ):
        return None
    if active := FingerprintJob.objects.active().filter(version=model).first():
        return active
    job = FingerprintJob(project=model.project, name=f"Fingerprint of {model}", version=model)
    try:
        with transaction.atomic():
            return jobs.submit(job, by=by)
    except IntegrityError:  # somebody else requested it meanwhile
        return FingerprintJob.objects.active().filter(version=model).first()
    except Rejected:
        return None


def job_spec(job: FingerprintJob) -> specs.Fingerprint:
    """Raises ModelError, ArtifactError."""
    return specs.Fingerprint(
        **job_fields(job),
        model=model_spec(job.version),
        text=TEXT,
        dtype=settings.FLYWHEEL_DTYPE,
    )


def complete(job: FingerprintJob, result: dict) -> dict:
    fields = {name: result[name] for name in ("ids", "logprobs", "base_logprobs")}
    Fingerprint.objects.update_or_create(
        version=job.version, defaults=fields | {"source": Fingerprint.Source.COMPUTED}
    )
    return {"tokens": len(result["ids"])}


def record_served(version: ModelVersion, measured: Measured) -> None:
    """Records what the first server of a version gave the text, if nothing better is known. In the
    caller's transaction.
    """
    if measured.logprobs:
        Fingerprint.objects.get_or_create(
            version=version.model,
            defaults={
                "ids": measured.ids,
                "logprobs": measured.logprobs,
                "base_logprobs": measured.base,
                "source": Fingerprint.Source.SERVED,
            },
        )
