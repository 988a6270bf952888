"""The same request twice is one task: which tasks and proposals a new one is the same as, and in
which failures a request was seen.

Two are the same if their prompts are (`canonical_hash`); if they expect the same changes, which say
enough to tell requests apart; or if their users say the same, or nearly the same, and they expect
no different calls. Ids that a machine wrote into a request (a UUID, a time stamp) and that no call
uses are no part of it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from django.db.models import Count
from django.utils import timezone

from apps.core.models import Project
from apps.evals.canonical import digest_of
from apps.evals.formats.verifiers_package import RECORDED
from apps.evals.models import ProposalState, Split, Task, TaskOccurrence, TaskProposal
from apps.evals.near_duplicates import compare
from apps.evals.near_duplicates.calls import (
    Call,
    Document,
    calls_of,
    document,
    keys_of,
    leaves_of,
    same_calls,
    weight_of,
    words_of,
)
from apps.evals.near_duplicates.markup import plain
from apps.evals.near_duplicates.search import TELLING
from apps.evals.near_duplicates.text import content
from apps.evals.proposals.alike import Wish, likest, nearest
from workers.lib.messages import native_calls

COMPARED = 2_000  # tasks of a project that a proposal is compared with, the newest
FIELDS = ("canonical_hash", "messages", "expected", "metadata")
MACHINE_IDS = re.compile(
    r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"
    r"|\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"
    r"|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{16,64}\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Request:
    """What a task asks for, prepared for comparing."""

    canonical_hash: str
    messages: Sequence[dict]
    expected: dict
    metadata: dict
    merged_into: str = ""  # the hash of the request that a person says it is the same as

    @classmethod
    def of(cls, row: Task | TaskProposal) -> Request:
        return cls(row.canonical_hash, row.messages, row.expected, row.metadata)

    @property
    def counts_on(self) -> str:
        """The hash of the request in whose failures it is counted."""
        return self.merged_into or self.canonical_hash

    @cached_property
    def wish(self) -> Wish:
        return Wish.of(self.users, self.expected, self.recorded)

    @cached_property
    def users(self) -> list[dict]:
        """The users' messages, without ids that no call uses."""
        return [
            {"role": "user", "content": self._without_ids(words_of(message))}
            for message in self.messages
            if message.get("role") == "user"
        ]

    def _without_ids(self, text: str) -> str:
        return MACHINE_IDS.sub(
            lambda found: found.group() if found.group().casefold() in self.used else " ", text
        )

    @cached_property
    def used(self) -> str:
        """All values that a call of the task has, expected, made or recorded."""
        calls: list[Any] = [self.expected, self.recorded]
        calls += [call.args for message in self.messages for call in native_calls(message)]
        return "\n".join(str(leaf) for _, leaf in leaves_of(calls)).casefold()

    @property
    def recorded(self) -> list[dict]:
        """The calls of the run that it was made from."""
        found = self.metadata.get(RECORDED)
        return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []

    @cached_property
    def words(self) -> str:
        """A digest of what the users say; empty if they say nothing in words."""
        turns = [content(plain(message["content"])) for message in self.users]
        return digest_of(turns) if any(turns) else ""

    @cached_property
    def calls(self) -> list[Call] | None:
        """The expected calls; None if the task expects something else."""
        has_calls = "calls" in self.expected or "tool" in self.expected
        return calls_of(self.expected) if has_calls else None

    @cached_property
    def document(self) -> Document:
        return document(self.users, self.expected)

    def is_same(self, other: Request) -> bool:
        if self.canonical_hash == other.canonical_hash:
            return True
        if self.calls is not None and other.calls is not None:
            common = same_calls(self.calls, other.calls)
            if common is None or bool(self.calls) != bool(other.calls):
                return False
            if weight_of(common) >= TELLING and len(common) == len(self.calls):
                return True
        if self.words and self.words == other.words:
            return True
        return compare.similarity(self.document, other.document) >= compare.NEARLY_IDENTICAL


class Index:
    """Requests, found by those that are the same."""

    def __init__(self, requests: Iterable[Request] = ()) -> None:
        self.requests: list[Request] = []
        self._by_hash: dict[str, Request] = {}
        self._by_words: defaultdict[str, list[Request]] = defaultdict(list)
        self._by_call: defaultdict[Hashable, list[Request]] = defaultdict(list)
        for request in requests:
            self.add(request)

    def add(self, request: Request) -> None:
        self.requests.append(request)
        self._by_hash.setdefault(request.canonical_hash, request)
        if request.words:
            self._by_words[request.words].append(request)
        for key in keys_of(request.calls or ()):
            self._by_call[key].append(request)

    def same_as(self, request: Request, near: Iterable[Request] = ()) -> Request | None:
        """`near` are others whose texts are alike."""
        if found := self._by_hash.get(request.canonical_hash):
            return found
        by_call = [self._by_call.get(key, []) for key in keys_of(request.calls or ())]
        rarest: list[Request] = min(by_call, key=len, default=[])
        others = chain(rarest, self._by_words.get(request.words, ()), near)
        return next((other for other in others if request.is_same(other)), None)


class Known:
    """The requests of a project's tasks and proposals. `held` are those of held-out tasks."""

    def __init__(
        self, project: Project, offered: Sequence[Request], *, proposals: bool = True
    ) -> None:
        tasks = Task.objects.filter(project=project).order_by("-created_at")
        rows = list(tasks.values_list(*FIELDS, "split")[:COMPARED])
        others = project.task_proposals.exclude(state=ProposalState.CONFIRMED)
        some = others if proposals else others.none()
        waiting = list(some.values_list(*FIELDS, "state", "looks_like")[:COMPARED])
        self.held = Index(Request(*row[:4]) for row in rows if row[4] == Split.HOLDOUT)
        self.requests = Index(Request(*row[:4]) for row in rows if row[4] != Split.HOLDOUT)
        for row in waiting:
            if row[4] == ProposalState.PROPOSED:
                self.requests.add(Request(*row[:4]))
            elif row[4] == ProposalState.MERGED:
                self.requests.add(Request(*row[:4], merged_into=row[5]))
        self.rejected = Index(
            Request(*row[:4]) for row in waiting if row[4] == ProposalState.REJECTED
        )
        known = [*self.held.requests, *self.requests.requests, *self.rejected.requests]
        self._near = _near(offered, known)

    def same_as(self, request: Request) -> Request | None:
        return self.requests.same_as(request, self._near_in(self.requests, request))

    def looks_like(self, request: Request) -> tuple[str, str] | None:
        """(hash of the request that it looks like, why), though it is not certainly the same."""
        others = ((other.counts_on, other.wish) for other in self.requests.requests)
        return likest(request.wish, others)

    def nearest(self, request: Request, most: int) -> list[Request]:
        """Those that share most words, names and numbers with it."""
        own = request.canonical_hash
        others = [other for other in self.requests.requests if other.counts_on != own]
        return nearest(request.wish, ((other, other.wish) for other in others), most)

    def is_held(self, request: Request) -> Request | None:
        return self.held.same_as(request, self._near_in(self.held, request))

    def was_rejected(self, request: Request) -> bool:
        near = self._near_in(self.rejected, request)
        return self.rejected.same_as(request, near) is not None

    def _near_in(self, index: Index, request: Request) -> Iterator[Request]:
        there = {id(other) for other in index.requests}
        return (other for other in self._near.get(id(request), ()) if id(other) in there)


def _near(offered: Sequence[Request], others: Sequence[Request]) -> dict[int, list[Request]]:
    """{id of a request: the others whose texts are nearly identical}."""
    new = list(enumerate(request.document for request in offered))
    old = enumerate(request.document for request in others)
    found: defaultdict[int, list[Request]] = defaultdict(list)
    for at, other, _ in compare.pairs(new, old, compare.NEARLY_IDENTICAL):
        found[id(offered[at])].append(others[other])
    for at, other, _ in compare.pairs(new, threshold=compare.NEARLY_IDENTICAL):
        found[id(offered[at])].append(offered[other])
        found[id(offered[other])].append(offered[at])
    return found


def same_task(task: Task) -> Task | None:
    """The task outside hold-outs, in any set of the project, that asks for the same as an unsaved
    one.
    """
    request = Request.of(task)
    found = Known(task.project, [request], proposals=False).same_as(request)
    if found is None:
        return None
    rows = Task.objects.filter(project=task.project, canonical_hash=found.canonical_hash)
    return rows.select_related("eval_set").order_by("-created_at").first()


def other_of(proposal: TaskProposal) -> Task | TaskProposal | None:
    """The task outside hold-outs, or else the proposal, that this one looks like."""
    named = {"project": proposal.project_id, "canonical_hash": proposal.looks_like}
    if not proposal.looks_like or Task.objects.holdout().filter(**named).exists():
        return None
    tasks = Task.objects.filter(**named).select_related("eval_set", "project")
    waiting = TaskProposal.objects.filter(**named, state=ProposalState.PROPOSED)
    return tasks.order_by("-created_at").first() or waiting.select_related("trajectory").first()


def settle_proposals(task: Task, *, by: Any) -> None:
    """A person has made the task of a request that was only proposed so far."""
    rows = TaskProposal.objects.filter(project=task.project, canonical_hash=task.canonical_hash)
    rows.filter(state=ProposalState.PROPOSED).update(
        state=ProposalState.CONFIRMED,
        task=task,
        decided_by=by,
        decided_at=timezone.now(),
        is_drafting=False,
    )


# Where it was seen


def record_occurrences(project: Project, runs: Mapping[str, Iterable[Any]]) -> None:
    """`runs` are ids of failed runs by the canonical hash of the task that they ask for."""
    rows = [
        TaskOccurrence(project=project, canonical_hash=digest, trajectory_id=pk)
        for digest, ids in runs.items()
        for pk in ids
    ]
    TaskOccurrence.objects.bulk_create(rows, ignore_conflicts=True)


def move_occurrences(
    project: Project, here: str, there: str, runs: Collection[Any] | None = None
) -> None:
    """Counts runs on another request from now on; all of them, if they are not named."""
    rows = TaskOccurrence.objects.filter(project=project, canonical_hash=here)
    rows = rows if runs is None else rows.filter(trajectory__in=runs)
    record_occurrences(project, {there: list(rows.values_list("trajectory_id", flat=True))})
    rows.delete()


def seen_in(project: Project, hashes: Collection[str]) -> dict[str, int]:
    """{canonical hash: in how many failures the request was seen}."""
    rows = TaskOccurrence.objects.filter(project=project, canonical_hash__in=hashes)
    return dict(rows.values_list("canonical_hash").annotate(n=Count("pk")).order_by())


def occurrences(project: Project, canonical_hash: str) -> Iterator[TaskOccurrence]:
    rows = TaskOccurrence.objects.filter(project=project, canonical_hash=canonical_hash)
    yield from rows.select_related("trajectory").order_by("-at", "-pk")[:50]
