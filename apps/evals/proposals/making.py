"""Proposing the tasks of many failures at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from django.db import transaction

from apps.core import jobs, locks
from apps.core.actions import audit
from apps.core.kinds import Progress
from apps.core.locks import ProjectLock
from apps.core.models import Project
from apps.evals.formats.rows import has_request
from apps.evals.from_failures import metadata_of
from apps.evals.holdout import leaks
from apps.evals.holdout.view_log import record_membership
from apps.evals.later_turns import LEFT_OUT
from apps.evals.models import Origin, ProposalJob, Split, Task, TaskProposal
from apps.evals.proposals import drafting
from apps.evals.proposals.same import Known, Request, record_occurrences
from apps.evals.source_runs import read_run, settings_of
from apps.evals.suggestions import UNWRITTEN, Plan, demonstration_of, plan_of
from apps.failures.models import Failure
from apps.trajectories.models import with_content

MOST, CHUNK = 200, 10  # failures of a job, and of one step of it


@dataclass(frozen=True)
class Proposed:
    """What came of it: `known` requests are tasks or proposals already, `rejected` ones were
    rejected before, `held` ones are too close to a hold-out. Of those `made`, `drafting` wait for
    the judge and `to_write` for a person.
    """

    made: int = 0
    known: int = 0
    rejected: int = 0
    held: int = 0
    without_request: int = 0
    drafting: int = 0
    to_write: int = 0

    def __str__(self) -> str:
        parts = [f"{self.made:,} task{'' if self.made == 1 else 's'} proposed"]
        notes = (
            (self.drafting, "the judge was asked to draft {n} of them"),
            (self.to_write, "{n} need a rubric by hand"),
            (self.known, "{n} asked the same as a task that exists, and are counted there"),
            (self.rejected, "{n} were rejected before"),
            (self.held, "{n} skipped: too similar to, or in the same group as, a hold-out"),
            (self.without_request, "{n} skipped: no step of the agent follows a request"),
        )
        parts += [text.format(n=f"{n:,}") for n, text in notes if n]
        return "; ".join(parts) + "."


def start(*, project: Project, failures: Iterable[int], by: Any, what: str) -> ProposalJob:
    """Has a worker propose the tasks of failures; `what` says where they come from. Raises
    IntegrityError while another one runs.
    """
    ids = list(failures)
    spec = {"failures": ids, "what": what}
    job = ProposalJob(project=project, name=f"Propose tasks {what}", total=len(ids), spec=spec)
    with transaction.atomic():
        return jobs.submit(job, by=by)


def steps(job: ProposalJob) -> Generator[Progress, None, dict]:
    project, ids = job.project, job.spec["failures"]
    cursor = {"done": 0, "proposed": {}} | job.cursor
    rows = project.failures.standing().select_related("trajectory", "mode")
    while chunk := ids[cursor["done"] : cursor["done"] + CHUNK]:
        found = rows.filter(pk__in=chunk).order_by("-trajectory_id")
        total = Counter(cursor["proposed"])
        total.update(asdict(propose(project=project, failures=found, by=job.created_by)))
        cursor = {"done": cursor["done"] + len(chunk), "proposed": dict(total)}
        yield Progress(done=cursor["done"], cursor=cursor)
    proposed = Proposed(**cursor["proposed"])
    audit(
        "proposals.made",
        project=project,
        by=job.created_by,
        what=job.spec["what"],
        made=proposed.made,
        known=proposed.known,
        held=proposed.held,
    )
    return asdict(proposed)


@transaction.atomic
def propose(*, project: Project, failures: Iterable[Failure], by: Any) -> Proposed:
    """Proposes a task for each failure. Whoever is told that some are held out has seen that, which
    counts as a view.
    """
    locks.acquire_in(project.pk, ProjectLock.TASKS)
    chosen = list(failures)
    with_content([failure.trajectory for failure in chosen])
    settings = settings_of(project)
    counts: dict[str, int] = defaultdict(int)
    offered: list[TaskProposal] = []
    for failure in chosen:
        failure.trajectory.project = project
        plan = plan_of(read_run(failure.trajectory, settings), failure.blamed_message)
        if plan is None or not has_request(plan.step.prompt):
            counts["without_request"] += 1
        else:
            offered.append(_proposal(project, failure, plan, by))
    requests = {row.pk: Request.of(row) for row in offered}
    known = Known(project, list(requests.values()))
    crossing = _held(project, offered, requests, known, by)
    free = [row for row in offered if row.pk not in crossing]
    new, runs = _new(free, requests, known, counts)
    TaskProposal.objects.bulk_create(new)
    record_occurrences(project, runs)
    drafts = sum(not row.expected for row in new)
    waits_for = "drafting" if drafting.judge_of(project) else "to_write"
    counts |= {"made": len(new), "held": len(crossing), waits_for: drafts}
    if any(row.is_drafting for row in new):
        drafting.request(project)
    return Proposed(**counts)


def _proposal(project: Project, failure: Failure, plan: Plan, by: Any) -> TaskProposal:
    """Unsaved."""
    answer, source = plan.answer, plan.step.source
    metadata = metadata_of(failure, plan.step, answer)
    return TaskProposal(
        project=project,
        trajectory=source.row,
        failure=failure,
        kind=plan.kind,
        source=answer.source if answer else UNWRITTEN,
        reason=plan.reason,
        unknown=list(plan.unknown),
        warnings=list(plan.warnings),
        cut=plan.step.cut,
        canonical_hash=plan.step.digest,
        messages=plan.step.prompt,
        tools=source.row.tools,
        expected=answer.expected if answer else {},
        demonstration=demonstration_of(answer.expected) if answer else "",
        group=source.groups.offered[0][1],
        groups=source.groups.keys,
        metadata=metadata,
        is_drafting=answer is None or bool(metadata.get(LEFT_OUT)),
        created_by=by,
    )


def unsaved_task(proposal: TaskProposal, **fields: Any) -> Task:
    """The task that a proposal becomes."""
    return Task(
        project=proposal.project,
        split=Split.TRAIN,
        group=proposal.group,
        groups=proposal.groups,
        canonical_hash=proposal.canonical_hash,
        messages=proposal.messages,
        tools=proposal.tools,
        expected=proposal.expected,
        demonstration=proposal.demonstration,
        trajectory_id=proposal.trajectory_id,
        origin=Origin.FAILURE,
        metadata=proposal.metadata,
        **fields,
    )


def _held(
    project: Project,
    offered: Sequence[TaskProposal],
    requests: Mapping[Any, Request],
    known: Known,
    viewer: Any,
) -> set[Any]:
    """The ids of those that are held out, nearly are, or share a group with a hold-out."""
    tasks = [unsaved_task(row, key=str(row.pk)) for row in offered]
    for task in tasks:
        task.name_groups()
    found = {leak.key: leak.theirs_hash for leak in leaks.crossings(project, tasks)}
    for row in offered:
        if str(row.pk) not in found and (other := known.is_held(requests[row.pk])):
            found[str(row.pk)] = other.canonical_hash
    record_membership(project, set(found.values()), by=viewer, detail="left out of proposals")
    return {row.pk for row in offered if str(row.pk) in found}


def _new(
    offered: Iterable[TaskProposal],
    requests: Mapping[Any, Request],
    known: Known,
    counts: dict[str, int],
) -> tuple[list[TaskProposal], dict[str, list[Any]]]:
    """Each request once. And the runs by the request of the task or proposal that they ask for."""
    new: list[TaskProposal] = []
    runs: defaultdict[str, list[Any]] = defaultdict(list)
    for row in offered:
        request = requests[row.pk]
        if other := known.same_as(request):
            counts["known"] += 1
            runs[other.counts_on].append(row.trajectory_id)
        elif known.was_rejected(request):
            counts["rejected"] += 1
        else:
            row.looks_like, row.looks_like_why = known.looks_like(request) or ("", "")
            known.requests.add(request)
            new.append(row)
            runs[row.canonical_hash].append(row.trajectory_id)
    return new, runs
