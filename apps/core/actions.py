"""Actions on projects, members, keys and the audit log, and the first start."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any

from django.apps import apps
from django.contrib.auth import get_user_model
from django.db import models, transaction
from django.db.models import Q
from django.utils import timezone

from apps.core import attempts
from apps.core.actor import actor_name
from apps.core.api import forget
from apps.core.bus import Event, publish
from apps.core.errors import Rejected
from apps.core.locks import Lock, acquire
from apps.core.models import (
    INVITATION_LASTS,
    ApiKey,
    AuditEvent,
    Invitation,
    Membership,
    Project,
    Role,
    key_digest,
    object_name,
)
from apps.core.nouns import noun
from apps.core.scopes import Scope

FIRST_PROJECT = ("my-agent", "My agent")


def audit(
    action: str,
    *,
    project: Project | None,
    by: Any,
    target: models.Model | None = None,
    about: Iterable[models.Model | None] = (),
    actor_label: str = "",
    **detail: Any,
) -> AuditEvent:
    """Adds one line to the audit log. `by` is a user, or None for what Flywheel does by itself or a
    command does.

    It is found under `target`, under the objects that it belongs to (its foreign keys and its
    `audited_with`), and under the objects in `about`. Its sentence is in `auditing.words`.
    """
    found = [
        one for one in (target, *getattr(target, "audited_with", ()), *about) if one is not None
    ]
    names = [object_name(one) for one in found] + (_owners_of(target) if target is not None else [])
    return AuditEvent.objects.create(
        project=project,
        actor=by,
        actor_label=actor_label or actor_name(by),
        action=action,
        target_type=target._meta.label_lower if target is not None else "",
        target_id=str(target.pk) if target is not None else "",
        about=list(dict.fromkeys(names)),
        detail=detail,
    )


def _owners_of(target: models.Model) -> list[str]:
    """A model whose foreign keys reveal too much names those that count in `audited_under`."""
    named = getattr(target, "audited_under", None)
    fields = [
        field
        for field in target._meta.fields
        if field.is_relation and (named is None or field.name in named)
    ]
    links = [(field.related_model, getattr(target, field.attname)) for field in fields]
    return [
        f"{model._meta.label_lower}:{pk}"
        for model, pk in links
        if pk is not None and model not in (Project, get_user_model())
    ]


@transaction.atomic
def unlock_account(*, username: str, project: Project | None, by: Any) -> bool:
    """Lets somebody try to log in again at once. False if there was nothing to unlock."""
    unlocked = attempts.unlock_account(username)
    if unlocked:
        audit("login.unlocked", project=project, by=by, username=username)
    return unlocked


class ProjectCreated(Event):
    project: Project
    by: Any


@transaction.atomic
def create_project(*, slug: str, name: str, by: Any, description: str = "") -> Project:
    project = Project.objects.create(slug=slug, name=name, description=description)
    Membership.objects.create(project=project, user=by, role=Role.OWNER)
    publish(ProjectCreated(project, by))
    audit("project.created", project=project, by=by, target=project)
    return project


@transaction.atomic
def create_api_key(
    *,
    project: Project,
    name: str,
    by: Any,
    secret: str = "",
    scopes: Iterable[str] = Scope.values,
    expires_at: datetime | None = None,
    may_see_holdout: bool = False,
    actor_label: str = "",
) -> tuple[ApiKey, str]:
    """The row and the secret, which is shown once and cannot be read again."""
    secret = secret or ApiKey.new_secret()
    key = ApiKey.objects.create(
        project=project,
        name=name,
        prefix=secret[:8],
        digest=key_digest(secret),
        created_by=by,
        scopes=[scope for scope in Scope.values if scope in scopes],
        expires_at=expires_at,
        may_see_holdout=may_see_holdout,
    )
    audit(
        "api_key.created",
        project=project,
        by=by,
        actor_label=actor_label,
        target=key,
        name=name,
        scopes=key.scopes,
        expires_at=expires_at.isoformat() if expires_at else None,
        may_see_holdout=may_see_holdout,
    )
    return key, secret


class KeyRejected(Rejected):
    """The key was revoked, replaced, or has expired meanwhile."""


@transaction.atomic
def rotate_api_key(
    *, key: ApiKey, by: Any, grace: timedelta, expires_at: datetime | None, actor_label: str = ""
) -> tuple[ApiKey, str]:
    """A new key in the place of this one, with its name, scopes and right to hold-outs, and the
    secret, shown once.

    The old one works for `grace` longer, never past its own expiry; without any it is revoked.
    Raises KeyRejected.
    """
    old = ApiKey.objects.select_for_update(of=("self",)).select_related("project").get(pk=key.pk)
    if old.revoked_at or old.is_expired or old.replaced_by_id:
        why = "has been rotated already" if old.replaced_by_id else "no longer works"
        raise KeyRejected(f"The key {old} {why}. Rotate the newest one, or create another.")
    new, secret = create_api_key(
        project=old.project,
        name=old.name,
        by=by,
        scopes=old.scopes,
        expires_at=expires_at,
        may_see_holdout=old.may_see_holdout,
        actor_label=actor_label,
    )
    now = timezone.now()
    old.replaced_by = new
    if grace:
        old.expires_at = min(filter(None, (old.expires_at, now + grace)))
    else:
        old.revoked_at = now
    old.save(update_fields=["replaced_by", "expires_at", "revoked_at"])
    forget(old)
    audit(
        "api_key.rotated",
        project=old.project,
        by=by,
        target=old,
        about=[new],
        actor_label=actor_label,
        name=old.name,
        until=old.expires_at.isoformat(timespec="minutes") if grace and old.expires_at else None,
    )
    return new, secret


@transaction.atomic
def revoke_api_key(*, key: ApiKey, by: Any, actor_label: str = "") -> bool:
    revoked = key.revoke()
    forget(key)
    if revoked:
        audit(
            "api_key.revoked",
            project=key.project,
            by=by,
            target=key,
            name=key.name,
            actor_label=actor_label,
        )
    return revoked


class InvitationAccepted(Event):
    invitation: Invitation
    by: Any


class MemberChanged(Event):
    """Somebody joined, has another role, or was removed (`role` is None)."""

    project: Project
    user: Any
    role: Role | None
    by: Any


class InvitationError(Exception):
    """The invitation was accepted or revoked meanwhile, or has expired."""


class NameTaken(Exception):
    """Somebody else chose this username meanwhile."""


@transaction.atomic
def invite(*, project: Project, email: str, role: Role, by: Any) -> tuple[Invitation, str]:
    """The row and the token of its link, which cannot be read again. An open invitation of the same
    address is replaced.

    Raises InvitationError if `by` is an owner no more.
    """
    if by.pk not in _locked_owners(project):
        raise InvitationError(f"Only owners of {project} invite.")
    project.invitations.open().filter(email=email).update(revoked_at=timezone.now())
    token = secrets.token_urlsafe(32)
    invitation = Invitation.objects.create(
        project=project,
        email=email,
        role=role,
        digest=key_digest(token),
        created_by=by,
        expires_at=timezone.now() + INVITATION_LASTS,
    )
    audit("invitation.created", project=project, by=by, target=invitation, email=email, role=role)
    return invitation, token


@transaction.atomic
def revoke_invitation(*, invitation: Invitation, by: Any) -> bool:
    """False if it was not open any more."""
    revoked = Invitation.objects.open().filter(pk=invitation.pk).update(revoked_at=timezone.now())
    if revoked:
        audit(
            "invitation.revoked",
            project=invitation.project,
            by=by,
            target=invitation,
            email=invitation.email,
        )
    return bool(revoked)


@transaction.atomic
def accept_invitation(*, invitation: Invitation, by: Any) -> Membership:
    """Makes `by` a member; who is one already keeps the higher role. Raises InvitationError."""
    if (
        not Invitation.objects.open()
        .filter(pk=invitation.pk)
        .update(accepted_at=timezone.now(), accepted_by=by)
    ):
        raise InvitationError("This invitation was used or revoked, or has expired.")
    was = role_of(invitation.project, by)
    found, _ = Membership.objects.get_or_create(
        project=invitation.project, user=by, defaults={"role": invitation.role}
    )
    if not found.may(Role(invitation.role)):
        found.role = invitation.role
        found.save(update_fields=["role"])
    _forget_keys(invitation.project, by)
    audit(
        "invitation.accepted",
        project=invitation.project,
        by=by,
        target=invitation,
        email=invitation.email,
        role=found.role,
        invited_by=invitation.created_by.get_username() if invitation.created_by else None,
        was=was,
    )
    publish(MemberChanged(invitation.project, user=by, role=Role(found.role), by=by))
    publish(InvitationAccepted(invitation, by))
    return found


@transaction.atomic
def join(*, invitation: Invitation, username: str, name: str, password: str) -> Any:
    """A new account that is a member of the invitation's project. Raises InvitationError, and
    NameTaken.

    An address that another account uses is not taken over: one logs in with it, too. Nor is a name
    in other letters: people log in by either.
    """
    users = get_user_model().objects
    acquire(Lock.USER_NAMES)
    if users.filter(username__iexact=username).exists():
        raise NameTaken
    email = "" if users.filter(email__iexact=invitation.email).exists() else invitation.email
    user = users.create_user(username, email, password, first_name=name)
    accept_invitation(invitation=invitation, by=user)
    return user


def role_of(project: Project, user: Any) -> str | None:
    """The role that somebody has in a project; None for a stranger."""
    return project.memberships.filter(user=user).values_list("role", flat=True).first()


class MembershipError(Exception):
    """A change that would leave a project without an owner."""


@transaction.atomic
def set_member(*, project: Project, user: Any, role: Role, by: Any) -> Membership:
    """Adds a member or changes the role. Raises MembershipError for the last owner."""
    if role != Role.OWNER:
        _require_other_owner(project, user)
        _revoke_invitations(project, user)
    was = role_of(project, user)
    membership, _ = Membership.objects.update_or_create(
        project=project, user=user, defaults={"role": role}
    )
    _forget_keys(project, user)
    audit(
        "member.set",
        project=project,
        by=by,
        target=membership,
        user=user.get_username(),
        role=role,
        was=was,
    )
    publish(MemberChanged(project, user, Role(role), by))
    return membership


@transaction.atomic
def remove_member(*, membership: Membership, by: Any) -> None:
    """Raises MembershipError for the last owner."""
    _require_other_owner(membership.project, membership.user)
    audit(
        "member.removed",
        project=membership.project,
        by=by,
        target=membership,
        user=membership.user.get_username(),
        was=membership.role,
    )
    membership.delete()
    _revoke_invitations(membership.project, membership.user)
    _forget_keys(membership.project, membership.user)
    publish(MemberChanged(membership.project, membership.user, role=None, by=by))


def work_of(project: Project, user: Any) -> list[tuple[str, int]]:
    """What somebody leaves in a project: (kind, how many), of every table that names people but
    their notifications.
    """
    found = []
    for model in apps.get_models():
        if model._meta.app_label == "notifications":
            continue
        names = [
            field.name for field in model._meta.fields if field.related_model is get_user_model()
        ]
        if (
            model is Membership
            or not names
            or not any(field.name == "project" for field in model._meta.fields)
        ):
            continue
        rows = model._default_manager.filter(project=project)
        if n := rows.filter(reduce(or_, (Q(**{name: user}) for name in names))).count():
            found.append((noun(model, n), n))
    return sorted(found, key=lambda row: -row[1])


def _revoke_invitations(project: Project, by: Any) -> None:
    """Revokes the invitations of somebody who may no longer invite."""
    project.invitations.open().filter(created_by=by).update(revoked_at=timezone.now())


def _forget_keys(project: Project, user: Any) -> None:
    """What the user's keys may do follows from their role."""
    for key in project.api_keys.filter(created_by=user):
        forget(key)


def _require_other_owner(project: Project, user: Any) -> None:
    if _locked_owners(project) == {user.pk}:
        raise MembershipError(
            f"{user} is the only owner of {project}. Make someone else an owner first."
        )


def _locked_owners(project: Project) -> set[int]:
    """The users' ids; their roles are locked until the transaction ends, so that owners' actions
    are serialised.
    """
    owners = project.memberships.select_for_update().filter(role=Role.OWNER).order_by("pk")
    return {membership.user_id for membership in owners}


@dataclass(frozen=True)
class FirstStart:
    """What a first start made. The secrets are empty if the environment chose them: they are not to
    be printed.
    """

    username: str
    project: str
    password: str
    api_key: str


@transaction.atomic
def bootstrap() -> FirstStart | None:
    """On the first start: an admin, a project, an API key. None later on.

    `FLYWHEEL_ADMIN_PASSWORD` and `FLYWHEEL_API_KEY` choose the two secrets for unattended installs.
    """
    users = get_user_model().objects
    if users.exists():
        return None
    chosen_password, chosen_key = (
        os.environ.get(f"FLYWHEEL_{name}", "") for name in ("ADMIN_PASSWORD", "API_KEY")
    )
    password = chosen_password or secrets.token_urlsafe(9)
    admin = users.create_superuser("admin", password=password)
    slug, name = FIRST_PROJECT
    project = create_project(slug=slug, name=name, by=admin)
    _, key = create_api_key(project=project, name="first key", by=admin, secret=chosen_key)
    return FirstStart(
        admin.username, project.slug, "" if chosen_password else password, "" if chosen_key else key
    )
