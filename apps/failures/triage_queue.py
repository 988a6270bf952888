"""The order in which cases are looked at, and the filters that people narrow it by. Reads only, each by an index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from apps.core.http import uuid_of
from apps.core.models import Project
from apps.failures.models import Failure, FailureMode, FailureQuerySet, Severity

FILTERS = ("mode", "cluster", "version", "safety", "mine", "confidence")
CONFIDENCES = ("certain", "likely", "hint")
SEVERE_FIRST = (Severity.HIGH, Severity.MEDIUM, Severity.LOW)
COUNTED = 1_000

Rank = tuple[bool, int]


def rank_of(mode: FailureMode) -> Rank:
    """Safety-relevant first, then the severe."""
    return not mode.safety_relevant, SEVERE_FIRST.index(Severity(mode.severity))


@dataclass(frozen=True)
class QueuePosition:
    """Where a case stands in the order: by the rank of its mode, then the newest first."""

    rank: Rank
    trajectory: UUID

    @classmethod
    def of(cls, failure: Failure) -> QueuePosition:
        return cls(rank_of(failure.mode), failure.trajectory_id)


def narrowed(rows: FailureQuerySet, given: Mapping[str, str], user: Any) -> FailureQuerySet:
    """The rows that the URL's filters ask for; a filter that means nothing finds nothing."""
    if mode := given.get("mode"):
        rows = rows.filter(mode__slug=mode)
    if given.get("safety"):
        rows = rows.filter(mode__safety_relevant=True)
    return _narrowed(rows, given, user)


def _narrowed(rows: FailureQuerySet, given: Mapping[str, str], user: Any) -> FailureQuerySet:
    if cluster := given.get("cluster"):
        pk = uuid_of(cluster)
        rows = rows.filter(cluster_id=pk) if pk else rows.none()
    if version := given.get("version"):
        rows = rows.filter(agent_version=version.replace("\x00", ""))
    if given.get("mine"):
        rows = rows.filter(assigned_to=user)
    if confidence := given.get("confidence"):
        rows = rows.filter(evidence__0__confidence=confidence.replace("\x00", ""))
    return rows


class TriageQueue:
    """The open cases of a project that a person's filters leave."""

    def __init__(self, project: Project, user: Any, given: Mapping[str, str]) -> None:
        self.project, self.user = project, user
        self.given = {name: given[name][:200] for name in FILTERS if given.get(name)}

    @property
    def query(self) -> str:
        """The filters as they stand in the URL."""
        return urlencode(self.given)

    @cached_property
    def all_modes(self) -> list[FailureMode]:
        return list(self.project.failure_modes.all())

    @cached_property
    def modes(self) -> list[FailureMode]:
        wanted, safety = self.given.get("mode"), "safety" in self.given
        return [
            mode
            for mode in self.all_modes
            if wanted in (None, mode.slug) and (mode.safety_relevant or not safety)
        ]  # fmt: skip

    def rows(self) -> FailureQuerySet:
        rows = Failure.objects.filter(project=self.project).waiting()
        return _narrowed(rows, self.given, self.user)

    def count(self) -> str:
        """How many are open, whoever has them: exact up to COUNTED."""
        n = self.rows().filter(mode__in=self.modes).order_by()[: COUNTED + 1].count()
        return f"{min(n, COUNTED):,}{'+' * (n > COUNTED)}"

    def next(self, after: QueuePosition | None = None, skip: int | None = None) -> int | None:
        """The first free case after a place, round to the top; None where none is free."""
        for rank, modes in self._ranks():
            if after is None or rank >= after.rank:
                below = after.trajectory if after and rank == after.rank else None
                if found := self._nearest(modes, skip, below=below):
                    return found
        return self.next(None, skip) if after else None

    def previous(self, before: QueuePosition, skip: int | None = None) -> int | None:
        """The last free case before a place; None where there is none."""
        for rank, modes in reversed(self._ranks()):
            if rank <= before.rank:
                above = before.trajectory if rank == before.rank else UUID(int=0)
                if found := self._nearest(modes, skip, above=above):
                    return found
        return None

    def _ranks(self) -> list[tuple[Rank, list[FailureMode]]]:
        return [(rank, list(modes)) for rank, modes in groupby(sorted(self.modes, key=rank_of), rank_of)]

    def _nearest(
        self, modes: list[FailureMode], skip: int | None, *, below: UUID | None = None, above: UUID | None = None
    ) -> int | None:
        """The newest of these modes (`below` a trajectory), or the oldest `above` one: one index probe a mode."""
        rows = self.rows().free_for(self.user)
        if skip is not None:
            rows = rows.exclude(pk=skip)
        if below is not None:
            rows = rows.filter(trajectory_id__lt=below)
        if above is not None:
            rows = rows.filter(trajectory_id__gt=above)
        order = "-trajectory_id" if above is None else "trajectory_id"
        parts = [
            rows.filter(mode=mode).order_by(order).values_list("trajectory_id", "pk")[:1] for mode in modes
        ]  # fmt: skip
        found = list(parts[0].union(*parts[1:], all=True) if len(parts) > 1 else parts[0])
        return (max if above is None else min)(found)[1] if found else None
