"""A flow is put together by form, checked by a dry run, written on as YAML, saved, and started."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from apps.automation.models import Flow, FlowRun
from tests.e2e.seed import World


@pytest.mark.proof
def test_a_flow_by_form_and_yaml(world: World, logged_in: Any) -> None:
    page = logged_in
    page.goto(f"/p/{world.project.slug}/automation/")
    page.locator("a.card", has_text="Nightly evaluation").click()
    page.get_by_label("Name", exact=True).fill("Every second night")
    page.get_by_label("When").fill("0 2 */2 * *")
    page.get_by_label("Add step").select_option("ask")
    page.get_by_role("button", name="Add step").click()
    question = page.get_by_label("Question")
    question.fill("Has it become worse?")
    page.get_by_role("button", name="Ask a person: up").click()
    expect(page.get_by_text("1. Ask a person")).to_be_visible()
    expect(question).to_have_value("Has it become worse?")
    page.get_by_role("button", name="Ask a person: down").click()
    expect(page.get_by_text("2. Ask a person")).to_be_visible()
    page.locator("#editor summary").last.click()
    page.get_by_label("Only if").last.fill("evaluate.succes < 0.9")
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator("#checked")).to_contain_text("has no output “succes”")
    page.get_by_role("button", name="Save").click()
    wrong = page.locator(".field", has=page.locator(".errorlist"))
    expect(wrong).to_contain_text("Only if")
    wrong.get_by_role("combobox").fill("evaluate.success < 0.9")
    page.get_by_role("tab", name="YAML").click()
    text = page.get_by_label("Flow", exact=True)
    expect(text).to_have_value(re.compile(r"question: Has it become worse\?"))
    text.fill(text.input_value() + "retries: 3\n")
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator("#checked")).to_contain_text("In the last 30 days it would have run")
    page.get_by_role("tab", name="Form").click()
    expect(page.get_by_label("Retries")).to_have_value("3")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("button", name="Run now")).to_be_visible()
    spec = Flow.objects.get(name="Every second night").version.form
    assert (spec.retries, [step.kind for step in spec.steps]) == (3, ["evaluate", "ask"])
    assert (
        spec.steps[1].condition == "evaluate.success < 0.9" and spec.crons[0].when == "0 2 */2 * *"
    )
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Every second night")
    assert FlowRun.objects.get().cause["by"] == "person"
