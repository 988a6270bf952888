"""What people decide on the rules of a system prompt. Each change has the project's runs classified again."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from apps.core.actions import audit
from apps.core.models import Project
from apps.failures import classify_job
from apps.failures.actions.decisions import Refused
from apps.failures.models import Classifier, PolicyRule
from apps.failures.rules.findings import cut

State = PolicyRule.State


@transaction.atomic
def decide(*, project: Project, rule: PolicyRule, state: str, by: Any) -> bool:
    """Confirms or dismisses a rule, or takes that back. False if nothing changes. Raises Refused."""
    if state not in State.values:
        raise Refused("The state must be confirmed, dismissed or proposed.")
    is_open = state == State.PROPOSED
    decided = {"decided_by": None, "decided_at": None} if is_open else {"decided_by": by, "decided_at": timezone.now()}
    if not PolicyRule.objects.filter(pk=rule.pk).exclude(state=state).update(state=state, **decided):
        return False
    audit(f"policy_rule.{state}", project=project, by=by, target=rule, sentence=cut(rule.sentence))
    Classifier.objects.filter(project=project).update(policy=F("policy") + 1)
    transaction.on_commit(partial(classify_job.start, project=project, by=by))
    return True


@transaction.atomic
def undo(*, project: Project, by: Any) -> PolicyRule | None:
    """Makes the rule that the person decided on last a proposal again; None if there is none."""
    rows = PolicyRule.objects.select_for_update(of=("self",)).filter(prompt__project=project, decided_by=by)
    rule = rows.order_by("-decided_at", "-pk").first()
    if rule is not None:
        decide(project=project, rule=rule, state=State.PROPOSED, by=by)
    return rule
