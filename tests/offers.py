"""What a page offers: whatever on it leads or sends somewhere, and what of that a role is
refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

from django.urls import Resolver404, resolve

from apps.core.models import Role

ADDRESSES = ("href", "formaction", "hx-get", "hx-post", "hx-delete", "hx-put")


class Offers(HTMLParser):
    """[(what, address)] of whatever on a page leads or sends somewhere. A form sends if it has a
    button that can be pressed, to its own address (without one, the page's) unless the button names
    another."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.found = url, []
        self.form: dict[str, str | None] | None = None
        self.fieldsets: list[bool] = []

    def add(self, what: str, address: str) -> None:
        self.found.append((what, urljoin(self.url, address)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        dead = "disabled" in given or any(self.fieldsets)
        if tag == "form":
            self.form = given
        elif tag == "fieldset":
            self.fieldsets.append("disabled" in given)
        elif (
            tag == "button"
            and not dead
            and self.form
            and given.get("type") != "button"
            and not given.get("formaction")
        ):
            for name in ("action", "hx-post"):
                if name == "action" or self.form.get(name):
                    self.add(f"form[{name}]", self.form.get(name) or self.url)
        if tag != "form" and not dead:
            for name in ADDRESSES:
                if given.get(name):
                    self.add(f"{tag}[{name}]", given[name] or "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self.form = None
        elif tag == "fieldset" and self.fieldsets:
            self.fieldsets.pop()


def offers(url: str, html: str) -> list[tuple[str, str]]:
    parser = Offers(url)
    parser.feed(html)
    return parser.found


@cache
def route_of(path: str) -> str:
    """The name of its route, or nothing; most links are on every page."""
    try:
        return resolve(path).view_name
    except Resolver404:
        return ""


def refused(roles: Mapping[str, Role | None], role: Role, url: str, html: str) -> Iterator[str]:
    """What of a page's offers this role may not do; `roles`: what each route needs."""
    for what, address in offers(url, html):
        route = route_of(urlsplit(address).path)
        needed = roles.get(route)
        if needed is not None and role not in needed.upward:
            yield f"{what} {route} needs {needed}"
