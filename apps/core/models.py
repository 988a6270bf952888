"""Who may see what (projects, members, keys), what was done (audit), and the life of a long job."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any, Self

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import cached_property

from apps.core.scopes import ROLE_FOR, Role, Scope


class ProjectQuerySet(models.QuerySet["Project"]):
    def visible_to(self, user: Any) -> Self:
        return self.filter(memberships__user=user).distinct()

    def running(self) -> Self:
        """Those that take data and whose schedules and flows do something."""
        return self.filter(stage=Stage.ACTIVE)


class Stage(models.TextChoices):
    """Of a project's life. What is deleted leaves its row, its owners and its audit log."""

    ACTIVE = "active"
    ARCHIVED = "archived"
    DELETING = "deleting"
    DELETED = "deleted"


class Project(models.Model):
    slug = models.SlugField(unique=True, max_length=64)
    name = models.CharField(max_length=120)
    description = models.TextField(blank=True)
    stage = models.CharField(max_length=10, choices=Stage, default=Stage.ACTIVE)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = ProjectQuerySet.as_manager()

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("dashboard:home", args=[self.slug])


class Membership(models.Model):
    project = models.ForeignKey(Project, models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role, default=Role.ENGINEER)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "user"], name="one_membership_per_user")
        ]

    def __str__(self) -> str:
        return f"{self.user} in {self.project} ({self.role})"

    def may(self, role: Role) -> bool:
        return role in self.roles

    @property
    def roles(self) -> list[Role]:
        """Its own and those below: what templates ask (`"engineer" in membership.roles`)."""
        return list(Role)[: Role(self.role).rank + 1]


EXPIRES_SOON = timedelta(days=14)


def key_digest(secret: str) -> str:
    """SHA-256 hex of an API key. A fast hash is enough: the key is 32 random bytes, not a
    password.
    """
    return hashlib.sha256(secret.encode()).hexdigest()


class ArchivableQuerySet(models.QuerySet[Any]):
    def current(self) -> Self:
        """Those that are not archived: what lists and choices show."""
        return self.filter(archived_at=None)

    def shown(self, archived: bool) -> Self:
        return self.filter(archived_at__isnull=not archived)


class Archivable(models.Model):
    """Something that is hidden from lists and choices when it is archived, and stays for what
    refers to it.
    """

    archived_at = models.DateTimeField(null=True)

    class Meta:
        abstract = True


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    def live(self) -> Self:
        """Not revoked; they may have expired."""
        return self.filter(revoked_at=None)

    def expiring(self) -> Self:
        """Those that still work and expire soon."""
        now = timezone.now()
        soon = self.live().filter(
            expires_at__gt=now, expires_at__lte=now + EXPIRES_SOON, replaced_by=None
        )
        return soon.order_by("expires_at")

    def by_digest(self, digest: str) -> ApiKey | None:
        return self.live().filter(digest=digest).select_related("project").first()


def all_scopes() -> list[str]:
    return list(Scope.values)


class ApiKey(models.Model):
    """A bearer key of one project. The secret is shown once; only its digest is kept.

    `scopes` say what it may do (`scopes`), as far as whoever made it still may (`may`).
    `may_see_holdout`: it may, with a scope that reads or evaluates, read hold-outs and have answers
    to them scored. An agent's own key need not.
    """

    nouns = ("API key", "API keys")

    project = models.ForeignKey(Project, models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=12, editable=False)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    last_used_at = models.DateTimeField(null=True)
    scopes = ArrayField(models.CharField(max_length=10), default=all_scopes)
    expires_at = models.DateTimeField(null=True)
    may_see_holdout = models.BooleanField(default=False)
    revoked_at = models.DateTimeField(null=True)
    replaced_by = models.ForeignKey("self", models.SET_NULL, null=True, related_name="replaces")

    objects = ApiKeyQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        constraints = [
            models.CheckConstraint(
                name="api_key_has_known_scopes",
                condition=Q(scopes__len__gte=1) & Q(scopes__contained_by=Scope.values),
            )
        ]

    def __str__(self) -> str:
        return f"{self.prefix}… ({self.name})"

    @staticmethod
    def new_secret() -> str:
        return "fw_" + secrets.token_urlsafe(32)

    @property
    def is_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= timezone.now()

    @property
    def is_live(self) -> bool:
        return self.revoked_at is None and not self.is_expired

    @property
    def same_expiry(self) -> datetime | None:
        """Of a key that is created now in the place of this one: as long from now as this one's was
        from its start.
        """
        return timezone.now() + (self.expires_at - self.created_at) if self.expires_at else None

    @property
    def expires_soon(self) -> bool:
        return (
            self.expires_at is not None
            and timezone.now() < self.expires_at <= timezone.now() + EXPIRES_SOON
        )

    @cached_property
    def maker_role(self) -> str | None:
        """The present role of whoever made the key; None if they left the project or their account
        is inactive.
        """
        found = Membership.objects.filter(
            project=self.project_id, user=self.created_by_id, user__is_active=True
        )
        return found.values_list("role", flat=True).first()

    def may(self, scope: Scope) -> bool:
        """Whether the key has the scope, and the present role of whoever made it allows it
        (`ROLE_FOR`).
        """
        return scope in self.scopes and (scope not in ROLE_FOR or self.maker_is(ROLE_FOR[scope]))

    @property
    def sees_holdout(self) -> bool:
        return self.may_see_holdout and self.maker_is(Role.ENGINEER)

    def maker_is(self, role: Role) -> bool:
        """Whether the present role of whoever made the key is at least this."""
        return self.maker_role is not None and Role(self.maker_role).rank >= role.rank

    def revoke(self) -> bool:
        """True if this call revoked it, False if it was revoked before."""
        return bool(ApiKey.objects.live().filter(pk=self.pk).update(revoked_at=timezone.now()))


INVITATION_LASTS = timedelta(days=7)


class InvitationQuerySet(models.QuerySet["Invitation"]):
    def open(self) -> Self:
        return self.filter(accepted_at=None, revoked_at=None, expires_at__gt=timezone.now())


class Invitation(models.Model):
    """A link with which one person joins a project, once. The token is in the link only; its digest
    is kept.
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="invitations")
    email = models.EmailField()
    role = models.CharField(max_length=10, choices=Role)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    accepted_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    accepted_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)

    objects = InvitationQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        constraints = [
            models.CheckConstraint(
                name="invitation_accepted_or_revoked",
                condition=Q(accepted_at=None) | Q(revoked_at=None),
            )
        ]

    def __str__(self) -> str:
        return f"{self.email} as {self.role}"


class AuditQuerySet(models.QuerySet["AuditEvent"]):
    def readable_as(self, role: Role) -> Self:
        """What a member of this role may read: of people, keys and webhooks only who manages
        them.
        """
        hidden = [prefix for prefix, least in AUDITED_FOR.items() if Role(role).rank < least.rank]
        return (
            self.exclude(reduce(or_, (Q(action__startswith=f"{prefix}.") for prefix in hidden)))
            if hidden
            else self
        )

    def of_account(self, user: Any) -> Self:
        """How somebody's account was used and changed, each once, the newest first: it is in the
        log of each of their projects.
        """
        own = self.filter(
            Q(action__startswith="account.") | Q(action__in=["login.failed", "login.locked"]),
            actor=user,
        )
        return own.order_by("-at", "action", "-pk").distinct("at", "action")


AUDITED_FOR = {
    **dict.fromkeys(("login", "account", "invitation", "member"), Role.OWNER),
    **dict.fromkeys(("api_key", "webhook"), Role.OPERATOR),
}


def object_name(target: models.Model) -> str:
    """How the audit log names an object: "registry.modelversion:12"."""
    return f"{target._meta.label_lower}:{target.pk}"


class AuditEvent(models.Model):
    """One change by a person or a policy. Rows are only ever added: a trigger refuses everything
    else (see the migration).

    So nothing may cascade into it: the row of a project that was deleted stays (`Stage`), and that
    of an actor may go, whose label stays. `about` names all that it is about, the target first
    (`object_name`).
    """

    nouns = ("audit log entry", "audit log entries")

    project = models.ForeignKey(Project, models.PROTECT, null=True, related_name="audit_events")
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.DO_NOTHING,
        null=True,
        related_name="+",
        db_constraint=False,
    )
    actor_label = models.CharField(max_length=160)
    action = models.CharField(max_length=60)
    target_type = models.CharField(max_length=60, blank=True)
    target_id = models.CharField(max_length=60, blank=True)
    about = ArrayField(models.CharField(max_length=130), default=list)
    detail = models.JSONField(default=dict)
    at = models.DateTimeField(default=timezone.now, db_index=True)

    objects = AuditQuerySet.as_manager()

    class Meta:
        ordering = ("-at", "-id")
        indexes = [
            models.Index(fields=["project", "-at", "-id"], name="audit_by_project"),
            models.Index(fields=["project", "actor_label", "-at"], name="audit_by_actor"),
            GinIndex(fields=["about"], name="audit_by_object"),
        ]

    def __str__(self) -> str:
        return f"{self.actor_label} {self.action} {self.target_type} {self.target_id}"


class AttemptsQuerySet(models.QuerySet):
    def locked(self) -> AttemptsQuerySet:
        return self.filter(locked_until__gt=timezone.now())


class Attempts(models.Model):
    """Attempts to log in that have failed, of one account or network or both, and keys refused to
    one network (`attempts.py`).
    """

    class Kind(models.TextChoices):
        ACCOUNT = "account", "from new networks"
        ADDRESS = "address", "many accounts from one network"
        HERE = "here", "one account from one network"
        KEYS = "keys", "refused API keys"
        KNOWN = "known", "has logged in from there"  # never locked

    kind = models.CharField(max_length=10, choices=Kind)
    digest = models.CharField(
        max_length=64, help_text="SHA-256 of the name or address: what was typed may be a password"
    )
    account = models.CharField(
        max_length=64, blank=True, db_index=True, help_text="SHA-256 of the account's name"
    )
    label = models.CharField(
        max_length=200, blank=True, help_text="Of an account only if it exists and is locked"
    )
    failures = models.PositiveIntegerField(default=0)
    last_at = models.DateTimeField(db_index=True)
    locked_until = models.DateTimeField(null=True)

    was_counted = False  # by the attempt that was begun with this object
    objects = AttemptsQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["kind", "digest"], name="one_count_of_attempts")
        ]

    def __str__(self) -> str:
        return f"{self.failures} failed attempts of one {self.kind}"


class JobState(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


ACTIVE_STATES = (JobState.QUEUED, JobState.RUNNING)
TERMINAL_STATES = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
HEARTBEAT_STALE_AFTER = timedelta(seconds=30)
ATTEMPTS = 3
FIRST_RESEND, LAST_RESEND = timedelta(seconds=20), timedelta(minutes=10)


def one_active(of: str, name: str) -> models.UniqueConstraint:
    """At most one active job for each value of the field `of`."""
    return models.UniqueConstraint(fields=[of], condition=Q(state__in=ACTIVE_STATES), name=name)


class JobQuerySet(models.QuerySet["Job"]):
    def active(self) -> Self:
        return self.filter(state__in=ACTIVE_STATES)

    def stale(self) -> Self:
        """Running jobs whose worker has not been heard of for too long, by the database's clock as
        all heartbeats are.
        """
        return self.filter(state=JobState.RUNNING, heartbeat_at__lt=Now() - HEARTBEAT_STALE_AFTER)

    def unsent(self) -> Self:
        """Queued jobs whose message was probably lost."""
        return self.filter(state=JobState.QUEUED, resend_at__lt=Now())

    def held_by(self, job: Job) -> Self:
        """The row, if this attempt still owns it: every write of a runner goes through here."""
        return self.filter(pk=job.pk, state=JobState.RUNNING, attempt=job.attempt)


class Job(models.Model):
    """A long computation: a row that is claimed, processed by a worker, and ended, whatever crashes
    meanwhile.

    Transitions are conditional UPDATEs; each returns True only for the one caller that made it. All
    times except `created_at` are the database's: workers on several machines compare them. What a
    job does is defined by its kind (`kinds`). `last_seq` is the number of the last event stored for
    the current attempt: an event is stored once.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="%(class)ss")
    name = models.CharField(max_length=200)
    state = models.CharField(max_length=10, choices=JobState, default=JobState.QUEUED)
    spec = models.JSONField(
        default=dict, help_text="Frozen at submission: ids, hashes and settings"
    )
    cursor = models.JSONField(
        default=dict, help_text="Where the next step of a job in steps begins"
    )
    result = models.JSONField(default=dict)
    error = models.TextField(blank=True)
    attempt = models.PositiveIntegerField(default=0)
    max_attempts = models.PositiveIntegerField(default=ATTEMPTS)
    last_seq = models.PositiveBigIntegerField(default=0)
    done = models.PositiveIntegerField(default=0)
    total = models.PositiveIntegerField(default=0)
    label = models.CharField(max_length=200, blank=True)
    worker = models.CharField(max_length=120, blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    sends = models.PositiveSmallIntegerField(
        default=0, help_text="Messages sent since it was queued"
    )
    resend_at = models.DateTimeField(db_default=Now(), help_text="When its message counts as lost")
    started_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    objects = JobQuerySet.as_manager()

    class Meta:
        abstract = True
        ordering = ("-created_at",)
        constraints = [
            models.CheckConstraint(
                name="%(class)s_finished_iff_terminal",
                condition=Q(state__in=TERMINAL_STATES, finished_at__isnull=False)
                | Q(state__in=ACTIVE_STATES, finished_at__isnull=True),
            )
        ]
        indexes = [models.Index(fields=["state", "heartbeat_at"], name="%(class)s_by_state")]

    def __str__(self) -> str:
        return self.name

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE_STATES

    @property
    def percent(self) -> int:
        return (
            100
            if self.state == JobState.SUCCEEDED
            else int(100 * self.done / self.total)
            if self.total
            else 0
        )

    @property
    def seconds(self) -> float | None:
        """Wall time of the run so far, queueing excluded."""
        if self.started_at is None:
            return None
        return ((self.finished_at or timezone.now()) - self.started_at).total_seconds()

    def claim(self, worker: str) -> bool:
        claimed = (
            type(self)
            .objects.filter(pk=self.pk, state=JobState.QUEUED)
            .update(
                state=JobState.RUNNING,
                worker=worker,
                attempt=F("attempt") + 1,
                last_seq=0,
                error="",
                started_at=Now(),
                heartbeat_at=Now(),
            )
        )
        if claimed:
            self.refresh_from_db()
        return bool(claimed)

    def beat(self) -> bool:
        """False when this attempt no longer owns the job."""
        return bool(type(self).objects.held_by(self).update(heartbeat_at=Now()))

    def note_send(self) -> bool:
        """Before a message is sent: True for one of those that would send it now. Each wait is
        twice the last one.
        """
        wait = min(FIRST_RESEND * 2 ** min(self.sends, 16), LAST_RESEND)
        same = type(self).objects.filter(pk=self.pk, state=JobState.QUEUED, sends=self.sends)
        return bool(same.update(sends=F("sends") + 1, resend_at=Now() + wait))

    def finish(self, state: JobState, *, error: str = "", result: dict | None = None) -> bool:
        fields: dict[str, Any] = {"state": state, "error": error, "finished_at": Now()}
        if result is not None:
            fields["result"] = result
        return bool(type(self).objects.held_by(self).update(**fields))

    def requeue(self, among: models.QuerySet[Any], due_in: timedelta = timedelta()) -> bool:
        """`among`: what must still be true of the row. `due_in`: when its message is sent."""
        fields = {
            "state": JobState.QUEUED,
            "heartbeat_at": None,
            "worker": "",
            "sends": 0,
            "resend_at": Now() + due_in,
        }
        return bool(
            among.filter(pk=self.pk, state=JobState.RUNNING, attempt=self.attempt).update(**fields)
        )

    @property
    def audit_detail(self) -> dict[str, Any]:
        """What the audit log keeps of its submission besides the name."""
        return {}

    def restart(self, among: models.QuerySet[Any], **changes: Any) -> bool:
        """Queues an ended job again, with as many attempts as a new one has. What it stored stays,
        unless `changes` say.

        `among`: what must be true of the row.
        """
        fresh: dict[str, Any] = {
            "state": JobState.QUEUED,
            "max_attempts": F("attempt") + ATTEMPTS,
            "error": "",
        }
        fresh |= {
            "finished_at": None,
            "cancel_requested_at": None,
            "heartbeat_at": None,
            "worker": "",
        }
        fresh |= {"sends": 0, "resend_at": Now()} | changes
        return bool(among.filter(pk=self.pk, state__in=TERMINAL_STATES).update(**fresh))

    def request_cancel(self) -> bool:
        """Cancels a queued job at once; asks a running one to stop. False if it has finished."""
        rows = type(self).objects.filter(pk=self.pk)
        if rows.filter(state=JobState.QUEUED).update(
            state=JobState.CANCELLED, cancel_requested_at=Now(), finished_at=Now()
        ):
            return True
        return bool(rows.filter(state=JobState.RUNNING).update(cancel_requested_at=Now()))


class ProjectDeletion(Job):
    """Removes a project (`deletion`). Stays, as its project's row does."""


class JobLog(models.Model):
    """One line a job's child logged. `job` is the id of any concrete job."""

    job = models.UUIDField(db_index=True)
    attempt = models.PositiveIntegerField()
    seq = models.PositiveBigIntegerField()
    level = models.CharField(max_length=10, default="info")
    message = models.TextField()
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("id",)
        constraints = [
            models.UniqueConstraint(fields=["job", "attempt", "seq"], name="one_log_line_per_seq")
        ]

    def __str__(self) -> str:
        return self.message


WORKER_SILENT_AFTER = timedelta(seconds=20)


class WorkerQuerySet(models.QuerySet["Worker"]):
    def silent(self) -> Self:
        return self.filter(beat_at__lt=Now() - WORKER_SILENT_AFTER)


class Worker(models.Model):
    """A process that takes tasks of a queue, for as long as it runs: it says every few seconds that
    it does. One that stops in order removes its row. `name` is that of Celery.
    """

    name = models.CharField(max_length=160, unique=True)
    queue = models.CharField(max_length=40)
    host = models.CharField(max_length=120)
    pid = models.PositiveIntegerField()
    version = models.CharField(max_length=40, blank=True)
    at_once = models.PositiveSmallIntegerField(default=1)
    memory_mb = models.PositiveIntegerField(default=0)
    skew_s = models.FloatField(default=0, help_text="Its machine's clock minus the database's")
    has = models.JSONField(
        default=dict, help_text="{gpus, memory_mb, things} of its machine (`placing`)"
    )
    drained_at = models.DateTimeField(null=True, help_text="Since when it should take nothing more")
    started_at = models.DateTimeField(db_default=Now())
    beat_at = models.DateTimeField(db_default=Now())

    objects = WorkerQuerySet.as_manager()

    class Meta:
        ordering = ("host", "queue", "name")

    def __str__(self) -> str:
        return self.name

    @property
    def of_jobs(self) -> str:
        """How a job names it (`Job.worker`)."""
        return f"{self.host}:{self.pid}"


class KeptFile(models.Model):
    """A file that a process leaves for others, on whatever machine (`kept`). Its bytes are in the
    store under their SHA-256. `folder` says whose it is: uploads/ID, jobs/KIND/ID.
    """

    folder = models.CharField(max_length=200)
    path = models.CharField(max_length=400, help_text="Within the folder")
    size = models.PositiveBigIntegerField()
    sha256 = models.CharField(max_length=64, db_index=True)
    kept_at = models.DateTimeField(db_default=Now(), db_index=True)

    class Meta:
        ordering = ("folder", "path")
        constraints = [
            models.UniqueConstraint(fields=["folder", "path"], name="one_kept_file_per_path")
        ]

    def __str__(self) -> str:
        return f"{self.folder}/{self.path}"

    @property
    def stored_as(self) -> str:
        return f"kept/{self.sha256}"


class BackupQuerySet(models.QuerySet["Backup"]):
    def whole(self) -> Self:
        return self.filter(finished_at__isnull=False, problem="")


class Backup(models.Model):
    """A backup that was made, or why it was not (`backups`)."""

    target = models.CharField(max_length=500)
    is_scheduled = models.BooleanField(default=False)
    started_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)
    size = models.PositiveBigIntegerField(default=0)
    lacks = models.PositiveIntegerField(default=0, help_text="Files that were gone")
    problem = models.TextField(blank=True)

    objects = BackupQuerySet.as_manager()

    class Meta:
        ordering = ("-started_at", "-pk")

    def __str__(self) -> str:
        return self.target


class IncidentQuerySet(models.QuerySet["Incident"]):
    def open(self) -> Self:
        return self.filter(ended_at=None)


class Incident(models.Model):
    """A condition (`watching.conditions`) that was found, from when it began to when it was over.

    `alerted_at`: when operators were sent it. `muted_until`: they have read it.
    """

    condition = models.CharField(max_length=40)
    about = models.CharField(max_length=160, blank=True)
    says = models.CharField(max_length=500)
    page = models.CharField(max_length=300, blank=True)
    since = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    alerted_at = models.DateTimeField(null=True)
    muted_until = models.DateTimeField(null=True)

    objects = IncidentQuerySet.as_manager()

    class Meta:
        ordering = ("-since", "pk")
        constraints = [
            models.UniqueConstraint(
                fields=["condition", "about"],
                condition=Q(ended_at=None),
                name="one_open_incident",
            )
        ]
        indexes = [models.Index(fields=["ended_at"], name="incident_by_end")]

    def __str__(self) -> str:
        return f"{self.condition} {self.about}".strip()

    @property
    def key(self) -> tuple[str, str]:
        return self.condition, self.about

    def end(self, now: datetime) -> bool:
        """True for the one caller that ended it."""
        return bool(Incident.objects.open().filter(pk=self.pk).update(ended_at=now))

    def claim_alert(self, now: datetime) -> bool:
        """True for the one caller that sends it."""
        mine = Incident.objects.open().filter(pk=self.pk, alerted_at=None)
        return bool(mine.update(alerted_at=now))
