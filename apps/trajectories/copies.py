"""What other layers have made of runs: whoever keeps copies of what runs say counts them before a
deletion, and erases them with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from django.db.models import QuerySet

from apps.core.bus import Question, ask
from apps.core.models import Project
from apps.trajectories.models import Trajectory


class Copies(Question[Mapping[str, int]]):
    """Asks how many copies there are of what these runs say, {what: how many}; with `erase`, they
    are erased. Sums and verdicts stay, and hashes by which a hold-out is known.
    """

    project: Project
    runs: QuerySet[Trajectory]
    erase: bool


class Learners(Question[Iterable[str]]):
    """Asks which model versions, or training runs without one, learned from these runs. They keep
    what they learned.
    """

    project: Project
    runs: QuerySet[Trajectory]


def count(project: Project, runs: QuerySet[Trajectory]) -> Counter[str]:
    return _sum(ask(Copies(project, runs, erase=False)))


def erase(project: Project, runs: QuerySet[Trajectory]) -> Counter[str]:
    return _sum(ask(Copies(project, runs, erase=True)))


def learners(project: Project, runs: QuerySet[Trajectory]) -> list[str]:
    found = ask(Learners(project, runs))
    return sorted({name for names in found for name in names})


def _sum(answers: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counts in answers:
        total.update(counts)
    return +total
