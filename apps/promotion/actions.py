"""Gate reports, promotions and rollbacks. Nothing is promoted without a report; every move can be
undone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.utils import timezone
from msgspec import Meta

from apps.core.access import get_membership
from apps.core.actions import audit
from apps.core.actor import actor_name
from apps.core.models import ApiKey, JobState, Role
from apps.core.openapi import sent, told
from apps.core.operations import Page, Rest, operation
from apps.evals.models import EvalRun, LatencyMeasurement
from apps.notifications.actions import tell_of_override
from apps.promotion import preparation, schema
from apps.promotion.announcing import announce_proposal, announce_report
from apps.promotion.conditions import PromotionError, checked_reason, require_not_archived
from apps.promotion.deployment import actions as deployments
from apps.promotion.deployment import fingerprints
from apps.promotion.gate import NotComparable, Policy, Report
from apps.promotion.inputs import Inputs
from apps.promotion.models import Approval, Channel, Deployment, GateReport, Promotion, Verdict
from apps.promotion.moves import locked, move, name_of, require_files
from apps.promotion.policies import channel_of, label_of, policy_of, require_keys_allowed
from apps.promotion.promotable import require_promotable
from apps.promotion.proposals import may_promote
from apps.promotion.signing import code_hash, document_of, sign
from apps.promotion.wear import comparison_number
from apps.registry.models import ModelKind, ModelVersion
from workers.lib.typed import plain


@dataclass(frozen=True)
class Comparison:
    """The gate's result for two evaluations, and everything it was given."""

    baseline: EvalRun
    candidate: EvalRun
    channel: Channel
    policy: Policy
    policy_version: int
    measurement: LatencyMeasurement | None
    guards: dict[str, list[EvalRun] | None]
    inputs: Inputs
    report: Report


def compare_runs(*, baseline: EvalRun, candidate: EvalRun, channel: Channel) -> Comparison:
    """Compares two evaluations by a channel's policy without storing anything.

    They must be finished, unless the policy is sequential: then any time is valid, except if an
    external agent may have stopped itself: it sees the tasks, and could stop before the hard ones.
    Raises PromotionError.
    """
    (rules, version), comparison = policy_of(channel), comparison_number(baseline, candidate)
    for run in (baseline, candidate):
        ended_by_agent = run.model_version.kind == ModelKind.AGENT and run.state == JobState.FAILED
        if run.state != JobState.SUCCEEDED and (run.is_answered_elsewhere or ended_by_agent):
            raise PromotionError(
                f"The evaluation “{run.name}” is incomplete and cannot be compared. The agent must"
                " answer all tasks."
            )
        if run.state != JobState.SUCCEEDED and not rules.sequential:
            raise PromotionError(
                f"The evaluation “{run.name}” did not succeed; it cannot be compared. With a"
                " sequential policy it could be."
            )
    measurement, guards = (
        preparation.measurement(baseline, candidate),
        preparation.measured_guards(baseline, candidate),
    )
    inputs = Inputs.of(baseline, candidate, measurement, guards, sequential=rules.sequential)
    try:
        report = inputs.compare(rules, comparison)
    except NotComparable as error:
        raise PromotionError(str(error)) from error
    return Comparison(
        baseline, candidate, channel, rules, version, measurement, guards, inputs, report
    )


@transaction.atomic
def make_gate_report(
    *, baseline: EvalRun, candidate: EvalRun, by: Any, channel: Channel | None = None
) -> GateReport:
    """Stores and signs the gate's result by a channel's policy (production's by default), see
    `compare_runs`. Raises PromotionError.
    """
    channel = channel or channel_of(candidate.project)
    require_not_archived(channel)
    found = compare_runs(baseline=baseline, candidate=candidate, channel=channel)
    row = GateReport(
        project=candidate.project,
        baseline=baseline,
        candidate=candidate,
        channel=found.channel,
        measurement=found.measurement,
        guards={
            name: pair and [str(run.pk) for run in pair] for name, pair in found.guards.items()
        },
        policy=plain(found.policy),
        policy_version=found.policy_version,
        comparison=found.report.comparison,
        report=found.report.as_dict(),
        inputs_hash=found.inputs.hash,
        verdict=found.report.verdict,
        created_by=by,
    )
    row.inputs = facts_of(row)
    row.signature = sign(document_of(row))
    row.save(force_insert=True)
    audit(
        "gate.reported",
        project=row.project,
        by=by,
        target=row,
        about=[candidate.model_version, baseline.model_version, candidate.eval_set],
        verdict=row.verdict,
        baseline=str(baseline.model_version),
        candidate=str(candidate.model_version),
    )
    announce_report(row)
    if deployments.has_targets(row.channel):
        fingerprints.ask_for(
            candidate.model_version, by=by
        )  # so that it is available when the version is deployed
    return row


def live_baseline(candidate: EvalRun, channel: Channel) -> EvalRun:
    """The newest evaluation of the channel's live version that can be compared with this one.
    Raises PromotionError.
    """
    if channel.current is None:
        raise PromotionError(f"Nothing is live in {channel.name} yet, so there is no baseline.")
    runs = (
        EvalRun.objects.current()
        .filter(
            project=candidate.project_id,
            model_version=channel.current,
            eval_set=candidate.eval_set_id,
            split=candidate.split,
            samples_per_task=candidate.samples_per_task,
            environment__task_hash=candidate.environment.task_hash,
            environment__verifier__hash=candidate.environment.verifier.hash,
            state=JobState.SUCCEEDED,
        )
        .exclude(pk=candidate.pk)
    )
    subset = candidate.spec.get("subset")
    found = [
        run
        for run in runs.order_by("-created_at")
        if run.spec.get("subset") == subset and run.is_played_like(candidate)
    ]
    if not found:
        raise PromotionError(
            f"{channel.current}, live in {channel.name}, has no finished evaluation on the same"
            f" tasks with {candidate.samples_per_task} samples per task in {candidate.environment}"
            f"{f', played by {candidate.played_by}' if candidate.played_by else ''}."
            " Evaluate it there first."
        )
    return found[0]


def facts_of(row: GateReport) -> dict[str, Any]:
    """What a report is based on, by name and hash, and who requested it when, for
    `signing.document_of`.
    """
    return {
        "project": row.project.slug,
        "channel": row.channel.name,
        "by": actor_name(row.created_by),
        "at": timezone.now().isoformat(),
        "baseline": _run_facts(row.baseline),
        "candidate": _run_facts(row.candidate),
        "guards": row.guards,
        "latency_measurement": str(row.measurement_id) if row.measurement_id else None,
        "oversight": oversight_of(row.candidate.model_version),
        "samples_sha256": row.inputs_hash,
        "code_sha256": code_hash(),
    }


def oversight_of(version: ModelVersion) -> list[dict[str, str]]:
    """Who stood behind the reward of each training that led to a version, the last one first."""
    trained = [one for one in (version, *version.ancestors()) if one.lineage.get("oversight")]
    return [{"model": str(one), "oversight": one.lineage["oversight"]} for one in trained]


def _run_facts(run: EvalRun) -> dict[str, Any]:
    return {
        "evaluation": str(run.pk),
        "model": str(run.model_version),
        "model_digest": run.model_version.digest,
        "eval_set": str(run.eval_set),
        "eval_set_digest": run.eval_set_digest,
        "split": run.split,
        "samples_per_task": run.samples_per_task,
        "task_hash": run.environment.task_hash,
        "agent_hash": run.agent_hash,
        "harness": run.harness,
        "verifier_hash": run.environment.verifier.hash,
        "scorer": run.spec.get("scorer"),
    }


@transaction.atomic
def set_initial(*, channel: Channel, version: ModelVersion, by: Any) -> Promotion:
    """What production ran before Flywheel was introduced. Only for a channel that has no version
    yet.
    """
    if version.kind == ModelKind.REWARD:
        raise PromotionError(
            f"{version} is a reward model, not an agent, so it cannot run in {channel.name}."
        )
    if version.archived_at:
        raise PromotionError(
            f"{version} is archived. Unarchive it under “Manage” on its page first."
        )
    channel = locked(channel)
    if channel.current_id:
        raise PromotionError(
            f"{channel.name} already runs {channel.current}. Promote through the gate instead."
        )
    moved = move(channel, version, Promotion.Kind.INITIAL, by, reason="what production ran before")
    if channel.targets.current().filter(server__isnull=False).exists():
        deployments.begin(
            channel=channel,
            kind=Deployment.Kind.RESTORE,
            version=version,
            by=by,
            reason="It is what the channel runs",
        )
    return moved


@operation(
    "channels_segment",
    rest=Rest("PUT", "channels/<slug:name>/segment/", "segment"),
    page=Page("channels/<slug:name>/segment/", "segment"),
    gives=schema.SEGMENT,
    role=Role.OWNER,
    examples=(
        sent("The customers in Europe", {"segment": "eu"}),
        told("Labelled", {"channel": "production", "segment": "eu"}),
    ),
    says={
        "channel.labelled": "changed the segment of {channel@}[ from “{before}”] to “{segment}”",
    },
)
@transaction.atomic
def set_segment(
    *, channel: Channel, segment: schema.Segment, by: Any, key: ApiKey | None = None
) -> None:
    """Labels a channel with the environment or users it serves. Requires an owner's key."""
    channel = locked(channel)
    require_keys_allowed(channel, policy_of(channel)[0], key)
    before, channel.segment = channel.segment, " ".join(segment.split())
    channel.save(update_fields=["segment", "updated_at"])
    audit(
        "channel.labelled",
        project=channel.project,
        by=by,
        target=channel,
        channel=channel.name,
        before=before,
        segment=channel.segment,
    )


def _moved_in_words(target: Channel, returned: Promotion | Deployment | Approval) -> str:
    if isinstance(returned, Deployment):
        return (
            f"{returned.version} is being deployed to the targets of {target}. The channel moves"
            " once all of them serve it."
        )
    if isinstance(returned, Approval):
        return (
            "You have approved this promotion. The policy requires two people: someone else must"
            " also approve it here."
        )
    if returned.kind == Promotion.Kind.ROLLBACK:
        return f"{target} was rolled back to {returned.to_version}."
    return f"{returned.to_version} is now live in {target}."


def _page_after(target: Channel, returned: Promotion | Deployment | Approval) -> str:
    """Where to follow it: a deployment on the page of its channel."""
    row = target if isinstance(returned, Deployment) else returned.gate_report
    return row.get_absolute_url()


@operation(
    "channels_promote",
    rest=Rest("POST", "channels/<slug:name>/promote/", "promote"),
    page=Page("reports/<uuid:report>/promote/", "promote", then=_page_after, done=_moved_in_words),
    gives={200: schema.MOVED, 202: schema.BEGINS},
    outcome=schema.moved_or_begun,
    examples=(schema.PROMOTE_EXAMPLE, schema.MOVE_EXAMPLE, schema.BEGUN_EXAMPLE),
    says={
        "channel.promote": (
            "promoted {version@registry.modelversion:version_id} to {channel@}[ with {=a gate"
            " report@promotion.gatereport:report_id}][, overriding the gate{?overridden}][:"
            " “{reason}”]"
        ),
        "channel.proposed": (
            "approved the promotion of {version@registry.modelversion:version_id} to {channel@}"
            " with {=a gate report@promotion.gatereport:report_id}: a second person decides[:"
            " “{reason}”]"
        ),
    },
)
@transaction.atomic
def promote(
    *,
    channel: Channel,
    report: schema.ReportNamed,
    by: Any,
    reason: Annotated[
        schema.Reason,
        Meta(extra={"missing": "Enter a reason: it is stored with the promotion."}),
    ],
    key: ApiKey | None = None,
) -> Promotion | Deployment | Approval:
    """Promotes a report's candidate. 202 where the channel has targets (`deployment` brings it
    there, and then the channel moves) or its policy asks for two people (`approval`: somebody else
    has to approve it). An API key may do so only where the channel's policy allows it and the gate
    says “promote”: to override the gate is a decision of a person, on the page.

    The report must be for this channel and its current policy, on a frozen hold-out, against the
    live version. The policy says who may promote. An owner may override another verdict, and
    decides in the cases of `why_owner`. `key`: the API key used; `by` is then its creator; a key
    cannot override anything. Raises PromotionError, PermissionDenied.
    """
    channel = locked(channel)
    candidate = report.candidate.model_version
    policy, overridden = require_promotable(channel=channel, gate_report=report, by=by, key=key)
    reason = checked_reason(reason, "Enter a reason: it is stored with the promotion.")
    if policy.two_people and (waiting := _first_of_two(report, policy, by, reason)):
        return waiting
    moved = _bring(
        channel,
        candidate,
        Promotion.Kind.PROMOTE,
        by,
        reason=reason,
        gate_report=report,
        overridden=overridden,
        actor_label=label_of(key),
    )
    if overridden:
        tell_of_override(
            project=channel.project,
            by=by,
            subject=f"{candidate} was promoted to {channel.name} {_against(report)}",
            page=report.get_absolute_url(),
            key=f"override:{report.pk}",
        )
    return moved


def _against(gate_report: GateReport) -> str:
    return (
        "by an owner's decision" if gate_report.verdict == Verdict.PROMOTE else "against the gate"
    )


def _first_of_two(gate_report: GateReport, policy: Policy, by: Any, reason: str) -> Approval | None:
    """Stores the consent of `by` if nobody else's is there yet. One of the two needs the policy's
    role of approvers. Raises PromotionError if the same person approves again."""
    row, new = Approval.objects.get_or_create(
        gate_report=gate_report, by=by, defaults={"by_name": name_of(by), "reason": reason}
    )
    others = other_approvers(gate_report, policy, by)
    needed = Role(policy.approvers)
    if has_second_person(gate_report, policy, by):
        return None
    if not new:
        who = f"an {needed.label.lower()}" if others else "another person"
        able = may_promote(gate_report.project, policy)
        alone = (
            ""
            if able.exclude(user=by).exists()
            else (
                " Nobody else in this project may: an owner can add somebody, or the policy can be"
                " changed on the server with manage.py promotion_policy."
            )
        )
        raise PromotionError(
            f"You have approved this promotion. The policy of {gate_report.channel} requires two"
            f" people: {who} must also approve it.{alone}"
        )
    audit(
        "channel.proposed",
        project=gate_report.project,
        by=by,
        target=gate_report.channel,
        channel=gate_report.channel.name,
        version=str(gate_report.candidate.model_version),
        version_id=gate_report.candidate.model_version_id,
        report_id=str(gate_report.pk),
        about=[gate_report.candidate.model_version, gate_report],
        reason=reason,
    )
    announce_proposal(row)
    return row


def has_second_person(gate_report: GateReport, policy: Policy, by: Any) -> bool:
    """Whether somebody else consents to it, and one of the two has the role of approvers."""
    others = other_approvers(gate_report, policy, by)
    roles = [role_in(gate_report.project, person) for person in (by, *others)]
    needed = Role(policy.approvers)
    return bool(others) and any(role and role.rank >= needed.rank for role in roles)


def other_approvers(gate_report: GateReport, policy: Policy, by: Any) -> list[Any]:
    rows = gate_report.approvals.exclude(by=by).select_related("by")
    return [row.by for row in rows if _may_still(row, gate_report, policy)]


def _may_still(row: Approval, gate_report: GateReport, policy: Policy) -> bool:
    """The consent of somebody who has left, or has a lower role now, no longer counts."""
    role = role_in(gate_report.project, row.by)
    return role is not None and role.rank >= Role(policy.promoters).rank


def role_in(project: Any, user: Any) -> Role | None:
    found = (
        project.memberships.filter(user=user, user__is_active=True)
        .values_list("role", flat=True)
        .first()
        if user
        else None
    )
    return Role(found) if found else None


def _bring(
    channel: Channel, version: ModelVersion, kind: Promotion.Kind, by: Any, **given: Any
) -> Promotion | Deployment:
    """Moves the channel immediately if it has no targets, otherwise starts a deployment that loads
    the version first. Raises PromotionError."""
    if deployments.has_targets(channel):
        return deployments.begin(
            channel=channel, kind=Deployment.Kind(kind), version=version, by=by, **given
        )
    require_files(version)
    return move(channel, version, kind, by, **given)


@operation(
    "channels_rollback",
    rest=Rest("POST", "channels/<slug:name>/rollback/", "rollback"),
    page=Page("channels/<slug:name>/rollback/", "rollback", done=_moved_in_words),
    gives={200: schema.MOVED, 202: schema.BEGINS},
    outcome=schema.moved_or_begun,
    examples=(schema.BACK_EXAMPLE, schema.BACK_TO_EXAMPLE, schema.BEGUN_EXAMPLE),
    says={
        "channel.rollback": (
            "rolled {channel@} back[ from {source}] to"
            " {version@registry.modelversion:version_id}[: “{reason}”]"
        ),
    },
)
@transaction.atomic
def rollback(
    *,
    channel: Channel,
    by: Any,
    reason: Annotated[
        schema.Sentence, Meta(description="Required if the channel's policy asks for one")
    ] = "",
    from_version: Annotated[
        schema.Sentence,
        Meta(
            description=(
                "Only if this version is live, so that sending the same request twice goes back"
                " once"
            )
        ),
    ] = "",
    to_version: Annotated[
        schema.Sentence,
        Meta(description="Any version that the channel ran, instead of the previous one"),
    ] = "",
    key: ApiKey | None = None,
) -> Promotion | Deployment:
    """Moves a channel back to what ran before, or to `to_version`; repeated, it goes back further,
    unless `from_version` names what is live. 202 where the channel has targets: `deployment` looks
    whether they still hold it, and stops what else is being deployed. A freeze does not hold it up,
    and an archived version is unarchived. An API key may do so only where the channel's policy
    allows it. 409 where nothing ran before.

    Raises PromotionError; PermissionDenied for a key that the policy does not allow, and for what
    only an owner may do: going back to a version that was itself taken back.
    """
    channel = locked(channel)
    require_keys_allowed(channel, policy_of(channel)[0], key)
    if from_version and from_version != str(channel.current):
        raise PromotionError(
            f"{channel.name} runs {channel.current} now, not {from_version}. Check the current"
            " state before rolling back."
        )
    target = _earlier(channel, to_version, by, key) if to_version else previous_of(channel)
    if target is None:
        raise PromotionError(f"{channel.name} has no earlier version to roll back to.")
    needed = policy_of(channel)[0].rollback_needs_reason
    reason = checked_reason(
        reason, f"Enter a reason: the policy of {channel.name} requires one." if needed else ""
    )
    return _bring(
        channel, target, Promotion.Kind.ROLLBACK, by, reason=reason, actor_label=label_of(key)
    )


def previous_of(channel: Channel) -> ModelVersion | None:
    """What ran before the current version: forward moves are pushed on a stack, a rollback pops
    those above its destination.
    """
    moves = channel.forward_moves()
    return moves[-2].to_version if len(moves) > 1 else None


@dataclass(frozen=True)
class Earlier:
    """A version that a channel ran. `taken_back`: a rollback ended its last period, so returning to
    it needs an owner.
    """

    version: ModelVersion
    last_live: Any
    taken_back: bool


def earlier_versions(channel: Channel) -> list[Earlier]:
    """The versions that a rollback can go to, most recently live first; without the live one."""
    last: dict[int, tuple[ModelVersion, Any]] = {}
    back: dict[int, bool] = {}
    for moved in channel.promotions.select_related("from_version", "to_version").order_by("pk"):
        if moved.from_version is not None:
            last.pop(moved.from_version_id, None)
            last[moved.from_version_id] = (moved.from_version, moved.at)
            back[moved.from_version_id] = moved.kind == Promotion.Kind.ROLLBACK
    last.pop(channel.current_id, None)
    return [Earlier(version, at, back[pk]) for pk, (version, at) in reversed(last.items())]


def _earlier(channel: Channel, name: str, by: Any, key: ApiKey | None) -> ModelVersion:
    """Raises PromotionError, PermissionDenied."""
    if name == str(channel.current):
        raise PromotionError(f"{channel.name} already runs {name}.")
    found = next((one for one in earlier_versions(channel) if str(one.version) == name), None)
    if found is None:
        raise PromotionError(f"{channel.name} has never run {name}. Promote it with a gate report.")
    if found.taken_back:
        if key:
            raise PermissionDenied(
                f"{name} was rolled back. Only an owner can return to it, on the channel's page."
            )
        get_membership(by, channel.project.slug, Role.OWNER)
    return found.version
