"""The OTLP/HTTP door: /v1/traces and /v1/logs, protobuf and JSON, gzip or not. Plain views: every
request counts here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from rest_framework.exceptions import (
    APIException,
    NotAuthenticated,
    UnsupportedMediaType,
    ValidationError,
)

from apps.core import scopes
from apps.core.api import HasProjectKey, key_of
from apps.core.http import ReadableJson
from apps.core.models import ApiKey, Project
from apps.core.openapi import JSON
from apps.core.routes import needing
from apps.trajectories import otlp, traces
from apps.trajectories.actions.redaction import looks_for_names, quick_redactor_of
from apps.trajectories.api import body_of, redaction_works, room_for
from apps.trajectories.models import SpanBody
from apps.trajectories.otlp import Decoded, DecodeError

PROTOBUF = "application/x-protobuf"
NO_STEP = (
    "No span of this request is a model, agent or tool call of a known convention (gen_ai.*,"
    " openinference.*, langfuse.*, ai.*, traceloop.*), or has the shape of a model call (messages"
    " with roles, tokens, a model): it gives a run only together with such a span of the same"
    " trace."
)
SOME_SILENT = (
    "{silent} of the {traces} traces of this request have no span that is a model, agent or tool"
    " call of a known convention or has the shape of a model call: they give no run."
)
INTERNAL = (
    "{count} spans are the internal tracing of Codex and are not kept: its runs come from its log"
    " events (docs/sending.md)."
)
NO_METRICS = "Metrics are read off and not kept: runs are made of traces and logs."
Answer = Callable[[HttpRequest, ApiKey], Any]


def _door(answer: Answer) -> Callable[[HttpRequest], HttpResponse]:
    """The view of a function that returns OTLP's response message. Errors are answered as the REST
    API does.
    """

    @needing(POST=scopes.SENT)
    @csrf_exempt
    @require_POST
    def view(request: HttpRequest) -> HttpResponse:
        try:
            key = key_of(request)
            if key is None:
                raise NotAuthenticated(HasProjectKey.message)
            scopes.require(key, request)
            with room_for(request), redaction_works():
                return _encoded(request, answer(request, key))
        except APIException as error:
            detail = error.detail if isinstance(error.detail, dict) else {"detail": error.detail}
            headers = {"WWW-Authenticate": "Bearer"} if error.status_code == 401 else {}
            if (wait := getattr(error, "wait", None)) is not None:
                headers["Retry-After"] = str(wait)
            return ReadableJson(detail, status=error.status_code, headers=headers)

    return view


def is_json(request: HttpRequest) -> bool:
    """Raises UnsupportedMediaType for what is neither of OTLP's two encodings."""
    kind = (request.content_type or "").lower()
    if kind not in (PROTOBUF, JSON):
        raise UnsupportedMediaType(
            kind, f"Send OTLP as {PROTOBUF} or {JSON}, not as {kind or 'nothing'}."
        )
    return kind == JSON


def _encoded(request: HttpRequest, message: Any) -> HttpResponse:
    if is_json(request):
        return HttpResponse(MessageToJson(message, indent=None), content_type=JSON)
    return HttpResponse(message.SerializeToString(), content_type=PROTOBUF)


@_door
def receive_traces(request: HttpRequest, key: ApiKey) -> Any:
    found = _receive(request, key.project, SpanBody.Signal.TRACES)
    response = ExportTraceServiceResponse()
    if found.reason:  # also a warning about a request of which nothing was rejected
        response.partial_success.rejected_spans = found.rejected + found.internal
        response.partial_success.error_message = found.reason
    return response


@_door
def receive_logs(request: HttpRequest, key: ApiKey) -> Any:
    found = _receive(request, key.project, SpanBody.Signal.LOGS)
    response = ExportLogsServiceResponse()
    if found.reason:
        response.partial_success.rejected_log_records = found.rejected
        response.partial_success.error_message = found.reason
    return response


def _receive(request: HttpRequest, project: Project, signal: SpanBody.Signal) -> Decoded:
    """Protobuf is kept as it came, after a look; JSON, and what must be redacted first, is decoded
    here.
    """
    body, json = bytes(body_of(request)), is_json(request)
    is_traces = signal == SpanBody.Signal.TRACES
    try:
        if not json and not quick_redactor_of(project) and not looks_for_names(project):
            checked = otlp.check_traces(body) if is_traces else otlp.check_logs(body)
            traces.keep_body(project=project, signal=signal, body=body)
            return _with_warning(checked, checked.silence) if is_traces and body else checked
        found = otlp.decode_traces(body, json) if is_traces else otlp.decode_logs(body, json)
    except DecodeError as error:
        raise ValidationError({"detail": str(error)}) from error
    if is_traces:
        traces.keep(project=project, spans=found.items)
        return _with_warning(found, otlp.silence_of(found.items)) if found.items else found
    traces.keep(project=project, logs=found.items)
    return found


def _with_warning(received: Decoded, silence: otlp.Silence) -> Decoded:
    """Says of spans that can give no run why not."""
    if not received.reason and received.internal:
        received.reason = INTERNAL.format(count=received.internal)
    if not received.reason and silence.silent:
        received.reason = (
            NO_STEP
            if silence.is_whole
            else SOME_SILENT.format(silent=silence.silent, traces=silence.traces)
        )
    return received


@_door
def receive_metrics(request: HttpRequest, key: ApiKey) -> Any:
    """Exporters send them along."""
    body_of(request)
    response = ExportMetricsServiceResponse()
    response.partial_success.error_message = NO_METRICS
    return response
