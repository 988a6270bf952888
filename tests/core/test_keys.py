"""API keys: rotated in one step, and managed by API."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from apps.core import actions
from apps.core.models import ApiKey, AuditEvent, Project, Role
from tests.factories import admin_of, make_member, make_project


@pytest.fixture
def member(project: Project) -> Client:
    client = Client()
    client.force_login(admin_of(project))
    return client


def make(project: Project, *scopes: str, by: Any = None, **given: Any) -> tuple[ApiKey, str]:
    given = {"scopes": scopes or ["manage", "ingest"], "name": "prod"} | given
    return actions.create_api_key(project=project, by=by or admin_of(project), **given)


def opens(secret: str) -> bool:
    return (
        Client()
        .post("/api/v1/trajectories/", "{}", "application/json", headers=bearer(secret))
        .status_code
        != 401
    )


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def rotate(secret: str, pk: int, **given: Any) -> Any:
    return Client().post(
        f"/api/v1/keys/{pk}/rotate/", given, "application/json", headers=bearer(secret)
    )


def test_a_key_is_rotated_on_the_page(project: Project, member: Client) -> None:
    old, secret = make(
        project, expires_at=timezone.now() + timedelta(days=90), may_see_holdout=True
    )
    url = f"/p/{project.slug}/settings/keys/"
    form = member.get(f"{url}{old.pk}/rotate/")
    assert (timezone.now() + timedelta(days=90)).date().isoformat() in form.content.decode()
    text = member.post(
        f"{url}{old.pk}/rotate/", {"grace": "24h", "expires_on": ""}, follow=True
    ).content.decode()
    new = ApiKey.objects.exclude(pk=old.pk).get()
    old.refresh_from_db()
    assert (new.name, new.scopes, new.may_see_holdout, new.expires_at) == (
        old.name,
        old.scopes,
        True,
        None,
    )
    assert old.replaced_by == new and timedelta(
        hours=23
    ) < old.expires_at - timezone.now() < timedelta(hours=25)
    shown = member.get(url).content.decode()
    assert (
        f'class="copyable">{new.prefix}' in text
        and "copyable" not in shown
        and "replaced by" in shown
    )
    assert opens(secret)
    ApiKey.objects.filter(pk=old.pk).update(expires_at=timezone.now())
    actions.forget(old)
    assert not opens(secret)
    assert "rotated the API key prod; the old one works until" in sentence_of("api_key.rotated")


def sentence_of(action: str) -> str:
    from apps.core.auditing.words import sentence

    return sentence(AuditEvent.objects.get(action=action))


def test_without_grace_the_old_key_stops_at_once(project: Project, member: Client) -> None:
    old, secret = make(project)
    assert opens(secret)
    member.post(f"/p/{project.slug}/settings/keys/{old.pk}/rotate/", {"grace": "0"})
    assert not opens(secret)


@pytest.mark.parametrize(
    "broken", [{"grace": "forever"}, {"grace": "1h", "expires_on": "2001-01-01"}, {}]
)
def test_a_wrong_form_rotates_nothing(project: Project, member: Client, broken: dict) -> None:
    old, _ = make(project)
    assert (
        member.post(
            f"/p/{project.slug}/settings/keys/{old.pk}/rotate/", broken | {"x": "1"}
        ).status_code
        == 200
    )
    assert ApiKey.objects.count() == 1


def test_a_key_never_works_past_its_own_expiry(project: Project) -> None:
    soon = timezone.now() + timedelta(hours=2)
    old, _ = make(project, expires_at=soon)
    actions.rotate_api_key(key=old, by=None, grace=timedelta(days=7), expires_at=None)
    old.refresh_from_db()
    assert old.expires_at == soon


@pytest.mark.parametrize("state", ["revoked", "expired", "rotated"])
def test_a_key_that_ended_is_not_rotated(project: Project, member: Client, state: str) -> None:
    old, _ = make(project)
    if state == "rotated":
        actions.rotate_api_key(key=old, by=None, grace=timedelta(hours=1), expires_at=None)
    else:
        field = "revoked_at" if state == "revoked" else "expires_at"
        ApiKey.objects.filter(pk=old.pk).update(**{field: timezone.now()})
    before = ApiKey.objects.count()
    text = member.post(
        f"/p/{project.slug}/settings/keys/{old.pk}/rotate/", {"grace": "1h"}, follow=True
    ).content
    assert ApiKey.objects.count() == before and b"Rotate the newest one" in text
    assert (
        f"/keys/{old.pk}/rotate/"
        not in member.get(f"/p/{project.slug}/settings/keys/").content.decode()
    )


# By API


def test_a_key_is_rotated_by_api(project: Project) -> None:
    _, manage = make(project)
    old, secret = make(project, "ingest", expires_at=timezone.now() + timedelta(days=30))
    answer = rotate(manage, old.pk, grace_hours=48)
    made = answer.json()
    assert (
        answer.status_code == 201
        and opens(made["secret"])
        and opens(secret)
        and made["scopes"] == ["ingest"]
    )
    new, old = ApiKey.objects.get(pk=made["id"]), ApiKey.objects.get(pk=old.pk)
    assert abs(new.expires_at - timezone.now() - timedelta(days=30)) < timedelta(minutes=1)
    assert abs(old.expires_at - timezone.now() - timedelta(hours=48)) < timedelta(minutes=1)
    assert AuditEvent.objects.get(action="api_key.rotated").actor_label == "API key “prod”"
    assert rotate(manage, old.pk).status_code == 409


def test_a_key_may_rotate_itself(project: Project) -> None:
    own, secret = make(project)
    assert opens(rotate(secret, own.pk, grace_hours=0).json()["secret"]) and not opens(secret)


@pytest.mark.parametrize(
    ("asking", "other", "holdout"),
    [(["manage"], ["read"], False), (["manage", "read"], ["read"], True)],
)
def test_a_key_hands_out_only_what_it_has(
    project: Project, asking: list, other: list, holdout: bool
) -> None:
    _, secret = make(project, *asking)
    key, _ = make(project, *other, may_see_holdout=holdout)
    assert rotate(secret, key.pk).status_code == 403
    new = {"name": "more", "scopes": other, "may_see_holdout": holdout}
    assert (
        Client().post("/api/v1/keys/", new, "application/json", headers=bearer(secret)).status_code
        == 403
    )
    assert ApiKey.objects.count() == 2


def test_no_key_that_a_key_makes_outlives_it(project: Project) -> None:
    end = timezone.now() + timedelta(days=2)
    own, secret = make(project, expires_at=end)
    lasting, _ = make(project)

    def made(**given: Any) -> Any:
        new = {"name": "n", "scopes": ["ingest"]} | given
        return Client().post("/api/v1/keys/", new, "application/json", headers=bearer(secret))

    later = (end + timedelta(seconds=1)).isoformat()
    for answer in (
        made(expires_at=None),
        made(expires_at=later),
        rotate(secret, own.pk, expires_at=None),
        rotate(secret, lasting.pk, expires_at=later),
    ):
        assert (
            answer.status_code == 403
            and "no key that it makes lasts longer" in answer.json()["detail"]
        )
    assert made(expires_at=end.isoformat()).status_code == made().status_code == 201
    assert rotate(secret, lasting.pk).status_code == rotate(secret, own.pk).status_code == 201
    assert {key.expires_at for key in ApiKey.objects.exclude(pk__in=[own.pk, lasting.pk])} == {end}


def test_another_projects_key_is_not_found(project: Project) -> None:
    theirs, _ = make(make_project())
    _, secret = make(project)
    assert rotate(secret, theirs.pk).status_code == 404
    assert Client().delete(f"/api/v1/keys/{theirs.pk}/", headers=bearer(secret)).status_code == 404
    listed = Client().get("/api/v1/keys/", headers=bearer(secret)).json()["results"]
    assert [key["name"] for key in listed] == ["prod"] and "secret" not in listed[0]


def test_an_engineers_key_manages_no_keys(project: Project) -> None:
    key, secret = make(project, by=make_member(project, Role.ENGINEER))
    assert rotate(secret, key.pk).status_code == 403


def test_a_key_is_created_and_revoked_by_api(project: Project) -> None:
    _, secret = make(project)
    made = (
        Client()
        .post(
            "/api/v1/keys/",
            {"name": "a", "scopes": ["ingest"]},
            "application/json",
            headers=bearer(secret),
        )
        .json()
    )
    assert opens(made["secret"])
    assert Client().delete(f"/api/v1/keys/{made['id']}/", headers=bearer(secret)).status_code == 204
    assert not opens(made["secret"])


@pytest.mark.parametrize(
    "given",
    [
        {"grace_hours": -1},
        {"grace_hours": 10**9},
        {"expires_at": "2001-01-01T00:00:00Z"},
        {"grace": 1},
        {"grace_hours": "1"},
        {"expires_at": "9999-12-31T23:59:59-12:00"},
    ],
)
def test_what_is_wrong_is_said(project: Project, given: dict) -> None:
    key, secret = make(project)
    assert rotate(secret, key.pk, **given).status_code == 400
