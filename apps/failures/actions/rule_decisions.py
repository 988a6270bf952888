"""People's decisions on the rules of a system prompt, and the rules they write. Each change has the
project's runs classified again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import F, Max
from django.utils import timezone

from apps.core.actions import audit
from apps.core.locks import ProjectLock, acquire_in
from apps.core.models import Project
from apps.failures import classify_job
from apps.failures.actions.decisions import Refused
from apps.failures.models import Classifier, PolicyRule, SystemPrompt
from apps.failures.prompts import ALL_RUNS
from apps.failures.rules.conditions import key_of, understood
from apps.failures.rules.findings import cut
from apps.failures.rules.written import Invalid, written_rule

State = PolicyRule.State
CHANGED = "This rule was edited or removed in the meantime. Reload the page."
MOST_WRITTEN = 100  # current rules per project


@transaction.atomic
def decide(*, project: Project, rule: PolicyRule, state: str, by: Any) -> bool:
    """Confirm or dismiss a rule, or undo that. Returns False if nothing changes. Raises Refused."""
    if state not in PolicyRule.DECISIONS:
        raise Refused("The state must be confirmed, dismissed or proposed.")
    if (
        not PolicyRule.objects.current()
        .filter(pk=rule.pk)
        .exclude(state=state)
        .update(state=state, **_decided(state, by))
    ):
        if not PolicyRule.objects.current().filter(pk=rule.pk).exists():
            raise Refused(CHANGED)
        return False
    audit(f"policy_rule.{state}", project=project, by=by, target=rule, sentence=cut(rule.sentence))
    classify_again(project, by)
    return True


@transaction.atomic
def write(
    *,
    project: Project,
    prompt: SystemPrompt | None,
    sentence: str,
    form: Mapping[str, str],
    state: str = State.CONFIRMED,
    by: Any,
) -> PolicyRule:
    """Add a rule that a person wrote for the runs of a prompt, or for all runs. Raises Invalid and
    Refused.
    """
    _lock(project)
    prompt = (
        prompt
        or SystemPrompt.objects.get_or_create(
            project=project, digest=ALL_RUNS, defaults={"length": 0}
        )[0]
    )
    if (
        PolicyRule.objects.current().filter(prompt__project=project, written=True).count()
        >= MOST_WRITTEN
    ):
        raise Refused(
            f"A project can have at most {MOST_WRITTEN} rules written by hand. Remove one first."
        )
    last = prompt.rules.aggregate(last=Max("position"))["last"]
    rule = _create(prompt, sentence, form, state, by, position=0 if last is None else last + 1)
    audit("policy_rule.written", project=project, by=by, target=rule, sentence=cut(rule.sentence))
    classify_again(project, by)
    return rule


@transaction.atomic
def edit(
    *,
    project: Project,
    rule: PolicyRule,
    sentence: str,
    form: Mapping[str, str],
    state: str = State.CONFIRMED,
    by: Any,
) -> PolicyRule:
    """Replace a rule with a new version. Raises Invalid and Refused."""
    _lock(project)
    if key_of(written_rule(sentence, form)) == rule.key:
        raise Invalid({"sentence": "Nothing has changed."})
    if (
        not PolicyRule.objects.current()
        .filter(pk=rule.pk)
        .update(state=State.REPLACED, **_decided(State.REPLACED, by))
    ):
        raise Refused(CHANGED)
    new = _create(
        rule.prompt,
        sentence,
        form,
        state,
        by,
        position=rule.position,
        version=rule.version + 1,
        replaces=rule,
    )
    audit(
        "policy_rule.edited",
        project=project,
        by=by,
        target=new,
        sentence=cut(new.sentence),
        version=new.version,
    )
    classify_again(project, by)
    return new


@transaction.atomic
def remove(*, project: Project, rule: PolicyRule, by: Any) -> None:
    """Remove a rule that a person wrote. If it had replaced a rule from the prompt, that one
    becomes a proposal again. Raises Refused.
    """
    _lock(project)
    if not rule.written:
        raise Refused(
            "This rule is in the system prompt and would be found again. Dismiss it instead."
        )
    if (
        not PolicyRule.objects.current()
        .filter(pk=rule.pk)
        .update(state=State.REMOVED, **_decided(State.REMOVED, by))
    ):
        raise Refused(CHANGED)
    read = rule
    while read.replaces is not None:
        read = read.replaces
    is_free = not PolicyRule.objects.current().filter(prompt=read.prompt, key=read.key).exists()
    if not read.written and is_free:
        PolicyRule.objects.filter(pk=read.pk, state=State.REPLACED).update(
            state=State.PROPOSED, **_decided(State.PROPOSED, by)
        )
    audit("policy_rule.removed", project=project, by=by, target=rule, sentence=cut(rule.sentence))
    classify_again(project, by)


def _create(
    prompt: SystemPrompt, sentence: str, form: Mapping[str, str], state: str, by: Any, **fields: Any
) -> PolicyRule:
    if state not in (State.CONFIRMED, State.PROPOSED):
        raise Invalid({"state": "The state of a new rule must be confirmed or proposed."})
    rule = written_rule(sentence, form)
    if prompt.rules.current().filter(key=key_of(rule)).exists():
        raise Invalid({"sentence": "This rule already exists."})
    return prompt.rules.create(
        key=key_of(rule),
        sentence=rule.sentence,
        understood=understood(rule),
        state=state,
        written=True,
        written_by=by,
        **_decided(state, by),
        **fields,
    )


def _decided(state: str, by: Any) -> dict[str, Any]:
    return (
        {"decided_by": None, "decided_at": None}
        if state == State.PROPOSED
        else {"decided_by": by, "decided_at": timezone.now()}
    )


def _lock(project: Project) -> None:
    """Serialize writers of a project's rules, including a classification that adds rules or makes
    room for them.
    """
    acquire_in(project.pk, ProjectLock.POLICY)


def classify_again(project: Project, by: Any) -> None:
    """Queues a pass over all runs of the project."""
    Classifier.objects.filter(project=project).update(policy=F("policy") + 1)
    transaction.on_commit(partial(classify_job.start, project=project, by=by))


@transaction.atomic
def undo(*, project: Project, by: Any) -> PolicyRule | None:
    """Turn the rule that the person decided on last back into a proposal. Returns it, or None if
    there is none.
    """
    rows = (
        PolicyRule.objects.select_for_update(of=("self",))
        .current()
        .filter(prompt__project=project, decided_by=by)
    )
    rule = rows.order_by("-decided_at", "-pk").first()
    if rule is not None:
        decide(project=project, rule=rule, state=State.PROPOSED, by=by)
    return rule
