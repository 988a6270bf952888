"""The queue of a reward review: one sample after the other, by the keyboard; blind first, then with
its score.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.http import go
from apps.core.models import Project, Role
from apps.core.query import FLAG
from apps.core.routes import OUTPUTS, shows
from apps.evals.holdout.view_log import record_sample_views
from apps.reviews import actions
from apps.reviews.case import case_of, shown_of
from apps.reviews.models import Judgement, ReviewItem, RewardReview
from apps.reviews.reservations import Queue, holder_of, needed_of, release, reserve

ALL_DONE = "You have judged everything assigned to you."
NOTHING = "No answer to undo. A blind verdict is locked once the score is shown."
OTHERS_HAVE_IT = "The remaining samples are open for others. They appear here when free."


def find(project: Project, pk: int) -> ReviewItem:
    rows = ReviewItem.objects.select_related(
        "review__verifier",
        "review__project",
        "reserved_by",
        "sample__task",
        "sample__run__environment__verifier",
        "sample__run__model_version",
        "sent__task",
        "sent__environment__verifier",
        "ruled_by",
    )
    return get_object_or_404(rows, review__project=project, pk=pk)


@project_view(Role.REVIEWER)
def queue(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """The first sample that needs this person; if none is free, why."""
    review = get_object_or_404(
        RewardReview.objects.select_related("verifier", "project"), project=project, pk=pk
    )
    if item := Queue(review, request.user).take():
        return go(request, reverse("reviews:item", args=[project.slug, item]))
    return finished(request, review)


@shows(OUTPUTS)
@project_view(Role.REVIEWER)
def item(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    return show(request, find(project, pk))


@shows(OUTPUTS)
@project_view(Role.REVIEWER, query={"back": FLAG, "ahead": FLAG})
def step(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """The next sample, or with `?back=1` the previously judged one. With `?ahead=1` it is only
    prefetched.
    """
    here = find(project, pk)
    way = Queue(here.review, request.user)
    other = way.previous(here) if request.GET.get("back") else way.take(here.position, skip=pk)
    if request.GET.get("ahead"):
        blind = other and not way.mine().filter(item=other).exists()
        return show(request, find(project, other), beside=pk) if blind else HttpResponse(status=204)
    if not request.htmx:
        return redirect("reviews:item", project.slug, other or pk)
    return show(
        request, find(project, other) if other else here, note="" if other else "No other samples."
    )


@shows(OUTPUTS)
@require_POST
@project_view(Role.REVIEWER)
def judge(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """The blind verdict; responds with the same sample and its score."""
    here, given = find(project, pk), request.POST
    if given.get("success") not in ("1", "0"):
        return again(request, here, "Choose whether the output did the task: success or failure.")
    success, note = given["success"] == "1", given.get("note", "")
    return after(
        request,
        here,
        lambda: actions.judge(item=here, success=success, by=request.user, note=note),
        stay=True,
    )


@shows(OUTPUTS)
@require_POST
@project_view(Role.REVIEWER)
def answer(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """Whether the score is right; responds with the next sample."""
    here, given = find(project, pk), request.POST
    if given.get("agrees") not in ("1", "0"):
        return again(request, here, "Choose whether the score is right: agree or disagree.")
    agrees, reason = given["agrees"] == "1", given.get("reason", "")
    return after(
        request,
        here,
        lambda: actions.answer(item=here, agrees=agrees, by=request.user, reason=reason),
    )


@shows(OUTPUTS)
@require_POST
@project_view(Role.REVIEWER)
def undo(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """Takes back the person's last answer on a score and shows its sample."""
    review = get_object_or_404(
        RewardReview.objects.select_related("verifier", "project"), project=project, pk=pk
    )
    try:
        done, said = actions.undo(review=review, by=request.user), NOTHING
    except actions.ReviewError as error:
        done, said = None, str(error)
    if done is None:
        messages.info(request, said)
        return go(request, reverse("reviews:queue", args=[project.slug, pk]))
    if not request.htmx:
        return redirect("reviews:item", project.slug, done.pk)
    return show(request, find(project, done.pk), note="Your last answer was undone.")


# What the answers are made of


def after(
    request: HttpRequest, here: ReviewItem, act: Callable[[], Any], stay: bool = False
) -> HttpResponse:
    """Runs the action, and responds with the next sample; if it is refused, with the same one and
    the reason.
    """
    try:
        act()
    except actions.ReviewError as refused:
        return again(request, here, str(refused))
    if stay:
        return again(request, here)
    pk = Queue(here.review, request.user).take(here.position, skip=here.pk)
    if pk is None:
        return finished(request, here.review)
    if not request.htmx:
        return redirect("reviews:item", here.review.project.slug, pk)
    return show(
        request, find(here.review.project, pk), is_there=request.POST.get("ahead") == str(pk)
    )


def again(request: HttpRequest, here: ReviewItem, error: str = "") -> HttpResponse:
    if request.htmx:
        return show(request, find(here.review.project, here.pk), error=error)
    if error:
        messages.error(request, error)
    return redirect("reviews:item", here.review.project.slug, here.pk)


def finished(request: HttpRequest, review: RewardReview) -> HttpResponse:
    """No sample is free: says why. If others hold the rest, the page polls."""
    release(review=review, by=request.user)
    left = Queue(review, request.user).left()
    context = {"review": review, "left": left, "said": OTHERS_HAVE_IT if left else ALL_DONE}
    template = "_case_none" if request.htmx else "case"
    return never_kept(render(request, f"reviews/{template}.html", context))


def show(
    request: HttpRequest,
    here: ReviewItem,
    *,
    note: str = "",
    error: str = "",
    beside: int | None = None,
    is_there: bool = False,
) -> HttpResponse:
    """A sample, reserved for this person: the page, its fragment for htmx, or (`is_there`: the
    browser already shows it) only the counts. `beside` is one that stays on the screen too."""
    mine = here.judgements.filter(by=request.user).first()
    holder = None if mine else _reserve(request, here, beside)
    is_there = is_there and holder is None and mine is None
    record_sample_views(
        here.review.project, [here.scored], by=request.user, detail=f"review {here.review_id}"
    )
    context = _context(request, here, mine) | {"holder": holder, "note": note, "error": error}
    template = "_case_counts" if is_there else "_case" if request.htmx else "case"
    response = render(request, f"reviews/{template}.html", context)
    if request.htmx and not beside:
        response["HX-Replace-Url"] = reverse(
            "reviews:item", args=[here.review.project.slug, here.pk]
        )
    if is_there:
        response["HX-Reswap"] = "none"
    response["X-Case"] = str(here.pk)
    return never_kept(response)


def _context(request: HttpRequest, here: ReviewItem, mine: Judgement | None) -> dict[str, Any]:
    """Without the score and anything that others said, until this person's verdict is final."""
    way, needed = Queue(here.review, request.user), needed_of(here.review)
    context = {
        "review": here.review,
        "case": case_of(here),
        "mine": mine,
        "left": way.left(),
        "total": here.review.items.count(),
        "needed": needed,
        "closed": mine is None and (here.ruling is not None or here.judgements.count() >= needed),
    }
    if mine:
        others = here.judgements.exclude(by=request.user).select_related("by").order_by("at")
        context |= {
            "shown": shown_of(here),
            "others": others,
            "ruled": here if here.ruling is not None else None,
        }
    return context


def _reserve(request: HttpRequest, here: ReviewItem, beside: int | None) -> Any:
    """Who else has it; None if this person has it now."""
    release(review=here.review, by=request.user, keep=(here.pk, *([beside] if beside else ())))
    return None if reserve(item=here, by=request.user) else holder_of(here, request.user)


def never_kept(response: HttpResponse) -> HttpResponse:
    response["Cache-Control"] = "private, no-cache"
    patch_vary_headers(response, ["HX-Request"])
    return response
