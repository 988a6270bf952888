"""Who may do what: the roles of people, the scopes of API keys, and what a route of the API needs,
which its view declares (`core.routes`, `core.operations`). A view that declares nothing is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from django.db import models
from django.urls import ResolverMatch
from rest_framework.exceptions import MethodNotAllowed, PermissionDenied


class Role(models.TextChoices):
    """From least to most: each may do what those before it may."""

    VIEWER = "viewer", "Viewer"
    REVIEWER = "reviewer", "Reviewer"
    ENGINEER = "engineer", "Engineer"
    OPERATOR = "operator", "Operator"
    OWNER = "owner", "Owner"

    @property
    def rank(self) -> int:
        return list(Role).index(self)

    @property
    def upward(self) -> list[Role]:
        """The roles that include this one."""
        return list(Role)[self.rank :]

    @property
    def about(self) -> str:
        return ABOUT_ROLES[self]


ABOUT_ROLES = {
    Role.VIEWER: "Reads everything in the project except individual held-out tasks",
    Role.REVIEWER: (
        "Triages failures, labels trajectories, judges and rules in reward reviews, confirms tasks"
    ),
    Role.ENGINEER: (
        "Builds eval sets, verifiers, environments and prompts; evaluates, trains, and promotes if"
        " the policy allows it"
    ),
    Role.OPERATOR: "Manages servers, flows, API keys, webhooks, the judge, redaction and retention",
    Role.OWNER: "Manages people and policies; overrides locks and gates, waives probes, deletes",
}


class Scope(models.TextChoices):
    INGEST = "ingest", "Send trajectories, feedback, and OpenTelemetry data"
    GENERATE = (
        "generate",
        "Call the models of channels at the endpoint (/v1/chat/completions, /v1/responses)",
    )
    READ = (
        "read",
        (
            "Read everything in the project: trajectories, eval sets, evaluations, models, gate"
            " reports"
        ),
    )
    EVALUATE = (
        "evaluate",
        (
            "Run evaluations, probes and gate reports and read their results; use environments and"
            " graders"
        ),
    )
    MANAGE = (
        "manage",
        (
            "Change the project: tasks, verifiers, environments, servers, models, policies,"
            " webhooks; comment and assign; promote; delete trajectories"
        ),
    )

    @property
    def about(self) -> str:
        return str(self.label)


INGEST, GENERATE, READ, EVALUATE, MANAGE = Scope
# The creator of a key must still be in its project. Ingesting and generating belong to the project:
# production continues when a person leaves.
ROLE_FOR = {Scope.READ: Role.VIEWER, Scope.EVALUATE: Role.ENGINEER, Scope.MANAGE: Role.ENGINEER}


class Needs(NamedTuple):
    scopes: tuple[Scope, ...]  # any of them is enough
    role: Role | None = None  # of the key's creator, if the scope's role (`ROLE_FOR`) is too low
    archived: bool = False  # also in an archived project

    def __str__(self) -> str:
        role = f", {self.role.label}" if self.role else ""
        return f"{' or '.join(self.scopes)}{role}"


SENT = Needs((INGEST,))
READABLE = Needs((READ,))
RUN = Needs((EVALUATE,))
RESULT = Needs((READ, EVALUATE))  # what a CI job that may read no trajectories needs to see
MANAGED = Needs((MANAGE,))
OPERATED = Needs((MANAGE,), Role.OPERATOR)
OWNED = Needs((MANAGE,), Role.OWNER)


class MissingScope(PermissionDenied):
    """403: the key has none of the scopes that the request needs, or its maker not the role."""


def needs(match: ResolverMatch, method: str) -> Needs:
    """What opens a route. Raises PermissionDenied for a view that declares none,
    MethodNotAllowed.
    """
    methods = getattr(match.func, "needs", None)
    if methods is None:
        raise PermissionDenied(
            f"The route {match.view_name} declares no scope, so no API key may use it."
        )
    if method not in methods:
        raise MethodNotAllowed(method)
    return methods[method]


def require(key: Any, request: Any, method: str = "") -> None:
    """`method`: the one that the view handles, if it handles several. Raises MissingScope, and as
    `needs` does.
    """
    asked = method or request.method
    if asked == "OPTIONS":  # what a route takes is no secret
        return
    wanted, role, archived = needs(request.resolver_match, asked)
    refuse_closed(key.project, asked, archived=archived)
    held = [scope for scope in wanted if scope in key.scopes]
    if not held:
        raise MissingScope(
            f"This needs the scope {in_words(wanted)}, which the API key {key} does not have (it"
            f" has: {', '.join(key.scopes)}). Make a key with it under Settings → API keys."
        )
    if not any(key.may(scope) for scope in held) or (role and not key.maker_is(role)):
        now = f"has only the role “{key.maker_role}” in" if key.maker_role else "is not a member of"
        raise MissingScope(
            f"The API key {key} has the scope {in_words(held)}, but whoever created it {now} this"
            " project now. A key can do what its creator"
            f" can{f', and this needs the role “{role}”' if role else ''}. Make another one under"
            " Settings → API keys."
        )


class ProjectClosed(MissingScope):
    """403: the project is archived and takes nothing, or is being deleted."""


def refuse_closed(project: Any, method: str, *, archived: bool = False) -> None:
    """Raises ProjectClosed. An archived project can be read; `archived`: and asked this, too."""
    if project.stage in ("deleting", "deleted"):
        raise ProjectClosed(
            f"The project {project} is being deleted. It takes and answers nothing."
        )
    if project.stage == "archived" and method not in ("GET", "HEAD") and not archived:
        raise ProjectClosed(
            f"The project {project} is archived and takes nothing. An owner can bring it back under"
            " Settings → Project."
        )


def in_words(wanted: Iterable[Scope]) -> str:
    return " or ".join(f"“{scope.value}”" for scope in wanted)
