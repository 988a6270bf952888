"""Starting a trial, and what people do with it: stop it, or advance it to its next step."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.core.access import get_membership
from apps.core.models import ApiKey, Role
from apps.promotion.actions import has_second_person
from apps.promotion.conditions import PromotionError, checked_reason
from apps.promotion.deployment import actions as deployments
from apps.promotion.deployment.models import Deployment
from apps.promotion.freezing import require_not_frozen
from apps.promotion.listeners import notify_listeners
from apps.promotion.models import Channel, GateReport
from apps.promotion.moves import locked, name_of
from apps.promotion.policies import label_of, policy_of, require_keys_allowed
from apps.promotion.promotable import require_promotable
from apps.promotion.trials import starting
from apps.promotion.trials.announcing import announce_advanced
from apps.promotion.trials.deciding import held_up
from apps.promotion.trials.ending import end
from apps.promotion.trials.models import Trial, TrialState
from apps.promotion.trials.plans import Plan
from apps.promotion.trials.readings import reading_of, rules_of
from apps.registry import engines
from apps.registry.actions import ModelError
from apps.registry.models import ModelKind, ModelVersion


@transaction.atomic
def begin(
    *,
    channel: Channel,
    kind: Trial.Kind,
    by: Any,
    reason: str,
    plan: Plan | None = None,
    gate_report: GateReport | None = None,
    version: ModelVersion | None = None,
    then: Trial.Then = Trial.Then.HOLD,
    key: ApiKey | None = None,
) -> Trial:
    """A canary needs a gate report that would promote its candidate, or an owner; a shadow only a
    `version`, since nobody gets its answers. `key`: the API key used; `by` is then its creator.
    Raises PromotionError, PermissionDenied.
    """
    channel, plan = locked(channel), plan or Plan()
    if gate_report is not None:
        policy, _ = require_promotable(channel=channel, gate_report=gate_report, by=by, key=key)
        if policy.two_people and not has_second_person(gate_report, policy, by):
            raise PromotionError(
                f"The policy of {channel} requires two people, and a canary answers users: somebody"
                " else has to approve the promotion on the report's page first."
            )
        if version not in (None, gate_report.candidate.model_version):
            raise PromotionError(
                f"The report is about {gate_report.candidate.model_version}, not {version}. Send"
                " only one of the two."
            )
        version = gate_report.candidate.model_version
    elif kind == Trial.Kind.CANARY:
        raise PromotionError(
            "A canary answers users, so it needs a gate report. A shadow does not."
        )
    _require_right(channel, by, key)
    require_not_frozen(channel)
    version = _candidate(channel, version)
    if then == Trial.Then.PROMOTE and gate_report is None:
        raise PromotionError(
            "Nothing is promoted without a gate report. Provide one, or let the trial wait for a"
            " person."
        )
    reason = checked_reason(reason, "Enter a reason: it is stored with the trial.")
    if problem := plan.problem(kind):
        raise PromotionError(problem)
    if other := channel.trials.active().first():
        raise PromotionError(
            f"“{other}” is {other.get_state_display().lower()}. A channel can only have one trial"
            " at a time: stop it first."
        )
    trial = Trial.objects.create(
        project=channel.project,
        channel=channel,
        kind=kind,
        version=version,
        baseline=channel.current,
        gate_report=gate_report,
        steps=plan.steps_for(kind),
        alpha=plan.alpha,
        margin=plan.margin,
        max_days=plan.max_days,
        then=then,
        max_harmed=plan.max_harmed,
        outcome_minutes=starting.outcome_minutes(channel, plan),
        reason=reason,
        by=by,
        by_name=label_of(key) or name_of(by),
    )
    if channel.targets.current().filter(server__isnull=False).exists():
        trial.deployment = deployments.begin(
            channel=channel,
            kind=Deployment.Kind.TRIAL,
            version=version,
            by=by,
            reason=trial.reason,
            actor_label=label_of(key),
        )
        trial.save(update_fields=["deployment"])
    else:
        _require_served(version)
        starting.run(trial)
    return trial


def _candidate(channel: Channel, version: ModelVersion | None) -> ModelVersion:
    if channel.current is None:
        raise PromotionError(f"Nothing is live in {channel} yet, so there is no baseline.")
    if version is None or version.project_id != channel.project_id:
        raise PromotionError("Choose a model version of this project.")
    if version.pk == channel.current_id:
        raise PromotionError(f"{channel} already runs {version}.")
    if version.kind == ModelKind.REWARD:
        raise PromotionError(f"{version} is a reward model, not an agent.")
    if version.archived_at:
        raise PromotionError(f"{version} is archived.")
    return version


def _require_served(version: ModelVersion) -> None:
    """Raises PromotionError if the endpoint would find no server for it."""
    try:
        engine = engines.choose(version, serving=True)
    except ModelError as error:
        raise PromotionError(str(error)) from error
    if engine["kind"] == "transformers":
        raise PromotionError(
            f"No server serves {version}, so it cannot answer. Add a server as a target of the"
            " channel."
        )


def _require_right(channel: Channel, by: Any, key: ApiKey | None) -> None:
    policy, _ = policy_of(channel)
    require_keys_allowed(channel, policy, key)
    get_membership(by, channel.project.slug, Role(policy.promoters))


def _active(trial: Trial) -> Trial:
    """With its channel and itself locked, in this order as everywhere. Raises PromotionError."""
    channel = locked(trial.channel)
    row = Trial.objects.active().select_for_update(of=("self",)).filter(pk=trial.pk).first()
    if row is None:
        raise PromotionError("This trial has already finished.")
    row.channel = channel
    return row


@transaction.atomic
def stop(*, trial: Trial, by: Any, reason: str, key: ApiKey | None = None) -> Trial:
    """Everybody gets the current version again, even if the candidate is being promoted; a freeze
    does not block it. Raises PromotionError if it has ended, PermissionDenied."""
    row = _active(trial)
    _require_right(row.channel, by, key)
    who = label_of(key) or name_of(by)
    own = Q(pk=row.deployment_id)
    if row.state == TrialState.PROMOTING:
        own |= Q(kind=Deployment.Kind.PROMOTE, version=row.version_id)
    end(
        row,
        TrialState.STOPPED,
        f"Stopped by {who}: {checked_reason(reason)}".rstrip(": "),
        by=by,
        actor_label=label_of(key),
    )
    for deployment in row.channel.deployments.active().filter(own):
        deployments.stop(deployment=deployment, by=by, reason=f"The trial was stopped by {who}.")
    return row


@transaction.atomic
def advance(*, trial: Trial, by: Any, reason: str, key: ApiKey | None = None) -> Trial:
    """Advances to the next share before the step is passed. Raises PromotionError,
    PermissionDenied.
    """
    row = _active(trial)
    _require_right(row.channel, by, key)
    require_not_frozen(row.channel)
    if row.state != TrialState.RUNNING:
        raise PromotionError("The trial is not running yet.")
    if problem := held_up(rules_of(row), reading_of(row)):
        raise PromotionError(
            f"No further step can be taken. {problem} Wait for more sessions, or stop the trial."
        )
    if row.step + 1 >= len(row.steps):
        raise PromotionError(
            "This is the last step. Promote the candidate from its gate report, or stop the trial."
        )
    reason = checked_reason(reason, "Enter a reason: the trial has not yet decided on its own.")
    next_step(row, reason, by=by, who=label_of(key) or name_of(by), actor_label=label_of(key))
    return row


def next_step(
    trial: Trial, why: str, *, by: Any = None, who: str = "", actor_label: str = ""
) -> None:
    """`trial`: locked by `_active` or `running.look`."""
    trial.step, trial.step_at = trial.step + 1, timezone.now()
    add_decision(trial, "next", why, who)
    trial.save(update_fields=["step", "step_at", "decisions"])
    announce_advanced(trial, why, by=by, actor_label=actor_label)
    notify_listeners(trial.channel)


def add_decision(trial: Trial, what: str, why: str, who: str = "") -> None:
    """Unsaved."""
    share = trial.share
    trial.decisions.append(
        {
            "at": timezone.now().isoformat(),
            "what": what,
            "by": who,
            "why": why,
            "step": trial.step,
            "share": share,
        }
    )
