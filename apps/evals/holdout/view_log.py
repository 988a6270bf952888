"""Records every view of held-out tasks, by task content: a hold-out wears out by being seen.

A view shows a person or an API key the request, the answer, outputs, scores or the membership of
held-out tasks. Views are recorded over all versions and sets of a project in which one of the tasks
is held out (`views_of`), and counted by `view_count`, once per person and day.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.db.models import Count, Max, Q, QuerySet
from django.db.models.functions import TruncDate
from django.utils import timezone

from apps.core.actions import audit
from apps.core.bus import on
from apps.core.errors import RefusalShown
from apps.core.models import ApiKey, Project
from apps.evals.canonical import content_key
from apps.evals.holdout.leaks import Leak
from apps.evals.models import EvalRun, EvalSet, HoldoutView, Sample, Split, Task

WORN_OUT = 30  # views after which the set's page recommends fresh tasks


def record_view(
    *,
    eval_set: EvalSet,
    by: Any,
    detail: str = "",
    kind: HoldoutView.Kind = HoldoutView.Kind.VIEW,
) -> HoldoutView:
    """A view of the whole hold-out of a set; each call counts. `by`: a user, an API key, or None
    for the command line.
    """
    tasks = sorted(_keys_of(eval_set.tasks.holdout()))
    rows = {"project": eval_set.project, "kind": kind, "detail": detail[:200], **_who(by)}
    return _store(eval_set, tasks, rows)


def record_seen(
    project: Project,
    tasks: QuerySet[Task],
    *,
    by: Any,
    detail: str,
    kind: HoldoutView.Kind = HoldoutView.Kind.VIEW,
    each_time: bool = False,
) -> HoldoutView | None:
    """A view of those of these tasks that are held out: each once per person (or key) and `detail`,
    unless `each_time`.

    Seeing something again in the same place reveals nothing new; a second score does.
    """
    found = tasks.holdout().filter(project=project)
    seen = _keys_of(found)
    rows: dict[str, Any] = {"project": project, "kind": kind, "detail": detail[:200], **_who(by)}
    if seen and not each_time:
        earlier = HoldoutView.objects.filter(**rows, tasks__overlap=list(seen)).values_list(
            "tasks", flat=True
        )
        seen -= {key for tasks in earlier for key in tasks}
    if not seen:
        return None
    newest = EvalSet.objects.get(
        pk=found.order_by("-created_at").values_list("eval_set", flat=True)[0]
    )
    return _store(newest, sorted(seen), rows)


def record_production_view(project: Project, tasks: QuerySet[Task], *, by: Any, where: str) -> None:
    """A view of production runs that have the requests of these held-out tasks: one row per person
    (or key) and day, however many pages showed them."""
    seen = _keys_of(tasks.holdout().filter(project=project))
    if not seen:
        return
    today = HoldoutView.objects.filter(
        project=project,
        kind=HoldoutView.Kind.VIEW,
        detail__startswith=IN_PRODUCTION,
        at__date=timezone.localdate(),
        **_who(by),
    )
    if row := today.first():
        if not seen <= set(row.tasks):
            HoldoutView.objects.filter(pk=row.pk).update(tasks=sorted(seen | set(row.tasks)))
        return
    record_seen(project, tasks, by=by, detail=f"{IN_PRODUCTION}: {where}", each_time=True)


@transaction.atomic
def _store(eval_set: EvalSet, tasks: list[int], rows: dict[str, Any]) -> HoldoutView:
    row = HoldoutView.objects.create(eval_set=eval_set, tasks=tasks, **rows)
    key = row.api_key
    audit(
        f"holdout.{row.kind}",
        project=row.project,
        by=row.by,
        target=eval_set,
        about=[key],
        actor_label=f"API key “{key.name}”" if key else "",
        set=str(eval_set),
        n=len(tasks),
        where=row.detail,
    )
    return row


def record_leak_views(project: Project, leaks: Iterable[Leak], *, by: Any) -> None:
    """The held-out requests that these leaks show, next to what resembles them."""
    hashes = [leak.theirs_hash for leak in leaks]
    record_seen(
        project,
        Task.objects.filter(canonical_hash__in=hashes),
        by=by,
        detail="a leak, side by side",
    )


def record_membership(project: Project, hashes: Iterable[str], *, by: Any, detail: str) -> None:
    """Records that somebody was told that their input is, or resembles, these held-out tasks: that
    reveals what is held out.
    """
    tasks = Task.objects.filter(canonical_hash__in=list(hashes))
    record_seen(project, tasks, by=by, detail=detail, kind=HoldoutView.Kind.MEMBERSHIP)


@on(RefusalShown)
def record_shown_refusal(event: RefusalShown) -> None:
    record_refusal(event.project, event.error, by=event.by)


def record_refusal(project: Project, error: Exception, *, by: Any) -> None:
    """Records what a refusal's sentence reveals about held-out tasks (its `held`), and to whom."""
    record_membership(project, getattr(error, "held", ()), by=by, detail="a refusal")


def record_output_view(run: EvalRun, *, by: Any) -> bool:
    """A page with outputs on held-out tasks is a view: one per person and evaluation.

    Returns whether the run's tasks are held out.
    """
    if run.split != Split.HOLDOUT:
        return False
    record_seen(run.project, run.eval_set.tasks.all(), by=by, detail=_outputs(run))
    return True


def has_opened(run: EvalRun, *, by: Any) -> bool:
    """Whether this person (or key) has viewed the outputs of an evaluation before, or does not need
    to: it has no held-out tasks.
    """
    if run.split != Split.HOLDOUT:
        return True
    kind = HoldoutView.Kind.VIEW
    return HoldoutView.objects.filter(
        project=run.project_id, kind=kind, detail=_outputs(run), **_who(by)
    ).exists()


OUTPUTS, WHOLE_SET = "outputs of ", "tasks on the page"
IN_PRODUCTION = "runs in production"


def _outputs(run: EvalRun) -> str:
    """The detail of a view of an evaluation's outputs. The id is never truncated."""
    return f"{OUTPUTS}{run.name[:140]} ({run.pk})"


def record_task_view(task: Task, *, by: Any) -> None:
    """The page of one task counts as a view if the task is held out."""
    record_seen(task.project, Task.objects.filter(pk=task.pk), by=by, detail=_page(task))


def has_opened_task(task: Task, *, by: Any) -> bool:
    """Whether this person has opened the task's page, or outputs on the task, before; also true if
    it is not held out.
    """
    if task.split != Split.HOLDOUT:
        return True
    views = HoldoutView.objects.filter(
        project=task.project_id, kind=HoldoutView.Kind.VIEW, **_who(by)
    )
    return views.filter(
        Q(detail__in=(_page(task), WHOLE_SET)) | Q(detail__startswith=OUTPUTS),
        tasks__contains=[content_key(task.messages)],
    ).exists()


def _page(task: Task) -> str:
    return f"task {task.pk}"


def record_sample_views(
    project: Project, samples: Iterable[Sample], *, by: Any, detail: str
) -> bool:
    """Records the held-out tasks among those of these samples, whose outputs or scores are shown.
    Returns whether there are any.
    """
    tasks = Task.objects.filter(pk__in={sample.task_id for sample in samples})
    record_seen(project, tasks, by=by, detail=detail)
    return tasks.holdout().exists()


def views_of(eval_set: EvalSet) -> QuerySet[HoldoutView]:
    """The views of any task of a set's hold-out, by task content: also views in other versions and
    sets that hold it out.
    """
    held = _keys_of(eval_set.tasks.holdout())
    return HoldoutView.objects.filter(project=eval_set.project_id, tasks__overlap=list(held))


def view_count(eval_set: EvalSet) -> int:
    """How often a hold-out was viewed, the number that is shown everywhere: what shows its content
    counts once per person (or key) and day, each score by API counts. Evaluations are a number of
    their own, and a refusal shows no content.
    """
    return sum(row["n"] for row in viewers_of(eval_set))


def viewers_of(eval_set: EvalSet) -> list[dict[str, Any]]:
    """[{who, n, last}] of a hold-out's views, most views first; see `view_count`."""
    rows = views_of(eval_set).order_by().annotate(day=TruncDate("at"))
    names = rows.values("by__username", "api_key__name")
    content, scores = (
        names.filter(kind=HoldoutView.Kind.VIEW),
        names.filter(kind=HoldoutView.Kind.SCORE),
    )
    found: dict[str, dict[str, Any]] = {}
    for some in (
        content.annotate(n=Count("day", distinct=True), last=Max("at")),
        scores.annotate(n=Count("pk"), last=Max("at")),
    ):
        for row in some:
            viewer = found.setdefault(_name(row), {"who": _name(row), "n": 0, "last": row["last"]})
            viewer["n"] += row["n"]
            viewer["last"] = max(viewer["last"], row["last"])
    return sorted(found.values(), key=lambda viewer: (viewer["n"], viewer["last"]), reverse=True)


def _name(row: dict[str, Any]) -> str:
    key = row["api_key__name"]
    return row["by__username"] or (f"API key “{key}”" if key else "command line, or a deleted user")


_KEYS: dict[str, int] = {}  # content keys by canonical hash: equal prompts have equal keys
REMEMBERED = 100_000


def _keys_of(tasks: QuerySet[Task]) -> set[int]:
    hashes = set(tasks.order_by().values_list("canonical_hash", flat=True))
    if len(_KEYS) > REMEMBERED:
        _KEYS.clear()
    if new := hashes - _KEYS.keys():
        rows = (
            tasks.order_by()
            .filter(canonical_hash__in=new)
            .values_list("canonical_hash", "messages")
        )
        _KEYS.update((canonical, content_key(messages)) for canonical, messages in rows)
    return {_KEYS[canonical] for canonical in hashes if canonical in _KEYS}


def _who(by: Any) -> dict[str, Any]:
    return {"by": None, "api_key": by} if isinstance(by, ApiKey) else {"by": by, "api_key": None}
