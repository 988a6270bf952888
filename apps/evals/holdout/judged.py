"""Requests that a person has judged to be the same task (`meaning`): they belong on one side of a
hold-out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from django.db.models import Q

from apps.core.models import Project
from apps.evals.models import MeaningVerdict, Task


def same_as(project: Project, hashes: Collection[str]) -> dict[str, set[str]]:
    """{canonical hash: hashes of the same task}, for those of these hashes that a person has
    judged.
    """
    given, found = set(hashes), defaultdict(set)
    rows = MeaningVerdict.objects.filter(project=project, verdict=MeaningVerdict.Verdict.SAME)
    rows = rows.filter(Q(one__in=given) | Q(two__in=given))
    for one, two in rows.values_list("one", "two"):
        found[one].add(two)
        found[two].add(one)
    return {name: found[name] for name in given & found.keys()}


def within(project: Project, tasks: Sequence[Task]) -> Iterable[tuple[Task, Task]]:
    """Pairs of these tasks that a person has judged the same."""
    by_hash = {task.canonical_hash: task for task in tasks}
    for name, others in same_as(project, by_hash).items():
        yield from ((by_hash[name], by_hash[other]) for other in others if other in by_hash)
