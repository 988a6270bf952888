from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django.db.models import F, OuterRef, Q, Subquery
from django.db.models.functions import Coalesce, Now
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.differences import as_text
from apps.core.forms import query_of
from apps.core.http import progress
from apps.core.models import JobLog, JobState, Project, Role
from apps.core.paging import page_of
from apps.core.query import FLAG, PAGE_NUMBER
from apps.core.routes import SIDES, TOTALS, WHEN_EVALUATED, shows
from apps.core.sorting import Sorting, choices
from apps.evals.holdout.view_log import record_refusal
from apps.evals.models import EvalRun, Split
from apps.registry.models import RayCluster
from apps.reviews.actions import lock_of
from apps.reviews.oversight import oversight_of
from apps.training import actions, checkpoints, forking, judged_outputs, run_alarms
from apps.training.advice import advice_for
from apps.training.advisor import Advice
from apps.training.budget import truth as budget
from apps.training.budget.truth import add_factors
from apps.training.charts import METRICS, curves
from apps.training.comparison import curves_of, runs_of
from apps.training.engines import exporting, ray
from apps.training.engines import pages as engine_pages
from apps.training.models import Method, Metric, Source, TrainingRun
from apps.training.pages.rollouts import OF_ROLLOUTS, listed
from apps.training.picks import PickForm
from apps.training.reward_lock import uses_reward
from apps.training.rollouts import mask_reasons
from apps.training.starts import submit_seeds
from apps.training.teachers import words_of_engine

MOST_POINTS = 2_000  # of a curve of a run that is followed live
RUN_COLUMNS = {
    "run": "name",
    "method": "method",
    "state": "state",
    "output": "model_version__name",
    "reward": "-reward",
    "loss": "loss",
    "time": "-took",
    "started": "-created_at",
}


@shows(TOTALS, WHEN_EVALUATED)
@project_view(query={"archived": FLAG, "sort": choices(RUN_COLUMNS), "page": PAGE_NUMBER})
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    archived = "archived" in request.GET
    runs = (
        TrainingRun.objects.filter(project=project)
        .shown(archived)
        .filter(Q(spec__group__isnull=True) | Q(spec__seed_at=0))
        .select_related("parent", "model_version", "dataset__eval_set", "environment")
    )
    runs = runs.annotate(
        took=Coalesce(F("finished_at"), Now()) - F("started_at"),
        reward=_last("train/reward_mean"),
        loss=_last("train/loss"),
    )
    order = Sorting.of(request.GET, RUN_COLUMNS)
    page = page_of(request, order.apply(runs))
    add_seeds(page.object_list)
    add_factors(page.object_list)
    context = {"archived": archived, "page": page, "order": order, "advice": advice_for(project)}
    return render(request, "training/list.html", context)


def add_seeds(runs: Sequence[TrainingRun]) -> None:
    """Set on the first run of each group of seeds: `seeds`, all runs of the group, and `compares`,
    the URL that compares them.
    """
    groups: dict[str, list[TrainingRun]] = {
        run.spec["group"]: [] for run in runs if run.spec.get("group")
    }
    project = [run.project_id for run in runs][:1]
    for member in TrainingRun.objects.filter(
        project__in=project, spec__group__in=list(groups)
    ).select_related("project"):
        groups[member.spec["group"]].append(member)
    for run in runs:
        run.seeds = sorted(
            groups.get(run.spec.get("group", ""), []), key=lambda member: member.spec["seed"]
        )
        run.compares = started_url(run.seeds) if len(run.seeds) > 1 else ""


def _last(metric: str) -> Subquery:
    """The metric's value at the last step so far."""
    rows = Metric.objects.filter(run=OuterRef("pk"), name=metric).order_by("-step")
    return Subquery(rows.values("value")[:1])


@shows(SIDES)
@project_view(Role.ENGINEER, query=query_of(PickForm))
def new(request: HttpRequest, project: Project) -> HttpResponse:
    advice = advice_for(project)
    form = PickForm(project, request.POST or None, request.GET, advised_fields(advice))
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        engine = request.POST.get("export", "")
        try:
            given = {
                "project": project,
                "method": Method(data["method"]),
                "parent": data["parent"],
                "environment": data["environment"],
                "dataset": actions.freeze_dataset(
                    eval_set=data["eval_set"], by=request.user, **form.selection()
                ),
                **form.chosen_by(),
                "config": form.config(),
                **form.sampling(),
                "seed": data["seed"],
                "by": request.user,
            }
            if engine:
                run = actions.prepared_run(**given)
                return engine_pages.as_file(
                    exporting.export(run=run, engine=engine, by=request.user)
                )
            if request.POST.get("submit_to") == "ray":
                cluster = get_object_or_404(
                    RayCluster, project=project, name=request.POST.get("cluster", "")
                )
                chosen = request.POST.get("engine", "")
                run = ray.submit(
                    run=actions.prepared_run(**given),
                    engine=chosen,
                    cluster=cluster,
                    by=request.user,
                )
                return redirect(run.get_absolute_url())
            runs = submit_seeds(seeds=data["seeds"] or 1, **given)
        except engine_pages.REFUSALS as error:
            record_refusal(project, error, by=request.user)
            form.add_error(None, str(error))
        else:
            return redirect(started_url(runs))
    return new_page(request, project, form, advice)


def started_url(runs: Sequence[TrainingRun]) -> str:
    """The run's page, or the comparison of several seeds."""
    if len(runs) == 1:
        return runs[0].get_absolute_url()
    query = urlencode([("run", str(run.pk)) for run in runs])
    return f"{reverse('training:compare', args=[runs[0].project.slug])}?{query}"


def new_page(
    request: HttpRequest,
    project: Project,
    form: PickForm,
    advice: tuple[EvalRun, list[Advice]] | None,
) -> HttpResponse:
    context = start_of(form, request.user) | {
        "form": form,
        "advice": advice,
        "engines": engine_pages.choices(),
        "clusters": RayCluster.objects.filter(project=project),
    }
    return render(request, "training/new.html", context)


@require_POST
@project_view(Role.ENGINEER)
def start_state(request: HttpRequest, project: Project) -> HttpResponse:
    """The fragment above the start button: whether the run that the form describes may start,
    requested whenever it changes.
    """
    return render(
        request, "training/_start.html", start_of(PickForm(project, request.POST), request.user)
    )


def start_of(form: PickForm, by: Any) -> dict[str, Any]:
    """What a run lacks, and the lock of the reward it learns from: None if it learns from none.
    Read from single fields, since the rest of the form may be incomplete.
    """
    if lacking := missing(form):
        return {"missing": lacking}
    method, environment, eval_set = (
        form["method"].value(),
        form.choice("environment"),
        form.choice("eval_set"),
    )
    context: dict[str, Any] = {
        "method": Method(method).label if method in Method.values else "",
        "environment": environment,
    }
    if environment is None or eval_set is None or not uses_reward(method, form.example_sources()):
        return context
    agent = form.choice("agent") if "agent" in form.fields and method == Method.GRPO else None
    tasks = list(eval_set.tasks.trainable())
    lock = lock_of(environment=environment, tasks=tasks, by=by, agent=agent)
    said = "" if lock.locked else oversight_of(lock, environment.verifier, by)
    return context | {"lock": lock, "oversight": said}


def advised_fields(advice: tuple[EvalRun, list[Advice]] | None) -> dict[str, Any]:
    """Initial values of the form: the first recommended method, with the model and set of the
    evaluation.
    """
    if advice is None:
        return {}
    run, items = advice
    methods = [item.fix for item in items if item.fix in Method.values]
    return {
        "parent": run.model_version_id,
        "eval_set": run.eval_set_id,
        "environment": run.environment_id,
        **({"method": methods[0]} if methods else {}),
    }


def missing(form: PickForm) -> list[tuple[str, str, str]]:
    """What a run needs and the project lacks: (label, page where it is created, query)."""
    needs = {
        "parent": ("Register a base model", "registry:register", "?kind=base"),
        "eval_set": ("Freeze an eval set", "evals:list", ""),
        "environment": ("Create an environment", "environments:new", ""),
    }
    return [need for name, need in needs.items() if not form.fields[name].queryset.exists()]


@project_view(query=OF_ROLLOUTS)
def detail(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    run = get_object_or_404(runs_of(project), pk=pk)
    return render(
        request,
        "training/detail.html",
        live(run)
        | listed(request, run)
        | {
            "checkpoints": run.checkpoints.all()[:20],
            "mask_reasons": mask_reasons(run),
            "sources": [
                (Source(name).label, count) for name, count in run.spec.get("sources", {}).items()
            ],
            "budget": budget.compared(run),
            "teacher_runs_on": words_of_engine(run),
            "estimate": budget.estimate_of(run),
            "safe": checkpoints.before_alarm(run, list(run.checkpoints.all())),
            "alarmed": checkpoints.spoiling_alarm(run),
            "forks": run.forks.all()[:20],
            "evaluations": held_out_evaluations(run),
            "changes": [
                (name, as_text(old), as_text(new)) for name, old, new in forking.changes(run)
            ],
            "settings": [
                (name, as_text(value))
                for name, value in sorted(run.spec["config"].items())
                if value is not None
            ],
            "resume_from": (
                checkpoints.latest(run)
                if run.state in (JobState.FAILED, JobState.CANCELLED)
                else None
            ),
        },
    )


def held_out_evaluations(run: TrainingRun) -> list[EvalRun]:
    """The newest evaluations on the set's hold-out of its output model and of its parent."""
    found = (
        EvalRun.objects.current()
        .filter(project=run.project, eval_set=run.dataset.eval_set, split=Split.HOLDOUT)
        .select_related("model_version", "environment")
        .order_by("-created_at")
    )
    newest = (
        found.filter(model_version=pk).first() for pk in (run.model_version_id, run.parent_id) if pk
    )
    return [one for one in newest if one]


@project_view()
def status(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """The fragment that the page of an active run polls; once the run has ended, the whole page is
    reloaded.
    """
    run = get_object_or_404(runs_of(project), pk=pk)
    return progress(request, "training/_status.html", live(run), runs=run.is_active)


def live(run: TrainingRun) -> dict:
    values = {
        name: found[run.pk] for name, found in curves_of([run], METRICS, points=MOST_POINTS).items()
    }
    alarms = run_alarms.listed(run)
    figures = curves(values, lambda metrics: run_alarms.marks_of(alarms, metrics))
    return {
        "run": run,
        "alarms": alarms,
        "figures": figures,
        "judgements": judgements(run),
        "logs": JobLog.objects.filter(job=run.pk).order_by("-pk")[:30],
    }


def judgements(run: TrainingRun) -> list[dict[str, Any]]:
    """One line each for people and for the LLM judge, if they have judged outputs or are going
    to.
    """
    drawn, found = run.judged_outputs.count(), judged_outputs.judgements_of(run)
    return [
        {
            "one": one,
            "verifier": one.share(0),
            "success": one.share(1),
            "n": one.n,
            "recent": len(one.recent),
            "waiting": (
                judged_outputs.unjudged(run).count() if one.who == judged_outputs.JUDGE else 0
            ),
        }
        for one in found
        if one.n or (one.who == judged_outputs.JUDGE and drawn)
    ]
