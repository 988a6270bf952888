"""What the gate is told beside the two evaluations: latency in turns, regression tasks, general
capability.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.test import Client

from apps.core.models import JobState
from apps.evals.capability import add as capability_add
from apps.evals.capability.add import add_general
from apps.evals.capability.environment import general_environment
from apps.evals.capability.generate import general_tasks
from apps.evals.drafts import freeze
from apps.evals.jobs import evaluation_spec, stream_tasks
from apps.evals.models import EvalRun, EvalSet, LatencyMeasurement, Sample, Split
from apps.promotion import actions, inputs, preparation
from apps.promotion.gate import Policy
from apps.promotion.models import GateReport
from apps.promotion.policies import channel_of, save_policy
from apps.registry.models import ModelVersion
from tests.factories import (
    admin_of,
    make_adapter,
    make_eval_run,
    make_eval_set,
    make_measurement,
    unsearched,
)
from tests.forms import as_read
from tests.promotion.made import Pair
from tests.shared import copied, once
from workers.lib.task_files import read_tasks

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("pair_kept")]


@pytest.fixture
def runs(pair: Pair) -> list[EvalRun]:
    return pair.runs


def compared(runs: list[EvalRun]) -> GateReport:
    return actions.make_gate_report(
        baseline=runs[0], candidate=runs[1], by=admin_of(runs[0].project)
    )


def check_of(report: GateReport, name: str) -> dict:
    return next(check for check in report.report["checks"] if check["name"] == name)


@pytest.mark.parametrize(
    ("took", "verdict", "state"),
    [
        pytest.param([100.0, 300.0], "reject", "worse", id="slower"),
        pytest.param([100.0, 101.0], "promote", "same", id="as fast"),
        pytest.param([100.0, 50.0], "promote", "better", id="faster"),
        pytest.param([100.0, 125.5], "inconclusive", "inconclusive", id="at the limit"),
    ],
)
def test_latency_is_judged_where_it_was_measured_in_turns(
    took: list[float], verdict: str, state: str, runs: list[EvalRun]
) -> None:
    runs[1].samples.update(latency_ms=9000)  # the evaluations ran at different times
    before = compared(runs)
    assert before.verdict == "promote" and check_of(before, "latency")["state"] == "not judged"
    measurement = make_measurement(runs, took)
    report = compared(runs)
    assert (report.verdict, check_of(report, "latency")["state"]) == (verdict, state)
    assert (
        report.measurement == measurement
        and "measured in turns" in check_of(report, "latency")["sentence"]
    )
    assert inputs.reproduce(report)[1]
    measurement.answers.filter(run=runs[1]).first().delete()
    assert not inputs.reproduce(report)[1]


def test_a_measurement_with_others_is_no_measurement_of_the_pair(
    runs: list[EvalRun], base: ModelVersion, data_dir: Path
) -> None:
    third = make_eval_run(
        runs[0].eval_set, make_adapter(base.project, base, data_dir), runs[0].environment
    )
    make_measurement([runs[0], third], [100, 100])
    assert check_of(compared(runs), "latency")["state"] == "not judged"
    make_measurement([*runs, third], [100, 100, 100])
    assert check_of(compared(runs), "latency")["state"] == "same"


class Guarded(Pair):
    """On a set that also has regression and general tasks, every fourth of the built-in ones."""

    def make_set(self) -> EvalSet:
        draft = make_eval_set(self.project, train=0, holdout=32, regression=40, frozen=False)
        some = list(general_tasks())[::4]
        with patch.object(capability_add, "general_tasks", lambda: some), unsearched():
            add_general(eval_set=draft, by=self.by)
        return freeze(eval_set=draft, by=self.by)


class Measured(Guarded):
    """All of both guards succeed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        baseline, candidate = self.runs
        preparation.prepare(baseline=baseline, candidate=candidate, by=self.by)
        for run, split in product(self.runs, preparation.SPLITS):
            measure(guard_run(run, split))


@pytest.fixture(scope="module")
def guarded_kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, Guarded)


@pytest.fixture
def guarded(guarded_kept: Any, db: None, settings: Any) -> list[EvalRun]:
    return copied(guarded_kept, settings).runs


@pytest.fixture(scope="module")
def measured_kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, Measured)


@pytest.fixture
def measured(measured_kept: Any, db: None, settings: Any) -> list[EvalRun]:
    return copied(measured_kept, settings).runs


def measure(run: EvalRun) -> None:
    """Ends a guard's evaluation: all tasks succeed."""
    Sample.objects.bulk_create(
        Sample(run=run, task=task, index=index, output="x", success=True, reward=1.0)
        for task in stream_tasks(run)
        for index in range(run.samples_per_task)
    )
    run.claim("test")
    run.finish(JobState.SUCCEEDED)


def spoil(run: EvalRun, failing: int, masked: int) -> None:
    """The first tasks fail, the next cannot be scored."""
    tasks = list(stream_tasks(run))
    run.samples.filter(task__in=tasks[: failing + masked]).update(success=False)
    run.samples.filter(task__in=tasks[failing : failing + masked]).update(masked=True, reward=None)


def guard_run(run: EvalRun, split: Split) -> EvalRun:
    return preparation.guard_runs(run, split).get()


def test_what_is_missing_is_queued_once_and_the_report_waits_for_it(guarded: list[EvalRun]) -> None:
    project = guarded[0].project
    by = admin_of(project)
    report = compared(guarded)
    assert report.verdict == "inconclusive"
    assert {check_of(report, name)["state"] for name in ("regression", "general")} == {
        "inconclusive"
    }
    assert [part.state for part in preparation.parts(*guarded)] == ["missing"] * 3
    for _ in range(2):
        assert (
            preparation.prepare(baseline=guarded[0], candidate=guarded[1], by=by, general_tasks=24)
            == []
        )
    assert [part.state for part in preparation.parts(*guarded)] == ["queued"] * 3
    assert (
        EvalRun.objects.filter(project=project, state="queued").count() == 4
        and LatencyMeasurement.objects.filter(project=project).count() == 1
    )
    general = [guard_run(run, Split.GENERAL) for run in guarded]
    spec, other = (as_read(evaluation_spec(run)) for run in general)
    assert list(read_tasks(spec.tasks)) == list(read_tasks(other.tasks))
    assert (
        len(read_tasks(spec.tasks)) == 24
        and spec.samples_per_task == 1
        and not spec.environment.harness.system_prompt
    )
    assert guard_run(guarded[0], Split.REGRESSION).environment == guarded[0].environment


@pytest.mark.parametrize(
    ("split", "failing", "masked", "verdict", "state"),
    [
        pytest.param(None, 0, 0, "promote", "same", id="nothing lost"),
        pytest.param(Split.GENERAL, 60, 0, "reject", "worse", id="general capability lost"),
        pytest.param(Split.REGRESSION, 20, 0, "reject", "worse", id="regressions"),
        pytest.param(
            Split.GENERAL, 6, 0, "inconclusive", "inconclusive", id="perhaps a little lost"
        ),
        pytest.param(
            Split.GENERAL, 0, 30, "inconclusive", "inconclusive", id="masked is not passed"
        ),
    ],
)
def test_general_capability_and_regression_tasks_are_judged(
    split: Split | None,
    failing: int,
    masked: int,
    verdict: str,
    state: str,
    measured: list[EvalRun],
) -> None:
    if split:
        spoil(guard_run(measured[1], split), failing, masked)
    by, channel = admin_of(measured[0].project), channel_of(measured[0].project)
    policy = Policy(max_regression_drop=0.1)  # the least that 40 tasks can show
    save_policy(channel=channel, policy=policy, reason="few tasks", by=by)
    report = compared(measured)
    assert report.verdict == verdict, report.report["summary"]
    assert check_of(report, str(split or Split.GENERAL))["state"] == state
    assert report.guards.keys() == {"regression", "general"} and inputs.reproduce(report)[1]
    guard_run(measured[1], Split.GENERAL).samples.first().delete()
    with pytest.raises(Exception, match="same tasks"):
        inputs.reproduce(report)


def test_runs_on_different_subsets_are_no_pair(guarded: list[EvalRun]) -> None:
    by = admin_of(guarded[0].project)
    environment = general_environment(project=guarded[0].project, by=by)
    for run, size in zip(guarded, (12, 18), strict=True):
        measure(
            preparation.submit_eval(
                project=run.project,
                eval_set=run.eval_set,
                split=Split.GENERAL,
                environment=environment,
                model_version=run.model_version,
                samples_per_task=1,
                subset=size,
                by=by,
            )
        )
    assert preparation.measured_guards(*guarded)["general"] is None


@pytest.mark.proof
def test_the_page_measures_and_shows_progress(guarded: list[EvalRun]) -> None:
    client, project = Client(), guarded[0].project
    client.force_login(admin_of(project))
    root = f"/p/{project.slug}/models/compare/"
    address = f"{root}{guarded[0].pk}/{guarded[1].pk}/"
    assert client.get(f"{root}?baseline={guarded[0].pk}&candidate={guarded[1].pk}").url == address
    page = client.get(address).content.decode()
    assert (
        page.count(">missing</span>") == 3
        and "Measure what is missing" in page
        and 'hx-trigger="every 2s"' not in page
    )
    assert (
        client.post(f"{address}prepare/", {"general_tasks": "12", "adapters": "hot"}).status_code
        == 302
    )
    page = client.get(address).content.decode()
    assert (
        page.count(">queued</span>") == 3
        and 'hx-trigger="every 2s"' in page
        and "Measure what is missing" not in page
    )
    assert (
        LatencyMeasurement.objects.get(project=project).adapters == "hot"
        and guard_run(guarded[0], Split.GENERAL).total == 12
    )
    job = LatencyMeasurement.objects.get(project=project)
    assert job.claim("test")
    LatencyMeasurement.objects.filter(pk=job.pk).update(done=7, total=90, label="round 2")
    fragment = client.get(f"{address}parts/")
    assert "7 of 90 · round 2" in fragment.content.decode() and "HX-Refresh" not in fragment.headers
    assert job.finish(JobState.CANCELLED)
    for run in EvalRun.objects.filter(project=project, state="queued"):
        run.request_cancel()
    assert client.get(f"{address}parts/").headers["HX-Refresh"] == "true"
    assert "Measure what is missing" in client.get(address).content.decode()
    assert client.post(f"{address}prepare/", {"general_tasks": "no"}).status_code == 302
    assert "Enter a whole number" in client.get(address).content.decode()
    report = compared(guarded)
    assert str(report.pk) in client.get(address).content.decode()
    assert address in client.get(f"/p/{project.slug}/models/reports/{report.pk}/").content.decode()
