"""The spans of `flywheel.telemetry`, by OpenTelemetry's SDK, which reads the OTEL_* variables
(where to send, headers, sampling, limits). Imported only where traces are wanted.

No span has a parameter of a query, a header, a query string, a body or the message of an error.
What our own exporter sends to a Flywheel is never traced there, nor what that causes: otherwise
each span would cause others for ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created
from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from flywheel import logs
from flywheel.logs import PROBES
from flywheel.version import VERSION

OURS = "X-Flywheel-Telemetry"  # the header of what our exporter sends
MOST_QUERIES = 100  # of a request or task that become spans
LONGEST = 2_000  # characters of a query
JOB = "core.run_job"
LITERAL = re.compile(r"'(?:[^']|'')*'|\$(\w*)\$.*?\$\1\$", re.DOTALL)
TABLE = re.compile(r'\b(?:FROM|INTO|UPDATE|COPY|JOIN)\s+"?(\w+)"?', re.IGNORECASE)
_propagator = TraceContextTextMapPropagator()
_tracer: trace.Tracer = trace.NoOpTracer()
_left: ContextVar[list[int] | None] = ContextVar("queries_left", default=None)


def start(process: str, processor: SpanProcessor | None = None) -> None:
    """`process`: which of Flywheel's this is."""
    global _tracer
    provider = TracerProvider(resource=resource(process))
    provider.add_span_processor(processor or BatchSpanProcessor(exporter()))
    _tracer = provider.get_tracer("flywheel", VERSION)
    logs.watch(_note)
    connection_created.connect(_watch_queries, dispatch_uid="flywheel.tracing")
    for connection in connections.all(initialized_only=True):
        _watch_queries(connection)


def resource(process: str) -> Resource:
    given = Resource.create({"service.version": VERSION, "flywheel.process": process})
    is_named = not str(given.attributes[SERVICE_NAME]).startswith("unknown_service")
    return given if is_named else given.merge(Resource({SERVICE_NAME: "flywheel"}))


def exporter() -> OTLPSpanExporter:
    """Where OTEL_EXPORTER_OTLP_ENDPOINT says, with the headers of OTEL_EXPORTER_OTLP_HEADERS."""
    return OTLPSpanExporter(headers={OURS: "1"})


@contextmanager
def _span(name: str, kind: SpanKind, parent: context.Context, **about: str) -> Iterator[Span]:
    """The root of what this process does for a request or task."""
    span = _tracer.start_span(name, parent, kind)
    token = context.attach(trace.set_span_in_context(span, parent))
    left = _left.set([MOST_QUERIES])
    try:
        _note({**logs.current(), **about})
        yield span
    except BaseException as error:
        span.set_status(StatusCode.ERROR)
        span.set_attribute("error.type", type(error).__qualname__)
        raise
    finally:
        _left.reset(left)
        context.detach(token)
        span.end()


def _note(about: Mapping[str, str]) -> None:
    """What log lines are about: request, job, project."""
    span = trace.get_current_span()
    for name, value in about.items():
        span.set_attribute(f"flywheel.{name}", value)


def _parent(headers: Mapping[str, str]) -> context.Context:
    """Of what a request or a message says. Nothing is inherited from this thread."""
    return _propagator.extract(headers, context.Context())


def _untraced() -> context.Context:
    """In which nothing is recorded, nor in what is posted there."""
    generator = TracerProvider().id_generator
    ids = SpanContext(
        generator.generate_trace_id(), generator.generate_span_id(), False, TraceFlags(0)
    )
    return trace.set_span_in_context(NonRecordingSpan(ids), context.Context())


@contextmanager
def _nothing_traced() -> Iterator[None]:
    token = context.attach(_untraced())
    try:
        yield
    finally:
        context.detach(token)


# Requests


def traced(application: Any) -> Callable[..., Any]:
    """A span of each request to Django's WSGI application, named by its route. Health checks are
    none.
    """
    get_response = application.get_response

    def named(request: Any) -> Any:
        response = get_response(request)
        if (match := getattr(request, "resolver_match", None)) and match.route is not None:
            span, route = trace.get_current_span(), f"/{match.route.lstrip('^/')}"
            span.update_name(f"{request.method} {route}")  # type: ignore[attr-defined]
            span.set_attribute("http.route", route)
        return response

    application.get_response = named

    def answer(sent: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if sent.get("PATH_INFO") in PROBES:
            return application(sent, start_response)
        if "HTTP_X_FLYWHEEL_TELEMETRY" in sent:
            with _nothing_traced():
                return application(sent, start_response)
        method, parent = _method(sent.get("REQUEST_METHOD")), _sent_parent(sent)
        with _span(method, SpanKind.SERVER, parent) as span:
            span.set_attribute("http.request.method", method)

            def start(status: str, headers: Any, *more: Any) -> Any:
                _note_status(span, int(status[:3]))
                return start_response(status, headers, *more)

            return application(sent, start)

    return answer


def _sent_parent(sent: Mapping[str, Any]) -> context.Context:
    return _parent({"traceparent": sent.get("HTTP_TRACEPARENT", "")})


def _method(name: str | None) -> str:
    known = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    return name if name in known else "_OTHER"


def _note_status(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(StatusCode.ERROR)


def traced_asgi(application: Callable[..., Any]) -> Callable[..., Any]:
    """The same of the endpoint, by its path: it has four."""

    async def answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"].rstrip("/") in PROBES:
            return await application(scope, receive, send)
        headers = dict(scope["headers"])
        parent = _parent({"traceparent": headers.get(b"traceparent", b"").decode("latin-1")})
        method, path = _method(scope["method"]), scope["path"].rstrip("/")
        route = path if path in ENDPOINT_PATHS else "/v1/models/{name}"
        with _span(f"{method} {route}", SpanKind.SERVER, parent) as span:
            span.set_attribute("http.request.method", method)
            span.set_attribute("http.route", route)

            async def noting(message: dict[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    _note_status(span, message["status"])
                await send(message)

            return await application(scope, receive, noting)

    return answer


ENDPOINT_PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/models")


# Tasks


def carried() -> dict[str, str]:
    headers: dict[str, str] = {}
    _propagator.inject(headers)
    return headers


@contextmanager
def task(name: str, args: Sequence[Any], headers: Mapping[str, str]) -> Iterator[None]:
    """A span of what a request or a job asked for, and of each job. What beat sends every few
    seconds is none.
    """
    parent = _parent(headers)
    of_parent = trace.get_current_span(parent).get_span_context()
    is_job = name == JOB and len(args) == 2
    if of_parent.is_valid and not of_parent.trace_flags.sampled:
        with _nothing_traced():
            yield
    elif is_job or of_parent.is_valid:
        title = f"job {str(args[0]).rpartition('.')[2]}" if is_job else f"task {name}"
        with _span(title, SpanKind.CONSUMER, parent) as span:
            span.set_attribute("messaging.system", "celery")
            span.set_attribute("messaging.operation.name", name)
            if is_job:
                span.set_attribute("flywheel.job", str(args[1]))
            yield
    else:
        yield


# Queries


def _watch_queries(connection: Any, **_: Any) -> None:
    if _query not in connection.execute_wrappers:
        connection.execute_wrappers.append(_query)


def _query(
    execute: Callable[..., Any], sql: Any, params: Any, many: bool, given: dict[str, Any]
) -> Any:
    with queries([sql if isinstance(sql, bytes) else str(sql).encode()]):
        return execute(sql, params, many, given)


@contextmanager
def queries(texts: Sequence[bytes]) -> Iterator[None]:
    """A span of statements that are sent together."""
    outer, left = trace.get_current_span(), _left.get()
    if left is None or not outer.is_recording():
        yield
        return
    left[0] -= 1
    if left[0] < 0:
        outer.set_attribute("flywheel.queries", MOST_QUERIES - left[0])
        yield
        return
    text = LITERAL.sub("?", b"; ".join(texts).decode(errors="replace")[: 4 * LONGEST])[:LONGEST]
    operation = text.lstrip("( ").partition(" ")[0].upper()
    table = TABLE.search(text)
    name = f"{operation} {table[1]}" if table else operation
    with _tracer.start_as_current_span(
        name, kind=SpanKind.CLIENT, record_exception=False, set_status_on_exception=False
    ) as span:
        span.set_attribute("db.system.name", "postgresql")
        span.set_attribute("db.operation.name", operation)
        span.set_attribute("db.query.text", text)
        if table:
            span.set_attribute("db.collection.name", table[1])
        try:
            yield
        except Exception as error:
            span.set_status(StatusCode.ERROR)
            span.set_attribute("error.type", type(error).__qualname__)
            raise


def end() -> None:
    """Of tests."""
    global _tracer
    _tracer = trace.NoOpTracer()
    logs.watch(None)
    connection_created.disconnect(dispatch_uid="flywheel.tracing")
    for connection in connections.all(initialized_only=True):
        if _query in connection.execute_wrappers:
            connection.execute_wrappers.remove(_query)
