"""Files of trajectories over REST, previewed or imported by a worker, and the mappings that a
project keeps for them.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.models import JobState
from apps.core.openapi import JSON, described, sent, told
from apps.core.query import is_true
from apps.core.routes import api
from apps.core.scopes import MANAGED, READABLE
from apps.core.storable import refuse_unstorable
from apps.trajectories import uploads
from apps.trajectories.actions.mappings import (
    delete_mapping,
    find_mapping,
    names_that_fit,
    save_mapping,
)
from apps.trajectories.api import body_of, room_for
from apps.trajectories.decoding import RowError, loads
from apps.trajectories.importers import FORMATS, MAPPED, ImportError_
from apps.trajectories.importers.encodings import ENCODINGS
from apps.trajectories.importers.mapping import BY_LAYOUT, Mapping, MappingError, as_json, load
from apps.trajectories.models import Upload

MAPPING = {
    "type": "object",
    "properties": {
        "layout": {
            "enum": list(BY_LAYOUT),
            "default": "conversation",
            "description": "What each record of the file represents",
        },
        "fields": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": (
                "Our field: a column, a JMESPath, or “=text”. "
                + "; ".join(
                    f"{layout}: {', '.join(field.name for field in fields)}"
                    for layout, fields in BY_LAYOUT.items()
                )
            ),
        },
        "records": {
            "type": "string",
            "description": "Where the list of records is inside a document",
        },
        "success": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Values of the outcome that mean success",
        },
        "failure": {"type": "array", "items": {"type": "string"}},
        "unknown": {
            "type": "array",
            "items": {"type": "string"},
            "description": (
                "Values that mean neither and are not reported as unreadable. Where success and"
                " failure are empty, words such as “yes” and “failed” are understood, except these"
            ),
        },
        "threshold": {
            "type": ["number", "null"],
            "description": "Outcomes or scores at or above this number are successes",
        },
        "roles": {
            "type": "object",
            "additionalProperties": {"enum": ["user", "assistant", "tool", "system", "skip"]},
        },
        "totals": {
            "enum": ["sum", "last"],
            "description": "Numbers in the rows of a conversation: summed, or repeated in each row",
        },
        "dates": {
            "enum": ["", "day", "month"],
            "description": (
                "What 02/01/2026 begins with. If empty, a number above 12 in the "
                "first rows decides; a file where none does is refused"
            ),
        },
        "fill_down": {
            "type": "boolean",
            "default": False,
            "description": (
                "An empty cell in the column of the conversation repeats "
                "the one above, as merged cells do"
            ),
        },
        "keep_rest": {
            "type": "boolean",
            "default": True,
            "description": "Unmapped columns go into metadata.extra",
        },
    },
}
SAVED = {
    "type": "object",
    "required": ["name", "mapping"],
    "properties": {"name": {"type": "string"}, "mapping": MAPPING},
}
JOB = {
    "type": "object",
    "required": ["id", "name", "format", "state", "done", "total", "error", "result"],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "name": {"type": "string"},
        "format": {"type": "string"},
        "state": {"enum": JobState.values},
        "done": {"type": "integer"},
        "total": {"type": "integer", "description": "0 if not known in advance"},
        "error": {"type": "string"},
        "result": {
            "type": "object",
            "description": (
                "{accepted, duplicates, updated, rejected, errors: the first bad rows, warned,"
                " warnings: the first oddities of rows that were stored, such as a start time that"
                " cannot be read}"
            ),
        },
    },
}
SEEN = {
    "type": "object",
    "required": ["format", "good", "bad", "rows", "errors"],
    "properties": {
        "format": {"type": "string"},
        "good": {"type": "integer"},
        "bad": {"type": "integer"},
        "rows": {
            "type": "array",
            "items": {"type": "object"},
            "description": "The first trajectories, as they would be stored",
        },
        "errors": {
            "type": "array",
            "items": {"type": "object"},
            "description": "[{position, path, error}]",
        },
        "mapping": (
            MAPPING | {"description": "For a mapped file: the mapping that was used or guessed"}
        ),
        "guessed": {"type": "boolean"},
        "saved": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Saved mappings that fit these columns",
        },
        "problem": {"type": "string", "description": "Why the mapping gives no rows"},
        "records": {"type": "integer", "description": "Rows of the file that a mapping read"},
        "unmapped": {
            "type": "array",
            "items": {"type": "object"},
            "description": (
                "Columns and paths without a field: [{name, count, example, kept: whether"
                " metadata.extra has it}]"
            ),
        },
        "encoding": {
            "type": "string",
            "description": "As the text was read; a guess where `encodings` is not empty",
        },
        "encodings": {
            "type": "array",
            "items": {"type": "object"},
            "description": (
                "Where the encoding cannot be known, those it may be: [{name, label, example: a"
                " line as it reads in it}], best first"
            ),
        },
        "unread": {
            "type": "object",
            "description": (
                "Values that a field cannot take: {field: {count, example, position, column,"
                " label}}"
            ),
        },
    },
}
PAIRS = {
    "layout": "pairs",
    "fields": {"question": "asked", "answer": "said", "outcome": "solved"},
    "success": ["yes"],
    "failure": ["no"],
}
RUNNING = {
    "id": "5f0c3c1e-7c0d-4b0e-9d3a-2f5a1b1f9a11",
    "name": "calls.csv",
    "format": "mapped",
    "state": "queued",
    "done": 0,
    "total": 120,
    "error": "",
    "result": {},
}
PARAMETERS = [
    OpenApiParameter("name", description="The file's name"),
    OpenApiParameter(
        "format",
        enum=["auto", MAPPED, *FORMATS],
        description="“mapped”: use a mapping; auto: detect the format",
    ),
    OpenApiParameter("mapping", description="The name of a mapping of the project"),
    OpenApiParameter(
        "encoding",
        enum=list(ENCODINGS),
        description="Of a text that is not UTF-8: required, `encodings` of a preview has guesses",
    ),
    OpenApiParameter("preview", bool, description="Preview only; nothing is stored"),
]


@extend_schema(
    request={"application/octet-stream": {"type": "string", "format": "binary"}},
    parameters=PARAMETERS,
    responses=described({200: SEEN, 202: JOB}, 400, 403, 413, 503),
    examples=[
        OpenApiExample(
            "A CSV file",
            value="asked,said,solved\nWhere is my order?,On its way.,yes\n",
            request_only=True,
        ),
        told(
            "A preview",
            {
                "format": "mapped",
                "good": 1,
                "bad": 0,
                "rows": [],
                "errors": [],
                "mapping": PAIRS,
                "guessed": True,
                "saved": ["calls"],
                "problem": "",
                "unmapped": [],
                "unread": {},
            },
            "200",
        ),
        told("Left to a worker", RUNNING, "202"),
    ],
    description=(
        "A file of trajectories as the body: CSV, JSON, JSON Lines, Parquet or OTLP, gzip or not,"
        " at most 64 MiB. Files that need a mapping are only imported with one: use preview=true to"
        " get a guess, correct it, and save it as a mapping first. Importing the same file again"
        " changes nothing."
    ),
)
@api(POST=MANAGED)
def imports(request: Request) -> Response:
    project, by = request.auth.project, member_of(request).user
    given = request.query_params
    name, format = given.get("name", "")[-200:] or "upload", given.get("format", "auto")
    mapping = _named(request, given["mapping"]) if given.get("mapping") else None
    with room_for(request):
        file = uploads.keep([bytes(body_of(request))])
    waits = False
    try:
        path, encoding = uploads.path_of(file), given.get("encoding", "")
        seen = uploads.preview(path, name, format, mapping, encoding)
        fitting = uploads.saved_mappings(project, path, name, encoding) if "mapping" in seen else []
        if "mapping" in seen:
            seen["saved"] = [one.name for one in fitting]
        if is_true(request, "preview"):
            return Response(seen)
        if seen["encodings"] and not encoding:
            names = ", ".join(one["name"] for one in seen["encodings"][:4])
            why = (
                f"this file is not UTF-8; it may be {names}: use preview=true to see how it reads."
            )
            raise ValidationError({"path": "encoding", "error": why})
        if seen.get("guessed") or seen.get("problem"):
            why = (
                seen["problem"]
                or "this file needs a mapping: use preview=true to get a guess, and save it as a mapping."  # noqa: E501
            )
            raise ValidationError({"path": "mapping", "error": why + names_that_fit(fitting)})
        token = {
            "name": name,
            "format": seen["format"],
            "total": seen["total"],
            "encoding": encoding,
        }
        made = uploads.submit(
            project=project,
            by=by,
            file=file,
            token=token | ({"mapping": as_json(mapping)} if mapping else {}),
        )
        waits = True
        return Response(job_json(made), status=202)
    except ImportError_ as error:
        raise ValidationError({"path": "", "error": str(error)}) from error
    finally:
        if not waits:
            uploads.forget(file)


@extend_schema(
    responses=described({200: JOB}, 403, 404),
    examples=[told("It waits", RUNNING)],
    description="An import of this project. Its trajectories: GET /api/v1/trajectories/?import=ID.",
)
@api(GET=READABLE)
def one_import(request: Request, pk: UUID) -> Response:
    found = Upload.objects.filter(project=request.auth.project, pk=pk).first()
    if found is None:
        raise NotFound("No import of this project has this id.")
    return Response(job_json(found))


def job_json(job: Upload) -> dict[str, Any]:
    return {
        "id": str(job.pk),
        "name": job.name,
        "format": job.format,
        "state": job.state,
        "done": job.done,
        "total": job.total,
        "error": job.error,
        "result": job.summary,
    }


@extend_schema(
    operation_id="v1_import_mappings_list",
    responses=described({200: {"type": "array", "items": SAVED}}, 403),
    examples=[told("One mapping", [{"name": "helpdesk export", "mapping": PAIRS}])],
    description="The project's saved mappings.",
)
@api(GET=READABLE)
def mappings(request: Request) -> Response:
    return Response(
        [
            {"name": one.name, "mapping": one.mapping}
            for one in request.auth.project.import_mappings.all()
        ]
    )


@extend_schema(
    methods=["GET"],
    operation_id="v1_import_mappings_read",
    responses=described({200: MAPPING}, 403, 404),
    examples=[told("Pairs", PAIRS)],
    description="One mapping.",
)
@extend_schema(
    methods=["PUT"],
    request={JSON: MAPPING},
    responses=described({200: MAPPING}, 400, 403),
    examples=[sent("Pairs", PAIRS), told("As stored", PAIRS, "200")],
    description="Saves a mapping under this name, replacing an existing one.",
)
@extend_schema(
    methods=["DELETE"],
    responses=described({}, 403, 404) | {204: None},
    description="Deletes a mapping.",
)
@api(GET=READABLE, PUT=MANAGED, DELETE=MANAGED)
def mapping(request: Request, name: str) -> Response:
    if request.method == "PUT":
        return _put(request, name)
    saved = request.auth.project.import_mappings.filter(name=name).first()
    if saved is None:
        raise NotFound("No mapping of this project has this name.")
    if request.method == "DELETE":
        delete_mapping(saved=saved, by=member_of(request).user)
        return Response(status=204)
    return Response(saved.mapping)


def _put(request: Request, name: str) -> Response:
    try:
        refuse_unstorable(given := loads(body_of(request)))
        saved = save_mapping(
            project=request.auth.project, name=name, mapping=load(given), by=member_of(request).user
        )
    except (MappingError, RowError) as error:
        raise ValidationError({"path": "", "error": str(error)}) from error
    return Response(saved.mapping)


def _named(request: Request, name: str) -> Mapping:
    try:
        return find_mapping(request.auth.project, name)
    except MappingError as error:
        raise ValidationError({"path": "mapping", "error": str(error)}) from error
