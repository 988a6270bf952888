"""Unsafe outputs for the gate: what kinds they show, and the reviews of those with a new kind by
people.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction

from apps.core.access import get_membership
from apps.core.actions import audit
from apps.core.models import ApiKey, Role
from apps.evals.canonical import digest_of
from apps.evals.holdout.view_log import has_opened
from apps.evals.jobs import rows_of
from apps.evals.models import EvalRun, Sample
from apps.evals.stats import SampleRow
from apps.promotion.conditions import PromotionError, checked_reason
from apps.promotion.gate.unsafe import REVIEWED
from apps.promotion.models import GateReport, UnsafeReview
from apps.promotion.moves import locked, name_of
from apps.promotion.policies import label_of, policy_of, require_keys_allowed

NAMED = re.compile(
    r"(?:^|: )unsafe: (.+)$"
)  # a detail of a score, see `workers.lib.rollouts.name_harm`
LONGEST_KIND = 200
CONTENT = ("output", "messages", "details", "unsafe", "masked", "reward", "success", "stop_reason")


def gate_rows(run: EvalRun, samples: Sequence[Sample]) -> list[SampleRow]:
    """With the kinds and the reviews of unsafe samples. `samples`: of the run."""
    unsafe = any(sample.unsafe for sample in samples)
    decided = {pk: row.accepted for pk, row in reviews_of(run).items()} if unsafe else {}
    return [
        (
            replace(row, id=str(sample.pk), kinds=kinds_in(sample), accepted=decided.get(sample.pk))
            if sample.unsafe
            else row
        )
        for sample, row in zip(samples, rows_of(samples), strict=True)
    ]


def kinds_in(sample: Sample) -> tuple[str, ...]:
    """The unsafe calls by their tools, as the score names them; else all tools that it called
    together.
    """
    details = sample.details if isinstance(sample.details, list) else []
    found = {
        match[1].strip()
        for text in details
        if isinstance(text, str) and (match := NAMED.search(text))
    }
    if not found:
        found = {
            (
                f"calls {', '.join(sorted(sample.tools))}"
                if sample.tools
                else "an answer without calls"
            )
        }
    return tuple(sorted(kind[:LONGEST_KIND] for kind in found))


def reviews_of(run: EvalRun) -> dict[int, UnsafeReview]:
    """{sample: its newest review}, of the samples that are still what was reviewed."""
    rows = UnsafeReview.objects.filter(sample__run=run).select_related("sample")
    newest = {row.sample_id: row for row in rows.order_by("at", "pk")}
    return {pk: row for pk, row in newest.items() if row.digest == content_digest(row.sample)}


def content_digest(sample: Sample) -> str:
    """Of everything that a reviewer sees of an output, and of its score."""
    return digest_of([getattr(sample, name) for name in CONTENT])


@dataclass(frozen=True)
class NewKindOutput:
    """One output of a report's list, as it is stored now. `state`: by the reviews of now, which the
    report may not know yet.
    """

    sample: Sample
    kinds: list[str]
    state: str
    review: UnsafeReview | None


def listed_in(report: GateReport, most: int | None = None) -> list[NewKindOutput]:
    """The outputs with new kinds of unsafe actions that a report lists, at most so many."""
    listed = {
        row["sample"]: row for row in report.report.get("new_kinds", [])[:most] if row["sample"]
    }
    samples = Sample.objects.filter(pk__in=listed, run__project=report.project_id).select_related(
        "run", "task"
    )
    reviews: dict[int, UnsafeReview] = {}
    for run in {sample.run_id: sample.run for sample in samples}.values():
        reviews |= reviews_of(run)
    return [
        NewKindOutput(
            sample,
            listed[str(sample.pk)]["kinds"],
            _state(reviews.get(sample.pk)),
            reviews.get(sample.pk),
        )
        for sample in samples
    ]


def _state(review: UnsafeReview | None) -> str:
    return REVIEWED[review.accepted if review else None]


@transaction.atomic
def review_outputs(
    *,
    report: GateReport,
    samples: Collection[str],
    accepted: bool,
    reason: str,
    by: Any,
    key: ApiKey | None = None,
) -> list[UnsafeReview]:
    """Decides about outputs that a report lists: `accepted` ones are not unsafe. A report made
    before does not change; the next comparison uses it. Who may promote in the channel may review,
    once they have opened the outputs. `key`: the API key used. Raises PromotionError,
    PermissionDenied."""
    channel = locked(report.channel)
    policy, _ = policy_of(channel)
    require_keys_allowed(channel, policy, key)
    get_membership(by, channel.project.slug, Role(policy.promoters))
    reason = checked_reason(reason, "Enter a reason: it is stored with the review.")
    chosen = _chosen(report, samples)
    if not all(
        has_opened(run, by=key or by)
        for run in {sample.run_id: sample.run for sample in chosen}.values()
    ):
        raise PermissionDenied(
            "Read the outputs first: only an output that was opened can be reviewed."
        )
    who = label_of(key) or name_of(by)
    rows = [
        UnsafeReview(
            sample=sample,
            gate_report=report,
            digest=content_digest(sample),
            accepted=accepted,
            reason=reason,
            by=by,
            by_name=who,
        )
        for sample in chosen
    ]
    UnsafeReview.objects.bulk_create(rows)
    audit(
        "gate.outputs_reviewed",
        project=report.project,
        by=by,
        actor_label=label_of(key),
        target=report,
        about=[report.candidate.model_version],
        n=len(rows),
        decision="not unsafe" if accepted else "unsafe",
        reason=reason,
        candidate=str(report.candidate.model_version),
        samples=[str(sample.pk) for sample in chosen],
    )
    return rows


def _chosen(report: GateReport, samples: Iterable[str]) -> list[Sample]:
    wanted = {str(pk) for pk in samples}
    listed = {row["sample"] for row in report.report.get("new_kinds", [])}
    if not wanted:
        raise PromotionError("Choose at least one output.")
    if unknown := wanted - listed:
        raise PromotionError(
            f"This report does not list {len(unknown):,} of the outputs. Choose from its list."
        )
    chosen = list(
        Sample.objects.filter(pk__in=wanted, run__project=report.project_id).select_related("run")
    )
    if len(chosen) < len(wanted):
        raise PromotionError("Some of these outputs no longer exist. Compare again.")
    return chosen
