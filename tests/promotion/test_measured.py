"""What the gate is told beside the two evaluations: latency in turns, regression tasks, general
capability.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from apps.core.models import JobState, Project
from apps.evals.capability import add as capability_add
from apps.evals.capability.add import add_general
from apps.evals.capability.environment import general_environment
from apps.evals.capability.generate import general_tasks
from apps.evals.drafts import freeze
from apps.evals.jobs import evaluation_spec, tasks_of
from apps.evals.models import EvalRun, EvalSet, LatencyMeasurement, Sample, Split
from apps.promotion import actions, inputs, preparation
from apps.promotion.gate import Policy
from apps.promotion.models import GateReport
from apps.promotion.policies import channel_of, save_policy
from apps.registry.models import ModelVersion
from tests.factories import (
    admin_of,
    make_adapter,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_measurement,
)
from tests.forms import as_read
from workers.lib.task_files import read_tasks

pytestmark = pytest.mark.django_db


def pair_on(eval_set: EvalSet, base: ModelVersion, folder: Path, **given: Any) -> list[EvalRun]:
    """The base fails everything, an adapter on it does everything right."""
    environment = make_environment(eval_set.project)
    other = make_adapter(eval_set.project, base, folder)
    return [
        make_eval_run(eval_set, model, environment, success, **given)
        for model, success in ((base, 0.0), (other, 1.0))
    ]


@pytest.fixture
def runs(project: Project, base: ModelVersion, data_dir: Path) -> list[EvalRun]:
    return pair_on(make_eval_set(project, holdout=32), base, data_dir)


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


@pytest.fixture
def guarded(
    project: Project, base: ModelVersion, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> list[EvalRun]:
    """A pair on a set that also has regression and general tasks, every fourth of the built-in
    ones.
    """
    monkeypatch.setattr(capability_add, "general_tasks", lambda: list(general_tasks())[::4])
    eval_set = make_eval_set(project, train=40, holdout=32, frozen=False)
    eval_set.tasks.filter(split=Split.TRAIN).update(split=Split.REGRESSION)
    add_general(eval_set=eval_set, by=admin_of(project))
    return pair_on(freeze(eval_set=eval_set, by=admin_of(project)), base, data_dir)


def measure(run: EvalRun, failing: int, masked: int = 0) -> None:
    """Ends a guard's evaluation: the first tasks fail, the next cannot be scored."""
    tasks = tasks_of(run)
    Sample.objects.bulk_create(
        Sample(
            run=run,
            task=task,
            index=index,
            output="x",
            success=at >= failing + masked,
            masked=failing <= at < failing + masked,
            reward=None if failing <= at < failing + masked else 1.0,
        )
        for at, task in enumerate(tasks)
        for index in range(run.samples_per_task)
    )
    run.claim("test")
    run.finish(JobState.SUCCEEDED)


def guard_run(run: EvalRun, split: Split) -> EvalRun:
    return preparation.guard_runs(run, split).get()


def test_what_is_missing_is_queued_once_and_the_report_waits_for_it(guarded: list[EvalRun]) -> None:
    by = admin_of(guarded[0].project)
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
        EvalRun.objects.filter(state="queued").count() == 4
        and LatencyMeasurement.objects.count() == 1
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
    split: Split | None, failing: int, masked: int, verdict: str, state: str, guarded: list[EvalRun]
) -> None:
    preparation.prepare(baseline=guarded[0], candidate=guarded[1], by=admin_of(guarded[0].project))
    for guard in preparation.SPLITS:
        measure(guard_run(guarded[0], guard), 0)
        measure(guard_run(guarded[1], guard), *((failing, masked) if guard == split else (0, 0)))
    by, channel = admin_of(guarded[0].project), channel_of(guarded[0].project)
    policy = Policy(max_regression_drop=0.1)  # the least that 40 tasks can show
    save_policy(channel=channel, policy=policy, reason="few tasks", by=by)
    report = compared(guarded)
    assert report.verdict == verdict, report.report["summary"]
    assert check_of(report, str(split or Split.GENERAL))["state"] == state
    assert report.guards.keys() == {"regression", "general"} and inputs.reproduce(report)[1]
    guard_run(guarded[1], Split.GENERAL).samples.first().delete()
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
            ),
            0,
        )
    assert preparation.measured_guards(*guarded)["general"] is None


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
        LatencyMeasurement.objects.get().adapters == "hot"
        and guard_run(guarded[0], Split.GENERAL).total == 12
    )
    job = LatencyMeasurement.objects.get()
    assert job.claim("test")
    LatencyMeasurement.objects.filter(pk=job.pk).update(done=7, total=90, label="round 2")
    fragment = client.get(f"{address}parts/")
    assert "7 of 90 · round 2" in fragment.content.decode() and "HX-Refresh" not in fragment.headers
    assert job.finish(JobState.CANCELLED)
    for run in EvalRun.objects.filter(state="queued"):
        run.request_cancel()
    assert client.get(f"{address}parts/").headers["HX-Refresh"] == "true"
    assert "Measure what is missing" in client.get(address).content.decode()
    assert client.post(f"{address}prepare/", {"general_tasks": "no"}).status_code == 302
    assert "Enter a whole number" in client.get(address).content.decode()
    report = compared(guarded)
    assert str(report.pk) in client.get(address).content.decode()
    assert address in client.get(f"/p/{project.slug}/models/reports/{report.pk}/").content.decode()
