"""The judge's pages: its rubric with all versions, trying it before saving, what it costs and how
often people agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.actions import audit
from apps.core.charts import bars
from apps.core.following import ASKED, asked_at
from apps.core.form_bounds import bounds_from
from apps.core.forms import PlainForm, whole
from apps.core.models import Project, Role
from apps.core.operations.forms import OperationForm, form_of
from apps.core.operations.pages import NOT_DONE, submitted
from apps.core.paging import page_of
from apps.core.query import KEY, PAGE_NUMBER
from apps.core.routes import RUNS, shows
from apps.failures.actions import judge as actions
from apps.failures.actions import judging as judging_actions
from apps.failures.actions.decisions import Refused
from apps.failures.actions.diagnose import judged_of
from apps.failures.actions.modes import ensure_modes
from apps.failures.judge import batch, judging, people, rubrics
from apps.failures.judge import share as shares
from apps.failures.judge.judging import COUNTED
from apps.failures.judge.questions import Stored
from apps.failures.judge.share import SharesChange
from apps.failures.models import Failure, JudgeMeasurement, Rubric, RubricSearch
from apps.failures.unconfirmed import unconfirmed
from apps.registry.prices import price_for
from apps.trajectories.actions.store import find
from apps.trajectories.models import Trajectory
from apps.trajectories.shown import runs_shown

MAX_SAMPLES = 5
OFFERED, FAILED = 8, 6  # runs to try it on, and failures among them
JOBS = 6
RubricForm = form_of(actions.save.operation)
VERDICTS = judging_actions.verdicts.operation.inputs
TRY_S = 30.0  # a person waits for it


@bounds_from(SharesChange, unflagged="", flagged="")
class ShareForm(PlainForm):
    unflagged = forms.FloatField(min_value=0, max_value=100)
    flagged = forms.FloatField(min_value=0, max_value=100)
    first = forms.IntegerField()


@dataclass
class Version:
    """A row of the table of versions."""

    rubric: Rubric
    agreement: rubrics.Agreement | None
    before: int | None


@shows(RUNS)
@project_view(query={"version": KEY} | ASKED)
def page(request: HttpRequest, project: Project) -> HttpResponse:
    last = project.rubrics.first()
    shown = project.rubrics.filter(version=whole(request.GET.get("version"))).first() or last
    return _page(request, project, RubricForm(initial=_values(shown), project=project), shown)


def _values(rubric: Rubric | None) -> dict[str, Any]:
    rubric = rubric or Rubric(text=rubrics.DEFAULT_TEXT)
    return {name: getattr(rubric, name) for name in rubrics.FIELDS}


def _page(
    request: HttpRequest, project: Project, form: OperationForm, shown: Rubric | None = None
) -> HttpResponse:
    ensure_modes(project)
    operator, rows = (
        request.membership.may(Role.OPERATOR),
        list(project.rubrics.select_related("created_by")[:50]),
    )
    for name in rubrics.FIELDS[1:] if not operator else ():
        form.fields[name].disabled = True
    samples = _samples(project)
    runs_shown(project, [row.pk for row in samples], to=request.user, where="the judge's rubric")
    agreed, on = rubrics.agreements(project), next((row for row in rows if row.is_on), None)
    spent = rubrics.spent_by_day(project)
    context = {
        "form": form,
        "operator": operator,
        "writes": request.membership.may(Role.ENGINEER),
        "on": on,
        "newest": rows[0] if rows else None,
        "unpriced_a_day": rubrics.UNPRICED_A_DAY,
        "price": price_for(project, rows[0].model, rows[0].base_url) if rows else None,
        "shown": shown,
        "versions": [
            Version(row, agreed.get(row.pk), row.version - 1 if row.version > 1 else None)
            for row in rows
        ],
        "today": spent[-1],
        "month": sum(usd for _, usd, _ in spent),
        "chart": _chart(spent),
        "samples": samples,
        "waiting": len(judging.waiting(project, on, COUNTED)) if on else 0,
        "many": COUNTED,
        "unanswered": judging.unanswered(on) if on else None,
        "is_asked": asked_at(request) is not None,
        "first": shares.classifier_of(project).judge_first,
        "reviewed": shares.reviewed(project),
        "shares": {
            "flagged" if by_rules else "unflagged": round(100 * drawn, 2)
            for by_rules, drawn in shares.shares_of(project).items()
        },
        "problem": rubrics.problem(rows[0]) if rows else "",
        "forecast": (costs := rubrics.forecast(on or rows[0]) if rows else None),
        "warning": _warning(rows[0], costs) if rows else "",
        "without": rubrics.WITHOUT_A_JUDGE,
        "unconfirmed": unconfirmed(project),
        "counts": (counts := people.Counts.of(people.decisions(project))),
        "lacking": counts.lacking(),
        "examples": rows[0].examples.count() if rows else 0,
        "jobs": _jobs(project),
        "servers": project.servers.order_by("name"),
    }
    return render(request, "failures/rubric.html", context)


def _jobs(project: Project) -> list[Any]:
    """The newest measurements of the judge and searches for a better rubric."""
    found = [
        *JudgeMeasurement.objects.filter(project=project)[:JOBS],
        *RubricSearch.objects.filter(project=project)[:JOBS],
    ]
    return sorted(found, key=lambda job: job.created_at, reverse=True)[:JOBS]


def _warning(rubric: Rubric, costs: rubrics.Forecast | None) -> str:
    """Before it is switched on."""
    usd = costs.usd if costs else None
    runs = f"; 1,000 runs cost about ${usd:.2f}" if usd is not None else ""
    return (
        "Conversations of failed runs, plus a random sample of others, will be sent to"
        f" {rubric.base_url}, for at most ${rubric.usd_per_day:g} a day{runs}. Switch the judge on?"
    )


def _chart(spent: list[tuple[Any, float, int]]) -> dict | None:
    days = [day.isoformat() for day, _, _ in spent]
    if not any(usd or count for _, usd, count in spent):
        return None
    if any(usd for _, usd, _ in spent):
        return bars(
            {"$": (days, [usd for _, usd, _ in spent])},
            "Cost per day, in $ (30 days)",
            height=190,
            unit="day",
        )
    return bars(
        {"questions": (days, [n for _, _, n in spent])},
        "Questions per day (30 days)",
        height=190,
        unit="day",
    )


def _samples(project: Project) -> list[Trajectory]:
    """Runs to try the rubric on: failures, those that people decided on first, since their mode is
    known to be right, then the newest other runs.
    """
    failures = Failure.objects.filter(project=project).values_list("trajectory_id", flat=True)
    decided = list(failures.exclude(decided_at=None).order_by("-decided_at")[: FAILED // 2])
    found = failures.exclude(trajectory__in=decided)[: FAILED - len(decided)]
    chosen, rows = [*decided, *found], project.trajectories.select_related("failure__mode")
    known = rows.in_bulk(chosen)
    others = rows.exclude(pk__in=chosen).order_by("-pk")[: OFFERED - len(chosen)]
    return [*(known[pk] for pk in chosen if pk in known), *others]


@shows(RUNS)
@require_POST
@project_view(Role.OPERATOR)
def save(request: HttpRequest, project: Project) -> HttpResponse:
    form, saved = submitted(request, actions.save)
    if saved is NOT_DONE:
        return _page(request, project, form)
    rubric, is_new = saved
    if not is_new:
        messages.info(request, "No changes since the newest version.")
    else:
        messages.success(
            request,
            f"Version {rubric.version} is saved{' and' if rubric.is_on else ', but not'} in use.",
        )
    return redirect("failures:rubric", project.slug)


@require_POST
@project_view(Role.OPERATOR)
def share(request: HttpRequest, project: Project) -> HttpResponse:
    form = ShareForm(request.POST)
    if form.is_valid():
        given = form.cleaned_data
        change = SharesChange(
            unflagged=given["unflagged"] / 100, flagged=given["flagged"] / 100, first=given["first"]
        )
        shares.set_shares(project=project, by=request.user, given=change)
        messages.success(request, "Saved. If a share was raised, more runs are reviewed.")
    else:
        messages.error(request, "Enter shares between 0 and 100, and a number of runs.")
    return redirect("failures:rubric", project.slug)


@project_view(query={"a": KEY, "b": KEY})
def diff(request: HttpRequest, project: Project) -> HttpResponse:
    named = {row.version: row for row in project.rubrics.select_related("created_by")}
    before, after = (named.get(whole(request.GET.get(name))) for name in "ab")
    if before is None or after is None:
        messages.info(request, "These versions do not exist.")
        return redirect("failures:rubric", project.slug)
    lines = rubrics.difference(before, after)
    return render(
        request, "failures/rubric_diff.html", {"before": before, "after": after, "lines": lines}
    )


@shows(RUNS)
@project_view(query=VERDICTS.query | {"page": PAGE_NUMBER})
def verdicts(request: HttpRequest, project: Project) -> HttpResponse:
    """The judge's verdicts, run by run."""
    given, everything = VERDICTS.from_query(request.GET, project), judging_actions.verdicts
    page = page_of(request, everything(project=project, **given))
    runs_shown(
        project,
        [row.trajectory_id for row in page if row.trajectory_id],
        to=request.user,
        where="the judge's verdicts",
    )
    names = dict(project.failure_modes.values_list("slug", "name"))
    any_verdict = everything(project=project).exists()
    only = request.GET.get("only", "")
    context = {"page": page, "only": only, "any": any_verdict, "names": names}
    return render(request, "failures/judge.html", context)


# Trying a rubric


@shows(RUNS)
@require_POST
@project_view(Role.ENGINEER)
def try_it(request: HttpRequest, project: Project) -> HttpResponse:
    """Render a placeholder for each chosen run, which then requests its own verdict: no page waits
    for a model.
    """
    _, form, problem = _tried_form(request, project)
    rows = [] if problem else _chosen(request, project)
    if not problem and not rows:
        problem = "Choose a run, or enter a run id."
    runs_shown(project, [row.pk for row in rows], to=request.user, where="the judge's rubric")
    return render(
        request, "failures/_rubric_tries.html", {"rows": rows, "error": problem, "form": form}
    )


@shows(RUNS)
@require_POST
@project_view(Role.ENGINEER)
def try_one(request: HttpRequest, project: Project) -> HttpResponse:
    """Ask about one run with the rubric in the form: prompt, raw answer, verdict, cost. Only the
    cost is stored.
    """
    rubric, _, problem = _tried_form(request, project)
    rows = [] if problem else _chosen(request, project)
    if not rows:
        return render(request, "failures/_rubric_try.html", {"error": problem or "Run not found."})
    runs_shown(project, [rows[0].pk], to=request.user, where="the judge's rubric")
    ensure_modes(project)
    run = judged_of(project, rows[:1])[rows[0].pk]
    question = rubrics.asked_with(rubric)(run=run)
    entry = Stored(project, "try", uuid4().hex, question, rows[0], as_json=bool)
    report = batch.Report()
    batch.ask_all(rubric, [entry], report, is_trial=True, patience={"timeout_s": TRY_S, "tries": 1})
    tried, usd = str(rows[0].pk), round(report.spent_usd, 6)
    audit("rubric.tried", project=project, by=request.user, trajectory=tried, cost_usd=usd)
    judged = entry.answered
    context = {
        "row": rows[0],
        "prompt": question.prompt,
        "judged": judged,
        "cost": report.spent_usd,
        "failure": Failure.objects.filter(trajectory=rows[0]).select_related("mode").first(),
        "error": judged.error if judged else report.stopped,
    }
    return render(request, "failures/_rubric_try.html", context)


def _tried_form(request: HttpRequest, project: Project) -> tuple[Rubric, OperationForm, str]:
    """The rubric as it may be tried, its form, and what is wrong with it. Unless an operator tries
    it, the saved server is used.

    Otherwise an engineer could send conversations, and the API key, to any server.
    """
    data = request.POST.copy()
    if not request.membership.may(Role.OPERATOR):
        last = project.rubrics.first()
        if last is None:
            return Rubric(), RubricForm(), "An operator must save a rubric with a server first."
        for name in rubrics.FIELDS[1:]:
            data[name] = str(getattr(last, name))
    form = RubricForm(data, project=project)
    if form.is_valid():
        try:
            fields = actions.fields_of(project, actions.NewRubric(**form.values))
            return Rubric(project=project, **fields), form, ""
        except Refused as error:
            form.add_refusal(error)
    return (
        Rubric(),
        form,
        " ".join(
            f"{form.fields[name].label or name}: {' '.join(said)}"
            for name, said in form.errors.items()
        ),
    )


def _chosen(request: HttpRequest, project: Project) -> list[Trajectory]:
    """At most MAX_SAMPLES runs, by Flywheel's id or the client's."""
    found: dict[UUID, Trajectory] = {}
    for name in [
        *request.POST.getlist("run"),
        *request.POST.get("more", "").replace(",", " ").split(),
    ][:20]:
        row = _by_our_id(project, name) or find(project, name)
        if row:
            found[row.pk] = row
    return list(found.values())[:MAX_SAMPLES]


def _by_our_id(project: Project, name: str) -> Trajectory | None:
    try:
        return project.trajectories.filter(pk=UUID(name)).first()
    except ValueError:
        return None
