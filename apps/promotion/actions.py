"""Writes of floor 9: gate reports, promotions, rollbacks. Nothing is promoted without a report; every move can be undone."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from apps.core.access import get_membership
from apps.core.actions import audit
from apps.core.models import JobState, Project, Role
from apps.evals.jobs import rows_of
from apps.evals.models import EvalRun
from apps.promotion.gate import DEFAULT_POLICY, Evaluation, NotComparable, compare
from apps.promotion.models import Channel, GateReport, Promotion, Verdict
from apps.registry.models import ModelVersion

PRODUCTION = "production"


class PromotionError(Exception):
    """A move that may not be made; the message is a sentence for the screen."""


def as_evaluation(run: EvalRun) -> Evaluation:
    samples = run.samples.defer("output", "messages").select_related("task")
    return Evaluation(
        model=str(run.model_version),
        eval_set_digest=f"{run.eval_set.digest}:{run.split}",
        environment_hash=run.environment.hash,
        verifier_hash=run.environment.verifier.hash,
        samples_per_task=run.samples_per_task,
        rows=rows_of(samples),
        keys={str(sample.task_id): sample.task.key for sample in samples},
    )


@transaction.atomic
def make_gate_report(*, baseline: EvalRun, candidate: EvalRun, by: Any, policy: dict | None = None) -> GateReport:
    """Compares two finished evaluations and keeps what the gate says. Raises PromotionError."""
    for run in (baseline, candidate):
        if run.state != JobState.SUCCEEDED:
            raise PromotionError(f"The evaluation “{run.name}” has not finished well; it cannot be compared.")
    rules = DEFAULT_POLICY | (policy or {})
    try:
        report = compare(as_evaluation(baseline), as_evaluation(candidate), rules)
    except NotComparable as error:
        raise PromotionError(str(error)) from error
    row = GateReport.objects.create(
        project=candidate.project,
        baseline=baseline,
        candidate=candidate,
        policy=rules,
        report=report.as_dict(),
        verdict=report.verdict,
        created_by=by,
    )
    audit(
        "gate.reported",
        project=row.project,
        by=by,
        target=row,
        verdict=row.verdict,
        baseline=str(baseline.model_version),
        candidate=str(candidate.model_version),
    )
    return row


def channel_of(project: Project, name: str = PRODUCTION) -> Channel:
    return Channel.objects.get_or_create(project=project, name=name)[0]


@transaction.atomic
def set_initial(*, channel: Channel, version: ModelVersion, by: Any) -> Promotion:
    """What production ran before Flywheel knew of it. Only for a channel that has nothing yet."""
    channel = _locked(channel)
    if channel.current_id:
        raise PromotionError(f"{channel.name} runs {channel.current} already. Promote through the gate instead.")
    return _move(channel, version, Promotion.Kind.INITIAL, by, reason="what production ran before")


@transaction.atomic
def promote(*, channel: Channel, gate_report: GateReport, by: Any, reason: str = "") -> Promotion:
    """Moves the channel to the report's candidate. Raises PromotionError where the report does not bear it.

    The report must have compared with what runs now. A verdict other than *promote* needs an admin and a reason.
    """
    channel = _locked(channel)
    candidate = gate_report.candidate.model_version
    baseline = gate_report.baseline.model_version
    if channel.project_id != gate_report.project_id:
        raise PromotionError("This report is of another project.")
    if channel.current_id == candidate.pk:
        raise PromotionError(f"{channel.name} runs {candidate} already.")
    if channel.current_id and channel.current_id != baseline.pk:
        raise PromotionError(
            f"The report compares with {baseline}, but {channel.name} runs {channel.current} now. Compare again."
        )
    overridden = gate_report.verdict != Verdict.PROMOTE
    if overridden:
        get_membership(by, channel.project.slug, Role.ADMIN)
        if not reason.strip():
            raise PromotionError(f"The gate says {gate_report.verdict}. Promoting all the same needs a reason.")
    return _move(
        channel,
        candidate,
        Promotion.Kind.PROMOTE,
        by,
        reason=reason.strip(),
        gate_report=gate_report,
        overridden=overridden,
    )


@transaction.atomic
def rollback(*, channel: Channel, by: Any, reason: str = "") -> Promotion:
    """Moves the channel back to what ran before. Repeated, it goes back further. Raises PromotionError."""
    channel = _locked(channel)
    target = previous_of(channel)
    if target is None:
        raise PromotionError(f"{channel.name} has run nothing before; there is nothing to go back to.")
    return _move(channel, target, Promotion.Kind.ROLLBACK, by, reason=reason.strip())


def previous_of(channel: Channel) -> ModelVersion | None:
    """What ran before the current version: forward moves are pushed, a rollback takes the last one off."""
    stack: list[ModelVersion] = []
    for move in channel.promotions.select_related("to_version").order_by("at", "pk"):
        if move.kind == Promotion.Kind.ROLLBACK:
            stack.pop()
        else:
            stack.append(move.to_version)
    return stack[-2] if len(stack) > 1 else None


def _locked(channel: Channel) -> Channel:
    return Channel.objects.select_for_update(of=("self",)).select_related("project", "current").get(pk=channel.pk)


def _move(
    channel: Channel,
    version: ModelVersion,
    kind: Promotion.Kind,
    by: Any,
    *,
    reason: str,
    gate_report: GateReport | None = None,
    **detail: Any,
) -> Promotion:
    promotion = Promotion.objects.create(
        channel=channel,
        kind=kind,
        from_version=channel.current,
        to_version=version,
        gate_report=gate_report,
        reason=reason,
        by=by,
    )
    audit(
        f"channel.{kind}",
        project=channel.project,
        by=by,
        target=channel,
        channel=channel.name,
        source=str(channel.current) if channel.current else None,
        version=str(version),
        reason=reason,
        **detail,
    )
    channel.current = version
    channel.save(update_fields=["current", "updated_at"])
    return promotion
