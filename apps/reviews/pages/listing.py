"""The verifiers with their locks, the reviews, and opening one."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.forms import query_of
from apps.core.models import ACTIVE_STATES, Project, Role
from apps.core.paging import page_of
from apps.core.query import FLAG, PAGE_NUMBER, many
from apps.core.routes import TOTALS, WHEN_EVALUATED, shows
from apps.environments.models import Verifier
from apps.reviews import actions, rescoring
from apps.reviews.drawing import draw
from apps.reviews.forms import OpenForm, scorable
from apps.reviews.models import RewardReview
from apps.reviews.policy import policy_in_force
from apps.reviews.reservations import progress_of
from apps.teamwork.assigning import assigned_to

RECENT = 20


@shows(TOTALS, WHEN_EVALUATED)
@project_view(query={"mine": FLAG, "page": PAGE_NUMBER})
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    page = page_of(request, project.verifiers.order_by("-created_at", "-pk"), 20)
    locks = actions.lock_states(page.object_list)
    page.object_list = [(verifier, locks[verifier.pk]) for verifier in page.object_list]
    mine = bool(request.GET.get("mine"))
    rows = project.reward_reviews.select_related("verifier", "created_by")
    if mine:
        rows = rows.filter(pk__in=assigned_to(request.user, RewardReview))
    reviews = list(rows[:RECENT])
    progress = progress_of(reviews)
    context = {
        "page": page,
        "policy": policy_in_force(project),
        "mine": mine,
        "reviews": [(review, progress[review.pk]) for review in reviews],
    }
    return render(request, "reviews/list.html", context)


@shows("outputs on held-out tasks, drawn for a review")
@project_view(Role.ENGINEER, query=query_of(OpenForm) | {"run": many(UUID)})
def open_review(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """Which evaluations of a verifier version to review, and how many of their samples."""
    verifier = get_object_or_404(Verifier.objects.select_related("project"), project=project, pk=pk)
    if request.htmx:
        return drawn(request, verifier)
    form = OpenForm(verifier, request.POST or None, chosen=request.GET.getlist("run"))
    if request.method == "POST" and form.is_valid():
        try:
            review = actions.open_review(
                runs=list(form.cleaned_data["runs"]),
                verifier=verifier,
                size=form.cleaned_data["size"],
                seed=form.cleaned_data["seed"],
                by=request.user,
            )
        except actions.ReviewError as error:
            form.add_error(None, str(error))
        else:
            return redirect("reviews:detail", project.slug, review.pk)
    context = {
        "verifier": verifier,
        "form": form,
        "policy": policy_in_force(project),
        "earlier": verifier.reviews.count(),
        "scorable": scorable(verifier),
        "scoring": (
            verifier.rescores.filter(candidate_hash=verifier.hash, state__in=ACTIVE_STATES).first()
        ),
    }
    return render(request, "reviews/open.html", context)


def drawn(request: HttpRequest, verifier: Verifier) -> HttpResponse:
    """What the current form would draw: how many nobody has judged, and which strata would be
    thin.
    """
    form = OpenForm(verifier, request.GET)
    if not form.is_valid():
        return render(request, "reviews/_drawn.html", {"waiting": "runs" in form.errors})
    given = form.cleaned_data
    try:
        found = draw(
            runs=list(given["runs"]), verifier=verifier, size=given["size"], seed=given["seed"]
        )
    except actions.ReviewError as error:
        return render(request, "reviews/_drawn.html", {"error": str(error)})
    return render(request, "reviews/_drawn.html", {"found": found})


@require_POST
@project_view(Role.ENGINEER)
def score_run(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """Has the samples of an evaluation by another version scored by this one, so that they can be
    reviewed.
    """
    verifier = get_object_or_404(Verifier.objects.select_related("project"), project=project, pk=pk)
    run = next((one for one in scorable(verifier) if str(one.pk) == request.POST.get("run")), None)
    if run is None:
        messages.error(
            request, "Choose an evaluation that another version of this verifier scored."
        )
        return redirect("reviews:open", project.slug, pk)
    try:
        rescoring.submit_rescore(
            verifier=verifier,
            candidate=verifier.spec,
            environment=run.environment,
            samples=rescoring.spread_of(run),
            by=request.user,
        )
    except rescoring.RescoringError as error:
        messages.error(request, str(error))
    return redirect("reviews:open", project.slug, pk)


@require_POST
@project_view(Role.OWNER)
def override(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    verifier = get_object_or_404(Verifier.objects.select_related("project"), project=project, pk=pk)
    try:
        actions.override_lock(
            verifier=verifier, reason=request.POST.get("reason", ""), by=request.user
        )
    except actions.ReviewError as error:
        messages.error(request, str(error))
    return redirect("reviews:list", project.slug)
