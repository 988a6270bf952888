"""The OTLP/HTTP door: /v1/traces and /v1/logs, protobuf and JSON, gzip or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from rest_framework.decorators import api_view, parser_classes, renderer_classes
from rest_framework.exceptions import UnsupportedMediaType, ValidationError
from rest_framework.parsers import BaseParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from apps.trajectories import traces
from apps.trajectories.api import body_of
from apps.trajectories.otlp import Decoded, DecodeError, decode_logs, decode_traces

PROTOBUF, JSON = "application/x-protobuf", "application/json"


class AnyBody(BaseParser):
    media_type = "*/*"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return stream.read()


def _door(function: Callable[[Request], HttpResponse]) -> Callable[[Request], HttpResponse]:
    decorated = renderer_classes([JSONRenderer])(parser_classes([AnyBody])(function))
    return extend_schema(exclude=True)(api_view(["POST"])(decorated))


def is_json(request: Request) -> bool:
    """Raises UnsupportedMediaType for what is neither of OTLP's two encodings."""
    kind = (request.content_type or "").split(";")[0].strip().lower()
    if kind not in (PROTOBUF, JSON):
        raise UnsupportedMediaType(kind, f"Send OTLP as {PROTOBUF} or {JSON}, not as {kind or 'nothing'}.")
    return kind == JSON


def _decoded(request: Request, decode: Callable[..., Decoded]) -> Decoded:
    try:
        return decode(body_of(request), is_json(request))
    except DecodeError as error:
        raise ValidationError({"detail": str(error)}) from error


def _answer(request: Request, message: Any) -> HttpResponse:
    if is_json(request):
        return HttpResponse(MessageToJson(message, indent=None), content_type=JSON)
    return HttpResponse(message.SerializeToString(), content_type=PROTOBUF)


@_door
def receive_traces(request: Request) -> HttpResponse:
    found = _decoded(request, decode_traces)
    traces.keep(project=request.auth.project, spans=found.items)
    response = ExportTraceServiceResponse()
    if found.rejected:
        response.partial_success.rejected_spans = found.rejected
        response.partial_success.error_message = found.reason
    return _answer(request, response)


@_door
def receive_logs(request: Request) -> HttpResponse:
    found = _decoded(request, decode_logs)
    traces.keep(project=request.auth.project, logs=found.items)
    response = ExportLogsServiceResponse()
    if found.rejected:
        response.partial_success.rejected_log_records = found.rejected
        response.partial_success.error_message = found.reason
    return _answer(request, response)


@_door
def receive_metrics(request: Request) -> HttpResponse:
    """Exporters send them along; they are read off and not kept."""
    body_of(request)
    return _answer(request, ExportMetricsServiceResponse())
