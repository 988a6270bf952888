"""The pairs of a semantic check by the keyboard alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from apps.core.models import JobState
from apps.evals import actions
from apps.evals.meaning import check
from apps.evals.models import Split
from tests.e2e.conftest import log_in
from tests.factories import make_base, make_project

REQUESTS = (
    "Cancel my hotel in Vienna.",
    "Play some jazz in the kitchen.",
    "What is seven times eight?",
    "Das Zimmer brauche ich nicht mehr.",
    "Sort these names.",
    "Lower the blinds.",
)


@pytest.mark.proof
def test_pairs_are_decided_and_undone_by_keys(user: Any, page: Any, data_dir: Path) -> None:
    project = make_project(user)
    eval_set = actions.create_eval_set(project=project, slug="set", by=user)
    for number, request in enumerate(REQUESTS):
        actions.add_task(
            eval_set=eval_set,
            key=f"t{number}",
            request=request,
            expected={"answer": f"answer {number}"},
            by=user,
            split=Split.HOLDOUT if number < 3 else Split.TRAIN,
        )
    source = check.Source(version=make_base(project, data_dir).pk)
    job = check.submit(eval_set=eval_set, source=source, by=user)
    job.claim("test")
    check.comparison_spec(job)
    ids = {task.key: str(task.pk) for task in eval_set.tasks.all()}
    pairs = [
        {"held": ids[f"t{at}"], "other": ids[f"t{at + 3}"], "text": 0, "score": 1 - at / 10}
        for at in range(3)
    ]
    job.finish(
        JobState.SUCCEEDED, result=check.complete(job, {"pairs": pairs, "texts": 6, "known": 0})
    )
    log_in(page)
    page.goto(reverse("evals:meaning", args=[project.slug, eval_set.pk]))
    undecided, articles = page.locator("#undecided"), page.locator("article.panel")
    expect(undecided).to_have_text("3")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("d")  # the second pair, where j has gone, not the first
    expect(undecided).to_have_text("2")
    expect(articles.nth(1)).to_contain_text("Different")
    page.keyboard.press("u")
    expect(undecided).to_have_text("3")
    page.keyboard.press("k")
    page.keyboard.press("s")
    expect(undecided).to_have_text("2")
    expect(articles.nth(0)).to_contain_text("Removed from the draft")
    assert not eval_set.tasks.filter(key="t3").exists()
    page.keyboard.press("u")
    expect(undecided).to_have_text("3")
    assert eval_set.tasks.get(key="t3").messages[0]["content"] == REQUESTS[3]
    page.goto(reverse("evals:detail", args=[project.slug, eval_set.pk]))
    expect(page.get_by_text("Semantic check: 3 of 3 pairs undecided.")).to_be_visible()
