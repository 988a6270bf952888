"""Signing in by password, second factor and OpenID Connect; the account page; resetting a password.
Every way in is limited and audited.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal import auth as totp
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth import get_user_model
from django.core import mail
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from apps.core.accounts.adapters import WRONG_LOGIN
from apps.core.models import Attempts, AuditEvent, Membership, Project, Role
from tests.factories import admin_of, make_member, make_project, make_user
from tests.oidc import Provider

pytestmark = pytest.mark.django_db
SECRET = "JBSWY3DPEHPK3PXP"


@pytest.fixture
def project() -> Project:
    cache.clear()  # a code of the second factor works once
    return make_project(make_user("ada"))


@pytest.fixture
def ada(project: Project) -> Any:
    return admin_of(project)


def log_in(client: Client, password: str = "secret", name: str = "ada") -> Any:
    return client.post(reverse("account_login"), {"login": name, "password": password})


def signed_in(client: Client) -> bool:
    return client.get(reverse("account")).status_code == 200


def actions() -> list[str]:
    return list(AuditEvent.objects.order_by("pk").values_list("action", flat=True))


def code(at: int = 0) -> str:
    """The code of now, or of `at` periods later."""
    return totp.format_hotp_value(totp.hotp_value(SECRET, int(time.time()) // 30 + at))


# Password


def test_one_logs_in_by_name_or_by_e_mail(ada: Any) -> None:
    get_user_model().objects.filter(pk=ada.pk).update(email="ada@example.org")
    for name in ("ada", "Ada", "ada@example.org"):
        client = Client()
        assert log_in(client, name=name).status_code == 302 and signed_in(client), name


@pytest.mark.proof
def test_failures_by_name_and_by_e_mail_are_failures_of_one_account(ada: Any) -> None:
    get_user_model().objects.filter(pk=ada.pk).update(email="ada@example.org")
    statuses = [
        log_in(Client(), "wrong", name).status_code for name in ("ada", "ada@example.org") * 4
    ]
    assert statuses == [200] * 5 + [429] * 3
    assert Attempts.objects.filter(kind=Attempts.Kind.ACCOUNT).count() == 1


@pytest.mark.proof
def test_a_log_in_of_another_account_does_not_forget_the_failures_of_a_name(ada: Any) -> None:
    """Somebody whose username is Ada's address guesses her password by it, and logs in with their
    own in between.
    """
    get_user_model().objects.filter(pk=ada.pk).update(email="ada@example.org")
    get_user_model().objects.create_user("ada@example.org", password="mallory's own")
    typed = ("wrong", "secret") * 7
    statuses = [log_in(Client(), password, "ada@example.org").status_code for password in typed]
    assert statuses[1] == 302 and statuses[-2:] == [429, 429]


@pytest.mark.proof
def test_failures_by_an_address_of_two_accounts_are_forgotten_by_neither(ada: Any) -> None:
    """Ada guesses the password of somebody who has the same address, and logs in with her own in
    between.
    """
    get_user_model().objects.filter(pk=ada.pk).update(email="both@example.org")
    get_user_model().objects.create_user("victim", "both@example.org", "correct horse battery")
    statuses = [
        log_in(Client(), word, "both@example.org").status_code for word in ("wrong", "secret") * 7
    ]
    assert statuses[1] == 302 and statuses[-2:] == [429, 429]


def test_an_inactive_account_is_told_what_a_wrong_password_is_told(ada: Any) -> None:
    wrong = log_in(Client(), "wrong").context["form"].errors
    get_user_model().objects.filter(pk=ada.pk).update(is_active=False)
    assert log_in(Client()).context["form"].errors == wrong and WRONG_LOGIN in str(wrong)


def test_nobody_signs_up(project: Project) -> None:
    assert Client().get("/signup/").status_code == 404
    assert get_user_model().objects.count() == 1


# Second factor


@pytest.fixture
def guarded(ada: Any, rf: Any) -> Any:
    totp.TOTP.activate(ada, SECRET)
    return ada


def test_a_password_alone_does_not_log_in_where_there_is_a_second_factor(guarded: Any) -> None:
    client = Client()
    assert log_in(client)["Location"] == reverse("mfa_authenticate") and not signed_in(client)
    page = client.get(reverse("mfa_authenticate")).content.decode()
    assert "authenticator code" in page and "Use a security key" in page
    assert client.post(
        reverse("mfa_authenticate"), {"code": code()}
    ).status_code == 302 and signed_in(client)


@pytest.mark.proof
def test_wrong_codes_are_limited_as_wrong_passwords_are(guarded: Any) -> None:
    """A right password between them does not forget them."""
    client, statuses = Client(), []
    for _ in range(4):
        assert log_in(client).status_code == 302
        statuses.append(client.post(reverse("mfa_authenticate"), {"code": "000000"}).status_code)
    log_in(client)
    statuses += [
        client.post(reverse("mfa_authenticate"), {"code": "000000"}).status_code for _ in range(3)
    ]
    assert statuses == [200] * 5 + [429] * 2
    refused = client.post(reverse("mfa_authenticate"), {"code": code()})
    assert (
        refused.status_code == 429 and int(refused["Retry-After"]) <= 30 and not signed_in(client)
    )
    assert log_in(Client()).status_code == 429
    assert actions().count("login.failed") == 4 and "login.locked" in actions()


def test_a_code_works_once_for_as_long_as_it_is_right(guarded: Any) -> None:
    value = code()
    for written, status in ((value, 302), (value, 200), (f"{value[:3]} {value[3:]}", 200)):
        client = Client()
        log_in(client)
        assert client.post(reverse("mfa_authenticate"), {"code": written}).status_code == status
        assert signed_in(client) == (status == 302)
        cache.delete(f"allauth.mfa.totp.used?user={guarded.pk}&code={value}")  # as after 30 seconds


def test_the_secret_is_encrypted_and_survives_a_new_secret_key(guarded: Any, settings: Any) -> None:
    assert SECRET not in json.dumps(Authenticator.objects.get().data)
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another", [settings.SECRET_KEY]
    assert Authenticator.objects.get().wrap().validate_code(code())


def test_an_app_is_added_by_page_and_recovery_codes_come_with_it(
    project: Project, django_capture_on_commit_callbacks: Any
) -> None:
    client = Client()
    log_in(client)
    page = reverse("mfa_activate_totp")
    confirm = client.get(page)
    assert confirm["Location"].startswith(reverse("account_reauthenticate"))
    client.post(confirm["Location"], {"password": "secret", "next": page})
    shown = client.get(page)
    secret = shown.context["form"].secret
    assert "data:image/svg" in shown.content.decode()
    value = totp.format_hotp_value(totp.hotp_value(secret, int(time.time()) // 30))
    with django_capture_on_commit_callbacks(execute=True):
        assert client.post(page, {"code": value})["Location"] == reverse("mfa_view_recovery_codes")
    shown = client.get(reverse("mfa_view_recovery_codes")).content.decode()
    unused = Authenticator.objects.get(type="recovery_codes").wrap().get_unused_codes()
    assert len(unused) == 10 and all(one in shown for one in unused)
    assert actions().count("account.second_factor_added") == 2
    again = Client()
    log_in(again)
    assert again.post(
        reverse("mfa_authenticate"), {"code": unused[0]}
    ).status_code == 302 and signed_in(again)
    once = Client()
    log_in(once)
    assert once.post(
        reverse("mfa_authenticate"), {"code": unused[0]}
    ).status_code == 200 and not signed_in(once)


def test_a_passkey_can_be_added_and_asked_for(project: Project) -> None:
    asked = Client().get(reverse("mfa_login_webauthn"), HTTP_ACCEPT="application/json").json()
    assert asked["request_options"]["publicKey"]["rpId"] == "testserver"
    client = Client()
    log_in(client)
    page = reverse("mfa_add_webauthn")
    client.post(client.get(page)["Location"], {"password": "secret", "next": page})
    assert "creation_options" in client.get(page).content.decode()
    wrong = Client().post(reverse("mfa_login_webauthn"), {"credential": "{}"})
    assert wrong.status_code in (302, 400)


# The account page


def test_name_and_e_mail_are_changed_after_confirming(ada: Any) -> None:
    client, page = Client(), reverse("account")
    log_in(client)
    assert client.post(page, {"first_name": "Ada Lovelace", "email": ""})["Location"] == page
    change = {"first_name": "Ada Lovelace", "email": "Ada@Example.org"}
    confirm = client.post(page, change)
    assert confirm["Location"].startswith(reverse("account_reauthenticate"))
    client.post(confirm["Location"], {"password": "secret", "next": page})
    ada.refresh_from_db()
    assert (ada.first_name, ada.email) == ("Ada Lovelace", "ada@example.org")
    assert "account.email_changed" in actions()
    other = make_user("bob")
    stranger = Client()
    log_in(stranger, name=other.username)
    first = stranger.post(page, change)
    answer = stranger.post(first["Location"], {"password": "secret", "next": page})
    assert "Another account uses this address." in answer.content.decode()


def test_other_sessions_are_ended(project: Project) -> None:
    here, there = Client(HTTP_USER_AGENT="here"), Client(HTTP_USER_AGENT="there")
    log_in(here), log_in(there)
    page = here.get(reverse("usersessions_list")).content.decode()
    assert "here" in page and "there" in page
    here.post(reverse("usersessions_list"))
    assert signed_in(here) and not signed_in(there)


def test_a_changed_password_ends_other_sessions_and_is_audited(project: Project) -> None:
    here, there = Client(), Client()
    log_in(here), log_in(there)
    new = {
        "oldpassword": "secret",
        "password1": "correct horse battery",
        "password2": "correct horse battery",
    }
    here.post(reverse("account_change_password"), new)
    assert signed_in(here) and not signed_in(there) and "account.password_changed" in actions()
    assert (
        log_in(Client()).status_code == 200
        and log_in(Client(), "correct horse battery").status_code == 302
    )


def test_a_wrong_current_password_counts_as_one_at_the_log_in(project: Project) -> None:
    here, page = Client(), reverse("account_change_password")
    log_in(here)
    new = dict.fromkeys(("password1", "password2"), "correct horse battery")
    wrong = [here.post(page, new | {"oldpassword": f"wrong-{at}"}) for at in range(4)]
    assert {answer.status_code for answer in wrong} == {200}
    assert "login.failed" in actions()
    assert here.post(page, new | {"oldpassword": "secret"}).status_code == 302, "the right one"
    assert Attempts.objects.exclude(kind=Attempts.Kind.KNOWN).filter(failures__gt=0).count() == 0
    cache.clear()  # allauth counts these, too: five a minute
    wrong = [here.post(page, new | {"oldpassword": "wrong"}) for _ in range(5)]
    cache.clear()
    locked = here.post(page, new | {"oldpassword": "correct horse battery"})
    assert locked.status_code == 429 and int(locked["Retry-After"]) > 0
    assert log_in(here, "correct horse battery").status_code != 200


# Resetting a password


def sent_mail() -> Any:
    """It is sent by a thread."""
    for thread in threading.enumerate():
        if thread.name == "mail":
            thread.join()
    (sent,) = mail.outbox
    return sent


def test_a_mail_server_tells_nobody_which_addresses_have_an_account(
    ada: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by its errors nor by how long it takes."""

    def refuse(message: Any) -> int:
        released.wait(60)
        raise ConnectionRefusedError("away")

    released, settings.FLYWHEEL_MAIL = threading.Event(), True
    monkeypatch.setattr("django.core.mail.EmailMessage.send", refuse)
    get_user_model().objects.filter(pk=ada.pk).update(email="ada@example.org")
    answers = [
        Client().post(reverse("account_reset_password"), {"email": f"{name}@example.org"})
        for name in ("ada", "nobody")
    ]
    released.set()
    assert [answer.status_code for answer in answers] == [302, 302]


def test_the_link_of_a_reset_has_the_address_of_flywheel(ada: Any, settings: Any) -> None:
    """Not the host that whoever asked for it wrote into the request."""
    settings.FLYWHEEL_MAIL, settings.ALLOWED_HOSTS = True, ["*"]
    settings.FLYWHEEL_URL = "https://flywheel.example.com"
    get_user_model().objects.filter(pk=ada.pk).update(email="ada@example.org")
    asked = {"email": "ada@example.org"}
    Client(HTTP_HOST="evil.example").post(reverse("account_reset_password"), asked)
    sent = sent_mail()
    assert "https://flywheel.example.com/password/reset/" in sent.body
    assert "evil" not in sent.body + sent.subject


def test_a_password_is_reset_by_e_mail_once(ada: Any, settings: Any) -> None:
    settings.FLYWHEEL_MAIL = True
    get_user_model().objects.filter(pk=ada.pk).update(email="ada@example.org")
    for address in ("ada@example.org", "nobody@example.org"):
        answer = Client().post(reverse("account_reset_password"), {"email": address})
        assert answer["Location"] == reverse("account_reset_password_done")
    sent = sent_mail()
    assert sent.to == ["ada@example.org"] and sent.subject.startswith("[Flywheel] ")
    link = re.search(rf"{settings.FLYWHEEL_URL}(/password/reset/\S+)", sent.body)[1]
    client = Client()
    form = client.get(link)["Location"]
    new = {"password1": "correct horse battery", "password2": "correct horse battery"}
    assert client.post(form, new)["Location"] == reverse("account_reset_password_from_key_done")
    assert (
        log_in(Client(), "correct horse battery").status_code == 302
        and "account.password_reset" in actions()
    )
    assert "invalid" in Client().get(link, follow=True).content.decode()


def test_without_a_mail_server_the_page_says_what_to_do(project: Project) -> None:
    answer = Client().post(reverse("account_reset_password"), {"email": "ada@example.org"})
    assert "changepassword" in answer.content.decode() and not mail.outbox


# OpenID Connect, against a scripted provider


@pytest.fixture
def provider(settings: Any) -> Iterator[Provider]:
    made = Provider()
    settings.SOCIALACCOUNT_PROVIDERS = made.settings
    yield made
    made.close()


def through(client: Client, process: str = "login", next: str = "") -> Any:
    """To the provider and back."""
    url = f"{reverse('openid_connect_login', args=['sso'])}?process={process}" + (
        f"&next={next}" if next else ""
    )
    leaving = client.post(url).content.decode()
    state = re.search(r"state=(\w+)", leaving)[1]
    assert "code_challenge=" in leaving and "/authorize?" in leaving
    return client.get(
        reverse("openid_connect_callback", args=["sso"]), {"code": "c", "state": state}
    )


def test_a_stranger_of_the_provider_gets_no_account(project: Project, provider: Provider) -> None:
    """Not even with the email address of somebody who has one."""
    get_user_model().objects.update(email="ada@example.org")
    client = Client()
    answer = through(client)
    assert "by invitation" in answer.content.decode() and not signed_in(client)
    assert get_user_model().objects.count() == 1 and not SocialAccount.objects.exists()
    assert actions()[-1] == "login.failed"


def test_whoever_connected_the_provider_logs_in_by_it(ada: Any, provider: Provider) -> None:
    client = Client()
    log_in(client)
    page = client.get(reverse("socialaccount_connections")).content.decode()
    assert "Continue with Example SSO" in page
    assert through(client, "connect").status_code == 302
    assert SocialAccount.objects.get().user == ada and "account.sign_in_connected" in actions()
    other = Client()
    assert "Continue with Example SSO" in other.get(reverse("account_login")).content.decode()
    assert through(other, next="/account/")["Location"] == "/account/" and signed_in(other)


def test_a_second_factor_is_asked_for_after_the_provider_too(
    guarded: Any, provider: Provider
) -> None:
    SocialAccount.objects.create(user=guarded, provider="sso", uid="1")
    client = Client()
    assert through(client)["Location"] == reverse("mfa_authenticate") and not signed_in(client)


def test_an_answer_with_another_state_counts_as_a_failure(
    project: Project, provider: Provider
) -> None:
    client = Client()
    callback = reverse("openid_connect_callback", args=["sso"])
    assert client.get(callback, {"code": "c", "state": "guessed"}).status_code in (200, 401, 403)
    assert not signed_in(client) and actions()[-1] == "login.failed"
    assert Attempts.objects.get().kind == Attempts.Kind.ADDRESS


def test_a_provider_that_is_down_or_speaks_nonsense_leads_back_to_the_log_in(
    project: Project, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, start = Client(), reverse("openid_connect_login", args=["sso"])
    state = re.search(r"state=(\w+)", client.post(start).content.decode())[1]
    for answer in (lambda path: {}, lambda path: ["no", "object"], lambda path: 1 / 0):
        monkeypatch.setattr(provider, "answer", answer)
        back = client.post(start, follow=True)
        assert (
            back.redirect_chain
            and "cannot be reached, or does not answer as it should" in back.content.decode()
        )
    callback = reverse("openid_connect_callback", args=["sso"])
    assert client.get(callback, {"code": "c", "state": state}).status_code < 500 and not signed_in(
        client
    )


def test_the_provider_starts_by_a_post_only(provider: Provider, project: Project) -> None:
    """A link on another site cannot connect somebody's account to a stranger's."""
    client = Client()
    log_in(client)
    asked = client.get(f"{reverse('openid_connect_login', args=['sso'])}?process=connect")
    assert asked.status_code == 200 and "authorize" not in asked.content.decode()


def test_somebody_reads_what_happened_to_their_account_once_and_nothing_of_others(
    project: Project,
) -> None:
    ada, bob = make_member(project), make_member(project)
    Membership.objects.create(project=make_project(), user=ada, role=Role.VIEWER)
    for user in (ada, bob):
        Client().post("/login/", {"login": user.username, "password": "wrong"})
    Client().post("/login/", {"login": "nobody", "password": "wrong"})
    client = Client()
    client.force_login(ada)
    page = client.get(reverse("account_activity")).content.decode()
    assert (
        page.count(f"{ada} failed to log in") == 1 and str(bob) not in page and "nobody" not in page
    )
    assert (
        client.get(reverse("account_activity"), {"all": ""})
        .content.decode()
        .count("failed to log in")
        == 1
    )
    ada.is_superuser = True
    ada.save()
    page = client.get(reverse("account_activity"), {"all": ""}).content.decode()
    assert (
        page.count("failed to log in") == 1 and str(ada) not in page.partition("panel tight")[2]
    )  # of no project
