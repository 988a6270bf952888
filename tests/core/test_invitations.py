"""People are invited by a link, join by password or OpenID Connect, and are removed; what a link is
worth, and to whom.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core import mail
from django.db import transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.actions import InvitationError, create_api_key, invite, remove_member, set_member
from apps.core.models import AuditEvent, Invitation, Project, Role
from tests.concurrent import Other
from tests.core.test_accounts import Provider, provider, through
from tests.factories import admin_of, make_eval_set, make_member, make_user

__all__ = ["provider"]
pytestmark = pytest.mark.django_db
NEW = {"username": "grace", "name": "Grace Hopper", "password": "correct horse battery"}


@pytest.fixture
def owner(project: Project) -> Client:
    client = Client()
    client.force_login(admin_of(project))
    return client


def settings_of(project: Project) -> str:
    return reverse("core:settings", args=[project.slug])


def invited(
    owner: Client, project: Project, email: str = "grace@example.org", role: Role = Role.REVIEWER
) -> str:
    """The link, as the page shows it."""
    address = reverse("core:invite", args=[project.slug])
    page = owner.post(address, {"email": email, "role": role}, follow=True).content.decode()
    return re.search(r"http://testserver(/join/\?token=[^<]+)", page)[1]


def test_the_invited_person_chooses_a_password_and_lands_in_the_project(
    project: Project, owner: Client
) -> None:
    link, client = invited(owner, project), Client()
    assert client.get(link)["Location"] == reverse("join")  # the token leaves the address
    page = client.get(reverse("join")).content.decode()
    assert f"Join {project}" in page and "as <b>reviewer</b>" in page
    assert client.post(reverse("join"), NEW)["Location"] == project.get_absolute_url()
    assert client.get(project.get_absolute_url()).status_code == 200
    user = get_user_model().objects.get(username="grace")
    assert (user.email, user.first_name) == (
        "grace@example.org",
        "Grace Hopper",
    ) and user.check_password(NEW["password"])
    assert project.memberships.get(user=user).role == Role.REVIEWER
    done = (
        AuditEvent.objects.filter(action__startswith="invitation.")
        .order_by("pk")
        .values_list("action", "actor_label")
    )
    assert list(done) == [
        ("invitation.created", str(admin_of(project))),
        ("invitation.accepted", "grace"),
    ]


def test_a_link_works_once_and_its_token_is_not_stored(project: Project, owner: Client) -> None:
    link = invited(owner, project)
    assert link.partition("token=")[2] not in str(Invitation.objects.values().get())
    assert "token=" not in owner.get(settings_of(project)).content.decode()
    for client, status in ((Client(), 302), (Client(), 410)):
        client.get(link)
        assert (
            client.post(reverse("join"), NEW | {"username": f"user-{status}"}).status_code == status
        )
    assert (
        get_user_model().objects.filter(username__startswith="user-").get().username == "user-302"
    )


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    "end", ["revoked", "expired", "replaced", "inviter left", "inviter lowered"]
)
def test_a_link_that_is_over_opens_nothing(project: Project, owner: Client, end: str) -> None:
    inviter = make_member(project, Role.OWNER)
    theirs = Client()
    theirs.force_login(inviter)
    link, client = invited(theirs, project), Client()
    client.get(link)
    assert client.get(reverse("join")).status_code == 200
    if end == "revoked":
        shown = owner.get(settings_of(project)).content.decode()
        assert "grace@example.org" in shown and str(inviter) in shown
        owner.post(
            reverse("core:revoke_invitation", args=[project.slug, project.invitations.get().pk])
        )
    elif end == "expired":
        project.invitations.update(expires_at=timezone.now() - timedelta(seconds=1))
    elif end == "replaced":
        invited(owner, project)
    elif end == "inviter left":
        remove_member(membership=project.memberships.get(user=inviter), by=admin_of(project))
    else:
        set_member(project=project, user=inviter, role=Role.OPERATOR, by=admin_of(project))
    assert client.get(reverse("join")).status_code == 410
    client.get(link)
    assert client.post(reverse("join"), NEW).status_code == 410
    assert not get_user_model().objects.filter(username="grace").exists()


def test_an_address_that_somebody_uses_is_not_given_to_another_account(
    project: Project, owner: Client
) -> None:
    get_user_model().objects.create_user("first", "Grace@Example.org", "secret")
    client = Client()
    client.get(invited(owner, project))
    client.post(reverse("join"), NEW)
    assert get_user_model().objects.get(username="grace").email == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"username": "ADA"}, "taken"),
        ({"password": "password"}, "too common"),
        ({"username": "a b"}, "valid username"),
        ({"username": "ada@example.org"}, "no @"),
    ],
)
def test_the_form_says_what_is_wrong(
    project: Project, owner: Client, given: dict, said: str
) -> None:
    make_user("ada")
    client = Client()
    client.get(invited(owner, project))
    page = client.post(reverse("join"), NEW | given)
    assert (
        page.status_code == 200
        and said in page.content.decode()
        and Invitation.objects.open().exists()
    )


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ["grace", "GRACE"])
def test_two_people_who_choose_one_name_at_once_do_not_both_get_it(
    project: Project, owner: Client, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    first, second = Client(), Client()
    first.get(invited(owner, project))
    second.get(invited(owner, project, "other@example.org"))
    monkeypatch.setattr(
        "apps.core.forms.JoinForm.clean_username", lambda form: form.cleaned_data["username"]
    )
    with transaction.atomic():
        first.post(reverse("join"), NEW)
        late = Other(lambda: second.post(reverse("join"), NEW | {"username": name}))
        late.wait_until_it_waits()
    page = late.wait()
    assert page.status_code == 200 and "This username is taken" in page.content.decode()
    assert get_user_model().objects.filter(username__iexact="grace").count() == 1
    assert (
        Invitation.objects.open().get().email == "other@example.org"
    )  # and may be followed with another name


@pytest.mark.django_db(transaction=True)
def test_two_owners_who_invite_one_address_at_once_leave_one_link(project: Project) -> None:
    owners, given = (
        [admin_of(project), make_member(project, Role.OWNER)],
        {"email": "g@example.org", "role": Role.VIEWER},
    )
    with transaction.atomic():
        invite(project=project, by=owners[0], **given)
        late = Other(lambda: invite(project=project, by=owners[1], **given))
        late.wait_until_it_waits()
    late.wait()
    assert Invitation.objects.open().get().created_by == owners[1]


@pytest.mark.django_db(transaction=True)
def test_an_owner_who_is_lowered_meanwhile_invites_nobody(project: Project) -> None:
    lowered = make_member(project, Role.OWNER)
    with transaction.atomic():
        set_member(project=project, user=lowered, role=Role.VIEWER, by=admin_of(project))
        late = Other(
            lambda: invite(project=project, email="g@example.org", role=Role.OWNER, by=lowered)
        )
        late.wait_until_it_waits()
    with pytest.raises(InvitationError):
        late.wait()
    assert not Invitation.objects.exists()


@pytest.mark.parametrize(
    "email",
    ["x" * 250 + "@example.org", "sam@exam\u202eple.org", "a@b", "ok\r\nBcc: all@example.org"],
)
def test_an_address_that_is_none_invites_nobody(
    project: Project, owner: Client, settings: Any, email: str
) -> None:
    settings.FLYWHEEL_MAIL = True
    page = owner.post(
        reverse("core:invite", args=[project.slug]), {"email": email, "role": "viewer"}, follow=True
    )
    assert page.status_code == 200 and not Invitation.objects.exists() and not mail.outbox


@pytest.mark.parametrize(
    "before,after",
    [(None, Role.ENGINEER), (Role.VIEWER, Role.ENGINEER), (Role.OPERATOR, Role.OPERATOR)],
)
def test_somebody_with_an_account_joins_by_a_button_and_keeps_a_higher_role(
    project: Project, owner: Client, before: Role | None, after: Role
) -> None:
    user = make_member(project, before) if before else make_user()
    client = Client()
    client.force_login(user)
    client.get(invited(owner, project, role=Role.ENGINEER))
    assert f"Join as {user}" in client.get(reverse("join")).content.decode()
    assert (
        not project.memberships.filter(user=user).exclude(role=before or "").exists()
    )  # a look accepts nothing
    assert client.post(reverse("join"))["Location"] == project.get_absolute_url()
    assert project.memberships.get(user=user).role == after


def test_an_invitation_makes_an_account_by_openid_connect(
    project: Project, owner: Client, provider: Provider
) -> None:
    provider.user = {
        "sub": "7",
        "email": "grace@corp.example",
        "preferred_username": "grace@corp.example",
        "name": "Grace Hopper",
    }
    client = Client()
    client.get(invited(owner, project))
    assert "Continue with Example SSO" in client.get(reverse("join")).content.decode()
    assert through(client, next=reverse("join"))["Location"] == reverse("join")
    assert client.get(reverse("join"))["Location"] == project.get_absolute_url()
    user = project.memberships.get(role=Role.REVIEWER).user
    assert (user.username, user.first_name, user.has_usable_password()) == ("grace", "Grace", False)
    again = Client()
    assert (
        through(again)["Location"] == "/"
        and again.get(project.get_absolute_url()).status_code == 200
    )
    provider.user |= {"sub": "8", "email": "second@corp.example"}
    second = through(client, next=reverse("join"))  # the same browser, another person, a used link
    assert "by invitation" in second.content.decode() and project.memberships.count() == 2


def test_with_a_mail_server_the_link_is_sent(
    project: Project, owner: Client, settings: Any
) -> None:
    settings.FLYWHEEL_MAIL = True
    link = invited(owner, project)
    (sent,) = mail.outbox
    assert sent.to == ["grace@example.org"] and link in sent.body and str(project) in sent.subject


def test_a_mail_server_that_refuses_leaves_the_link(
    project: Project, owner: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise ConnectionRefusedError

    settings.FLYWHEEL_MAIL = True
    monkeypatch.setattr("apps.core.views.send_mail", refuse)
    address = reverse("core:invite", args=[project.slug])
    page = owner.post(
        address, {"email": "grace@example.org", "role": "viewer"}, follow=True
    ).content.decode()
    assert "The mail server rejected" in page and "/join/?token=" in page


def test_without_a_mail_server_the_page_says_to_send_it_by_hand(
    project: Project, owner: Client
) -> None:
    address = reverse("core:invite", args=[project.slug])
    page = owner.post(
        address, {"email": "grace@example.org", "role": "viewer"}, follow=True
    ).content.decode()
    assert (
        "Email is not configured" in page
        and "yourself" in page
        and "Copy link" in page
        and not mail.outbox
    )


def test_a_removed_person_is_out_at_once_and_their_work_stays(
    project: Project, owner: Client
) -> None:
    member = make_member(project, Role.OPERATOR)
    client = Client()
    client.force_login(member)
    create_api_key(project=project, name="their agent", by=member)
    eval_set = make_eval_set(project)
    type(eval_set).objects.filter(pk=eval_set.pk).update(created_by=member)
    assert client.get(project.get_absolute_url()).status_code == 200
    address = reverse(
        "core:remove_member", args=[project.slug, project.memberships.get(user=member).pk]
    )
    page = owner.get(address).content.decode()
    assert "1 eval set" in page and "their agent" in page and "1 audit log entry" in page
    assert project.memberships.filter(user=member).exists()  # it asks first
    assert "Their work stays" in owner.post(address, follow=True).content.decode()
    for url in (project.get_absolute_url(), reverse("evals:list", args=[project.slug])):
        assert client.get(url).status_code == 404
    eval_set.refresh_from_db()
    assert eval_set.created_by == member and project.api_keys.get().revoked_at is None
