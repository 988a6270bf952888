"""Uploading a picture, sound or file, and getting one back."""

from __future__ import annotations

import hashlib

from django.db import transaction
from django.http import Http404, HttpResponse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import described
from apps.core.routes import RUNS, api, shows
from apps.core.scopes import READABLE, SENT
from apps.trajectories import media, media_store
from apps.trajectories.actions.redaction import redacted_name
from apps.trajectories.api import body_of, redaction_works, room_for
from apps.trajectories.models import Medium, MediumUse
from apps.trajectories.pages.media import response_of
from apps.trajectories.shown import runs_shown

MAX_NAME = 200
TEXT = {"type": "string"}
UPLOADED = {
    "type": "object",
    "properties": {
        "url": TEXT | {"description": "What messages refer to it by: flywheel-media:SHA256"},
        "sha256": TEXT,
        "media_type": TEXT | {"description": "What the bytes are"},
        "size": {"type": "integer"},
        "width": {"type": "integer", "nullable": True},
        "height": {"type": "integer", "nullable": True},
        "name": TEXT,
    },
}
BYTES = {"type": "string", "format": "binary"}


@extend_schema(
    operation_id="v1_media_create",
    request={"application/octet-stream": BYTES},
    responses=described({201: UPLOADED}, 400, 413, 503),
    description=(
        "Stores the body, at most 64 MiB, as a picture, sound or file that messages refer to by"
        " `url`, where a data URL would stand. The same bytes again give the same one. What no run"
        " refers to within seven days is deleted."
    ),
    parameters=[OpenApiParameter("name", TEXT | {"maxLength": MAX_NAME}, description="File name")],
)
@api(POST=SENT)
def uploads(request: Request) -> Response:
    name = request.query_params.get("name", "")
    if len(name) > MAX_NAME:
        raise ValidationError({"path": "name", "error": f"has more than {MAX_NAME} characters"})
    with room_for(request):
        data = bytes(body_of(request))
        if not data:
            raise ValidationError({"detail": "The body is empty: send the bytes of a file."})
        with redaction_works():
            name = redacted_name(request.auth.project, name)[-MAX_NAME:]
        digest = hashlib.sha256(data).hexdigest()
        with transaction.atomic():
            pk = media_store.keep(request.auth.project, {digest: data}, name=name)[digest]
            media_store.touch(pk)
    return Response(_as_json(Medium.objects.get(pk=pk)), status=201)


@shows(RUNS)
@extend_schema(
    operation_id="v1_media_read",
    responses={(200, "application/octet-stream"): BYTES} | described({}, 404),
    description="The bytes of an upload, or of what was embedded in a message, by their SHA-256.",
)
@api(GET=READABLE)
def one(request: Request, digest: str) -> HttpResponse:
    project = request.auth.project
    row = Medium.objects.filter(project=project, digest=digest).first()
    if row is None:
        raise Http404("This project has no file with this SHA-256.")
    runs = MediumUse.objects.filter(medium=row).values_list("trajectory_id", flat=True)
    runs_shown(project, list(runs), to=request.auth, where="media by API")
    return response_of(row)


def _as_json(row: Medium) -> dict:
    return {
        "url": f"{media.SCHEME}{row.digest}",
        "sha256": row.digest,
        "media_type": row.media_type,
        "size": row.size,
        "width": row.width,
        "height": row.height,
        "name": row.name,
    }
