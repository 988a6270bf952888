"""Every page, full and empty, in both themes, on a phone and on a screen: no error, and it stands
every check.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from apps.core.actions import create_project
from apps.core.models import JobState
from apps.failures.models import Failure
from apps.registry.actions import register_prompt
from apps.training.actions import freeze_dataset, submit_training
from apps.training.models import Method
from tests.amounts import amount
from tests.e2e.addresses import FORMS, NO_PAGES, STATIONS, WHOLE_PROMPT, pages_of, told, tried
from tests.e2e.checks import is_stuck, links, unreadable, wrong_with
from tests.e2e.conftest import PASSWORD, log_in, log_in_by_form
from tests.e2e.seed import World, say
from tests.test_access import OWN, PAGES, WRITES

BY_MAIL_OR_JOB = {  # reached from a button, a mail or the address of a job that has ended
    "core:remove_member",
    "evals:task_from_failure",
    "evals:import_status",
    "trajectories:first",
    "trajectories:compare",
    # from a run that learned from examples; the world's learned from tasks
    "training:run_examples",
}


@pytest.mark.parametrize(
    ("body", "stuck"),
    [
        ('<button class="primary" tabindex="-1">Go</button>', True),
        ('<a href="/x">One</a><button class="primary">Go</button>', False),
        (
            (
                '<div onkeydown="event.preventDefault()"><input></div><button'
                ' class="primary">Go</button>'
            ),
            True,
        ),
        ('<button class="primary" disabled>Go</button>', False),
        ('<a href="/x">One</a>', False),
    ],
)
def test_a_main_action_that_tab_does_not_come_to_is_found(
    browser: Any, body: str, stuck: bool
) -> None:
    page = browser.new_page()
    page.set_content(f"<main>{body}</main>")
    assert is_stuck(page) == stuck
    page.close()


PALE = "<style>body { background: #fff; color: #333 } .pale { color: #bbb }</style><table>"
NEARLY_ALIKE = {  # rows, and the word in them that is too pale
    "<tr><td>one</td></tr><tr><td>two</td></tr>": "",
    "<tr><td class='pale'>one</td></tr><tr><td class='pale'>two</td></tr>": "one",
    "<tr><td>one</td></tr><tr><td style='color: #bbb'>two</td></tr>": "two",
    "<tr><td>one</td></tr><tr style='background: #444'><td>two</td></tr>": "two",
    "<tr><td class='pale'></td></tr><tr><td class='pale'>two</td></tr>": "two",
    "<tr class='pale'><td>–</td></tr><tr class='pale'><td>two</td></tr>": "two",
    "<tr hidden class='pale'><td>one</td></tr><tr class='pale'><td>two</td></tr>": "two",
    "<tr><td><button class='pale' disabled>one</button><button class='pale'>two</button></td></tr>": (  # noqa: E501
        "two"
    ),
    "<tr><td><details><summary>more</summary><p class='pale'>one</p></details><details open><summary>more</summary><p class='pale'>two</p></details></td></tr>": (  # noqa: E501
        "two"
    ),
}


def test_a_pale_text_is_found_among_others_that_look_nearly_alike(browser: Any) -> None:
    page = browser.new_page()
    for rows, pale in NEARLY_ALIKE.items():
        page.set_content(PALE + rows)
        found = unreadable(page)
        assert len(found) == bool(pale) and pale in "".join(found), (rows, found)
    page.close()


@pytest.mark.more
def test_full_pages_stand_every_check_and_are_reached_by_links(
    world: World, user: Any, logged_in: Any
) -> None:
    """All pages that there are: a new route is visited here, or is named as none. In the suite
    axe-core looks at one page, and Tab goes through the next.
    """
    visited, none = pages_of(world, user), {name for names in NO_PAGES.values() for name in names}
    known = {name for name in PAGES if name not in WRITES} | {"core:projects"}
    assert "core:projects" in OWN and visited.keys() | none == known and not visited.keys() & none
    wrong, linked = [], set()
    for number, (name, address) in enumerate(visited.items()):
        wrong += wrong_with(logged_in, address, number)
        linked |= links(logged_in)
        if number % 2 or amount(False, True):
            wrong += [f"{name}: Tab does not come to its main action"] * is_stuck(logged_in)
    unreached = {name for name, address in visited.items() if urlsplit(address).path not in linked}
    wrong += [f"{name}: no page links to it" for name in unreached - BY_MAIL_OR_JOB]
    assert not wrong, "\n".join(wrong)


@pytest.mark.more
def test_empty_pages_say_what_to_do(user: Any, page: Any) -> None:
    project = create_project(slug="empty", name="Empty", by=user)
    log_in(page)
    """In the suite without the forms, which look the same in a full project."""
    wrong, forms = [], dict.fromkeys(amount((), FORMS), "")
    for number, (name, words) in enumerate((STATIONS | forms).items()):
        wrong += wrong_with(page, reverse(name, args=[project.slug]), number)
        expect(page.locator("main")).to_contain_text(words)
    assert not wrong, "\n".join(wrong)


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


OWN_PAGES = (
    "account",
    "account_change_password",
    "account_reauthenticate",
    "mfa_index",
    "mfa_activate_totp",
    "mfa_list_webauthn",
    "mfa_add_webauthn",
    "usersessions_list",
    "socialaccount_connections",
    "notifications:list",
    "notifications:preferences",
)


def test_ones_own_pages_stand_every_check(user: Any, page: Any) -> None:
    create_project(slug="empty", name="Empty", by=user)
    log_in_by_form(page)
    page.goto(reverse("mfa_add_webauthn"))
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    for name in OWN_PAGES:
        page.goto(reverse(name))
        expect(page.locator("h1")).to_be_visible()
        assert not (wrong := wrong_with(page, page.url)), wrong
