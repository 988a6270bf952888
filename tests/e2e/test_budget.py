"""A run is estimated while its form is filled in, measured by a button, and its page has the
estimate.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.core import jobs
from apps.core.models import JobState, Membership, Role
from apps.environments.models import Environment
from apps.evals.models import EvalRun
from apps.training.models import Measurement, TrainingRun
from tests.e2e.conftest import log_in
from tests.evals.evaluated import evaluated, frozen_set
from tests.factories import override
from tests.training.test_budget import GB, MEASURED, add_tokenizer, finish, lengths
from tests.training.test_picks import PASSED

pytestmark = pytest.mark.django_db(transaction=True)
SHOTS = os.environ.get("FLYWHEEL_SHOTS", "")  # a folder for pictures of the pages


@pytest.fixture
def run(user: Any, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EvalRun]:
    monkeypatch.setattr(jobs, "enqueue", lambda job: None)
    made = evaluated(
        frozen_set(demonstration='{"tool": "tickets.close", "args": {"id": 1}}'), PASSED, data_dir
    )
    Membership.objects.create(project=made.project, user=user, role=Role.OWNER)
    override(Environment.objects.get(pk=made.environment_id))
    add_tokenizer(Path(made.model_version.base))
    lengths(made, 12, 20)
    yield made


def shoot(page: Any, name: str) -> None:
    for scheme in ("light", "dark") if SHOTS else ():
        for width in (1280, 390):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            page.screenshot(path=f"{SHOTS}/{name}-{scheme}-{width}.png", full_page=True)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 900})


@pytest.mark.proof
def test_estimate_measure_and_start(page: Any, run: EvalRun) -> None:
    log_in(page)
    page.goto(f"/p/{run.project.slug}/training/new/?method=grpo")
    panel = page.locator("#budget")
    panel.get_by_text("this model has not been measured yet").wait_for()
    shoot(page, "new-unmeasured")
    panel.get_by_role("button", name="Measure on this machine").click()
    panel.get_by_text("Measuring: waiting for a worker").wait_for()
    shoot(page, "new-measuring")
    finish(
        Measurement.objects.get(),
        machine=MEASURED["machine"] | {"available": int(1.6 * GB)},
        part=10_000,
    )
    panel.get_by_text("It does not fit.").wait_for()  # asked for again by itself
    assert "micro_batch to " in panel.inner_text()
    shoot(page, "new-too-large")
    before = panel.get_by_text("Time").locator("..").inner_text()
    page.locator("#id_steps").fill("400")
    page.locator("#id_steps").blur()
    page.wait_for_function(
        "before => !document.querySelector('#budget').innerText.includes(before)", arg=before
    )
    page.get_by_role("button", name="Start training").click()
    page.get_by_text("Estimate vs. actual").wait_for()
    shoot(page, "run-queued")
    made = TrainingRun.objects.get()
    made.claim("test")
    made.finish(JobState.SUCCEEDED, result={"peak": {"memory": 2 * GB}})
    TrainingRun.objects.update(reduced={"micro_batch": 4, "gradient_checkpointing": True})
    page.reload()
    page.get_by_text("An attempt ran out of memory.").wait_for()
    shoot(page, "run-ended")
    page.goto(f"/p/{run.project.slug}/training/")
    page.get_by_text("× estimate").wait_for()
    shoot(page, "list")
