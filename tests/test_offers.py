"""What a page offers, its reader may do: every form, button and link of every page × every role, against what the routes allow."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from django.urls import Resolver404, resolve, reverse

from apps.core.models import Role
from tests.factories import make_member
from tests.test_access import PAGES, ROLES, WRITES, logged_in, url_of, world  # noqa: F401 - world is a fixture

pytestmark = pytest.mark.django_db
ADDRESSES = ("href", "formaction", "hx-get", "hx-post", "hx-delete", "hx-put")


class Offers(HTMLParser):
    """[(what, address)] of whatever on a page leads or sends somewhere. A form sends if it has a button that can be pressed,
    to its own address (without one, the page's) unless the button names another."""

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
            tag == "button" and not dead and self.form and given.get("type") != "button" and not given.get("formaction")
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


def refused(role: Role, url: str, html: str) -> Iterator[str]:
    """What of a page's offers the role's routes refuse."""
    for what, address in offers(url, html):
        try:
            route = resolve(urlsplit(address).path).view_name
        except Resolver404:
            continue
        needed = ROLES.get(route)
        if needed is not None and role not in needed.upward:
            yield f"{what} {route} needs {needed}"


@pytest.mark.parametrize("role", [role for role in Role if role != Role.OWNER])
def test_no_page_offers_what_its_reader_may_not_do(world: dict[str, Any], role: Role) -> None:  # noqa: F811
    person, wrong, seen = logged_in(make_member(world["project"], role)), set(), 0
    slug, pks = world["project"].slug, world["pks"]
    pages = [(name, url_of(name, world)) for name in PAGES if name not in WRITES and role in ROLES[name].upward]
    more = {"evals:detail": "evals:add_task", "registry:server": "registry:server_run"}  # a draft, a managed server
    for name, url in pages + [(name, reverse(name, args=[slug, pks[other]])) for name, other in more.items()]:
        answer = person.get(url, follow=True)
        if answer.status_code == 200 and not answer.streaming and "html" in answer["Content-Type"]:
            seen += 1
            wrong |= {f"{name}: {text}" for text in refused(role, answer.request["PATH_INFO"], answer.content.decode())}
    assert seen > 60 and not wrong, "\n".join(sorted(wrong))


def test_an_offer_that_is_refused_is_found() -> None:
    form = '<form method="post"><fieldset{}><button>Save</button></fieldset></form>'
    page = form.format("") + '<button formaction="/p/a/settings/members/1/remove/">x</button><a href="?b">y</a>'
    assert not offers("/p/a/settings/keys/", form.format(" disabled"))
    assert list(refused(Role.VIEWER, "/p/a/settings/keys/", page)) == [
        "form[action] core:keys needs operator", "button[formaction] core:remove_member needs owner", "a[href] core:keys needs operator",
    ]  # fmt: skip
    assert not list(refused(Role.OWNER, "/p/a/settings/keys/", page))
