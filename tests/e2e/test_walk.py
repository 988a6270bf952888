"""Without a mouse: every page is reached by links from others, and its main action by Tab."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import expect

from tests.e2e.addresses import pages_of
from tests.e2e.seed import World

MOST_TABS = 400
LINKS = (
    "() => [...document.querySelectorAll('a[href]')].map((at) => new URL(at.getAttribute('href'), location).pathname)"
)
IN_EDITOR = "() => Boolean(document.activeElement.closest('.CodeMirror'))"
MAIN_ACTION = """() => [...document.querySelectorAll("main :is(a.btn, button).primary")].find((at) => at.checkVisibility() && !at.disabled && !at.closest('details:not([open])'))"""
AT_IT = f"() => document.activeElement === ({MAIN_ACTION})()"
BY_MAIL_OR_JOB = {  # reached from a button, a mail or the address of a job that has ended
    "core:remove_member", "evals:task_from_failure", "evals:import_status", "trajectories:first", "trajectories:compare",
    "training:run_examples",  # from a run that learned from examples; the world's learned from tasks
}  # fmt: skip


def test_every_page_is_reached_and_its_main_action_by_tab(world: World, user: Any, logged_in: Any) -> None:
    pages = pages_of(world, user)
    linked, stuck = set(), []
    for name, address in pages.items():
        logged_in.goto(address)
        expect(logged_in.locator('[hx-trigger^="load"].htmx-request')).to_have_count(0)
        linked |= set(logged_in.evaluate(LINKS))
        if not logged_in.evaluate(f"() => Boolean(({MAIN_ACTION})())"):
            continue
        for _ in range(MOST_TABS):
            if logged_in.evaluate(IN_EDITOR):
                logged_in.keyboard.press("Escape")  # Tab indents there, and the field says how to leave it
            logged_in.keyboard.press("Tab")
            if logged_in.evaluate(AT_IT):
                break
        else:
            stuck.append(name)
    unreached = {name for name, address in pages.items() if urlsplit(address).path not in linked}
    assert not stuck and unreached <= BY_MAIL_OR_JOB, (stuck, unreached - BY_MAIL_OR_JOB)
