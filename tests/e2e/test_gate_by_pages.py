"""By pages alone, from two evaluations to a promotion and back: a member in a browser, jobs as a
worker stores them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from apps.core.models import AuditEvent, JobState, Project
from apps.core.runner import complete
from apps.evals import latency
from apps.evals.models import EvalRun, EvalSet, LatencyMeasurement
from apps.promotion.actions import channel_of, set_initial
from apps.promotion.inputs import reproduce
from apps.promotion.models import GateReport, Promotion
from apps.promotion.signing import is_genuine
from apps.registry.models import ModelVersion
from tests.e2e.conftest import log_in
from tests.e2e.seed import answer_all, say
from tests.factories import (
    admin_of,
    make_adapter,
    make_base,
    make_environment,
    make_eval_set,
    make_member,
    make_project,
)
from tests.forms import as_read

ROUNDS = 2


@dataclass
class Seed:
    """What there is before: a frozen hold-out, an environment, and two models, of which production
    runs the first.
    """

    project: Project
    eval_set: EvalSet
    base: ModelVersion
    better: ModelVersion

    @property
    def live(self) -> ModelVersion | None:
        return channel_of(self.project).current


@pytest.fixture
def seed(transactional_db: None, data_dir: Path) -> Seed:
    project = make_project()
    make_environment(project)
    base = make_base(project, data_dir)
    set_initial(channel=channel_of(project), version=base, by=admin_of(project))
    better = make_adapter(project, base, data_dir, "better")
    return Seed(project, make_eval_set(project, train=1, holdout=34), base, better)


@pytest.mark.proof
def test_from_two_evaluations_to_a_promotion_and_back(seed: Seed, page: Any) -> None:
    log_in_as_a_member(page, seed)
    baseline = evaluate(page, seed, seed.base, 0.3)
    candidate = evaluate(page, seed, seed.better, 0.9)
    compare(page, seed, baseline, candidate)
    measure(page)
    report = run_the_gate(page, seed)
    promote(page, seed, report)
    roll_back(page, seed)


# Stations


def log_in_as_a_member(page: Any, seed: Seed) -> None:
    member = make_member(seed.project)
    log_in(page, member.username)
    page.goto("/")


def evaluate(page: Any, seed: Seed, model: ModelVersion, skill: float) -> EvalRun:
    """The page says before the start what the comparison can show; then it is queued, and a
    worker's samples are shown.
    """
    page.get_by_role("link", name="Eval sets").first.click()
    page.get_by_role("link", name=str(seed.eval_set), exact=True).click()
    page.get_by_role("link", name="Evaluate a").click()
    expect(page.get_by_role("heading", name="Statistical power")).to_be_visible()
    page.get_by_label("Model version").select_option(label=str(model))
    page.get_by_role("button", name="Evaluate", exact=True).click()
    page.wait_for_url("**/evals/runs/**")
    expect(page.get_by_text("queued").first).to_be_visible()
    run = EvalRun.objects.get(model_version=model)
    assert (run.state, run.split, run.samples_per_task) == (JobState.QUEUED, "holdout", 8)
    answer_all(run, skill, random.Random(str(model)))
    page.reload()
    expect(page.get_by_role("cell", name="pass@8")).to_be_visible()
    return run


def compare(page: Any, seed: Seed, baseline: EvalRun, candidate: EvalRun) -> None:
    """What production runs is the baseline without being chosen."""
    models(page)
    page.get_by_role("link", name="Compare").first.click()
    expect(page.get_by_label("Baseline")).to_have_value(str(baseline.pk))
    page.get_by_label("Candidate").select_option(str(candidate.pk))
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{seed.base} → {seed.better}")
    expect(row(page, "Latency, interleaved")).to_contain_text("missing")


def measure(page: Any) -> None:
    """Asked for on the page, done as a worker does it, and seen without a reload."""
    page.get_by_role("button", name="Measure what is missing").click()
    expect(row(page, "Latency, interleaved")).to_contain_text("queued")
    expect(page.get_by_role("button", name="Measure what is missing")).to_have_count(0)
    measurement = LatencyMeasurement.objects.get()
    spec = as_read(latency.latency_spec(measurement))
    assert measurement.claim("test")
    say(
        measurement,
        [
            {
                "type": "sample",
                "version": version.id,
                "task_id": task["id"],
                "round": number,
                "turn": turn,
                "latency_ms": 100.0 * (1 + at % 5) * (1 + 0.02 * ((at + number + turn) % 3)),
                "input_tokens": 50,
                "output_tokens": 20,
            }
            for number in range(ROUNDS)
            for at, task in enumerate(spec.tasks)
            for turn, version in enumerate(spec.versions)
        ],
    )
    complete(measurement, {"metrics": {"rounds": ROUNDS}})
    expect(row(page, "Latency, interleaved")).to_contain_text(f"{ROUNDS} rounds of 34 tasks")


def run_the_gate(page: Any, seed: Seed) -> GateReport:
    """Every check is there; latency is judged by what was measured. Signed, and reproduced from the
    samples.
    """
    page.get_by_role("button", name="Compare (run the gate)").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("promote")
    expect(row(page, "Success")).to_contain_text("Success is higher")
    expect(row(page, "Latency, median")).to_contain_text("measured in turns on 34 tasks")
    for title in ("Unsafe actions", "Regressed tasks", "Tokens per answer", "Masked samples"):
        expect(row(page, title)).to_be_visible()
    expect(page.get_by_text("Signed")).to_be_visible()
    report = GateReport.objects.get()
    assert report.verdict == "promote" and is_genuine(report) and reproduce(report)[1]
    assert seed.live == seed.base
    return report


def promote(page: Any, seed: Seed, report: GateReport) -> None:
    """Not without a reason."""
    page.get_by_role("button", name="Promote").click()
    assert page.evaluate("document.querySelector('[name=reason]').validity.valueMissing")
    assert seed.live == seed.base
    page.get_by_label("Reason").fill("better on the hold-out")
    page.get_by_role("button", name="Promote").click()
    expect(page.get_by_text(f"{seed.better} is now live in production.")).to_be_visible()
    assert seed.live == seed.better
    move = Promotion.objects.filter(kind=Promotion.Kind.PROMOTE).get()
    assert (move.gate_report, move.reason) == (report, "better on the hold-out")
    models(page)
    expect(page.get_by_text("better on the hold-out")).to_be_visible()


def roll_back(page: Any, seed: Seed) -> None:
    """At once, and the same report promotes the model no more by this member."""
    page.get_by_label("Reason").fill("it deletes tickets")
    page.get_by_role("button", name=f"Roll back to {seed.base}").click()
    expect(page.get_by_text(f"production was rolled back to {seed.base}.")).to_be_visible()
    assert seed.live == seed.base
    said = set(AuditEvent.objects.filter(project=seed.project).values_list("action", flat=True))
    assert {
        "gate.reported",
        "channel.promote",
        "channel.rollback",
        "latencymeasurement.submitted",
    } <= said
    page.get_by_role("link", name="gate report").first.click()
    page.get_by_label("Reason").fill("again")
    page.get_by_role("button", name="Promote").click()
    expect(page.get_by_text("An owner of").first).to_contain_text("was rolled back from")
    assert seed.live == seed.base


# What they share


def models(page: Any) -> None:
    page.get_by_role("link", name="Models").first.click()
    page.wait_for_url("**/models/")


def row(page: Any, title: str) -> Any:
    return page.get_by_role("row").filter(has_text=title).first
