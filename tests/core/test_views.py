"""The pages of floor 1: projects, keys, members, the audit log, errors."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import ApiKey, Membership, Project, Role, key_digest
from flywheel import places
from tests.factories import admin_of, make_key, make_member, make_project, make_user

pytestmark = pytest.mark.django_db


def client_of(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def admin(project: Project) -> Client:
    return client_of(admin_of(project))


def test_the_only_project_opens_at_once(project: Project, admin: Client) -> None:
    assert admin.get("/").headers["Location"] == project.get_absolute_url()


def test_with_several_projects_one_chooses_among_ones_own(project: Project, admin: Client) -> None:
    mine, other = make_project(admin_of(project)), make_project()
    shown = admin.get("/").content.decode()
    assert mine.name in shown and project.name in shown and other.get_absolute_url() not in shown


def test_whoever_makes_a_project_owns_it() -> None:
    user = make_user()
    client_of(user).post("/", {"name": "Support agent", "slug": "support"})
    assert Membership.objects.get(project__slug="support", user=user).role == Role.OWNER


def test_it_refuses_a_slug_that_is_taken(project: Project, admin: Client) -> None:
    answer = admin.post("/", {"name": "Again", "slug": project.slug})
    assert "already exists" in answer.content.decode() and Project.objects.count() == 1


def test_a_new_key_is_shown_once(project: Project, admin: Client) -> None:
    address = reverse("core:keys", args=[project.slug])
    first = admin.post(
        address, {"name": "agent", "scopes": ["ingest"]}, follow=True
    ).content.decode()
    key = ApiKey.objects.get(project=project)
    secret = first.split('<pre class="copyable">')[1].split("</pre>")[0]
    assert ApiKey.objects.by_digest(key_digest(secret)) == key
    assert secret not in admin.get(address).content.decode()


def test_a_revoked_key_opens_nothing(project: Project, admin: Client) -> None:
    secret = make_key(project)
    send = {"path": "/api/v1/trajectories/", "headers": {"Authorization": f"Bearer {secret}"}}
    assert Client().get(**send).status_code == 200
    admin.post(reverse("core:revoke_key", args=[project.slug, project.api_keys.get().pk]))
    assert Client().get(**send).status_code == 401


def test_the_key_of_another_project_is_not_found(project: Project, admin: Client) -> None:
    other = make_project()
    make_key(other)
    address = reverse("core:revoke_key", args=[project.slug, other.api_keys.get().pk])
    assert admin.post(address).status_code == 404 and other.api_keys.live().count() == 1


def test_members_are_added_changed_and_removed(project: Project, admin: Client) -> None:
    user, address = make_user(), reverse("core:set_member", args=[project.slug])
    for role in (Role.VIEWER, Role.OPERATOR):
        admin.post(address, {"username": user.username, "role": role})
        assert project.memberships.get(user=user).role == role
    admin.post(
        reverse("core:remove_member", args=[project.slug, project.memberships.get(user=user).pk])
    )
    assert not project.memberships.filter(user=user).exists()


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_the_last_owner_stays(project: Project, admin: Client, role: Role) -> None:
    last = project.memberships.get()
    address = reverse("core:set_member", args=[project.slug])
    admin.post(address, {"username": last.user.username, "role": role})
    admin.post(reverse("core:remove_member", args=[project.slug, last.pk]))
    assert project.memberships.get().role == Role.OWNER


def test_a_user_who_is_not_there_is_named(project: Project, admin: Client) -> None:
    data = {"username": "nobody-here", "role": "viewer"}
    answer = admin.post(reverse("core:set_member", args=[project.slug]), data, follow=True)
    assert "There is no user “nobody-here”." in answer.content.decode()


def test_errors_say_what_to_do_and_are_json_for_the_api(project: Project) -> None:
    member = client_of(make_member(project))
    missing = member.get(f"/p/{project.slug}/nothing/")
    assert missing.status_code == 404 and "Back to home" in missing.content.decode()
    forbidden = member.get(reverse("core:settings", args=[project.slug]))
    assert (
        forbidden.status_code == 403 and "This needs the role “Owner”" in forbidden.content.decode()
    )
    assert "detail" in Client().get("/api/nothing/").json()


def test_a_broken_view_gives_the_error_page(
    project: Project, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(project: Project) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("apps.dashboard.views.buckets", broken)
    admin.raise_request_exception = False
    answer = admin.get(project.get_absolute_url())
    assert answer.status_code == 500 and "Something went wrong" in answer.content.decode()
    assert "secret detail" not in answer.content.decode()


def test_logging_out_needs_a_post_and_ends_the_session(project: Project, admin: Client) -> None:
    assert admin.get(reverse("account_logout")).status_code == 405
    admin.post(reverse("account_logout"))
    assert "/login/" in admin.get(project.get_absolute_url()).headers["Location"]


def test_the_login_leads_only_to_this_site(project: Project) -> None:
    data = {"login": admin_of(project).username, "password": "secret"}
    assert (
        Client().post("/login/", data | {"next": "https://evil.example/"}).headers["Location"]
        == "/"
    )
    inside = reverse("evals:list", args=[project.slug])
    assert Client().post("/login/", data | {"next": inside}).headers["Location"] == inside


def test_pages_allow_scripts_and_styles_from_our_files_only(
    project: Project, admin: Client
) -> None:
    for path in (project.get_absolute_url(), "/login/", "/api/docs/", "/no/such/page/"):
        policy = admin.get(path).headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy and "unsafe" not in policy, path
        assert "script-src" not in policy and "style-src" not in policy, path


def test_nothing_that_is_shown_in_a_page_has_inline_styles_or_scripts() -> None:
    """The content security policy would drop them. Mail has no style sheets."""
    inline = re.compile(
        r"""\sstyle\s*=|\son[a-z]+\s*=\s*["']|<style\b|<script(?![^>]*\b(?:src|type="application/json"))"""
        r"""|setAttribute\(["']style["']"""
    )
    templates = places.carried("templates")
    files = [*templates.rglob("*.html"), *places.carried("static").glob("*.js")]
    found = {
        str(path): match[0]
        for path in files
        if path != templates / "notifications" / "mail.html"
        and (match := inline.search(path.read_text()))
    }
    assert len(files) > 100 and not found, found


def test_a_form_sent_after_the_session_ended_leads_back_to_its_page(client: Client) -> None:
    project = make_project()
    page, action = (
        reverse("failures:triage", args=[project.slug]),
        reverse("failures:bulk", args=[project.slug]),
    )
    sent = client.post(action, headers={"Referer": f"https://flywheel.example{page}?mode=x"})
    assert sent.status_code == 302 and sent["Location"] == f"/login/?next={page}%3Fmode%3Dx"
    assert client.post(action)["Location"] == "/login/?next=/"
    assert client.get(page)["Location"] == f"/login/?next={page}"
