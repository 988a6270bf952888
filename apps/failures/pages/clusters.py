"""Clusters: the list, a single one, and the actions on it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

from django.contrib import messages
from django.contrib.postgres.fields import ArrayField
from django.db.models import Count, F, Func, IntegerField, Max, Min, UUIDField, Value
from django.db.models.functions import Trunc
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.charts import bars, time_unit
from apps.core.following import ASKED, asked_at, followed
from apps.core.forms import whole
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.core.query import FLAG, PAGE_NUMBER
from apps.core.routes import RUNS, shows
from apps.failures.actions import clusters
from apps.failures.actions.decisions import Refused
from apps.failures.clusters import purity, store, versions
from apps.failures.clusters.life import LEGAL
from apps.failures.clusters.summary import counted, summarised
from apps.failures.judge import rubrics
from apps.failures.models import ClusterSpace, Failure, FailureCluster, FailureState
from apps.failures.rates import StartOfRun
from apps.teamwork.assigning import assigned_to
from apps.trajectories.ids import floor_of
from apps.trajectories.shown import runs_shown

State = FailureCluster.State
BINS = 24
BAR_HEIGHT = 20
MOST_SERIES = 8
MOST_OTHERS = 200  # that can be chosen for merging
WHOLE = 6  # failures in a bar, up to which each has its own line
ASKED_FOR = timedelta(seconds=store.EXPIRES_S)
SORTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "size": ("Size", attrgetter("n")),
    "recent": ("Last seen", attrgetter("last_seen")),
    "growth": ("Growth", attrgetter("growth")),
}


class WidthBucket(Func):
    """PostgreSQL's width_bucket(operand, lower bounds): 1 for what is in the first bucket, 0 for
    what is below it.
    """

    function = "width_bucket"
    output_field = IntegerField()


@project_view(
    query={
        "state": [*State.values, "gone"],
        "mode": None,
        "sort": SORTS,
        "mine": FLAG,
        "page": PAGE_NUMBER,
    }
    | ASKED
)
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    state, mode, sort = (request.GET.get(name, "") for name in ("state", "mode", "sort"))
    sort = sort if sort in SORTS else "size"
    clusters = FailureCluster.objects.filter(project=project, merged_into=None)
    rows = counted(list(clusters.select_related("mode")))
    given = set(assigned_to(request.user, FailureCluster)) if request.GET.get("mine") else None
    found = [
        row for row in rows if _is_shown(row, state, mode) and (given is None or row.pk in given)
    ]
    page = page_of(request, sorted_by(sort, found), 30)
    summarised(project, page.object_list)
    space = ClusterSpace.objects.filter(project=project).defer("space").first()
    return render(
        request,
        "failures/clusters.html",
        {
            "page": page,
            "trends": trends(page.object_list),
            "state": state,
            "mode": mode,
            "mine": given is not None,
            "sort": sort,
            "states": [*State.choices, ("gone", "No longer found")],
            "sorts": [(key, title) for key, (title, _) in SORTS.items()],
            "modes": project.failure_modes.all(),
            "space": space,
            "has_judge": rubrics.current(project) is not None,
            "waiting": is_waiting(request, space),
            "purity": purity.of_all(project),
            **totals(project, rows),
        },
    )


def _is_shown(row: FailureCluster, state: str, mode: str) -> bool:
    """Whether it matches the filters. An unknown state or mode filters nothing."""
    right_state = state not in State.values or row.state == state
    right_mode = not mode or (row.mode is not None and row.mode.slug == mode)
    return row.gone == (state == "gone") and right_state and right_mode


def sorted_by(sort: str, rows: Iterable[FailureCluster]) -> list[FailureCluster]:
    """Reopened clusters come first."""
    key = SORTS[sort][1]
    found = sorted(rows, key=lambda row: (row.name, row.pk))
    found.sort(key=key, reverse=True)
    return sorted(found, key=lambda row: row.state != State.REOPENED)


def totals(project: Project, rows: Iterable[FailureCluster]) -> dict[str, int]:
    """{standing: failures, grouped: those of them in a cluster, clusters: all except gone ones}"""
    here = [row.n for row in rows if not row.gone]
    standing = Failure.objects.filter(project=project).standing().count()
    return {"standing": standing, "grouped": sum(here), "clusters": len(here)}


def is_waiting(request: HttpRequest, space: ClusterSpace | None) -> bool:
    """Whether the clustering that this page requested is not done yet."""
    asked = asked_at(request, within=ASKED_FOR)
    return asked is not None and (space is None or space.made_at < asked)


def trends(clusters: Any) -> dict[uuid.UUID, list[dict[str, float]]]:
    """For each cluster its failures over time as bars {x, y, height}; all have the same time
    axis.
    """
    rows = list(clusters)
    if not rows:
        return {}
    first, last = min(row.first_seen for row in rows), max(row.last_seen for row in rows)
    width = max(last - first + timedelta(milliseconds=1), timedelta(seconds=1)) / BINS
    begins = [floor_of(first + place * width) for place in range(BINS)]  # ids begin with their time
    bins = Value(begins, output_field=ArrayField(UUIDField()))
    found = (
        Failure.objects.filter(cluster__in=[row.pk for row in rows])
        .standing()
        .order_by()
        .annotate(bin=WidthBucket(F("trajectory_id"), bins))
        .values_list("cluster", "bin")
        .annotate(n=Count("*"))
    )
    counts: dict[uuid.UUID, dict[int, int]] = {row.pk: {} for row in rows}
    for pk, place, n in found:
        counts[pk][max(place, 1)] = counts[pk].get(max(place, 1), 0) + n
    return {pk: _spark(bins) for pk, bins in counts.items()}


def _spark(bins: dict[int, int]) -> list[dict[str, float]]:
    tallest = max(bins.values(), default=1)
    heights = {place: max(2, round(BAR_HEIGHT * n / tallest)) for place, n in sorted(bins.items())}
    return [
        {"x": 4 * (place - 1), "y": BAR_HEIGHT - height, "height": height}
        for place, height in heights.items()
    ]


@require_POST
@project_view(Role.ENGINEER)
def recluster(request: HttpRequest, project: Project) -> HttpResponse:
    store.request(project.pk)
    return redirect(followed(reverse("failures:clusters", args=[project.slug])))


# One cluster


@shows(RUNS)
@project_view(query={"state": FailureState.values, "page": PAGE_NUMBER})
def detail(request: HttpRequest, project: Project, pk: uuid.UUID) -> HttpResponse:
    cluster = get_object_or_404(
        FailureCluster.objects.select_related("mode", "project"), project=project, pk=pk
    )
    if cluster.merged_into_id:
        return redirect("failures:cluster", project.slug, cluster.merged_into_id)
    summarised(project, [cluster])
    state = request.GET.get("state", "")
    members = Failure.objects.filter(cluster=cluster).select_related(
        "mode", "trajectory", "assigned_to"
    )
    page = page_of(
        request, members.filter(state=state) if state in FailureState.values else members, 25
    )
    runs_shown(
        project,
        [row.trajectory_id for row in page],
        to=request.user,
        where="failures of a cluster",
        previews=True,
    )
    measured = purity.of_clusters(project, [cluster.pk]).get(cluster.pk)
    return render(
        request,
        "failures/cluster.html",
        {
            "cluster": cluster,
            "page": page,
            "state": state,
            "states": FailureState.choices,
            "moves": [
                (value, label) for value, label in State.choices if value in LEGAL[cluster.state]
            ],
            "versions": versions.of_cluster(cluster),
            "modes": project.failure_modes.all(),
            "people": [
                row.user
                for row in project.memberships.filter(role__in=Role.REVIEWER.upward).select_related(
                    "user"
                )
            ],
            "figure": figure(cluster),
            "others": project.failure_clusters.filter(gone=False).exclude(pk=pk)[:MOST_OTHERS],
            "absorbed": cluster.absorbed.order_by("name"),
            "purity": measured.share if measured else None,
            "purest": measured.mode if measured else "",
            "dismissed": members.filter(state=FailureState.DISMISSED).count(),
        },
    )


def figure(cluster: FailureCluster) -> dict | None:
    """Standing failures by time and agent version, with a line where the cluster was marked as
    fixed.
    """
    standing = Failure.objects.filter(cluster=cluster).standing().order_by()
    began = StartOfRun(F("trajectory_id"))
    unit = time_unit(**standing.aggregate(first=Min(began), last=Max(began)))
    rows = (
        standing.annotate(at=Trunc(began, unit))
        .values("at", "agent_name", "agent_version")
        .annotate(n=Count("*"))
        .order_by("at")
    )
    counts: dict[str, dict[datetime, int]] = {}
    for row in rows:
        name = f"{row['agent_name']} {row['agent_version']}".strip() or "no version"
        counts.setdefault(name, {})[row["at"]] = row["n"]
    if not counts:
        return None
    chart = bars(
        _series(counts),
        f"Failures per {unit} and agent version",
        stacked=True,
        height=250,
        unit=unit,
    )
    if sum(map(max, map(dict.values, counts.values()))) <= WHOLE:
        chart["layout"]["yaxis"]["dtick"] = 1  # there is no half failure
    return _marked(chart, cluster)


def _series(counts: dict[str, dict[datetime, int]]) -> dict[str, tuple[list[str], list[int]]]:
    """The largest versions, the rest combined."""
    largest = sorted(counts, key=lambda name: -sum(counts[name].values()))
    if len(largest) > MOST_SERIES:
        rest: dict[datetime, int] = {}
        for name in largest[MOST_SERIES - 1 :]:
            for at, n in counts[name].items():
                rest[at] = rest.get(at, 0) + n
        counts = {name: counts[name] for name in largest[: MOST_SERIES - 1]} | {
            "other versions": rest
        }
    return {
        name: ([at.isoformat() for at in sorted(found)], [found[at] for at in sorted(found)])
        for name, found in sorted(counts.items(), key=lambda item: min(item[1]))
    }


def _marked(chart: dict, cluster: FailureCluster) -> dict:
    if cluster.fixed_at is None:
        return chart
    at = cluster.fixed_at.isoformat()
    line = {
        "type": "line",
        "x0": at,
        "x1": at,
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "line": {"dash": "dot", "width": 1.5, "color": "#8a919e"},
    }
    text = {
        "x": at,
        "y": 1,
        "yref": "paper",
        "yanchor": "top",
        "xanchor": "right",
        "showarrow": False,
        "text": f"fixed in {_plain(cluster.fixed_version)}",
        "font": {"size": 11},
    }
    chart["layout"]["shapes"], chart["layout"]["annotations"] = [line], [text]
    return chart


def _plain(text: str) -> str:
    """Plotly interprets some HTML in its texts."""
    return text.replace("&", "&amp;").replace("<", "&lt;")[:40]


def _write(
    action: Callable[[HttpRequest, Project, FailureCluster], str],
) -> Callable[..., HttpResponse]:
    """A reviewer's POST on a cluster; the result, or the reason for refusing it, is shown on the
    cluster's page.
    """

    @require_POST
    @project_view(Role.REVIEWER)
    def view(request: HttpRequest, project: Project, pk: uuid.UUID) -> HttpResponse:
        cluster = get_object_or_404(
            FailureCluster.objects.select_related("project"), project=project, pk=pk
        )
        try:
            messages.success(request, action(request, project, cluster))
        except (Refused, clusters.UnknownVersion) as error:
            messages.error(request, str(error))
        return redirect("failures:cluster", project.slug, pk)

    return view


@_write
def rename(request: HttpRequest, project: Project, cluster: FailureCluster) -> str:
    cluster = clusters.rename(cluster=cluster, name=request.POST.get("name", ""), by=request.user)
    return "Renamed." if cluster.named_by_person else "The generated name is back in use."


@_write
def move(request: HttpRequest, project: Project, cluster: FailureCluster) -> str:
    """`version` is the kind and the name, “agent:bank 2”."""
    kind, _, version = request.POST.get("version", "").partition(":")
    cluster = clusters.move(
        cluster=cluster,
        to=request.POST.get("to", ""),
        version=version,
        kind=kind if kind in FailureCluster.FixedKind.values else "agent",
        by=request.user,
    )
    if cluster.state == State.FIXED:
        return (
            f"The cluster reopens if {cluster.fixed_version}, or a later version, fails this way."
        )
    return f"The cluster is {cluster.get_state_display().lower()} now."


@_write
def merge(request: HttpRequest, project: Project, cluster: FailureCluster) -> str:
    """`cluster` takes in another one: `other`."""
    try:
        other = clusters.find_cluster(project, request.POST.get("other", ""))
    except Http404 as error:
        raise Refused("Choose a cluster to merge.") from error
    name = other.name
    clusters.merge(cluster=other, into=cluster, by=request.user)
    return f"“{name}” is part of this cluster now."


@_write
def split(request: HttpRequest, project: Project, cluster: FailureCluster) -> str:
    clusters.split(cluster=cluster, by=request.user)
    return "Split. Failures found since are sorted by the next clustering, in a moment."


@_write
def decide(request: HttpRequest, project: Project, cluster: FailureCluster) -> str:
    """All open failures: `did` is confirm, dismiss, mode (with `mode`) or assign (with `to`, empty
    for nobody).
    """
    did, by = request.POST.get("did", ""), request.user
    if did == "assign":
        to = request.POST.get("to", "")
        person = (
            project.memberships.select_related("user").filter(user=whole(to)).first()
            if to
            else None
        )
        if to and person is None:
            raise Refused("This person is not a member of the project. Choose another one.")
        return str(clusters.assign_all(cluster=cluster, to=person and person.user, by=by))
    if did == "mode":
        mode = project.failure_modes.filter(slug=request.POST.get("mode", "")).first()
        if mode is None:
            raise Refused("Choose a failure mode.")
        return str(
            clusters.decide_all(cluster=cluster, by=by, state=FailureState.CONFIRMED, mode=mode)
        )
    states = {"confirm": FailureState.CONFIRMED, "dismiss": FailureState.DISMISSED}
    if did not in states:
        raise Refused("Choose an action: confirm, dismiss, reclassify or assign.")
    return str(clusters.decide_all(cluster=cluster, by=by, state=states[did]))
