"""axe-core over every page, full and empty, light and dark: nothing serious or critical. And what a finger must hit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from django.urls import reverse
from playwright.sync_api import expect

from apps.core.actions import create_project
from tests.e2e.addresses import FORMS, STATIONS, pages_of
from tests.e2e.conftest import log_in
from tests.e2e.seed import World
from tests.e2e.test_pages import OWN_PAGES

WORST = ("serious", "critical")
COLOURS = {"runOnly": ["color-contrast", "link-in-text-block"]}
SMALL = """() => [...document.querySelectorAll("a, button, summary, select, input, [role=option], [role=tab]")].filter((at) => {
  const box = at.getBoundingClientRect(), style = getComputedStyle(at);
  if (!box.width || !box.height || style.visibility === "hidden" || at.closest("[hidden], .skip, .unseen, .CodeMirror, svg")) return false;
  if (at.matches("input") && at.closest("label")) return at.closest("label").getBoundingClientRect().height < 23.5 && box.height < 23.5;
  if (style.display === "inline" && [...at.parentElement.childNodes].some((node) => node.nodeType === 3 && node.data.trim().length > 1)) return false;
  return box.height < 23.5 || box.width < 23.5;  // in a sentence a link is as high as its line (WCAG 2.5.8)
}).map((at) => `${at.tagName}.${at.className} “${at.textContent.trim().slice(0, 30)}” ${Math.round(at.getBoundingClientRect().width)}×${Math.round(at.getBoundingClientRect().height)}`).slice(0, 6)"""


def faults(page: Any, options: dict | None = None) -> list[str]:
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{fault['id']}: {node['target']} {node['html'][:160]}"
        for fault in found
        if fault["impact"] in WORST
        for node in fault["nodes"][:3]
    ]


def settle(page: Any) -> None:
    expect(page.locator('[hx-trigger^="load"].htmx-request')).to_have_count(0)


def examine(page: Any, addresses: Iterable[str]) -> list[str]:
    """Every rule in the light theme, those about colours in the dark one."""
    wrong = []
    for address in addresses:
        assert page.goto(address).status == 200, address
        settle(page)
        page.evaluate("document.documentElement.dataset.theme = 'light'")
        wrong += [f"{address} {fault}" for fault in faults(page)]
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
        wrong += [f"{address} (dark) {fault}" for fault in faults(page, COLOURS)]
    return wrong


def test_axe_finds_nothing_serious_on_full_pages(world: World, user: Any, logged_in: Any) -> None:
    wrong = examine(logged_in, pages_of(world, user).values())
    assert not wrong, "\n".join(wrong)


def test_axe_finds_nothing_serious_on_empty_pages(user: Any, page: Any) -> None:
    project = create_project(slug="empty", name="Empty", by=user)
    wrong = examine(page, [reverse("account_login"), reverse("account_reset_password")])
    log_in(page)
    wrong += examine(page, [reverse(name, args=[project.slug]) for name in (*STATIONS, *FORMS)])
    wrong += examine(page, [reverse(name) for name in OWN_PAGES])
    assert not wrong, "\n".join(wrong)


def test_axe_finds_nothing_serious_in_dialogs_and_the_api_reference(world: World, logged_in: Any) -> None:
    logged_in.goto(reverse("training:list", args=[world.project.slug]))
    logged_in.keyboard.press("Control+k")
    expect(logged_in.get_by_role("option").first).to_be_visible()
    wrong = faults(logged_in)
    logged_in.keyboard.press("Escape")
    logged_in.keyboard.press("?")
    expect(logged_in.get_by_role("dialog", name="Keyboard")).to_be_visible()
    wrong += faults(logged_in)
    logged_in.goto(reverse("api:docs"))
    logged_in.wait_for_load_state("networkidle")
    wrong += faults(logged_in)
    assert not wrong, "\n".join(wrong)


def test_a_finger_hits_everything(world: World, user: Any, logged_in: Any) -> None:
    """24 px each way on a phone."""
    logged_in.set_viewport_size({"width": 390, "height": 844})
    wrong = []
    for address in pages_of(world, user).values():
        logged_in.goto(address)
        settle(logged_in)
        wrong += [f"{address} {one}" for one in logged_in.evaluate(SMALL)]
    assert not wrong, "\n".join(wrong)
