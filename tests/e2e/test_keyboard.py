"""The palette, the help, focus and dialogs, by the keyboard and by a finger."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from apps.failures.models import ReplyForm, Rubric
from tests.e2e.addresses import answered_signal
from tests.e2e.conftest import log_in
from tests.e2e.seed import World
from tests.factories import make_member, make_policy_rule

FOCUSED = "document.activeElement"


def palette(page: Any) -> Any:
    page.keyboard.press("Control+k")
    return page.get_by_role("dialog", name="Search and commands")


@pytest.mark.proof
def test_the_palette_goes_to_a_run_and_an_action_and_remembers(
    world: World, logged_in: Any
) -> None:
    slug = world.project.slug
    logged_in.goto(reverse("evals:list", args=[slug]))
    logged_in.get_by_label("Name").focus()  # also from a field
    box = palette(logged_in)
    expect(box.get_by_role("option", name="Overview")).to_be_visible()
    logged_in.keyboard.type("grpo from")
    expect(box.get_by_role("option", name=re.compile("GRPO from"))).to_have_attribute(
        "aria-selected", "true"
    )
    logged_in.keyboard.press("Enter")
    logged_in.wait_for_url(f"**{reverse('training:detail', args=[slug, world.training.pk])}")
    palette(logged_in)
    expect(
        box.get_by_role("group", name="Recently visited").get_by_role("option").first
    ).to_have_text("Eval sets")
    logged_in.keyboard.type("start a tra")
    expect(box.get_by_role("option")).to_have_count(1)
    logged_in.keyboard.press("Enter")
    logged_in.wait_for_url(f"**{reverse('training:new', args=[slug])}")


@pytest.mark.proof
def test_arrows_choose_and_closing_gives_the_focus_back(world: World, logged_in: Any) -> None:
    logged_in.goto(reverse("training:list", args=[world.project.slug]))
    button = logged_in.get_by_role("button", name="Search")
    button.focus()
    logged_in.keyboard.press("Enter")
    box = logged_in.get_by_role("dialog", name="Search and commands")
    field, options = box.get_by_role("combobox"), box.get_by_role("option")
    expect(options.first).to_have_attribute("aria-selected", "true")
    logged_in.keyboard.press("ArrowUp")
    expect(options.last).to_have_attribute("aria-selected", "true")
    logged_in.keyboard.press("ArrowDown")
    logged_in.keyboard.press("ArrowDown")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    assert field.get_attribute("aria-activedescendant") == options.nth(1).get_attribute("id")
    logged_in.keyboard.type("no such thing")
    expect(box.get_by_text("Nothing found")).to_be_visible()
    logged_in.keyboard.press("Escape")
    logged_in.keyboard.press("Escape")
    expect(box).to_be_hidden()
    expect(button).to_be_focused()


def test_an_older_answer_does_not_take_the_place_of_a_newer_one(
    world: World, logged_in: Any
) -> None:
    held: list[Any] = []
    logged_in.route("**/search/?q=triage", lambda route: held.append(route))
    logged_in.goto(reverse("training:list", args=[world.project.slug]))
    box = palette(logged_in)
    expect(box.get_by_role("option").first).to_be_visible()
    with logged_in.expect_request("**/search/?q=triage"):
        logged_in.keyboard.type("triage")
    logged_in.get_by_role("combobox").fill("webhooks")
    expect(box.get_by_role("option")).to_have_text([re.compile("Webhooks")])
    for route in held:
        route.abort()
    expect(box.get_by_role("option")).to_have_text([re.compile("Webhooks")])


@pytest.mark.proof
def test_a_phone_has_a_button_for_it(world: World, logged_in: Any) -> None:
    logged_in.set_viewport_size({"width": 390, "height": 844})
    logged_in.goto(reverse("automation:list", args=[world.project.slug]))
    logged_in.get_by_role("button", name="Search").click()
    expect(logged_in.get_by_role("combobox")).to_be_focused()


def test_logging_out_forgets_what_was_visited(world: World, logged_in: Any) -> None:
    logged_in.goto(reverse("training:list", args=[world.project.slug]))
    visited = "Object.keys(localStorage).filter((key) => key.startsWith('recent:')).length"
    assert logged_in.evaluate(visited) == 1
    logged_in.get_by_role("button", name="Log out").click()
    logged_in.wait_for_url("**/login/**")
    assert logged_in.evaluate(visited) == 0


def test_help_lists_the_keys_of_this_page_and_is_modal(world: World, logged_in: Any) -> None:
    logged_in.goto(reverse("failures:triage", args=[world.project.slug]))
    help_button = logged_in.get_by_role("button", name="Keyboard help")
    help_button.click()
    box = logged_in.get_by_role("dialog", name="Keyboard")
    expect(box.get_by_text("Confirm", exact=True)).to_be_visible()
    for _ in range(6):
        logged_in.keyboard.press("Tab")
        assert logged_in.evaluate(f"!{FOCUSED}.closest('main, .side')"), (
            "the page behind is not reached"
        )
    left = logged_in.locator("#left").text_content()
    logged_in.keyboard.press("c")  # decides nothing behind a dialog
    logged_in.keyboard.press("Escape")
    expect(box).to_be_hidden()
    expect(help_button).to_be_focused()
    assert logged_in.locator("#left").text_content() == left
    logged_in.goto(reverse("training:list", args=[world.project.slug]))
    logged_in.keyboard.press("?")
    expect(box.get_by_text("next, previous row")).to_be_visible()
    expect(box.get_by_text("Confirm", exact=True)).to_have_count(0)


@pytest.mark.proof
def test_focus_follows_the_row(world: World, logged_in: Any) -> None:
    logged_in.goto(reverse("training:list", args=[world.project.slug]))
    rows = logged_in.locator("tr[data-row]")
    logged_in.keyboard.press("j")
    expect(rows.nth(0).get_by_role("link").first).to_be_focused()
    logged_in.keyboard.press("j")
    second = rows.nth(1).get_by_role("link").first
    expect(second).to_be_focused()
    address = second.get_attribute("href")
    logged_in.keyboard.press("Enter")
    logged_in.wait_for_url(f"**{address}")


@pytest.mark.proof
def test_a_policy_rule_is_edited_cancelled_and_undone_without_losing_the_row(
    world: World, logged_in: Any
) -> None:
    make_policy_rule(world.project.trajectories.earliest("pk"), "Open tickets cannot be closed.")
    rule = make_policy_rule(
        world.project.trajectories.latest("pk"), "Closed tickets cannot be moved."
    )
    logged_in.goto(reverse("failures:policy", args=[world.project.slug]))
    row, form = logged_in.locator(f"#rule-{rule.pk}"), logged_in.locator(".rule-form")
    while "at" not in (row.get_attribute("class") or "").split():
        logged_in.keyboard.press("j")
    logged_in.keyboard.press("e")
    expect(form.get_by_label("Rule")).to_be_focused()
    form.get_by_role("link", name="Cancel").click()
    expect(form).to_have_count(0)
    expect(row.get_by_role("link", name="Edit")).to_be_focused()
    logged_in.keyboard.press("c")
    expect(row.get_by_text("confirmed", exact=True)).to_be_visible()
    logged_in.keyboard.press("u")
    expect(logged_in.get_by_text("Your last decision was undone.")).to_be_visible()
    expect(row).to_have_class("at")
    logged_in.keyboard.press("n")
    expect(form.get_by_label("Rule")).to_be_focused()
    form.get_by_label("Rule").fill("Closed tickets cannot be deleted.")
    expect(form.get_by_label("Tools", exact=True)).to_be_hidden()
    form.get_by_label("Check").select_option("never")
    expect(form.get_by_label("Other tools")).to_be_hidden()
    form.get_by_role("button", name="Save and confirm").click()
    expect(logged_in.get_by_text("“check.when.tools” is empty.")).to_be_visible()
    expect(logged_in.get_by_label("Tools", exact=True)).to_be_focused()


def test_a_decision_moves_on_to_the_next_row(world: World, logged_in: Any) -> None:
    run = world.project.trajectories.latest("pk")
    for at in range(3):
        ReplyForm.objects.create(
            project=world.project, tool="t", digest=f"{at}", kind="text", structure=f"Text {at}"
        )
        make_policy_rule(run, f"Rule {at} cannot be broken.")
    for page, key in ("replies", "d"), ("policy", "c"):
        logged_in.goto(reverse(f"failures:{page}", args=[world.project.slug]))
        rows = logged_in.locator("tr[data-row]")
        expect(rows.nth(0)).to_have_class("at")  # what a key would decide on
        for at in (1, 2):
            logged_in.keyboard.press(key)
            expect(rows.nth(at)).to_have_class("at")
        decided = "dismissed" if key == "d" else "confirmed"
        expect(logged_in.locator("tr[data-row] .badge", has_text=decided)).to_have_count(2)


@pytest.mark.proof
def test_a_page_that_follows_a_worker_keeps_the_row(
    world: World, logged_in: Any, user: Any
) -> None:
    signal = answered_signal(world.project.trajectories.latest("pk"), user)
    Rubric.objects.create(
        project=world.project, version=99, text="a", base_url="https://j.example/v1", is_on=True
    )
    logged_in.goto(signal.get_absolute_url())
    rows = logged_in.locator("tr[data-row]")
    logged_in.keyboard.press("j")
    chosen = logged_in.locator("tr[data-row].at").get_attribute("id")
    for _ in range(2):
        with logged_in.expect_response(
            lambda answer: answer.url.endswith(signal.get_absolute_url())
        ):
            pass  # the page asks again by itself
    expect(logged_in.locator(f"#{chosen}")).to_have_class("at")
    expect(rows).not_to_have_count(0)


@pytest.mark.proof
def test_single_letters_can_be_switched_off(world: World, logged_in: Any) -> None:
    logged_in.goto(reverse("account"))
    logged_in.get_by_label("Single-letter shortcuts").uncheck()
    logged_in.goto(reverse("training:list", args=[world.project.slug]))
    for key in ("j", "g", "f"):
        logged_in.keyboard.press(key)
    expect(logged_in.locator("tr.at")).to_have_count(0)
    assert logged_in.url.endswith(reverse("training:list", args=[world.project.slug]))
    expect(palette(logged_in)).to_be_visible()
    logged_in.keyboard.press("Escape")
    logged_in.get_by_role("button", name="Keyboard help").click()
    expect(logged_in.get_by_text("Single-letter keys are switched off")).to_be_visible()


@pytest.mark.parametrize("role", ["viewer"])
def test_a_viewer_finds_no_action(world: World, page: Any, role: str, user: Any) -> None:
    member = make_member(world.project, role)
    log_in(page, member.username)
    page.goto(reverse("training:list", args=[world.project.slug]))
    box = palette(page)
    expect(box.get_by_role("option", name="Overview")).to_be_visible()
    expect(box.get_by_role("group", name="Actions").get_by_role("option")).to_have_count(0)
