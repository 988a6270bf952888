"""What a route declares at its view: what an API key needs for each of its methods, and what it can
show of a hold-out. `manage.py routes` writes all of them into docs/routes.md.

What needs nothing said of it shows nothing: a form, settings, aggregated production data, a job on
another split, a redirect. A test asks every such route and finds no held-out request in its answer;
another asks every route that is counted, and the count of views rises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from django.urls import URLPattern, URLResolver, get_resolver
from rest_framework.decorators import api_view

from apps.core.scopes import Needs, Role

F = TypeVar("F", bound=Callable[..., Any])
# Whether what is shown counts as a view of the hold-out. Totals were counted when the evaluation
# was started.
COUNTED, WHEN_EVALUATED, UNCOUNTED = "yes", "when evaluated", "–"

RUNS = "the runs from which held-out tasks were made"
OUTPUTS = "outputs and scores on held-out tasks"
SIDES = "that a row is a held-out task, or similar to one"
TOTALS = "aggregates of evaluations"
HOW_MANY = "how many are held out"


class Disclosure(NamedTuple):
    """What a route can show of a hold-out, and whether that counts as a view of it."""

    what: str
    counted: str = COUNTED


SHOWS_NOTHING = Disclosure("", UNCOUNTED)
SHOWS_SIDES = Disclosure(SIDES)
SHOWS_TOTALS = Disclosure(TOTALS, WHEN_EVALUATED)


def api(**needs: Needs) -> Callable[[F], F]:
    """A view of the API with its methods, each with what a key needs for it:
    `@api(GET=READABLE, POST=MANAGED)`.
    """

    def decorate(view: F) -> F:
        return needing(**needs)(api_view(list(needs))(view))

    return decorate


def needing(**needs: Needs) -> Callable[[F], F]:
    """What a key needs for each method of a view that is not REST framework's."""

    def decorate(view: F) -> F:
        view.needs = needs  # type: ignore[attr-defined]
        return view

    return decorate


def shows(what: str, counted: str = COUNTED) -> Callable[[F], F]:
    """Declares what a page or a view of the API can show of a hold-out."""

    def decorate(view: F) -> F:
        view.shows = Disclosure(what, counted)  # type: ignore[attr-defined]
        return view

    return decorate


@dataclass(frozen=True)
class Route:
    """A URL of the URLconf, and what its view declares: `name` is namespace:name."""

    name: str
    path: str
    view: Callable[..., Any]

    @property
    def needs(self) -> Mapping[str, Needs]:
        """By method; empty if it takes no API key."""
        return getattr(self.view, "needs", {})

    @property
    def role(self) -> Role | None:
        """The least role that opens the page of a project."""
        return getattr(self.view, "role", None)

    @property
    def shows(self) -> Disclosure:
        return getattr(self.view, "shows", SHOWS_NOTHING)

    @property
    def who(self) -> str:
        if self.role:
            return str(self.role.label)
        return "; ".join(f"{method} {wanted}" for method, wanted in self.needs.items()) or "–"


def routes() -> list[Route]:
    """Every URL of the URLconf, from the resolver itself."""
    return list(_walk(get_resolver().url_patterns, "", ""))


def counted() -> dict[str, str]:
    """What each route shows whose answer counts as a view of a hold-out."""
    return {route.name: route.shows.what for route in routes() if route.shows.counted == COUNTED}


def by_key() -> dict[str, Mapping[str, Needs]]:
    """What each route of the API needs, by method."""
    return {route.name: route.needs for route in routes() if route.needs}


def _walk(patterns: list, namespace: str, prefix: str) -> Iterator[Route]:
    for pattern in patterns:
        path = f"{prefix}{pattern.pattern}"
        if isinstance(pattern, URLResolver):
            yield from _walk(pattern.url_patterns, pattern.namespace or namespace, path)
        elif isinstance(pattern, URLPattern):
            name = f"{namespace}:{pattern.name}" if namespace else str(pattern.name)
            yield Route(name, f"/{path}", pattern.callback)


INTRO = """# Routes: who may use them, and what they show of a hold-out

`python manage.py routes` writes this page from what the views declare, and a test checks that it is
current: a change of a scope, a role or a disclosure is a change of this page. “The right” means an
API key that may see hold-outs. A view is counted once per person (or API key), task and place;
scores by API and evaluations count each time (docs/evals.md, The hold-out).

## What shows something of a hold-out

| route | what it shows | counted |
|---|---|---|
"""
WHO = """
## Who may use a route

Pages name the least role in the project; routes of the API the scope of the key and, if the scope's
own role is not enough, the role of whoever made it. “–” takes neither: it is public, belongs to the
signed-in person, or checks a token of its own.

| route | name | who |
|---|---|---|
"""


def document() -> str:
    """The page as Markdown."""
    everything = routes()
    showing = "".join(
        f"| `{route.path}` | {route.shows.what} | {route.shows.counted} |\n"
        for route in everything
        if route.shows.what
    )
    opening = "".join(f"| `{route.path}` | {route.name} | {route.who} |\n" for route in everything)
    return INTRO + showing + WHO + opening
