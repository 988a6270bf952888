"""Which share of a project's failures a cluster causes: estimated from the random checks and the
judge's verdicts, or, without any failed check, counted among the failures that were found.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from apps.core.models import Project
from apps.failures.models import Failure, FailureState
from apps.failures.outcomes import checks
from apps.failures.outcomes.rate import Estimate, Stratum, failure_rate, recall


@dataclass
class Share:
    """Of all failures, and of all runs, those of a cluster; each has an interval only if it is an
    estimate. `n` is what it rests on: failed checks, or failures that were found.
    """

    value: float
    n: int
    rests_on: str
    low: float | None = None
    high: float | None = None
    strata: Sequence[Stratum] = ()

    @cached_property
    def rate(self) -> Estimate | None:
        """Of all runs, those that fail this way."""
        return failure_rate(self.strata)

    @property
    def is_estimate(self) -> bool:
        return self.low is not None


def shares(project: Project, sizes: dict[Any, int], standing: int) -> dict[Any, Share]:
    """The share of each cluster; `sizes` are their standing failures, of `standing` in all."""
    sample = checks.sampled(project, flags=_clusters_of(project, sizes))
    found = {}
    for cluster, size in sizes.items():
        estimate = recall(sample.strata, str(cluster))
        if estimate is None:
            rests_on = f"{size:,} of {standing:,} failures that were found"
            found[cluster] = Share(size / standing if standing else 0.0, standing, rests_on)
            continue
        parts = [part for whole in sample.strata if (part := whole.flagged(str(cluster), True))]
        found[cluster] = Share(
            estimate.value,
            estimate.n,
            sample.rests_on,
            estimate.low,
            estimate.high,
            parts,
        )
    return found


def _clusters_of(project: Project, clusters: Collection[Any]) -> dict[Any, str]:
    """{run: its cluster} of the runs that were drawn for a check; an answer takes none out."""
    rows = Failure.objects.filter(
        project=project, cluster__in=list(clusters), trajectory__outcome_check__probability__gt=0
    )
    return {
        run: str(cluster)
        for run, cluster in rows.exclude(
            state=FailureState.DISMISSED, trajectory__outcome_check__answer=""
        )
        .order_by()
        .values_list("trajectory_id", "cluster")
    }
