"""The REST API that production agents call. The key determines the project."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore
from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework.exceptions import (
    APIException,
    NotFound,
    UnsupportedMediaType,
    ValidationError,
)
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import TooLarge
from apps.core.models import ApiKey
from apps.core.openapi import JSON, described, reference
from apps.core.plain import plainly
from apps.core.query import number_of, parameters, whole_number
from apps.core.routes import RUNS, api, shows
from apps.core.scopes import OWNED, READABLE, SENT, Scope
from apps.core.sorting import Sorting, choices
from apps.core.timeouts import TooLong, patience
from apps.trajectories import decoding, filters, late_data, media, names, schema
from apps.trajectories.actions import deletions, store
from apps.trajectories.actions import feedback as feedback_actions
from apps.trajectories.actions.redaction import redactor_of
from apps.trajectories.actions.store import Ingested
from apps.trajectories.filters import SORTS, apply_filters
from apps.trajectories.models import LateData, Trajectory, as_sent, with_content
from apps.trajectories.ordering import SORTED, page_of
from apps.trajectories.redaction import RuleError
from apps.trajectories.schema import Feedback, Named
from apps.trajectories.shown import runs_shown
from flywheel.outages import RETRY_AFTER_S
from workers.lib.token_usage import TOKENS

MAX_BYTES = 64 * 1024 * 1024
PIECE = 1024 * 1024
LARGE = 8 * 1024 * 1024  # a body of which a process holds one at a time
LARGE_WAITING = 3
LARGE_PATIENCE_S = 45.0
MAX_ROWS = 5000
MAX_PAGE, PAGE, LIST_MS = 500, 50, 10_000
FILTERS = parameters(filters.FILTERS)
EXAMPLE = OpenApiExample(
    "One run",
    value={
        "id": "run-1",
        "agent": {"name": "helpdesk", "version": "3"},
        "messages": [
            {"role": "user", "content": "Close ticket 12."},
            {"role": "assistant", "content": "Done."},
        ],
        "outcome": {"status": "success"},
        "latency_ms": 840,
    },
)


EMBEDDED = OpenApiParameter(
    "media",
    enum=("embedded", "reference"),
    description=(
        "`embedded`: messages as they were sent, the default for one run. `reference`, the default"
        " for a list: `flywheel-media:SHA256#…` in place of base64, see /api/v1/media/. What goes"
        " beyond 128 MiB in one answer stays a reference."
    ),
)


class Unavailable(APIException):
    """Nothing may be stored now. Clients try again."""

    status_code = 503
    default_code = "unavailable"
    wait = RETRY_AFTER_S  # which REST framework sends as Retry-After


class Deleted(APIException):
    """Something of a run that was deleted."""

    status_code = 410
    default_code = "deleted"


_large, _large_here = BoundedSemaphore(1), BoundedSemaphore(1 + LARGE_WAITING)


@contextmanager
def room_for(request: Request | HttpRequest) -> Iterator[None]:
    """Large bodies are read one at a time per process, and few wait; the others get 503 with
    Retry-After.
    """
    packed = "HTTP_CONTENT_ENCODING" in request.META or "HTTP_TRANSFER_ENCODING" in request.META
    if int(request.META.get("CONTENT_LENGTH") or 0) <= (PIECE if packed else LARGE):
        yield
        return
    busy = Unavailable(
        "Other large requests are being stored. Retry in a few seconds, or send smaller parts."
    )
    if not _large_here.acquire(blocking=False):
        raise busy
    try:
        if not _large.acquire(timeout=LARGE_PATIENCE_S):
            raise busy
        try:
            yield
        finally:
            _large.release()
    finally:
        _large_here.release()


@contextmanager
def redaction_works() -> Iterator[None]:
    """A stored rule that cannot be used here answers 503: nothing is stored unredacted, and the
    client sends it again.
    """
    try:
        yield
    except RuleError as error:
        raise Unavailable(f"A redaction rule of the project cannot be used: {error}") from error


def body_of(request: Request | HttpRequest) -> bytes | bytearray:
    """The body, unpacked. Raises TooLarge before it is completely in memory, ValidationError for a
    broken gzip, UnsupportedMediaType for another compression.
    """
    if int(request.META.get("CONTENT_LENGTH") or 0) > MAX_BYTES:
        raise TooLarge(f"The body is larger than {MAX_BYTES // 2**20} MiB. Send it in parts.")
    encoding = request.META.get("HTTP_CONTENT_ENCODING", "identity").strip().lower()
    if encoding not in ("gzip", "identity", ""):
        raise UnsupportedMediaType(
            encoding, f"Send the body as it is or with gzip, not with {encoding[:40]}."
        )
    chunked = "chunked" in request.META.get("HTTP_TRANSFER_ENCODING", "").lower()
    # Django reads nothing without a Content-Length; some exporters send none.
    stream = request.META["wsgi.input"] if chunked else getattr(request, "_request", request)
    raw = _read(stream)
    if encoding == "gzip":
        raw = _unzip(raw)
    if len(raw) > MAX_BYTES:
        raise TooLarge(f"The body is larger than {MAX_BYTES // 2**20} MiB. Send it in parts.")
    return raw


def _read(stream: Any) -> bytes | bytearray:
    """What there is, at most one byte more than MAX_BYTES; in pieces, so that nobody holds it a
    second time.
    """
    first = stream.read(PIECE)
    if len(first) < PIECE:
        rest = stream.read(1)  # some servers give less than they have
        if not rest:
            return first
        first += rest
    whole = bytearray(first)
    while len(whole) <= MAX_BYTES and (
        piece := stream.read(min(PIECE, MAX_BYTES + 1 - len(whole)))
    ):
        whole += piece
    return whole


def _unzip(raw: bytes | bytearray) -> bytes | bytearray:
    """What all members of the gzip hold (RFC 1952 allows several), at most one byte more than
    MAX_BYTES.
    """
    try:
        return _read(gzip.GzipFile(fileobj=io.BytesIO(raw)))
    except EOFError as error:
        raise ValidationError({"detail": "The gzip body ends too early."}) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ValidationError({"detail": f"The body is not gzip: {error}"}) from error


def post_one(request: HttpRequest, key: ApiKey) -> HttpResponse:
    row = decoding.decode(body_of(request))
    if isinstance(row.value if isinstance(row, decoding.Decoded) else row, list):
        raise ValidationError(
            {
                "path": "",
                "error": (
                    "expected one trajectory, got a list: send it to /api/v1/trajectories/batch/"
                ),
            }
        )
    with redaction_works():
        done = names.receive(project=key.project, rows=[row])
    if done.rejected:
        first = done.rejected[0]
        raise ValidationError({"path": first["path"], "error": first["error"]})
    return _ingested(done, 201 if done.accepted else 202 if done.held else 200)


def _ingested(done: Ingested, status: int = 200) -> HttpResponse:
    return HttpResponse(msgspec.json.encode(done.as_dict()), content_type=JSON, status=status)


def post_batch(request: HttpRequest, key: ApiKey) -> HttpResponse:
    with room_for(request):
        parts = parts_of(request, MAX_ROWS, "rows in one batch")
        with redaction_works():
            done = names.receive(project=key.project, rows=decoding.decoded(parts))
    return _ingested(done)


@plainly(POST=post_one)
@shows(RUNS)
@extend_schema(
    methods=["POST"],
    request={JSON: reference("Row")},
    responses=described(
        {status: reference("Ingested") for status in (200, 201, 202)}, 400, 413, 503
    ),
    examples=[EXAMPLE],
    description=(
        "Stores one trajectory. Sending the same row twice stores it once; a changed row replaces"
        " it and keeps its history. A run that was deleted is not stored again (400). 202: it is"
        " kept, and stored once Presidio has looked for names in it."
    ),
)
@extend_schema(
    methods=["GET"],
    responses=described({200: reference("TrajectoryPage")}, 400, 503),
    description="Trajectories, newest first or sorted. Accepts the same filters as the page.",
    parameters=[
        *FILTERS,
        OpenApiParameter(
            "sort",
            enum=choices(SORTS),
            description="“-” is descending; runs without a value come last. Except for `started`, "
            f"only the newest {SORTED:,} matching runs are sorted, and `complete` is false if "
            "there are more",
        ),
        OpenApiParameter("limit", whole_number(1, MAX_PAGE, PAGE)),
        OpenApiParameter("cursor", description="`next` or `previous` of another page"),
        EMBEDDED,
    ],
)
@api(GET=READABLE, POST=SENT)
def collection(request: Request) -> Response | HttpResponse:
    if request.method == "POST":
        return post_one(request._request, request.auth)
    return list_page(request)


@plainly(POST=post_batch)
@extend_schema(
    request={JSON: {"type": "array", "items": reference("Row"), "maxItems": MAX_ROWS}},
    responses=described({200: reference("Ingested")}, 400, 413, 503),
    description=(
        f"Up to {MAX_ROWS} rows or 64 MiB: a JSON array or NDJSON, optionally gzipped. Valid rows"
        " are stored even if others are invalid."
    ),
)
@api(POST=SENT)
def batch(request: Request) -> HttpResponse:
    return post_batch(request._request, request.auth)


def parts_of(request: Request | HttpRequest, most: int, what: str) -> list[memoryview]:
    """The undecoded items of a JSON array or of NDJSON. Raises RowError, TooLarge."""
    ndjson = "ndjson" in (request.content_type or "") or "jsonl" in (request.content_type or "")
    parts = decoding.split(body_of(request), ndjson)
    if len(parts) > most:
        raise TooLarge(f"{len(parts)} {what}; at most {most} are allowed. Send them in parts.")
    return parts


def list_page(request: Request) -> Response:
    limit = number_of(request, "limit")
    rows = apply_filters(
        Trajectory.objects.filter(project=request.auth.project), request.query_params
    )
    order = Sorting.of(request.query_params, SORTS)
    try:
        with patience(LIST_MS):
            page = page_of(rows, request.query_params.get("cursor"), limit, order)
    except TooLong as error:
        raise Unavailable(
            "Query too broad: no answer in time. Choose a time range or add a filter."
        ) from error
    runs_shown(request.auth.project, [row.pk for row in page["rows"]], to=request.auth, where="API")
    embed, room = request.query_params.get("media") == "embedded", media.Room()
    return Response(
        {
            "results": [as_json(row, embed, room) for row in with_content(page["rows"])],
            "next": page["next"],
            "previous": page["previous"],
            "complete": not page.get("more", False),
        }
    )


@shows(RUNS)
@extend_schema(
    methods=["GET"],
    operation_id="v1_trajectories_read",
    responses=described({200: reference("Trajectory")}, 404),
    description="One trajectory with all its data.",
    parameters=[EMBEDDED],
)
@extend_schema(
    methods=["DELETE"],
    responses=described({}, 404) | {204: None},
    description=(
        "Deletes a trajectory, its spans and its failure; eval tasks made from it are kept. What"
        " arrives late for it (spans, copies, feedback) is not stored."
    ),
)
@api(GET=READABLE, DELETE=OWNED)
def item(request: Request, external_id: str) -> Response:
    trajectory = _find(request, external_id)
    if request.method == "DELETE":
        deletions.delete(trajectory=trajectory, key=request.auth)
        return Response(status=204)
    runs_shown(request.auth.project, [trajectory.pk], to=request.auth, where="API")
    embed = request.query_params.get("media") != "reference"
    return Response(as_json(trajectory, embed))


@shows(RUNS)
@extend_schema(
    request={JSON: reference("Feedback")},
    responses=described(
        {
            200: {"anyOf": [reference("Trajectory"), reference("Waiting")]},
            202: reference("Waiting"),
        },
        400,
        410,
        413,
        503,
    ),
    description=(
        "Adds feedback to a trajectory: outcome, score, comment, corrected (what it should have"
        " done), takeover. Sending it twice stores it once. 202: the trajectory has not arrived"
        " yet; the feedback is kept and attached when it does. Keys with the read scope get the"
        " trajectory back."
    ),
)
@api(POST=SENT)
def feedback(request: Request, external_id: str) -> Response:
    project = request.auth.project
    said = decoding.loads(body_of(request))
    with redaction_works():
        news = schema.parse(redactor_of(project).redact(said)[0], Feedback)
    name = schema.parse({"id": external_id}, Named).id
    try:
        row = feedback_actions.receive(project=project, external_id=name, news=news)
    except feedback_actions.DeletedError as error:
        late_data.note(project.pk, LateData.Kind.FEEDBACK, 1)
        raise Deleted(str(error)) from error
    if row is None:
        return Response({"id": name, "waiting": True}, status=202)
    if not request.auth.may(Scope.READ):
        return Response({"id": name, "waiting": False})
    runs_shown(project, [row.pk], to=request.auth, where="API")
    return Response(as_json(row))


def _find(request: Request, external_id: str) -> Trajectory:
    found = store.find(request.auth.project, external_id)
    if found is None:
        raise NotFound("No trajectory of this project has this id.")
    return found


def as_json(row: Trajectory, embed: bool = True, room: media.Room | None = None) -> dict[str, Any]:
    """A trajectory in the form it was sent in; without `embed`, with references in place of what is
    embedded in its messages.
    """
    stored = row.content["messages"]
    return {
        "id": row.external_id,
        "agent": {"name": row.agent_name, "version": row.agent_version},
        "model": row.model,
        "workload": row.workload,
        "session_id": row.session_id,
        "user_id": row.user_id,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "messages": as_sent(row.project_id, stored, room) if embed else stored,
        "tools": row.tools,
        "outcome": {
            "status": row.outcome_status,
            "reward": row.outcome_reward,
            "label": row.outcome_label,
            "reason": row.outcome_reason,
        },
        "interventions": row.interventions,
        "usage": {name: getattr(row, name) for name in (*TOKENS, "cost_usd", "cost_basis")},
        "latency_ms": row.latency_ms,
        "tags": row.tags,
        "metadata": row.metadata,
    }
