"""The rules in a project's system prompts, parsed once when a prompt is first seen, for people to
confirm or dismiss; and the rules that people write for one prompt or for all runs.

System prompts are untrusted, so what is stored of them is bounded in length and number. If there
are too many, prompts without any decision are deleted, oldest first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Count, Exists, OuterRef, Prefetch, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from apps.core.locks import ProjectLock, acquire_in
from apps.core.models import Project
from apps.failures.models import PolicyExample, PolicyRule, SystemPrompt
from apps.failures.rules import conditions
from apps.failures.rules.reading import read, system_of
from apps.failures.rules.violations import violations
from apps.failures.rules.written import rule_of
from apps.trajectories.models import Trajectory

MOST_PROMPTS, MOST_EXAMPLES = 200, 5
MOST_COUNTED = 100  # runs stored per rule, so that the page can say how many break it
OPENING, LONGEST_TEXT = 300, 500
ALL_RUNS = ""  # the digest of rules that apply to all runs
Rules = dict[tuple[str, str], int]  # {(prompt digest, rule key): id of the rule}


def rules_of(project: Project) -> QuerySet[PolicyRule]:
    """All versions of rules, with who decided, the `newest` runs that break each, and their number
    as `runs` (up to `MOST_COUNTED`).
    """
    examples = PolicyExample.objects.select_related("trajectory").order_by("-trajectory_id")[
        :MOST_EXAMPLES
    ]
    count = (
        PolicyExample.objects.filter(rule=OuterRef("pk"))
        .order_by()
        .values("rule")
        .annotate(n=Count("pk"))
    )
    rows = PolicyRule.objects.filter(prompt__project=project).select_related(
        "decided_by", "written_by", "prompt"
    )
    rows = rows.annotate(runs=Coalesce(Subquery(count.values("n")), 0))
    return rows.prefetch_related(Prefetch("examples", examples, to_attr="newest"))


def undecided(project: Project) -> int:
    """The number of rules that nobody has confirmed or dismissed."""
    return PolicyRule.objects.filter(
        prompt__project=project, state=PolicyRule.State.PROPOSED
    ).count()


def policy_of(project: Project, rows: Iterable[Trajectory]) -> dict[UUID, dict[str, Any]]:
    """People's decisions on the rules of each run's prompt (`rule_states`: {rule key: state}) and
    the rules they wrote (`written_rules`).
    """
    digests = {
        row.pk: conditions.digest_of(system)
        for row in rows
        if conditions.rules_of(system := system_of(row.content["messages"]))
    }
    states: dict[str, dict[str, str]] = defaultdict(dict)
    written: dict[str, list[conditions.Rule]] = defaultdict(list)
    rules = PolicyRule.objects.filter(
        prompt__project=project, prompt__digest__in={ALL_RUNS, *digests.values()}
    )
    found = rules.exclude(written=False, state=PolicyRule.State.PROPOSED).select_related("prompt")
    for rule in sorted(
        found, key=lambda rule: rule.state in PolicyRule.DECISIONS
    ):  # the decision on the current version overrides those on earlier ones
        is_current = rule.state in PolicyRule.DECISIONS
        if rule.written and is_current:
            written[rule.prompt.digest].append(rule_of(rule.sentence, rule.understood))
        if rule.state != PolicyRule.State.PROPOSED:
            states[rule.prompt.digest][rule.key] = (
                rule.state if is_current else conditions.DISMISSED
            )
        elif rule.key in states[rule.prompt.digest]:
            del states[rule.prompt.digest][rule.key]
    if not states and not written:
        return {}
    return {
        row.pk: {
            "rule_states": states.get(ALL_RUNS, {}) | states.get(digests.get(row.pk, ALL_RUNS), {}),
            "written_rules": (
                written.get(digests.get(row.pk, ALL_RUNS), [])
                + (written.get(ALL_RUNS, []) if row.pk in digests else [])
            ),
        }
        for row in rows
    }


def record(project: Project, given: Mapping[UUID, dict]) -> None:
    """Stores the rules of new prompts, and which runs break which rule. `given` is the rules' input
    for the runs.

    Inside the transaction that classifies them.
    """
    PolicyExample.objects.filter(trajectory_id__among=given).delete()
    systems = {pk: system_of(run["messages"]) for pk, run in given.items()}
    prompts = {
        conditions.digest_of(system): system
        for system in systems.values()
        if conditions.rules_of(system)
    }
    if not prompts and not any(run.get("written_rules") for run in given.values()):
        return
    known = _known(project, prompts)
    is_new = any(
        (digest, conditions.key_of(rule)) not in known
        for digest in prompts
        for rule in conditions.rules_of(prompts[digest])
    )
    # A shared lock for readers of rules; adding rules or making room for them takes it exclusively.
    acquire_in(project.pk, ProjectLock.POLICY, shared=not is_new)
    if is_new:
        _add(project, prompts)
    known = _known(project, (*prompts, ALL_RUNS), current=True)
    examples: dict[int, list[PolicyExample]] = defaultdict(list)
    for pk in sorted(given, reverse=True):
        digest = conditions.digest_of(systems[pk])
        for found in (
            violations(read(given[pk]))
            if digest in prompts or given[pk].get("written_rules")
            else ()
        ):
            key = conditions.key_of(found.rule)
            rule = known.get((digest, key), known.get((ALL_RUNS, key)))
            if rule is not None and len(examples[rule]) < MOST_COUNTED:
                text = storable(found.text, LONGEST_TEXT)
                examples[rule].append(
                    PolicyExample(
                        rule_id=rule, trajectory_id=pk, message_index=found.index, text=text
                    )
                )
    PolicyExample.objects.bulk_create(
        [one for rule in sorted(examples) for one in examples[rule]], ignore_conflicts=True
    )
    _keep_newest([rule for rule, found in examples.items() if found])


def _known(project: Project, digests: Iterable[str], current: bool = False) -> Rules:
    rows = PolicyRule.objects.filter(prompt__project=project, prompt__digest__in=list(digests))
    rows = rows.current() if current else rows
    return {
        (digest, key): pk for digest, key, pk in rows.values_list("prompt__digest", "key", "pk")
    }


def _add(project: Project, prompts: Mapping[str, str]) -> None:
    """Stores new prompts and their rules, as proposed; at most `MOST_RULES` per prompt, whatever
    its text.
    """
    SystemPrompt.objects.bulk_create(
        [
            SystemPrompt(
                project=project,
                digest=digest,
                opening=storable(system, OPENING),
                length=len(system),
            )
            for digest, system in sorted(prompts.items())[:MOST_PROMPTS]
        ],
        ignore_conflicts=True,
    )
    there = SystemPrompt.objects.filter(project=project, digest__in=list(prompts))
    there = there.annotate(n=Count("rules", filter=Q(rules__written=False)))
    known = _known(project, prompts)
    rules = []
    for prompt in there:
        stated = [
            rule
            for rule in conditions.rules_of(prompts[prompt.digest])
            if (prompt.digest, conditions.key_of(rule)) not in known
        ]
        rules += [
            PolicyRule(
                prompt=prompt,
                key=conditions.key_of(rule),
                position=position,
                sentence=storable(rule.sentence, conditions.LONGEST_SENTENCE),
                understood={
                    name: storable(value, 200)
                    for name, value in conditions.understood(rule).items()
                },
            )
            for position, rule in enumerate(stated[: conditions.MOST_RULES - prompt.n], prompt.n)
        ]
    PolicyRule.objects.bulk_create(rules, ignore_conflicts=True)
    _make_room(project)


def _make_room(project: Project) -> None:
    """Deletes the oldest prompts without a decision or a written rule if there are too many."""
    rows = SystemPrompt.objects.filter(project=project).exclude(digest=ALL_RUNS)
    if (extra := rows.count() - MOST_PROMPTS) > 0:
        decided = PolicyRule.objects.filter(prompt=OuterRef("pk")).exclude(
            state=PolicyRule.State.PROPOSED, written=False
        )
        oldest = rows.filter(~Exists(decided)).order_by("first_seen", "pk")[:extra]
        SystemPrompt.objects.filter(pk__in=list(oldest.values_list("pk", flat=True))).delete()


def _keep_newest(rules: list[int]) -> None:
    """Rows that another worker is deleting at the same moment are skipped."""
    if not rules:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM failures_policyexample WHERE id IN (SELECT id FROM failures_policyexample"
            " WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY rule_id ORDER"
            " BY trajectory_id DESC) AS place FROM failures_policyexample WHERE rule_id = ANY(%s))"
            " AS ranked WHERE place > %s) ORDER BY id FOR UPDATE SKIP LOCKED)",
            [rules, MOST_COUNTED],
        )


def storable(text: str, limit: int) -> str:
    """The beginning of a text, without characters that PostgreSQL cannot store."""
    clean = text[:limit].replace("\0", "").encode("utf-8", "replace").decode()
    return clean if len(text) <= limit else f"{clean[: limit - 1]}…"
