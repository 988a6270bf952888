"""The editor of verifiers: write a spec, see immediately what it gives real samples and what it
changes, then save it.
"""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.text import slugify
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.forms import whole
from apps.core.models import Project, Role
from apps.core.query import KEY
from apps.core.routes import OUTPUTS, shows
from apps.environments import reward_models
from apps.environments.actions import check_verifier
from apps.environments.models import Environment, Verifier
from apps.evals.holdout.view_log import record_sample_views
from apps.registry.models import ModelVersion
from apps.reviews import rescoring, specs
from apps.reviews.actions import ReviewError
from apps.reviews.editing import save_edit
from apps.reviews.models import Rescore
from workers.lib.errors import SpecError

TRIED = 10


def typed(request: HttpRequest, project: Project) -> dict:
    """The spec in the form, with what it names filled in. Raises SpecTextError or SpecError, both
    with a sentence that says if.
    """
    spec = specs.with_code(
        specs.read(request.POST.get("spec", "")),
        request.POST.get("code", ""),
        request.POST.get("field", ""),
    )
    spec = reward_models.resolved(project, spec)
    check_verifier(spec)
    return spec


@project_view()
def edit(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    verifier = get_object_or_404(Verifier, project=project, pk=pk)
    rest, code, field = specs.split_code(verifier.spec)
    return _form(request, verifier, specs.shown(rest), code, field)


@project_view(query={"kind": [one.kind for one in specs.STARTS], "model": KEY})
def new(request: HttpRequest, project: Project) -> HttpResponse:
    start = next((one for one in specs.STARTS if one.kind == request.GET.get("kind")), None)
    if start is None:
        return render(request, "reviews/editor_new.html", {"starts": specs.STARTS})
    rest, code, field = specs.split_code(start.spec)
    version = _reward_model(request, project) if start.kind == reward_models.KIND else None
    named = {"version": str(version)} if version else {}
    return _form(
        request, None, specs.shown(rest | named), code, field, name=version.name if version else ""
    )


def _reward_model(request: HttpRequest, project: Project) -> ModelVersion | None:
    """The one that a link names, else the newest."""
    versions = reward_models.versions_of(project)
    return (
        versions.filter(pk=whole(request.GET.get("model"), 0, 2**63 - 1)).first()
        or versions.first()
    )


def _form(
    request: HttpRequest,
    verifier: Verifier | None,
    spec: str,
    code: str,
    field: str,
    status: int = 200,
    **more: object,
) -> HttpResponse:
    context = {
        "verifier": verifier,
        "spec": spec,
        "code": code,
        "field": field,
        "name": request.POST.get("name", ""),
        "note": request.POST.get("note", ""),
        "used": verifier.environments.all() if verifier else [],
        "kind": request.GET.get("kind", ""),
    }
    return render(request, "reviews/editor.html", context | more, status=status)


@require_POST
@project_view(Role.ENGINEER)
def save(request: HttpRequest, project: Project, pk: int | None = None) -> HttpResponse:
    before = get_object_or_404(Verifier, project=project, pk=pk) if pk else None
    name = before.name if before else slugify(request.POST.get("name", ""))[:80]
    try:
        spec = typed(request, project)
        verifier, environments = save_edit(
            project=project,
            name=name,
            spec=spec,
            note=request.POST.get("note", ""),
            before=before,
            adopt=request.POST.get("adopt") == "1",
            by=request.user,
        )
    except (specs.SpecTextError, SpecError, ReviewError) as error:
        text, code, field = (request.POST.get(part, "") for part in ("spec", "code", "field"))
        return _form(request, before, text, code, field, status=400, error=str(error))
    if verifier == before:
        messages.info(request, f"Nothing was changed: this is identical to {verifier}.")
    else:
        used = (
            f" New versions of {', '.join(map(str, environments))} use it." if environments else ""
        )
        messages.success(
            request,
            f"Saved as {verifier}.{used} It must pass its probes and a review before it can be used"
            " for training.",
        )
    return redirect("reviews:verifier", project.slug, verifier.pk)


@require_POST
@project_view(Role.ENGINEER)
def check(request: HttpRequest, project: Project) -> HttpResponse:
    """The error in the spec as typed, on one line."""
    try:
        typed(request, project)
    except (specs.SpecTextError, SpecError) as error:
        return render(request, "reviews/_spec_check.html", {"error": str(error)})
    return render(request, "reviews/_spec_check.html")


@require_POST
@project_view(Role.ENGINEER)
def try_it(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """Starts to score stored samples with the spec as typed: ten to look at, or two hundred to see
    what changes.
    """
    verifier = get_object_or_404(Verifier, project=project, pk=pk)
    environment = verifier.environments.order_by("-pk").first() or _any_environment(verifier)
    count = rescoring.RESCORED_SAMPLES if request.POST.get("all") else TRIED
    try:
        if environment is None:
            raise rescoring.RescoringError(
                "No environment uses this verifier yet, so there is nothing to score."
            )
        job = rescoring.submit_rescore(
            verifier=verifier,
            candidate=typed(request, project),
            environment=environment,
            samples=rescoring.samples_of(verifier, count),
            by=request.user,
        )
    except (specs.SpecTextError, SpecError, rescoring.RescoringError) as error:
        return render(request, "reviews/_rescore.html", {"error": str(error)})
    return render(request, "reviews/_rescore.html", {"job": job})


def _any_environment(verifier: Verifier) -> Environment | None:
    """One that uses another version of it."""
    return (
        Environment.objects.filter(project=verifier.project, verifier__name=verifier.name)
        .order_by("-pk")
        .first()
    )


@shows(OUTPUTS)
@project_view(query={"then": ("refresh",)})
def rescore(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """What the scoring has found so far; the page asks until it has ended."""
    job = get_object_or_404(Rescore.objects.select_related("verifier"), project=project, pk=pk)
    found = rescoring.changes(job)
    detail = f"{job.name} ({job.pk})"
    held = record_sample_views(
        project, [one.sample for one in found], by=request.user, detail=detail
    )
    context = {
        "job": job,
        "is_look": held,
        "changes": found,
        "flipped": sum(one.flipped for one in found),
        "moved": sum(bool(one.delta) for one in found),
        "masked": sum(one.score["masked"] for one in found),
    }
    response = render(request, "reviews/_rescore.html", context)
    if request.GET.get("then") == "refresh" and not job.is_active:
        response["HX-Refresh"] = "true"
    return response
