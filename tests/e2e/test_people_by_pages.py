"""By pages alone: an owner invites three people, who join by password, by OpenID Connect and with a
second factor; they judge, comment with mentions and are notified; they are removed and locked out;
the audit log tells it in sentences.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from allauth.mfa.totp.internal import auth as totp
from django.core.cache import cache
from playwright.sync_api import expect

from apps.core.models import Membership, Project
from apps.failures.actions.diagnose import classify_project
from apps.notifications.models import Notification
from apps.reviews.models import Judgement
from apps.trajectories.models import Trajectory
from tests.e2e.conftest import PASSWORD, PATIENCE_MS, opened
from tests.e2e.seed import evaluate
from tests.factories import make_base, make_environment, make_eval_set, make_failed, make_project
from tests.oidc import Provider


@dataclass
class Seed:
    project: Project
    verifier: Any
    run: Trajectory


@pytest.fixture
def seed(user: Any, data_dir: Path) -> Seed:
    """A failed run, and an evaluation whose scores nobody has reviewed."""
    project = make_project(user)
    environment, eval_set = make_environment(project), make_eval_set(project, train=4, holdout=34)
    evaluate(eval_set, make_base(project, data_dir), environment, 0.45, random.Random(7), user)
    run = make_failed(project)
    classify_project(project=project)
    return Seed(project, environment.verifier, run)


@pytest.fixture
def provider(settings: Any) -> Iterator[Provider]:
    made = Provider()
    made.user = {
        "sub": "7",
        "email": "carol@example.org",
        "email_verified": True,
        "preferred_username": "carol",
    }
    settings.SOCIALACCOUNT_PROVIDERS = made.settings
    yield made
    made.close()


@pytest.fixture
def browse(browser: Any, live_server: Any) -> Iterator[Callable[[], Any]]:
    """Opens a browser of a further person. An error of the server or a script fails the test."""
    contexts, wrong = [], []

    def browse() -> Any:
        context = browser.new_context(
            base_url=live_server.url, viewport={"width": 1280, "height": 800}
        )
        context.set_default_timeout(PATIENCE_MS)
        page = opened(context)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "response", lambda answer: wrong.append(answer.url) if answer.status >= 500 else None
        )
        page.on("dialog", lambda dialog: dialog.accept())
        contexts.append(context)
        return page

    yield browse
    for context in contexts:
        context.close()
    assert not wrong, wrong


@pytest.mark.proof
def test_three_people_join_judge_talk_and_are_removed(
    seed: Seed, provider: Provider, logged_in: Any, browse: Callable[[], Any]
) -> None:
    ada = logged_in
    cache.clear()
    bob, carol, dan = browse(), browse(), browse()
    join_by_password(bob, invited(ada, seed, "bob@example.org", "reviewer"), "bob")
    join_by_provider(carol, invited(ada, seed, "carol@example.org", "reviewer"))
    join_by_password(dan, invited(ada, seed, "dan@example.org", "engineer"), "dan")
    log_in_with_a_second_factor(dan, add_a_second_factor(dan), "dan")
    assert Membership.objects.filter(project=seed.project).count() == 4
    judge(ada, bob, carol, seed)
    talk(bob, carol, dan, seed)
    for name in ("bob", "carol", "dan"):
        remove(ada, seed, name)
    for page in (bob, carol, dan):
        locked_out(page, seed)
    the_audit_log_tells_it(ada, seed)


# Stations


def invited(owner: Any, seed: Seed, email: str, role: str) -> str:
    """The link, as the page shows it where there is no mail server."""
    owner.goto(f"/p/{seed.project.slug}/settings/")
    owner.get_by_label("Email").fill(email)
    owner.get_by_label("Role", exact=True).select_option(role)
    owner.get_by_role("button", name="Invite").click()
    expect(owner.get_by_text(f"Send this link to {email} yourself")).to_be_visible()
    return str(owner.locator("#invitation").inner_text()).strip()


def join_by_password(page: Any, link: str, name: str) -> None:
    page.goto(link)
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Create account and join").click()
    page.wait_for_url("**/p/**")


def join_by_provider(page: Any, link: str) -> None:
    page.goto(link)
    page.get_by_role("button", name="Continue with Example SSO").click()
    page.wait_for_url("**/p/**")


def add_a_second_factor(page: Any) -> str:
    """By the account page; the authenticator's secret."""
    page.goto("/account/second-factor/app/")
    if page.get_by_label("Password").count():
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Confirm").click()
    secret = str(page.locator("#authenticator_secret").input_value())
    page.locator("[name=code]").fill(code(secret))
    page.get_by_role("button", name="Activate").click()
    expect(page.get_by_role("heading", name="Recovery Codes")).to_be_visible()
    return secret


def code(secret: str, later: int = 0) -> str:
    return str(totp.format_hotp_value(totp.hotp_value(secret, int(time.time()) // 30 + later)))


def log_in_with_a_second_factor(page: Any, secret: str, name: str) -> None:
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/second-factor/")
    cache.clear()  # a code works once: as after 30 seconds
    page.locator("[name=code]").fill(code(secret))
    page.locator("[name=code]").press("Enter")
    page.wait_for_url("**/p/**")


def judge(owner: Any, bob: Any, carol: Any, seed: Seed) -> None:
    """The owner opens a review and asks both to judge; each follows the notification and judges a
    sample.
    """
    owner.goto(f"/p/{seed.project.slug}/reviews/verifiers/{seed.verifier.pk}/review/")
    owner.get_by_label("base").check()
    owner.get_by_role("button", name="Open the review").click()
    expect(owner.get_by_text("The review does not pass yet.")).to_be_visible()
    for name in ("bob", "carol"):
        owner.locator(".assignees summary").click()
        owner.locator(".assignees").get_by_role("button", name=name).click()
        expect(owner.locator(".assignees .badge", has_text=name)).to_be_visible()
    for page in (bob, carol):
        page.reload()
        expect(page.locator("#bell .badge")).to_contain_text("1")
        page.locator("#bell").click()
        page.get_by_role("link", name=re.compile("ada asks you to judge the reward review")).click()
        page.get_by_role("link", name=re.compile("^Judge")).click()
        page.locator("[data-case]").wait_for()
        page.get_by_role("button", name=re.compile("^Success")).click()
        expect(page.get_by_text("The verifier gave")).to_be_visible()
    assert {row.by.username for row in Judgement.objects.all()} == {"bob", "carol"}


def talk(bob: Any, carol: Any, dan: Any, seed: Seed) -> None:
    """Bob mentions Carol by the keyboard; she is notified, answers, edits; Bob is notified; Dan
    mentions the owner.
    """
    bob.goto(seed.run.get_absolute_url())
    field = bob.get_by_label("Write a comment")
    field.fill("Is this the retry, ")
    field.press("End")
    field.type("@ca")
    expect(bob.get_by_role("option", name="carol")).to_be_visible()
    field.press("Enter")
    expect(field).to_have_value("Is this the retry, @carol ")
    field.type("<b>or not</b>?")
    field.press("Control+Enter")
    expect(bob.locator(".comment .mention")).to_have_text("@carol")
    expect(bob.locator(".comment .said")).to_contain_text("<b>or not</b>?")
    carol.goto("/notifications/?show=unread")
    carol.get_by_role("link", name=re.compile("bob mentioned you in a comment")).click()
    carol.wait_for_url("**#comment-*")
    expect(carol.locator(".comment:target .said")).to_contain_text("Is this the retry")
    carol.get_by_label("Write a comment").fill("Yes.")
    carol.get_by_role("button", name="Comment", exact=True).click()
    expect(carol.locator(".comment")).to_have_count(2)
    carol.get_by_role("link", name="Edit").click()
    carol.locator(".comment textarea").fill("Yes, the second one.")
    carol.get_by_role("button", name="Save").click()
    expect(carol.locator(".comment .said").nth(1)).to_have_text("Yes, the second one.")
    bob.goto("/notifications/")
    expect(bob.get_by_role("link", name=re.compile("carol commented on"))).to_contain_text(
        "Yes, the second one."
    )
    dan.goto(seed.run.get_absolute_url())
    dan.get_by_label("Write a comment").fill("@ada please look.")
    dan.get_by_role("button", name="Comment", exact=True).click()
    expect(dan.locator(".comment")).to_have_count(3)
    dan.locator(".comment").nth(2).get_by_role("button", name="Delete").click()
    expect(dan.locator(".comment").nth(2)).to_contain_text("Deleted by its author.")


def remove(owner: Any, seed: Seed, name: str) -> None:
    owner.goto(f"/p/{seed.project.slug}/settings/")
    owner.get_by_role("row", name=re.compile(f"^{name}")).get_by_role("link", name="Remove").click()
    expect(owner.get_by_role("heading", level=1)).to_contain_text(f"Remove {name}")
    owner.get_by_role("button", name=f"Remove {name}").click()
    expect(owner.get_by_text(f"{name} is removed")).to_be_visible()


def locked_out(page: Any, seed: Seed) -> None:
    for path in (f"/p/{seed.project.slug}/", seed.run.get_absolute_url()):
        assert page.goto(path).status == 404
    page.goto("/notifications/")
    expect(page.locator(".notices")).to_contain_text("No notifications yet")


def the_audit_log_tells_it(owner: Any, seed: Seed) -> None:
    owner.goto("/notifications/")
    for said in ("bob joined", "carol joined", "dan joined", "dan mentioned you"):
        expect(owner.get_by_role("link", name=re.compile(said))).to_be_visible()
    assert not Notification.objects.filter(
        excerpt__contains="please look"
    ).exists()  # the comment was deleted
    owner.goto(f"/p/{seed.project.slug}/audit/")
    told = owner.get_by_role("main")
    for sentence in (
        "ada invited bob@example.org as reviewer",
        "bob accepted the invitation of bob@example.org from ada and joined as reviewer",
        "carol accepted the invitation of carol@example.org from ada and joined as reviewer",
        "dan added a second factor",
        "ada opened a reward review",
        "ada assigned a reward review to bob",
        "bob judged an output a success",
        "bob commented on a trajectory",
        "carol edited a comment on a trajectory",
        "dan deleted a comment on a trajectory",
        "ada removed carol from the project",
    ):
        expect(told).to_contain_text(sentence)
