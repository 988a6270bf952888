"""No list ignores a filter that it does not have: every route of the API, every page with a list,
and what the pages themselves link to.
"""

from __future__ import annotations

import inspect
import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

import pytest
from django.http import QueryDict
from django.test import Client
from django.urls import Resolver404, resolve, reverse
from drf_spectacular.utils import OpenApiParameter

from apps.core.models import Role
from apps.core.query import QueryError, closest, parameters_of, refuse_invalid
from apps.core.scopes import ROUTES
from tests.factories import make_key, make_member, make_project, row
from tests.test_access import (
    PAGES,
    PATTERNS,
    WRITES,
    logged_in,
    undone,
    url_of,
    world,  # noqa: F401
)

pytestmark = pytest.mark.django_db
# What a view does that lists rows, some of which its address may leave out.
LISTS = re.compile(
    r"page_of\(request|apply_filters\(|keyset\(|(Filters|Options)\.(of|read|lenient)\(|\b_log\(|listed\(request"
)
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
        ("start", ""),
        ("zzz", ""),
    ],
)
def test_the_filter_that_was_meant(name: str, meant: str) -> None:
    known = ("user", "agent", "agent_version", "session", "latency_min", "latency_max", "outcome")
    assert closest(name, known) == meant


PARAMETERS = [
    OpenApiParameter("limit", int),
    OpenApiParameter("cost_min", float),
    OpenApiParameter("all", bool),
    OpenApiParameter("state", enum=["open", "done"]),
    OpenApiParameter("run", {"type": "array", "items": {"type": "string"}}),
    OpenApiParameter("user"),
    OpenApiParameter("cursor"),
]


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("limit=5&cost_min=.5&all&state=open&run=a&run=b&user=x&cursor=", ""),
        ("cost_min=-1e-3&all=true", ""),
        ("nothing=1", "nothing"),
        ("user=", "user"),
        ("user=%20", "user"),
        ("user=a&user=b", "user"),
        ("limit=five", "limit"),
        ("limit=١", "limit"),
        ("cost_min=nan", "cost_min"),
        ("cost_min=1,5", "cost_min"),
        ("all=maybe", "all"),
        ("state=opened", "state"),
    ],
)
def test_what_a_declared_parameter_takes(query: str, path: str) -> None:
    if not path:
        refuse_invalid(QueryDict(query), PARAMETERS)
        return
    with pytest.raises(QueryError) as caught:
        refuse_invalid(QueryDict(query), PARAMETERS)
    assert caught.value.path == path


def test_every_route_of_the_api_refuses_what_it_does_not_declare(
    world: dict[str, Any],  # noqa: F811
) -> None:
    """And declares what its list needs: a `limit` that is read and not declared could not be
    sent.
    """
    client = Client(headers={"Authorization": f"Bearer {make_key(world['project'])}"})
    wrong, routes = [], 0
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
            answer = client.generic(method, f"{url}?no_such_filter=1")
            if answer.status_code != 400 or answer.json().get("path") != "no_such_filter":
                wrong.append(f"{method} {name}: {answer.status_code}")
        body = inspect.unwrap(pattern.callback.cls().get) if "GET" in methods else None
        source = inspect.getsource(inspect.getclosurevars(body).nonlocals["func"]) if body else ""
        if "GET" in methods and " listed(request" in source:
            declared = {item.name for item in parameters_of(pattern.callback.cls(), "GET")}
            wrong += [f"{name} reads {missing}" for missing in {"limit", "cursor"} - declared]
    assert not wrong, "\n".join(wrong)
    assert routes > 100


class Links(HTMLParser):
    """The addresses with a query that a page leads to: its links, and its forms that ask with
    GET.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.urls: set[str] = set()
        self.form: tuple[str, set[str]] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.urls |= {
            url
            for name in ("href", "hx-get", "data-ahead")
            if "?" in (url := given.get(name) or "")
        }
        if (
            tag == "form"
            and (given.get("method") or "get").lower() == "get"
            and not given.get("hx-post")
        ):
            self.form = given.get("hx-get") or given.get("action") or "", set()
        elif self.form and tag in ("input", "select", "textarea") and given.get("name"):
            self.form[1].add(given["name"])

    def handle_endtag(self, tag: str) -> None:
        if tag == "form" and self.form:
            action, names = self.form
            self.urls.add(
                action
                + ("&" if "?" in action else "?")
                + "&".join(f"{name}=" for name in sorted(names))
            )
            self.form = None


def test_every_page_with_a_list_refuses_what_it_does_not_declare_and_links_to_nothing_refused(
    world: dict[str, Any],  # noqa: F811
) -> None:
    person, wrong, lists, seen = logged_in(make_member(world["project"], Role.OWNER)), [], 0, set()
    for name in PAGES:
        if name in WRITES:
            continue
        page = undone(person, name, world)
        view = inspect.unwrap(PATTERNS[name].callback)
        if LISTS.search(inspect.getsource(view)):
            lists += 1
            answer = undone(person, name, world, {"no_such_filter": "1"})
            if answer.status_code != 400 or "no_such_filter" not in answer.content.decode():
                wrong.append(f"{name} ignores an unknown filter ({answer.status_code})")
        if page.status_code != 200 or page.streaming or "html" not in page["Content-Type"]:
            continue
        for url in Links(page.content.decode()).urls:
            parts = urlsplit(url if url.startswith("/") else url_of(name, world) + url)
            key = (
                re.sub(r"[0-9a-f-]{36}|\d+", "", parts.path),
                tuple(sorted({n for n, _ in parse_qsl(parts.query, True)})),
            )
            if parts.netloc or key in seen:
                continue
            seen.add(key)
            try:
                resolve(parts.path)
            except Resolver404:
                continue
            if (answer := person.get(f"{parts.path}?{parts.query}")).status_code == 400:
                wrong.append(
                    f"{name} links to {url}, which is refused:"
                    f" {re.findall('Unknown[^<]*', answer.content.decode())[:1]}"
                )
    assert not wrong, "\n".join(wrong)
    assert lists > 25 and len(seen) > 60


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
