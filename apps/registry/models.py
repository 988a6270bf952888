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
    ENDPOINT = "endpoint", "Served model"


class Engine(models.TextChoices):
    """What generates for a version: this installation itself, or a server that is asked."""

    TRANSFORMERS = "transformers", "In this installation (transformers)"
    OPENAI = "openai", "An OpenAI-compatible server"


class ModelVersionQuerySet(models.QuerySet["ModelVersion"]):
    def adapters(self) -> Self:
        return self.filter(kind=ModelKind.ADAPTER)


class ModelVersion(models.Model):
    """One immutable version: a base model, an adapter on top of its parent's base, or a model that a server has.

    `base` is the folder (or the served name) of the base model. Where `engine` is a server, `base_url`, `served_as` and
    the name of the environment variable with its key say which. `lineage` is frozen when the version is made:
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
    engine = models.CharField(max_length=20, choices=Engine, default=Engine.TRANSFORMERS)
    base_url = models.CharField(max_length=500, blank=True)
    served_as = models.CharField(max_length=200, blank=True)
    key_variable = models.CharField(max_length=80, blank=True)
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
            models.CheckConstraint(
                name="servers_have_an_address_and_a_name",
                condition=Q(engine=Engine.TRANSFORMERS, base_url="", served_as="", key_variable="")
                & ~Q(kind=ModelKind.ENDPOINT)
                | Q(engine=Engine.OPENAI) & ~Q(base_url="") & ~Q(served_as=""),
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
