"""Submitting to a Ray cluster by page and API, and the job's requests: reading a file of the base
model, and uploading its adapter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal
from uuid import UUID

from django.contrib import messages
from django.http import FileResponse, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST
from drf_spectacular.utils import extend_schema
from msgspec import Meta, Struct
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.access import project_view
from apps.core.api import member_of
from apps.core.attempts import Locked, address_of, refuse_key
from apps.core.models import Project, Role, key_digest
from apps.core.openapi import JSON, described
from apps.core.routes import api
from apps.core.scopes import MANAGED
from apps.evals.holdout.view_log import record_refusal
from apps.registry.models import RayCluster
from apps.training.comparison import runs_of
from apps.training.engines import ray
from apps.training.engines.pages import REFUSALS
from apps.training.engines.returned import NAMES, ResultError, from_files
from apps.training.models import TrainingRun
from apps.training.runs_api import RUN, as_json, find
from workers.lib.typed import convert, json_schema


@require_POST
@project_view(Role.ENGINEER)
def submit(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """A new run with the inputs of this one, as a job on a cluster."""
    run = get_object_or_404(runs_of(project), pk=pk)
    cluster = get_object_or_404(RayCluster, project=project, name=request.POST.get("cluster", ""))
    try:
        made = ray.submit(
            run=ray.copy_of(run, request.user),
            engine=request.POST.get("engine", ""),
            cluster=cluster,
            by=request.user,
        )
    except REFUSALS as error:
        record_refusal(project, error, by=request.user)
        messages.error(request, str(error))
        return redirect("training:export", project.slug, pk)
    return redirect(made.get_absolute_url())


class SubmitRun(Struct, forbid_unknown_fields=True, kw_only=True):
    """The engine whose folder is submitted, and the name of a Ray cluster of the project."""

    engine: Literal["verl", "prime-rl", "openrlhf", "nemo-rl", "unsloth", "nemo-automodel", "trl"]
    cluster: Annotated[str, Meta(min_length=1, max_length=80)]


@extend_schema(
    operation_id="v1_training_runs_submit",
    request={JSON: json_schema(SubmitRun)},
    responses=described({201: RUN}, 400, 403, 404, 409),
    description=(
        "Starts a new run with the inputs and settings of this one as a job on a Ray cluster. It is"
        " followed like any other run, and its adapter is registered. 409 if the reward is locked"
        " or the engine cannot train this run."
    ),
)
@api(POST=MANAGED)
def submit_by_api(request: Request, pk: UUID) -> Response:
    run, by = find(request, pk), request.auth.created_by
    member_of(request)
    given = convert(request.data, SubmitRun)
    cluster = RayCluster.objects.filter(project=run.project, name=given.cluster).first()
    if cluster is None:
        raise NotFound(f"This project has no Ray cluster “{given.cluster}”.")
    try:
        made = ray.submit(run=ray.copy_of(run, by), engine=given.engine, cluster=cluster, by=by)
    except REFUSALS as error:
        record_refusal(run.project, error, by=request.auth)
        raise
    return Response(as_json(request, runs_of(run.project).get(pk=made.pk)), status=201)


# For the job only, by its token


def job_view(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Called with the run whose job has the request's token. Wrong tokens are counted like wrong
    API keys.
    """

    @csrf_exempt
    @wraps(view)
    def checked(request: HttpRequest, pk: UUID, **given: Any) -> HttpResponse:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        try:
            run = ray.run_of_token(pk, token)
        except ray.TokenRefused as error:
            try:
                refuse_key(key_digest(token), address_of(request))
            except Locked as locked:
                return JsonResponse(
                    {"detail": str(locked)},
                    status=429,
                    headers={"Retry-After": str(locked.seconds)},
                )
            return JsonResponse({"detail": str(error)}, status=401)
        return view(request, run, **given)

    return checked


@job_view
@require_GET
def base_file(request: HttpRequest, run: TrainingRun, name: str) -> HttpResponse:
    path = ray.base_file(run, name)
    if path is None:
        return JsonResponse({"detail": "The base model has no such file."}, status=404)
    return FileResponse(path.open("rb"), content_type="application/octet-stream")


@job_view
@require_POST
def result(request: HttpRequest, run: TrainingRun) -> HttpResponse:
    names = {which: name for name, which in NAMES.items()}
    try:
        files = [
            (names[field], file)
            for field, file in request.FILES.items()
            if field in ("config", "weights")
        ]
        ray.receive(run, from_files(files))
    except ray.AlreadyReturned as error:
        return JsonResponse({"detail": str(error)}, status=409)
    except ResultError as error:
        return JsonResponse({"detail": str(error)}, status=400)
    return JsonResponse({"run": str(run.pk)}, status=201)
