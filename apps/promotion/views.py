from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db.models import Case, F, OuterRef, Prefetch, Subquery, When
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.charts import intervals
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.core.query import FLAG, PAGE_NUMBER
from apps.core.routes import OUTPUTS, TOTALS, WHEN_EVALUATED, shows
from apps.core.sorting import Sorting, choices
from apps.core.templatetags.flywheel import number, percent
from apps.environments.reward_models import measured_of, verifiers_with
from apps.evals.holdout.view_log import record_output_view
from apps.evals.models import EvalRun, Split
from apps.promotion import actions
from apps.promotion.conditions import why_owner
from apps.promotion.freezing import freeze_of
from apps.promotion.gate.types import points
from apps.promotion.models import Channel, GateReport, Promotion
from apps.promotion.pages.pair import pair_of
from apps.promotion.policies import PRODUCTION, channel_of, policy_of
from apps.promotion.pulling.card import card_of
from apps.promotion.signing import is_genuine, signed_document
from apps.promotion.unsafe_outputs import listed_in
from apps.registry import merging
from apps.registry.models import ModelKind, ModelVersion
from apps.registry.profiles import profile_of_version
from apps.training.lineage import count, datasets_behind, heirs_of, jobs_behind
from apps.training.models import TrainingRun
from workers.lib.prompts import as_lines

SIDE_BY_SIDE = 30
UNSAFE_SHOWN = 200
IN_OTHER_UNITS = ("tokens", "latency", "latency_p95")  # than the chart's shares


SHOWN_FIRST = (
    Case(When(split=Split.HOLDOUT, then=0), default=1),
    "-created_at",
)  # of a version's evaluations
VERSION_COLUMNS = {
    "version": "name",
    "evaluated": "-evaluated_at",
    "success": "-success",
    "reward": "-reward",
    "created": "-created_at",
}


@shows(TOTALS, WHEN_EVALUATED)
@project_view(query={"archived": FLAG, "sort": choices(VERSION_COLUMNS), "page": PAGE_NUMBER})
def models(request: HttpRequest, project: Project) -> HttpResponse:
    finished = EvalRun.objects.filter(state="succeeded").order_by(*SHOWN_FIRST)
    archived = "archived" in request.GET
    versions = (
        project.model_versions.shown(archived)
        .select_related("parent")
        .prefetch_related(
            Prefetch("live_in", Channel.objects.live()),
            Prefetch("eval_runs", finished.select_related("eval_set"), to_attr="finished"),
        )
    )
    shown = finished.filter(model_version=OuterRef("pk"))
    metrics = shown.annotate(
        success=F("result__metrics__success__mean"), reward=F("result__metrics__reward__mean")
    )
    order = Sorting.of(request.GET, VERSION_COLUMNS)
    if order.chosen in ("evaluated", "success", "reward"):
        versions = versions.annotate(
            evaluated_at=Subquery(shown.values("created_at")[:1]),
            success=Subquery(metrics.values("success")[:1]),
            reward=Subquery(metrics.values("reward")[:1]),
        )
    channels = [
        (channel, actions.previous_of(channel), policy_of(channel)[0].rollback_needs_reason)
        for channel in project.channels.shown(archived).select_related("current")
    ]
    return render(
        request,
        "promotion/models.html",
        {
            "archived": archived,
            "page": page_of(request, order.apply(versions)),
            "order": order,
            "channels": channels,
            "reports": project.gate_reports.select_related(
                "baseline__model_version", "candidate__model_version"
            )[:20],
            "moves": (
                Promotion.objects.filter(channel__project=project).select_related(
                    "channel", "from_version", "to_version", "by", "gate_report"
                )[:30]
            ),
        },
    )


@shows(TOTALS, WHEN_EVALUATED)
@project_view()
def model(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    version = get_object_or_404(
        ModelVersion.objects.select_related("parent", "artifact", "server", "created_by"),
        project=project,
        pk=pk,
    )
    return render(
        request,
        "promotion/model.html",
        {
            "version": version,
            **reward_model(version),
            "profile": profile_of_version(version) if version.kind == ModelKind.BASE else None,
            "lineage": [
                (node, job, *(count([job.dataset_id]) if job else (0, False)))
                for node, job in jobs_behind(version)
            ],
            "learned": count(datasets_behind(version)),
            "prompt_lines": as_lines(version.prompt),
            "children": heirs_of({version.pk})[version.pk],
            "evals": version.eval_runs.select_related("eval_set"),
            "trains": project.model_versions.current().trainable().filter(pk=version.pk).exists(),
            "live_in": version.live_in.live(),
            "card": card_of(version),
            **(
                {"merged": merging.merged_of(version), "merging": merging.latest_job(version)}
                if merging.can_be_merged(version)
                else {}
            ),
            "moves": version.promotions.select_related("channel")[:10],
        },
    )


def reward_model(version: ModelVersion) -> dict[str, Any]:
    """For a reward model: its quality, the verifiers that score with it, and what was trained on
    their rewards.
    """
    if version.kind != ModelKind.REWARD:
        return {}
    verifiers = verifiers_with(version)
    runs = TrainingRun.objects.filter(environment__verifier__in=verifiers).select_related(
        "model_version"
    )
    return {
        "measured": measured_of(version),
        "verifiers": verifiers,
        "taught": runs.order_by("-created_at")[:20],
    }


@require_POST
@project_view(Role.ENGINEER)
def make_report(request: HttpRequest, project: Project) -> HttpResponse:
    baseline, candidate = pair_of(
        project, request.POST.get("baseline"), request.POST.get("candidate")
    )
    channel = get_object_or_404(
        Channel, project=project, name=request.POST.get("channel") or channel_of(project).name
    )
    try:
        report = actions.make_gate_report(
            baseline=baseline, candidate=candidate, by=request.user, channel=channel
        )
    except actions.PromotionError as error:
        messages.error(request, str(error))
        return redirect("promotion:pair", project.slug, baseline.pk, candidate.pk)
    return redirect("promotion:report", project.slug, report.pk)


@shows(TOTALS, WHEN_EVALUATED)
@project_view(query={"baseline": UUID, "candidate": UUID})
def compare(request: HttpRequest, project: Project) -> HttpResponse:
    """Chooses two evaluations."""
    runs = (
        EvalRun.objects.current()
        .filter(project=project)
        .select_related("model_version", "eval_set")
    )
    sequential = any(policy_of(channel)[0].sequential for channel in project.channels.current())
    runs = runs.filter(started_at__isnull=False) if sequential else runs.filter(state="succeeded")
    given = [request.GET.get("baseline"), request.GET.get("candidate")]
    if all(given):
        return redirect(
            "promotion:pair", project.slug, *(run.pk for run in pair_of(project, *given))
        )
    if not given[0]:
        live = (
            project.channels.current()
            .filter(name=PRODUCTION)
            .values_list("current", flat=True)
            .first()
        )
        given = suggested_pair(list(runs[:100]), live, given[1])
    return render(request, "promotion/compare.html", {"runs": runs[:100], "given": given})


def suggested_pair(
    runs: Sequence[EvalRun], live: int | None, chosen: str | None = None
) -> list[str]:
    """The newest evaluation (or the `chosen` one) with one of the `live` version on the same tasks,
    which it has to beat; otherwise with one of any other version."""
    pairs = [
        (baseline, candidate)
        for candidate in [run for run in runs if chosen in (None, str(run.pk))]
        for baseline in runs
        if baseline.model_version_id != candidate.model_version_id
        and (baseline.eval_set_id, baseline.split) == (candidate.eval_set_id, candidate.split)
    ]
    against_live = [pair for pair in pairs if pair[0].model_version_id == live]
    return [str(run.pk) for run in next(iter(against_live or pairs), ())] or ["", chosen or ""]


@shows(OUTPUTS)
@project_view()
def report(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    row = get_object_or_404(
        GateReport.objects.select_related(
            "baseline__model_version", "candidate__model_version", "created_by", "channel__current"
        ),
        project=project,
        pk=pk,
    )
    checks, (policy, version) = row.report["checks"], policy_of(row.channel)
    measured = [
        check
        for check in reversed(checks)
        if check["high"] is not None and check["name"] not in IN_OTHER_UNITS
    ]
    pairs, unsafe_outputs = moved_pairs(row), listed_in(row, UNSAFE_SHOWN)
    if pairs or unsafe_outputs:
        record_output_view(row.candidate, by=request.user)
    return render(
        request,
        "promotion/report.html",
        {
            "report": row,
            "checks": [
                check
                | {"change": change_of(check), "interval": interval_of(check)}
                | {
                    f"shown_{side}": shown_of(check, check[side])
                    for side in ("baseline", "candidate")
                }
                for check in checks
            ],
            "channel": row.channel,
            "policy_now": version,
            "signed": is_genuine(row),
            "owner_decides": why_owner(row.channel, row, policy),
            "promotions": row.promotions.select_related("by"),
            "approvals": row.approvals.all(),
            "two_people": policy.two_people,
            "freeze": freeze_of(row.channel),
            "deployment": row.deployments.order_by("-created_at").first(),
            "figure": intervals(
                [check["title"] for check in measured],
                [check["difference"] for check in measured],
                [check["low"] for check in measured],
                [check["high"] for check in measured],
                "Candidate minus baseline, 95% intervals",
                height=220,
            ),
            "unsafe_outputs": unsafe_outputs,
            "new_kinds": len(row.report.get("new_kinds", [])),
            "pairs": pairs,
            "moved": len(row.report["regressed"]) + len(row.report["improved"]),
        },
    )


@shows("which held-out tasks moved")
@project_view()
def report_file(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """The signed report as JSON, for `manage.py reproduce_gate_report`."""
    row = get_object_or_404(GateReport.objects.select_related("candidate"), project=project, pk=pk)
    record_output_view(row.candidate, by=request.user)
    headers = {"Content-Disposition": f'attachment; filename="gate-report-{row.pk}.json"'}
    return JsonResponse(
        signed_document(row), headers=headers, json_dumps_params={"indent": 1, "allow_nan": False}
    )


SHARES = (
    "success",
    "safety",
    "regressions",
    "masked",
    "regression",
    "general",
)  # checks of rates, shown in percent


def shown_of(check: dict, value: float | None) -> str:
    return percent(value) if check["name"] in SHARES else number(value)


def change_of(check: dict) -> str:
    """The difference with as many decimals as the two sides have; for rates in percentage
    points.
    """
    return "–" if check["difference"] is None else _signed(check, check["difference"])


def interval_of(check: dict) -> str:
    return (
        ""
        if check["high"] is None
        else f"[{_signed(check, check['low'])}, {_signed(check, check['high'])}]"
    )


def _signed(check: dict, value: float) -> str:
    if check.get("name") in SHARES:
        return points(value)
    large = max(abs(check[side] or 0) for side in ("baseline", "candidate")) >= 100
    return f"{value:+,.0f}" if large else f"{value:+.3f}"


def moved_pairs(row: GateReport) -> list[dict]:
    """The tasks that moved, with one output of each side."""
    keys = (row.report["regressed"] + row.report["improved"])[:SIDE_BY_SIDE]
    found: dict[str, dict] = {
        key: {"key": key, "regressed": key in row.report["regressed"]} for key in keys
    }
    for side, run in (("baseline", row.baseline), ("candidate", row.candidate)):
        for sample in run.samples.filter(task__key__in=keys, index=0).select_related("task"):
            found[sample.task.key] |= {side: sample, "task": sample.task_id}
    return [pair for pair in found.values() if "task" in pair]
