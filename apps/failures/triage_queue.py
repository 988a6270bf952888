"""The order of cases in triage, and the filters on it. Reads only: each query uses an index, or the
newest `SORTED` open cases if they are sorted by how much a decision teaches, or how likely they are
real failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import inf
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import Count, OuterRef, Subquery

from apps.core.http import uuid_of
from apps.core.models import Project
from apps.core.query import FLAG, Query
from apps.failures import agent_versions
from apps.failures.agent_versions import Chosen
from apps.failures.likelihood import COLUMNS, Basis, Likelihood, with_basis
from apps.failures.models import (
    Failure,
    FailureMode,
    FailureQuerySet,
    FailureState,
    OutcomeEstimate,
    Severity,
)
from apps.failures.outcomes.estimates import Estimator
from workers.lib.storable import storable

INFORMATIVE, LIKELIEST = "informative", "likeliest"
SORTS = {
    "": "Severe first",
    LIKELIEST: "Likeliest first",
    INFORMATIVE: "Most informative first",
}
SORTED = 5_000
CONFIDENCES = ("certain", "likely", "hint")
FILTERS: Query = {
    "mode": None,
    "cluster": UUID,
    "agent": None,
    "version": None,
    "safety": FLAG,
    "mine": FLAG,
    "confidence": CONFIDENCES,
}
SEVERE_FIRST = (Severity.HIGH, Severity.MEDIUM, Severity.LOW)
COUNTED = 1_000
LONGEST = 300  # of a filter

Rank = tuple[float, float]  # of two cases the one with the lower rank comes first


def rank_of(mode: FailureMode) -> Rank:
    """Safety-relevant first, then by severity."""
    return not mode.safety_relevant, SEVERE_FIRST.index(Severity(mode.severity))


@dataclass(frozen=True)
class QueuePosition:
    """The position of a case in the order: by rank (its mode's by default), then newest first."""

    rank: Rank
    trajectory: UUID

    @classmethod
    def of(cls, failure: Failure) -> QueuePosition:
        return cls(rank_of(failure.mode), failure.trajectory_id)


@dataclass(frozen=True)
class Ranked:
    """A case and its position."""

    pk: int
    place: QueuePosition

    @property
    def key(self) -> tuple[Rank, int]:
        return key_of(self.place)


def key_of(place: QueuePosition) -> tuple[Rank, int]:
    """The queue's sort key; the ids of trajectories grow with time."""
    return place.rank, -place.trajectory.int


def narrowed(
    rows: FailureQuerySet, given: Mapping[str, Any], of: Chosen, user: Any
) -> FailureQuerySet:
    """The rows of an agent version that match the filters; an invalid filter matches nothing."""
    if mode := given.get("mode"):
        rows = rows.filter(mode__slug=mode)
    if given.get("safety"):
        rows = rows.filter(mode__safety_relevant=True)
    return _narrowed(of.among(rows), given, user)


def _narrowed(rows: FailureQuerySet, given: Mapping[str, Any], user: Any) -> FailureQuerySet:
    if cluster := given.get("cluster"):
        pk = uuid_of(str(cluster))
        rows = rows.filter(cluster_id=pk) if pk else rows.none()
    if given.get("mine"):
        rows = rows.filter(assigned_to=user) if user else rows.none()
    if confidence := given.get("confidence"):
        rows = rows.filter(evidence__0__confidence=storable(confidence, ""))
    return rows


class TriageQueue:
    """The open cases of a project that match a person's filters."""

    def __init__(self, project: Project, user: Any, given: Mapping[str, str]) -> None:
        self.project, self.user = project, user
        self.given = {name: given[name][:LONGEST] for name in FILTERS if given.get(name)}
        sort = given.get("sort")
        self.sort = sort if sort in SORTS else ""
        self.given |= {"sort": self.sort} if self.sort else {}

    @property
    def query(self) -> str:
        """The filters and the order, as in the URL."""
        return urlencode(self.given)

    @cached_property
    def chosen(self) -> Chosen:
        """Raises QueryError."""
        return agent_versions.chosen(
            self.project, self.given.get("agent", ""), self.given.get("version", "")
        )

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
        ]

    def rows(self) -> FailureQuerySet:
        rows = Failure.objects.filter(project=self.project).waiting()
        return _narrowed(self.chosen.among(rows), self.given, self.user)

    def count(self) -> str:
        """The number of open cases, assigned or not: exact up to COUNTED."""
        n = self.rows().filter(mode__in=self.modes).order_by()[: COUNTED + 1].count()
        return f"{min(n, COUNTED):,}{'+' * (n > COUNTED)}"

    def next(self, after: QueuePosition | None = None, skip: int | None = None) -> int | None:
        """The first free case after a position, wrapping around; None if none is free."""
        if self.sort:
            return self._next_sorted(after, skip)
        for rank, modes in self._ranks():
            if after is None or rank >= after.rank:
                below = after.trajectory if after and rank == after.rank else None
                if found := self._nearest(modes, skip, below=below):
                    return found
        return self.next(None, skip) if after else None

    def previous(self, before: QueuePosition, skip: int | None = None) -> int | None:
        """The last free case before a position; None if there is none."""
        if self.sort:
            earlier = [
                item for item in self._sorted() if item.pk != skip and item.key < key_of(before)
            ]
            return earlier[-1].pk if earlier else None
        for rank, modes in reversed(self._ranks()):
            if rank <= before.rank:
                above = before.trajectory if rank == before.rank else UUID(int=0)
                if found := self._nearest(modes, skip, above=above):
                    return found
        return None

    def position_of(self, failure: Failure) -> QueuePosition:
        if not self.sort:
            return QueuePosition.of(failure)
        rows = Failure.objects.filter(pk=failure.pk)
        places = [item.place for item in self._ranked(rows)]
        return places[0] if places else QueuePosition.of(failure)

    def _next_sorted(self, after: QueuePosition | None, skip: int | None) -> int | None:
        items = [item for item in self._sorted() if item.pk != skip]
        later = [item for item in items if after is None or item.key > key_of(after)]
        return next((item.pk for item in [*later, *items]), None)

    def _sorted(self) -> list[Ranked]:
        """The newest free cases in the chosen order."""
        rows = self.rows().free_for(self.user).filter(mode__in=self.modes)
        return sorted(self._ranked(rows.order_by("-trajectory_id")), key=lambda item: item.key)

    def _ranked(self, rows: FailureQuerySet) -> list[Ranked]:
        chance = OutcomeEstimate.objects.filter(pk=OuterRef("trajectory_id")).values("score")
        rows = with_basis(rows).annotate(chance=Subquery(chance))
        columns = ("pk", "trajectory_id", "cluster_id", "chance", "evidence__0__sure", *COLUMNS)
        return [
            Ranked(
                pk,
                QueuePosition(
                    self._unlikelihood(basis, chance or sure)
                    if self.sort == LIKELIEST
                    else self._information(chance, cluster),
                    run,
                ),
            )
            for pk, run, cluster, chance, sure, *basis in rows.values_list(*columns)[:SORTED]
        ]

    def _unlikelihood(self, columns: Sequence[Any], score: float | None) -> Rank:
        """Low for a case like those that people confirmed; then for a high estimate, or a judge
        that is sure.
        """
        return 1 - self._likelihood.of(Basis.of(*columns)), 1 - (score or 0.0)

    def _information(self, chance: float | None, cluster: UUID | None) -> Rank:
        """Low for an informative case: an estimate near the threshold; then a cluster with few
        decisions.
        """
        if chance is not None:
            return 0, abs(chance - self._threshold)
        return 1, self._decisions.get(cluster, 0) if cluster else inf

    @cached_property
    def _likelihood(self) -> Likelihood:
        return Likelihood.in_project(self.project)

    @cached_property
    def _threshold(self) -> float:
        estimator = Estimator.of(self.project)
        return estimator.weights.threshold if estimator else 0.0

    @cached_property
    def _decisions(self) -> dict[UUID, int]:
        """The number of decided cases per cluster."""
        rows = Failure.objects.filter(project=self.project, cluster__isnull=False).exclude(
            state=FailureState.OPEN
        )
        return dict(rows.order_by().values_list("cluster").annotate(n=Count("pk")))

    def _ranks(self) -> list[tuple[Rank, list[FailureMode]]]:
        return [
            (rank, list(modes)) for rank, modes in groupby(sorted(self.modes, key=rank_of), rank_of)
        ]

    def _nearest(
        self,
        modes: list[FailureMode],
        skip: int | None,
        *,
        below: UUID | None = None,
        above: UUID | None = None,
    ) -> int | None:
        """The newest of these modes (`below` a trajectory), or the oldest `above` one: one index
        probe per mode.
        """
        rows = self.rows().free_for(self.user)
        if skip is not None:
            rows = rows.exclude(pk=skip)
        if below is not None:
            rows = rows.filter(trajectory_id__lt=below)
        if above is not None:
            rows = rows.filter(trajectory_id__gt=above)
        order = "-trajectory_id" if above is None else "trajectory_id"
        parts = [
            rows.filter(mode=mode).order_by(order).values_list("trajectory_id", "pk")[:1]
            for mode in modes
        ]
        found = list(parts[0].union(*parts[1:], all=True) if len(parts) > 1 else parts[0])
        return (max if above is None else min)(found)[1] if found else None
