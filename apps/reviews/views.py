from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.environments.models import Verifier
from apps.evals.models import EvalRun
from apps.reviews import actions
from apps.reviews.models import ReviewItem, RewardReview


@project_view()
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    verifiers = [(verifier, actions.lock_state(verifier)) for verifier in project.verifiers.all()]
    runs = EvalRun.objects.filter(project=project, state="succeeded").select_related("model_version", "eval_set")[:12]
    return render(
        request,
        "reviews/list.html",
        {
            "verifiers": verifiers,
            "runs": runs,
            "reviews": project.reward_reviews.select_related("verifier", "created_by"),
        },
    )


@require_POST
@project_view(Role.MEMBER)
def open_review(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    run = get_object_or_404(EvalRun.objects.select_related("environment__verifier"), project=project, pk=pk)
    try:
        review = actions.open_review(run=run, by=request.user)
    except actions.ReviewError as error:
        messages.error(request, str(error))
        return redirect("evals:run", project.slug, pk)
    return redirect("reviews:detail", project.slug, review.pk)


@project_view()
def detail(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    review = get_object_or_404(RewardReview.objects.select_related("verifier", "run"), project=project, pk=pk)
    items = review.items.select_related("sample__task")
    judged = items.filter(judgements__by=request.user)
    agreement = actions.agreement_of(review)
    disagreements = [
        (item, judgement)
        for item in items.prefetch_related("judgements__by")
        for judgement in item.judgements.all()
        if judgement.success != item.sample.success
    ]
    return render(
        request,
        "reviews/detail.html",
        {
            "review": review,
            "item": items.exclude(judgements__by=request.user).first(),
            "done": judged.count(),
            "total": items.count(),
            "agreement": agreement,
            "disagreements": disagreements,
            "last": judged.order_by("-judgements__at").first(),
            "lock": actions.lock_state(review.verifier),
        },
    )


@require_POST
@project_view(Role.MEMBER)
def judge(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    item = get_object_or_404(ReviewItem.objects.select_related("review__project"), review__project=project, pk=pk)
    if request.POST.get("success") not in ("1", "0"):
        messages.error(request, "Say whether the output did the task: success or failure.")
    else:
        actions.judge(
            item=item, success=request.POST["success"] == "1", by=request.user, note=request.POST.get("note", "")
        )
    return redirect("reviews:detail", project.slug, item.review_id)


@require_POST
@project_view(Role.MEMBER)
def undo(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    review = get_object_or_404(RewardReview, project=project, pk=pk)
    if actions.undo(review=review, by=request.user) is None:
        messages.info(request, "There is nothing to undo.")
    return redirect("reviews:detail", project.slug, pk)


@require_POST
@project_view(Role.ADMIN)
def override(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    verifier = get_object_or_404(Verifier.objects.select_related("project"), project=project, pk=pk)
    try:
        actions.override_lock(verifier=verifier, reason=request.POST.get("reason", ""), by=request.user)
    except actions.ReviewError as error:
        messages.error(request, str(error))
    return redirect("reviews:list", project.slug)
