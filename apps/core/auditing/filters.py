"""The filters of the audit log: the same in the address of the page, of the file and of the API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from operator import or_

from django.apps import apps
from django.db.models import Q

from apps.core.auditing.words import SECTIONS, Section
from apps.core.models import AuditEvent, AuditQuerySet, Project, Role
from apps.core.query import Query, QueryError


def _of(section: Section) -> Q:
    prefixes = {action.partition(".")[0] for action in section.sentences}
    return reduce(or_, (Q(action__startswith=f"{prefix}.") for prefix in sorted(prefixes)))


def _ending(word: str) -> Q:
    return Q(action__endswith=f".{word}")


# kind: (label, what it is). The first ones are tabs of the page, and cut across the others.
KINDS: dict[str, tuple[str, Q]] = {
    "promotions": (
        "Promotions",
        Q(action__in=["channel.promote", "channel.rollback", "channel.initial"]),
    ),
    "overrides": (
        "Overrides",
        Q(action__in=["review.lock_overridden", "probes.waived"])
        | Q(action="channel.promote", detail__overridden=True),
    ),
    "holdout": (
        SECTIONS["holdout"].label,
        _of(SECTIONS["holdout"]) | Q(action="review.held_out_exported"),
    ),
    "deletions": (
        "Deletions",
        (_ending("deleted") | _ending("removed") | _ending("discarded"))
        & ~Q(action="member.removed")
        | Q(action="retention.enforced"),
    ),
}
KINDS |= {
    name: (section.label, _of(section)) for name, section in SECTIONS.items() if name not in KINDS
}
TABS = 4
OBJECT = re.compile(r"[a-z_]+\.[a-z_]+:[\w.-]{1,64}", re.ASCII)

QUERY: Query = {
    "who": None,
    "kind": list(KINDS),
    "action": None,
    "since": date,
    "until": date,
    "object": None,
}


@dataclass(frozen=True)
class Filters:
    who: str = ""
    kind: str = ""
    action: str = ""
    since: date | None = None
    until: date | None = None
    object: str = ""

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Filters:
        """Of a query whose values have been checked. Raises QueryError for what is no object."""
        target = query.get("object", "")
        if target and not OBJECT.fullmatch(target):
            raise QueryError("object", "must be a type and an id, such as evals.evalset:0d3f0c52-…")
        days = {name: _day(query.get(name)) for name in ("since", "until")}
        texts = {name: query.get(name, "").strip() for name in ("who", "kind", "action")}
        return cls(object=target, **texts, **days)

    def of(self, project: Project, role: Role) -> AuditQuerySet:
        """The events of a project that a member of this role may read."""
        rows = AuditEvent.objects.filter(project=project).readable_as(role)
        if self.who:
            rows = rows.filter(actor_label=self.who)
        if self.kind:
            rows = rows.filter(KINDS[self.kind][1])
        if self.action:
            rows = rows.filter(action=self.action)
        if self.object:
            rows = rows.filter(about__contains=[self.object])
        if self.since:
            rows = rows.filter(at__gte=_midnight(self.since))
        if self.until and self.until < date.max:
            rows = rows.filter(at__lt=_midnight(self.until + timedelta(days=1)))
        return rows

    @property
    def are_set(self) -> bool:
        return self != Filters()


def _day(text: str | None) -> date | None:
    return date.fromisoformat(text) if text else None


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def gone(events: list[AuditEvent]) -> set[str]:
    """The targets of these events that are not there any more, as `object_name` names them: one
    query a type.
    """
    wanted: dict[str, set[str]] = {}
    for event in events:
        if event.target_id:
            wanted.setdefault(event.target_type, set()).add(event.target_id)
    missing = set()
    for kind, pks in wanted.items():
        try:
            rows = (
                apps.get_model(kind)
                ._default_manager.filter(pk__in=pks)
                .values_list("pk", flat=True)
            )
            pks = pks - {str(pk) for pk in rows}
        except (LookupError, ValueError):  # a model that is no more, or an id of another form
            pass
        missing |= {f"{kind}:{pk}" for pk in pks}
    return missing
