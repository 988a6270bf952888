"""What a gate report must satisfy to promote, besides its verdict, and when an owner has to
decide.
"""

from __future__ import annotations

from apps.core.errors import Rejected
from apps.evals.canonical import digest_of
from apps.evals.models import EvalSet, EvalSetState, Split
from apps.promotion.gate.policy import Policy
from apps.promotion.models import Channel, GateReport, Promotion, Verdict
from apps.promotion.preparation import SPLITS

MAX_REASON = 2_000  # characters


class PromotionError(Rejected):
    """A move that is not allowed; the message is a sentence for the page."""


def require_not_archived(channel: Channel) -> None:
    """Raises PromotionError."""
    if channel.archived_at:
        raise PromotionError(
            f"The channel “{channel}” is archived. A project owner can unarchive it on its page."
        )


def checked_reason(text: str, missing: str = "") -> str:
    """Stripped. Raises PromotionError if it is too long, or empty: with the sentence `missing`, if
    given.
    """
    found = text.strip()
    if missing and not found:
        raise PromotionError(missing)
    if len(found) > MAX_REASON:
        raise PromotionError(
            f"The reason has {len(found):,} characters; {MAX_REASON:,} is the most."
        )
    return found


def why_owner(channel: Channel, report: GateReport, policy: Policy) -> list[str]:
    """Why an owner has to decide, as sentences; empty if nobody has to. The gate does not say
    “promote”, or the comparison could have been chosen to suit the candidate: nothing runs yet; the
    two, or production and its evaluation, differ in the prompt; another eval set decided last time
    and the policy names none; or production was rolled back from the candidate.
    """
    runs = report.baseline, report.candidate
    prompts = {run.environment.agent_hash for run in runs}
    sets = {run.eval_set.slug for run in runs}
    if not policy.eval_set and (
        last := channel.promotions.filter(kind=Promotion.Kind.PROMOTE).first()
    ):
        sets.add(last.gate_report.candidate.eval_set.slug)
    if (moves := channel.forward_moves()) and (live := moves[-1].gate_report):
        prompts.add(live.candidate.environment.agent_hash)
    candidate = report.candidate.model_version
    rolled_back = channel.promotions.filter(
        kind=Promotion.Kind.ROLLBACK, from_version=candidate
    ).exists()
    reasons = {
        f"The gate's verdict is “{report.get_verdict_display().lower()}”.": (
            report.verdict != Verdict.PROMOTE
        ),
        f"Nothing is live in {channel.name} yet, so there is no baseline.": (
            channel.current_id is None
        ),
        "The compared environments, or the one production was promoted with, have different prompts.": (  # noqa: E501
            len(prompts) > 1
        ),
        "The last promotion was decided on another eval set, and the policy does not specify one.": (  # noqa: E501
            len(sets) > 1
        ),
        f"{channel.name} was rolled back from {candidate} before.": rolled_back,
    }
    return [sentence for sentence, holds in reasons.items() if holds]


def require_deciding_set(eval_set: EvalSet, policy: Policy) -> None:
    """Raises PromotionError if the policy names another set, or if a newer version holds out other
    tasks.
    """
    if policy.eval_set and eval_set.slug != policy.eval_set:
        raise PromotionError(
            f"The policy requires {policy.eval_set}; this report compares on {eval_set}."
        )
    newer = EvalSet.objects.filter(
        project=eval_set.project_id, slug=eval_set.slug, version__gt=eval_set.version
    )
    newest = newer.filter(state=EvalSetState.FROZEN).order_by("version").last()
    if newest and _judging(newest) != _judging(eval_set):
        raise PromotionError(
            f"{newest} holds out other tasks than {eval_set}, which the report compares on."
            f" Evaluate both models on {newest}."
        )


def _judging(eval_set: EvalSet) -> set[tuple[str, str]]:
    """The tasks that decide: held out, regression, general capability."""
    rows = eval_set.tasks.filter(split__in=(Split.HOLDOUT, *SPLITS)).order_by()
    return {
        (split, digest_of([prompt, expected]))
        for split, prompt, expected in rows.values_list("split", "canonical_hash", "expected")
    }
