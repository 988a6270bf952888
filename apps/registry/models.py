"""Floor 2: model versions and the artifacts they are made of. Both are immutable."""

from __future__ import annotations

from typing import Self

from django.conf import settings
from django.db import models
from django.db.models import Q

from apps.core.models import Project


class Artifact(models.Model):
    """A folder of files in the artifact store, addressed by the SHA-256 of its manifest."""

    digest = models.CharField(max_length=64, primary_key=True)
    files = models.JSONField(help_text="[{path, size, sha256}], sorted by path")
    size = models.PositiveBigIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.digest[:12]


class ModelKind(models.TextChoices):
    BASE = "base", "Base model"
    PROMPT = "prompt", "Prompt version"
    ADAPTER = "adapter", "LoRA adapter"


class ModelVersionQuerySet(models.QuerySet["ModelVersion"]):
    def adapters(self) -> Self:
        return self.filter(kind=ModelKind.ADAPTER)


class ModelVersion(models.Model):
    """One immutable version: a base model, or an adapter on top of its parent's base.

    `base` is the folder (or the served name) of the base model. `lineage` is frozen when the version is made:
    the run, the dataset and its digest, the environment and verifier hashes, the settings.
    `digest` identifies the content; making the same content twice gives the same row.
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="model_versions")
    name = models.SlugField(max_length=80)
    version = models.PositiveIntegerField()
    kind = models.CharField(max_length=10, choices=ModelKind)
    parent = models.ForeignKey("self", models.PROTECT, null=True, related_name="children")
    base = models.CharField(max_length=500)
    artifact = models.ForeignKey(Artifact, models.PROTECT, null=True, related_name="model_versions")
    prompt = models.TextField(blank=True)
    digest = models.CharField(max_length=64)
    lineage = models.JSONField(default=dict)
    notes = models.TextField(blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    objects = ModelVersionQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at", "-id")
        constraints = [
            models.UniqueConstraint(fields=["project", "name", "version"], name="one_row_per_model_version"),
            models.UniqueConstraint(fields=["project", "digest"], name="one_model_version_per_content"),
            models.CheckConstraint(
                name="adapters_have_artifact_and_parent",
                condition=~Q(kind=ModelKind.ADAPTER) | Q(artifact__isnull=False, parent__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name}-v{self.version}"

    def ancestors(self) -> list[ModelVersion]:
        """From this version's parent up to the base model."""
        chain, node = [], self.parent
        while node is not None:
            chain.append(node)
            node = node.parent
        return chain
