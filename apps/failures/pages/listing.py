"""The modes, their rates, and their failures with bulk actions."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.contrib.auth import get_user_model
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.http import uuid_of
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.core.query import KEY, PAGE_NUMBER, Query, selection_of
from apps.core.routes import RUNS, shows
from apps.core.timeouts import TooLong, patience
from apps.failures import agent_versions, classify_job, rates
from apps.failures.actions import inbox
from apps.failures.actions.bulk import LIMIT, Change, assign_many, decide_many
from apps.failures.actions.decisions import Refused
from apps.failures.changes import changes, marked
from apps.failures.judge import rubrics
from apps.failures.models import FailureDecision, FailureQuerySet, FailureState
from apps.failures.pages.case import triagers
from apps.failures.triage_queue import CONFIDENCES
from apps.failures.unconfirmed import unconfirmed
from apps.trajectories.shown import runs_shown

CHARTS_MS, VERSIONS = 4_000, 50
DID = {"decided": "decided on", "split": "split", "assigned": "assigned", "marked": "marked"}


SPANS, FILTERS = list(rates.SINCE), inbox.listed.operation.inputs
OF_LIST: Query = FILTERS.query | {"since": SPANS, "page": PAGE_NUMBER}


def shown(user: Any, project: Project, given: QueryDict) -> FailureQuerySet:
    """The failures that match the URL's filters."""
    return inbox.listed(project=project, by=user, **FILTERS.from_query(given, project))


@shows(RUNS)
@project_view(query=OF_LIST)
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    given, may = request.GET, request.membership.may(Role.REVIEWER)
    page = page_of(request, shown(request.user, project, given))
    chosen = agent_versions.chosen(project, given.get("agent", ""), given.get("version", ""))
    runs_shown(
        project,
        [row.trajectory_id for row in page],
        to=request.user,
        where="failures",
        previews=True,
    )
    filters = {name: given[name] for name in FILTERS.query if given.get(name)}
    query = QueryDict(mutable=True)
    query.update(filters)
    triage = QueryDict(mutable=True)
    triage.update({name: value for name, value in filters.items() if name != "state"})
    cluster = uuid_of(filters.get("cluster", ""))
    return render(
        request,
        "failures/list.html",
        {
            "buckets": (buckets := rates.buckets(project)),
            "without_failures": sum(not bucket.rate.failed for bucket in buckets),
            "page": page,
            "filters": filters,
            "query": query.urlencode(),
            "triage_query": triage.urlencode(),
            "states": FailureState.choices,
            "confidences": CONFIDENCES,
            "versions": agent_versions.offered(project, VERSIONS),
            "chosen": str(chosen),
            "cluster": project.failure_clusters.filter(pk=cluster).first() if cluster else None,
            "since": given.get("since", "30d"),
            "has_any": project.trajectories.exists(),
            "may_write": may,
            "modes": project.failure_modes.all(),
            "people": triagers(request, project) if may else [],
            "limit": LIMIT,
            "last": last_change(request, project) if may else None,
            "job": project.classifications.first(),
            "unconfirmed": unconfirmed(project),
            "without_judge": rubrics.without(project),
        },
    )


def last_change(request: HttpRequest, project: Project) -> dict | None:
    """What this person's next undo would take back."""
    rows = FailureDecision.objects.filter(failure__project=project, by=request.user).exclude(
        after__has_key="kept"
    )
    last = rows.order_by("-id").first()
    if last is None:
        return None
    bulk = last.after.get("bulk")
    n = rows.filter(after__bulk=bulk).count() if bulk else 1
    return {"did": DID.get(last.after.get("kind", ""), "decided on"), "n": n, "at": last.at}


@project_view(query={"since": SPANS})
def charts(request: HttpRequest, project: Project) -> HttpResponse:
    since = request.GET.get("since", "30d")
    context: dict[str, Any] = {"figures": None, "since": since, "spans": rates.SINCE}
    with suppress(TooLong), patience(CHARTS_MS):
        context |= _charts(project, rates.since_of(since))
    return render(request, "failures/_case_charts.html", context)


def _charts(project: Project, since: datetime | None) -> dict[str, Any]:
    """The charts, the one over time with marks where a version or a model began, and the effect of
    each of these.
    """
    known = rates.kinds(project, since)
    shown = changes(project, since, known)
    figures = [
        (id, marked(figure, shown) if id == "rate-by-time" else figure)
        for id, figure in rates.figures(project, since, known)
    ]
    return {"figures": figures, "changes": shown}


@require_POST
@project_view(Role.ENGINEER)
def classify(request: HttpRequest, project: Project) -> HttpResponse:
    job = classify_job.start(project=project, by=request.user)
    if job.total:
        said = (
            f"Classifying {job.total:,} new or changed trajectories; this page shows the progress."
        )
    else:
        said = "No new or changed trajectories to classify."
    messages.success(request, said)
    return redirect("failures:list", project.slug)


@project_view()
def classification_status(request: HttpRequest, project: Project) -> HttpResponse:
    """Only the progress; once the job has finished, the page is told to reload itself."""
    job = project.classifications.first()
    response = render(request, "failures/_classification.html", {"job": job})
    if request.headers.get("HX-Request") and not (job and job.is_active):
        response["HX-Refresh"] = "true"
    return response


@require_POST
@project_view(Role.REVIEWER)
def bulk(request: HttpRequest, project: Project) -> HttpResponse:
    """Confirms, dismisses, reclassifies or assigns the selected rows, or all that match, which the
    server finds.
    """
    given = request.POST
    try:
        messages.success(request, str(_do(request, project, selection(request, project, given))))
    except Refused as refused:
        messages.error(request, str(refused))
    query = QueryDict(given.get("query", "")).urlencode()
    return redirect(f"{reverse('failures:list', args=[project.slug])}?{query}")


def _do(request: HttpRequest, project: Project, ids: list[int]) -> Change:
    given, by = request.POST, request.user
    if given.get("do") == "assign":
        name = given.get("to", "")
        to = (
            get_object_or_404(get_user_model(), username=name, memberships__project=project)
            if name
            else None
        )
        return assign_many(project=project, ids=ids, by=by, to=to)
    if given.get("do") == "mode":
        mode = get_object_or_404(project.failure_modes, slug=given.get("mode", ""))
        return decide_many(project=project, ids=ids, by=by, state=FailureState.CONFIRMED, mode=mode)
    states = {"confirm": FailureState.CONFIRMED, "dismiss": FailureState.DISMISSED}
    if given.get("do") not in states:
        raise Refused("Choose an action.")
    return decide_many(project=project, ids=ids, by=by, state=states[given["do"]])


def selection(request: HttpRequest, project: Project, form: QueryDict) -> list[int]:
    """The selected failures, or the newest of those that the filters find, at most LIMIT.

    Raises QueryError.
    """
    ids, query = selection_of(form, KEY, OF_LIST, ("do", "mode", "to"))
    if query is not None:
        rows = shown(request.user, project, query).order_by("-trajectory_id")
        return list(rows.values_list("pk", flat=True)[:LIMIT])
    return [int(pk) for pk in ids[: LIMIT + 1]]
