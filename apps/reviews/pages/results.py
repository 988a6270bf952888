"""A review's results, its labels as a file, and rulings on disagreements."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.actions import audit
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.core.query import PAGE_NUMBER
from apps.core.routes import OUTPUTS, shows
from apps.evals.holdout.view_log import record_sample_views
from apps.evals.models import Sample
from apps.reviews import actions, results
from apps.reviews.case import case_of, shown_of
from apps.reviews.evidence import of_people, verdict
from apps.reviews.labels import Label, labels_of
from apps.reviews.models import ReviewItem, RewardReview
from apps.reviews.pages.judging import find
from apps.reviews.policy import policy_in_force
from apps.reviews.reservations import Queue, needed_of

COLUMNS = (
    "item",
    "task",
    "model",
    "stratum",
    "held_out",
    "reward",
    "success",
    "person",
    "ruling",
    "ruling_reason",
    "reviewer",
    "judged",
    "note",
    "agrees",
    "reason",
    "at",
    "output",
)


def find_review(project: Project, pk: int) -> RewardReview:
    rows = RewardReview.objects.select_related(
        "verifier", "created_by", "project"
    ).prefetch_related("runs__model_version")
    return get_object_or_404(rows, project=project, pk=pk)


def open_items(request: HttpRequest, review: RewardReview, labels: list[Label]) -> set[int]:
    """The items whose scores and judgements this person may see: not those they have yet to
    judge.
    """
    needed, judges = needed_of(review), request.membership.may(Role.REVIEWER)
    return {label.item for label in labels if results.open_to(label, request.user, needed, judges)}


@shows(OUTPUTS)
@project_view(query={"page": PAGE_NUMBER})
def detail(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    review = find_review(project, pk)
    labels, policy, needed = labels_of([pk])[pk], policy_in_force(project), needed_of(review)
    found, unfinished = verdict(review, labels, policy), of_people(review, labels, policy)
    bins, error, low, high = results.calibration_of(labels, needed)
    may_see, kept = open_items(request, review, labels), results.held_out(review)
    wrong = results.disagreements_of(labels, needed)
    seen = [item for item in wrong if item in may_see]
    shown = [item for item in seen if item not in kept]
    context = {
        "review": review,
        "policy_now": render_to_string("reviews/_policy_words.html", {"policy": policy}),
        "policy_then": render_to_string("reviews/_policy_words.html", {"policy": review.policy}),
        "verdict": found,
        "passed": found.passed and not unfinished,
        "reasons": [*unfinished, *found.reasons],
        "lock": actions.lock_state(review.verifier),
        "is_newest": review == review.verifier.reviews.exclude(scope__has_key="training").first(),
        "on_all": results.on_all(review, labels, needed),
        "spearman": results.rank_correlation(labels, needed),
        "calibration_error": error,
        "figure": results.calibration_figure(bins, low, high),
        "reviewers": results.reviewers_of(review, labels),
        "strata": results.strata_of(labels, needed),
        "total": len(labels),
        "complete": sum(label.is_complete(needed) for label in labels),
        "begun": sum(bool(label.answers) and not label.is_complete(needed) for label in labels),
        "needed": needed,
        "waiting": sum(label.differs(needed) for label in labels),
        "to_rule": any(label.may_be_ruled(needed) for label in labels),
        "left": Queue(review, request.user).left() if request.membership.may(Role.REVIEWER) else 0,
        "disagreements": disagreements(shown, page=request),
        "hidden": len(wrong) - len(seen),
        "held_out": len(seen) - len(shown),
        "held_out_total": len(kept),
    }
    return render(request, "reviews/detail.html", context)


def disagreements(pks: list[int], page: HttpRequest) -> Any:
    """A page of them, in their order, with the judgements."""
    found = page_of(page, pks, 20)
    rows = with_words(ReviewItem.objects.filter(pk__in=list(found.object_list))).in_bulk()
    found.object_list = [rows[pk] for pk in found.object_list]
    samples = [item.scored for item in found.object_list]
    record_sample_views(page.project, samples, by=page.user, detail="disagreements of a review")
    return found


def with_words(items: QuerySet[ReviewItem]) -> QuerySet[ReviewItem]:
    rows = items.select_related(
        "sample__task", "sample__run__model_version", "sent__task", "sent__environment", "ruled_by"
    )
    return rows.prefetch_related("judgements__by")


@shows(OUTPUTS)
@project_view(Role.REVIEWER, query={"page": PAGE_NUMBER})
def adjudicate(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """Disagreements side by side: first what waits for a ruling, then second thoughts, then what
    was ruled. Held-out items are included: without a ruling they would have no label."""
    review = find_review(project, pk)
    needed = needed_of(review)
    labels = [label for label in labels_of([pk])[pk] if label.may_be_ruled(needed)]
    order = [
        label.item
        for label in sorted(
            labels, key=lambda one: (one.ruling is not None, not one.differs(needed))
        )
    ]
    page = page_of(request, order, 10)
    rows = with_words(review.items.filter(pk__in=list(page.object_list))).select_related(
        "review__verifier",
        "sample__task",
        "sample__run__environment__verifier",
        "sample__run__model_version",
        "sent__environment__verifier",
        "ruled_by",
    )
    found = rows.in_bulk()
    record_sample_views(
        project, [item.scored for item in found.values()], by=request.user, detail=f"review {pk}"
    )
    kept = results.held_out(review)
    page.object_list = [
        _ruled(request, found[item]) | {"held_out": item in kept} for item in page.object_list
    ]
    waiting, ruled = (
        sum(one.differs(needed) for one in labels),
        sum(one.ruling is not None for one in labels),
    )
    counts = {"waiting": waiting, "ruled": ruled, "thoughts": len(labels) - waiting - ruled}
    context = {"review": review, "page": page} | counts
    return render(request, "reviews/adjudicate.html", context)


def _ruled(request: HttpRequest, item: ReviewItem) -> dict[str, Any]:
    said = sorted(item.judgements.all(), key=lambda judgement: judgement.at)
    theirs = any(judgement.by_id == request.user.pk for judgement in said)
    return {
        "item": item,
        "case": case_of(item),
        "shown": shown_of(item),
        "judgements": said,
        "differs": len({judgement.success for judgement in said}) > 1,
        "may_rule": not theirs or request.membership.may(Role.OWNER),
    }


@require_POST
@project_view(Role.REVIEWER)
def rule(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    item, given = find(project, pk), request.POST
    try:
        if given.get("success") not in ("1", "0"):
            raise actions.ReviewError("Choose whether the output did the task: success or failure.")
        actions.rule(
            item=item,
            success=given["success"] == "1",
            reason=given.get("reason", ""),
            by=request.user,
        )
    except actions.ReviewError as error:
        messages.error(request, str(error))
    else:
        messages.success(
            request,
            f"Ruled: sample {item.position + 1} is a"
            f" {'success' if given['success'] == '1' else 'failure'}.",
        )
    return redirect("reviews:adjudicate", project.slug, item.review_id)


@shows(OUTPUTS)
@project_view(query={"held_out": ("1",), "format": ("csv", "jsonl")})
def export(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """The labels, one row per judgement: those of samples that this person may see. With
    `?held_out=1` also those hidden from whoever edits the verifier, which is recorded in the audit
    log."""
    review = find_review(project, pk)
    labels, kept = labels_of([pk])[pk], results.held_out(review)
    everything = request.GET.get("held_out") == "1"
    pks = open_items(request, review, labels) - (set() if everything else kept)
    if everything:
        audit(
            "review.held_out_exported",
            project=project,
            by=request.user,
            target=review,
            n=len(pks & kept),
        )
    samples = Sample.objects.filter(review_items__in=pks)
    record_sample_views(project, samples, by=request.user, detail=f"labels of review {pk}")
    persons = {label.item: label.person(needed_of(review)) for label in labels}
    rows = rows_of(review, pks, persons, kept)
    as_csv = request.GET.get("format") != "jsonl"
    name = f"review-{review.pk}.{'csv' if as_csv else 'jsonl'}"
    text = "".join(
        csv_of(rows) if as_csv else (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    )
    kind = "text/csv; charset=utf-8" if as_csv else "application/jsonl"
    return HttpResponse(
        text, content_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'}
    )


def rows_of(
    review: RewardReview, pks: set[int], persons: dict[int, bool | None], kept: set[int]
) -> Iterator[dict[str, Any]]:
    for item in with_words(review.items.filter(pk__in=pks)).order_by("position"):
        for said in sorted(item.judgements.all(), key=lambda judgement: judgement.at):
            values = (
                item.pk,
                item.scored.task.key,
                str(item.scored.run.model_version),
                item.stratum,
                item.pk in kept,
                item.reward,
                item.success,
                persons[item.pk],
                item.ruling,
                item.ruling_reason,
                said.by.get_username(),
                said.success,
                said.note,
                said.agrees,
                said.reason,
                said.at.isoformat(),
                item.scored.output,
            )
            yield dict(zip(COLUMNS, values, strict=True))


def csv_of(rows: Iterator[dict[str, Any]]) -> Iterator[str]:
    """With a header. What a spreadsheet would run as a formula is made text by an apostrophe."""
    held = io.StringIO()
    writer = csv.DictWriter(held, COLUMNS)
    writer.writeheader()
    writer.writerows({key: _plain(value) for key, value in row.items()} for row in rows)
    yield held.getvalue()


def _plain(value: Any) -> Any:
    return (
        f"'{value}"
        if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r")
        else value
    )
