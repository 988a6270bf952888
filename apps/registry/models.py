"""Model versions and the artifacts they are made of. Both are immutable."""

from __future__ import annotations

import uuid
from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.urls import reverse
from django.utils import timezone

from apps.core.auditing.words import page_of
from apps.core.diffing import changed_parts
from apps.core.models import Archivable, ArchivableQuerySet, Job, Project, one_active
from workers.lib.prices import Price
from workers.lib.prompts import as_parts
from workers.lib.template_check import TemplateCheck

SHOWN_OF_VERSION = 20  # characters shown of an agent's version: enough to tell git commits apart


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
    AGENT = "agent", "Agent"
    REWARD = "reward", "Reward model"


class Engine(models.TextChoices):
    """What generates the answers of a version: this installation, a server, or an agent's own
    process.
    """

    TRANSFORMERS = "transformers", "In this installation (transformers)"
    OPENAI = "openai", "An OpenAI-compatible server"
    AGENT = "agent", "The agent itself"


class Reach(models.TextChoices):
    """How the answers of an external agent reach Flywheel."""

    HTTP = "http", "Called over HTTP"
    CI = "ci", "Answers from CI"
    TRACES = "traces", "Known by its traces"
    PULL = "pull", "Waits for work"


class Protocol(models.TextChoices):
    """The format in which an agent that is called over HTTP receives its task."""

    CHAT = "chat", "Chat completions (POST …/chat/completions)"
    RESPONSES = "responses", "Responses API (POST …/responses)"
    GYM = "gym", "NeMo Gym agent (POST …/run)"


class ServerKind(models.TextChoices):
    """TRANSFORMERS is Flywheel's own server (`workers.model_server`), which has vLLM's API and is
    always managed.
    """

    VLLM = "vllm", "vLLM"
    SGLANG = "sglang", "SGLang"
    OPENAI = "openai", "Other OpenAI-compatible server"
    TRANSFORMERS = "transformers", "transformers, in this installation"


class Dialect(models.TextChoices):
    """The API by which a model on a server is called, and how tools and calls are passed to it."""

    NATIVE = "native", "Chat completions, native tool calls"
    TEXT = "text", "Chat completions, tools and calls written as text"
    RESPONSES = "responses", "Responses API, native tool calls"


class Health(models.TextChoices):
    UNCHECKED = "unchecked", "Not checked yet"
    HEALTHY = "healthy", "Healthy"
    UNLISTED = "unlisted", "Lists no models"
    DOWN = "down", "Down"


class Server(models.Model):
    """An inference server: an external one, or a managed one, which a worker starts to serve `base`
    as configured in `serving` (`workers.lib.specs.serve`). A managed server's address is where it
    currently runs, "" if it is down. Policies, judges and writers of variants may share a server.

    `served` is the last list of its models: [{id, context, parent}], where an adapter's `parent` is
    its base. `capabilities` is the result of probing `probed_model`: {name: {value, how}}; value is
    null if it could not be determined. `prices` are in USD per million tokens: {model: [input,
    output]}, or {model: [input, output, cached read, cache write]}, null where these cost as input.
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="servers")
    name = models.SlugField(max_length=80)
    kind = models.CharField(max_length=20, choices=ServerKind, default=ServerKind.OPENAI)
    base_url = models.CharField(max_length=500, blank=True)
    base = models.ForeignKey(
        "ModelVersion", models.PROTECT, null=True, related_name="managed_servers"
    )
    serving = models.JSONField(default=dict)
    key_variable = models.CharField(max_length=80, blank=True)
    dialect = models.CharField(max_length=10, choices=Dialect, default=Dialect.NATIVE)
    adapters_at = models.CharField(
        max_length=500, blank=True, help_text="Path of our artifact folder on the server's machine"
    )
    prices = models.JSONField(default=dict)
    health = models.CharField(max_length=10, choices=Health, default=Health.UNCHECKED)
    health_detail = models.CharField(max_length=500, blank=True)
    checked_at = models.DateTimeField(null=True)
    served = models.JSONField(default=list)
    capabilities = models.JSONField(default=dict)
    probed_model = models.CharField(max_length=200, blank=True)
    probed_at = models.DateTimeField(null=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="one_server_per_name"),
            models.UniqueConstraint(
                fields=["project", "base_url", "key_variable", "dialect"],
                condition=~Q(base_url=""),
                name="one_server_per_address_key_and_dialect",
            ),
            models.CheckConstraint(
                name="only_managed_servers_have_no_address",
                condition=Q(base__isnull=False) | ~Q(base_url=""),
            ),
            models.CheckConstraint(
                name="servers_of_our_own_are_managed",
                condition=Q(base__isnull=False) | ~Q(kind=ServerKind.TRANSFORMERS),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("registry:server", args=[self.project.slug, self.name])

    def can(self, capability: str) -> bool | int | None:
        """The last probe's result; None if unknown."""
        return self.capabilities.get(capability, {}).get("value")

    @property
    def is_managed(self) -> bool:
        return self.base_id is not None


class ModelPrice(models.Model):
    """What a model costs in a project, in USD per million tokens, where no provider says so or the
    project pays something else. Cached tokens without a price of their own cost what input costs.
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="model_prices")
    model = models.CharField(max_length=200)
    input = models.FloatField()
    output = models.FloatField()
    cache_read = models.FloatField(null=True)
    cache_write = models.FloatField(null=True)

    class Meta:
        ordering = ("model",)
        constraints = [
            models.UniqueConstraint(fields=["project", "model"], name="one_price_per_model")
        ]

    def __str__(self) -> str:
        return self.model

    @property
    def as_price(self) -> Price:
        return Price(
            self.input, self.output, self.cache_read, self.cache_write, source="this project"
        )


class ServerProbe(Job):
    """Finds out what a server can do (`servers`)."""

    server = models.ForeignKey(Server, models.CASCADE, related_name="probes")

    class Meta(Job.Meta):
        constraints = [
            *Job.Meta.constraints,
            one_active("server", "one_active_probe_per_server"),
        ]


class Phase(models.TextChoices):
    """The phase of a managed server."""

    STARTING = "starting", "Starting"
    UP = "up", "Up"
    WAITING = "waiting", "Restarting"


class ServerRun(Job):
    """A managed server from its start to its stop (`managed`), for as long as a worker is
    available.
    """

    server = models.ForeignKey(Server, models.CASCADE, related_name="runs")
    phase = models.CharField(max_length=10, choices=Phase, default=Phase.STARTING)
    detail = models.TextField(blank=True)
    restarts = models.PositiveIntegerField(default=0)
    up_at = models.DateTimeField(null=True)
    data_folder = models.CharField(
        max_length=80,
        blank=True,
        help_text="Identity of its machine's data folder (`data_folder.identity`)",
    )
    data_path = models.CharField(
        max_length=500, blank=True, help_text="Path of the data folder on that machine"
    )
    tail = models.JSONField(default=list, help_text="The last lines of its log")

    class Meta(Job.Meta):
        constraints = [
            *Job.Meta.constraints,
            one_active("server", "one_active_run_per_server"),
        ]


class AdapterCopy(models.Model):
    """An adapter on the machine of a managed server with its own data folder (`copies`,
    `fetching`): requested until it has a `path` there, or a `problem`.
    """

    run = models.ForeignKey(ServerRun, models.CASCADE, related_name="copies")
    version = models.ForeignKey("ModelVersion", models.CASCADE, related_name="copies")
    path = models.CharField(max_length=1000, blank=True)
    problem = models.CharField(max_length=1000, blank=True)
    asked_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["run", "version"], name="one_copy_per_server_and_version"
            )
        ]

    def __str__(self) -> str:
        return f"{self.version} for {self.run}"


class AdapterSlots(models.Model):
    """The adapters that jobs have loaded at an address: {name: {"used": time, "jobs": [[model
    label, id]]}}. Lock its row to load or unload there; projects may share a server.
    """

    base_url = models.CharField(max_length=500, unique=True)
    adapters = models.JSONField(default=dict)

    def __str__(self) -> str:
        return self.base_url


class RayCluster(models.Model):
    """A Ray cluster named by an operator, to which training runs are submitted as jobs. `base_url`
    is its dashboard.

    `flywheel_url`: this installation's URL as seen from its nodes, "" for FLYWHEEL_URL. `bases_at`:
    a folder on its nodes with the folders of base models, "" if jobs download them from here.
    `gpus`: for a job whose engine does not request them from Ray itself.
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="ray_clusters")
    name = models.SlugField(max_length=80)
    base_url = models.CharField(max_length=500)
    key_variable = models.CharField(max_length=80, blank=True)
    flywheel_url = models.CharField(max_length=500, blank=True)
    bases_at = models.CharField(max_length=500, blank=True)
    gpus = models.FloatField(default=0)
    health = models.CharField(max_length=10, choices=Health, default=Health.UNCHECKED)
    health_detail = models.CharField(max_length=500, blank=True)
    ray_version = models.CharField(max_length=40, blank=True)
    checked_at = models.DateTimeField(null=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="one_ray_cluster_per_name")
        ]

    def __str__(self) -> str:
        return self.name


class ModelVersionQuerySet(ArchivableQuerySet):
    def adapters(self) -> Self:
        return self.filter(kind=ModelKind.ADAPTER)

    def run_here(self) -> Self:
        """Versions whose answers Flywheel's jobs generate or request. Excludes agents, which run
        their own loop, and reward models, which give no answers.
        """
        return self.exclude(kind__in=[ModelKind.AGENT, ModelKind.REWARD])

    def models(self) -> Self:
        """Versions that generate on their own: no agents, and no prompt versions, which are based
        on another version.
        """
        return self.run_here().exclude(kind=ModelKind.PROMPT)

    def trainable(self) -> Self:
        """Versions whose weights are in a folder of this installation."""
        return self.models().filter(engine=Engine.TRANSFORMERS)

    def evaluated_here(self) -> Self:
        """Versions that Flywheel's jobs can evaluate, including agents that are called over
        HTTP.
        """
        return self.filter(~Q(kind=ModelKind.AGENT) | Q(reached_by=Reach.HTTP)).exclude(
            kind=ModelKind.REWARD
        )


class ModelVersion(Archivable):
    """One immutable version: a base model, an adapter on top of its parent's base, a model on a
    server, a prompt version, an agent, or a reward model, which scores answers and gives none.

    `base` is the folder (or the served name) of the base model. A served model is what `server` has
    as `served_as`; its `parent`, if it has one, is the base model whose weights it is known to be.
    An agent is identified by its name and its own `agent_version`, such as a git SHA; `reached_by`
    says how it answers, `base_url` and `protocol` where and how it is called. A prompt version is a
    `prompt` (`workers.lib.prompts`) for the model that its parent is or is based on (`model`).
    `lineage` is frozen when the version is created: the run, the dataset and its digest, the
    environment and verifier hashes, the settings. `template` is the result of checking a base
    model's chat template when it was registered (`TemplateCheck`). `digest` identifies the content;
    creating the same content twice gives the same row.
    """

    mentions_stay = "a hash identifies what it says"

    project = models.ForeignKey(Project, models.CASCADE, related_name="model_versions")
    name = models.SlugField(max_length=80)
    version = models.PositiveIntegerField()
    kind = models.CharField(max_length=10, choices=ModelKind)
    parent = models.ForeignKey("self", models.PROTECT, null=True, related_name="children")
    base = models.CharField(max_length=500)
    artifact = models.ForeignKey(Artifact, models.PROTECT, null=True, related_name="model_versions")
    engine = models.CharField(max_length=20, choices=Engine, default=Engine.TRANSFORMERS)
    server = models.ForeignKey(Server, models.PROTECT, null=True, related_name="model_versions")
    served_as = models.CharField(max_length=200, blank=True)
    dialect = models.CharField(max_length=10, choices=Dialect, blank=True)
    base_url = models.CharField(max_length=500, blank=True)
    key_variable = models.CharField(max_length=80, blank=True)
    agent_version = models.CharField(max_length=200, blank=True)
    reached_by = models.CharField(max_length=10, choices=Reach, blank=True)
    protocol = models.CharField(max_length=10, choices=Protocol, blank=True)
    prompt = models.JSONField(
        default=dict, help_text="For a prompt version: system_prompt, tools, examples, sampling"
    )
    template = models.JSONField(
        default=dict, help_text="For a base model: the features of its chat template; {} if unknown"
    )
    digest = models.CharField(max_length=64)
    lineage = models.JSONField(default=dict)
    notes = models.TextField(blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    objects = ModelVersionQuerySet.as_manager()
    # True on the instance that an action has just created, False on one that existed already
    is_new = False
    moved_from = ""  # on the instance of a base that was registered again from another folder

    class Meta:
        ordering = ("-created_at", "-id")
        constraints = [
            models.UniqueConstraint(
                fields=["project", "name", "version"], name="one_row_per_model_version"
            ),
            models.UniqueConstraint(
                fields=["project", "digest"], name="one_model_version_per_content"
            ),
            models.CheckConstraint(
                name="adapters_have_artifact_and_parent",
                condition=~Q(kind__in=[ModelKind.ADAPTER, ModelKind.REWARD])
                | Q(artifact__isnull=False, parent__isnull=False),
            ),
            models.CheckConstraint(
                name="served_models_have_a_server_and_a_name",
                condition=Q(
                    kind=ModelKind.ENDPOINT, engine=Engine.OPENAI, server__isnull=False, base_url=""
                )
                & ~Q(served_as="")
                & ~Q(dialect="")
                | ~Q(kind=ModelKind.ENDPOINT)
                & (~Q(engine=Engine.OPENAI) | Q(kind=ModelKind.PROMPT))
                & Q(server__isnull=True, served_as="", dialect=""),
            ),
            models.CheckConstraint(
                name="prompt_versions_have_a_prompt_and_a_parent",
                condition=Q(kind=ModelKind.PROMPT, parent__isnull=False, artifact__isnull=True)
                & ~Q(prompt={})
                | ~Q(kind=ModelKind.PROMPT) & Q(prompt={}),
            ),
            models.CheckConstraint(
                name="only_agents_have_an_address_of_their_own",
                condition=Q(kind=ModelKind.AGENT) | Q(base_url="", key_variable=""),
            ),
            models.CheckConstraint(
                name="agents_have_a_version_and_a_reach",
                condition=Q(kind=ModelKind.AGENT, engine=Engine.AGENT)
                & ~Q(agent_version="")
                & (
                    Q(reached_by=Reach.HTTP) & ~Q(base_url="") & ~Q(protocol="")
                    | Q(
                        reached_by__in=[Reach.CI, Reach.TRACES, Reach.PULL],
                        base_url="",
                        protocol="",
                    )
                )
                | ~Q(kind=ModelKind.AGENT)
                & ~Q(engine=Engine.AGENT)
                & Q(agent_version="", reached_by="", protocol=""),
            ),
        ]

    def get_absolute_url(self) -> str:
        return page_of(self._meta.label_lower, str(self.pk), self.project.slug)

    def __str__(self) -> str:
        """An agent is shown with its own version, as its team calls it."""
        if self.kind == ModelKind.AGENT:
            return f"{self.name}@{self.agent_version[:SHOWN_OF_VERSION]}"
        return f"{self.name}-v{self.version}"

    @property
    def model(self) -> ModelVersion:
        """The version that generates: for a prompt version the model that it is based on, otherwise
        itself.
        """
        return next(node for node in [self, *self.ancestors()] if node.kind != ModelKind.PROMPT)

    @property
    def chat_template(self) -> TemplateCheck | None:
        """What the chat template of its base model supports; None if unknown."""
        found = self.base_version().template
        return TemplateCheck(**found) if found else None

    def prompt_before(self) -> dict[str, Any]:
        """What a prompt version was made from: its parent's prompt, or that of the environment it
        started from.
        """
        if self.parent is not None and self.parent.kind == ModelKind.PROMPT:
            return self.parent.prompt
        return self.lineage.get("started_from", {}).get("prompt", {})

    def prompt_changes(self) -> list[tuple[str, str]]:
        """(kind, line) of the difference to `prompt_before`, field by field, see
        `changed_lines`.
        """
        return list(changed_parts(as_parts(self.prompt_before()), as_parts(self.prompt)))

    def ancestors(self) -> list[ModelVersion]:
        """From this version's parent up to the base model."""
        chain, node = [], self.parent
        while node is not None:
            chain.append(node)
            node = node.parent
        return chain

    def base_version(self) -> ModelVersion:
        """The base model that it is based on; itself if it has none."""
        return next(
            (node for node in [self, *self.ancestors()] if node.kind == ModelKind.BASE), self
        )


class MergedModel(models.Model):
    """An adapter merged into its base as a whole model, for servers without LoRA. Deleted with its
    version; it can be made again.

    `gap`: mean |Δ log-probability| between merged model and base + adapter on a fixed text, in
    nats.
    """

    version = models.OneToOneField(ModelVersion, models.CASCADE, related_name="merged")
    artifact = models.ForeignKey(Artifact, models.PROTECT, related_name="merged_models")
    dtype = models.CharField(max_length=10)
    gap = models.FloatField()
    at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"{self.version} merged"


class MergeJob(Job):
    """Makes a `MergedModel` in a child process."""

    version = models.ForeignKey(ModelVersion, models.CASCADE, related_name="merge_jobs")

    class Meta(Job.Meta):
        constraints = [
            *Job.Meta.constraints,
            one_active("version", "one_active_merge_job_per_version"),
        ]


class UsedLink(models.Model):
    """A one-time download address that was used. Kept until the address would have expired
    anyway.
    """

    nonce = models.UUIDField(primary_key=True)
    project = models.ForeignKey(Project, models.CASCADE, related_name="+")
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return str(self.nonce)


class AdapterUpload(models.Model):
    """An adapter being uploaded in parts (`uploads`). `files` is the announced list [{path, size,
    sha256}].
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="adapter_uploads")
    name = models.SlugField(max_length=80)
    parent = models.ForeignKey(ModelVersion, models.PROTECT, related_name="+")
    files = models.JSONField()
    confirm_base = models.BooleanField(default=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-created_at",)
        constraints = [
            models.UniqueConstraint(
                fields=["project", "name", "parent", "files"], name="one_upload_per_content"
            )
        ]

    is_new = False  # True on the instance that an action has just made

    def __str__(self) -> str:
        return f"{self.name} (upload)"


class AdapterPart(models.Model):
    """A part of an uploaded file that is in the store."""

    upload = models.ForeignKey(AdapterUpload, models.CASCADE, related_name="parts")
    path = models.CharField(max_length=80)
    number = models.PositiveIntegerField(help_text="Counted from 0")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["upload", "path", "number"], name="one_row_per_part")
        ]

    def __str__(self) -> str:
        return f"{self.path} {self.number}"
