"""Guessing passwords and keys: slowed down for an account and an address, told, audited, and undone
by an owner.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from apps.core import attempts
from apps.core.accounts import known
from apps.core.attempts import LIMITS, Counted, Locked, address_of, begin, network_of
from apps.core.models import ApiKey, Attempts, AuditEvent, Project
from apps.core.tasks import forget_attempts
from apps.core.watching import log_ins
from tests.factories import admin_of, make_key, make_project, make_user

pytestmark = pytest.mark.django_db
ACCOUNT, ADDRESS, HERE, KEYS = (
    Attempts.Kind.ACCOUNT,
    Attempts.Kind.ADDRESS,
    Attempts.Kind.HERE,
    Attempts.Kind.KEYS,
)


@pytest.fixture
def project() -> Project:
    return make_project(make_user("ada"))


def log_in(password: str, name: str = "ada", address: str = "192.0.2.1") -> Any:
    return Client(REMOTE_ADDR=address).post(
        reverse("account_login"), {"login": name, "password": password}
    )


def later(**time: float) -> None:
    """As if so much time had passed."""
    for row in Attempts.objects.all():
        row.last_at -= timedelta(**time)
        row.locked_until = row.locked_until and row.locked_until - timedelta(**time)
        row.save()


def test_after_many_wrong_passwords_the_right_one_does_not_log_in(project: Project) -> None:
    statuses = [
        log_in(f"wrong-{number}", address=f"192.0.2.{number % 7}").status_code
        for number in range(15)
    ]
    assert statuses == [200] * 5 + [429] * 10
    answer = log_in("secret", address="203.0.113.9")
    assert answer.status_code == 429 and 0 < int(answer["Retry-After"]) <= 30
    page = answer.content.decode()
    assert (
        "Too many attempts have failed. Try again in " in page
        and "An owner of your project can unlock" in page
    )
    later(seconds=31)
    assert log_in("secret").status_code == 302


def test_each_further_failure_locks_for_twice_as_long(project: Project) -> None:
    waits = []
    for _ in range(13):
        log_in("wrong")
        until = Attempts.objects.get(kind=ACCOUNT).locked_until
        waits.append(round((until - timezone.now()).total_seconds(), -1) if until else 0)
        later(seconds=waits[-1] + 1)
        Attempts.objects.filter(kind=ADDRESS).delete()
    assert waits == [0, 0, 0, 0, 30, 60, 120, 240, 480, 900, 900, 900, 900]


@pytest.mark.proof
def test_a_success_and_a_day_forget_the_failures(project: Project) -> None:
    for _ in range(3):
        for _ in range(4):
            assert log_in("wrong").status_code == 200
        assert log_in("secret").status_code == 302
        Attempts.objects.filter(kind=ADDRESS).delete()
    for _ in range(4):
        log_in("wrong")
    later(days=1, seconds=1)
    assert log_in("wrong").status_code == 200 and Attempts.objects.get(kind=HERE).failures == 1
    later(days=1, seconds=1)
    assert forget_attempts() == 2
    assert Attempts.objects.get().kind == Attempts.Kind.KNOWN
    later(days=180)
    assert forget_attempts() == 1


def test_an_address_that_tries_many_accounts_is_locked_and_others_are_not(project: Project) -> None:
    statuses = [log_in("wrong", name=f"somebody-{number}").status_code for number in range(25)]
    assert statuses == [200] * 20 + [429] * 5
    assert log_in("secret").status_code == 429
    assert log_in("secret", address="198.51.100.7").status_code == 302


def test_many_wrong_passwords_of_one_account_do_not_lock_an_office_out(project: Project) -> None:
    """One address for all of it: what is locked is the account, here for each of four people."""
    make_user("eve")
    for name in ("ada", "nobody", "grace", "joan"):
        for _ in range(8):
            log_in("wrong", name=name)
            later(minutes=16)
    assert Attempts.objects.get(kind=ADDRESS, digest=attempts._digest("192.0.2.1")).failures == 4
    assert log_in("secret", name="eve").status_code == 302
    assert log_in("secret").status_code == 302, "who finds the right password leaves nothing behind"
    assert Attempts.objects.get(kind=ADDRESS, digest=attempts._digest("192.0.2.1")).failures == 3


@pytest.mark.proof
def test_a_browser_that_has_logged_in_before_gets_in_from_a_locked_address(
    project: Project,
) -> None:
    browser = Client(REMOTE_ADDR="192.0.2.1")
    body = {"login": "ada", "password": "secret"}
    assert browser.post(reverse("account_login"), body).status_code == 302
    browser.post(reverse("account_logout"))
    for number in range(25):
        log_in("wrong", name=f"somebody-{number}")
    assert log_in("secret").status_code == 429
    assert browser.post(reverse("account_login"), body).status_code == 302
    make_user("eve")
    browser.post(reverse("account_logout"))
    assert browser.post(reverse("account_login"), body | {"login": "eve"}).status_code == 429, (
        "that account only"
    )
    forged = Client(REMOTE_ADDR="192.0.2.1")
    forged.cookies[known.COOKIE] = browser.cookies[known.COOKIE].value[:-1] + "x"
    assert forged.post(reverse("account_login"), body).status_code == 429


def log_out(browser: Client) -> None:
    browser.post(reverse("account_logout"))


def test_who_guesses_from_many_networks_does_not_lock_the_owner_out_where_they_work(
    project: Project,
) -> None:
    log_in("secret", address="192.0.2.1")
    statuses = [log_in("wrong", address=f"198.51.100.{last}").status_code for last in range(12)]
    assert statuses == [200] * 5 + [429] * 7, "all new networks count together"
    assert log_in("secret", address="203.0.113.9").status_code == 429
    assert log_in("secret", address="192.0.2.1").status_code == 302, "another browser, same network"
    assert Attempts.objects.get(kind=ACCOUNT).failures == 5, "and the guesser gains nothing by it"


def test_who_guesses_in_the_same_office_does_not_lock_the_owner_s_browser_out(
    project: Project,
) -> None:
    browser = Client(REMOTE_ADDR="192.0.2.1")
    body = {"login": "ada", "password": "secret"}
    browser.post(reverse("account_login"), body)
    log_out(browser)
    assert [log_in("wrong").status_code for _ in range(7)] == [200] * 5 + [429] * 2
    assert browser.post(reverse("account_login"), body).status_code == 302
    assert log_in("secret").status_code == 429, "a browser that nobody knows"
    assert log_in("secret", address="203.0.113.9").status_code == 302, "not from elsewhere either"


def test_no_name_that_is_typed_counts_for_another_s_browser(project: Project) -> None:
    browser = Client(REMOTE_ADDR="192.0.2.1")
    body = {"login": "ada", "password": "secret"}
    browser.post(reverse("account_login"), body)
    log_out(browser)
    for name in ("ada known browser", "ada\0known browser"):
        assert all(log_in("wrong", name=name).status_code in (200, 429) for _ in range(7))
    assert browser.post(reverse("account_login"), body).status_code == 302


def test_accounts_whose_names_fold_to_the_same_are_counted_apart(project: Project) -> None:
    """Else whoever has one of them forgets the failures of the other by logging in."""
    make_user("jessica"), make_user("jeßica")
    statuses = []
    for _ in range(3):
        statuses += [log_in("wrong", name="jessica").status_code for _ in range(4)]
        assert log_in("secret", name="jeßica").status_code == 302
    assert statuses == [200] * 5 + [429] * 7
    call_command("unlock", "JESSICA")
    assert log_in("secret", name="Jessica").status_code == 302


def test_what_is_locked_counts_nothing_else(project: Project) -> None:
    for last in range(5):
        log_in("wrong", address=f"198.51.100.{last}")
    for _ in range(9):
        log_in("secret", address="203.0.113.9")
    later(seconds=31)
    assert log_in("secret", address="203.0.113.9").status_code == 302


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("192.0.2.1:5123", "192.0.2.1"),
        ("[2001:db8:1:2:3:4:5:6]:443", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::]", "2001:db8:1:2::/64"),
        ("somewhere", "somewhere"),
        ("somewhere:80", "somewhere:80"),
    ],
)
def test_the_network_of_an_address(address: str, network: str) -> None:
    assert network_of(address) == network


@pytest.mark.proof
def test_an_ipv6_network_is_one_place(project: Project) -> None:
    statuses = [
        log_in("wrong", name=f"somebody-{number}", address=f"2001:db8::{number:x}").status_code
        for number in range(25)
    ]
    assert statuses == [200] * 20 + [429] * 5


@pytest.mark.proof
def test_operators_see_what_is_locked_and_undo_it(project: Project) -> None:
    operator = Client()
    superuser = make_user("root")
    superuser.is_superuser = True
    superuser.save()
    operator.force_login(superuser)
    page = lambda: operator.get(reverse("operator:home")).content.decode()  # noqa: E731
    unlock = lambda about: operator.post(  # noqa: E731
        reverse("operator:mend", args=["log_ins_guessed"]), {"about": about}, follow=True
    ).content.decode()
    log_in("secret", address="192.0.2.7")
    for _ in range(6):
        log_in("wrong", address="192.0.2.7")
    assert "ada at 192.0.2.7" in page(), "a mistake at one place: listed"
    assert list(log_ins.guessed_log_ins()) == [], "and nobody is alerted"
    for number in range(20):
        log_in("wrong", name=f"somebody-{number}", address="192.0.2.8")
    for last in range(5):
        log_in("wrong", address=f"198.51.100.{last}")
    said = {finding.about: finding.says for finding in log_ins.guessed_log_ins()}
    assert set(said) == {"ada", "192.0.2.8"}
    assert "ada (from new networks) is locked until" in said["ada"]
    assert log_in("secret", address="203.0.113.9").status_code == 429
    assert "Unlocked ada." in unlock("ada")
    assert log_in("secret", address="203.0.113.9").status_code == 302
    assert log_in("secret", address="192.0.2.8").status_code == 429
    assert "Unlocked 192.0.2.8." in unlock("192.0.2.8")
    assert log_in("secret", address="192.0.2.8").status_code == 302
    assert "Unlocked ada at 192.0.2.7." in unlock("ada at 192.0.2.7")
    assert "was not locked" in unlock("nobody") and "was not locked" in unlock("")
    assert AuditEvent.objects.filter(action="operator.mended").count() == 5
    assert "Locked after failed log-ins" not in page()


def test_a_known_browser_still_locks_its_account(project: Project) -> None:
    browser = Client()
    browser.post(reverse("account_login"), {"login": "ada", "password": "secret"})
    browser.post(reverse("account_logout"))
    wrong = {"login": "ada", "password": "wrong"}
    assert [browser.post(reverse("account_login"), wrong).status_code for _ in range(7)] == [
        200
    ] * 5 + [429] * 2


def test_an_account_that_is_not_there_is_told_the_same(project: Project) -> None:
    def seen(name: str) -> list[tuple[int, str]]:
        answers = [log_in("wrong", name=name, address=f"{name}-{number}") for number in range(6)]
        words = [str(answer.context["form"].non_field_errors()) for answer in answers]
        return [
            (answer.status_code, re.sub(r"\d+ seconds", "soon", said))
            for answer, said in zip(answers, words, strict=True)
        ]

    assert seen("nobody") == seen("ada")


@pytest.mark.django_db(transaction=True)
def test_of_many_at_the_same_moment_no_more_get_through(project: Project) -> None:
    def one(number: int) -> bool:
        try:
            begin(Counted(ACCOUNT, "ada"))
        except Locked:
            return False
        finally:
            connections.close_all()
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(one, range(40))) == LIMITS[ACCOUNT].free
    assert connection.is_usable()


# The audit log


def test_failures_and_locks_are_in_the_audit_log_and_few(project: Project) -> None:
    for _ in range(15):
        log_in("wrong")
    events = list(project.audit_events.filter(action__startswith="login.").order_by("pk"))
    assert [event.action for event in events] == ["login.failed"] * 4 + ["login.locked"]
    assert (
        events[0].actor_label == "ada"
        and events[0].detail == {"address": "192.0.2.1"}
        and events[4].detail["until"]
    )


def test_what_was_typed_as_a_name_is_not_kept() -> None:
    log_in("wrong", name="my-password-in-the-wrong-field")
    event = AuditEvent.objects.get(action="login.failed")
    assert event.actor_label == "(unknown user)" and event.project is None
    kept = [*AuditEvent.objects.values(), *Attempts.objects.values()]
    assert "my-password" not in json.dumps(kept, default=str)


# Unlocking


def test_an_admin_unlocks_a_member(project: Project) -> None:
    for _ in range(5):
        log_in("wrong")
    admin = Client()
    admin.force_login(admin_of(project))
    page = admin.get(reverse("core:settings", args=[project.slug])).content.decode()
    assert "Unlock</button>" in page
    url = reverse("core:unlock_member", args=[project.slug, project.memberships.get().pk])
    assert "may log in again" in admin.post(url, follow=True).content.decode()
    assert project.audit_events.filter(action="login.unlocked", detail__username="ada").exists()
    assert "was not locked" in admin.post(url, follow=True).content.decode()
    assert log_in("secret").status_code == 302


@pytest.mark.proof
def test_the_command_unlocks(project: Project, capsys: pytest.CaptureFixture) -> None:
    for _ in range(21):
        log_in("wrong")
        later(minutes=16)
    call_command("unlock", "ada")
    call_command("unlock", address="192.0.2.1")
    call_command("unlock", "ada")
    assert capsys.readouterr().out.splitlines() == ["Unlocked.", "Unlocked.", "Nothing was locked."]
    assert log_in("secret").status_code == 302


# Addresses and keys


@pytest.mark.parametrize(
    ("proxies", "forwarded", "found"),
    [
        (0, "198.51.100.1", "192.0.2.1"),
        (1, "10.0.0.1, 198.51.100.1", "198.51.100.1"),
        (1, "", "192.0.2.1"),
        (2, "203.0.113.1, 198.51.100.1", "203.0.113.1"),
        (2, "198.51.100.1", "192.0.2.1"),
    ],
)
def test_only_proxies_of_ours_are_believed(
    settings: Any, proxies: int, forwarded: str, found: str
) -> None:
    settings.FLYWHEEL_PROXIES = proxies
    headers = {"HTTP_X_FORWARDED_FOR": forwarded} if forwarded else {}
    assert address_of(RequestFactory().get("/", REMOTE_ADDR="192.0.2.1", **headers)) == found


DOORS = ["/api/v1/trajectories/", "/env/workplace@1/verify", "/v1/traces"]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("path", DOORS)
def test_an_address_that_tries_keys_is_told_to_wait_and_right_keys_still_work(
    project: Project, path: str
) -> None:
    def ask(key: str) -> Any:
        return Client().post(
            path, b"[]", content_type="application/json", HTTP_AUTHORIZATION=f"Bearer {key}"
        )

    right, free = make_key(project), LIMITS[KEYS].free
    assert [ask(f"fw_wrong-{number}").status_code for number in range(3)] == [401] * 3
    assert Attempts.objects.get(kind=KEYS).failures == 3
    if path != DOORS[0]:  # one door is tried as often as it takes
        Attempts.objects.filter(kind=KEYS).update(failures=free - 3)
    seen = Attempts.objects.get(kind=KEYS).failures
    statuses = [ask(f"fw_wrong-{number}").status_code for number in range(seen, free + 5)]
    assert statuses[-8:] == [401] * 3 + [429] * 5 and set(statuses[:-8]) <= {401}
    answer = ask("fw_wrong")
    assert 0 < int(answer["Retry-After"]) <= 30 and "Try again in" in answer.json()["detail"]
    assert ask(right).status_code not in (401, 429)
    events = AuditEvent.objects.filter(action="api_key.refused")
    assert [event.detail["refused"] for event in events.order_by("pk")] == [1, LIMITS[KEYS].free]


def test_a_revoked_key_that_is_used_is_in_its_project_s_log(project: Project) -> None:
    secret = make_key(project)
    key = ApiKey.objects.get()
    key.revoke()
    answer = Client().get("/api/v1/trajectories/", HTTP_AUTHORIZATION=f"Bearer {secret}")
    assert answer.status_code == 401
    event = project.audit_events.get(action="api_key.refused")
    assert event.actor_label == str(key) and secret not in json.dumps(event.detail)


def test_locks_are_listed_by_name(project: Project) -> None:
    for _ in range(5):
        log_in("wrong")
    assert set(attempts.locks_of(["ada", "grace"])) == {"ada"}
