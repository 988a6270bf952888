"""Training in other engines over REST: a run's plan as a folder."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from msgspec import Struct
from rest_framework.decorators import parser_classes
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import MultipartParser, member_of
from apps.core.openapi import JSON, described
from apps.core.routes import api
from apps.core.scopes import MANAGED
from apps.evals.holdout.view_log import record_refusal
from apps.training.engines import exporting, returned
from apps.training.engines.folder import ENGINES
from apps.training.engines.pages import REFUSALS, as_file
from apps.training.runs_api import RUN, as_json, find
from workers.lib.typed import convert, json_schema

ZIP = "application/zip"
FILE = {"type": "string", "format": "binary"}
FILES = {"type": "object", "properties": dict.fromkeys([*returned.NAMES.values(), "archive"], FILE)}


class ExportRun(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which engine the folder is for."""

    engine: Literal["verl", "prime-rl", "openrlhf", "nemo-rl", "unsloth", "nemo-automodel", "trl"]


@extend_schema(
    operation_id="v1_training_runs_export",
    request={JSON: json_schema(ExportRun)},
    responses=described({}, 400, 403, 404, 409) | {(200, ZIP): OpenApiTypes.BINARY},
    description=(
        "A zipped folder to run this training plan in another engine: data, configuration, reward"
        " hook, launch script and a signed manifest. Engines:"
        f" {', '.join(engine.label for engine in ENGINES.values())}. Never contains held-out tasks."
        " 409 if the reward is locked or the engine cannot train this run."
    ),
)
@api(POST=MANAGED)
def export(request: Request, pk: UUID) -> HttpResponse:
    run = find(request, pk)
    member_of(request)
    asked = convert(request.data, ExportRun)
    try:
        return as_file(exporting.export(run=run, engine=asked.engine, by=request.auth.created_by))
    except REFUSALS as error:
        record_refusal(run.project, error, by=request.auth)
        raise


@extend_schema(
    operation_id="v1_training_runs_import",
    request={"multipart/form-data": FILES},
    responses=described({200: RUN, 201: RUN}, 400, 403),
    description=(
        "The result of an exported run: its manifest, the adapter's two files and, if available,"
        " metrics as JSON Lines; or a zip archive of these. The adapter is checked against the base"
        " model of the run and registered, and a finished run shows its curves. Sending the same"
        " result twice creates one run: the second response is 200."
    ),
)
@api(POST=MANAGED)
@parser_classes([MultipartParser])
def import_result(request: Request) -> Response:
    member_of(request)
    unknown = set(request.FILES) - set(FILES["properties"])
    if unknown or not request.FILES:
        raise ValidationError(
            {"path": "", "error": f"send files as {', '.join(FILES['properties'])}"}
        )
    names = {which: name for name, which in returned.NAMES.items()} | {"archive": "result.zip"}
    given = returned.from_files([(names[field], file) for field, file in request.FILES.items()])
    run = returned.import_result(
        project=request.auth.project, returned=given, by=request.auth.created_by
    )
    return Response(as_json(request, run), status=201 if run.is_new else 200)
