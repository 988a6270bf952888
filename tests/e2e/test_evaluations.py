"""An evaluation read by the keyboard: filtered, opened sample by sample, and back to the list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from tests.e2e.conftest import log_in
from tests.e2e.seed import World
from tests.evals.test_pace import Scene
from tests.factories import make_endpoint, make_project


@pytest.mark.proof
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
    page.wait_for_url("**/?outcome=failed")
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


@pytest.mark.proof
def test_the_pace_of_a_server_is_said_of_the_model_that_is_selected(
    page: Any, user: Any, data_dir: Path, settings: Any
) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    scene = Scene(make_project(user))
    fast = make_endpoint(scene.project, scene.server, "fast", name="fast")
    scene.earlier(*[{"stop_reason": "time", "latency_ms": None}] * 64, *[{}] * 12)
    scene.earlier(*[{}] * 12, model_version=fast)
    log_in(page)
    page.goto(reverse("evals:new_run", args=[scene.project.slug, scene.set.pk]))
    for version, says in (
        (scene.version, "about 84% would time out"),
        (fast, "none took longer"),
        (scene.version, "about 84% would time out"),
    ):
        page.get_by_label("Model version").select_option(str(version.pk))
        expect(page.locator("#pace")).to_contain_text(says)
