"""What a gate report must be to promote, beside its verdict, and when an owner has to decide."""

from __future__ import annotations

from apps.core.errors import Rejected
from apps.evals.canonical import digest_of
from apps.evals.models import EvalSet, EvalSetState, Split
from apps.promotion.gate.policy import Policy
from apps.promotion.models import Channel, GateReport, Promotion, Verdict
from apps.promotion.preparation import SPLITS


class PromotionError(Rejected):
    """A move that may not be made; the message is a sentence for the screen."""


def needs_owner(channel: Channel, report: GateReport, policy: Policy) -> bool:
    """Whether an owner has to decide: the gate does not say “promote”, or what it compared could have been chosen for it.

    That is so where nothing runs yet; where the two, or production and its evaluation, differ in the prompt; where another
    eval set decided the last time and the policy names none; and where production was rolled back from the candidate.
    """
    runs = report.baseline, report.candidate
    prompts = {run.environment.agent_hash for run in runs}
    sets = {run.eval_set.slug for run in runs}
    if not policy.eval_set and (last := channel.promotions.filter(kind=Promotion.Kind.PROMOTE).first()):
        sets.add(last.gate_report.candidate.eval_set.slug)
    if (moves := channel.forward_moves()) and (live := moves[-1].gate_report):
        prompts.add(live.candidate.environment.agent_hash)
    candidate = report.candidate.model_version_id
    rolled_back = channel.promotions.filter(kind=Promotion.Kind.ROLLBACK, from_version=candidate).exists()
    chosen = channel.current_id is None or len(prompts) > 1 or len(sets) > 1
    return report.verdict != Verdict.PROMOTE or chosen or rolled_back


def require_deciding_set(eval_set: EvalSet, policy: Policy) -> None:
    """Raises PromotionError where the policy names another set, or a newer version holds out other tasks."""
    if policy.eval_set and eval_set.slug != policy.eval_set:
        raise PromotionError(f"The policy says that {policy.eval_set} decides; the report compares on {eval_set}.")
    newer = EvalSet.objects.filter(project=eval_set.project_id, slug=eval_set.slug, version__gt=eval_set.version)
    newest = newer.filter(state=EvalSetState.FROZEN).order_by("version").last()
    if newest and _judging(newest) != _judging(eval_set):
        raise PromotionError(
            f"{newest} holds out other tasks than {eval_set}, which the report compares on. Evaluate both models on {newest}."
        )


def _judging(eval_set: EvalSet) -> set[tuple[str, str]]:
    """The tasks that decide: held out, regression, general capability."""
    rows = eval_set.tasks.filter(split__in=(Split.HOLDOUT, *SPLITS)).order_by()
    return {(split, digest_of([prompt, expected])) for split, prompt, expected in rows.values_list("split", "canonical_hash", "expected")}  # fmt: skip
