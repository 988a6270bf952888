"""Who shares the work of a review: projects of one person, and who brought whom into a project."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from apps.core.models import AuditEvent, Membership, Role

ABLE = Role.REVIEWER.upward
STARTERS = Role.ENGINEER.upward
COUNTS_FOR = timedelta(
    days=30
)  # how long somebody who has left still counts, and somebody who was added is named


@dataclass(frozen=True)
class Departure:
    """Somebody who could judge until recently: removed from the project, or made a viewer."""

    name: str
    at: datetime

    @property
    def counts_until(self) -> datetime:
        return self.at + COUNTS_FOR


@dataclass(frozen=True)
class Company:
    """The active people of a project who may judge, {user's id: name}; those of them who may start
    training; and whoever left last.
    """

    able: dict[int, str]
    starters: dict[int, str]
    left: Departure | None = None

    @property
    def alone(self) -> bool:
        """One person does everything. Removing a colleague does not make it so at once: they count
        for COUNTS_FOR.
        """
        return len(self.able) <= 1 and self.left is None

    @property
    def lone(self) -> bool:
        """Nobody else is there, although a recent departure may still count."""
        return len(self.able) <= 1


def companies_of(projects: Iterable[int]) -> dict[int, Company]:
    """{project: its people}, in two queries."""
    wanted = set(projects)
    able: dict[int, dict[int, str]] = defaultdict(dict)
    starters: dict[int, dict[int, str]] = defaultdict(dict)
    members = Membership.objects.filter(project__in=wanted, role__in=ABLE, user__is_active=True)
    for member in members.select_related("user").order_by("pk"):
        able[member.project_id][member.user_id] = member.user.get_username()
        if member.role in STARTERS:
            starters[member.project_id][member.user_id] = member.user.get_username()
    left = {
        pk: found
        for pk in wanted
        if len(able[pk]) <= 1 and (found := _left(pk, set(able[pk].values())))
    }
    return {pk: Company(able[pk], starters[pk], left.get(pk)) for pk in wanted}


def _left(project: int, present: set[str]) -> Departure | None:
    """The last one who left within COUNTS_FOR, by the audit log, which nobody can change."""
    events = AuditEvent.objects.filter(
        project=project,
        action__in=("member.removed", "member.set"),
        at__gt=timezone.now() - COUNTS_FOR,
        detail__was__in=ABLE,
    )
    return next(
        (
            Departure(event.detail["user"], event.at)
            for event in events.order_by("-at", "-pk")
            if event.detail.get("role") not in ABLE and event.detail["user"] not in present
        ),
        None,
    )


def added_by(project: int, people: Iterable[str]) -> list[str]:
    """Sentences: who of these people was added by another of them within COUNTS_FOR. One person
    with two accounts leaves this trace.
    """
    names = set(people)
    events = AuditEvent.objects.filter(
        project=project,
        action__in=("member.set", "invitation.accepted"),
        at__gt=timezone.now() - COUNTS_FOR,
    )
    found = {}
    for event in events.order_by("at", "pk"):
        who, by = event.detail.get("user"), event.actor_label
        if event.action == "invitation.accepted":
            who, by = event.actor_label, event.detail.get("invited_by")
        if who in names and by in names and who != by and event.detail.get("was") not in ABLE:
            found[who] = f"{who} was added to the project by {by} on {event.at:%-d %B %Y}."
    return list(found.values())
