"""What follows from the declaration of an operation, tried on all of them."""

from __future__ import annotations

import re
from typing import Annotated, Any
from uuid import uuid4

import msgspec
import pytest
from django.http import Http404, QueryDict
from django.test import Client
from django.urls import reverse
from msgspec import Meta, Struct

from apps.core.following import ASKED
from apps.core.models import Project, Stage
from apps.core.nouns import pages
from apps.core.operations import REGISTRY, Operation, Reference, Rest, operation
from apps.core.operations.forms import form_of
from apps.core.operations.inputs import Inputs
from apps.core.operations.rest import filled
from apps.core.routes import by_key, routes
from apps.environments.models import Environment
from tests.factories import (
    make_endpoint,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_key,
    make_project,
    make_server,
)
from workers.lib.typed import convert, json_schema

ALL = [pytest.param(one, id=name) for name, one in REGISTRY.items()]
REST = [pytest.param(one, id=name) for name, one in REGISTRY.items() if one.rest]


@pytest.fixture
def key(db: None) -> tuple[Project, dict[str, str]]:
    project = make_project()
    return project, {"Authorization": f"Bearer {make_key(project)}"}


def send(one: Operation, headers: dict[str, str], body: Any = None) -> Any:
    kinds = re.findall(r"<(?:(\w+):)?\w+>", one.rest.path)
    url = reverse(one.route, args=[10**9 if kind == "int" else uuid4() for kind in kinds])
    return Client().generic(
        one.rest.method,
        url,
        msgspec.json.encode(body or {}),
        content_type="application/json",
        headers=headers,
    )


@pytest.mark.parametrize("one", REST)
def test_it_is_closed_to_strangers_and_finds_only_what_is_the_projects(
    one: Operation, key: tuple[Project, dict[str, str]]
) -> None:
    assert send(one, {}).status_code == 401
    assert by_key()[one.route][one.rest.method] == one.needs
    if one.target:
        answer = send(one, key[1])
        assert answer.status_code == 404 and "with this" in answer.json()["detail"]


@pytest.mark.parametrize("one", [item for item in REST if item.values[0].rest.method != "GET"])
def test_an_archived_project_takes_nothing(
    one: Operation, key: tuple[Project, dict[str, str]]
) -> None:
    project, headers = key
    Project.objects.filter(pk=project.pk).update(stage=Stage.ARCHIVED)
    answer = send(one, headers)
    assert answer.status_code == 403 and "archived" in answer.json()["detail"]


@pytest.mark.parametrize(
    "one", [item for item in ALL if item.values[0].inputs.takes and item.values[0].page]
)
def test_its_form_has_the_fields_and_bounds_of_what_it_takes(one: Operation) -> None:
    fields = form_of(one).base_fields
    without = {*one.page.without, *one.inputs.in_path(one.page.path)}
    taken = one.inputs.takes.__struct_fields__
    assert list(fields) == [name for name in taken if name not in without]
    schema = msgspec.json.schema_components([one.inputs.takes])[1][one.inputs.takes.__name__][
        "properties"
    ]
    for name, field in fields.items():
        wanted = schema[name] | next(iter(schema[name].get("anyOf", ())), {})
        least = wanted.get("minimum", wanted.get("exclusiveMinimum"))
        assert getattr(field, "max_length", None) == wanted.get("maxLength")
        assert getattr(field, "min_value", None) == least
        assert getattr(field, "max_value", None) == wanted.get("maximum")
        choices = wanted.get("enum") or wanted.get("items", {}).get("enum")
        assert not choices or sorted(value for value, _ in field.choices) == sorted(choices)


@pytest.mark.django_db
def test_a_form_offers_what_its_project_and_the_rows_of_its_path_have(project: Project) -> None:
    evaluate, eval_set = REGISTRY["eval_runs_start"], make_eval_set(project, holdout=0)
    project.channels.create(name="beta")

    def form() -> Any:
        return form_of(evaluate)(project=project, rows={"eval_set": eval_set})

    assert [value for value, _ in form().fields["split"].choices] == ["train"]
    assert not form().more, "there is nothing to choose"
    make_server(project, "https://gpu.example.com/v1")
    engines = [value for value, _ in form().fields["engine"].choices]
    assert engines == ["auto", "transformers", project.servers.get().name]
    assert [field.name for field in form().more] == ["engine", "most_tokens", "most_usd"]
    version, environment = make_endpoint(project, project.servers.get()), make_environment(project)
    other, run = (
        make_eval_run(each, version, environment) for each in (make_eval_set(project), eval_set)
    )
    assert {other.split, run.split} == {"holdout"}
    assert list(form().fields["stop_against"].queryset) == [run]
    assert ("beta", "beta") in form().fields["stop_channel"].choices


@pytest.mark.more(rows=22)
@pytest.mark.parametrize(
    "one", [item for item in ALL if item.values[0].page and item.values[0].target]
)
def test_its_page_leads_somewhere(one: Operation) -> None:
    named = isinstance(one.page.then, str) and one.page.then
    own = hasattr(one.target, "get_absolute_url") or one.target._meta.label_lower in pages()
    assert named or own or one.inputs.in_path(one.page.path), (
        f"Give {one.name} the route that follows (`then`), or {one.target.__name__} a page"
        " (`pages` of the AppConfig, or get_absolute_url)."
    )


def test_a_page_that_follows_a_worker_takes_when_it_asked() -> None:
    views = {route.name: route.view for route in routes()}
    led_to = {
        one.page.then
        for one in REGISTRY.values()
        if one.page and one.page.follows and isinstance(one.page.then, str) and one.page.then
    }
    assert "failures:measures" in led_to
    assert not [name for name in led_to if not views[name].query.keys() >= ASKED.keys()]


def test_every_operation_that_writes_says_what_it_does() -> None:
    silent = [one.name for one in REGISTRY.values() if not one.about]
    assert not silent, f"The docstring of these is their description: {silent}"


class Inner(Struct):
    n: int


class Out(Struct):
    label: str = msgspec.field(name="name")
    parts: list[Inner] = []


class Row:
    label, parts = "a", (type("Part", (), {"n": 1})(),)


def test_an_answer_is_filled_from_attributes_and_is_what_openapi_says() -> None:
    assert filled(Out, Row()) == {"name": "a", "parts": [{"n": 1}]}
    with pytest.raises(msgspec.ValidationError):
        filled(Out, type("Row", (), {"label": 3, "parts": []})())


def find_stage(project: Any, name: str) -> Any:
    if name not in Stage.values:
        raise Http404(f"No stage “{name}”.")
    return Stage(name)


StageNamed = Annotated[Project, Reference(find_stage), Meta(description="By name")]


class Filters(Struct):
    stage: StageNamed
    before: StageNamed | None = None
    archived: bool = False
    limit: Annotated[int, Meta(ge=1)] | None = None


def read(*, project: Project, filters: Filters) -> None: ...


def test_a_field_that_names_a_row_is_sent_as_text_and_is_the_row_for_the_function() -> None:
    inputs = Inputs.of(read, ("project",), partial=False)
    schema = json_schema(inputs.takes)["properties"]
    assert schema["stage"] == {"type": "string", "minLength": 1, "description": "By name"}
    assert list(inputs.references) == ["stage", "before"]
    assert inputs.typed.__struct_fields__ == ("archived", "limit")
    sent = convert({"stage": "active", "limit": 3}, inputs.takes)
    (filters,) = inputs.arguments(inputs.values_of(sent, None), None).values()
    assert filters == Filters(Stage.ACTIVE, None, False, 3)
    with pytest.raises(Http404, match="No stage “none”"):
        inputs.values_of(convert({"stage": "none"}, inputs.takes), None)


def test_a_read_takes_its_parameters_from_the_query() -> None:
    inputs = Inputs.of(read, ("project",), partial=False)
    assert inputs.query["stage"]["required"] and "required" not in inputs.query["before"]
    assert inputs.query["limit"] == {"type": "integer", "minimum": 1}
    values = inputs.from_query(QueryDict("stage=active&archived&limit=3&before="), None)
    assert values == {"stage": Stage.ACTIVE, "before": None, "archived": True, "limit": 3}


def test_a_name_or_a_route_is_declared_once() -> None:
    name = next(iter(REGISTRY))
    with pytest.raises(ValueError, match="already"):
        operation(name, rest=Rest("POST", "x/", "x"))(lambda: None)


def test_an_app_whose_operations_say_something_needs_a_section_of_the_audit_log() -> None:
    def body() -> None: ...

    body.__module__ = "apps.demo.any"
    with pytest.raises(ValueError, match=r"no section “” for demo\.said"):
        operation("demo_say", says={"demo.said": "said it"})(body)
    assert "demo_say" not in REGISTRY


@pytest.mark.django_db
def test_an_object_may_have_an_address_of_two_names(project: Project) -> None:
    def body(*, environment: Environment) -> None: ...

    body.__module__ = "apps.environments.any"
    row = make_environment(project)
    try:
        one = operation("environments_any")(body).operation
    finally:
        REGISTRY.pop("environments_any", None)
    assert one.object_of(project, {"slug": row.slug, "version": row.version}) == row
    with pytest.raises(Http404, match="no environment with this slug and version"):
        one.object_of(project, {"slug": row.slug, "version": 9})
