"""Tasks from a file in any of the page's formats, over REST. The key determines the project."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework.decorators import parser_classes
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import jobs
from apps.core.api import MultipartParser, TooLarge, member_of
from apps.core.forms import PlainForm
from apps.core.models import JobState
from apps.core.openapi import described, page, sent, told
from apps.core.paging import listed
from apps.core.routes import SIDES, api, shows
from apps.core.scopes import MANAGED, READABLE
from apps.evals import actions, importing
from apps.evals.formats import FORMATS
from apps.evals.forms import ImportChoiceForm, ImportForm
from apps.evals.importing import Choice, Imported, ImportProblem, Preview
from apps.evals.lookups import CURSOR, LIMIT, find_set
from apps.evals.models import EvalSet, Split, TaskImport

FILE = {"type": "string", "format": "binary"}
GIVEN = {
    "type": "object",
    "required": ["file"],
    "properties": {
        "file": FILE,
        "answers": FILE | {"description": "BFCL: the file of possible answers"},
        "format": {"enum": ["auto", *FORMATS], "default": "auto"},
        "split": {
            "enum": Split.values,
            "default": "train",
            "description": "For rows without a split",
        },
        "always": {"type": "boolean", "description": "Override the split of all rows"},
        "group": {
            "type": "string",
            "default": "file",
            "description": "Grouping: file, request, or metadata.NAME",
        },
        "preview": {"type": "boolean", "description": "Preview only; nothing is stored"},
    },
}
JOB = {
    "type": "object",
    "required": ["id", "name", "state", "done", "total", "error", "result"],
    "properties": {
        "id": {
            "type": ["string", "null"],
            "format": "uuid",
            "description": "Null if stored immediately",
        },
        "name": {"type": "string"},
        "state": {"enum": JobState.values},
        "done": {"type": "integer"},
        "total": {"type": "integer"},
        "error": {"type": "string"},
        "result": {
            "type": "object",
            "properties": {
                **{key: {"type": "integer"} for key in ("made", "duplicates", "left_out", "bad")},
                "problems": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "The first invalid rows, with line numbers",
                },
            },
        },
    },
}
SEEN = {
    "type": "object",
    "required": ["format", "good", "bad", "splits", "groups", "problems"],
    "properties": {
        "format": {"enum": list(FORMATS)},
        "good": {"type": "integer"},
        "bad": {"type": "integer"},
        "splits": {"type": "object", "additionalProperties": {"type": "integer"}},
        "groups": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Possible values for `group`",
        },
        "problems": {"type": "array", "items": {"type": "string"}},
    },
}
YES_OR_NO = {"true": True, "1": True, "false": False, "0": False, "": False}
DONE = {
    "id": None,
    "name": "refunds.csv",
    "state": "succeeded",
    "done": 120,
    "total": 120,
    "error": "",
    "result": {
        "made": 117,
        "duplicates": 1,
        "left_out": 1,
        "bad": 1,
        "problems": ["Line 7, expected: …"],
    },
}
WAITING = DONE | {
    "id": "5f0c3c1e-7c0d-4b0e-9d3a-2f5a1b1f9a11",
    "state": "queued",
    "done": 0,
    "total": 40_000,
    "result": {},
}


@shows(SIDES)
@extend_schema(
    methods=["GET"],
    operation_id="v1_eval_sets_imports",
    parameters=[LIMIT, CURSOR],
    responses=described({200: page(JOB)}, 400, 404),
    examples=[told("A large file", WAITING)],
    description="Imports into this set that a worker ran, newest first.",
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_eval_sets_import",
    request={"multipart/form-data": GIVEN},
    responses=described({200: SEEN, 201: JOB, 202: JOB}, 400, 403, 404, 409, 413),
    examples=[
        sent("A CSV file", {"file": "refunds.csv", "format": "csv", "split": "train"}),
        told(
            "A preview",
            {
                "format": "csv",
                "good": 119,
                "bad": 1,
                "splits": {"": 119},
                "groups": ["file", "request"],
                "problems": ["Line 7, expected: …"],
            },
            "200",
        ),
        told("Stored", DONE, "201"),
        told("Queued for a worker", WAITING, "202"),
    ],
    description=(
        f"Adds the tasks of a file to a draft: {', '.join(FORMATS)}, at most"
        f" {importing.MAX_BYTES // 2**20} MiB and {importing.MAX_ROWS:,} rows. Up to"
        f" {importing.AT_ONCE:,} rows are stored immediately (201), larger files by a worker (202):"
        " poll the import until it has finished. Valid rows are stored even if others are invalid;"
        " rows too similar to the other side of a hold-out are skipped."
    ),
)
@api(GET=READABLE, POST=MANAGED)
@parser_classes([MultipartParser])
def imports(request: Request, pk: UUID) -> Response:
    eval_set = find_set(request, pk)
    if request.method == "GET":
        return listed(request, eval_set.imports.all(), lambda _, job: as_json(job))
    by = member_of(request).user
    if int(request.META.get("CONTENT_LENGTH") or 0) > 2 * importing.MAX_BYTES + 2**20:
        raise TooLarge(
            f"The files are larger than {importing.MAX_BYTES // 2**20} MiB. Send them in parts."
        )
    asked = _fields(request)
    form = _checked(ImportForm({"format": "auto"} | asked, request.FILES))
    given, answers = form.cleaned_data["file"], form.cleaned_data["answers"]
    identity, waits = importing.keep(given.chunks(), answers.chunks() if answers else None), False
    try:
        answer = _stored(
            request, asked, eval_set, identity, given.name[-200:], form.cleaned_data["format"], by
        )
        waits = answer.status_code == 202
        return answer
    except ImportProblem as problem:
        raise ValidationError({"path": "file", "error": str(problem)}) from problem
    finally:
        if not waits:
            importing.forget(identity)


def _fields(request: Request) -> dict[str, Any]:
    """The fields, each given once. Raises ValidationError also for an unknown one: a misspelt
    “preview” would store.
    """
    for name, given in request.data.lists():
        if name not in GIVEN["properties"]:
            raise ValidationError(
                {"path": name, "error": f"is not known. Known: {', '.join(GIVEN['properties'])}"}
            )
        if len(given) > 1:
            raise ValidationError(
                {"path": name, "error": "is given more than once. Send one file per request."}
            )
    found = request.data.dict()
    for name in ("always", "preview"):
        if (value := str(found.get(name, "")).casefold()) not in YES_OR_NO:
            raise ValidationError({"path": name, "error": "must be true or false"})
        found[name] = YES_OR_NO[value]
    return found


def _stored(
    request: Request,
    asked: dict[str, Any],
    eval_set: EvalSet,
    identity: str,
    name: str,
    format: str,
    by: Any,
) -> Response:
    """Raises ImportProblem, EvalSetError, ValidationError."""
    path, answers = importing.paths_of(identity)
    seen = importing.preview(path, name, format, answers)
    columns = sorted(column for column in seen.columns if column != importing.FLYWHEEL)[:40]
    if asked["preview"]:
        return Response(_preview(seen, columns))
    usual = {"split": Split.TRAIN, "group": importing.BY_FILE}
    form = _checked(ImportChoiceForm(columns, usual | asked))
    choice, rows = (
        importing.chosen(Choice(seen.format, **form.cleaned_data), columns),
        seen.good + seen.bad,
    )
    if eval_set.is_frozen:
        raise actions.EvalSetError(actions.FROZEN.format(eval_set))
    if rows > importing.AT_ONCE:
        job = importing.submit(
            identity=identity, eval_set=eval_set, name=name, choice=choice, by=by, rows=rows
        )
        return Response(as_json(job), status=202)
    done = importing.import_file(
        eval_set=eval_set,
        path=path,
        name=name,
        choice=choice,
        by=by,
        answers=answers,
        viewer=request.auth,
    )
    found = {
        "id": None,
        "name": name,
        "state": JobState.SUCCEEDED,
        "done": rows,
        "total": rows,
        "error": "",
    }
    return Response(found | {"result": result_json(done)}, status=201)


def _checked(form: PlainForm) -> Any:
    """Raises ValidationError for the first invalid field."""
    for field, errors in form.errors.items():
        raise ValidationError({"path": field, "error": " ".join(errors)})
    return form


def _preview(seen: Preview, columns: list[str]) -> dict[str, Any]:
    groups = [importing.BY_FILE, importing.BY_REQUEST, *(f"metadata.{name}" for name in columns)]
    problems = [str(problem) for problem in seen.problems]
    return {
        "format": seen.format,
        "good": seen.good,
        "bad": seen.bad,
        "splits": seen.splits,
        "groups": groups,
        "problems": problems,
    }


def result_json(done: Imported) -> dict[str, Any]:
    """Without the held-out requests that rows resembled."""
    left_out = done.guarded + done.leaking
    return {
        "made": done.made,
        "duplicates": done.duplicates,
        "left_out": left_out,
        "bad": done.bad,
        "problems": done.problems,
    }


def as_json(job: TaskImport) -> dict[str, Any]:
    found = {name: getattr(job, name) for name in ("name", "state", "done", "total", "error")}
    return (
        {"id": str(job.pk)}
        | found
        | {"result": result_json(Imported(**job.result)) if job.result else {}}
    )


def _find(request: Request, pk: UUID, identity: UUID) -> TaskImport:
    found = find_set(request, pk).imports.filter(pk=identity).first()
    if found is None:
        raise NotFound("This set has no import with this id.")
    return found


@extend_schema(
    operation_id="v1_eval_sets_import_read",
    responses=described({200: JOB}, 404),
    examples=[told("Waiting", WAITING)],
    description=(
        "An import run by a worker: its state and, once finished, what was stored and what was not."
    ),
)
@api(GET=READABLE)
def item(request: Request, pk: UUID, identity: UUID) -> Response:
    return Response(as_json(_find(request, pk, identity)))


@extend_schema(
    operation_id="v1_eval_sets_import_cancel",
    request=None,
    responses=described({200: JOB}, 403, 404, 409),
    examples=[told("Stopped", WAITING | {"state": "cancelled"})],
    description="Cancels an import. Nothing is stored unless the tasks were already being written.",
)
@api(POST=MANAGED)
def cancel(request: Request, pk: UUID, identity: UUID) -> Response:
    if not jobs.cancel(_find(request, pk, identity), by=member_of(request).user):
        return Response({"detail": "This import has already finished."}, status=409)
    return Response(as_json(_find(request, pk, identity)))
