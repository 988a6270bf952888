"""Objects that people rename, archive and delete on one page, and what is in the way.

Apps register their kinds next to the rules about them, which answer the questions below. What
depends on an object is read from the models: a `PROTECT` key to it is in the way of deleting it, a
`CASCADE` one goes with it (or is in the way, if its model `is_evidence`), a `SET_NULL` one stays
without it. What lineage needs is protected, so it is archived instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Generic, NamedTuple, TypeVar

from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, models, transaction
from django.db.models import Q
from django.http import Http404
from django.utils import timezone

from apps.core import job_files
from apps.core.access import get_membership
from apps.core.actions import audit
from apps.core.auditing.words import page_of
from apps.core.bus import Event, Question, ask, first, publish
from apps.core.errors import Rejected
from apps.core.models import ACTIVE_STATES, ApiKey, Job, JobLog, Project, Role
from apps.core.nouns import lists, noun, title_of
from apps.core.projects.deletion import Deleting

M = TypeVar("M", bound=models.Model)
SHOWN = 5


class ManagedError(Rejected):
    """Something that may not be done to the object; `field` names a form's field."""


class Dependent(NamedTuple):
    """How many rows of what depend on an object, and (text, address) of some."""

    n: int
    what: str
    links: list[tuple[str, str]]


class _OfRow(Event, Generic[M]):
    row: M

    @property
    def about(self) -> type[M]:
        return type(self.row)


class WhyNotDelete(_OfRow[M], Question[str]):
    """Why it may not be deleted, as a sentence."""


class WhyNotArchive(_OfRow[M], Question[str]):
    """Why it may not be archived, as a sentence."""


class WhyNotRename(_OfRow[M], Question[str]):
    """Why it may not be renamed, as a sentence."""


class ArchivingOrDeleting(_OfRow[M]):
    """Listeners raise PermissionDenied where the object does not let an API key do that."""

    key: ApiKey | None


class Archived(_OfRow[M], kw_only=True):
    """It was archived or brought `back`, in this transaction, in which its row is locked."""

    back: bool
    by: Any
    key: ApiKey | None


@dataclass(frozen=True, kw_only=True)
class Managed:
    """`name` is the field that is renamed, on all rows of the project that share it where it is
    `versioned`. `archivers` is the role that archives it, and `archived_text`, `unarchived_text`
    say what that does."""

    kind: str
    noun: str  # with its article
    plural: str
    model: type[models.Model]
    name: str
    versioned: bool
    warning: str = ""
    archivers: Role = Role.ENGINEER
    archived_text: str = (
        "Hides it from lists and menus. Its page, its results and everything that refers to it"
        " stay, and you can unarchive it."
    )
    archive_confirm: str = ""  # asked before it is archived
    unarchived_text: str = "Shows it in lists and menus again."

    @property
    def listing(self) -> str:
        return lists()[self.model._meta.label_lower]


KINDS: dict[str, Managed] = {}


def register(managed: Managed) -> None:
    KINDS[managed.kind] = managed


def find(project: Project, kind: str, pk: str) -> tuple[Managed, Any]:
    """Raises Http404, for what is another project's, too."""
    managed = KINDS.get(kind)
    try:
        row = managed and managed.model._default_manager.filter(project=project, pk=pk).first()
    except (ValueError, ValidationError) as error:
        raise Http404 from error
    if managed is None or row is None:
        raise Http404
    return managed, row


@dataclass(frozen=True)
class Dependents:
    in_way: list[Dependent]
    goes: list[Dependent]
    stays: list[Dependent]
    active: list[tuple[str, str]]  # jobs under way
    sentence: str  # why it may not be deleted, besides

    @property
    def may_be_deleted(self) -> bool:
        return not (self.in_way or self.active or self.sentence)


def dependents(row: Any) -> Dependents:
    in_way, goes, stays, active = [], [], [], []
    slug = row.project.slug
    if isinstance(row, Job) and row.is_active:
        active.append((title_of(row), page_of(row._meta.label_lower, str(row.pk), slug)))
    for (model, what), keys in _relations(row).items():
        rows = model._base_manager.filter(reduce(or_, (Q(**{key: row}) for key in keys)))
        n = rows.count()
        if not n:
            continue
        meta = model._meta
        links = [(str(one), page_of(meta.label_lower, str(one.pk), slug)) for one in rows[:SHOWN]]
        found = Dependent(n, noun(model, n), [link for link in links if link[1]])
        if issubclass(model, Job):
            running = rows.filter(state__in=ACTIVE_STATES)
            active += [
                (title_of(job), page_of(meta.label_lower, str(job.pk), slug)) for job in running
            ]
        if what is models.PROTECT or getattr(model, "is_evidence", False):
            in_way.append(found)
        elif what is models.SET_NULL:
            stays.append(found)
        else:
            goes.append(found)
    return Dependents(in_way, goes, stays, active, first(WhyNotDelete(row)) or "")


def instead_of_deletion(row: Any) -> str:
    """What to do with something that cannot be deleted; "" if it is archived or cannot be."""
    return "" if row.archived_at or first(WhyNotArchive(row)) else "Archive it instead."


def _relations(row: models.Model) -> dict[tuple[type[models.Model], Any], list[str]]:
    """{(model, what happens to its rows): its keys} of the foreign keys to an object, those without
    a name on its side, too.
    """
    found: dict[tuple[type[models.Model], Any], list[str]] = {}
    for one in row._meta.get_fields(include_hidden=True):
        if (
            one.auto_created
            and not one.concrete
            and not one.many_to_many
            and not one.related_model._meta.auto_created
        ):
            found.setdefault((one.related_model, one.on_delete), []).append(one.field.name)
    return found


@transaction.atomic
def rename(*, managed: Managed, row: Any, name: str, by: Any, **label: str) -> None:
    """Raises ManagedError."""
    if problem := first(WhyNotRename(row)):
        raise ManagedError(problem, "name")
    rows = managed.model._default_manager.filter(project=row.project)
    column = managed.model._meta.get_field(managed.name)
    try:
        name = column.clean(name.strip(), row)
    except ValidationError as error:
        raise ManagedError(" ".join(error.messages), "name") from error
    before = getattr(row, managed.name)
    if name == before:
        return
    if managed.versioned and rows.filter(**{managed.name: name}).exists():
        raise ManagedError(
            f"There is {managed.noun} “{name}” already. Choose another name.", "name"
        )
    same = rows.filter(**{managed.name: before}) if managed.versioned else rows.filter(pk=row.pk)
    try:
        with transaction.atomic():
            changed = same.update(**{managed.name: name})
    except IntegrityError as error:
        raise ManagedError(
            f"There is {managed.noun} “{name}” already. Choose another name.", "name"
        ) from error
    row.refresh_from_db()
    audit(
        "object.renamed",
        project=row.project,
        by=by,
        target=row,
        noun=managed.noun,
        before=before,
        name=name,
        versions=changed,
        **label,
    )


@transaction.atomic
def archive(
    *,
    managed: Managed,
    row: Any,
    by: Any,
    back: bool = False,
    key: ApiKey | None = None,
    **label: str,
) -> bool:
    """Hides it from lists and choices, or brings it back. False where it was so already. `key`: the
    API key that asks, `by` is then who created it. Raises ManagedError, PermissionDenied."""
    publish(ArchivingOrDeleting(row, key))
    if by is not None:
        get_membership(by, row.project.slug, managed.archivers)
    rows = managed.model._default_manager.filter(pk=row.pk)
    # NO KEY: rows that refer to it can be committed meanwhile; what changes it waits, and finds it
    # archived.
    if not rows.select_for_update(of=("self",), no_key=True).exists():
        raise ManagedError("It is deleted already.")
    if not back and (problem := first(WhyNotArchive(row))):
        raise ManagedError(problem)
    if not rows.filter(archived_at__isnull=not back).update(
        archived_at=None if back else timezone.now()
    ):
        return False
    audit(
        "object.unarchived" if back else "object.archived",
        project=row.project,
        by=by,
        target=row,
        noun=managed.noun,
        name=str(row),
        **label,
    )
    publish(Archived(row, back=back, by=by, key=key))
    return True


@transaction.atomic
def delete(*, managed: Managed, row: Any, by: Any, key: ApiKey | None = None, **label: str) -> None:
    """Raises ManagedError where something is in the way; what came since it was asked, too.
    PermissionDenied as `archive`.
    """
    publish(ArchivingOrDeleting(row, key))
    rows = managed.model._default_manager.filter(pk=row.pk)
    if not rows.select_for_update(of=("self",)).exists():
        raise ManagedError("It is deleted already.")
    found = dependents(row)
    if found.active:
        raise ManagedError(f"“{found.active[0][0]}” is under way. Cancel it first.")
    if not found.may_be_deleted:
        why = found.sentence
        if not why:
            first = found.in_way[0]
            why = f"{first.n:,} {first.what} {'depends' if first.n == 1 else 'depend'} on it."
        raise ManagedError(f"{row} cannot be deleted: {why} {instead_of_deletion(row)}".strip())
    audit(
        "object.deleted",
        project=row.project,
        by=by,
        target=row,
        noun=managed.noun,
        name=str(row),
        goes={one.what: one.n for one in found.goes},
        **label,
    )
    after = ask(Deleting(rows))
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL flywheel.purge = 'on'")
    if isinstance(row, Job):
        JobLog.objects.filter(job=row.pk).delete()
        job_files.remove(type(row), row.pk)
    try:
        rows.get().delete()
    except models.ProtectedError as error:
        why = f"something of it is needed elsewhere. {instead_of_deletion(row)}".strip()
        raise ManagedError(f"{row} cannot be deleted: {why}") from error
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL flywheel.purge = 'off'")
    for then in after:
        then()
