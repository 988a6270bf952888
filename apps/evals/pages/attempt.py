"""The last steps of a view that changes a set: run the action, show errors, go back to a page of
the set.
"""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from apps.evals.actions import EvalSetError, HoldoutLeak
from apps.evals.holdout.view_log import record_leak_views, record_refusal, record_seen
from apps.evals.models import EvalSet


def attempt(
    request: HttpRequest, eval_set: EvalSet, act: Callable[[], object], page: str = "detail"
) -> HttpResponse:
    try:
        act()
    except EvalSetError as error:
        if answer := side_by_side(request, eval_set, error):
            return answer
        record_refusal(eval_set.project, error, by=request.user)
        messages.error(request, str(error))
    return redirect(f"evals:{page}", eval_set.project.slug, eval_set.pk)


def side_by_side(request: HttpRequest, eval_set: EvalSet, error: Exception) -> HttpResponse | None:
    """Both requests of a leak, if the error names them; whoever sees the held-out one has viewed
    it.
    """
    pair = error.pair if isinstance(error, HoldoutLeak) else None
    if pair is None:
        return None
    if pair.theirs_is_held:
        record_leak_views(eval_set.project, [pair], by=request.user)
    else:
        tasks = eval_set.tasks.filter(key=pair.key)
        record_seen(eval_set.project, tasks, by=request.user, detail="a leak, side by side")
    return render(request, "evals/leak.html", {"eval_set": eval_set, "leak": pair}, status=400)
