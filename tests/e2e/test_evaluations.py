"""An evaluation read by the keyboard: filtered, opened sample by sample, and back to the list."""

from __future__ import annotations

from typing import Any

from django.urls import reverse
from playwright.sync_api import expect

from tests.e2e.seed import World


def test_samples_are_filtered_opened_and_gone_through_by_the_keyboard(
    world: World, logged_in: Any
) -> None:
    page, run = logged_in, world.grpo
    failed = list(run.samples.filter(success=False, masked=False))
    views = run.eval_set.holdout_views.count()
    page.goto(reverse("evals:run", args=[world.project.slug, run.pk]))
    assert run.eval_set.holdout_views.count() == views  # the numbers alone are no look
    page.get_by_role("button", name="Open (counts as a view)").click()
    page.get_by_label("Outcome").select_option("failed")
    page.wait_for_url("**outcome=failed")
    expect(page.locator("tr[data-row]")).to_have_count(min(40, len(failed)))
    for key in ("j", "j", "Enter"):  # the second row
        page.keyboard.press(key)
    shown(page, failed[1].pk)
    page.keyboard.press("j")
    shown(page, failed[2].pk)
    page.wait_for_url(f"**/samples/{failed[2].pk}/?outcome=failed")
    expect(page.get_by_label("Conversation")).to_contain_text(
        failed[2].task.messages[-1]["content"]
    )
    page.keyboard.press("k")
    shown(page, failed[1].pk)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")  # closes the help, and nothing else
    expect(page.get_by_role("dialog")).to_be_hidden()
    shown(page, failed[1].pk)
    page.keyboard.press("Escape")
    expect(page.locator("tr[data-row] a").first).to_contain_text(failed[1].task_key[:48])
    assert run.eval_set.holdout_views.count() == views + 1


def shown(page: Any, pk: int) -> None:
    expect(page.locator(f'[data-sample="{pk}"]')).to_be_visible()
