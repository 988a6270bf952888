"""What a screen shows as it is used: themes, the keyboard, choices in forms, a phone's cards and
menu, a job that runs.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from apps.core.models import JobState
from apps.failures.models import Failure
from apps.registry.actions import register_prompt
from apps.training.actions import freeze_dataset, submit_training
from apps.training.models import Method
from tests.e2e.addresses import WHOLE_PROMPT, told, tried
from tests.e2e.seed import World, say


@pytest.mark.proof
def test_themes_have_their_own_colours_and_are_remembered(world: World, logged_in: Any) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    logged_in.goto(reverse("core:keys", args=[world.project.slug]))
    before = logged_in.evaluate(colour)
    logged_in.locator("#theme").click()
    after = logged_in.evaluate(colour)
    assert before != after
    logged_in.reload()
    assert logged_in.evaluate(colour) == after


def test_the_keyboard_has_help_and_search(world: World, logged_in: Any) -> None:
    logged_in.goto(reverse("trajectories:list", args=[world.project.slug]))
    logged_in.keyboard.press("?")
    expect(logged_in.get_by_role("dialog")).to_be_visible()
    logged_in.keyboard.press("Escape")
    expect(logged_in.get_by_role("dialog")).to_be_hidden()
    logged_in.keyboard.press("/")
    logged_in.keyboard.type("no such request anywhere")
    logged_in.keyboard.press("Enter")
    expect(logged_in.get_by_text("No matches")).to_be_visible()


@pytest.mark.proof
def test_forms_show_what_the_choices_need(world: World, logged_in: Any) -> None:
    """An address only of an agent that is called, a prompt only of a version that runs; sentences
    are not broken at links.
    """
    slug = world.project.slug
    logged_in.goto(reverse("registry:register", args=[slug]) + "?kind=agent")
    expect(logged_in.get_by_label("Address")).to_be_hidden()
    logged_in.get_by_label("How it is reached").select_option("http")
    expect(logged_in.get_by_label("Address")).to_be_visible()
    logged_in.goto(reverse("prompts:playground_new", args=[slug]))
    expect(logged_in.get_by_label("System prompt of version 1")).to_be_visible()
    expect(logged_in.get_by_label("System prompt of version 2")).to_be_hidden()
    logged_in.get_by_label("Version 2", exact=True).select_option(index=1)
    expect(logged_in.get_by_label("System prompt of version 2")).to_be_visible()
    logged_in.goto(reverse("environments:new", args=[slug]))
    expect(logged_in.get_by_label("Built-in environment")).to_be_hidden()
    logged_in.get_by_label("Kind").select_option("builtin")
    expect(logged_in.get_by_label("Built-in environment")).to_be_visible()
    logged_in.goto(reverse("evals:meaning", args=[slug, world.eval_set.pk]))
    logged_in.get_by_label("Model version").select_option("")
    expect(logged_in.get_by_label("Embedding model")).to_be_visible()
    logged_in.get_by_label("Model version").select_option(index=1)
    expect(logged_in.get_by_label("Embedding model")).to_be_hidden()
    logged_in.goto(reverse("training:search_new", args=[slug]))
    expect(logged_in.get_by_label("Model on that server")).to_be_visible()
    logged_in.goto(reverse("evals:new_run", args=[slug, world.eval_set.pk]))
    sentence = logged_in.locator("p", has_text="call your agent over HTTP (")
    assert sentence.evaluate("(p) => getComputedStyle(p).display") == "block"


@pytest.mark.proof
def test_a_phone_shows_values_beside_what_they_are_of(
    world: World, user: Any, logged_in: Any
) -> None:
    """Of a comparison the first evaluation, of a playground every answer, without scrolling to the
    side.
    """
    logged_in.set_viewport_size({"width": 390, "height": 844})
    prompt = register_prompt(
        project=world.project, name="brief", on=world.base, prompt=WHOLE_PROMPT, by=user
    )
    runs = f"?run={world.baseline.pk}&run={world.sft.pk}&run={world.grpo.pk}"
    compared = reverse("evals:compare", args=[world.project.slug]) + runs
    answers = reverse(
        "prompts:playground", args=[world.project.slug, tried(world, prompt, user).pk]
    )
    for address, cells in (
        (compared, "main section:first-of-type > .scroll > table td:nth-child(2)"),
        (answers, "table.sides td"),
    ):
        logged_in.goto(address)
        found = logged_in.locator(cells).evaluate_all(
            "(all) => all.map((one) => one.getBoundingClientRect().right)"
        )
        assert found and max(found) <= 390, address


def test_a_phone_shows_lists_as_cards(world: World, user: Any, logged_in: Any) -> None:
    """Nothing of a row is beside the screen, and a number says what it is of."""
    logged_in.set_viewport_size({"width": 390, "height": 844})
    told(world.project, user)
    for name in (
        "trajectories:list",
        "failures:list",
        "evals:list",
        "promotion:models",
        "environments:list",
        "webhooks:list",
    ):
        logged_in.goto(reverse(name, args=[world.project.slug]))
        cells = logged_in.locator("table.stacked td")
        found = cells.evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().right)")
        assert found and max(found) <= 390, name
    logged_in.goto(reverse("promotion:models", args=[world.project.slug]))
    number = logged_in.locator("td[data-of=Success]").first
    assert number.evaluate("(at) => getComputedStyle(at, '::before').content").startswith(
        '"Success'
    )


INSIDE = (
    "(at) => { const box = at.getBoundingClientRect(); return box.width > 0 && box.left >= 0 &&"
    " box.right <= innerWidth; }"
)


@pytest.mark.proof
def test_a_phone_shows_where_one_is_and_what_a_receiver_answered(
    world: World, user: Any, logged_in: Any
) -> None:
    """The menu opens from a button and marks the place; a long answer of a webhook's receiver is
    read without scrolling to the side.
    """
    logged_in.set_viewport_size({"width": 390, "height": 844})
    delivery = told(world.project, user)["webhooks:delivery"]
    for name, args in (
        ("promotion:models", ()),
        ("core:keys", ()),
        ("webhooks:delivery", delivery),
    ):
        logged_in.goto(reverse(name, args=[world.project.slug, *args]))
        here, menu = (
            logged_in.locator(".side [aria-current]"),
            logged_in.get_by_role("button", name="Menu", exact=True),
        )
        expect(here).to_be_hidden()
        menu.click()
        assert here.evaluate(INSIDE), name
        logged_in.keyboard.press("Escape")
        expect(here).to_be_hidden()
        expect(menu).to_have_attribute("aria-expanded", "false")
    assert all(pre.evaluate(INSIDE) for pre in logged_in.locator("main pre").all())
    expect(logged_in.get_by_text("<script>alert(1)</script>")).to_be_visible()


@pytest.mark.proof
def test_buttons_that_choose_files_have_our_colours(world: World, logged_in: Any) -> None:
    logged_in.goto(reverse("registry:register", args=[world.project.slug]) + "?kind=adapter")
    for _ in range(2):
        logged_in.locator("#theme").click()
        chosen = logged_in.locator("[type=file]").first.evaluate(
            "(at) => [getComputedStyle(at, '::file-selector-button'),"
            " getComputedStyle(document.body)].map((one) => one.color)"
        )
        assert chosen[0] == chosen[1]


PRESS_EARLY = """new MutationObserver((_, watch) => {
  if (!document.querySelector(".side")) return;
  watch.disconnect();
  for (const key of "tc") document.documentElement.dispatchEvent(new KeyboardEvent("keydown", { \
key, bubbles: true }));
}).observe(document, { childList: true, subtree: true });"""


@pytest.mark.proof
def test_keys_pressed_while_a_page_loads_are_heard_but_decide_nothing(
    world: World, logged_in: Any
) -> None:
    waiting = Failure.objects.filter(project=world.project, state="open").count()
    logged_in.add_init_script(PRESS_EARLY)
    logged_in.goto(reverse("failures:list", args=[world.project.slug]))
    expect(
        logged_in.get_by_text(f"{waiting} left")
    ).to_be_visible()  # “t” led here; “c” confirmed nothing
    logged_in.wait_for_load_state("networkidle")  # what it had asked for would have been answered
    logged_in.keyboard.press("j")
    expect(logged_in.get_by_text(f"{waiting} left")).to_be_visible()
    assert Failure.objects.filter(project=world.project, state="open").count() == waiting


@pytest.mark.proof
def test_a_running_job_is_followed_without_reloading(
    world: World, user: Any, logged_in: Any
) -> None:
    """Progress and curves come by themselves; the page says so when the run has ended."""
    run = submit_training(
        project=world.project,
        method=Method.SFT,
        parent=world.base,
        environment=world.environment,
        dataset=freeze_dataset(eval_set=world.eval_set, by=user),
        config={"steps": 4, "learning_rate": 1e-3, "batch_size": 1},
        by=user,
        name="Live run",
    )
    assert run.claim("test")
    logged_in.goto(reverse("training:detail", args=[world.project.slug, run.pk]))
    expect(logged_in.get_by_text("No steps yet")).to_be_visible()
    say(run, [{"type": "metric", "step": 1, "values": {"train/loss": 1.5}}])
    expect(logged_in.locator(".figure .gtitle", has_text="Loss")).to_be_visible()
    expect(logged_in.get_by_text("4 of 4")).to_be_visible()
    assert run.finish(
        JobState.FAILED, error="The disk is full: the checkpoint of step 2 was not written."
    )
    expect(logged_in.get_by_text("The disk is full")).to_be_visible()
    expect(logged_in.locator("#status")).not_to_have_attribute("hx-get", re.compile(".*"))


def test_an_unknown_page_says_so(world: World, logged_in: Any) -> None:
    answer = logged_in.request.get(f"/p/{world.project.slug}/nothing/")
    assert answer.status == 404 and "Not found" in answer.text() and "Back to home" in answer.text()
