"""Whether a gate report supports moving its channel now, for this person or key."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied

from apps.core.access import get_membership
from apps.core.models import ApiKey, Role
from apps.evals.models import Split
from apps.promotion.conditions import PromotionError, require_deciding_set, why_owner
from apps.promotion.freezing import require_not_frozen
from apps.promotion.gate import Policy
from apps.promotion.inputs import inputs_of
from apps.promotion.models import Channel, GateReport
from apps.promotion.policies import policy_of, require_keys_allowed
from apps.promotion.signing import is_genuine


def require_promotable(
    *, channel: Channel, gate_report: GateReport, by: Any, key: ApiKey | None = None
) -> tuple[Policy, bool]:
    """The current policy, and whether an owner overrides the gate. `channel`: from `moves.locked`.
    Raises PromotionError, PermissionDenied."""
    candidate = gate_report.candidate.model_version
    baseline = gate_report.baseline.model_version
    if channel.pk != gate_report.channel_id:
        raise PromotionError(
            f"This report was created for a channel other than {channel.name}. Compare again for"
            " this channel."
        )
    if not is_genuine(gate_report):
        raise PromotionError(
            "The signature of this report is invalid: the report was changed, or signed with a key"
            " that is no longer configured. Compare again."
        )
    policy, version = policy_of(channel)
    if version != gate_report.policy_version:
        raise PromotionError(
            f"The policy of {channel.name} has changed since this report was made (version"
            f" {gate_report.policy_version}, now {version}). Compare again."
        )
    if baseline == candidate == channel.current:
        raise PromotionError(
            f"The report compares the prompts of two environments with {candidate}, which"
            f" {channel.name} runs already. Save the prompt of {gate_report.candidate.environment}"
            " as a prompt version on it, and evaluate and promote that."
        )
    if channel.current_id == candidate.pk:
        raise PromotionError(f"{channel.name} already runs {candidate}.")
    if candidate.archived_at:
        raise PromotionError(
            f"{candidate} is archived. Unarchive it under “Manage” on its page first."
        )
    if channel.current_id and channel.current_id != baseline.pk:
        raise PromotionError(
            f"The report compares with {baseline}, but {channel.name} runs {channel.current} now."
            " Compare again."
        )
    for run in (gate_report.baseline, gate_report.candidate):
        if run.split != Split.HOLDOUT or not run.eval_set.is_frozen:
            raise PromotionError(
                f"The report compares on {run.get_split_display().lower()} tasks. Only a frozen"
                " hold-out may promote: evaluate both models on one and compare again."
            )
    require_deciding_set(gate_report.candidate.eval_set, policy)
    if inputs_of(gate_report).hash != gate_report.inputs_hash:
        raise PromotionError(
            "The samples of these evaluations, or the reviews of them, have changed since this"
            " report was made. Compare again: that costs nothing."
        )
    reasons = why_owner(channel, gate_report, policy)
    overridden = bool(reasons)
    if key and overridden:
        raise PermissionDenied(
            "This requires an owner, on the report's page; an API key is not enough."
            f" {' '.join(reasons)}"
        )
    require_keys_allowed(channel, policy, key)
    membership = get_membership(by, channel.project.slug)
    if reasons and not membership.may(Role.OWNER):
        raise PermissionDenied(
            f"This requires an owner of {channel.project}; you are {membership.role}."
            f" {' '.join(reasons)}"
        )
    get_membership(by, channel.project.slug, Role(policy.promoters))
    require_not_frozen(channel)
    return policy, overridden
