"""What a page offers: whatever on it leads or sends somewhere, and what of that a role is
refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from django.urls import Resolver404, resolve

from apps.core.models import Role

ASKING = ("href", "hx-get", "data-ahead")
SENDING = ("formaction", "hx-post", "hx-delete", "hx-put")


class Offer(NamedTuple):
    """Something on a page that leads somewhere, or `sends` something there. The address of a form
    that asks with GET names its fields.
    """

    what: str
    address: str
    sends: bool


class Parser(HTMLParser):
    """A form that sends is an offer if it has a button that can be pressed: to its own address
    (without one, the page's) unless the button names another.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.found: list[Offer] = []
        self.form: dict[str, str | None] | None = None
        self.fields: set[str] = set()
        self.has_button = False
        self.fieldsets: list[bool] = []

    def add(self, what: str, address: str, sends: bool) -> None:
        self.found.append(Offer(what, urljoin(self.url, address), sends))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        dead = "disabled" in given or any(self.fieldsets)
        if tag == "form":
            self.form, self.fields, self.has_button = given, set(), False
            return
        if tag == "fieldset":
            self.fieldsets.append("disabled" in given)
        elif tag in ("input", "select", "textarea") and given.get("name"):
            self.fields.add(given["name"] or "")
        elif tag == "button" and given.get("type") != "button" and not given.get("formaction"):
            self.has_button |= not dead
        if not dead:
            for name in (*ASKING, *SENDING):
                if given.get(name):
                    self.add(f"{tag}[{name}]", given[name] or "", name in SENDING)

    def handle_endtag(self, tag: str) -> None:
        if tag == "fieldset" and self.fieldsets:
            self.fieldsets.pop()
        elif tag == "form" and self.form is not None:
            self.end_form(self.form)
            self.form = None

    def end_form(self, form: Mapping[str, str | None]) -> None:
        sends = (form.get("method") or "get").lower() != "get" or bool(form.get("hx-post"))
        if not sends:
            fields = "&".join(f"{name}=" for name in sorted(self.fields))
            if address := form.get("hx-get"):
                address += f"{'&' if '?' in address else '?'}{fields}"
            else:  # the fields take the place of its query
                address = f"{(form.get('action') or self.url).partition('?')[0]}?{fields}"
            self.add("form[action]", address, False)
        elif self.has_button:
            self.add("form[action]", form.get("action") or self.url, True)
            if form.get("hx-post"):
                self.add("form[hx-post]", form["hx-post"] or "", True)


def offers(url: str, html: str) -> list[Offer]:
    """What the page at this address offers."""
    parser = Parser(url)
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
    for what, address, _ in offers(url, html):
        route = route_of(urlsplit(address).path)
        needed = roles.get(route)
        if needed is not None and role not in needed.upward:
            yield f"{what} {route} needs {needed}"
