"""The REST routes of operations and their OpenAPI."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, get_args, get_origin

import msgspec
from django.db.models import Model
from django.urls import URLPattern, path
from drf_spectacular.utils import OpenApiParameter, extend_schema
from msgspec import Struct
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.openapi import JSON, described, page, results
from apps.core.operations.declared import REGISTRY, Operation, Paged, Written
from apps.core.paging import listed
from apps.core.query import parameters, whole_number
from apps.core.routes import api
from workers.lib.typed import convert, json_schema, know

PAGE = 50


def rest_urls(app: str) -> list[URLPattern]:
    """The routes of an app's operations. Its modules that declare them are imported before.
    Raises ValueError for a route and method that two of them declare.
    """
    routes: dict[str, dict[str, Operation]] = {}
    for each in REGISTRY.values():
        if each.app == app and each.rest:
            methods = routes.setdefault(each.rest.route, {})
            if methods.setdefault(each.rest.method, each) is not each:
                raise ValueError(f"{each.rest.method} of {each.route} is declared already.")
    return [
        path(next(iter(methods.values())).rest.path, _view(route, methods), name=route)
        for route, methods in routes.items()
    ]


def _view(route: str, methods: Mapping[str, Operation]) -> Any:
    def view(request: Request, **address: Any) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return _answer(methods[method], request, address)

    view.__name__ = route
    decorated = api(**{method: each.needs for method, each in methods.items()})(view)
    decorated.shows = max(each.shows for each in methods.values())
    for each in methods.values():
        takes_body = each.inputs.takes and not each.reads
        decorated = extend_schema(
            methods=[each.rest.method],
            operation_id=f"v1_{each.name}",
            request={JSON: json_schema(each.inputs.takes)} if takes_body else None,
            responses=_responses(each),
            parameters=_parameters(each),
            examples=list(each.examples),
            description=each.about,
        )(decorated)
    return decorated


def _answer(operation: Operation, request: Request, address: dict[str, Any]) -> Response:
    key, values, inputs = request.auth, dict[str, Any](), operation.inputs
    project, by = key.project, key.created_by
    target = operation.object_of(project, address)
    if operation.reads:
        values = inputs.from_query(request.query_params, project)
    else:  # a key is trusted for some seconds, its creator's role is not
        by = member_of(request, operation.role).user
        if inputs.takes:
            values = inputs.values_of(convert(request.data, inputs.takes), project)
    returned = operation.run(values, target, project=project, by=by, key=key)
    status, gives = operation.rest.status, operation.gives
    if operation.outcome:
        status, returned = operation.outcome(returned)
        gives = gives[status]
    if gives is None:
        return Response(status=204)
    if isinstance(gives, Paged):
        load = partial(_load, gives.item, request)
        return listed(request, returned, partial(_content, gives.item), load, gives.by)
    if get_origin(gives) is list:
        (item,) = get_args(gives)
        return Response({"results": [_content(item, request, row) for row in returned]})
    if target is not None and not isinstance(returned, Model):
        returned = target
        if not operation.reads:
            target.refresh_from_db()  # the database sets some values
    _load(gives, request, [returned])
    return Response(_content(gives, request, returned), status=status)


def _load(item: Any, request: Request, rows: list[Any]) -> None:
    if isinstance(item, Written):
        item.load(request, rows)


def _content(item: Any, request: Request, row: Any) -> Any:
    return item.content(request, row) if isinstance(item, Written) else filled(item, row)


def filled(item: type[Struct], row: Any) -> Any:
    """The Struct of an object's attributes, as JSON types. A field that is named otherwise in the
    answer says so: `attempt: int = field(name="attempts")`. Raises ValidationError of msgspec for a
    value that the Struct does not declare: the answer would not be what OpenAPI says.
    """
    return msgspec.to_builtins(msgspec.convert(row, know(item), from_attributes=True))


def _responses(operation: Operation) -> dict[Any, Any]:
    invalid = operation.inputs.takes or isinstance(operation.gives, Paged)
    named = operation.target or operation.inputs.references
    bad = [400] * bool(invalid) + [404] * bool(named) + [409] * (not operation.reads)
    if operation.gives is None:
        return described({}, *bad) | {204: None}
    outcomes = operation.gives if operation.outcome else {operation.rest.status: operation.gives}
    return described({status: _schema(gives) for status, gives in outcomes.items()}, *bad)


def _schema(gives: Any) -> dict[str, Any]:
    if isinstance(gives, Paged):
        return page(_schema(gives.item))
    if get_origin(gives) is list:
        return results(_schema(get_args(gives)[0]))
    return gives.schema if isinstance(gives, Written) else _always_whole(json_schema(gives))


# Of what is sent, not of what is answered.
BOUNDS = {
    "default",
    "additionalProperties",
    "examples",
    "pattern",
    *("minLength", "maxLength", "minItems", "maxItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}


def _always_whole(schema: Any) -> Any:
    """The schema of an answer: every field is there, whatever a request may leave out."""
    if isinstance(schema, list):
        return [_always_whole(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    whole = {
        name: _always_whole(item)
        for name, item in schema.items()
        if name not in BOUNDS or (name == "additionalProperties" and item is not False)
    }
    if "properties" in schema:
        whole["properties"] = {
            name: _always_whole(item) for name, item in schema["properties"].items()
        }
        whole["required"] = list(schema["properties"])
    return whole


def _parameters(operation: Operation) -> list[OpenApiParameter]:
    query = dict(operation.inputs.query) if operation.reads else {}
    if isinstance(operation.gives, Paged):
        query["cursor"] = {"type": "string", "description": "`next` of the page before"}
        query["limit"] = whole_number(1, operation.gives.most, PAGE)
    return parameters(query)
