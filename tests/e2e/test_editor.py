"""The editor of verifiers in a real browser: typed code is checked, tried on stored samples, and
saved.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from apps.core.models import JobState
from apps.reviews.models import ProbeRun, Rescore
from tests.e2e.seed import World
from tests.e2e.workers import worker

GENEROUS = {"kind": "regex", "pattern": ""}  # pays whatever is said
TYPE = "(text) => document.querySelector('.CodeMirror').CodeMirror.setValue(text)"


def test_a_verifier_is_written_tried_and_saved(world: World, logged_in: Any) -> None:
    page, project, verifier = logged_in, world.project, world.environment.verifier
    page.goto(reverse("reviews:verifier", args=[project.slug, verifier.pk]))
    page.keyboard.press("e")
    expect(page.locator(".CodeMirror")).to_have_count(1)
    expect(page.locator("#check")).to_contain_text("valid")

    page.evaluate(TYPE, '{"kind": "tool_call", "weights": {"tol": 1}}')
    expect(page.locator("#check")).to_contain_text("tol")
    kinder = verifier.spec | {"weights": verifier.spec["weights"] | {"invalid": 0.0}}
    page.evaluate(TYPE, json.dumps(kinder, indent=2))
    expect(page.locator("#check")).to_contain_text("valid")

    with worker(Rescore):
        page.keyboard.press("c")
        expect(page.locator("#tried h2")).to_contain_text("samples scored", timeout=90_000)
    assert project.verifiers.filter(name=verifier.name).count() == 1

    page.get_by_label("What changed, and why").fill("No JSON is no crime")
    page.get_by_role("button", name="Save as a new version").click()
    expect(page.locator(".note.success")).to_contain_text("Saved as")
    expect(page.locator(".diff .gone")).to_contain_text("-1.0")
    assert project.environments.filter(slug=world.environment.slug).count() == 2


@pytest.mark.proof
def test_the_probes_run_and_their_findings_are_shown(world: World, logged_in: Any) -> None:
    """A verifier written here, attacked from its page: its hole is found, and holds the lock."""
    page, project = logged_in, world.project
    page.goto(reverse("reviews:verifier_edit", args=[project.slug, world.environment.verifier_id]))
    expect(page.locator("#check")).to_contain_text("valid")
    page.evaluate(TYPE, json.dumps(GENEROUS))
    expect(page.locator("#check")).to_contain_text("valid")
    page.get_by_label("What changed, and why").fill("Every answer is paid")
    page.get_by_role("button", name="Save as a new version").click()
    expect(page.locator(".note.success")).to_contain_text("Saved as")
    expect(page.get_by_text("Not run yet.")).to_be_visible()

    with worker(ProbeRun):
        page.get_by_role("button", name="Run the probes").click()
        page.wait_for_url("**/probes/**")
        expect(page.get_by_role("heading", name="Findings, worst first")).to_be_visible(
            timeout=300_000
        )
    run = project.proberuns.get()
    assert run.state == JobState.SUCCEEDED and run.failed and run.verifier.spec == GENEROUS
    assert run.eval_set == world.eval_set and run.environment.verifier == run.verifier
    expect(page.locator("summary", has_text="empty").first).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"{run.failed} finding")
    page.goto(reverse("reviews:verifier", args=[project.slug, run.verifier_id]))
    expect(page.get_by_role("link", name=f"{run.failed} finding")).to_be_visible()
