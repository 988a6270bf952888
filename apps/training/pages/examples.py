"""The examples that a run would learn from, before it starts, and those that a finished run learned
from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse

from apps.core.access import project_view
from apps.core.forms import query_of
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.core.query import PAGE_NUMBER
from apps.core.routes import HOW_MANY, UNCOUNTED, shows
from apps.evals.models import Task
from apps.training import judged
from apps.training.comparison import runs_of
from apps.training.forms import EXAMPLES
from apps.training.models import SHAPES, Example, Method, Shape, Source
from apps.training.picks import PickForm
from workers.lib.messages import text_of

PREVIEWED, SIZE = 5, 25
ABOUT = (
    "method",
    "eval_set",
    "picked_by",
    "per_group",
    *EXAMPLES,
)  # the fields that select examples


@shows(HOW_MANY, UNCOUNTED)
@project_view(
    Role.ENGINEER, query={name: kind for name, kind in query_of(PickForm).items() if name in ABOUT}
)
def preview(request: HttpRequest, project: Project) -> HttpResponse:
    """The fragment below the sources of the new-run form: the number of examples, their origin, and
    a few of them.
    """
    form = PickForm(project, request.GET)
    form.is_valid()  # the rest of the form may still be empty
    shape = SHAPES.get(form.cleaned_data.get("method", ""))
    problems = [error for name in ABOUT for error in form.errors.get(name, ())]
    if problems:
        context = {
            "project": project,
            "shape": shape,
            "problems": problems,
            "eval_set": form.cleaned_data.get("eval_set"),
        }
        return render(request, "training/_examples.html", context)
    if shape is None:
        return render(
            request, "training/_task_counts.html", {"project": project} | task_counts(form)
        )
    found = form.found()
    rows = rows_of(project, spread(found.examples, PREVIEWED))
    return render(
        request,
        "training/_examples.html",
        {
            "project": project,
            "shape": shape,
            "found": found,
            "rows": rows,
            "sources": [(Source(name).label, count) for name, count in found.by_source.items()],
            "left_out": found.left_out.most_common(),
            "weights": weights_of(found.good, found.bad) if shape == Shape.LABELS else None,
        },
    )


@project_view(query={"page": PAGE_NUMBER})
def of_run(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    run = get_object_or_404(runs_of(project), pk=pk)
    page = page_of(request, run.dataset.examples.all(), SIZE)
    rows = rows_of(project, page.object_list)
    return render(
        request,
        "training/examples.html",
        {"run": run, "page": page, "rows": rows, "shape": run.dataset.shape},
    )


def task_counts(form: PickForm) -> dict[str, Any]:
    """The counts for SFT and GRPO: the training tasks of the set, or those that an evaluation
    picks, and the sizes of the other splits.
    """
    data = form.cleaned_data
    tasks = data["eval_set"].tasks
    train = tasks.trainable()
    if data.get("picked_by"):
        train = train.filter(pk__in=form.selection()["keys"])
    shown = train.exclude(demonstration="") if data.get("method") == Method.SFT else train.none()
    return {
        "method": data.get("method"),
        "train": train.count(),
        "demonstrations": (demonstrations := shown.count()),
        "without": train.count() - demonstrations,
        "splits": Counter(tasks.values_list("split", flat=True)),
        "rows": [
            {
                "url": reverse("evals:task", args=[data["eval_set"].project.slug, task.pk]),
                "source": task.key,
                "request": asked(task.messages),
                "answer": task.demonstration,
            }
            for task in shown[:PREVIEWED]
        ],
    }


def spread(examples: list[judged.Example], most: int) -> list[judged.Example]:
    """A few examples from every source."""
    by_source: dict[str, list[judged.Example]] = {}
    for example in examples:
        by_source.setdefault(example.source, []).append(example)
    each = -(-most // max(1, len(by_source)))
    return [example for some in by_source.values() for example in some[:each]][:most]


def rows_of(project: Project, examples: Iterable[judged.Example | Example]) -> list[dict[str, Any]]:
    """Rows for the table: source, request, and answers of each example."""
    given = [
        (
            one,
            getattr(one, "task_id", None) or one.task,
            getattr(one, "trajectory_id", None) or one.trajectory,
        )
        for one in examples
    ]
    tasks = Task.objects.filter(project=project).in_bulk([task for _, task, _ in given if task])
    rows = []
    for example, task_pk, trajectory in given:
        task = tasks.get(task_pk)
        page = (
            ("evals:task", task_pk)
            if task
            else ("trajectories:detail", trajectory)
            if trajectory
            else None
        )
        rows.append(
            {
                "source": Source(example.source).label,
                "url": reverse(page[0], args=[project.slug, page[1]]) if page else "",
                "request": asked(task.messages if task else example.data.get("messages", [])),
                **{
                    name: example.data.get(name)
                    for name in ("chosen", "rejected", "answer", "good")
                },
            }
        )
    return rows


def asked(messages: list[dict]) -> str:
    """The user's last message."""
    return next(
        (text_of(message) for message in reversed(messages) if message.get("role") == "user"), ""
    )


def weights_of(good: int, bad: int) -> tuple[float, float]:
    """The weights that `workers.kto` gives to good and bad answers."""
    return max(1.0, bad / max(1, good)), max(1.0, good / max(1, bad))
