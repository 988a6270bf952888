"""A measurement of latency: what may be measured together, what the child is given, what is
kept.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from apps.core.models import Project
from apps.environments.actions import save_environment
from apps.evals import latency
from apps.evals.models import EvalRun, LatencyMeasurement, TimedAnswer
from apps.registry.models import ModelVersion
from tests.factories import (
    make_adapter,
    make_endpoint,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_measurement,
)
from tests.forms import as_read

pytestmark = pytest.mark.django_db


@pytest.fixture
def runs(project: Project, base: ModelVersion, data_dir: Path) -> list[EvalRun]:
    eval_set, environment = make_eval_set(project, holdout=5), make_environment(project)
    return [
        make_eval_run(eval_set, model, environment)
        for model in (base, make_adapter(project, base, data_dir))
    ]


def test_the_child_gets_all_versions_and_the_same_tasks(runs: list[EvalRun]) -> None:
    measurement = latency.submit_measurement(
        runs=runs, by=runs[0].created_by, tasks=3, adapters="hot"
    )
    spec = as_read(latency.latency_spec(measurement))
    assert [version.id for version in spec.versions] == [str(run.pk) for run in runs]
    assert [bool(version.model.adapter) for version in spec.versions] == [False, True]
    assert len(spec.tasks) == 3 and spec.adapters == "hot"
    assert latency.submit_measurement(runs=runs, by=runs[0].created_by) == measurement, (
        "it is under way already"
    )


@pytest.mark.proof
def test_runs_of_other_tasks_or_places_are_refused(
    project: Project, base: ModelVersion, runs: list[EvalRun], settings: object
) -> None:
    by, first = runs[0].created_by, runs[0]
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True  # type: ignore[attr-defined]
    served = make_endpoint(project)
    environment = first.environment
    turns = save_environment(
        project=project,
        slug="workplace",
        builtin="workplace",
        harness=environment.harness | {"max_turns": 3},
        verifier=environment.verifier,
        by=by,
    )
    for other, says in (
        (first, "at least two"),
        (make_eval_run(make_eval_set(project), base, environment), "differ in their tasks"),
        (make_eval_run(first.eval_set, base, turns), "differ in their tasks"),
        (make_eval_run(first.eval_set, served, environment), "different places"),
    ):
        with pytest.raises(latency.LatencyError, match=says):
            latency.submit_measurement(runs=[first, other], by=by)
    assert not LatencyMeasurement.objects.exists()


def test_only_what_the_last_attempt_measured_counts(runs: list[EvalRun]) -> None:
    measurement = make_measurement(runs, [100, 200], failed=1)
    other = measurement.answers.first()
    TimedAnswer.objects.create(
        measurement=measurement,
        attempt=measurement.attempt - 1,
        run=runs[0],
        task=other.task,
        round=3,
        turn=0,
        latency_ms=9999,
        input_tokens=1,
        output_tokens=1,
    )
    slow = latency.latencies(measurement, runs[1])
    assert [len(latency.latencies(measurement, runs[0])), len(slow)] == [5, 4]
    assert all(200 <= ms < 220 for found in slow.values() for ms in found) and all(
        len(ms) == 2 for ms in slow.values()
    )
    counts = {pk: (found["n"], found["failed"]) for pk, found in measurement.result["runs"].items()}
    assert counts == {str(runs[0].pk): (10, 0), str(runs[1].pk): (8, 2)}
    assert (
        list(latency.measurements_of(runs))
        == list(latency.measurements_of(runs[:1]))
        == [measurement]
    )
