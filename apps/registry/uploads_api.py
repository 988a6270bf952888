"""Uploading an adapter in parts over REST (`uploads`). The API key determines the project."""

from __future__ import annotations

from typing import Annotated, Any, BinaryIO
from uuid import UUID

from drf_spectacular.utils import OpenApiExample, extend_schema
from msgspec import Meta, Struct
from rest_framework.decorators import parser_classes
from rest_framework.exceptions import NotFound
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.openapi import JSON, described, results
from apps.core.operations import Name
from apps.core.routes import api
from apps.core.scopes import MANAGED, READABLE
from apps.registry import schema, uploads
from apps.registry.models import AdapterUpload, ModelVersion
from apps.registry.trained_elsewhere import CONFIG, WEIGHTS
from workers.lib.typed import FormError, convert, json_schema, plain

BYTES = "application/octet-stream"


class NewUpload(Struct, forbid_unknown_fields=True, kw_only=True):
    """The name of the version, the id of the base model (or of a version on it), and the two files
    of a PEFT adapter. `confirm_base`: it was trained on this base, although its configuration names
    another."""

    name: Name
    parent: int
    confirm_base: bool = False
    files: Annotated[list[uploads.Announced], Meta(min_length=2, max_length=2)]


class PartBytes(BaseParser):
    """The raw body, read up to one byte more than the size of a part."""

    media_type = "*/*"

    def parse(
        self, stream: BinaryIO, media_type: str | None = None, parser_context: Any = None
    ) -> bytes:
        return _read(stream)


def _read(stream: BinaryIO) -> bytes:
    """Read in a loop, since some servers return less per read than was asked for."""
    data = b""
    while len(data) <= uploads.PART and (piece := stream.read(uploads.PART + 1 - len(data))):
        data += piece
    return data


def _bytes_of(request: Request) -> bytes:
    """Django reads nothing without a Content-Length, so a chunked body is read from the WSGI
    server's stream.
    """
    if "chunked" in request.META.get("HTTP_TRANSFER_ENCODING", "").lower():
        return _read(request.META["wsgi.input"])
    return request.data or b""


TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
UPLOAD = {
    "type": "object",
    "required": ["id", "name", "parent", "part_size", "files", "expires_at"],
    "properties": {
        "id": TEXT | {"format": "uuid"},
        "name": TEXT,
        "parent": WHOLE,
        "part_size": WHOLE | {"description": "Bytes of every part but the last"},
        "files": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "path": TEXT,
                    "size": WHOLE,
                    "sha256": TEXT,
                    "parts": WHOLE,
                    "missing": {
                        "type": "array",
                        "items": WHOLE,
                        "description": "Numbers of the parts that have not come, from 0",
                    },
                },
            },
        },
        "expires_at": TEXT | {"format": "date-time"},
    },
}
FILES = [
    {"path": CONFIG, "size": 512, "sha256": "9f" * 32},
    {"path": WEIGHTS, "size": 9_000_000, "sha256": "a4" * 32},
]
NEW_EXAMPLE = OpenApiExample(
    "An adapter", {"name": "support-lora", "parent": 12, "files": FILES}, request_only=True
)


def as_json(upload: AdapterUpload) -> dict[str, Any]:
    lacking = uploads.missing(upload)
    return {
        "id": str(upload.pk),
        "name": upload.name,
        "parent": upload.parent_id,
        "part_size": uploads.PART,
        "files": [
            file | {"parts": uploads.parts_of(file), "missing": lacking[file["path"]]}
            for file in upload.files
        ],
        "expires_at": upload.created_at + uploads.LASTS,
    }


def find(request: Request, pk: UUID) -> AdapterUpload:
    """Raises NotFound."""
    rows = AdapterUpload.objects.filter(project=request.auth.project).select_related(
        "project", "parent"
    )
    found = rows.filter(pk=pk).first()
    if found is None:
        raise NotFound(
            "This project has no such upload: it was finished, cancelled, or is older than two"
            " days."
        )
    return found


@extend_schema(
    methods=["GET"],
    operation_id="v1_adapter_uploads_list",
    responses=described({200: results(UPLOAD)}),
    description="Current uploads, with their missing parts.",
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_adapter_uploads_begin",
    request={JSON: json_schema(NewUpload)},
    examples=[NEW_EXAMPLE],
    responses=described(
        {201: UPLOAD, 200: {"oneOf": [UPLOAD, schema.VERSION]}}, 400, 403, 404, 409
    ),
    description=(
        "Announces the two files of a PEFT adapter. Then PUT the parts, in any order and several at"
        " a time, and POST `finish`. The same announcement again continues the same upload (200),"
        " and returns the model version if the project already has that content."
    ),
)
@api(GET=READABLE, POST=MANAGED)
def collection(request: Request) -> Response:
    project = request.auth.project
    if request.method == "GET":
        return Response({"results": [as_json(row) for row in project.adapter_uploads.all()]})
    member_of(request)
    asked = convert(request.data, NewUpload)
    parent = ModelVersion.objects.filter(
        project=project, pk=min(max(asked.parent, 0), 2**63 - 1)
    ).first()
    if parent is None:
        raise FormError("parent", "is not a model version of this project")
    files = plain(asked.files)
    if version := uploads.already(project=project, parent=parent, files=files):
        return Response(schema.version_json(version))
    upload = uploads.begin(
        project=project,
        name=asked.name,
        parent=parent,
        files=files,
        by=request.auth.created_by,
        confirm_base=asked.confirm_base,
    )
    return Response(as_json(upload), status=201 if upload.is_new else 200)


@extend_schema(
    methods=["GET"], operation_id="v1_adapter_uploads_read", responses=described({200: UPLOAD}, 404)
)
@extend_schema(
    methods=["DELETE"],
    operation_id="v1_adapter_uploads_give_up",
    responses=described({}, 403, 404) | {204: None},
    description="Cancels an upload. Uploads are cancelled automatically after two days.",
)
@api(GET=READABLE, DELETE=MANAGED)
def item(request: Request, pk: UUID) -> Response:
    upload = find(request, pk)
    if request.method == "DELETE":
        member_of(request)
        uploads.remove(upload)
        return Response(status=204)
    return Response(as_json(upload))


@extend_schema(
    operation_id="v1_adapter_uploads_part",
    request={BYTES: {"type": "string", "format": "binary"}},
    responses=described({200: UPLOAD}, 400, 403, 404, 409),
    description=(
        "One part of a file as bytes, from 0: `part_size` of them, the last part what is left. It"
        " is stored when this answers, and may be sent again. 400 for one that came short."
    ),
)
@api(PUT=MANAGED)
@parser_classes([PartBytes])
def part(request: Request, pk: UUID, path: str, number: int) -> Response:
    upload = find(request, pk)
    member_of(request)
    uploads.add_part(upload=upload, path=path, number=number, data=_bytes_of(request))
    return Response(as_json(upload))


@extend_schema(
    operation_id="v1_adapter_uploads_finish",
    request=None,
    responses=described({200: schema.VERSION, 201: schema.VERSION}, 400, 403, 404, 409),
    description=(
        "Verifies the files and registers the version: base, rank, alpha, target modules, every"
        " tensor and its shape are checked. 409 if parts are missing or are not what was announced"
        " (send those again); 400 if it is not an adapter of its base. With the path"
        " `confirm_base`, the upload is kept: announce it again with `confirm_base`, and finish it."
    ),
)
@api(POST=MANAGED)
def finish(request: Request, pk: UUID) -> Response:
    upload = find(request, pk)
    member_of(request)
    version = uploads.finish(upload=upload, by=request.auth.created_by)
    return Response(schema.version_json(version), status=201 if version.is_new else 200)
