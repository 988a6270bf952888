"""What a key may do: every route of the API names its scope, and no key goes beyond its own; keys
expire.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError
from django.test import Client
from django.urls import resolve, reverse
from django.utils import timezone
from drf_spectacular.generators import SchemaGenerator

from apps.core import api, scopes
from apps.core.actions import create_api_key, remove_member, set_member
from apps.core.models import ApiKey, AuditEvent, Project, Role
from apps.core.scopes import Scope
from tests.factories import admin_of, make_eval_set, make_key, make_member, make_trajectory, row
from tests.test_access import OPEN, PATTERNS, ROUTES, key_args

pytestmark = pytest.mark.django_db
MISSING = "which the API key"


def key_with(project: Project, *given: Scope, **more: Any) -> str:
    return create_api_key(project=project, name="test", by=admin_of(project), scopes=given, **more)[
        1
    ]


def ask(secret: str, url: str, method: str = "GET", body: Any = None) -> Any:
    headers = {"Authorization": f"Bearer {secret}"}
    return Client().generic(
        method, url, body or "{}", content_type="application/json", headers=headers
    )


def test_every_route_of_the_api_names_its_scope() -> None:
    spaces = {name.partition(":")[0] for name in ROUTES}
    assert set(ROUTES) == {name for name in PATTERNS if name.partition(":")[0] in spaces} - OPEN


@pytest.mark.parametrize(
    "route", [name for name in ROUTES if not name.startswith(("otlp:", "protocol:"))]
)
def test_every_method_of_a_route_names_its_scope(route: str) -> None:
    view = resolve(reverse(route, args=key_args(route))).func
    assert set(view.cls.http_method_names) - {"options"} == {
        method.lower() for method in ROUTES[route]
    }


def another(scopes: Collection[Scope]) -> Scope:
    """The one after those of a route, which is not among them."""
    every = list(Scope)
    first = max(every.index(scope) for scope in scopes)
    return next(scope for scope in every[first:] + every if scope not in scopes)


@pytest.mark.parametrize("only", Scope)
def test_a_key_of_one_scope_opens_what_needs_it_and_nothing_else(
    project: Project, only: Scope
) -> None:
    """What opens is asked of each; what is refused, with one of the scopes that do not open it."""
    secret = key_with(project, only)
    for route, methods in ROUTES.items():
        for method, wanted in methods.items():
            if only not in wanted.scopes and only != another(wanted.scopes):
                continue
            answer = ask(secret, reverse(route, args=key_args(route)), method)
            if only in wanted.scopes:
                assert answer.status_code not in (401, 405), (route, method)
                assert answer.streaming or MISSING not in answer.content.decode(), (route, method)
            else:
                assert answer.status_code == 403, (route, method)
                said = answer.json()["detail"]
                assert (
                    f"needs the scope {scopes.in_words(wanted.scopes)}, {MISSING}" in said
                    and f"(it has: {only})" in said
                )


def test_a_route_whose_view_declares_nothing_is_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, url = make_key(project), reverse("environments_api:environments")
    assert ask(secret, url).status_code == 200
    monkeypatch.delattr(resolve(url).func, "needs")
    answer = ask(secret, url)
    assert answer.status_code == 403 and "declares no scope" in answer.json()["detail"]


def test_methods_that_a_route_does_not_take_stay_405(project: Project) -> None:
    url = reverse("environments_api:environments")
    assert ask(make_key(project), url, "DELETE").status_code == 405
    assert ask(key_with(project, Scope.INGEST), url, "OPTIONS").status_code == 200


def test_a_key_that_only_sends_gets_no_trajectory_back(project: Project) -> None:
    run = make_trajectory(project, request="the secret request")
    url = reverse("api:feedback", args=[run.external_id])
    news = '{"outcome": {"status": "success"}}'
    blind = ask(key_with(project, Scope.INGEST), url, "POST", news)
    assert blind.status_code == 200 and blind.json() == {"id": run.external_id, "waiting": False}
    seeing = ask(key_with(project, Scope.INGEST, Scope.READ), url, "POST", news)
    assert seeing.status_code == 200 and "the secret request" in seeing.content.decode()


@pytest.mark.parametrize("given", [[], ["everything"], ["read", "everything"]])
def test_the_database_keeps_only_scopes_that_there_are(project: Project, given: list[str]) -> None:
    with pytest.raises(IntegrityError):
        ApiKey.objects.create(project=project, name="a", prefix="fw", digest="d", scopes=given)


def test_a_key_works_until_it_expires(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    end = timezone.now() + timedelta(hours=1)
    secret, url = key_with(project, *Scope, expires_at=end), reverse("api:trajectories")
    assert (
        ask(secret, url).status_code == 200 and api._trusted
    )  # known from now on: the end is looked at all the same
    monkeypatch.setattr("apps.core.models.timezone.now", lambda: end)
    answer = ask(secret, url)
    assert answer.status_code == 401 and answer["WWW-Authenticate"] == "Bearer"
    said = answer.json()["detail"]
    assert f"expired on {end:%Y-%m-%d %H:%M} UTC" in said and "Settings → API keys" in said
    assert ask(secret, reverse("otlp:traces"), "POST").status_code == 401
    assert ask(secret, "/env/a@1/verify", "POST").status_code == 401


def test_the_schema_says_which_scope_each_operation_needs() -> None:
    found = SchemaGenerator().get_schema(request=None, public=True)
    operations = [
        (path, method, operation)
        for path, methods in found["paths"].items()
        for method, operation in methods.items()
    ]
    assert len(operations) > 40
    for path, method, operation in operations:
        named = {scope for one in operation["security"] for scope in one["ApiKey"]}
        assert named and named <= set(Scope.values), (path, method)
        assert "Needs the scope “" in operation["description"] and "403" in operation["responses"]
    sent = found["paths"]["/api/v1/trajectories/"]["post"]
    assert sent["security"] == [{"ApiKey": ["ingest"]}]
    assert all(f"`{scope.value}`" in found["info"]["description"] for scope in Scope)


def test_the_docs_have_the_same_words() -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "api.md").read_text()
    assert all(f"| `{scope.value}` | {scope.about} |" in text for scope in Scope)
    text = (docs / "people.md").read_text()
    assert all(f"| {role.label} | {role.about} |" in text for role in Role)


# Whoever made the key


def remove(project: Project, member: Any) -> None:
    remove_member(membership=project.memberships.get(user=member), by=admin_of(project))


def lower(project: Project, member: Any) -> None:
    set_member(project=project, user=member, role=Role.VIEWER, by=admin_of(project))


def deactivate(project: Project, member: Any) -> None:
    type(member).objects.filter(pk=member.pk).update(is_active=False)
    api._trusted.clear()  # as five seconds later


def erase(project: Project, member: Any) -> None:
    member.delete()
    api._trusted.clear()


@pytest.mark.parametrize("change", [remove, lower, deactivate, erase])
def test_a_key_can_do_only_what_its_creator_still_may(
    project: Project, change: Callable[[Project, Any], None]
) -> None:
    member = make_member(project)
    secret = create_api_key(project=project, name="test", by=member)[1]
    assert ask(secret, reverse("api:trajectories")).status_code == 200
    change(project, member)
    assert ask(secret, reverse("api:trajectories")).status_code == (200 if change is lower else 403)
    assert ask(secret, reverse("api:batch"), "POST", json.dumps([row(name="a")])).status_code == 200
    said = ask(secret, reverse("evals_api:sets"), "POST").json()["detail"]
    assert (
        "only the role “viewer”" if change is lower else "is not a member"
    ) in said and "Settings → API keys" in said


def test_a_member_again_is_a_working_key_again(project: Project) -> None:
    member = make_member(project)
    secret, url = (
        create_api_key(project=project, name="test", by=member)[1],
        reverse("evals_api:sets"),
    )
    lower(project, member)
    assert ask(secret, url, "POST", '{"name": "new"}').status_code == 403
    set_member(project=project, user=member, role=Role.ENGINEER, by=admin_of(project))
    assert ask(secret, url, "POST", '{"name": "new"}').status_code == 201


def test_the_agents_of_someone_who_left_go_on_sending_and_read_nothing(project: Project) -> None:
    """An agent's key belongs to the project: production is not cut off from it when a person
    leaves.
    """
    member, run = make_member(project), make_trajectory(project, request="the secret request")
    secret = create_api_key(project=project, name="agent", by=member)[1]
    remove(project, member)
    sent = ask(secret, reverse("api:batch"), "POST", json.dumps([row(name="a")]))
    assert sent.status_code == 200 and sent.json()["accepted"] == 1
    news = ask(
        secret,
        reverse("api:feedback", args=[run.external_id]),
        "POST",
        '{"outcome": {"status": "success"}}',
    )
    assert news.status_code == 200 and news.json() == {"id": run.external_id, "waiting": False}


def test_a_hold_out_is_for_keys_of_members(project: Project) -> None:
    member, held = make_member(project), make_eval_set(project)
    secret = create_api_key(project=project, name="test", by=member, may_see_holdout=True)[1]
    url = reverse("evals_api:set", args=[held.pk]) + "?holdout=1"
    assert ask(secret, url).status_code == 200
    lower(project, member)
    assert (
        ask(secret, url).status_code == 403
        and ask(secret, url.partition("?")[0]).status_code == 200
    )


def test_the_page_names_keys_whose_creator_left(project: Project, admin: Client) -> None:
    member = make_member(project)
    create_api_key(project=project, name="agent", by=member)
    assert "creator left" not in admin.get(page_of(project)).content.decode()
    remove(project, member)
    assert "creator left" in admin.get(page_of(project)).content.decode()


# The page


@pytest.fixture
def admin(project: Project) -> Client:
    client = Client()
    client.force_login(admin_of(project))
    return client


def page_of(project: Project) -> str:
    return reverse("core:keys", args=[project.slug])


def test_a_new_key_is_made_with_the_least(project: Project, admin: Client) -> None:
    shown = admin.get(page_of(project))
    assert shown.context["form"]["scopes"].initial == [Scope.INGEST]
    text = shown.content.decode()
    assert all(scope.value in text and scope.about in text for scope in Scope)


def test_scopes_and_expiry_are_chosen_on_the_page(project: Project, admin: Client) -> None:
    last = timezone.now().date() + timedelta(days=400)
    admin.post(
        page_of(project),
        {"name": "ci", "scopes": ["evaluate", "ingest"], "expires_on": last.isoformat()},
    )
    key = project.api_keys.get()
    assert key.scopes == ["ingest", "evaluate"] and not key.may_see_holdout
    assert key.expires_at == datetime(last.year, last.month, last.day, 23, 59, 59, 999999, UTC)
    detail = AuditEvent.objects.get(action="api_key.created").detail
    assert detail["scopes"] == ["ingest", "evaluate"] and detail["expires_at"].startswith(
        last.isoformat()
    )
    text = admin.get(page_of(project)).content.decode()
    assert last.isoformat() in text and "expires <time>" not in text


@pytest.mark.parametrize(
    "given,said",
    [
        ({"name": "a"}, "Choose at least one scope"),
        ({"name": "a", "scopes": ["all"]}, "Select a valid choice"),
        ({"scopes": ["read"]}, "This field is required"),
        (
            {"name": "a", "scopes": ["read"], "expires_on": "2001-01-01"},
            "Choose today or a later day.",
        ),
    ],
)
def test_the_page_says_what_is_wrong(
    project: Project, admin: Client, given: dict, said: str
) -> None:
    assert said in admin.post(page_of(project), given).content.decode()
    assert not project.api_keys.exists()


def test_the_page_warns_of_keys_that_expire_soon(project: Project, admin: Client) -> None:
    now = timezone.now()
    for name, days in (("soon", 5), ("later", 30), ("gone", -1)):
        key_with(project, Scope.INGEST, expires_at=now + timedelta(days=days))
        project.api_keys.filter(name="test").update(name=name)
    shown = admin.get(page_of(project))
    assert [key.name for key in shown.context["expiring"]] == ["soon"]
    text = shown.content.decode()
    assert text.count("in 5 d") == 2 and 'badge bad" title' in text and ">expired</span>" in text


def test_a_key_that_was_revoked_is_no_longer_warned_of(project: Project, admin: Client) -> None:
    key_with(project, Scope.INGEST, expires_at=timezone.now() + timedelta(days=2))
    admin.post(reverse("core:revoke_key", args=[project.slug, project.api_keys.get().pk]))
    assert not admin.get(page_of(project)).context["expiring"]


def test_a_batch_is_stored_with_a_key_that_only_sends(project: Project) -> None:
    sent = ask(
        key_with(project, Scope.INGEST), reverse("api:batch"), "POST", json.dumps([row(name="a")])
    )
    assert sent.status_code == 200 and sent.json()["accepted"] == 1
