"""What a deletion is of: the runs that filters match, or what belongs to a person."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet
from django.http import QueryDict
from msgspec import Struct, json

from apps.core.mentions import Words
from apps.core.models import Project
from apps.core.query import QueryError
from apps.trajectories import filters as of_lists
from apps.trajectories import tombstones
from apps.trajectories.models import DataDeletion, Trajectory

SHORTEST_TEXT, SHORTEST_ID = 3, 4  # of what is looked for wherever it may be
SYLLABLE = re.compile("[\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]")


class Wanted(Struct, frozen=True):
    """`filters`, or the user ids and the texts of a person; `others` are texts that contain these
    and mean somebody else. With `copies`, also what was made of their runs.
    """

    filters: dict[str, str] = {}
    users: list[str] = []
    texts: list[str] = []
    others: list[str] = []
    copies: bool = True

    @property
    def is_person(self) -> bool:
        return bool(self.users or self.texts)

    @property
    def words(self) -> Words:
        """What of a person is looked for in everything but runs. An id that is short, or a number,
        is in texts that have nothing to do with them.
        """
        ids = [name for name in self.users if not is_short(name)]
        return Words([*self.texts, *ids], self.others)

    @property
    def words_of_runs(self) -> Words:
        """By what runs are found that are not of their user ids."""
        return Words(self.texts, self.others)

    @property
    def says(self) -> str:
        """Without saying who."""
        if not self.is_person:
            return f"runs that match {' and '.join(sorted(self.filters))}"
        parts = [(len(self.users), "user id"), (len(self.texts), "text")]
        named = [f"{n} {what}{'s' * (n != 1)}" for n, what in parts if n]
        return f"a person ({' and '.join(named)})"

    def digests(self, project: Project) -> list[str]:
        """By which a person is recognised who asks whether they were deleted."""
        return sorted(self.digest(project, name) for name in (*self.users, *self.texts))

    def digest(self, project: Project, name: str) -> str:
        return tombstones.digest_of_person(f"{project.pk}:{name}")


def is_short_text(text: str) -> bool:
    """Too short to be looked for in texts. A Chinese character or Korean syllable says as much as
    two letters: two of them are a name.
    """
    return sum(map(str.isalnum, text)) + len(SYLLABLE.findall(text)) < SHORTEST_TEXT


def is_short(user: str) -> bool:
    """An id that is looked for only where a user is named."""
    return len(user) + len(SYLLABLE.findall(user)) < SHORTEST_ID or user.isdecimal()


def wanted_of(job: DataDeletion) -> Wanted:
    return json.decode(job.wanted, type=Wanted)


def as_text(wanted: Wanted) -> str:
    return json.encode(wanted).decode()


def filters_from(text: str) -> dict[str, str]:
    """Of an address; times that move with the clock are fixed. Raises QueryError."""
    given = {name: value.strip() for name, value in QueryDict(text.lstrip("?")).items()}
    given = {name: value for name, value in given.items() if value}
    if unknown := sorted(given.keys() - of_lists.FILTERS.keys()):
        raise QueryError(unknown[0], "is no filter of runs")
    begin, _ = of_lists.bounds(given)
    if given.pop("since", "all") != "all" and begin:
        given["from"] = begin.isoformat()
    return given


def matching(project: Project, wanted: Wanted, before: datetime) -> QuerySet[Trajectory]:
    """The runs that were received before then; those whose texts have to be read are not among
    them. Raises QueryError.
    """
    rows = project.trajectories.filter(received_at__lte=before)
    if not wanted.is_person:
        return of_lists.apply_filters(rows, wanted.filters)
    return rows.filter(terms__overlap=[f"user:{name}" for name in wanted.users])


def in_sessions_of(
    project: Project, runs: list[Trajectory], before: datetime
) -> QuerySet[Trajectory]:
    """Runs without a user in the sessions of these runs."""
    sessions = {f"session:{run.session_id}" for run in runs if run.session_id}
    rows = project.trajectories.filter(received_at__lte=before, user_id="")
    return rows.filter(terms__overlap=sorted(sessions)) if sessions else rows.none()


def of_others(project: Project, wanted: Wanted, sessions: list[str]) -> int:
    """How many runs of other users are in these sessions: they stay."""
    if not sessions:
        return 0
    rows = project.trajectories.exclude(Q(user_id="") | Q(user_id__in=wanted.users))
    return rows.filter(terms__overlap=[f"session:{name}" for name in sessions]).count()


def excerpts(run: Trajectory, words: Words, around: int = 0) -> Iterator[str]:
    """Where a run mentions the words. Its content has been read."""
    columns: list[Any] = [run.session_id, run.user_id, run.outcome_reason, run.outcome_label]
    columns += [run.tags, run.agent_name, run.agent_version, run.workload]
    return words.excerpts([*columns, run.content], around)


def says(run: Trajectory, words: Words) -> bool:
    """Whether a run mentions the words anywhere. Its content has been read."""
    return next(excerpts(run, words), None) is not None
