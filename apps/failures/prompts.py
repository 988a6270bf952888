"""The rules of a project's agents: those that the judge read in system prompts, and those that
people wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any
from uuid import UUID

from django.db.models import Count, OuterRef, Prefetch, QuerySet, Subquery
from django.db.models.functions import Coalesce

from apps.core.models import Project
from apps.failures.models import JudgeVerdict, PolicyExample, PolicyRule
from apps.failures.rules.policy import Rule
from apps.failures.rules.reading import system_of
from apps.failures.rules.statements import parts_of
from apps.trajectories.models import Trajectory

MOST_EXAMPLES = 5
State = PolicyRule.State


def rules_of(project: Project) -> QuerySet[PolicyRule]:
    """All versions of rules, with who decided, the `newest` runs that break each, how many of the
    `tried` runs do (`runs`), and in how many the judge saw it broken (`judged`).
    """
    newest = PolicyExample.objects.select_related("trajectory").order_by("-trajectory_id")
    rows = project.policy_rules.select_related("decided_by", "written_by", "prompt")
    return rows.annotate(
        runs=_count(PolicyExample.objects, "rule"), judged=_count(JudgeVerdict.objects, "rule")
    ).prefetch_related(Prefetch("examples", newest[:MOST_EXAMPLES], to_attr="newest"))


def _count(rows: Any, name: str) -> Coalesce:
    those = rows.filter(**{name: OuterRef("pk")}).order_by().values(name)
    return Coalesce(Subquery(those.annotate(n=Count("pk")).values("n")), 0)


def undecided(project: Project) -> int:
    """The number of rules that nobody has confirmed or dismissed."""
    return project.policy_rules.filter(state=State.PROPOSED).count()


def policy_of(project: Project, rows: Iterable[Trajectory]) -> dict[UUID, dict[str, Any]]:
    """{run: {"rules": the confirmed rules that apply to it}}"""
    confirmed = list(project.policy_rules.filter(state=State.CONFIRMED))
    return {
        row.pk: {
            "rules": [
                Rule(rule.pk, rule.sentence, rule.check_spec)
                for rule in confirmed
                if applies(rule, parts)
            ]
        }
        for row in (rows if confirmed else ())
        for parts in [frozenset(parts_of(system_of(row.content["messages"])))]
    }


def applies(rule: PolicyRule, parts: Set[str]) -> bool:
    """Whether a rule applies to a run, by the parts of its prompt."""
    return all(part in parts for part in rule.parts)
