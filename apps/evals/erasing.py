"""Tasks whose run was deleted: what they said goes, and the hashes stay by which a hold-out is
known. So nothing that was held out can be trained on because it was deleted, and the digest of a
frozen set still says what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from django.db import connection
from django.db.models import QuerySet
from django.utils import timezone

from apps.core.bus import Event, on, publish
from apps.core.mentions import Mentioned
from apps.evals.actions import content_of
from apps.evals.canonical import digest_of
from apps.evals.models import (
    Answer,
    EvalSet,
    MeaningPair,
    MeaningVerdict,
    Sample,
    SampleRollout,
    Task,
    TaskProposal,
)
from apps.evals.stand_ins import stand_in
from apps.trajectories.copies import Copies

AT_ONCE = 500
SAYS_NOTHING = {"output": "", "messages": [], "details": [], "mask_reason": ""}


class TasksErased(Event):
    """What these tasks said is gone, and what quotes them has to go, too."""

    tasks: list[UUID]


@on(Copies)
def tasks_of(question: Copies) -> Mapping[str, int]:
    """Tasks made from the runs, their variants, and what was evaluated on them."""
    made = Task.objects.filter(project=question.project, trajectory__in=question.runs.values("pk"))
    if question.erase:
        return {"tasks": erase(made)}
    variants = Task.objects.filter(variant_of__in=made.values("pk"))
    samples = Sample.objects.filter(task__in=made.values("pk"))
    answers = Answer.objects.filter(task__in=made.values("pk"))
    proposals = TaskProposal.objects.filter(trajectory__in=question.runs.values("pk"))
    return {
        "tasks": made.count() + variants.count(),
        "evaluation samples": samples.count() + answers.count(),
        "proposed tasks": proposals.count(),
    }


@on(Mentioned[Task])
def erase_mentioned(question: Mentioned[Task]) -> int:
    return erase(question.rows.filter(erased_at=None))


def erase(tasks: QuerySet[Task]) -> int:
    """Returns how many. Those of frozen sets, too: the set keeps its digest."""
    erased = 0
    wanted = list(tasks.order_by("pk").values_list("pk", flat=True))
    while wanted:
        rows = list(
            Task.every.filter(pk__in=wanted[:AT_ONCE], erased_at=None)
            .select_for_update()
            .order_by("pk")
        )
        variants = Task.objects.filter(variant_of__in=rows).values_list("pk", flat=True)
        wanted = [*wanted[AT_ONCE:], *variants]
        _erase(rows)
        erased += len(rows)
    return erased


def _erase(rows: list[Task]) -> None:
    now = timezone.now()
    for task in rows:
        task.erased_digest = digest_of(content_of(task))
        task.erased_at, task.trajectory, task.variant_of = now, None, None
        task.key = f"erased-{task.pk.hex[:16]}"
        task.messages, task.tools, task.expected = [], [], {}
        task.demonstration, task.metadata = "", {}
        task.groups = [stand_in(name) for name in task.groups]
        task.group = task.group_key = stand_in(task.group_key)
    _save(rows)
    pks = [task.pk for task in rows]
    hashes = [task.canonical_hash for task in rows]
    samples = Sample.objects.filter(task__in=pks)
    samples.update(**SAYS_NOTHING, tags=[])
    for task in rows:
        samples.filter(task=task.pk).update(task_key=task.key)
    Answer.objects.filter(task__in=pks).update(turns=[], error="")
    SampleRollout.objects.filter(task__in=pks).update(state=None)
    MeaningPair.objects.filter(other__in=pks).update(text="")
    for side in ("one", "two"):
        MeaningVerdict.objects.filter(**{f"{side}__in": hashes}).update(removed={})
    TaskProposal.objects.filter(task__in=pks).delete()
    publish(TasksErased(pks))


def _save(rows: list[Task]) -> None:
    columns = ("messages", "tools", "expected", "demonstration", "metadata", "trajectory")
    names = ("key", "group", "group_key", "groups", "variant_of", "erased_at", "erased_digest")
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL flywheel.purge = 'on'")
        Task.every.bulk_update(rows, [*columns, *names])
        cursor.execute("SET LOCAL flywheel.purge = 'off'")


def digest_now(eval_set: EvalSet) -> str:
    """The digest of a set, computed from its tasks and what is left of the erased ones: that of a
    frozen set is this, as long as nobody has tampered with it.
    """
    tasks = Task.every.filter(eval_set=eval_set)
    return digest_of(sorted(task.erased_digest or digest_of(content_of(task)) for task in tasks))
