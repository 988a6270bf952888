"""What the agent did in production.

`Trajectory`, `Content`, `SearchText` and `Step` are partitioned by month of the run's id, which
begins with the run's start (`ids`). What is listed and filtered is in the narrow rows of
`Trajectory` and `Step`; what was said is in `Content`.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import date
from functools import cache, cached_property
from typing import Any, Self

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVector, SearchVectorField
from django.db import models
from django.db.models.expressions import RawSQL
from django.db.models.functions import Cast
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils import timezone

from apps.core.encryption import EncryptedText
from apps.core.models import Job, Project, one_active
from apps.core.stores import store
from apps.core.whole_folders import verified
from apps.trajectories import contents, media
from workers.lib.prices import Cost
from workers.lib.storable import storable

MAX_PROBLEM = 1_000

log = logging.getLogger(__name__)


class Outcome(models.TextChoices):
    SUCCESS = "success"
    FAILURE = "failure"
    UNKNOWN = "unknown"


class CostBasis(models.TextChoices):
    """How the cost of a run is known (`workers.lib.prices.Cost`); without one it is not."""

    SENT = "sent", "Reported with the run"
    PRICED = "priced", "Computed from prices"
    AT_LEAST = "at_least", "At least: the cost of some calls is unknown"


class TrajectoryQuerySet(models.QuerySet["Trajectory"]):
    def failed(self) -> Self:
        return self.filter(outcome_status=Outcome.FAILURE)


class Trajectory(models.Model):
    """One run of an agent. What it said, in OpenAI chat form, is read from `Content` when it is
    first asked for.

    `external_id` is the client's id and the idempotency key (held by `TrajectoryKey`);
    `content_digest` tells a duplicate from an update; `terms` has what rows are filtered by, as
    “kind:value”.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    project = models.ForeignKey(
        Project, models.CASCADE, related_name="trajectories", db_constraint=False, db_index=False
    )
    external_id = models.CharField(max_length=200)
    content_digest = models.CharField(max_length=32)
    agent_name = models.CharField(max_length=120, blank=True)
    agent_version = models.CharField(max_length=120, blank=True)
    model = models.CharField(max_length=200, blank=True)
    workload = models.CharField(max_length=120, blank=True)
    session_id = models.CharField(max_length=200, blank=True)
    user_id = models.CharField(max_length=200, blank=True)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    received_at = models.DateTimeField(default=timezone.now)
    stored_in = models.BigIntegerField(
        db_default=Cast(
            Cast(models.Func(function="pg_current_xact_id"), models.TextField()),
            models.BigIntegerField(),
        ),
        editable=False,
        help_text="The transaction that inserted it: the live tail follows commits",
    )
    outcome_status = models.CharField(max_length=10, choices=Outcome, default=Outcome.UNKNOWN)
    outcome_reward = models.FloatField(null=True)
    outcome_label = models.CharField(max_length=120, blank=True)
    outcome_reason = models.TextField(blank=True)
    input_tokens = models.PositiveIntegerField(null=True)
    output_tokens = models.PositiveIntegerField(null=True)
    cache_read_tokens = models.PositiveIntegerField(null=True, help_text="Part of the input")
    cache_write_tokens = models.PositiveIntegerField(null=True, help_text="Part of the input")
    reasoning_tokens = models.PositiveIntegerField(null=True, help_text="Part of the output")
    cost_usd = models.FloatField(null=True)
    cost_basis = models.CharField(max_length=10, choices=CostBasis, blank=True)
    latency_ms = models.FloatField(null=True)
    message_count = models.PositiveIntegerField(default=0)
    tags = ArrayField(models.CharField(max_length=80), default=list)
    tool_names = ArrayField(
        models.CharField(max_length=120), default=list, help_text="Tools called, derived"
    )
    terms = ArrayField(
        models.TextField(), default=list, help_text="“kind:value” of what is filtered by, derived"
    )
    preview = models.CharField(
        max_length=240, blank=True, help_text="First user message, shortened, derived"
    )

    objects = TrajectoryQuerySet.as_manager()

    class Meta:
        ordering = ("-id",)
        verbose_name_plural = "trajectories"
        indexes = [
            models.Index(fields=["project", "id"], name="trajectory_by_time"),
            models.Index(
                fields=["project", "id"],
                name="trajectory_failed",
                condition=models.Q(outcome_status="failure"),
            ),
            models.Index(fields=["project", "agent_version", "id"], name="trajectory_by_version"),
            GinIndex(fields=["terms"], name="trajectory_by_term"),
        ]

    def __str__(self) -> str:
        return self.external_id

    def get_absolute_url(self) -> str:
        return reverse("trajectories:detail", args=[self.project.slug, self.pk])

    @cached_property
    def content(self) -> dict[str, Any]:
        """All that was said: {messages, tools, interventions, metadata, warnings}. Read once,
        whole, with references in place of what was embedded (`media`).
        """
        parts = (
            Content.objects.filter(trajectory_id=self.pk)
            .order_by("first")
            .values_list("data", flat=True)
        )
        return contents.join(parts)

    def scores(self) -> models.QuerySet[Score]:
        """Of the run and of its steps, by name."""
        return Score.objects.filter(trajectory_id=self.pk).order_by("step", "name", "created_at")

    @property
    def cost(self) -> Cost:
        return Cost(self.cost_usd, self.cost_basis)

    @property
    def messages(self) -> list[dict]:
        """As they were sent, with what was embedded."""
        stored = self.content["messages"]
        if self._as_sent[0] is not stored:
            self._as_sent = (stored, as_sent(self.project_id, stored))
        return self._as_sent[1]

    _as_sent: tuple[Any, list[dict]] = (None, [])

    @property
    def tools(self) -> list[dict]:
        return self.content["tools"]

    @cached_property
    def feedback(self) -> list[Feedback]:
        """What people said of the run, in the order they said it."""
        return Feedback.objects.about(self.project_id, [self.external_id])[self.external_id]

    def with_feedback(self, sent: list[dict]) -> list[dict]:
        """The interventions that the agent sent, and those of people after them; what was sent back
        to us once.
        """
        return sent + [
            item for said in self.feedback for item in said.interventions if item not in sent
        ]

    @property
    def interventions(self) -> list[dict]:
        return self.with_feedback(self.content["interventions"])

    @property
    def metadata(self) -> dict:
        return self.content["metadata"]

    @property
    def warnings(self) -> list[dict]:
        return self.content["warnings"]


def with_content(rows: list[Trajectory]) -> list[Trajectory]:
    """The rows, their content and feedback read in a query each for all of them."""
    parts: dict[uuid.UUID, list] = {row.pk: [] for row in rows}
    found = Content.objects.filter(trajectory_id__among=parts).order_by("trajectory_id", "first")
    for pk, data in found.values_list("trajectory_id", "data"):
        parts[pk].append(data)
    names: defaultdict[int, list[str]] = defaultdict(list)
    for row in rows:
        names[row.project_id].append(row.external_id)
    said = {project: Feedback.objects.about(project, some) for project, some in names.items()}
    for row in rows:
        row.content, row.feedback = (
            contents.join(parts[row.pk]),
            said[row.project_id][row.external_id],
        )
    return rows


def in_chunks(rows: models.QuerySet[Trajectory], size: int = 500) -> Iterator[list[Trajectory]]:
    """All rows of a query, some at a time, with their content."""
    chunk: list[Trajectory] = []
    for row in rows.iterator(chunk_size=size):
        chunk.append(row)
        if len(chunk) == size:
            yield with_content(chunk)
            chunk = []
    if chunk:
        yield with_content(chunk)


class TrajectoryKey(models.Model):
    """The client's id of each trajectory of a project, once: what makes sending idempotent.

    `digest` is of what was sent last under this id: the same again is a duplicate.
    """

    pk = models.CompositePrimaryKey("project_id", "external_id")
    project = models.ForeignKey(
        Project, models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    external_id = models.CharField(max_length=200)
    trajectory_id = models.UUIDField()
    digest = models.CharField(max_length=32)

    def __str__(self) -> str:
        return self.external_id


class FeedbackQuerySet(models.QuerySet["Feedback"]):
    def about(
        self, project_id: int, external_ids: Iterable[str]
    ) -> defaultdict[str, list[Feedback]]:
        """What was said of these runs, by the client's id, in the order it was said."""
        found: defaultdict[str, list[Feedback]] = defaultdict(list)
        for said in self.filter(project_id=project_id, external_id__among=external_ids).order_by(
            "given_at", "id"
        ):
            found[said.external_id].append(said)
        return found


class Feedback(models.Model):
    """What somebody said of a run: it outlives every later copy of the run, and may come before the
    first.

    `key` is the giver's id of it, or a digest of what it says. What it says of outcome and tags is
    also written into the trajectory's columns, by which lists filter (`feedback.merge`).
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="+", db_index=False)
    external_id = models.CharField(max_length=200)
    key = models.CharField(max_length=110)
    outcome = models.JSONField(
        default=dict, help_text="What it says of {status, reward, label, reason}"
    )
    tags = models.JSONField(default=dict, help_text="{tag: put on, else taken off}")
    interventions = models.JSONField(default=list)
    given_at = models.DateTimeField(default=timezone.now)

    objects = FeedbackQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["project", "external_id", "key"], name="one_feedback_per_key"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.external_id} at {self.given_at:%F %T}"


class Score(models.Model):
    """A named judgement of a run, or of the `step` of this key. Like feedback it outlives every
    later copy of the run, and may come before the first: `trajectory_id` is null until then.

    `key` is the sender's id of it, or says who it is from: of one name a run or step has one of
    each. A number, and a yes or no as 1 or 0, is in `value`; what was said of the others, and what
    a number means, in `text`.
    """

    class Kind(models.TextChoices):
        NUMBER = "number"
        YES_NO = "yes_no", "Yes or no"
        CATEGORY = "category"
        TEXT = "text"

    class Source(models.TextChoices):
        PERSON = "person"
        CODE = "code"
        JUDGE = "judge"
        OTLP = "otlp", "OpenTelemetry"
        IMPORT = "import"

    WITH_RUNS = (Source.OTLP, Source.IMPORT)  # come with their run, and are replaced with it

    project = models.ForeignKey(Project, models.CASCADE, related_name="scores", db_index=False)
    external_id = models.CharField(max_length=200)
    step = models.CharField(max_length=40, blank=True)
    name = models.CharField(max_length=120)
    key = models.CharField(max_length=220)
    trajectory_id = models.UUIDField(null=True)
    kind = models.CharField(max_length=8, choices=Kind)
    value = models.FloatField(null=True)
    text = models.TextField(blank=True)
    source = models.CharField(max_length=8, choices=Source)
    by = models.CharField(max_length=200, blank=True)
    comment = models.TextField(blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-created_at", "-id")
        indexes = [
            models.Index(fields=["project", "name", "value"], name="score_by_value"),
            models.Index(fields=["project", "name", "created_at"], name="score_by_name"),
            models.Index(fields=["trajectory_id", "name"], name="score_by_run"),
            models.Index(fields=["project", "created_at"], name="score_by_time"),
            models.Index(
                fields=["project"],
                name="score_waiting",
                condition=models.Q(trajectory_id__isnull=True),
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["project", "external_id", "step", "name", "key"], name="one_score_per_key"
            )
        ]

    def __str__(self) -> str:
        return f"{self.name}: {self.said}"

    @property
    def said(self) -> str:
        if self.kind != self.Kind.NUMBER:
            return self.text
        return f"{self.value:.4g}" + (f" ({self.text})" if self.text else "")


class Content(models.Model):
    """A part of what a trajectory said, from message `first` on (see `contents`)."""

    pk = models.CompositePrimaryKey("trajectory_id", "first")
    trajectory_id = models.UUIDField()
    first = models.PositiveIntegerField()
    data = models.BinaryField()

    def __str__(self) -> str:
        return f"{self.trajectory_id} from {self.first}"


class Medium(models.Model):
    """A picture, sound or file of a project, once by its SHA-256: embedded in a message that
    arrived, or uploaded for messages that refer to it. Its bytes are in the artifact store
    (`media_store`); `media_type` is what they are, whatever was said of them.
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="media", db_index=False)
    digest = models.CharField(max_length=64)
    size = models.PositiveBigIntegerField()
    media_type = models.CharField(max_length=100)
    width = models.PositiveIntegerField(null=True)
    height = models.PositiveIntegerField(null=True)
    name = models.CharField(max_length=200, blank=True, help_text="Of an uploaded file")
    seen_at = models.DateTimeField(default=timezone.now, help_text="Arrived last")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "digest"], name="one_medium_per_digest")
        ]

    def __str__(self) -> str:
        return self.name or self.digest[:12]

    @property
    def kind(self) -> str:
        return media.Sniffed(self.media_type, self.width, self.height).kind

    @property
    def about(self) -> str:
        """“image/png, 640 × 480, 34 KB”."""
        pixels = f"{self.width} × {self.height}" if self.width and self.height else ""
        return ", ".join(filter(None, (self.media_type, pixels, filesizeformat(self.size))))

    def chunks(self) -> Iterator[bytes]:
        """Its bytes. Raises OSError, before the last chunk at the latest, if they are not what was
        stored.
        """
        entry = {"path": f"medium {self.digest[:12]}", "size": self.size, "sha256": self.digest}
        held = b""
        for data in verified(entry, store().chunks(file_of(self.project_id, self.digest))):
            if held:
                yield held
            held = data
        yield held


def file_of(project: int, digest: str) -> str:
    """The name of a medium in the artifact store."""
    return f"media/{project}/{digest}"


def as_sent(project: int, messages: list[dict], room: media.Room | None = None) -> list[dict]:
    """The messages with what was embedded in them, in place of references to it."""
    if (digests := media.references(messages)) is None:
        return messages
    rows = {row.digest: row for row in Medium.objects.filter(project=project, digest__in=digests)}

    @cache
    def read(digest: str) -> tuple[bytes, str] | None:
        if (row := rows.get(digest)) is None:
            return None
        try:
            return b"".join(row.chunks()), row.media_type
        except OSError as error:
            log.warning("A medium of project %s cannot be read: %s", project, error)
            return None

    return media.put_back(messages, read, room)


class MediumUse(models.Model):
    """A run whose messages have a medium, also in an earlier revision of it."""

    pk = models.CompositePrimaryKey("trajectory_id", "medium_id")
    trajectory_id = models.UUIDField()
    medium = models.ForeignKey(Medium, models.CASCADE, related_name="uses")

    def __str__(self) -> str:
        return f"{self.medium_id} in {self.trajectory_id}"


class SearchText(models.Model):
    """The words of a trajectory. Filled in the seconds after it arrived, by `digest`."""

    trajectory_id = models.UUIDField(primary_key=True)
    words = SearchVectorField()

    class Meta:
        indexes = [GinIndex(fields=["words"], name="searchtext_words")]

    def __str__(self) -> str:
        return str(self.trajectory_id)


SLOW_MS = (1_000, 10_000, 60_000)


def _term(kind: str, column: str, usual: str = "") -> models.Func:
    """None where the column has the value that most have: it would lead to nearly all."""
    return models.Func(
        models.F(column),
        template=f"(CASE WHEN %(expressions)s <> '{usual}' THEN '{kind}:' || %(expressions)s END)",
    )


def _seconds() -> models.Func:
    """How slow a step was, as the number of SLOW_MS that it reached, if any."""
    limits = ",".join(map(str, SLOW_MS))
    bucket = f"width_bucket(%(expressions)s, '{{{limits}}}'::float8[])::text"
    return models.Func(
        models.F("duration_ms"),
        template=f"(CASE WHEN %(expressions)s >= {SLOW_MS[0]} THEN 'seconds:' || {bucket} END)",
    )


def _named(term: models.Func) -> models.Func:
    """With the name: what a tool's failed or slow steps are found by, which are few of each."""
    return models.Func(
        term, models.F("name"), template="(%(expressions)s)", arg_joiner=" || ':' || "
    )


_FAILED, _SLOW = _term("status", "status", "ok"), _seconds()
STEP_TERMS = models.Func(
    *(_term(name, name) for name in ("kind", "name", "model", "agent_version")),
    _term("agent", "agent_name"),
    _FAILED,
    _SLOW,
    _named(_FAILED),
    _named(_SLOW),
    template="array_remove(ARRAY[%(expressions)s], NULL)",
    output_field=ArrayField(models.TextField()),
)
STEP_WORDS = {name: SearchVector(name, config="simple") for name in ("arguments", "error")}


class Step(models.Model):
    """One step of a run (`steps.Step`), as it is listed. Written by `digest`, with the words.

    Its rows are in the order of the runs' starts. What it is filtered by has one index over an
    expression, so that nothing is stored twice. The table has no key: an index of its own would be
    four times as large as that by run, and only the digest writes here, a run in one process at a
    time.
    """

    pk = models.CompositePrimaryKey("project_id", "trajectory_id", "number")
    project = models.ForeignKey(
        Project, models.CASCADE, related_name="steps", db_constraint=False, db_index=False
    )
    trajectory_id = models.UUIDField()
    started_at = models.DateTimeField(null=True, help_text="Null: not reported")
    duration_ms = models.FloatField(null=True)
    cost_usd = models.FloatField(null=True)
    number = models.PositiveIntegerField(help_text="Its place among the steps of the run")
    message_index = models.PositiveIntegerField(null=True)
    input_tokens = models.PositiveIntegerField(null=True)
    output_tokens = models.PositiveIntegerField(null=True)
    total_tokens = models.PositiveBigIntegerField(null=True)
    key = models.CharField(max_length=40, help_text="Names it within the run, for good")
    kind = models.CharField(max_length=10)
    name = models.CharField(max_length=200)
    status = models.CharField(max_length=11)
    model = models.CharField(max_length=200, blank=True)
    agent_name = models.CharField(max_length=120, blank=True)
    agent_version = models.CharField(max_length=120, blank=True)
    arguments = models.TextField(blank=True, help_text="The first 2,000 characters")
    error = models.TextField(blank=True, help_text="The first 500 characters")

    class Meta:
        indexes = [
            models.Index(fields=["project", "trajectory_id"], name="step_by_run"),
            models.Index(
                fields=["project", "trajectory_id"],
                name="step_failed",
                condition=models.Q(status="error"),
            ),
            models.Index(  # in the others' order, slow agents and models stand before them
                fields=["project", "duration_ms"],
                name="step_slow_tools",
                condition=models.Q(kind="tool", duration_ms__gte=SLOW_MS[0]),
            ),
            GinIndex(STEP_TERMS, name="step_by_term"),
            *(
                GinIndex(words, name=f"step_by_{name}", condition=~models.Q(**{name: ""}))
                for name, words in STEP_WORDS.items()
            ),
            *(
                models.Index(
                    fields=["project", column],
                    name=f"step_by_{column}",
                    condition=models.Q(**{f"{column}__isnull": False}),
                )
                for column in ("duration_ms", "total_tokens", "cost_usd")
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class StepTotal(models.Model):
    """Steps whose runs started in one hour or day (UTC) and that are alike in all of these columns,
    added up: what their figures are made of where the steps are many. See `step_totals`.
    """

    project = models.ForeignKey(
        Project, models.CASCADE, related_name="step_totals", db_constraint=False, db_index=False
    )
    unit = models.CharField(max_length=4, help_text="hour or day")
    at = models.DateTimeField()
    kind = models.CharField(max_length=10)
    name = models.CharField(max_length=200)
    status = models.CharField(max_length=11)
    model = models.CharField(max_length=200, blank=True)
    agent_name = models.CharField(max_length=120, blank=True)
    agent_version = models.CharField(max_length=120, blank=True)
    over = models.SmallIntegerField(
        help_text="How many of `step_totals.OVER_S` the duration reached; -1: it is not known"
    )
    steps = models.BigIntegerField()
    tokens = models.BigIntegerField()
    with_tokens = models.BigIntegerField(help_text="Steps of known tokens")
    cost_usd = models.FloatField(null=True)
    costed = models.BigIntegerField(help_text="Steps of known cost")
    durations = models.BinaryField(help_text="Pairs of a bucket of `metrics.sketch` and its count")

    class Meta:
        indexes = [models.Index(fields=["project", "unit", "at"], name="step_total_by_time")]

    def __str__(self) -> str:
        return f"{self.steps} of {self.kind} {self.name} in the {self.unit} of {self.at:%F %H}h"


class StepChange(models.Model):
    """The steps of an hour or day may be others than those that were added up."""

    project = models.ForeignKey(
        Project, models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    unit = models.CharField(max_length=4, help_text="hour or day")
    at = models.DateTimeField()
    changed_at = models.DateTimeField(default=timezone.now)
    left_as = models.CharField(
        max_length=6,
        blank=True,
        help_text="Why it is not added up: too few steps are alike (varied), or in its day (small)",
    )

    class Meta:
        indexes = [models.Index(fields=["project", "unit", "at"], name="step_change_by_time")]

    def __str__(self) -> str:
        return f"the {self.unit} of {self.at:%F %H}h"


class Cause(models.TextChoices):
    """Why a trajectory was changed."""

    RESENT = "resent"
    FEEDBACK = "feedback"
    EDITED = "edited"
    ASSEMBLED = "assembled"


class TrajectoryRevision(models.Model):
    """What a trajectory said before an update of it arrived."""

    trajectory = models.ForeignKey(Trajectory, models.CASCADE, related_name="revisions")
    content_digest = models.CharField(
        max_length=32, help_text="Of what was sent, where something else was sent then"
    )
    content = models.JSONField(help_text="The fields that changed, as they were")
    cause = models.CharField(
        max_length=20, default=Cause.RESENT, help_text="resent, feedback or edited"
    )
    replaced_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-replaced_at", "-id")

    def __str__(self) -> str:
        return f"{self.trajectory_id} until {self.replaced_at:%F %T}"


class EvalClaim(models.Model):
    """What a run says of itself: of which evaluation, task and sample it is. `run` and `task` are
    texts from outside.

    It waits until a layer above has made it that sample, or has refused it: then `note` says why.
    The run stays either way.
    """

    class State(models.TextChoices):
        WAITING = "waiting"
        USED = "used", "Used as a sample"
        REFUSED = "refused", "Not used"

    trajectory = models.OneToOneField(
        Trajectory, models.CASCADE, primary_key=True, related_name="eval_claim"
    )
    project = models.ForeignKey(Project, models.CASCADE, related_name="+", db_index=False)
    run = models.CharField(max_length=200)
    task = models.CharField(max_length=200)
    sample = models.PositiveIntegerField(default=0)
    state = models.CharField(max_length=10, choices=State, default=State.WAITING)
    note = models.CharField(max_length=500, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["project", "run"], name="evalclaim_by_run"),
            models.Index(
                fields=["trajectory"], name="evalclaim_waiting", condition=models.Q(state="waiting")
            ),
        ]

    def __str__(self) -> str:
        return f"sample {self.sample} of {self.task} in {self.run}"


class SetAsideQuerySet(models.QuerySet[Any]):
    """Of what can be set aside with a `problem` until a person decides."""

    def waiting(self) -> Self:
        return self.filter(problem="")

    def set_aside(self) -> Self:
        return self.exclude(problem="")

    def put_aside(self, error: Exception, **changes: Any) -> int:
        return self.update(
            problem=storable(f"{type(error).__name__}: {error}")[:MAX_PROBLEM], **changes
        )


class TraceQuerySet(SetAsideQuerySet):
    def forget(self, **changes: Any) -> int:
        """Notes that the spans were removed. By its runs a trace is found when these are
        deleted.
        """
        links = RawSQL("ARRAY(SELECT 'run:' || name FROM unnest(runs) AS name)", [])
        return self.update(forgotten=True, is_partial=True, links=links, **changes)


class Arrival(models.Model):
    """What was stored in one transaction and is not digested yet: rows to index and counts to add
    to the roll-ups.

    One that cannot be digested is set aside: `problem` says why, and it waits for a person.
    """

    project = models.ForeignKey(
        Project, models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    trajectories = ArrayField(models.UUIDField(), default=list)
    counts = models.JSONField(default=list, help_text="See `rollups.Counts`")
    only_new = models.BooleanField(db_default=False, help_text="None of the runs was there before")
    at = models.DateTimeField(default=timezone.now)
    problem = models.TextField(blank=True, db_default="")

    objects = SetAsideQuerySet.as_manager()

    class Meta:
        ordering = ("id",)
        indexes = [
            models.Index(
                fields=["project"], name="arrival_set_aside", condition=~models.Q(problem="")
            ),
            models.Index(
                fields=["project", "only_new", "id"],
                name="arrival_waiting",
                condition=models.Q(problem=""),
            ),
        ]

    def __str__(self) -> str:
        return f"{len(self.trajectories)} at {self.at:%F %T}"


class HourlyCount(models.Model):
    """Trajectories of one hour that are alike, counted: what charts and totals are made of."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="hourly_counts")
    hour = models.DateTimeField()
    agent_name = models.CharField(max_length=120, blank=True)
    agent_version = models.CharField(max_length=120, blank=True)
    model = models.CharField(max_length=200, blank=True)
    workload = models.CharField(max_length=120, blank=True)
    outcome_status = models.CharField(max_length=10)
    trajectories = models.BigIntegerField(default=0)
    input_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    cache_read_tokens = models.BigIntegerField(default=0)
    cache_write_tokens = models.BigIntegerField(default=0)
    reasoning_tokens = models.BigIntegerField(default=0)
    cost_usd = models.FloatField(default=0)
    unpriced = models.BigIntegerField(default=0, help_text="Runs whose whole cost is not known")
    latency_ms = models.FloatField(default=0, help_text="Sum over those that have one")
    with_latency = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=[
                    "project",
                    "hour",
                    "agent_name",
                    "agent_version",
                    "model",
                    "workload",
                    "outcome_status",
                ],
                name="one_count_per_hour_and_kind",
            )
        ]

    def __str__(self) -> str:
        return f"{self.trajectories} at {self.hour:%F %H}h"


class MetricCell(models.Model):
    """Trajectories of one hour or day (UTC) with one value of one dimension, added up: what charts
    and totals are made of.

    The dimension “” has all of them. Distributions are `metrics.sketch`es, by bucket.
    """

    project = models.ForeignKey(
        Project, models.CASCADE, related_name="metric_cells", db_index=False
    )
    unit = models.CharField(max_length=4, help_text="hour or day")
    at = models.DateTimeField()
    dimension = models.CharField(
        max_length=10, blank=True, help_text="A key of `rollups.DIMENSIONS`, tool, or “”"
    )
    value = models.CharField(max_length=200, blank=True)
    runs = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    unknown = models.BigIntegerField(default=0)
    input_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    cache_read_tokens = models.BigIntegerField(default=0)
    cache_write_tokens = models.BigIntegerField(default=0)
    reasoning_tokens = models.BigIntegerField(default=0)
    cost_usd = models.FloatField(default=0)
    unpriced = models.BigIntegerField(default=0, help_text="Runs whose whole cost is not known")
    latency = models.JSONField(default=dict)
    cost = models.JSONField(default=dict)
    tokens = models.JSONField(default=dict)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["project", "unit", "dimension", "at", "value"],
                name="one_cell_per_time_and_value",
            )
        ]

    def __str__(self) -> str:
        return f"{self.runs} in the {self.unit} of {self.at:%F %H}h"


class Facet(models.Model):
    """A value that trajectories of a project can be filtered by, for the choices of the filters."""

    class Kind(models.TextChoices):
        AGENT = "agent"
        VERSION = "version"
        MODEL = "model"
        WORKLOAD = "workload"
        TOOL = "tool"
        TAG = "tag"

    project = models.ForeignKey(Project, models.CASCADE, related_name="facets")
    kind = models.CharField(max_length=10, choices=Kind)
    value = models.CharField(max_length=200)
    trajectories = models.BigIntegerField(default=0)

    class Meta:
        ordering = ("kind", "-trajectories", "value")
        constraints = [
            models.UniqueConstraint(fields=["project", "kind", "value"], name="one_facet_per_value")
        ]

    def __str__(self) -> str:
        return f"{self.kind}:{self.value}"


class RedactionRule(models.Model):
    """What is taken out of trajectories before they are stored."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="redaction_rules")
    name = models.CharField(max_length=80)
    kind = models.CharField(max_length=20)
    pattern = models.TextField(blank=True)
    replacement = models.CharField(max_length=80, blank=True)
    enabled = models.BooleanField(default=True)
    position = models.PositiveSmallIntegerField(default=0)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("position", "id")
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="one_redaction_rule_per_name")
        ]

    def __str__(self) -> str:
        return self.name


class ImportMapping(models.Model):
    """A mapping (`importers.mapping.Mapping` as JSON) that a project keeps under a name, for files
    like the one it was made for.
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="import_mappings")
    name = models.CharField(max_length=80)
    mapping = models.JSONField()
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("name",)
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="one_import_mapping_per_name")
        ]

    def __str__(self) -> str:
        return self.name


class Upload(Job):
    """A file of trajectories that a person imports. `cursor`, and `result` in the end, are a
    `batches.Summary`; `spec` has the mapping of a mapped file."""

    format = models.CharField(max_length=20)
    file = models.CharField(max_length=32, help_text="Names the kept file (`uploads`)")
    size = models.BigIntegerField()

    @property
    def summary(self) -> dict[str, Any]:
        return self.result or self.cursor


class ParquetExport(Job):
    """Writes the Parquet files of the days that have changed (`parquet_files`)."""


class ParquetFileQuerySet(models.QuerySet["ParquetFile"]):
    def written(self) -> Self:
        return self.exclude(fingerprint="")


class ParquetFile(models.Model):
    """The rows of a day in the artifact store. `fingerprint` is of what it says; "" before it is
    written: an export that is killed leaves no file that no row knows of.
    """

    project = models.ForeignKey(
        Project, models.CASCADE, related_name="parquet_files", db_index=False
    )
    table = models.CharField(max_length=10)
    day = models.DateField()
    rows = models.PositiveBigIntegerField()
    size = models.PositiveBigIntegerField()
    sha256 = models.CharField(max_length=64)
    fingerprint = models.CharField(max_length=100)
    written_at = models.DateTimeField()

    objects = ParquetFileQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "table", "day"], name="one_file_per_day")
        ]

    def __str__(self) -> str:
        return f"{self.table} of {self.day}"

    @staticmethod
    def name_of(project: int, table: str, day: date) -> str:
        return f"parquet/{project}/{table}/day={day}/rows.parquet"

    @property
    def file(self) -> str:
        """Its name in the artifact store."""
        return self.name_of(self.project_id, self.table, self.day)


class UploadedTrajectory(models.Model):
    """That a file had this trajectory, whether it was new or known: what “the trajectories of this
    import” are.
    """

    pk = models.CompositePrimaryKey("upload_id", "trajectory_id")
    upload = models.ForeignKey(Upload, models.CASCADE, related_name="trajectories", db_index=False)
    trajectory_id = models.UUIDField(db_index=True)

    def __str__(self) -> str:
        return f"{self.trajectory_id} of {self.upload_id}"


class SavedView(models.Model):
    """Filters and columns of a list that a person keeps, for themselves or for the project."""

    class Page(models.TextChoices):
        RUNS = "runs"
        STEPS = "steps"

    project = models.ForeignKey(Project, models.CASCADE, related_name="saved_views")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    page = models.CharField(max_length=5, choices=Page, default=Page.RUNS)
    name = models.CharField(max_length=80)
    query = models.TextField(help_text="The query string of the list")
    shared = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name", "id")
        constraints = [
            models.UniqueConstraint(
                fields=["project", "by", "page", "name"], name="one_view_per_name"
            )
        ]

    def __str__(self) -> str:
        return self.name


class Alert(models.Model):
    """A rule over what runs, steps or scores of the last while add up to (`alerts`).

    `told` says that people know of it: what fires while it is silenced is told when that ends.
    """

    class Measure(models.TextChoices):
        FAILURE_RATE = "failure_rate", "Failure rate of runs"
        RUNS = "runs", "Number of runs"
        COST = "cost", "Cost of runs"
        LATENCY_P95 = "latency_p95", "Latency of runs, p95"
        STEP_ERROR_RATE = "step_error_rate", "Error rate of steps"
        STEP_P95 = "step_p95", "Duration of steps, p95"
        SCORE = "score", "Mean score"

    class Condition(models.TextChoices):
        ABOVE = "above", "Above the line"
        BELOW = "below", "Below the line"
        UNUSUAL = "unusual", "Outside its usual range"

    class State(models.TextChoices):
        OK = "ok", "OK"
        FIRING = "firing"
        NO_DATA = "no_data", "No data"

    project = models.ForeignKey(Project, models.CASCADE, related_name="alerts")
    name = models.CharField(max_length=80)
    measure = models.CharField(max_length=20, choices=Measure)
    filters = models.TextField(blank=True, help_text="As in the address of the list")
    condition = models.CharField(max_length=7, choices=Condition)
    line = models.FloatField(null=True)
    window_minutes = models.PositiveIntegerField()
    for_minutes = models.PositiveIntegerField(default=0)
    at_least = models.PositiveIntegerField()
    enabled = models.BooleanField(default=True)
    state = models.CharField(max_length=7, choices=State, default=State.OK)
    told = models.BooleanField(default=False)
    crossing_since = models.DateTimeField(null=True)
    unmeasured_since = models.DateTimeField(
        null=True, help_text="Since when there is too little to measure"
    )
    silenced_until = models.DateTimeField(null=True)
    value = models.FloatField(null=True, help_text="When it was last checked")
    n = models.PositiveIntegerField(default=0)
    low = models.FloatField(null=True)
    high = models.FloatField(null=True)
    usual_at = models.DateTimeField(null=True, help_text="When its usual range was computed")
    checked_at = models.DateTimeField(null=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="one_alert_per_name"),
            models.CheckConstraint(
                condition=models.Q(condition="unusual") | models.Q(line__isnull=False),
                name="alert_has_a_line",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("trajectories:alert", args=[self.project.slug, self.pk])

    @property
    def is_silenced(self) -> bool:
        return self.silenced_until is not None and self.silenced_until > timezone.now()


class AlertChange(models.Model):
    """That an alert fired or recovered, or that while it fired there was nothing more to measure:
    what was measured from `begin` to `at`, and some of the runs behind it.
    """

    class Kind(models.TextChoices):
        FIRED = "fired"
        RECOVERED = "recovered"
        NO_DATA = "no_data", "No data"

    alert = models.ForeignKey(Alert, models.CASCADE, related_name="changes")
    kind = models.CharField(max_length=9, choices=Kind)
    begin = models.DateTimeField()
    at = models.DateTimeField()
    value = models.FloatField(null=True)
    n = models.PositiveIntegerField(default=0)
    said = models.CharField(max_length=300)
    runs = ArrayField(models.CharField(max_length=200), default=list)

    class Meta:
        ordering = ("-at", "-id")

    def __str__(self) -> str:
        return f"{self.alert} {self.kind}"


class AlertPoint(models.Model):
    """What an alert measured, every while (`alerts.spacing`): its chart. `low` and `high` are what
    was usual then.
    """

    alert = models.ForeignKey(Alert, models.CASCADE, related_name="points", db_index=False)
    at = models.DateTimeField()
    value = models.FloatField(null=True, help_text="Null: too little to measure")
    n = models.PositiveIntegerField()
    low = models.FloatField(null=True)
    high = models.FloatField(null=True)

    class Meta:
        ordering = ("at",)
        constraints = [models.UniqueConstraint(fields=["alert", "at"], name="one_point_per_time")]

    def __str__(self) -> str:
        return f"{self.alert} at {self.at:%Y-%m-%d %H:%M}"


class Trace(models.Model):
    """What has come of one OTLP trace, and the trajectories `runs` that its spans were assembled
    into.

    One whose spans are gone is remembered, so that what comes late is known for a part of these.
    One that cannot be assembled is set aside: `problem` says why, and its spans are kept until more
    of them come or a person decides.
    """

    pk = models.CompositePrimaryKey("project_id", "trace_id")
    project = models.ForeignKey(
        Project, models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    trace_id = models.CharField(max_length=32)
    due_at = models.DateTimeField(
        null=True, help_text="From when its spans may be assembled; null: they are"
    )
    first_at = models.DateTimeField(help_text="When the first of the spans not yet assembled came")
    touched_at = models.DateTimeField(help_text="When the last span of its runs came")
    runs = ArrayField(models.CharField(max_length=200), default=list)
    links = ArrayField(
        models.TextField(), default=list, help_text="What other traces of the same run would share"
    )
    forgotten = models.BooleanField(default=False, help_text="Its spans were removed")
    is_partial = models.BooleanField(
        db_default=False, help_text="Its spans were removed once; those here came later"
    )
    deleted_spans = ArrayField(
        models.CharField(max_length=16),
        db_default=[],
        help_text="Of runs that were deleted while others of it were kept",
    )
    problem = models.TextField(blank=True, db_default="")

    objects = TraceQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(
                fields=["project"], name="trace_set_aside", condition=~models.Q(problem="")
            ),
            models.Index(
                fields=["due_at"], name="trace_due", condition=models.Q(due_at__isnull=False)
            ),
            models.Index(fields=["touched_at"], name="trace_by_age"),
            GinIndex(fields=["links"], name="trace_by_link"),
        ]

    def __str__(self) -> str:
        return self.trace_id

    @property
    def is_joined(self) -> bool:
        """Whether other traces belong to its runs, or may."""
        own = {f"run:{name}" for name in self.runs if name.startswith(self.trace_id)}
        return len(own) < len(self.runs) or not own.issuperset(self.links)


class Tombstone(models.Model):
    """That something of this digest was deleted from the project, and must not come back
    (`tombstones`).
    """

    pk = models.CompositePrimaryKey("project_id", "digest")
    project = models.ForeignKey(Project, models.CASCADE, related_name="+", db_index=False)
    digest = models.BinaryField(max_length=16)
    is_link = models.BooleanField(default=False, help_text="Only of use for some days")
    deleted_at = models.DateTimeField()

    class Meta:
        indexes = [
            models.Index(
                fields=["deleted_at"], name="tombstone_of_link", condition=models.Q(is_link=True)
            )
        ]

    def __str__(self) -> str:
        return f"{bytes(self.digest).hex()} at {self.deleted_at:%F %T}"


class LateData(models.Model):
    """What came of deleted runs and was dropped, by day (UTC)."""

    class Kind(models.TextChoices):
        RUN = "run", "Runs sent again"
        SPANS = "spans", "Spans and log records"
        FEEDBACK = "feedback", "Feedback and scores"

    project = models.ForeignKey(Project, models.CASCADE, related_name="late_data", db_index=False)
    kind = models.CharField(max_length=8, choices=Kind)
    day = models.DateField()
    n = models.PositiveBigIntegerField()
    last_at = models.DateTimeField()

    class Meta:
        ordering = ("-day", "kind")
        constraints = [
            models.UniqueConstraint(
                fields=["project", "day", "kind"], name="one_count_of_late_data"
            )
        ]

    def __str__(self) -> str:
        return f"{self.n} {self.kind} on {self.day}"


class DataDeletion(Job):
    """Deletes the runs that match filters, or everything about a person (`erasing`).

    `wanted` names them until it is done: then nothing here says who it was, only the keyed digest
    in `spec`, by which a person who is asked about is found again. `result` is the report.
    """

    nouns = ("deletion of data", "deletions of data")

    wanted = EncryptedText(blank=True)

    class Meta(Job.Meta):
        constraints = [*Job.Meta.constraints, one_active("project", "one_active_data_deletion")]

    def get_absolute_url(self) -> str:
        return reverse("trajectories:deletion", args=[self.project.slug, self.pk])


class MachineSweep(models.Model):
    """That a machine has removed what it had on its own disk of a person who is deleted."""

    deletion = models.ForeignKey(DataDeletion, models.CASCADE, related_name="sweeps")
    machine = models.CharField(max_length=80, help_text="Its data folder (`data_folder.identity`)")
    host = models.CharField(max_length=120)
    files = models.PositiveIntegerField(help_text="How many it removed")
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint("deletion", "machine", name="one_sweep_per_machine")]

    def __str__(self) -> str:
        return f"{self.host} at {self.at:%F %T}"


class SpanBody(models.Model):
    """The body of an OTLP request, kept until its spans are sorted by trace."""

    class Signal(models.TextChoices):
        TRACES = "traces"
        LOGS = "logs"

    project = models.ForeignKey(
        Project, models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    signal = models.CharField(max_length=6, choices=Signal)
    received_at = models.DateTimeField(default=timezone.now)
    data = models.BinaryField(help_text="OTLP protobuf, Zstandard")

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return f"{self.signal} at {self.received_at:%F %T}"


class SpanBatch(models.Model):
    """Spans and log records of one trace that came in one request, packed. Kept some days, for
    spans that come late.
    """

    project = models.ForeignKey(
        Project, models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    trace_id = models.CharField(max_length=32)
    received_at = models.DateTimeField(default=timezone.now)
    data = models.BinaryField()

    class Meta:
        indexes = [
            models.Index(fields=["project", "trace_id"], name="spanbatch_by_trace"),
            models.Index(fields=["received_at"], name="spanbatch_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.trace_id} at {self.received_at:%F %T}"


class HeldBatch(models.Model):
    """A row, or the spans and log records of a request, in which Presidio has yet to look for names
    (`held`).

    One that cannot be stored is set aside until a person decides: `due_at` is null, and `problem`
    says why.
    """

    class Kind(models.TextChoices):
        ROW = "row"
        SPANS = "spans"

    project = models.ForeignKey(
        Project, models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    kind = models.CharField(max_length=5, choices=Kind)
    received_at = models.DateTimeField(default=timezone.now)
    data = models.BinaryField(help_text="Zstandard, encrypted")
    due_at = models.DateTimeField(null=True, default=timezone.now)
    problem = models.TextField(blank=True)

    class Meta:
        verbose_name_plural = "held batches"
        indexes = [
            models.Index(fields=["project", "id"], name="heldbatch_by_project"),
            models.Index(
                fields=["due_at"], name="heldbatch_due", condition=models.Q(due_at__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} at {self.received_at:%F %T}"


class Retention(models.Model):
    """How long a project keeps its trajectories. Without one, trajectories are kept
    indefinitely.
    """

    project = models.OneToOneField(
        Project, models.CASCADE, primary_key=True, related_name="retention"
    )
    days = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.days} days"


class BulkChange(models.Model):
    """A change of many trajectories by a person, and what it needs to be taken back."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="bulk_changes")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    kind = models.CharField(max_length=10, help_text="tag, untag or outcome")
    value = models.CharField(max_length=80)
    n = models.PositiveIntegerField(default=0)
    was = models.JSONField(default=dict, help_text="{value before: [ids]}")
    created_at = models.DateTimeField(default=timezone.now)
    undone_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [models.Index(fields=["created_at"], name="bulkchange_by_age")]

    def __str__(self) -> str:
        many = f"{self.n:,} trajector{'y' if self.n == 1 else 'ies'}"
        verbs = {"tag": "Tagged", "untag": "Removed the tag"}
        if self.kind in verbs:
            return f"{verbs[self.kind]} {many}: “{self.value}”."
        return f"Set the outcome of {many} to {self.value}."
