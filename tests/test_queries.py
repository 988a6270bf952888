"""No list ignores a filter that it does not have: every route of the API, every page with a list,
and what the pages themselves link to.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit
from uuid import UUID

import pytest
from django.http import QueryDict
from django.test import Client
from django.urls import Resolver404, resolve, reverse
from django.utils.html import escape

from apps.core.models import Project, Role
from apps.core.query import (
    FLAG,
    PAGING,
    Kind,
    Query,
    QueryError,
    closest,
    from_browser,
    many,
    parameters_of,
    refuse_invalid,
    schema_of,
    whole_number,
)
from apps.dashboard.models import Chart
from apps.evals.comparison import tasks
from apps.evals.samples import filters as samples
from apps.failures.actions.diagnose import classify_project
from apps.trajectories import step_filters
from apps.trajectories.models import SavedView
from tests.amounts import amount
from tests.factories import make_failed, make_key, make_member, make_project, row
from tests.offers import offers
from tests.test_access import (
    OWN,
    PAGES,
    PATTERNS,
    ROUTES,
    WRITES,
    bare_errors,  # noqa: F401
    logged_in,
    undone,
    url_of,
    world,  # noqa: F401
)

pytestmark = pytest.mark.django_db
SAMPLES = {"int": "1", "uuid": UUID(int=1), "slug": "x", "str": "x", "path": "x", "anything": "x"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("user_id", "user"),
        ("userId", "user"),
        ("users", "user"),
        ("agent_name", "agent"),
        ("agentVersion", "agent_version"),
        ("sesion", "session"),
        ("session-id", "session"),
        ("latency", "latency_min"),
        ("version", "agent_version"),
        ("min_latency", "latency_min"),
        ("duration", "latency_min"),
        ("duration_max", "latency_max"),
        ("status", "outcome"),
        ("start", ""),
        ("query", ""),
        ("to", ""),
        ("zzz", ""),
        ("_", ""),
    ],
)
def test_the_filter_that_was_meant(name: str, meant: str) -> None:
    known = ("agent", "agent_version", "latency_max", "latency_min", "outcome", "session", "user")
    assert closest(name, known) == meant


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("tool", "name"),
        ("tool_name", "name"),
        ("tol", "name"),
        ("latency_min", "duration_min"),
        ("trace_id", "run"),
        ("start", "from"),
        ("until", "to"),
        ("type", "kind"),
        ("state", "status"),
        ("failed", "failed_or_over"),
        ("user", ""),
    ],
)
def test_the_filter_of_steps_that_was_meant(name: str, meant: str) -> None:
    assert closest(name, sorted(step_filters.FILTERS)) == meant


QUERY: Query = {
    "limit": whole_number(1, 90, 50),
    "page": whole_number(1),
    "cost_min": float,
    "all": bool,
    "state": ["open", "done"],
    "run": many(UUID),
    "day": date,
    "user": None,
    "cursor": None,
}


@pytest.mark.parametrize(
    ("query", "path"),
    [
        (
            f"limit=5&cost_min=.5&all&state=open&run={UUID(int=1)}&run={UUID(int=2)}&cursor=",
            "",
        ),
        ("cost_min=-1e-3&all=true&page=99999&day=2026-02-28", ""),
        ("nothing=1", "nothing"),
        ("user=", "user"),
        ("user=%20", "user"),
        ("user=a&user=b", "user"),
        ("limit=five", "limit"),
        ("limit=١", "limit"),
        ("limit=0", "limit"),
        ("limit=91", "limit"),
        ("limit=+5", "limit"),
        ("limit=5.0", "limit"),
        ("limit=-5", "limit"),
        ("page=0", "page"),
        ("run=1", "run"),
        ("run=", "run"),
        ("day=2026-02-29", "day"),
        ("state=Open", "state"),
        ("state=open&state=done", "state"),
        ("User=x", "User"),
        ("cost_min=nan", "cost_min"),
        ("user=%00", "user"),
        ("cost_min=1,5", "cost_min"),
        ("all=maybe", "all"),
        ("state=opened", "state"),
    ],
)
def test_what_a_declared_parameter_takes(query: str, path: str) -> None:
    if not path:
        refuse_invalid(QueryDict(query), QUERY)
        return
    with pytest.raises(QueryError) as caught:
        refuse_invalid(QueryDict(query), QUERY)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("limit=five", "“limit” must be a whole number from 1 to 90."),
        ("limit=91", "“limit” must be a whole number from 1 to 90."),
        ("page=0", "“page” must be a whole number, at least 1."),
        ("cost_min=x", "“cost_min” must be a number."),
        ("state=x", "“state” must be one of open, done."),
        ("user=a&user=b", "“user” is given more than once, and has one value."),
        (
            "usr=x",
            "Unknown filter “usr”. Did you mean “user”? Known: all, cost_min, cursor, day, "
            "limit, page, run, state, user.",
        ),
    ],
)
def test_a_refusal_says_what_to_send(query: str, sentence: str) -> None:
    with pytest.raises(QueryError) as caught:
        refuse_invalid(QueryDict(query), QUERY)
    assert caught.value.sentence == sentence


def test_a_required_parameter_is_asked_for() -> None:
    query = {"state": schema_of(["open", "done"]) | {"required": True}, "limit": int}
    refuse_invalid(QueryDict("state=open"), query)
    for sent in ("", "state=", "limit=5"):
        with pytest.raises(QueryError) as caught:
            refuse_invalid(QueryDict(sent), query)
        assert caught.value.sentence == "“state” is required: one of open, done."


def test_browsers_send_empty_fields_and_other_sites_append_names() -> None:
    sent = QueryDict("user=&user=bob&limit=&utm_source=mail&fbclid=1")
    assert from_browser(sent, QUERY).urlencode() == "user=bob"
    assert from_browser(QueryDict("mine&user=a"), QUERY | {"mine": FLAG}).dict() == {
        "mine": "1",
        "user": "a",
    }
    with pytest.raises(QueryError):
        refuse_invalid(sent, QUERY)


OF_TEXT = {
    "title",
    "description",
    "type",
    "required",
    "maxLength",
}  # what a parameter says that takes any words


def refused(query: Query, *, by_form: bool = False) -> Iterator[tuple[str, str]]:
    """(query string, parameter) of what an address with this query refuses."""
    yield "no_such_filter=1", "no_such_filter"
    for name, kind in query.items():
        yield f"x{name}y=1", f"x{name}y"
        schema = schema_of(kind)
        is_many, schema = "items" in schema, schema.get("items", schema)
        is_text = schema.get("type") == "string" and not schema.keys() - OF_TEXT
        values = [] if is_text else ["¿"]
        values += ["x" * (schema["maxLength"] + 1)] if "maxLength" in schema else []
        if schema.get("type") in ("integer", "number"):
            values += ["1,5", "nan", "0x1", "١"]
            values += [str(schema["minimum"] - 1)] if "minimum" in schema else []
            values += [str(schema["maximum"] + 1)] if "maximum" in schema else []
        if enum := [value for value in schema.get("enum", ()) if value]:
            values += [f"{enum[0]}{enum[0]}", enum[0].swapcase() + "_"]
        yield from ((f"{name}={quote(value)}", name) for value in values)
        if is_required(kind):
            yield "", next(name for name, kind in query.items() if is_required(kind))
        if not is_many:
            valid = quote(str(enum[0] if enum else schema.get("minimum", 1)))
            yield f"{name}={valid}&{name}={valid}", name
        if not by_form and name not in PAGING and schema.get("type") != "boolean":
            yield f"{name}=", name


def is_required(kind: Kind) -> bool:
    return schema_of(kind).get("required") is True


@pytest.mark.more
def test_every_route_of_the_api_refuses_what_it_does_not_declare(
    world: dict[str, Any],  # noqa: F811
) -> None:
    """And declares what its list needs: a `limit` that is read and not declared could not be
    sent. In the suite a route is sent the first two of what its query refuses.
    """
    client = Client(headers={"Authorization": f"Bearer {make_key(world['project'])}"})
    wrong, routes, tried = [], 0, 0
    for name, methods in ROUTES.items():
        pattern = PATTERNS[name]
        if not hasattr(pattern.callback, "cls") or name.startswith("hosted:"):
            continue
        for method in methods:
            routes += 1
            kinds = {
                part: kind or "str"
                for kind, part in re.findall(r"<(?:(\w+):)?(\w+)>", str(pattern.pattern))
            }
            url = reverse(name, kwargs={part: SAMPLES[kind] for part, kind in kinds.items()})
            parameters = parameters_of(pattern.callback.cls(), method)
            for number, (query, path) in enumerate(refused(parameters)):
                tried += 1
                if number >= amount(2, math.inf):
                    continue
                answer = client.generic(method, f"{url}?{query}")
                if answer.status_code != 400 or answer.json().get("path") != path:
                    wrong.append(f"{method} {name}?{query}: {answer.status_code}")
        body = inspect.unwrap(pattern.callback.cls().get) if "GET" in methods else None
        source = inspect.getsource(inspect.getclosurevars(body).nonlocals["func"]) if body else ""
        if "GET" in methods and " listed(request" in source:
            declared = parameters_of(pattern.callback.cls(), "GET").keys()
            wrong += [f"{name} reads {missing}" for missing in {"limit", "cursor"} - declared]
    assert not wrong, "\n".join(wrong)
    assert routes > 100 and tried > 500


@pytest.mark.more
@pytest.mark.usefixtures("bare_errors")
def test_every_page_refuses_what_it_does_not_declare(world: dict[str, Any]) -> None:  # noqa: F811
    """In the suite a page is sent the first of what its query refuses, which shows that it
    looks at its query.
    """
    person, wrong, tried = logged_in(make_member(world["project"], Role.OWNER)), [], 0
    for name in PAGES + sorted(OWN):
        view = PATTERNS[name].callback
        if not inspect.unwrap(view).__module__.startswith("apps."):
            continue  # signing in, which is allauth's
        url = urlsplit(url_of(name, world) if name in PAGES else own_url(name))
        for number, (query, path) in enumerate(refused(view.query, by_form=True)):
            tried += 1
            with pytest.raises(QueryError) as caught:
                from_browser(QueryDict(query), view.query)
            assert caught.value.path == path, (name, query)
            if number >= amount(1, math.inf):
                continue
            answer = person.generic("POST" if name in WRITES else "GET", f"{url.path}?{query}")
            html = answer.content.decode() if not answer.streaming else ""
            if answer.status_code != 400 or escape(f"“{path}”") not in html:
                wrong.append(f"{name}?{query}: {answer.status_code}")
    assert not wrong, "\n".join(wrong)
    assert tried > 700


def test_a_page_beyond_the_last_one_is_named(world: dict[str, Any]) -> None:  # noqa: F811
    person, wrong, tried = logged_in(make_member(world["project"], Role.OWNER)), [], 0
    for name in PAGES:
        if name in WRITES or "page" not in PATTERNS[name].callback.query:
            continue
        url = url_of(name, world)
        answer = person.get(f"{url}{'&' if '?' in url else '?'}page={'9' * 25}", follow=True)
        if not answer.context or not (page := answer.context.get("page")) or not page.object_list:
            continue
        tried += 1
        if f"This is page {page.number}, the last one" not in answer.content.decode():
            wrong.append(name)
    assert not wrong, wrong
    assert tried > 12


@pytest.mark.parametrize("text", ["x", "after-x", "1_", "x_1", f"{'9' * 40}_x"])
def test_what_is_no_cursor_is_refused(project: Project, text: str) -> None:
    person = logged_in(make_member(project, Role.OWNER))
    agent = Client(headers={"Authorization": f"Bearer {make_key(project)}"})
    for name in ("trajectories:list", "core:audit"):
        answer = person.get(reverse(name, args=[project.slug]), {"cursor": text})
        assert answer.status_code == 400
        assert "“cursor” is not a cursor of this list" in answer.content.decode()
    for path in ("trajectories", "audit", "eval-sets"):
        answer = agent.get(f"/api/v1/{path}/", {"cursor": text})
        assert (answer.status_code, answer.json()["path"]) == (400, "cursor"), path
    for place_of in (samples.place_of, tasks.place_of):
        assert place_of("", "after") is None
        with pytest.raises(QueryError):
            place_of(text.removesuffix("_x"), "after")


def own_url(name: str) -> str:
    return reverse(name, args=[UUID(int=1)] if "<" in str(PATTERNS[name].pattern) else [])


def test_an_error_page_leads_to_the_filter_that_was_meant_and_back(project: Project) -> None:
    person = logged_in(make_member(project, Role.OWNER))
    url = reverse("trajectories:list", args=[project.slug])
    page = person.get(f"{url}?user_id=bob&outcome=failure").content.decode()
    assert f'href="{url}?outcome=failure&amp;user=bob">Use “user” instead' in page
    assert f'href="{url}?outcome=failure">Remove “user_id”' in page
    page = person.get(f"{url}?outcome=%3Cscript%3E&user=bob").content.decode()
    assert f'href="{url}?user=bob">Remove “outcome”' in page and "<script>" not in page


@pytest.mark.more
def test_no_page_links_to_an_address_that_is_refused(world: dict[str, Any]) -> None:  # noqa: F811
    """By what the address declares, and by its answer: in the suite, that of every fourth, and of
    every sixth page.
    """
    person, wrong, seen = logged_in(make_member(world["project"], Role.OWNER)), [], set()
    for name in [name for name in PAGES if name not in WRITES][:: amount(6, 1)]:
        page = undone(person, name, world)
        if page.status_code != 200 or page.streaming or "html" not in page["Content-Type"]:
            continue
        for offer in offers(url_of(name, world), page.content.decode()):
            parts = urlsplit(offer.address)
            key = (
                re.sub(r"[0-9a-f-]{36}|\d+", "", parts.path),
                tuple(sorted({n for n, _ in parse_qsl(parts.query, True)})),
            )
            if not parts.query or parts.netloc or key in seen:
                continue
            seen.add(key)
            with suppress(Resolver404):
                view = resolve(parts.path).func
                try:
                    refuse_invalid(QueryDict(parts.query), getattr(view, "query", {}), by_form=True)
                    status = (
                        200
                        if offer.sends or len(seen) % amount(4, 1)
                        else person.get(f"{parts.path}?{parts.query}").status_code
                    )
                except QueryError as error:
                    status = error.sentence
                if status not in (200, 204, 302, 404):
                    wrong.append(f"{name} links to {offer.address}: {status}")
    assert not wrong, "\n".join(wrong)
    assert len(seen) > amount(12, 60)


@pytest.mark.proof
def test_a_filter_for_one_person_never_shows_everybody() -> None:
    from apps.trajectories.actions.store import ingest

    project = make_project()
    ingest(project=project, rows=[row("a", user_id="ann"), row("b", user_id="bob")])
    agent = Client(headers={"Authorization": f"Bearer {make_key(project)}"})
    person = logged_in(make_member(project, Role.OWNER))
    list_page, bulk = f"/p/{project.slug}/trajectories/", f"/p/{project.slug}/trajectories/bulk/"
    for query in (
        "user_id=bob",
        "user=",
        "since=yesterday",
        "from=gestern",
        "cost_min=abc",
        "outcome=bad",
        "user=a&user=b",
    ):
        answer = agent.get(f"/api/v1/trajectories/?{query}")
        assert answer.status_code == 400 and answer.json()["path"] == query.split("=")[0], query
        assert agent.get(f"/api/v1/metrics/?measure=runs&{query}").status_code == 400, query
    assert "Did you mean “user”?" in agent.get("/api/v1/trajectories/?user_id=bob").json()["error"]
    for query in ("user_id=bob", "since=yesterday", "from=gestern", "cost_min=abc", "outcome=bad"):
        for page in ("", "count/", "sums/", "trend/", "export/", "live/", "sessions/"):
            answer = person.get(f"{list_page}{page}?{query}")
            assert answer.status_code == 400, (page, query)
        assert (
            person.post(
                bulk, {"do": "delete", "all": "1", "query": query, "confirm": "2"}
            ).status_code
            == 400
        )
    assert "Did you mean “user”?" in person.get(f"{list_page}?user_id=bob").content.decode()
    assert project.trajectories.count() == 2
    for query in ("utm_source=mail&user=bob", "user=bob&agent=&fbclid=1"):
        assert [
            item.external_id for item in person.get(f"{list_page}?{query}").context["page"]["rows"]
        ] == ["b"]


@pytest.mark.more(rows=5)
@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        ("trajectories/bulk/", {"do": "tag", "tag": "t", "all": "0", "query": ""}, "all"),
        ("trajectories/bulk/", {"do": "tag", "tag": "t", "all": "1", "user_id": "bob"}, "user_id"),
        ("trajectories/bulk/?user=bob", {"do": "tag", "tag": "t", "all": "1"}, "user"),
        ("trajectories/bulk/", {"do": "tag", "tag": "t", "ids": "abc"}, "ids"),
        ("trajectories/export/", {"all": "1", "query": "user=a&user=b"}, "user"),
        ("trajectories/views/", {"name": "Bob", "query": "user_id=bob"}, "user_id"),
        ("failures/bulk/", {"do": "dismiss", "all": "1", "query": "user=bob"}, "user"),
        ("failures/bulk/", {"do": "dismiss", "all": "1", "query": "confidence=sure"}, "confidence"),
        ("failures/bulk/", {"do": "dismiss", "all": "true", "query": "mode=a"}, "all"),
        ("failures/bulk/", {"do": "dismiss", "ids": "1,x"}, "ids"),
        ("charts/save/", {"name": "Bob", "query": "user_id=bob"}, "user_id"),
    ],
)
def test_a_form_that_selects_by_filters_refuses_what_the_list_refuses(
    path: str, fields: dict[str, str], named: str
) -> None:
    project = make_project()
    make_failed(project)
    classify_project(project=project)
    person = logged_in(make_member(project, Role.OWNER))
    answer = person.post(f"/p/{project.slug}/{path}", fields)
    assert answer.status_code == 400 and f"“{named}”" in answer.content.decode()
    run = project.trajectories.get()
    assert not run.tags and run.failure.state == "open"
    assert not Chart.objects.filter(dashboard__project=project).exists()
    assert not SavedView.objects.filter(project=project).exists()
