"""The REST routes of operations and their OpenAPI."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, get_args, get_origin

import msgspec
from django.core.exceptions import ObjectDoesNotExist
from django.db.models import Model
from django.db.models.manager import BaseManager
from django.urls import URLPattern, path
from drf_spectacular.utils import OpenApiParameter, extend_schema
from msgspec import Struct, inspect
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.openapi import JSON, described, page, results
from apps.core.operations.declared import REGISTRY, Operation, Paged, Written
from apps.core.paging import keyset
from apps.core.query import Query, number_of, parameters, whole_number
from apps.core.routes import api
from workers.lib.typed import convert, json_schema

PAGE, MAX_PAGE = 50, 200
PAGING: Query = {"cursor": None, "limit": whole_number(1, MAX_PAGE, PAGE)}


def rest_urls(app: str) -> list[URLPattern]:
    """The routes of an app's operations. Its modules that declare them are imported before.
    Raises ValueError for a route and method that two of them declare.
    """
    routes: dict[str, dict[str, Operation]] = {}
    for one in REGISTRY.values():
        if one.app == app and one.rest:
            methods = routes.setdefault(one.rest.route, {})
            if methods.setdefault(one.rest.method, one) is not one:
                raise ValueError(f"{one.rest.method} of {one.route} is declared already.")
    return [
        path(next(iter(methods.values())).rest.path, _view(route, methods), name=route)
        for route, methods in routes.items()
    ]


def _view(route: str, methods: Mapping[str, Operation]) -> Any:
    def view(request: Request, **address: Any) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return _answer(methods[method], request, address)

    view.__name__ = route
    decorated = api(**{method: one.needs for method, one in methods.items()})(view)
    decorated.shows = max(one.shows for one in methods.values())
    for one in methods.values():
        decorated = extend_schema(
            methods=[one.rest.method],
            operation_id=f"v1_{one.name}",
            request={JSON: json_schema(one.takes)} if one.takes else None,
            responses=_responses(one),
            parameters=_parameters(one),
            examples=list(one.examples),
            description=one.about,
        )(decorated)
    return decorated


def _answer(one: Operation, request: Request, address: dict[str, Any]) -> Response:
    key = request.auth
    target = None
    if one.target:
        try:
            target = one.object_of(key.project, **address)
        except ObjectDoesNotExist as error:
            raise NotFound(str(error)) from error
    by = key.created_by
    if one.rest.method != "GET":  # a key is trusted for some seconds, its creator's role is not
        by = member_of(request, one.role).user
    given = convert(request.data, one.takes) if one.takes else None
    returned = one.run(
        project=key.project,
        by=by,
        target=target,
        given=given,
        key=key,
        query=request.query_params,
    )
    if one.gives is None:
        return Response(status=204)
    return Response(_content(one, request, returned, target), status=one.rest.status)


def _content(one: Operation, request: Request, returned: Any, target: Any) -> Any:
    item, many = _item(one.gives)
    if many is Paged:
        rows, following = keyset(
            returned, request.query_params.get("cursor", ""), number_of(request, "limit")
        )
        return {"results": [filled(item, row) for row in rows], "next": following}
    if many is list:
        return {"results": [filled(item, row) for row in returned]}
    row = target if target is not None and not isinstance(returned, Model) else returned
    if row is target and one.rest.method != "GET":
        target.refresh_from_db()  # the database sets some values
    return one.gives.content(row) if isinstance(one.gives, Written) else filled(item, row)


def filled(item: type[Struct], row: Any) -> Any:
    """The Struct of an object's attributes, as JSON types. `Meta(extra={"of": …})` of a field names
    the attribute, if it is another; a related manager is a list. Raises ValidationError of msgspec
    for a value that the Struct does not declare: the answer would not be what OpenAPI says.
    """
    return msgspec.to_builtins(msgspec.convert(_values(item, row), item))


def _values(item: type[Struct], row: Any) -> dict[str, Any]:
    return {
        field.encode_name: _value(field.type, getattr(row, _attribute(field)))
        for field in _fields(item)
    }


@cache
def _fields(item: type[Struct]) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(item)
    assert isinstance(info, inspect.StructType)
    return info.fields


def _attribute(field: inspect.Field) -> str:
    extra = field.type.extra if isinstance(field.type, inspect.Metadata) else None
    return (extra or {}).get("of", field.name)


def _value(kind: inspect.Type, value: Any) -> Any:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.ListType) and isinstance(kind.item_type, inspect.StructType):
        rows = value.all() if isinstance(value, BaseManager) else value
        return [_values(kind.item_type.cls, row) for row in rows]
    if isinstance(kind, inspect.StructType):
        return _values(kind.cls, value)
    return value


def _item(gives: Any) -> tuple[type[Struct], Any]:
    many = get_origin(gives)
    return (get_args(gives)[0], many) if many in (list, Paged) else (gives, None)


def _responses(one: Operation) -> dict[Any, Any]:
    bad = [400] * bool(one.takes or one.query) + [403] + [404] * bool(one.target)
    if one.rest.method != "GET":
        bad.append(409)  # what is in the way
    if one.gives is None:
        return described({}, *bad) | {204: None}
    item, many = _item(one.gives)
    written = isinstance(item, Written)
    schema = item.schema if written else _always_whole(json_schema(item))
    return described(
        {one.rest.status: {list: results, Paged: page}[many](schema) if many else schema},
        *sorted(bad),
    )


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


def _parameters(one: Operation) -> list[OpenApiParameter]:
    paged = get_origin(one.gives) is Paged
    return parameters(
        {**one.query, **(PAGING if paged else {})}, cursor="`next` of the page before"
    )
