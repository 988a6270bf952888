"""The triage screen: one case after another, driven by the keyboard. Each response contains the
next case and the counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.contrib.auth import get_user_model
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import NoReverseMatch, reverse
from django.utils.cache import patch_vary_headers
from django.utils.html import format_html
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.forms import whole
from apps.core.http import go, uuid_of
from apps.core.models import Project, Role
from apps.core.query import FLAG, KEY, Query
from apps.core.routes import RUNS, shows
from apps.failures import agent_versions
from apps.failures.actions import bulk, decisions
from apps.failures.judge import rubrics
from apps.failures.likelihood import Likelihood, basis_of
from apps.failures.models import Failure, FailureQuerySet, FailureState, JudgeVerdict, OutcomeCheck
from apps.failures.similar.query import SHOWN, similar_to
from apps.failures.triage_queue import CONFIDENCES, FILTERS, SORTS, TriageQueue
from apps.failures.unconfirmed import unconfirmed
from apps.trajectories.pages.detail import show_part
from apps.trajectories.pages.parts import Reader
from apps.trajectories.shown import runs_shown

OF_QUEUE: Query = FILTERS | {"sort": SORTS, "at": KEY}
NOTHING_LEFT = "Nothing left to triage."
OTHERS_HAVE_IT = "The remaining cases are open or assigned to others."
VERSIONS = 50
MODE_KEYS = "1234567890"


def queue_of(request: HttpRequest, project: Project) -> TriageQueue:
    return TriageQueue(project, request.user, request.GET)


def find(project: Project, pk: int) -> Failure:
    """With everything that its page shows."""
    rows = Failure.objects.select_related(
        "mode", "trajectory", "decided_by", "assigned_to", "reserved_by", "cluster"
    )
    return _of(project, rows, pk)


def find_row(project: Project, pk: int) -> Failure:
    """With its mode only: to act on it, or to continue from it."""
    return _of(project, Failure.objects.select_related("mode"), pk)


def _of(project: Project, rows: FailureQuerySet, pk: int) -> Failure:
    found = get_object_or_404(rows, project=project, pk=pk)
    found.project = project  # not read again
    return found


@project_view(query=OF_QUEUE)
def triage(request: HttpRequest, project: Project) -> HttpResponse:
    """The first case that matches the filters: safety-relevant and severe modes first, then the
    newest; or with `?sort=informative` the case from whose decision the model learns most."""
    queue = queue_of(request, project)
    if pk := queue.next():
        return redirect(address(queue, pk))
    return finished(request, queue)


@shows(RUNS)
@project_view(query=OF_QUEUE)
def case(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    return show(request, queue_of(request, project), find(project, pk))


@shows(RUNS)
@project_view(query=OF_QUEUE | {"back": FLAG, "ahead": FLAG})
def step(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """The next case, or with `?back=1` the previous one. With `?ahead=1` it is only prefetched: the
    current case stays on the screen.
    """
    queue, here = queue_of(request, project), find_row(project, pk)
    place = queue.position_of(here)
    if request.GET.get("back"):
        other = queue.previous(place, skip=pk)
    else:
        other = queue.next(place, skip=pk)
    if request.GET.get("ahead"):
        return (
            show(request, queue, find(project, other), beside=pk)
            if other
            else HttpResponse(status=204)
        )
    if not request.htmx:
        return redirect(address(queue, other or pk))
    return show(request, queue, find(project, other or pk), note="" if other else "No other cases.")


@shows(RUNS)
@project_view(query=OF_QUEUE)
def similar(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """The failures most similar to a case. The browser loads them after the case is shown, so the
    case never waits for them.
    """
    failure = _of(project, Failure.objects.select_related("mode", "trajectory"), pk)
    may = request.membership.may(Role.REVIEWER)
    found = [
        (other, alike, may and is_free(other, request.user)) for other, alike in similar_to(failure)
    ]
    runs_shown(
        project,
        [other.trajectory_id for other, _, _ in found],
        to=request.user,
        where="similar failures",
        previews=True,
    )
    context = {"failure": failure, "similar": found, "queue": queue_of(request, project)}
    context["choosable"] = sum(free for _, _, free in found)
    if basis := basis_of(failure):
        context |= {"basis": basis, "confirmed": Likelihood.in_project(project).share(basis)}
    return render(request, "failures/_similar.html", context)


def is_free(failure: Failure, user: Any) -> bool:
    """Whether this person may decide on it together with another case: it is undecided, and nobody
    else has it open or assigned.
    """
    is_mine = (
        failure.assigned_to_id in (None, user.pk) and decisions.holder_of(failure, user) is None
    )
    return is_mine and failure.state == FailureState.OPEN


@shows(RUNS)
@require_POST
@project_view(Role.REVIEWER, query=OF_QUEUE)
def decide(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    failure, given = find_row(project, pk), request.POST
    mode = (
        get_object_or_404(project.failure_modes, slug=given["mode"]) if given.get("mode") else None
    )
    state = FailureState.DISMISSED if "dismiss" in given else FailureState.CONFIRMED
    word = {
        "failure": failure,
        "by": request.user,
        "mode": mode,
        "state": state,
        "seen": given.get("seen"),
    }
    if others := also(given):
        return after(request, failure, lambda: bulk.decide_alike(others=others, **word))
    return after(request, failure, lambda: decisions.decide(**word))


def also(given: QueryDict) -> list[int]:
    """The similar failures to which the same decision applies."""
    return [pk for text in given.getlist("also")[:SHOWN] if (pk := whole(text)) is not None]


@shows(RUNS)
@require_POST
@project_view(Role.REVIEWER, query=OF_QUEUE)
def split(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    failure = find_row(project, pk)
    mode = get_object_or_404(project.failure_modes, slug=request.POST.get("mode", ""))
    act = lambda: decisions.split(failure=failure, by=request.user, mode=mode)  # noqa: E731
    return after(request, failure, act, stay=True)


@shows(RUNS)
@require_POST
@project_view(Role.REVIEWER, query=OF_QUEUE)
def blame(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """Another message is the step where it went wrong."""
    failure, message = (
        find_row(project, pk),
        whole(request.POST.get("number") or request.POST.get("message")),
    )
    if message is None:
        raise Http404
    act = lambda: decisions.blame(failure=failure, by=request.user, message=message)  # noqa: E731
    return after(request, failure, act, stay=True)


@shows(RUNS)
@require_POST
@project_view(Role.REVIEWER, query=OF_QUEUE)
def assign(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """Assigns the case to a reviewer, or to nobody. A case assigned to somebody else leaves the
    screen.
    """
    failure, given = find_row(project, pk), request.POST.get("to", "")
    to = (
        get_object_or_404(get_user_model(), username=given, memberships__project=project)
        if given
        else None
    )
    act = lambda: decisions.assign(failure=failure, by=request.user, to=to)  # noqa: E731
    return after(request, failure, act, stay=to in (None, request.user))


@shows(RUNS)
@require_POST
@project_view(Role.REVIEWER, query=OF_QUEUE)
def undo(request: HttpRequest, project: Project) -> HttpResponse:
    """Takes back the person's last change. Called from the list (`back`), it returns there."""
    queue = queue_of(request, project)
    done = decisions.undo(project=project, by=request.user)
    said = undone(done)
    if request.POST.get("back") == "list":
        messages.info(request, said)
        return redirect(
            f"{reverse('failures:list', args=[project.slug])}?{request.POST.get('query', '')}"
        )
    pk = done.failure.pk if done and done.failure else whole(request.GET.get("at"))
    found = Failure.objects.filter(project=project, pk=pk).exists()
    if request.htmx and found:
        return show(request, queue, find(project, pk), note=said)
    messages.info(request, said)
    return go(
        request, address(queue, pk) if found else reverse("failures:list", args=[project.slug])
    )


def undone(done: decisions.Undone | None) -> str:
    if done is None:
        return "Nothing to undo."
    if done.n == 0:
        return (
            "Your last decision cannot be undone because someone has changed the case since. Undo"
            " again to go back to the one before."
        )
    if done.n == 1 and not done.kept:
        return "Your last decision was undone."
    kept = f" {done.kept:,} were changed by someone else since and are kept." if done.kept else ""
    return f"Your last change to {done.n:,} failures was undone.{kept}"


# Building the responses


def address(queue: TriageQueue, pk: int) -> str:
    url = reverse("failures:case", args=[queue.project.slug, pk])
    return f"{url}?{queue.query}" if queue.given else url


def after(
    request: HttpRequest, failure: Failure, act: Callable[[], Any], stay: bool = False
) -> HttpResponse:
    """Runs the action, and responds with the next case; if it is refused, with the same case and
    the reason.
    """
    queue = queue_of(request, failure.project)
    place = queue.position_of(failure)
    try:
        done = act()
    except decisions.Refused as refused:
        return again(request, queue, failure, str(refused))
    if stay:
        return again(request, queue, failure)
    note = str(done) if isinstance(done, bulk.Change) else ""
    pk = queue.next(place, skip=failure.pk)
    if pk is None:
        return finished(request, queue, note)
    if not request.htmx:
        if note:
            messages.success(request, note)
        return redirect(address(queue, pk))
    is_there = request.POST.get("ahead") == str(pk) and not note
    return show(request, queue, find(queue.project, pk), note=note, is_there=is_there)


def again(
    request: HttpRequest, queue: TriageQueue, failure: Failure, error: str = ""
) -> HttpResponse:
    found = Failure.objects.filter(pk=failure.pk).exists()
    if request.htmx and found:
        return show(request, queue, find(queue.project, failure.pk), error=error)
    if error:
        messages.error(request, error)
    return go(
        request,
        (
            address(queue, failure.pk)
            if found
            else reverse("failures:triage", args=[queue.project.slug])
        ),
    )


def finished(request: HttpRequest, queue: TriageQueue, note: str = "") -> HttpResponse:
    """No case is free: says why, after what was done."""
    decisions.release(project=queue.project, by=request.user)
    left = queue.rows().filter(mode__in=queue.modes).exists()
    said = f"{note} {OTHERS_HAVE_IT if left else NOTHING_LEFT}".strip()
    if request.htmx:
        context = {"said": said, "queue": queue, "left": queue.count(), "is_done": not left}
        context["unconfirmed"] = unconfirmed(queue.project)
        context["without_judge"] = rubrics.without(queue.project)
        return render(request, "failures/_case_none.html", context)
    if not left and queue.project.failures.exists():
        link = reverse("failures:clusters", args=[queue.project.slug])
        said = format_html('{} <a href="{}">View clusters</a>', said, link)
    messages.success(request, said)
    return redirect(f"{reverse('failures:list', args=[queue.project.slug])}?{queue.query}")


def show(
    request: HttpRequest,
    queue: TriageQueue,
    failure: Failure,
    *,
    note: str = "",
    error: str = "",
    beside: int | None = None,
    is_there: bool = False,
) -> HttpResponse:
    """A case, reserved for this reviewer: the page, its fragment for htmx, or (`is_there`: the
    browser already shows it) only the counts. `beside` is a case that stays on the screen too."""
    holder = _reserve(request, failure, beside)
    is_there = is_there and holder is None
    checked = OutcomeCheck.objects.filter(trajectory=failure.trajectory_id)
    context = {
        "failure": failure,
        "checked": checked.exclude(answer="").select_related("by").first(),
        "queue": queue,
        "left": queue.count(),
        "holder": holder,
        "note": note,
        "error": error,
    }
    if not is_there:
        runs_shown(failure.project, [failure.trajectory_id], to=request.user, where="triage")
        context |= _case(request, queue, failure)
    template = "_case_counts" if is_there else "_case" if request.htmx else "case"
    if template == "case":
        context |= _filters(queue)
    response = render(request, f"failures/{template}.html", context)
    if request.htmx and not beside:
        response["HX-Replace-Url"] = address(queue, failure.pk)
    if is_there:
        response["HX-Reswap"] = "none"
    response["X-Case"] = str(failure.pk)
    response["Cache-Control"] = "private, no-cache"
    patch_vary_headers(response, ["HX-Request"])
    return response


def _reserve(request: HttpRequest, failure: Failure, beside: int | None) -> Any:
    """Who else has it; None if this person has it now."""
    if not request.membership.may(Role.REVIEWER):
        return None
    decisions.release(
        project=failure.project, by=request.user, keep=(failure.pk, *([beside] if beside else ()))
    )
    if decisions.reserve(failure=failure, by=request.user):
        return None
    return decisions.holder_of(failure, request.user)


def _case(request: HttpRequest, queue: TriageQueue, failure: Failure) -> dict[str, Any]:
    blamed, may = failure.blamed_message, request.membership.may(Role.REVIEWER)
    also = list(failure.also.all())
    return {
        "row": failure.trajectory,
        "version": decisions.version_of(failure),
        "modes": [(MODE_KEYS[n : n + 1], mode) for n, mode in enumerate(queue.all_modes)],
        "also": also,
        "also_slugs": {mode.slug for mode in also},
        "people": triagers(request, failure.project) if may else [],
        "make_task": task_address(failure),
        "may_write": may,
        "last_message": failure.trajectory.message_count - 1,
        "blame": may_blame(request, failure),
        "judge": _judge(failure),
        **Reader(failure.trajectory).opened_at(blamed or 0, blamed),
    }


def may_blame(request: HttpRequest, failure: Failure) -> bool:
    return (
        request.membership.may(Role.REVIEWER) and decisions.holder_of(failure, request.user) is None
    )


@shows(RUNS)
@project_view()
def part(request: HttpRequest, project: Project, pk: int, first: int) -> HttpResponse:
    """The messages of one part of a long run, with buttons to blame a step."""
    failure = find(project, pk)
    given = {"blamed": failure.blamed_message, "blame": may_blame(request, failure)}
    return show_part(request, failure.trajectory, first, where="case", **given)


def _judge(failure: Failure) -> str:
    """The judge's verdict on a case; empty if it was not asked."""
    if failure.judge_mode:
        mode = failure.project.failure_modes.filter(slug=failure.judge_mode).first()
        return f"“{mode or failure.judge_mode}”"
    digest = failure.trajectory.content_digest
    said = JudgeVerdict.objects.filter(
        error="", rubric__project=failure.project, content_digest=digest
    )
    return "no failure" if said.exists() else ""


def triagers(request: HttpRequest, project: Project) -> list[tuple[int | str, Any]]:
    """The people a case can be assigned to, oneself first, with a digit each."""
    rows = (
        project.memberships.filter(role__in=Role.REVIEWER.upward)
        .select_related("user")
        .order_by("pk")
    )
    users = sorted((row.user for row in rows), key=lambda user: user != request.user)
    return [(number if number < 10 else "", user) for number, user in enumerate(users, 1)]


def task_address(failure: Failure) -> str:
    """The URL of the eval sets' form, in a higher layer; empty if there is none."""
    try:
        return reverse("evals:task_from_failure", args=[failure.project.slug, failure.pk])
    except NoReverseMatch:
        return ""


def _filters(queue: TriageQueue) -> dict[str, Any]:
    cluster = uuid_of(queue.given.get("cluster", ""))
    return {
        "confidences": CONFIDENCES,
        "sorts": SORTS.items(),
        "versions": agent_versions.offered(queue.project, VERSIONS),
        "chosen": str(queue.chosen),
        "cluster": queue.project.failure_clusters.filter(pk=cluster).first() if cluster else None,
    }
