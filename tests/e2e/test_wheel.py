"""One person, one browser: from the login to a promotion and back."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

from apps.core.models import AuditEvent
from apps.failures.models import Failure
from apps.promotion.actions import channel_of
from apps.promotion.models import Promotion
from tests.e2e.conftest import PASSWORD, go
from tests.e2e.seed import STEPS, World


def test_the_wheel_turns_in_the_browser(world: World, page: Any) -> None:
    log_in(page)
    filter_and_open_trajectories(page)
    triage(page, world)
    make_an_eval_set(page, world)
    read_runs(page, world)
    promote_and_roll_back(page, world)
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    page.goto(f"/p/{world.project.slug}/")
    expect(page).to_have_url(re.compile(r"/login/\?next="))


def log_in(page: Any) -> None:
    page.goto("/")
    page.get_by_label("Username").fill("ada")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.locator(".errorlist")).to_be_visible()
    page.get_by_label("Username").fill("ada")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Workplace assistant")).to_be_visible()
    expect(page.locator(".figure .main-svg").first).to_be_visible()
    expect(page.get_by_role("link", name="Review the gate report")).to_be_visible()


def filter_and_open_trajectories(page: Any) -> None:
    go(page, "gt", "trajectories")
    everything = page.locator("tr[data-row]").count()
    page.locator("#filters").get_by_label("Outcome").first.select_option("failure")
    page.wait_for_url("**outcome=failure**")
    rows = page.locator("tr[data-row]")
    assert 0 < rows.count() <= everything
    assert set(page.locator("tr[data-row] td:nth-child(3)").all_inner_texts()) == {"failure"}
    for key in "jjjk":
        page.keyboard.press(key)
    second = rows.nth(1)
    expect(second).to_have_class(re.compile(r"\bat\b"))
    asked = second.locator("a").first.inner_text()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/trajectories/[0-9a-f-]{36}/"))
    expect(page.get_by_role("heading", level=1)).to_contain_text(asked[:30])
    expect(page.locator(".turn.user .body").last).to_contain_text(asked[:30])
    expect(page.locator(".turn.blamed")).to_have_count(1)
    first = page.url
    page.keyboard.press("]")
    page.wait_for_url(
        lambda url: "/trajectories/" in url and url != first and "outcome=failure" in url
    )


def triage(page: Any, world: World) -> None:
    """Confirm, change, dismiss, and take the last one back."""
    failures = Failure.objects.filter(project=world.project)
    waiting = failures.filter(state="open").count()
    page.get_by_role("link", name="Failures").click()
    page.wait_for_url("**/failures/")
    page.keyboard.press("t")
    expect(page.get_by_text(f"{waiting} left")).to_be_visible()
    page.keyboard.press("c")
    expect(page.get_by_text(f"{waiting - 1} left")).to_be_visible()
    page.keyboard.press("4")
    expect(page.get_by_text(f"{waiting - 2} left")).to_be_visible()
    page.keyboard.press("d")
    expect(page.get_by_text(f"{waiting - 3} left")).to_be_visible()
    assert failures.filter(state="confirmed").count() == 2
    assert failures.filter(state="confirmed", mode__slug="bad_planning").count() == 1
    assert failures.filter(state="dismissed").count() == 1
    page.keyboard.press("u")
    expect(page.get_by_text("Your last decision was undone.")).to_be_visible()
    assert failures.filter(state="dismissed").count() == 0


def make_an_eval_set(page: Any, world: World) -> None:
    go(page, "ge", "evals")
    page.get_by_text("New eval set").click()
    expect(page.locator("#id_slug")).to_be_focused()
    page.locator("#id_slug").fill("second")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name="second@1")).to_be_visible()
    page.get_by_text("Add a task manually").click()
    page.locator("#id_key").fill("by-hand")
    page.locator("#id_request").fill("Close ticket 77.")
    page.locator("#id_expected").fill('{"tool": "tickets.close", "args": {"id": 77}}')
    page.get_by_role("button", name="Add task", exact=True).click()
    expect(page.get_by_role("cell", name="by-hand Written by hand")).to_be_visible()
    page.get_by_label("hold nothing out").check()
    page.get_by_role("button", name="Freeze without a hold-out").click()
    expect(page.get_by_role("heading", name="second@1")).to_contain_text("frozen")
    frozen = world.project.eval_sets.get(slug="second")
    assert frozen.is_frozen and frozen.digest and frozen.tasks.count() == 1
    expect(page.get_by_role("button", name="Add task")).to_have_count(0)


def read_runs(page: Any, world: World) -> None:
    page.get_by_role("link", name="Training").click()
    page.wait_for_url("**/training/")
    page.get_by_role("link", name=world.training.name).click()
    for title in ("Loss", "Reward", "KL to the start", "Entropy"):
        figure = page.locator(".figure", has=page.locator(".gtitle", has_text=title)).first
        expect(figure.locator(".gtitle")).to_be_visible()
        expect(figure.locator(".scatterlayer .trace").first.locator(".point")).to_have_count(STEPS)
    expect(page.get_by_text("arguments +0.4").first).to_be_visible()
    page.goto(f"/p/{world.project.slug}/evals/runs/{world.grpo.pk}/")
    expect(page.get_by_role("cell", name="pass@8")).to_be_visible()
    page.get_by_role("button", name="Open (counts as a view)").click()
    page.get_by_label("Outcome").select_option("failed")
    page.wait_for_url("**outcome=failed")
    failed = world.grpo.samples.filter(success=False)
    expect(page.locator("tr[data-row]")).to_have_count(min(40, failed.count()))
    kinds = set(page.locator("tr[data-row] td:nth-child(2) .badge").all_inner_texts())
    assert kinds <= {"failed", "unsafe", "invalid"}


def lineage_ends_in_production(page: Any, world: World) -> None:
    """From the model to a run in production that it was trained on, and back."""
    page.get_by_role("link", name="from production, over all generations").click()
    page.get_by_role("table").get_by_role("link").and_(
        page.locator('a[href*="/trajectories/"]')
    ).first.click()
    page.wait_for_url(re.compile(r"/trajectories/[0-9a-f-]{36}/"))
    trajectory = page.url.split("/")[-2]
    assert world.training.dataset.rows.filter(task__trajectory=trajectory).exists()
    page.go_back()
    page.go_back()


def promote_and_roll_back(page: Any, world: World) -> None:
    base, better = str(world.base), str(world.grpo.model_version)
    go(page, "gm", "models")
    page.get_by_role("link", name=better, exact=True).click()
    expect(page.get_by_role("heading", name="Lineage", level=2)).to_be_visible()
    expect(
        page.locator("span", has_text="↳").get_by_role("link", name=base, exact=True)
    ).to_be_visible()
    expect(page.get_by_role("link", name=world.training.name)).to_be_visible()
    lineage_ends_in_production(page, world)
    page.get_by_role("link", name="Models").first.click()
    page.wait_for_url("**/models/")
    page.get_by_role("link", name="Compare").click()
    page.get_by_label("Baseline").select_option(str(world.baseline.pk))
    page.get_by_label("Candidate").select_option(str(world.grpo.pk))
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_role("button", name="Compare (run the gate)").click()
    expect(page.get_by_role("heading", name=f"{base} → {better}")).to_contain_text("promote")
    page.get_by_label("Reason").fill("better on the hold-out")
    page.get_by_role("button", name="Promote").click()
    expect(page.get_by_text(f"{better} is now live in production.")).to_be_visible()
    assert channel_of(world.project).current == world.grpo.model_version
    assert Promotion.objects.filter(
        reason="better on the hold-out", gate_report__verdict="promote"
    ).exists()
    page.get_by_role("link", name="Models").first.click()
    page.wait_for_url("**/models/")
    page.get_by_label("Reason for the rollback").fill("complaints")
    page.get_by_role("button", name=f"Roll back to {base}").click()
    expect(page.get_by_text(f"production was rolled back to {base}.")).to_be_visible()
    assert channel_of(world.project).current == world.base
    assert Promotion.objects.filter(kind="rollback", reason="complaints").exists()
    said = AuditEvent.objects.filter(project=world.project).values_list("action", flat=True)
    assert {"failure.decided", "failure.undone", "eval_set.frozen", "gate.reported"} <= set(said)
