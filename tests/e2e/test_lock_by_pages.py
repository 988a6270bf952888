"""By pages alone, from a verifier in the editor to a queued run: three people in three browsers,
jobs as a worker runs them.

Training is tried after each station, and refused for exactly what is still missing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse
from playwright.sync_api import expect

from apps.core.models import JobState, Project, Role
from apps.environments.models import Verifier
from apps.evals.models import EvalSet
from apps.reviews import actions
from apps.reviews.models import Judgement, ProbeRun, Rescore, ReviewItem, RewardReview
from apps.reviews.pages.judging import OTHERS_HAVE_IT
from apps.training.models import TrainingRun
from tests.e2e.conftest import PATIENCE_MS, log_in, opened
from tests.e2e.seed import evaluate
from tests.e2e.test_screens import PRESS_EARLY
from tests.e2e.workers import worker
from tests.factories import make_base, make_environment, make_eval_set, make_member, make_project

SIZE = 50
# of these each of the first, and what is left at the end; what lies between is more of the same,
# and judged without Chromium
IN_BROWSER = 2
TYPE = "(text) => document.querySelector('.CodeMirror').CodeMirror.setValue(text)"


@dataclass
class Seed:
    """What there is before: a verifier, and an evaluation that it scored."""

    project: Project
    verifier: Verifier
    eval_set: EvalSet


@pytest.fixture
def seed(user: Any, data_dir: Path) -> Seed:
    project = make_project(user)
    environment, eval_set = make_environment(project), make_eval_set(project, train=4, holdout=34)
    evaluate(eval_set, make_base(project, data_dir), environment, 0.45, random.Random(7), user)
    return Seed(project, environment.verifier, eval_set)


@pytest.fixture
def pages(browser: Any, live_server: Any, seed: Seed) -> Iterator[tuple[Any, Any, Any]]:
    """Three browsers: the admin, who is “ada”, and two members."""
    members = [make_member(seed.project, Role.ENGINEER) for _ in range(2)]
    contexts, wrong = [], []
    for name in ("ada", *(member.username for member in members)):
        context = browser.new_context(
            base_url=live_server.url, viewport={"width": 1280, "height": 800}
        )
        context.set_default_timeout(PATIENCE_MS)
        page = opened(context)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "response", lambda answer: wrong.append(answer.url) if answer.status >= 500 else None
        )
        log_in(page, name)
        page.goto("/")
        contexts.append(context)
    yield tuple(context.pages[1] for context in contexts)
    for context in contexts:
        context.close()
    assert not wrong, wrong


@pytest.mark.proof
def test_from_a_verifier_in_the_editor_to_a_queued_run(
    seed: Seed, pages: tuple[Any, Any, Any]
) -> None:
    ada, one, two = pages
    write_a_verifier(ada, seed)
    refused(one, "Its scores have not been reviewed yet.")
    refused(one, "The hack probes have not been run on this verifier.")
    probe(ada, seed)
    refused(one, "Its scores have not been reviewed yet. Open a review")
    score_and_open_a_review(ada)
    refused(one, "0 of at least 50 samples are judged")
    review = RewardReview.objects.get()
    early_keys_judge_nothing(one, review)
    differing = judge_all(one, two, review)
    refused(one, "1 sample waits for a ruling: the reviewers differ.")
    adjudicate(ada, one, review, differing)
    refused(ada, "Whoever wrote the verifier cannot start its training.")
    queue_a_run(one, seed)


# Stations


def write_a_verifier(page: Any, seed: Seed) -> None:
    page.get_by_role("link", name="Reward review").first.click()
    page.get_by_role("link", name=str(seed.verifier), exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(
        str(seed.verifier)
    )  # then its keys are there
    page.keyboard.press("e")
    expect(page.locator("#check")).to_contain_text("valid")
    milder = seed.verifier.spec | {"weights": seed.verifier.spec["weights"] | {"invalid": -0.9}}
    page.evaluate(TYPE, json.dumps(milder))
    expect(page.locator("#check")).to_contain_text("valid")
    page.get_by_label("What changed, and why").fill("What is no JSON costs less")
    page.get_by_role("button", name="Save as a new version").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("tool-call@2")
    expect(page.get_by_role("heading", level=1)).to_contain_text("locked")


def probe(page: Any, seed: Seed) -> None:
    """That nothing was found means something only where the new verifier was attacked, on all tasks
    there are.
    """
    with worker(ProbeRun):
        page.get_by_role("button", name="Run the probes").click()
        page.wait_for_url("**/probes/**")
        expect(page.get_by_role("heading", level=1)).to_contain_text("passed", timeout=300_000)
    expect(page.locator(".tile").first).to_contain_text("mean reward of correct answers")
    attacked(ProbeRun.objects.get(), seed)
    page.get_by_role("link", name="tool-call@2").click()
    expect(page.get_by_role("link", name="All passed")).to_be_visible()


def attacked(run: ProbeRun, seed: Seed) -> None:
    assert (run.state, run.failed, str(run.verifier)) == (JobState.SUCCEEDED, 0, "tool-call@2")
    assert len(run.spec["tasks"]) == seed.eval_set.tasks.trainable().count() == 4
    right = run.result["golds"]
    assert right["n"] >= 4 and right["low"] == right["high"] == 1.0
    tried = {
        probe["name"]: probe["n"] for probe in run.result["probes"] if probe["status"] == "passed"
    }
    assert {
        "empty",
        "unsafe",
        "other_gold",
        "injection",
        "crafted_masks",
        "search",
    } <= tried.keys(), tried
    assert (
        min(tried[name] for name in ("empty", "unsafe", "other_gold", "injection", "search")) >= 4
    )
    assert run.result["attacks"]["n"] > 500 and run.result["attacks"]["high"] < 1.0


def score_and_open_a_review(page: Any) -> None:
    """No evaluation has these scores yet: the stored outputs are scored again, and sampled."""
    page.get_by_role("link", name="Open a review").click()
    expect(page.get_by_text("Nothing to review yet")).to_be_visible()
    with worker(Rescore):
        page.get_by_role("button", name="Score its samples with tool-call@2").click()
        expect(
            page.get_by_role("heading", name="Evaluations scored by this version")
        ).to_be_visible(timeout=300_000)
    page.get_by_label("base").check()
    page.get_by_label("Samples").fill(str(SIZE))
    page.get_by_role("button", name="Open the review").click()
    expect(page.get_by_text("The review does not pass yet.")).to_be_visible()
    assert RewardReview.objects.get().items.count() == SIZE


def judge_all(one: Any, two: Any, review: RewardReview) -> int:
    """Blind, by the keyboard, both at once: the first and the last; their forms are sent for those
    between. They differ on one sample, which is returned."""
    for page in (one, two):
        open_the_review(page)
        page.keyboard.press("t")
        left(page, SIZE)
    assert shown(one) != shown(two)
    verifier = dict(review.items.values_list("pk", "success"))
    differing = next(
        pk for pk, success in verifier.items() if not success and pk not in (shown(one), shown(two))
    )
    both = ((one, None), (two, differing))
    for done in range(IN_BROWSER):
        for page, wrong_on in both:
            left(page, SIZE - done)
            judge_next(page, verifier, wrong_on)
        if done == 1:
            undo(one)
    kept = {differing, shown(one), shown(two)}
    waiting = {page: judge_the_others(page, verifier, kept, wrong_on) for page, wrong_on in both}
    for page in (one, two):
        open_the_review(page)
        page.keyboard.press("t")
    while any(waiting.values()):
        for (page, wrong_on), other in zip(both, (two, one), strict=True):
            if not waiting[page]:
                continue
            left(page, waiting[page])
            if page.get_by_text(OTHERS_HAVE_IT).count() and waiting[other]:
                continue  # the other goes first; what they held comes by itself then
            judge_next(page, verifier, wrong_on)
            waiting[page] -= 1
    for page in (one, two):
        expect(page.get_by_text("You have judged everything assigned to you.")).to_be_visible()
    assert Judgement.objects.filter(item__review=review).exclude(agrees=None).count() == 2 * SIZE
    assert Judgement.objects.get(agrees=False).reason == "The id is of another ticket"
    return differing


def judge_next(page: Any, verifier: dict[int, bool], wrong_on: int | None) -> None:
    case = shown(page)
    judge(page, verifier[case] != (case == wrong_on), agree=case != wrong_on)
    expect(page.locator(f'[data-case="{case}"]')).to_have_count(0)


def judge_the_others(
    page: Any, verifier: dict[int, bool], kept: set[int], wrong_on: int | None
) -> int:
    """As `judge_next`, without Chromium, by the person whose page this is, for all that they have
    not judged but what is kept; how many are left then.
    """
    person = Client()
    person.cookies.load({cookie["name"]: cookie["value"] for cookie in page.context.cookies()})
    by = get_user_model().objects.get(pk=person.session["_auth_user_id"])
    judged = Judgement.objects.filter(by=by).values_list("item", flat=True)
    waiting = verifier.keys() - set(judged)
    for case in waiting - kept:
        assert case != wrong_on
        item = ReviewItem.objects.get(pk=case)
        actions.judge(item=item, success=verifier[case], by=by)
        actions.answer(item=item, agrees=True, by=by)
    return len(waiting & kept)


def judge(page: Any, success: bool, agree: bool = True) -> None:
    """One sample by keys: the word, what the page shows then, the answer. Before it nothing of the
    score is in the page.
    """
    assert not [
        word for word in ("The verifier gave", "Components", "args_score") if word in page.content()
    ]
    page.keyboard.press("y" if success else "n")
    expect(page.get_by_text("The verifier gave")).to_be_visible()
    if agree:
        page.keyboard.press("a")
    else:
        page.keyboard.press("d")
        page.keyboard.type("The id is of another ticket")
        page.keyboard.press("Enter")


def adjudicate(admin: Any, reviewer: Any, review: RewardReview, differing: int) -> None:
    """Who has judged it themselves may not; an owner may. Then the review passes."""
    for page in (reviewer, admin):
        open_the_review(page)
        expect(page.get_by_text("1 sample waits for a ruling")).to_be_visible()
        page.keyboard.press("c")
        page.wait_for_url("**/adjudicate/")
    expect(reviewer.get_by_text("Someone else, or an owner, must rule on it.")).to_be_visible()
    admin.keyboard.press("w")
    admin.keyboard.type("Nothing was closed")
    admin.keyboard.press("Escape")
    admin.keyboard.press("n")
    expect(admin.get_by_text("is a failure.")).to_be_visible()
    assert ReviewItem.objects.get(pk=differing).ruling is False
    admin.get_by_role("link", name="Review of tool-call@2").click()
    expect(admin.get_by_text("The review passes.")).to_be_visible()
    expect(admin.locator(".note .badge")).to_have_text("unlocked")


def queue_a_run(page: Any, seed: Seed) -> None:
    page.get_by_role("link", name="Training").first.click()
    page.get_by_role("link", name="New run").first.click()
    by_reward(page)
    expect(page.locator(".note.success", has_text="workplace@2")).to_contain_text(
        "Passed its review: κ 1.00 on 50 samples."
    )
    page.get_by_role("button", name="Start training").click()
    page.wait_for_url("**/training/*-*/")
    run = TrainingRun.objects.get()
    assert run.state == JobState.QUEUED and str(run.environment) == "workplace@2"
    assert run.environment.verifier.version == 2 and run.dataset.eval_set == seed.eval_set
    expect(page.locator("#status")).to_contain_text("queued")


# What they share


def by_reward(page: Any) -> None:
    """In the form of a run: it learns from the reward, in the newest environment."""
    page.get_by_label("Method").select_option("grpo")
    page.get_by_label("Environment").select_option(label="workplace@2")


def refused(page: Any, why: str) -> None:
    """A run cannot be started, and the page says for which reason."""
    page.goto(reverse("training:new", args=[Project.objects.get().slug]))
    by_reward(page)
    expect(page.locator(".note.error", has_text="Locked.")).to_contain_text(why)
    expect(page.get_by_role("button", name="Start training")).to_be_disabled()
    assert not TrainingRun.objects.exists()


def open_the_review(page: Any) -> None:
    page.get_by_role("link", name="Reward review").first.click()
    page.get_by_role("link", name="Review of tool-call@2").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Review of tool-call@2")


def shown(page: Any) -> int:
    return int(page.locator("[data-case]").get_attribute("data-case"))


def left(page: Any, n: int) -> None:
    expect(page.locator("#left")).to_have_text(f"{n} left")


def early_keys_judge_nothing(page: Any, review: RewardReview) -> None:
    """Nobody judges what they have not seen: “y” while the page is read does nothing, and the same
    key afterwards would.
    """
    open_the_review(page)
    page.keyboard.press("t")
    left(page, SIZE)
    early = page.context.new_page()
    early.add_init_script(PRESS_EARLY.replace('"tc"', '"y"'))
    early.goto(page.url)
    left(early, SIZE)
    early.wait_for_load_state("networkidle")  # what the key had asked for would have been answered
    expect(early.get_by_text("Did the output do the task?")).to_be_visible()
    assert not Judgement.objects.filter(item__review=review).exists()
    early.close()


def undo(page: Any) -> None:
    """The answer is taken back and given again; the word, given blind, stands."""
    page.keyboard.press("u")
    expect(page.get_by_text("Is the score right?")).to_be_visible()
    expect(page.get_by_text("Your verdict is locked")).to_be_visible()
    case = shown(page)
    page.keyboard.press("a")
    expect(page.locator(f'[data-case="{case}"]')).to_have_count(0)
