"""Floor 5: the environment (agent harness, verifier, state) that both evaluates and trains."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from apps.core.models import Project
from workers.environments import opening


class Verifier(models.Model):
    """One immutable version of a reward: its spec and the hash of it. A changed spec is a new row."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="verifiers")
    name = models.SlugField(max_length=80)
    version = models.PositiveIntegerField()
    spec = models.JSONField()
    hash = models.CharField(max_length=64)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name", "-version")
        constraints = [
            models.UniqueConstraint(fields=["project", "name", "version"], name="one_row_per_verifier_version"),
            models.UniqueConstraint(fields=["project", "name", "hash"], name="one_verifier_per_content"),
        ]

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


class EnvironmentKind(models.TextChoices):
    BUILTIN = "builtin", "Built in"


class Environment(models.Model):
    """One immutable version: which built-in environment, the agent's harness, and the verifier."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="environments")
    slug = models.SlugField(max_length=80)
    version = models.PositiveIntegerField()
    kind = models.CharField(max_length=12, choices=EnvironmentKind, default=EnvironmentKind.BUILTIN)
    builtin = models.SlugField(max_length=80, help_text="Name of the module in workers.environments")
    harness = models.JSONField(help_text="system_prompt, max_turns, max_new_tokens, temperature, top_p")
    verifier = models.ForeignKey(Verifier, models.PROTECT, related_name="environments")
    hash = models.CharField(max_length=64)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("slug", "-version")
        constraints = [
            models.UniqueConstraint(fields=["project", "slug", "version"], name="one_row_per_environment_version"),
            models.UniqueConstraint(fields=["project", "slug", "hash"], name="one_environment_per_content"),
        ]

    def __str__(self) -> str:
        return f"{self.slug}@{self.version}"

    @property
    def opening(self) -> list[dict]:
        """The messages that stand before a task's own: the agent's system prompt and examples."""
        return opening(self.harness)

    def as_spec(self) -> dict:
        """The `environment` part of a job's spec (docs/jobs.md)."""
        return {
            "slug": self.slug,
            "version": self.version,
            "hash": self.hash,
            "kind": self.kind,
            "name": self.builtin,
            "harness": self.harness,
            "verifier": self.verifier.spec,
        }
