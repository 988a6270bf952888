"""What an evaluation keeps of its child's events."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.events import parse_event
from apps.core.kinds import Incomplete
from apps.evals import jobs
from apps.evals.bounds import fixed_order
from apps.evals.jobs import complete, evaluation_spec, store_events, stream_tasks
from apps.evals.models import Sample
from tests.factories import make_base, make_environment, make_eval_run, make_eval_set, make_project
from workers.lib.task_files import read_tasks

pytestmark = pytest.mark.django_db


def test_one_reward_that_is_no_number_masks_its_sample_alone(data_dir: Path) -> None:
    project = make_project()
    eval_set = make_eval_set(project)
    run = make_eval_run(
        eval_set, make_base(project, data_dir), make_environment(project), success=1.0
    )
    task = run.samples.first().task
    run.samples.all().delete()
    line = (
        '{"type": "sample", "seq": %d, "task_id": "%s", "index": %d, "output": "x", "reward": %s,'
        ' "masked": false}'
    )
    rewards = ["1.0", "NaN", "1e400", "0.0"]
    events = [
        parse_event((line % (n, task.pk, n, reward)).encode())
        for n, reward in enumerate(rewards, 1)
    ]
    store_events(run, [event for event in events if event])
    found = list(Sample.objects.filter(run=run).order_by("index").values_list("reward", "masked"))
    assert found == [(1.0, False), (None, True), (None, True), (0.0, False)]
    assert "finite" in Sample.objects.filter(masked=True).first().mask_reason


def test_tasks_go_to_the_child_in_a_file_a_part_at_a_time(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project()
    run = make_eval_run(
        make_eval_set(project), make_base(project, data_dir), make_environment(project)
    )
    monkeypatch.setattr(jobs, "TASKS_AT_ONCE", 2)
    tasks = {str(task.pk): task for task in run.eval_set.tasks.filter(split=run.split)}
    with CaptureQueriesContext(
        connection,
    ) as asked:
        first = next(stream_tasks(run))
    assert len(asked) == 2 and first.pk == tasks[fixed_order(tasks)[0]].pk and len(tasks) > 2
    run.spec["engine"] = {"kind": "transformers", "asked": "auto"}
    given = evaluation_spec(run).tasks
    assert list(read_tasks(given)) == [tasks[pk].as_spec() for pk in fixed_order(tasks)]
    assert Path(given).is_relative_to(data_dir / "jobs" / "evalrun" / str(run.pk))


def test_an_evaluation_in_which_nothing_is_scored_has_failed(data_dir: Path) -> None:
    project = make_project()
    run = make_eval_run(
        make_eval_set(project), make_base(project, data_dir), make_environment(project), success=1.0
    )
    first = run.samples.first()
    run.samples.exclude(pk=first.pk).update(masked=True, reward=None, success=False)
    assert complete(run, {})["metrics"]["success"]["mean"] == 1.0
    run.samples.update(masked=True, reward=None, success=False)
    with pytest.raises(Incomplete, match="Every sample is masked") as end:
        complete(run, {})
    metrics = end.value.result["metrics"]
    assert metrics["counts"]["masked"] == metrics["counts"]["samples"] > 1
    assert all(metrics[name]["mean"] is None for name in ("valid_json", "success"))


def test_the_sum_reads_no_answers(data_dir: Path) -> None:
    project = make_project()
    run = make_eval_run(
        make_eval_set(project), make_base(project, data_dir), make_environment(project), success=1.0
    )
    with CaptureQueriesContext(connection) as asked:
        metrics = complete(run, {})["metrics"]
    assert metrics["success"]["mean"] == 1.0 and len(asked) < 7
    assert not any(
        f'"{name}"' in query["sql"]
        for query in asked
        for name in ("output", "messages", "components")
    )
