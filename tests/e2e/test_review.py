"""A review of 60 by two people in two browsers, by the keyboard; then training opens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from apps.core.models import Role
from apps.reviews.models import Judgement, ReviewItem, RewardReview
from apps.reviews.policy import set_policy
from tests.e2e.conftest import PASSWORD, PATIENCE_MS
from tests.factories import make_member, make_project
from tests.reviews.made import Made, pass_probes

SIZE = 60


@pytest.fixture
def made(user: Any, data_dir: Path) -> Made:
    """Its admin is `user`, "ada"; each sample must be judged by two people."""
    found = Made(data_dir, make_project(user))
    set_policy(project=found.project, by=user, reason="test", reviewers_per_sample=2)
    pass_probes(found.environment, eval_set=found.eval_set)
    return found


@pytest.fixture
def pages(browser: Any, live_server: Any, made: Made) -> Iterator[tuple[Any, Any]]:
    """Two browsers: a member, and the admin."""
    member = make_member(made.project, Role.MEMBER)
    member.set_password(PASSWORD)
    member.save()
    contexts, wrong = [], []
    for name in (member.username, "ada"):
        context = browser.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 800})
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("response", lambda answer: wrong.append(answer.url) if answer.status >= 500 else None)
        page.goto("/login/")
        page.get_by_label("User name").fill(name)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url("**/p/**")
        contexts.append(context)
    yield tuple(context.pages[0] for context in contexts)
    for context in contexts:
        context.close()
    assert not wrong, wrong


def shown(page: Any) -> int:
    return int(page.locator("[data-case]").get_attribute("data-case"))


def left(page: Any, n: int) -> None:
    expect(page.locator("#left")).to_have_text(f"{n} left")


def judge(page: Any, success: bool, agree: bool = True) -> None:
    """One sample by keys: the word, what the page shows then, the answer."""
    assert "secretpart" not in page.content() and "The verifier gave" not in page.content()
    page.keyboard.press("y" if success else "n")
    expect(page.get_by_text("The verifier gave")).to_be_visible()
    if agree:
        page.keyboard.press("a")
    else:
        page.keyboard.press("d")
        page.keyboard.type("The id is of another ticket")
        page.keyboard.press("Enter")


def review_of(page: Any, made: Made) -> RewardReview:
    """Opened from the evaluation's page."""
    page.goto(reverse("evals:run", args=[made.project.slug, made.run.pk]))
    page.get_by_role("link", name="Review its scores").click()
    expect(page.get_by_label("base")).to_be_checked()
    page.get_by_role("button", name="Open the review").click()
    expect(page.get_by_text("The review does not pass yet.")).to_be_visible()
    review = RewardReview.objects.get()
    assert review.items.count() == SIZE
    return review


def test_two_people_review_sixty_and_training_opens(made: Made, pages: tuple[Any, Any]) -> None:
    one, two = pages
    review = review_of(one, made)
    two.goto(reverse("training:new", args=[made.project.slug]))
    expect(two.locator(".note.error")).to_contain_text("0 of at least 50 samples are judged")
    one.keyboard.press("t")  # both at once: neither waits for the other
    two.goto(reverse("reviews:queue", args=[made.project.slug, review.pk]))
    left(one, SIZE)
    left(two, SIZE)
    assert shown(one) != shown(two)
    verifier = dict(review.items.values_list("pk", "success"))
    differing = next(pk for pk, success in verifier.items() if not success and pk not in (shown(one), shown(two)))
    for number in range(SIZE, 0, -1):
        for page in (one, two):
            if number < SIZE:
                left(page, number)
            case = shown(page)
            wrong = page is two and case == differing
            judge(page, verifier[case] != wrong, agree=not wrong)
            expect(page.locator(f'[data-case="{case}"]')).to_have_count(0)
        if number == SIZE - 1:
            undo(one)
    for page in (one, two):
        expect(page.get_by_text("You have judged everything assigned to you.")).to_be_visible()
    assert Judgement.objects.filter(item__review=review).exclude(agrees=None).count() == 2 * SIZE
    assert Judgement.objects.get(agrees=False).reason == "The id is of another ticket"
    adjudicate(one, two, review, differing)
    two.goto(reverse("training:new", args=[made.project.slug]))
    expect(two.locator(".note.success")).to_contain_text("Passed its review: κ 1.00 on 60 samples.")
    start_training(two, made)


def undo(page: Any) -> None:
    """The answer is taken back and given again; the word, given blind, stands."""
    page.keyboard.press("u")
    expect(page.get_by_text("Is the score right?")).to_be_visible()
    expect(page.get_by_text("Your verdict is locked")).to_be_visible()
    case = shown(page)
    page.keyboard.press("a")
    expect(page.locator(f'[data-case="{case}"]')).to_have_count(0)


def adjudicate(one: Any, two: Any, review: RewardReview, differing: int) -> None:
    """Who has judged it themselves may not; an admin may."""
    address = reverse("reviews:adjudicate", args=[review.project.slug, review.pk])
    one.goto(address)
    expect(one.get_by_text("Someone else, or an admin, must rule on it.")).to_be_visible()
    two.goto(reverse("reviews:detail", args=[review.project.slug, review.pk]))
    expect(two.get_by_text("1 sample waits for a ruling")).to_be_visible()
    two.keyboard.press("c")
    two.wait_for_url(f"**{address}")
    two.keyboard.press("w")
    two.keyboard.type("Nothing was closed")
    two.keyboard.press("Escape")
    two.keyboard.press("n")
    expect(two.get_by_text("is a failure.")).to_be_visible()
    assert ReviewItem.objects.get(pk=differing).ruling is False


def start_training(page: Any, made: Made) -> None:
    page.get_by_label("Method").select_option("sft")
    page.get_by_role("button", name="Start training").click()
    page.wait_for_url("**/training/*-*/")
