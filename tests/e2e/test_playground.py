"""The playground in a browser: words appear while a model writes them, each version in its column,
and the score follows.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

from django.urls import reverse
from playwright.sync_api import expect

from apps.core.actions import create_project
from apps.evals import actions as evals
from apps.evals.models import Split
from apps.prompts.models import Playground
from tests.e2e.conftest import PATIENCE_MS, log_in
from tests.e2e.workers import worker
from tests.factories import make_endpoint, make_environment, make_server
from tests.registry.model_server import begun, chat, chunk, ended, serving


def test_words_appear_while_they_are_written_and_then_the_score(
    user: Any, data_dir: Any, settings: Any, page: Any
) -> None:
    """Three of four versions write and wait for this test; the fourth cannot stream. What is open
    on the page stays open.
    """
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    names = ("ada", "bob", "cid", "whole")
    go_on = {name: threading.Event() for name in names}

    def answer(body: dict) -> Any:
        if body["model"] == "whole":
            return chat({"content": "All at once."})
        return slowly(body["model"])

    def slowly(model: str) -> Iterator[bytes]:
        yield from begun(f"{model} is ", "thin")
        assert go_on[model].wait(PATIENCE_MS / 1000)
        yield from [chunk({"content": "king."}), *ended()]

    project = create_project(slug="desk", name="Desk", by=user)
    log_in(page)
    make_environment(project)
    tasks = evals.create_eval_set(project=project, slug="tickets", by=user)
    evals.add_task(
        eval_set=tasks,
        key="t1",
        request="Close ticket 12.",
        split=Split.TRAIN,
        by=user,
        expected={"tool": "tickets.close", "args": {"id": 12}},
    )
    with serving({("POST", "/v1/chat/completions"): answer}) as server, worker(Playground):
        there = make_server(project, server.base)
        versions = [make_endpoint(project, there, name, name=name) for name in names]
        page.goto(reverse("prompts:playground_new", args=[project.slug]))
        for number, version in enumerate(versions, 1):
            page.get_by_label(f"Version {number}", exact=True).select_option(str(version.pk))
        page.get_by_label("Close ticket 12.").check()
        page.get_by_role("button", name="Run").click()
        for name in names[:3]:
            cell = page.locator(f'td[data-of^="{name}"] [aria-busy="true"]')
            expect(cell).to_contain_text(f"{name} is thin")
        expect(page.get_by_text("All at once.")).to_be_visible()
        expect(page.get_by_text("is thinking.")).to_have_count(0)
        page.locator("summary", has_text="Expected").click()
        expect(page.get_by_text('"tickets.close"')).to_be_visible()
        for name in names[:3]:
            go_on[name].set()
            cell = page.locator(f'td[data-of^="{name}"]')
            expect(cell.get_by_text(f"{name} is thinking.")).to_be_visible()
            expect(cell.get_by_text("reward")).to_be_visible()
            if name != "cid":
                expect(page.get_by_text('"tickets.close"')).to_be_visible()
                expect(page.get_by_text("cid is thin", exact=True)).to_be_visible()
        expect(page.locator('[aria-busy="true"]')).to_have_count(0)
        expect(page.locator("#answers")).not_to_have_attribute("hx-get", re.compile(".*"))
