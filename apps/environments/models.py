"""Environments (agent harness, verifier, state), used for both evaluation and training."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from apps.core.models import Archivable, ArchivableQuerySet, Project
from workers.lib.environments import opening
from workers.lib.prompts import AGENT_PART, applied
from workers.lib.specs.environment import REMOTE, Clients, Harness
from workers.lib.specs.environment import Environment as Spec
from workers.lib.typed import convert


class Verifier(models.Model):
    """One immutable version of a reward: its spec (docs/verifiers.md) and the hash of it. A changed
    spec is a new row.
    """

    mentions_stay = "a hash identifies what it says"

    nouns = ("verifier version", "verifier versions")

    project = models.ForeignKey(Project, models.CASCADE, related_name="verifiers")
    name = models.SlugField(max_length=80)
    version = models.PositiveIntegerField()
    spec = models.JSONField()
    hash = models.CharField(max_length=64)
    note = models.CharField(
        max_length=300, blank=True, help_text="What changed, in a person's words"
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    # True on the instance that an action has just made, False on one that was there already
    is_new = False

    class Meta:
        ordering = ("name", "-version")
        constraints = [
            models.UniqueConstraint(
                fields=["project", "name", "version"], name="one_row_per_verifier_version"
            ),
            models.UniqueConstraint(
                fields=["project", "name", "hash"], name="one_verifier_per_content"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


class EnvironmentKind(models.TextChoices):
    BUILTIN = "builtin", "Built in"
    SINGLE_TURN = "single_turn", "Single turn"
    REPLAY = "replay", "Replay of recorded tools"
    REMOTE = "remote", "Remote"
    MCP = "mcp", "MCP tool server"
    OPENENV = "openenv", "OpenEnv server"
    PACKAGE = "package", "Package"


class Package(models.Model):
    """The files of one package as they were when a version was made of them: {path: content in
    base64}. Never changed.
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="packages")
    name = models.SlugField(max_length=60)
    digest = models.CharField(max_length=64)
    files = models.JSONField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name", "-created_at")
        constraints = [
            models.UniqueConstraint(
                fields=["project", "name", "digest"], name="one_package_per_content"
            )
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.digest[:12]})"


class Environment(Archivable):
    """One immutable version: the setting, the agent's harness, the verifier, and the tasks it was
    made for.

    `dataset` holds facts about a frozen eval set ({name, digest, tasks}); the set itself is in a
    higher layer. A remote environment scores itself: its verifier's spec names the server. `hash`
    covers everything. `task_hash` covers the task and `agent_hash` the agent's part (`agent_part`):
    only evaluations of the same task can be compared.
    """

    mentions_stay = "a hash identifies what it says"

    nouns = ("environment version", "environment versions")

    project = models.ForeignKey(Project, models.CASCADE, related_name="environments")
    slug = models.SlugField(max_length=80)
    version = models.PositiveIntegerField()
    kind = models.CharField(max_length=12, choices=EnvironmentKind, default=EnvironmentKind.BUILTIN)
    builtin = models.SlugField(
        max_length=80, blank=True, help_text="Name of the module in workers.lib.environments"
    )
    harness = models.JSONField(
        help_text="system_prompt, tools, max_turns, max_new_tokens, temperature, top_p"
    )
    config = models.JSONField(
        default=dict, help_text="What the kind needs: a remote one's url, a replay's strictness"
    )
    package = models.ForeignKey(Package, models.PROTECT, null=True, related_name="environments")
    dataset = models.JSONField(null=True, help_text="name, digest and tasks of a frozen eval set")
    verifier = models.ForeignKey(Verifier, models.PROTECT, related_name="environments")
    hash = models.CharField(max_length=64)
    task_hash = models.CharField(max_length=64)
    agent_hash = models.CharField(max_length=64)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    is_new = False  # as of Verifier

    objects = ArchivableQuerySet.as_manager()

    class Meta:
        ordering = ("slug", "-version")
        constraints = [
            models.UniqueConstraint(
                fields=["project", "slug", "version"], name="one_row_per_environment_version"
            ),
            models.UniqueConstraint(
                fields=["project", "slug", "hash"], name="one_environment_per_content"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.slug}@{self.version}"

    @property
    def is_remote(self) -> bool:
        """Whether another server runs its tools."""
        return self.kind in REMOTE

    @property
    def needs_tools(self) -> bool:
        """Whether its agent is given tools and their results, which the model's chat template has
        to carry.
        """
        return self.kind != EnvironmentKind.SINGLE_TURN and self.builtin != "workplace"

    @property
    def has_turn_rewards(self) -> bool:
        """Whether its scores contain the reward of each turn, so that turns can be compared."""
        return bool(self.config.get("turn_rewards"))

    @property
    def agent_part(self) -> dict:
        """What of the harness the agent brings: its prompt, examples and sampling."""
        return self.agent_part_with({})

    def agent_part_with(self, prompt: dict) -> dict:
        """The agent's part with a prompt version."""
        return {
            name: value
            for name, value in applied(self.harness, prompt).items()
            if name in AGENT_PART
        }

    @property
    def opening(self) -> list[dict]:
        """The messages before a task's own: the agent's system prompt and examples."""
        return self.opening_with({})

    def opening_with(self, prompt: dict) -> list[dict]:
        """The same with a prompt version."""
        return opening(self.harness_with(prompt))

    def as_spec(
        self,
        prompt: dict | None = None,
        *,
        verifier: dict | None = None,
        clients: Clients | None = None,
    ) -> Spec:
        """The input of `workers.lib.environments.load`. A prompt version replaces parts of the
        harness, `verifier` its own.
        """
        files = {"files": self.package.files} if self.package else {}
        return Spec(
            kind=self.kind,
            name=self.builtin,
            config=self.config | files,
            harness=self.harness_with(prompt or {}),
            verifier=verifier or self.verifier.spec,
            clients=clients or Clients(),
            allow_private=settings.FLYWHEEL_ALLOW_PRIVATE_URLS,
        )

    def harness_with(self, prompt: dict) -> Harness:
        return convert(applied(self.harness, prompt), Harness, "environment.harness")


class EnvironmentSession(models.Model):
    """An episode that a caller of the protocol has open. Its state lies here, since any web process
    may answer next.

    The caller knows the session by a random token in a cookie or header; only its SHA-256 is
    stored.
    """

    token_hash = models.CharField(max_length=64, unique=True)
    environment = models.ForeignKey(Environment, models.CASCADE, related_name="sessions")
    task = models.JSONField()
    state = models.JSONField(null=True)
    calls = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"Session {self.pk} of {self.environment}"
