"""Text that cannot be stored: every operation of the API refuses it and says where it is."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import NoReverseMatch, resolve, reverse
from rest_framework.parsers import BaseParser, JSONParser, MultiPartParser

from apps.core.api import MAX_JSON, JsonParser, MultipartParser
from apps.core.models import Project
from apps.core.storable import PROBLEM, refuse_unstorable
from tests.factories import key_headers, make_eval_set
from tests.test_access import ROUTES, key_args
from workers.lib.typed import FormError

OPERATIONS = [
    (route, method)
    for route in ROUTES
    if not route.startswith(("otlp:", "protocol:"))
    for method in ROUTES[route]
]
OWN = {
    "api:trajectories",
    "api:batch",
    "api:feedback",
    "api:scores",
    "evals_api:tasks",
    "api:imports",  # rows and files: a bad character costs a row
    *(
        f"{at}:grader_{name}"
        for at in ("environments_api", "hosted")
        for name in ("run", "validate")
    ),  # errors of OpenAI's shape
}


@pytest.mark.parametrize(
    "value,path",
    [
        ("a\x00", ""),
        ({"a": "\ud800"}, "a"),
        ({"a": [1, None, {"b": ["x", "\udfff"]}]}, "a[2].b[1]"),
        ({"a": {"b\x00": 1}}, "a.b\ufffd"),
        ([{}, {"\udc00": 1}], "[1].\ufffd"),
        ({"a": "é\x00"}, "a"),
    ],
)
def test_the_first_text_that_cannot_be_stored_is_named(value: Any, path: str) -> None:
    with pytest.raises(FormError) as refused:
        refuse_unstorable(value)
    assert refused.value.path == path
    path.encode()
    refuse_unstorable({"a": ["é", "\U0001f600", {"ünïcödé \u2028": 1.5}], "": [True, None, {}]})


@pytest.mark.django_db
def test_no_operation_takes_what_cannot_be_stored(project: Project) -> None:
    """In the query, in the path, and in a body; also where what it names is not there."""
    headers, named, bodies = key_headers(project), 0, 0
    for route, method in OPERATIONS:
        kwargs, url = (
            resolve(reverse(route, args=key_args(route))).kwargs,
            reverse(route, args=key_args(route)),
        )
        client = Client(raise_request_exception=False)
        said = client.generic(
            method, f"{url}?name=a&odd=x%00", "{}", content_type="application/json", **headers
        )
        assert (said.status_code, said.json()) == (400, {"path": "odd", "error": PROBLEM}), (
            route,
            method,
        )
        for name in [name for name, value in kwargs.items() if isinstance(value, str)]:
            with suppress(NoReverseMatch):  # a converter that takes no such text
                said = client.generic(
                    method, reverse(route, kwargs=kwargs | {name: "a\x00"}), **headers
                )
                assert (said.status_code, said.json()["path"]) == (400, name), (route, method)
                named += 1
        if method in ("POST", "PUT", "PATCH"):
            body = json.dumps({"deep": [1, {"a": "x\x00"}], "name": "\ud800"})
            said = client.generic(method, url, body, content_type="application/json", **headers)
            assert said.status_code < 500, (route, method)
            if (
                route not in OWN
                and said.status_code == 400
                and said.json()["error"] != "is required"
            ):
                assert said.json() == {"path": "deep[1].a", "error": PROBLEM}, (route, method)
                bodies += 1
    assert (named, bodies) >= (7, 25)


@pytest.mark.django_db
def test_a_body_is_checked_whoever_reads_it(project: Project) -> None:
    """A form's names and values, a mapping, and what is too large."""
    headers, eval_set = key_headers(project), make_eval_set(project)
    url = reverse("evals_api:imports", args=[eval_set.pk])
    for fields, path in (({"split\x00": "train"}, "split\ufffd"), ({"split": "a\x00"}, "split")):
        said = Client().post(
            url, fields | {"file": SimpleUploadedFile("a.jsonl", b"{}")}, **headers
        )
        assert (said.status_code, said.json()) == (400, {"path": path, "error": PROBLEM})
    mapping = {"layout": "pairs", "fields": {"question": "=a\x00"}}
    url = reverse("api:import_mapping", args=["x"])
    said = Client().put(url, json.dumps(mapping), content_type="application/json", **headers)
    assert (said.status_code, said.json()["path"]) == (400, "fields.question")
    url = reverse("registry_api:servers")
    said = Client().post(
        url, json.dumps("x" * MAX_JSON), content_type="application/json", **headers
    )
    assert said.status_code == 413 and "16 MiB" in said.json()["detail"]


def test_what_reads_a_body_refuses_it() -> None:
    for route, _ in OPERATIONS:
        for parser in resolve(reverse(route, args=key_args(route))).func.cls.parser_classes:
            plain = issubclass(parser, JSONParser | MultiPartParser) and not issubclass(
                parser, JsonParser | MultipartParser
            )
            assert not plain and parser is not BaseParser, route
