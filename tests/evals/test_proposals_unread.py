"""Whatever reads tasks does not read proposals: every page and every route of the API is asked, and
only those of proposals show one.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from apps.core.models import Role
from apps.core.routes import routes
from apps.evals.models import TaskProposal
from tests.factories import key_headers, make_member
from tests.test_access import (
    PAGES,
    WRITES,
    bare_errors,  # noqa: F401
    logged_in,
    undone,
    world,  # noqa: F401
)

pytestmark = pytest.mark.django_db
MARK = "zyzzyva-4711"  # in nothing but the proposal's own fields, which no run has


def _marked() -> None:
    TaskProposal.objects.update(
        expected={"rubric": f"Says {MARK}"},
        demonstration=MARK,
        group=MARK,
        groups=[MARK],
        metadata={"tags": [MARK], "environment": MARK},
        messages=[{"role": "user", "content": MARK}],
    )


def test_no_page_but_those_of_proposals_shows_one(world: dict[str, Any]) -> None:  # noqa: F811
    _marked()
    client = logged_in(make_member(world["project"], Role.OWNER))
    shown = set()
    for name in sorted(set(PAGES) - WRITES):
        answer = undone(client, name, world)
        text = b"".join(answer.streaming_content) if answer.streaming else answer.content
        if MARK.encode() in text:
            shown.add(name)
    assert shown == {"evals:proposal", "evals:proposals"}


def test_no_route_of_the_api_but_those_of_proposals_shows_one(
    world: dict[str, Any],  # noqa: F811
) -> None:
    _marked()
    headers = key_headers(world["project"], may_see_holdout=True)
    draft, asked, shown = world["pks"]["evals:split"], 0, set()
    for route in routes():
        if "GET" not in (route.needs or ()):
            continue
        own = route.name.startswith("evals_api:") and "proposals" not in route.path
        url = route.path.replace("<uuid:pk>", str(draft)) if own else route.path
        if "<" in url:
            continue
        answer = Client().get(url, **headers)
        text = b"".join(answer.streaming_content) if answer.streaming else answer.content
        asked += answer.status_code == 200
        if MARK.encode() in text:
            shown.add(route.name)
    assert shown == {"evals_api:proposals"} and asked > 20
